"""The `gpuperf` command: doctor, record, update-baseline."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_gpuperf import __version__
from pytest_gpuperf.errors import GpuperfError

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

    record = commands.add_parser(
        "record",
        help="run tests in several fresh processes and merge what they measured into one run",
        usage="gpuperf record [--processes K] [--run FILE] -- PYTEST-ARGS",
    )
    record.add_argument("--processes", type=int, default=5, metavar="K", help="default: 5")
    record.add_argument(
        "--run", type=Path, metavar="FILE", help="default: .gpuperf/runs/<time>.json"
    )
    record.add_argument("pytest_args", nargs="*", metavar="PYTEST-ARGS")
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
        "--baselines",
        type=Path,
        default=Path("baselines"),
        metavar="DIR",
        help="default: baselines",
    )
    update.set_defaults(act=_update)
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
    from pytest_gpuperf import recording, runs

    file = options.run or runs.new_file(Path.cwd())
    return recording.record(options.processes, options.pytest_args, file)


def _update(options: argparse.Namespace) -> int:
    from pytest_gpuperf import acceptance, runs
    from pytest_gpuperf.report import acceptance as shown

    files = options.runs or [runs.newest(Path.cwd())]
    loaded = [runs.load(file) for file in files]
    reason = options.reason or ""
    if not reason.strip():
        print('gpuperf: a reason is needed, for the log: --reason "torch 2.12"', file=sys.stderr)
        return BAD_CONFIGURATION
    proposals = acceptance.proposals(
        [measurement for run in loaded for measurement in run.measurements],
        options.baselines,
        reason,
        max(run.created for run in loaded),
    )
    if not proposals:
        print(f"gpuperf: {files[0]} has no measurements to accept", file=sys.stderr)
        return FAILED
    for proposal in proposals:
        print("\n".join(shown.lines(proposal)))
    if not (
        options.yes
        or _confirmed(f"accept {len(proposals)} measurements of {', '.join(map(str, files))}?")
    ):
        print("nothing was written")
        return FAILED
    for proposal in proposals:
        acceptance.accept(proposal)
    for written in dict.fromkeys(proposal.file for proposal in proposals):
        print(f"written: {written}")
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
