"""Which measurements of which runs `gpuperf update-baseline` is asked to accept."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from pytest_gpuperf.errors import GpuperfError, UsageFailure
from pytest_gpuperf.model import Measurement, Run

_LISTED = 10
"""No more tests than this are listed; a suite may have hundreds."""


class NoMatch(GpuperfError):
    """A pattern that no measured test matches. The message lists the tests. Exit code 1."""


def merged(loaded: Sequence[tuple[Path, Run]]) -> list[Measurement]:
    """The measurements of these runs, each with the file it is from; no process counts twice.

    A process is in two runs when one file is named twice, or one run is a continued copy of
    another. What one process measured twice in one run are more rounds of it, and stay. Raises
    UsageFailure when two runs hold different values of one process.
    """
    found: dict[tuple[str, str, str], tuple[Path, list[Measurement]]] = {}
    for file, run in loaded:
        here: dict[tuple[str, str, str], list[Measurement]] = {}
        for measurement in run.measurements:
            key = (measurement.test, measurement.name, measurement.process)
            here.setdefault(key, []).append(measurement)
        for key, measured in here.items():
            first, before = found.setdefault(key, (file, measured))
            if [m.samples for m in before] != [m.samples for m in measured]:
                test, name, process = key
                raise UsageFailure(
                    f'process {process} has other values of the measurement "{name}" of {test} in '
                    f"{file} than in {first}, so one of the two was changed: name only the one to "
                    "be trusted, or record anew"
                )
    return [measurement for _, measured in found.values() for measurement in measured]


def matching(measurements: Sequence[Measurement], patterns: Sequence[str]) -> list[Measurement]:
    """The measurements whose test matches any of `patterns`; all of them without a pattern.

    Raises NoMatch for a pattern that no test matches, whatever the others match.
    """
    tests = list(dict.fromkeys(measurement.test for measurement in measurements))
    for pattern in patterns:
        if not any(matches(test, pattern) for test in tests):
            listed = [f"\n  {test}" for test in tests[:_LISTED]]
            more = len(tests) - len(listed)
            end = f"\n  and {more} more" if more else ""
            raise NoMatch(
                f'no test of the run matches "{pattern}"; it has measurements of'
                + "".join(listed)
                + end
            )
    return [
        measurement
        for measurement in measurements
        if not patterns or any(matches(measurement.test, pattern) for pattern in patterns)
    ]


def matches(test: str, pattern: str) -> bool:
    """Whether a node id matches a pattern as the shell's, over the whole of it.

    Without `*` and `?`, a pattern that occurs in the node id matches too. Brackets mean what they
    mean in the shell, or themselves: node ids have them, and are pasted.
    """
    literal_brackets = pattern.replace("[", "[[]")
    if fnmatchcase(test, pattern) or fnmatchcase(test, literal_brackets):
        return True
    return pattern == test or not ({"*", "?"} & set(pattern) or pattern not in test)
