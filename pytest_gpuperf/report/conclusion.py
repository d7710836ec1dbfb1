"""What a night concludes: its findings, one per cause, for issues, messages and summaries."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf.baselines.judgement import lacking
from pytest_gpuperf.catalogue.units import counted, few
from pytest_gpuperf.errors import UsageFailure, printable
from pytest_gpuperf.history.nights import History, date
from pytest_gpuperf.model.result import FAULTS, TEST_FAILED, Outcome, Result, Run, Verdict
from pytest_gpuperf.report import view
from pytest_gpuperf.report.text import failure, kernel_lines
from pytest_gpuperf.report.text.next_command import alone
from pytest_gpuperf.report.text.night_lines import series_key
from pytest_gpuperf.storage import files

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
    since: str = ""
    """Since when it is worse: since a night, or since the baseline."""
    revisions: tuple[str, str] | None = None
    """The git commits that the change lies between; None if one is unknown."""

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """The measurements that it concerns."""
        return tuple(map(subject, self.results))

    @property
    def origin(self) -> str:
        """Since when, and whose commits: "since 2026-11-28, 1 commit by bo in 54401..b7a2f"."""
        if self.revisions is None:
            return self.since
        return f"{self.since}, {_commits(*self.revisions)}"

    def commands(self, run: Run) -> Iterator[str]:
        """What to type: the worst test again, and the search for the commit."""
        if not self.results:
            return
        test = self.results[0].test
        if again := alone(run.command, test):
            yield again
        if self.revisions:
            yield shlex.join(("gpuperf", "bisect", *self.revisions, "--", test))


def _commits(old: str, new: str) -> str:
    """The commits between two revisions, with their authors in the repository of this folder."""
    between = f"{old}..{new}"
    options = ("--format=%an", "--end-of-options", between, "--")  # a run may come from anywhere
    try:
        said = files.git(Path.cwd(), "log", *options, patience=10)
    except UsageFailure:
        return between
    authors = said.decode(errors="replace").splitlines()
    people = few([*dict.fromkeys(authors)], _TOLD)
    return f"{counted(len(authors), 'commit')} by {people} in {between}" if authors else between


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What a night came to: its exit code, summary, issues and messages say this."""

    code: int
    """The exit code of the night."""
    headline: str
    """The first line of all that is said of it."""
    findings: tuple[NightFinding, ...]
    run: Run
    """Without measurements if nothing was measured."""

    def lines(self) -> Iterator[str]:
        """The message as plain text: the headline, the worst findings, and what to type."""
        yield f"gpuperf: {self.headline}"
        for finding in self.findings[:_TOLD]:
            yield f"- {finding.title}"
            yield from (
                f"  {said}" for said in (finding.origin, *finding.commands(self.run)) if said
            )
        if len(self.findings) > _TOLD:
            yield f"- and {len(self.findings) - _TOLD} more"

    def data(self, link: str) -> dict[str, object]:
        """The same as JSON."""
        found = [
            {
                "title": finding.title,
                "origin": finding.origin,
                "tests": [test for test, _, _ in finding.subjects],
                "commands": [*finding.commands(self.run)],
            }
            for finding in self.findings
        ]
        said = {"headline": self.headline, "exit_code": self.code}
        return {**said, "findings": found, "night": link}


_TOLD = 10


def concluded(run: Run, code: int, more: str = "", past: History | None = None) -> Conclusion:
    """The conclusion of a night with this run and exit code; `more` went wrong after the tests."""
    headline = "; ".join(filter(None, (view.headline(run), more)))
    return Conclusion(code, printable(headline), findings(run, past), run)


def subject(result: Result) -> Subject:
    """The measurement of a result, and the kind of device; a ratio has no device."""
    if not result.measurements:
        return result.test, result.name, ""
    device = result.first.fingerprint.device
    return result.test, result.name, f"{device.arch}/{device.slug}"


def findings(run: Run, past: History | None = None) -> tuple[NightFinding, ...]:
    """Everything that a reader of this night has to act on, the worst first.

    `past` knows since which night a test is worse; the baseline's date counts without it.

    An incomplete night comes first, then regressions and broken limits by cause, then tests that
    failed by themselves, then a night in which nothing was compared.
    """
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in view.worst_first(run.results()):
        if result.outcome in FAULTS:
            groups.setdefault(_key(result), []).append(result)
    return (
        *_incomplete(run),
        *(_of_cause(key, results, past) for key, results in groups.items()),
        *_uncompared(run),
    )


def gone(subjects: Sequence[Subject], run: Run) -> bool:
    """Whether this night shows that all these measurements are fine again.

    A finding of the whole night, without `subjects`, is gone after one that measured and ended.
    """
    fine = {subject(result) for result in run.results() if result.outcome in FINE}
    return bool(run.measurements) and run.unfinished is None and fine.issuperset(subjects)


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


def _of_cause(
    key: tuple[str, ...], results: Sequence[Result], past: History | None
) -> NightFinding:
    """The finding of the tests that share a cause."""
    first = results[0]
    told = f"{first.title}: {_sentence(first)}"
    if len(results) > 1:
        told = f"{counted(len(results), 'test')}, the worst {told}"
    if key[0] == "versions":
        told = f"{key[1]}: {told}"
    said = [f"{one.test}: {_sentence(one)}" for one in results]
    return NightFinding(
        key,
        printable(told),
        max(map(_size, results)),
        tuple(results),
        tuple(said),
        *_began(results, past),
    )


def _began(results: Sequence[Result], past: History | None) -> tuple[str, tuple[str, str] | None]:
    """Since when these tests are worse, and the revisions that the change lies between."""
    measured = [one for one in results if one.measurements]
    keys, since, between = {series_key(one.first) for one in measured}, "", ("", "")
    for result in reversed(measured):
        if entry := result.judged_by:
            since = f"since the baseline of {entry.recorded}"
            between = entry.revision, result.first.fingerprint.revision
    for event in reversed(past.events if past else ()):  # the latest is the last one
        if any(move.change.worse and move.series.key in keys for move in event.moves):
            since = f"since {date(event.day)}"
            between = event.nights[0].surroundings.revision, event.nights[1].surroundings.revision
    old, new = (revision.removesuffix("+dirty") for revision in between)
    return since, (old, new) if old and new else None


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
        yield _of_night("unfinished", f"The night is incomplete: {run.unfinished}")
    if other := view.other_code(run.results()):
        yield _of_night("other-code", f"Not the checkout's code: {other}")


def _of_night(key: str, title: str, said: Sequence[str] = (), size: float = 0.0) -> NightFinding:
    """A finding of the whole night."""
    return NightFinding(("night", key), title, size, (), tuple(said))


def _uncompared(run: Run) -> Iterator[NightFinding]:
    """The tests that failed, but not by a verdict; and a night that has no verdict at all."""
    if tests := [test for test, why in run.skipped.items() if why == TEST_FAILED]:
        title = f"{counted(len(tests), 'test')} failed before a comparison: {', '.join(tests)}"
        yield _of_night("failed", printable(title), tests, math.log(len(tests)))
    results = run.results()
    every = lacking(results)
    if all(lack is not None for _, lack in every) and not run.unfinished:
        said = [f"{one.test}: {view.WORDS[lack]}" for one, lack in every if lack]
        said += [f"{test}: {why}" for test, why in run.skipped.items() if why != TEST_FAILED]
        yield _of_night("uncompared", "The night compared no test", said)
