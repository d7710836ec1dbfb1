"""The first screen as data: the verdicts, worst first, what changed, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuperf import guard
from pytest_gpuperf.judge.blamed import Blame
from pytest_gpuperf.model import STEP, Expectation, Outcome, Run, Verdict
from pytest_gpuperf.report import blame, expectations, numbers, order, table
from pytest_gpuperf.report.advice import Session
from pytest_gpuperf.report.html.missing import KERNELS, TIMELINE
from pytest_gpuperf.report.html.subject import Subject

_UNTOLD = (Outcome.UNSUPPORTED, Outcome.REPORTED)
"""What the first screen has no rows of."""
_TONES = {
    Outcome.REGRESSED: "bad",
    Outcome.BROKEN: "bad",
    Outcome.UNFIT: "doubtful",
    Outcome.INCONCLUSIVE: "doubtful",
    Outcome.NO_BASELINE: "doubtful",
    Outcome.KERNELS_CHANGED: "doubtful",
    Outcome.UNSUPPORTED: "doubtful",
    Outcome.IMPROVED: "good",
    Outcome.HOLDS: "good",
    Outcome.UNCHANGED: "good",
}
NOT_JUDGED = "not judged"


@dataclass(frozen=True, slots=True)
class Row:
    """One verdict as cells of a table, in the order of `table.HEADINGS`."""

    cells: tuple[str, ...]
    tone: str
    """bad, doubtful, good or ""."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What is said of one measurement."""

    label: str
    test: str
    outcome: str
    tone: str
    device: str
    headline: str
    """The verdict that decides, in a few words."""
    rows: tuple[Row, ...]
    """Verdicts that could fail the test, worst first."""
    details: tuple[str, ...]
    blame: tuple[tuple[str, str, str, str], ...]
    """Change, share, kernel, and what happened to it: the worst first."""
    blame_heading: str
    blame_notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """What to do next, and the command that does it."""

    why: str
    command: str


@dataclass(frozen=True, slots=True)
class Overview:
    """The first screen."""

    headline: str
    tone: str
    judged: tuple[Judged, ...]
    expected: tuple[Row, ...]
    """Cells: metric, subject, bounds, measured, outcome."""
    notes: tuple[str, ...]
    steps: tuple[Step, ...]


def overview(run: Run, subjects: Sequence[Subject], file: str, *, incomplete: bool) -> Overview:
    """The first screen of a run. `file` is where it is saved, or "".

    `incomplete` says that the run lacks metrics that a figure needs.
    """
    positions = {outcome.value: order.rank(outcome) for outcome in order.WORST_FIRST}
    judged = [_judged(run, subject) for subject in subjects]
    judged.sort(key=lambda entry: positions.get(entry.outcome, len(positions)))
    expected = sorted(run.expectations, key=lambda entry: order.rank(entry.outcome))
    headline, tone = _headline(judged, run.expectations)
    return Overview(
        headline=headline,
        tone=tone,
        judged=tuple(judged),
        expected=tuple(
            Row(expectations.row(entry), _TONES.get(entry.outcome, "")) for entry in expected
        ),
        notes=tuple(dict.fromkeys(_notes(run, subjects))),
        steps=tuple(_steps(run, subjects, file, incomplete)),
    )


def _judged(run: Run, subject: Subject) -> Judged:
    first = subject.first
    verdicts = [v for v in run.verdicts if (v.test, v.name) == (first.test, first.name)]
    told = [v for v in verdicts if v.outcome not in _UNTOLD and v.phase == STEP]
    told.sort(key=lambda v: order.rank(v.outcome))
    blames = [b.blame for b in run.blames if (b.test, b.name) == (first.test, first.name)]
    worst = told[0] if told else None
    found = blames[0] if blames else None
    processes = len(subject.measurements)
    counted = f", {processes} processes" if processes > 1 else ""
    return Judged(
        label=subject.label,
        test=first.test if first.name == STEP else f"{first.test}, {first.name}",
        outcome=worst.outcome.value if worst else NOT_JUDGED,
        tone=_TONES[worst.outcome] if worst else "",
        device=f"{subject.device.name} ({subject.device.arch}{counted})",
        headline=_says(told) if worst else "This run was compared with no baseline.",
        rows=tuple(Row(table.cells(v), _TONES.get(v.outcome, "")) for v in told),
        details=tuple(dict.fromkeys(v.detail for v in told if v.detail)),
        blame=_blamed(found),
        blame_heading=_heading(found),
        blame_notes=tuple(blame.notes(found)) if found else (),
    )


def _says(told: Sequence[Verdict]) -> str:
    """The verdicts of the worst kind, in a few words: "cycles x4.81, instructions x5.31"."""
    worst = [v for v in told if v.outcome is told[0].outcome]
    parts = [
        f"{v.metric} {numbers.change(v)}" if v.change is not None else v.metric for v in worst[:4]
    ]
    return ", ".join(parts)


def _blamed(found: Blame | None) -> tuple[tuple[str, str, str, str], ...]:
    if found is None:
        return ()
    rows = blame.rows([entry for entry in found.entries if entry.significant])
    return tuple(
        (blame.duration(row.change), blame.share(row.share), row.what, row.how)
        for row in rows[: blame.MOST]
    )


def _heading(found: Blame | None) -> str:
    if found is None:
        return ""
    relative = "" if found.relative is None else f" ({numbers.moved(found.relative)})"
    return f"{blame.duration(found.change)}{relative} in a step"


def _headline(judged: Sequence[Judged], expected: Sequence[Expectation]) -> tuple[str, str]:
    """One sentence on the whole run, and its tone."""
    total = len(judged)
    by_outcome: dict[str, int] = {}
    for entry in judged:
        by_outcome[entry.outcome] = by_outcome.get(entry.outcome, 0) + 1
    broken = sum(entry.outcome is Outcome.BROKEN for entry in expected)
    if not total:
        return "The run has no measurements", "doubtful"
    parts = []
    for outcome in order.WORST_FIRST:
        count = by_outcome.get(outcome.value, 0)
        parts += [f"{count} {outcome.value}"] if count else []
    count = by_outcome.get(NOT_JUDGED, 0)
    parts += [f"{count} {NOT_JUDGED}"] if count else []
    parts += [f"{broken} expectation{'s' if broken > 1 else ''} broken"] if broken else []
    tests = f"{total} measurement{'s' if total > 1 else ''}"
    tones = {entry.tone for entry in judged} | ({"bad"} if broken else set())
    tone = next((t for t in ("bad", "doubtful", "good") if t in tones), "")
    if total == 1 and not broken:
        return f"{judged[0].label}: {judged[0].outcome}", tone
    if len(parts) == 1 and not broken:
        return f"All {parts[0]}", tone
    return f"{', '.join(parts)}, of {tests}", tone


def _notes(run: Run, subjects: Sequence[Subject]) -> list[str]:
    """What was odd, as sentences."""
    found: list[str] = []
    for subject in subjects:
        for measurement in subject.measurements:
            conditions = measurement.fingerprint.conditions
            found += [
                f"{subject.label} was measured {complaint}"
                for complaint in (guard.complaints(conditions) if conditions else ())
            ]
        if subject.left_out:
            kept = len(subject.kernels.launches) if subject.kernels else 0
            found.append(
                f"Figures of the kernels of {subject.label} are of its {kept:,} longest launches: "
                f"{subject.left_out:,} shorter ones are left out"
            )
    unsupported: dict[str, list[str]] = {}
    for verdict in run.verdicts:
        if verdict.outcome is Outcome.UNSUPPORTED:
            metrics = unsupported.setdefault(verdict.detail, [])
            metrics += [] if verdict.metric in metrics else [verdict.metric]
    return found + [f"Unsupported: {', '.join(m)}: {why}" for why, m in unsupported.items()]


def _steps(run: Run, subjects: Sequence[Subject], file: str, incomplete: bool) -> list[Step]:
    """The commands to type next, the most urgent first."""
    outcomes = {verdict.outcome for verdict in run.verdicts}
    accept = shlex.join(["gpuperf", "update-baseline", *([file] if file else [])])
    steps = []
    if Outcome.REGRESSED in outcomes:
        blamed = {(entry.test, entry.name) for entry in run.blames}
        regressed = dict.fromkeys(
            v.test
            for v in run.verdicts
            if v.outcome is Outcome.REGRESSED and (v.test, v.name) not in blamed
        )
        if regressed:
            steps.append(Step("To find the kernels:", f"pytest {shlex.join(regressed)} {KERNELS}"))
        steps.append(Step("If the change is intended:", f'{accept} --reason "..."'))
    if Outcome.INCONCLUSIVE in outcomes:
        tests = dict.fromkeys(v.test for v in run.verdicts if v.outcome is Outcome.INCONCLUSIVE)
        steps.append(
            Step(
                "To settle what is inconclusive, measure more processes:",
                f"gpuperf record --processes 5 -- {shlex.join(tests)}",
            )
        )
    if Outcome.NO_BASELINE in outcomes:
        tests = dict.fromkeys(v.test for v in run.verdicts if v.outcome is Outcome.NO_BASELINE)
        record, update = Session(command=shlex.join(tests)).record()
        steps += [Step("To make a baseline on this device:", record), Step("Then:", update)]
    if Outcome.IMPROVED in outcomes and Outcome.REGRESSED not in outcomes:
        steps.append(
            Step("To accept what improved, so that a later loss shows:", f'{accept} --reason "..."')
        )
    if not run.verdicts and file:
        steps.append(
            Step(
                "To judge this run against a folder of baselines:",
                f"gpuperf report {shlex.quote(file)} --baseline baselines",
            )
        )
    if incomplete:
        tests = dict.fromkeys(subject.first.test for subject in subjects)
        shown = shlex.join(tests) if len(tests) == 1 else shlex.join(_files(tests))
        steps.append(
            Step(
                "To fill the figures that lack metrics:",
                f"pytest {shown} --gpuperf-metrics paper {KERNELS} {TIMELINE} "
                "--gpuperf-report report.html",
            )
        )
    return steps


def _files(tests: Sequence[str] | dict[str, None]) -> list[str]:
    """The files of node ids, each once."""
    return list(dict.fromkeys(test.partition("::")[0] for test in tests))
