"""`gpuperf compare`: two runs side by side.

No gate: whatever changed, the exit code is 0. Needs no GPU.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from pytest_gpuperf.catalogue import kernel_families
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.commands import say_lines, terminal_width
from pytest_gpuperf.commands.flags import add_tests
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.judge import comparison as judge
from pytest_gpuperf.judge.attribution import Naming
from pytest_gpuperf.judge.comparison import Chosen, Comparison, Measurements
from pytest_gpuperf.model.measurement import STEP, grouped
from pytest_gpuperf.report.comparison_report import text_lines
from pytest_gpuperf.storage import run_files

USAGE: str | None = None
EXAMPLES = ("gpuperf compare before.json after.json",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf compare`."""
    parser.add_argument("a", type=Path, metavar="RUN_A", help="first run: before the change")
    parser.add_argument("b", type=Path, metavar="RUN_B", help="second run: after the change")
    add_tests(parser, "only tests that match, as in update-baseline")
    parser.add_argument(
        "--kernels",
        type=int,
        default=10,
        metavar="N",
        help="maximum lines about kernels, largest change first; 0 for none; default: 10",
    )


def act(options: argparse.Namespace) -> int:
    """Prints the comparison as the flags say, and returns 0.

    Raises GpuperfError for runs that cannot be read, or have nothing to compare.
    """
    if options.kernels < 0:
        raise UsageFailure(f"--kernels {options.kernels} must be 0 or a larger whole number")
    a, b = map(_chosen, (options.a, options.b))
    matching = run_files.matching([*a.measurements, *b.measurements], options.tests)
    tests = {measurement.test for measurement in matching}
    a, b = (
        replace(side, measurements=tuple(m for m in side.measurements if m.test in tests))
        for side in (a, b)
    )
    comparison = compare(a, b, kernels=options.kernels > 0)
    say_lines(text_lines(comparison, kernels=options.kernels, width=terminal_width()))
    return 0


def compare(a: Chosen, b: Chosen, *, kernels: bool = True) -> Comparison:
    """The comparison of two sides, measurement by measurement, each of all its processes.

    They are paired by node id and name. Raises UsageFailure where nothing can be paired.
    """
    old, new = _grouped(a), _grouped(b)
    shared = [key for key in old if key in new]
    naming = Naming(*kernel_families.NAMING) if kernels else None
    if not shared:
        raise UsageFailure(
            "a and b have no measurement of the same test and name, so there is nothing to compare"
            + "".join(_listing(label, side) for label, side in (("a", a), ("b", b)))
        )
    return Comparison(
        a,
        b,
        pairs=tuple(judge.pair(old[key], new[key], catalogue().metrics, naming) for key in shared),
        only_a=tuple(old[key] for key in old if key not in new),
        only_b=tuple(new[key] for key in new if key not in old),
    )


def _chosen(file: Path) -> Chosen:
    """All measurements of a run. Raises UsageFailure if it has none."""
    run = run_files.load(file)
    if not run.measurements:
        raise UsageFailure(f"{file} has no measurements to compare")
    return Chosen(file, run.measurements)


def _grouped(side: Chosen) -> dict[tuple[str, str], Measurements]:
    """The measurements of one side, of all processes, by test and name."""
    groups = grouped(side.measurements, lambda m: (m.test, m.name))
    return {key: tuple(measurements) for key, measurements in groups.items()}


def _listing(label: str, side: Chosen) -> str:
    """The contents of one side, for an error: a line each."""
    named = dict.fromkeys(
        m.test if m.name == STEP else f"{m.test}, {m.name}" for m in side.measurements
    )
    return f"\n{label}, {side.run}, has{run_files.listing([*named]) or ' none'}"
