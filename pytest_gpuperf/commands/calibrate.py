"""`gpuperf calibrate`: spreads, scales and false alarms of each suite, from A/A runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pytest_gpuperf.baselines.calibration import Finding
from pytest_gpuperf.catalogue import units
from pytest_gpuperf.errors import OK
from pytest_gpuperf.judge.spread import Estimate
from pytest_gpuperf.report.text import table
from pytest_gpuperf.report.text.table import Line

NAME = "calibrate"
HELP = "estimate noise and false alarms from runs of identical code; needs no GPU"
USAGE: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf calibrate`."""
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="runs of identical code, of several processes, days and GPUs",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="store the result in the suite's baseline file; the judge then uses it",
    )
    parser.add_argument(
        "--baselines",
        type=Path,
        default=Path("baselines"),
        metavar="DIR",
        help="default: baselines",
    )


def act(options: argparse.Namespace) -> int:
    """Prints what the runs say of each suite's noise, and stores it where that was asked for."""
    from shutil import get_terminal_size

    from pytest_gpuperf.baselines import calibration
    from pytest_gpuperf.storage import run_files
    from pytest_gpuperf.storage.files import utc_now

    loaded = [run_files.load(file) for file in options.runs]
    found = calibration.findings(loaded, utc_now()[:10])
    for finding in found:
        for line in lines(finding, get_terminal_size().columns):
            print(line.text)
    if options.write:
        for file in calibration.write(found, options.baselines):
            print(f"written: {file}")
    return OK


ENOUGH_PROCESSES, ENOUGH_ALLOCATIONS = 20, 3
"""What a sound estimate needs."""
_HEADINGS = ("class", "rounds", "processes", "allocations", "GPUs", "default", "scale")
_INDENT = "  "
_NOTHING = "-"


def lines(found: Finding, width: int) -> list[Line]:
    """One finding as lines of at most `width` characters.

    Where the columns do not fit, each class becomes stacked lines.
    """
    counted = found.calibration
    device = found.device
    heading = [
        f"{found.suite} on {device.name} ({device.arch}): {_count(counted.processes, 'process')},",
        f"{_count(counted.allocations, 'allocation')} (a GPU on a day),",
        _count(counted.gpus, "GPU"),
    ]
    return [
        *(Line(text, "heading") for text in table.wrapped(heading, width, "")),
        *map(Line, _table([_cells(k.value, e) for k, e in found.estimates.items()], width)),
        *_false_alarms(found, width),
        *_notes(found, width),
    ]


def share(number: float | None) -> str:
    """A spread: "1.23 ppm", "120 ppm", "0.12 %"; "-" where it is not known."""
    if number is None:
        return _NOTHING
    if number < 5e-5:
        return units.moved(number).removeprefix("+")
    # Up to 0.1 %, so that a scale of 0.014 % is not read as 0.01 %.
    if number < 9.995e-4:
        return f"{number * 1e6:.3g} ppm"
    return f"{number * 100:.3g} %"


def _cells(name: str, estimate: Estimate) -> tuple[str, ...]:
    spread = estimate.spread
    return (
        name,
        share(spread.rounds),
        share(spread.processes),
        share(spread.allocations),
        share(spread.gpus),
        share(estimate.default),
        share(estimate.scale),
    )


def _table(rows: Sequence[tuple[str, ...]], width: int) -> list[str]:
    widths = [max(len(row[i]) for row in [_HEADINGS, *rows]) for i in range(len(_HEADINGS))]
    if len(_INDENT) + sum(widths) + 2 * (len(widths) - 1) <= width:
        return [_aligned(row, widths) for row in [_HEADINGS, *rows]]
    return [text for row in rows for text in _stacked(row, width)]


def _stacked(row: tuple[str, ...], width: int) -> list[str]:
    name, *cells, default, scale = row
    parts = [f"{heading} {cell}," for heading, cell in zip(_HEADINGS[1:-2], cells, strict=True)]
    return [
        *table.wrapped([f"{name}:", f"scale {scale} (default {default})"], width, _INDENT),
        *table.wrapped([*parts[:-1], parts[-1].removesuffix(",")], width, _INDENT * 2),
    ]


def _aligned(row: tuple[str, ...], widths: Sequence[int]) -> str:
    name, *cells = row
    padded = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
    return _INDENT + "  ".join([name.ljust(widths[0]), *padded])


def _false_alarms(found: Finding, width: int) -> list[Line]:
    trials = found.trials
    if trials.at_most is None:
        text = "false alarms: not measured, since no test has 6 processes or more"
        return [Line(part, "doubtful") for part in table.wrapped([text], width, "")]
    text = (
        f"false alarms: {trials.false_alarms} of {_count(trials.count, 'A/A trial')} "
        f"(at most {trials.at_most * 100:.1f} % with 95 % confidence)"
    )
    if trials.inconclusive:
        text += f"; {trials.inconclusive} stayed inconclusive"
    tone = "bad" if trials.false_alarms else "doubtful" if trials.inconclusive else "good"
    return [Line(part, tone) for part in table.wrapped([text], width, "")]


def _notes(found: Finding, width: int) -> list[Line]:
    counted = found.calibration
    notes = [f"warning: {text}" for text in found.warnings]
    notes += [
        f"note: {kind.value}: days differ more than processes: more processes on one day do not "
        "help; the judge uses the error between allocations"
        for kind, estimate in found.estimates.items()
        if estimate.days_dominate
    ]
    if found.apart:
        notes.append(
            f"note: {_count(len(found.apart), 'process')} more than 5 SD from the others of the "
            "same allocation, and counted all the same"
        )
    if counted.processes < ENOUGH_PROCESSES or counted.allocations < ENOUGH_ALLOCATIONS:
        notes.append(
            f"note: {_count(counted.processes, 'process')} of "
            f"{_count(counted.allocations, 'allocation')}: a sound estimate needs "
            f"{ENOUGH_PROCESSES} processes or more, of {ENOUGH_ALLOCATIONS} allocations or more "
            "(other GPUs, other days)"
        )
    return [Line(part, "doubtful") for text in notes for part in table.wrapped([text], width, "")]


def _count(number: int, noun: str) -> str:
    """A number with its noun: "1 process", "2 processes"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith('s') else 's'}"
