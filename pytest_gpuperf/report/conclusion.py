"""What a night concludes: its findings, one per cause, for issues, messages and summaries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_gpuperf.baselines.judgement import lacking
from pytest_gpuperf.catalogue.units import counted
from pytest_gpuperf.errors import printable
from pytest_gpuperf.model.result import FAULTS, TEST_FAILED, Outcome, Result, Run, Verdict
from pytest_gpuperf.report import view
from pytest_gpuperf.report.text import failure, kernel_lines

FINE = (Outcome.UNCHANGED, Outcome.IMPROVED, Outcome.OUTWEIGHED, Outcome.HOLDS)
"""Outcomes by which what was found of a test is gone."""

Subject = tuple[str, str, str]
"""A test, the name of its measurement, and the device: "sm90/nvidia-h200"."""


@dataclass(frozen=True, slots=True)
class NightFinding:
    """One thing that went wrong in a night, with all tests that it concerns."""

    key: tuple[str, ...]
    """The cause and the device: the same on every night that finds it."""
    title: str
    """Plain text of one line, with the worst number."""
    size: float
    """The worst change as a logarithm; 0 if it has none."""
    results: tuple[Result, ...] = ()
    """The tests of this cause, the worst first; none if it is the whole night's."""
    said: tuple[str, ...] = ()
    """Details as plain text, a line each."""

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """The measurements that it concerns."""
        return tuple(map(subject, self.results))

    @property
    def revisions(self) -> tuple[str, str] | None:
        """The git revisions of the baseline and of the night; None if one is unknown."""
        for result in self.results:
            if result.measurements and result.judged_by:
                pair = result.judged_by.revision, result.first.fingerprint.revision
                return pair if all(pair) else None
        return None


def subject(result: Result) -> Subject:
    """The measurement of a result, and the kind of device; a ratio has no device."""
    if not result.measurements:
        return result.test, result.name, ""
    device = result.first.fingerprint.device
    return result.test, result.name, f"{device.arch}/{device.slug}"


def findings(run: Run) -> tuple[NightFinding, ...]:
    """Everything that a reader of this night has to act on, the worst first.

    An incomplete night comes first, then regressions and broken limits by cause, then tests that
    failed by themselves, then a night in which nothing was compared.
    """
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in view.worst_first(run.results()):
        if result.outcome in FAULTS:
            groups.setdefault(_key(result), []).append(result)
    return (
        *_incomplete(run),
        *(_of_cause(key, results) for key, results in groups.items()),
        *_failed(run),
        *_uncompared(run),
    )


def gone(subjects: Sequence[Subject], run: Run) -> bool:
    """Whether this night shows that all these measurements are fine again.

    A finding of the whole night, without `subjects`, is gone after any night that has ended.
    """
    fine = {subject(result) for result in run.results() if result.outcome in FINE}
    return run.unfinished is None and fine.issuperset(subjects)


def _key(result: Result) -> tuple[str, ...]:
    """The library and its versions, else the function, else the test itself; and the device."""
    device = subject(result)[2]
    found = result.attribution
    if result.outcome is Outcome.REGRESSED and found:
        if versions := kernel_lines.versions(found):
            return "versions", versions, device
        if found.cause and found.cause.line:
            file = found.cause.line.rpartition(":")[0]
            return "function", f"{file} {found.cause.function}", device
    return "test", result.test, result.name, device


def _of_cause(key: tuple[str, ...], results: Sequence[Result]) -> NightFinding:
    """The finding of the tests that share a cause."""
    first = results[0]
    told = f"{first.title}: {_sentence(first)}"
    if len(results) > 1:
        told = f"{counted(len(results), 'test')}, the worst {told}"
    if key[0] == "versions":
        told = f"{key[1]}: {told}"
    said = [f"{one.test}: {_sentence(one)}" for one in results]
    return NightFinding(key, printable(told), max(map(_size, results)), tuple(results), tuple(said))


def _sentence(result: Result) -> str:
    failing = [entry for entry in result.said if entry.outcome in FAULTS]
    if not result.measurements:
        return "; ".join(view.reasons(result))
    return failure.sentence(result, failing)


def _size(result: Result) -> float:
    """The largest change for the worse of a result, as a logarithm."""
    changes = [
        abs(entry.change) / (100 if entry.points else 1)
        for entry in result.said
        if isinstance(entry, Verdict) and entry.outcome in FAULTS and entry.change is not None
    ]
    return math.log1p(max(changes, default=0.0))


def _incomplete(run: Run) -> Iterator[NightFinding]:
    if run.unfinished:
        yield NightFinding(
            ("night", "unfinished"), f"The night is incomplete: {run.unfinished}", 0.0
        )
    if other := view.other_code(run.results()):
        yield NightFinding(("night", "other-code"), f"Not the checkout's code: {other}", 0.0)


def _failed(run: Run) -> Iterator[NightFinding]:
    """The tests that failed, but not by a verdict."""
    tests = [test for test, why in run.skipped.items() if why == TEST_FAILED]
    if tests:
        title = f"{counted(len(tests), 'test')} failed before a comparison: {', '.join(tests)}"
        yield NightFinding(
            ("night", "failed"), printable(title), math.log(len(tests)), (), (*tests,)
        )


def _uncompared(run: Run) -> Iterator[NightFinding]:
    """A night that has no verdict at all says nothing of the code."""
    results = run.results()
    every = lacking(results)
    if all(lack is not None for _, lack in every) and not run.unfinished:
        said = [f"{one.test}: {view.WORDS[lack]}" for one, lack in every if lack]
        said += [f"{test}: {why}" for test, why in run.skipped.items() if why != TEST_FAILED]
        yield NightFinding(("night", "uncompared"), "The night compared no test", 0.0, (), (*said,))
