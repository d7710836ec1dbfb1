"""The `gpuperf` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf import (
    __version__,
    comparing,
    exporting,
    importing,
    listing,
    recording,
    reporting,
)
from pytest_gpuperf.errors import GpuperfError

if TYPE_CHECKING:
    from pytest_gpuperf.acceptance import Request
    from pytest_gpuperf.model import Measurement

OK, FAILED, BAD_CONFIGURATION = 0, 1, 4
"""Exit codes: the same as pytest's."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code; errors go to stderr."""
    parser = _parser()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = parser.parse_args(words)
    except SystemExit as stop:
        # argparse exits with 2 for bad words; ours is pytest's code for bad configuration.
        return BAD_CONFIGURATION if stop.code else OK
    try:
        code: int = options.act(options)
    except GpuperfError as error:
        print(f"gpuperf: {error}", file=sys.stderr)
        return BAD_CONFIGURATION
    except KeyboardInterrupt:
        print("gpuperf: interrupted", file=sys.stderr)
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpuperf", description="Baselines and checks for pytest-gpuperf."
    )
    parser.add_argument("--version", action="version", version=f"gpuperf {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    doctor = commands.add_parser("doctor", help="can this machine be measured, and if not, why not")
    doctor.set_defaults(act=_doctor)

    metrics = commands.add_parser(
        "metrics",
        help="what is measured, by which of NVIDIA's counters, in how many passes; needs no GPU",
    )
    listing.add_arguments(metrics)
    metrics.set_defaults(act=listing.act)

    record = commands.add_parser(
        "record",
        help="run tests in several fresh processes and merge what they measured into one run",
        usage="gpuperf record [--processes K] [--pause SECONDS] [--run FILE] -- PYTEST-ARGS\n"
        "       gpuperf record --continue RUN [--processes K] [--pause SECONDS]",
    )
    recording.add_arguments(record)
    record.set_defaults(act=_record)

    update = commands.add_parser(
        "update-baseline", help="accept a saved run as the baseline; needs no GPU"
    )
    update.add_argument(
        "runs",
        nargs="*",
        type=Path,
        metavar="RUN",
        help="one or more runs, of several machines or days for example; default: the newest",
    )
    update.add_argument(
        "--reason", metavar="TEXT", help="why it is accepted; kept in the file's log"
    )
    update.add_argument("--yes", action="store_true", help="do not ask")
    update.add_argument(
        "--test",
        dest="tests",
        action="append",
        default=[],
        metavar="PATTERN",
        help='only tests that match: "*step?tf32*" over the whole node id, or a part of it as it '
        "is written; may be repeated",
    )
    update.add_argument("--only-new", action="store_true", help="leave entries that are there")
    update.add_argument(
        "--force",
        action="store_true",
        help="accept in spite of objections (few processes, an unfit device, a dirty tree, "
        "creep); the log says so",
    )
    update.add_argument(
        "--new-anchor",
        action="store_true",
        help="hold later entries against these samples, no longer against the first accepted",
    )
    update.add_argument(
        "--baselines",
        type=Path,
        default=Path("baselines"),
        metavar="DIR",
        help="default: baselines",
    )
    update.set_defaults(act=_update)

    compare = commands.add_parser(
        "compare",
        help="two runs, or two configurations of one, metric by metric and kernel by kernel",
        usage="gpuperf compare RUN_A RUN_B [--config NAME] [--test PATTERN] [--kernels N]\n"
        "                       [--format text|markdown|json]\n"
        "       gpuperf compare RUN --config A --config B [--test PATTERN] ...",
    )
    comparing.add_arguments(compare)
    compare.set_defaults(act=comparing.act)

    report = commands.add_parser(
        "report", help="write a saved run as HTML, Markdown or JSON; needs no GPU"
    )
    reporting.add_arguments(report)
    report.set_defaults(act=reporting.act)

    calibrate = commands.add_parser(
        "calibrate",
        help="estimate noise and false alarms from runs of identical code; needs no GPU",
    )
    calibrate.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="runs of identical code, of several processes, days and GPUs",
    )
    calibrate.add_argument(
        "--write",
        action="store_true",
        help="store the result in the suite's baseline file; the judge then uses it",
    )
    calibrate.add_argument(
        "--baselines",
        type=Path,
        default=Path("baselines"),
        metavar="DIR",
        help="default: baselines",
    )
    calibrate.set_defaults(act=_calibrate)

    imported = commands.add_parser(
        "import", help="make a run of a report of ncu (Nsight Compute); needs no GPU"
    )
    importing.add_arguments(imported)
    imported.set_defaults(act=importing.act)

    exported = commands.add_parser(
        "export", help="write a saved run in the format of another program; needs no GPU"
    )
    exporting.add_arguments(exported)
    exported.set_defaults(act=exporting.act)
    return parser


def _doctor(_: argparse.Namespace) -> int:
    from pytest_gpuperf import doctor

    checks = doctor.examine()
    for check in checks:
        print(f"{'yes' if check.ok else 'no ':3}  {check.name}: {check.detail}")
        if check.remedy and not check.ok:
            print(f"     -> {check.remedy}")
    return OK if all(check.ok or check.optional for check in checks) else FAILED


def _record(options: argparse.Namespace) -> int:
    return recording.act(options)


def _update(options: argparse.Namespace) -> int:
    from pytest_gpuperf import acceptance, runs, selection

    files = options.runs or [runs.newest(Path.cwd())]
    loaded = [(file, runs.load(file)) for file in files]
    reason = options.reason or ""
    if not reason.strip():
        print('gpuperf: a reason is needed, for the log: --reason "torch 2.12"', file=sys.stderr)
        return BAD_CONFIGURATION
    request = acceptance.Request(
        options.baselines,
        reason,
        max(run.created for _, run in loaded),
        force=options.force,
        only_new=options.only_new,
        new_anchor=options.new_anchor,
    )
    named = ", ".join(map(str, dict.fromkeys(files)))
    measurements = selection.merged(loaded)
    if not measurements:
        print(f"gpuperf: {named} has no measurements to accept", file=sys.stderr)
        return FAILED
    try:
        return _accepted(selection.matching(measurements, options.tests), request, named, options)
    except (acceptance.Refused, selection.NoMatch) as refusal:
        print(f"gpuperf: {refusal}", file=sys.stderr)
        return FAILED


def _accepted(
    measurements: list[Measurement], request: Request, named: str, options: argparse.Namespace
) -> int:
    from pytest_gpuperf import acceptance
    from pytest_gpuperf.report import acceptance as shown

    proposals = acceptance.proposals(measurements, request)
    if not proposals:
        print(f"nothing new: all that {named} measured has an entry in {request.folder}")
        return OK
    for proposal in proposals:
        print("\n".join(shown.lines(proposal)))
    if any(proposal.refused for proposal in proposals):
        print(
            "gpuperf: refused, nothing was written. To accept in spite of the objections above: "
            "--force, and the log says so",
            file=sys.stderr,
        )
        return FAILED
    if not (options.yes or _confirmed(f"accept {len(proposals)} measurements of {named}?")):
        print("nothing was written")
        return FAILED
    written = acceptance.accept(proposals)
    if [now.acceptance for now in written] != [before.acceptance for before in proposals]:
        print("the baselines were changed in the meantime; what was really replaced:")
        for now in written:
            print("\n".join(shown.lines(now)))
    for file in dict.fromkeys(file for proposal in written for file in proposal.files):
        print(f"written: {file}")
    return OK


def _calibrate(options: argparse.Namespace) -> int:
    from shutil import get_terminal_size

    from pytest_gpuperf import calibration, clock, runs
    from pytest_gpuperf.report import calibration as shown

    loaded = [runs.load(file) for file in options.runs]
    found = calibration.findings(loaded, clock.now()[:10])
    for finding in found:
        for line in shown.lines(finding, get_terminal_size().columns):
            print(line.text)
    if options.write:
        for file in calibration.write(found, options.baselines):
            print(f"written: {file}")
    return OK


def _confirmed(question: str) -> bool:
    if not sys.stdin.isatty():
        print("gpuperf: nobody to ask here; pass --yes to accept", file=sys.stderr)
        return False
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False
