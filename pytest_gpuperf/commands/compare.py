"""`gpuperf compare`: two runs, or two configurations of one, side by side.

No gate: whatever changed, the exit code is 0. Needs no GPU.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_gpuperf.catalogue import kernel_families
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.commands import say_lines, terminal_width
from pytest_gpuperf.commands.flags import add_tests
from pytest_gpuperf.errors import UsageFailure, meant
from pytest_gpuperf.judge import comparison as judge
from pytest_gpuperf.judge.attribution import Naming
from pytest_gpuperf.judge.comparison import Chosen, Comparison, Measurements
from pytest_gpuperf.model.measurement import STEP, grouped
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.report.comparison_report import text_lines
from pytest_gpuperf.storage import run_files

USAGE = (
    "gpuperf compare RUN_A RUN_B [--test PATTERN] [--kernels N]\n"
    "       gpuperf compare RUN --config A --config B [--test PATTERN] [--kernels N]"
)
EXAMPLES = (
    "gpuperf compare before.json after.json",
    "gpuperf compare run.json --config baseline --config tf32",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf compare`."""
    parser.add_argument("a", type=Path, metavar="RUN_A", help="first run: before the change")
    parser.add_argument(
        "b",
        type=Path,
        nargs="?",
        metavar="RUN_B",
        help="second run: after the change; leave it out if --config is given twice",
    )
    parser.add_argument(
        "--config",
        dest="configurations",
        action="append",
        default=[],
        metavar="NAME",
        help="without RUN_B: given twice, compare the first configuration of RUN_A with the second",
    )
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
    a, b = _sides(options.a, options.b, options.configurations)
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

    Tests are paired by node id and name; between two configurations, tests are the same
    that differ only in the configuration. Raises UsageFailure where nothing can be paired.
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


def _sides(a: Path, b: Path | None, configurations: Sequence[str]) -> tuple[Chosen, Chosen]:
    """The two sides to compare. Raises UsageFailure, which names the known configurations."""
    first = run_files.load(a)
    if len(configurations) != (2 if b is None else 0):
        raise UsageFailure(
            "name two runs, or one run and two of its configurations (--config A --config B). "
            f"{a} has {', '.join(_configurations(first)) or 'none'}"
        )
    if b is not None:
        return _of(a, first), _of(b, run_files.load(b))
    old, new = configurations
    return _of(a, first, old), _of(a, first, new)


def _of(file: Path, run: Run, configuration: str | None = None) -> Chosen:
    """The part of a run with this configuration; None: all. Raises UsageFailure if it is empty."""
    chosen = tuple(m for m in run.measurements if configuration in (None, m.configuration))
    if not run.measurements:
        raise UsageFailure(f"{file} has no measurements to compare")
    if not chosen:
        known = _configurations(run)
        close = meant(str(configuration), known)
        raise UsageFailure(
            f'{file} has no configuration "{configuration}". It has '
            f"{', '.join(known) or 'none'}{close and f'.{close}'}"
        )
    return Chosen(file, chosen, configuration)


def _configurations(run: Run) -> list[str]:
    return [*dict.fromkeys(m.configuration for m in run.measurements if m.configuration)]


def _grouped(side: Chosen) -> dict[tuple[str, str], Measurements]:
    """The measurements of one side, of all processes, by test without configuration, and name."""
    groups = grouped(side.measurements, lambda m: (_without(m.test, side.configuration), m.name))
    return {key: tuple(measurements) for key, measurements in groups.items()}


def _without(test: str, configuration: str | None) -> str:
    """A node id without the name of its configuration: in the parameters, or in a name before."""
    if not configuration:
        return test
    whole = rf"(.*(?<![A-Za-z0-9])){re.escape(configuration)}(?![A-Za-z0-9])"
    return re.sub(whole, r"\1*", test, count=1, flags=re.DOTALL)


def _listing(label: str, side: Chosen) -> str:
    """The contents of one side, for an error: a line each."""
    named = dict.fromkeys(
        m.test if m.name == STEP else f"{m.test}, {m.name}" for m in side.measurements
    )
    return f"\n{label}, {side.run}, has{run_files.listing([*named]) or ' none'}"
