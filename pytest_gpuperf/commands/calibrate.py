"""`gpuperf calibrate`: spreads, scales and false alarms of each suite, from A/A runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_gpuperf.baselines import calibration
from pytest_gpuperf.baselines.calibration import Finding, alarms_at_most
from pytest_gpuperf.catalogue.units import counted
from pytest_gpuperf.commands import say, say_lines, terminal_width
from pytest_gpuperf.commands.flags import add_baselines, baselines_folder
from pytest_gpuperf.errors import OK
from pytest_gpuperf.judge.tolerance import LEAST_SHARE, default_scale
from pytest_gpuperf.model.entry import Spread
from pytest_gpuperf.model.metric import MetricClass
from pytest_gpuperf.report.text.table import NOTHING, Line, column_lines, wrapped_lines
from pytest_gpuperf.storage import run_files
from pytest_gpuperf.storage.files import utc_now

USAGE: str | None = None
EXAMPLES = ("gpuperf calibrate monday.json tuesday.json",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf calibrate`."""
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="runs of identical code, from several processes, days and GPUs",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="store the result in the baseline file of the suite, for later comparisons",
    )
    add_baselines(parser)


def act(options: argparse.Namespace) -> int:
    """Prints each suite's noise according to the runs, and stores the calibration if asked to."""
    findings = calibration.findings([run_files.load(file) for file in options.runs], utc_now()[:10])
    for finding in findings:
        say_lines(lines(finding, terminal_width()))
    if options.write:
        for file in calibration.write(findings, baselines_folder(options)):
            say(f"written: {file}")
    return OK


ENOUGH_PROCESSES, ENOUGH_ALLOCATIONS = 20, 3
"""The least numbers of processes and allocations for a sound estimate."""
_HEADINGS = ("class", "rounds", "processes", "allocations", "GPUs", "default", "scale")


def lines(finding: Finding, width: int) -> list[Line]:
    """One finding as lines of at most `width` characters."""
    calibration, device = finding.calibration, finding.device
    heading = (
        f"{finding.suite} on {device.name} ({device.arch}): "
        f"{counted(calibration.processes, 'process')}, "
        f"{counted(calibration.allocations, 'allocation')} (a GPU on a day), "
        f"{counted(calibration.gpus, 'GPU')}"
    )
    rows = [_cells(name, spread) for name, spread in calibration.classes.items()]
    return [
        *wrapped_lines(heading, width, "heading"),
        *column_lines(_HEADINGS, rows, width, left=(0,)),
        *_false_alarms(finding, width),
        *(line for note in _notes(finding) for line in wrapped_lines(note, width, "doubtful")),
    ]


def share(number: float | None) -> str:
    """A spread as text: "1.23 ppm", "6140 ppm"; "-" where the spread is not known.

    All spreads are in parts per million, since they stand in one table.
    """
    if number is None:
        return NOTHING
    millionths = number * 1e6
    return f"{millionths:.0f} ppm" if millionths >= 99.95 else f"{millionths + 0:.3g} ppm"


def _cells(name: str, spread: Spread) -> tuple[str, ...]:
    default = default_scale(MetricClass(name))
    # As the judge takes it: a campaign that was quiet by luck would make alarms of a louder day.
    scale = max(spread.processes, LEAST_SHARE * default)
    known = (spread.rounds, spread.processes, spread.allocations, spread.gpus)
    return (name, *map(share, (*known, default, scale)))


def _false_alarms(finding: Finding, width: int) -> list[Line]:
    trials, alarms = finding.calibration.trials, finding.calibration.false_alarms
    if not trials:
        text = "false alarms: unknown, as no test has 6 processes or more"
        return wrapped_lines(text, width, "doubtful")
    text = (
        f"false alarms: {alarms} of {counted(trials, 'A/A trial')} "
        f"(at most {alarms_at_most(alarms, trials) * 100:.1f} % with 95 % confidence)"
    )
    if finding.inconclusive:
        text += f"; {finding.inconclusive} trials were inconclusive"
    tone = "bad" if alarms else "doubtful" if finding.inconclusive else "good"
    return wrapped_lines(text, width, tone)


def _notes(finding: Finding) -> list[str]:
    calibration = finding.calibration
    notes = []
    if len(finding.revisions) > 1:
        notes.append(
            f"warning: the runs are from {len(finding.revisions)} revisions of the code: "
            f"{', '.join(finding.revisions)}. The calibration counts their differences as noise. "
            "Use runs of one revision"
        )
    enough = calibration.processes >= ENOUGH_PROCESSES
    if not enough or calibration.allocations < ENOUGH_ALLOCATIONS:
        notes.append(
            f"note: {counted(calibration.processes, 'process')} of "
            f"{counted(calibration.allocations, 'allocation')}: a sound estimate needs "
            f"{ENOUGH_PROCESSES} processes or more, of {ENOUGH_ALLOCATIONS} allocations or more "
            "(other GPUs, other days)"
        )
    return notes
