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
from pytest_gpuperf.commands import say, say_json, say_lines, terminal_width
from pytest_gpuperf.commands.flags import JSON, MARKDOWN, TEXT, add_format, add_tests
from pytest_gpuperf.errors import UsageFailure, meant
from pytest_gpuperf.judge import comparison as judge
from pytest_gpuperf.judge.attribution import Naming
from pytest_gpuperf.judge.comparison import Chosen, Comparison, Measurements
from pytest_gpuperf.model.measurement import STEP, Measurement
from pytest_gpuperf.report.comparison_report import markdown, plain, text_lines
from pytest_gpuperf.storage import run_files

USAGE = (
    "gpuperf compare RUN_A RUN_B [--config NAME] [--test PATTERN] [--kernels N]\n"
    "                       [--format text|markdown|json]\n"
    "       gpuperf compare RUN --config A --config B [--test PATTERN] ..."
)
EXAMPLES = (
    "gpuperf compare before.json after.json",
    "gpuperf compare run.json --config baseline --config tf32",
)

Key = tuple[str, str]
"""A test, perhaps without its configuration, and the measurement's name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf compare`."""
    parser.add_argument("a", type=Path, metavar="RUN_A", help="the run to compare with")
    parser.add_argument(
        "b",
        type=Path,
        nargs="?",
        metavar="RUN_B",
        help="the run that is compared; may be left out with two --config",
    )
    parser.add_argument(
        "--config",
        dest="configurations",
        action="append",
        default=[],
        metavar="NAME",
        help="only this configuration of both runs; given twice, the first of RUN_A with the "
        "second of RUN_B, or of RUN_A where there is no RUN_B",
    )
    add_tests(parser, "only tests that match, by the rules of update-baseline")
    parser.add_argument(
        "--kernels",
        type=int,
        default=10,
        metavar="N",
        help="lines about kernels in text and markdown, what changed most first; 0 compares no "
        "kernels; default: 10",
    )
    add_format(parser, (TEXT, MARKDOWN, JSON))


def act(options: argparse.Namespace) -> int:
    """Does what the flags say: prints the comparison, and returns 0.

    Raises GpuperfError for runs that cannot be read, or have nothing to compare.
    """
    if options.kernels < 0:
        raise UsageFailure(f"--kernels {options.kernels}: a whole number from 0 on is needed")
    a, b = _sides(options.a, options.b, options.configurations)
    matching = run_files.matching([*a.measurements, *b.measurements], options.tests)
    tests = {measurement.test for measurement in matching}
    a, b = (
        replace(side, measurements=tuple(m for m in side.measurements if m.test in tests))
        for side in (a, b)
    )
    comparison = compare(a, b, kernels=options.kernels > 0)
    if options.format == JSON:
        say_json(plain(comparison))
    elif options.format == MARKDOWN:
        say(*markdown(comparison, kernels=options.kernels).rstrip("\n").split("\n"))
    else:
        say_lines(text_lines(comparison, kernels=options.kernels, width=terminal_width()))
    return 0


def compare(a: Chosen, b: Chosen, *, kernels: bool = True) -> Comparison:
    """The comparison of two sides, measurement by measurement, each of all its processes.

    They are paired by test and name; where two configurations were asked for, tests are the same
    that differ by these only. Raises UsageFailure where nothing can be paired.
    """
    both = None not in (a.configuration, b.configuration) and a.configuration != b.configuration
    old, new = _grouped(a, without=both), _grouped(b, without=both)
    shared = [key for key in old if key in new]
    naming = Naming(kernel_families.family, kernel_families.short_name) if kernels else None
    if not shared:
        raise UsageFailure(
            "nothing to compare: no measurement of a has a partner of the same test and name in b"
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
    """What is compared with what. Raises UsageFailure, which names the configurations there are."""
    if len(configurations) > 2:
        raise UsageFailure(
            f"--config is given {len(configurations)} times: two configurations can be compared"
        )
    first = _loaded(a)
    if b is None and len(configurations) < 2:
        raise UsageFailure(
            f"{a}: compare it with what? Name a second run, or two of its configurations "
            f"(--config A --config B); it has {', '.join(_configurations(first)) or 'none'}"
        )
    second = first if b is None else _loaded(b)
    if not configurations:
        return first, second
    return _of(first, configurations[0]), _of(second, configurations[-1])


def _loaded(file: Path) -> Chosen:
    run = run_files.load(file)
    if not run.measurements:
        raise UsageFailure(f"{file} has no measurements to compare")
    return Chosen(file, run.created, run.measurements)


def _of(side: Chosen, configuration: str) -> Chosen:
    chosen = tuple(m for m in side.measurements if m.configuration == configuration)
    if not chosen:
        known = _configurations(side)
        close = meant(configuration, known)
        raise UsageFailure(
            f'{side.run} has no configuration "{configuration}"; it has '
            f"{', '.join(known) or 'none'}{close and f'.{close}'}"
        )
    return replace(side, measurements=chosen, configuration=configuration)


def _configurations(side: Chosen) -> list[str]:
    return [*dict.fromkeys(m.configuration for m in side.measurements if m.configuration)]


def _grouped(side: Chosen, *, without: bool) -> dict[Key, Measurements]:
    """The measurements of one side by what they are paired by, those of all processes together."""
    grouped: dict[Key, list[Measurement]] = {}
    for measurement in side.measurements:
        test = measurement.test
        if without and measurement.configuration:
            test = _without(test, measurement.configuration)
        grouped.setdefault((test, measurement.name), []).append(measurement)
    return {key: tuple(measurements) for key, measurements in grouped.items()}


def _without(test: str, configuration: str) -> str:
    """A node id without the name of its configuration: in the parameters, or in a name before."""
    whole = rf"(?<![A-Za-z0-9]){re.escape(configuration)}(?![A-Za-z0-9])"
    places = [match.span() for match in re.finditer(whole, test)]
    if not places:
        return test
    start, end = places[-1]
    return f"{test[:start]}*{test[end:]}"


def _listing(label: str, side: Chosen) -> str:
    """What one side has, for an error: a line each."""
    named = dict.fromkeys(
        m.test if m.name == STEP else f"{m.test}, {m.name}" for m in side.measurements
    )
    return f"\n{label}, {side.run}, has{run_files.listing([*named]) or ' none'}"
