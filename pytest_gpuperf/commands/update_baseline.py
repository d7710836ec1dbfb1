"""`gpuperf update-baseline`: shows old -> new and all objections, asks, and accepts."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from pytest_gpuperf.baselines import acceptance
from pytest_gpuperf.baselines.acceptance import AcceptanceRequest, Change, Proposal
from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.commands import complain, confirmed, say, tell
from pytest_gpuperf.commands.flags import add_baselines, add_tests, baselines_folder
from pytest_gpuperf.errors import BAD_CONFIGURATION, FAILED, OK
from pytest_gpuperf.model.measurement import Measurement, titles
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.storage import data_files, entry_values, run_files

USAGE: str | None = None
EXAMPLES = (
    'gpuperf update-baseline --reason "first baseline"',
    "gpuperf update-baseline run.json --test '*step*' --reason \"larger batch\"",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf update-baseline`."""
    parser.add_argument(
        "runs",
        nargs="*",
        type=Path,
        metavar="RUN",
        help="runs to accept together, for example of several machines; default: the newest",
    )
    parser.add_argument(
        "--reason", metavar="TEXT", help="why you accept it; required, kept in the log"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    add_tests(
        parser,
        "only tests that match: a pattern for the whole node id ('*step?tf32*'), or a part of it",
    )
    parser.add_argument("--only-new", action="store_true", help="keep existing entries")
    parser.add_argument(
        "--force",
        action="store_true",
        help="accept despite objections (few processes, throttled or shared GPU, uncommitted "
        "code, creep); the log records them",
    )
    parser.add_argument(
        "--new-origin",
        action="store_true",
        help="measure creep, small slowdowns that add up, from these samples, not from the first",
    )
    parser.add_argument(
        "--migrate",
        action="store_true",
        help="convert baseline files of older versions to the current format; accept nothing",
    )
    add_baselines(parser)


def act(options: argparse.Namespace) -> int:
    """Accepts what the flags select; returns the exit code. Raises GpuperfError for bad files."""
    if options.migrate:
        folder = baselines_folder(options)
        written = acceptance.migrate(folder)
        say(*(f"written: {file}" for file in written))
        if not written:
            say(f"nothing to write: every file in {folder} has the current format")
        return OK
    runs = options.runs or [run_files.newest(Path.cwd())]
    loaded = [(file, run_files.load(file)) for file in runs]
    reason = options.reason or ""
    if not reason.strip():
        complain('the log needs a reason. Add for example --reason "torch 2.12"')
        return BAD_CONFIGURATION
    request = AcceptanceRequest(
        baselines_folder(options),
        reason,
        max(run.created for _, run in loaded),
        force=options.force,
        only_new=options.only_new,
        new_origin=options.new_origin,
    )
    measurements = run_files.measurements_of(loaded)
    named = ", ".join(map(str, dict.fromkeys(runs)))
    if not measurements:
        complain(f"{named} has no measurements to accept")
        return FAILED
    try:
        wanted = run_files.matching(measurements, options.tests)
        if not options.tests:
            wanted = _asking(wanted, [run for _, run in loaded])
        return _accepted(wanted, request, named, options)
    except (acceptance.Refused, run_files.NoMatch) as refusal:
        complain(refusal)
        return FAILED


def _asking(measurements: list[Measurement], runs: list[Run]) -> list[Measurement]:
    """The measurements to accept: a measurement that a run found unchanged keeps its baseline."""
    left = acceptance.settled(runs)
    kept = [one for one in measurements if (one.test, one.name) not in left]
    if left:
        some = f"{units.counted(len(left), 'measurement')} unchanged or not compared in the run"
        tell(f"gpuperf keeps the baseline of {some}. To accept these too, name them by --test")
    return kept


def _accepted(
    measurements: list[Measurement],
    request: AcceptanceRequest,
    named: str,
    options: argparse.Namespace,
) -> int:
    proposals = acceptance.proposals(measurements, request)
    if not proposals and measurements:
        say(f"nothing new: all measurements of {named} have entries in {request.folder}")
    if not proposals:
        return OK
    # A note that all proposals share is printed once.
    first, *others = proposals
    shared = [note for note in first.notes if others and all(note in one.notes for one in others)]
    names = titles((proposal.first.test, proposal.first.name) for proposal in proposals)
    for proposal in proposals:
        tell(*lines(proposal, names[proposal.first.test, proposal.first.name], shared))
    for note in shared:
        tell(f"note on all tests: {note}")
    refused = [proposal for proposal in proposals if proposal.refused]
    if refused:
        complain(
            "nothing was written, because of the objections above. To accept anyway, add --force; "
            "the log will record the objections"
        )
        return FAILED
    if not (options.yes or confirmed(f"accept {len(proposals)} measurements of {named}?")):
        say("nothing was written")
        return FAILED
    written = acceptance.accept(proposals)
    for file, count in Counter(proposal.file for proposal in written).items():
        beside = data_files.folder_beside(file)
        say(f"written: {file}", f"written: {units.counted(count, 'file')} in {beside}")
    return OK


def lines(proposal: Proposal, title: str = "", shared: Collection[str] = ()) -> list[str]:
    """One proposal as text: the test, a line per metric of the whole step, and what to know.

    The latter is notes but for those that are `shared` with others, objections, and overruled
    ones. `title` names the proposal. Metrics that are zero now, and before were zero or missing,
    have one line for all.
    """
    log = proposal.entry.log[-1]
    processes = units.counted(log.processes, "process")
    device = proposal.first.fingerprint.device.name
    text = [f"{title or proposal.first.title} on {device}, {processes}"]
    changes = proposal.changes
    factors = units.in_factors(map(_relative, changes, changes.values()))
    zero = [metric for metric, (before, now) in changes.items() if now == 0 and not before]
    for metric, (before, now) in changes.items():
        if metric in zero:
            continue
        unit = catalogue().metrics[metric].unit
        old = "(new)" if before is None else units.value(before, unit)
        new = "(gone)" if now is None else units.value(now, unit)
        moved = "-"
        if before is not None and now is not None:
            moved = entry_values.moved(metric, before, now, factors=factors)
        text.append(f"  {metric:24} {old:>13} -> {new:>13}  {moved}")
    if zero:
        text.append(f"  zero: {', '.join(zero)}")
    text += [f"  note: {note}" for note in proposal.notes if note not in shared]
    text += [f"  objection: {objection.text}" for objection in proposal.objections]
    if log.forced:
        text.append(f"  the log will say: forced: {', '.join(log.forced)}")
    return text


def _relative(metric: str, change: Change) -> float | None:
    """The relative change of a metric; None for percentages, and where a value is missing."""
    old, new = change
    if not old or new is None or catalogue().metrics[metric].percentage:
        return None
    return (new - old) / old
