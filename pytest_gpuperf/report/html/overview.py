"""The first screen of the page as data: verdicts, worst first, what changed, what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.measure.device import guard
from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.model.result import WORST_FIRST, Attribution, Expectation, Outcome, Run, Verdict
from pytest_gpuperf.report.html.subject import KERNELS, TIMELINE, FigureSubject
from pytest_gpuperf.report.text import expectation_lines, kernel_lines, table
from pytest_gpuperf.report.text.next_command import CommandContext

_UNTOLD = (Outcome.UNSUPPORTED, Outcome.REPORTED)
"""What the first screen has no rows of."""
_TONES = table.TONES | {
    Outcome.UNFIT: "doubtful",
    Outcome.MACHINE: "doubtful",
    Outcome.HOLDS: "good",
    Outcome.UNCHANGED: "good",
}
NOT_JUDGED = "not judged"


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """One verdict as cells of a table, in the order of `table.HEADINGS`."""

    cells: tuple[str, ...]
    tone: str
    """bad, doubtful, good or ""."""


@dataclass(frozen=True, slots=True)
class MeasuredSection:
    """What is said of one measurement."""

    label: str
    test: str
    outcome: str
    tone: str
    device: str
    headline: str
    """The verdict that decides, in a few words."""
    rows: tuple[VerdictRow, ...]
    """Verdicts that could fail the test, worst first."""
    details: tuple[str, ...]
    kernels: tuple[tuple[str, str, str, str], ...]
    """Change, share, kernel, and what happened to it: the worst first."""
    moved: str
    kernel_notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Overview:
    """The first screen."""

    headline: str
    tone: str
    judged: tuple[MeasuredSection, ...]
    expected: tuple[VerdictRow, ...]
    """Cells: metric, subject, bounds, measured, outcome."""
    notes: tuple[str, ...]
    steps: tuple[tuple[str, str], ...]
    """What to do next, and the command that does it."""


def overview(
    run: Run, subjects: Sequence[FigureSubject], file: str, *, incomplete: bool
) -> Overview:
    """The first screen of a run. `file` is where it is saved, or "".

    `incomplete` says that the run lacks metrics that a figure needs.
    """
    positions = {outcome.value: rank for rank, outcome in enumerate(WORST_FIRST)}
    judged = [_section(subject) for subject in subjects]
    judged.sort(key=lambda entry: positions.get(entry.outcome, len(positions)))
    expected = sorted(run.expectations, key=lambda entry: WORST_FIRST.index(entry.outcome))
    headline, tone = _headline(judged, run.expectations)
    return Overview(
        headline=headline,
        tone=tone,
        judged=tuple(judged),
        expected=tuple(
            VerdictRow(expectation_lines.row(entry), _TONES.get(entry.outcome, ""))
            for entry in expected
        ),
        notes=tuple(dict.fromkeys(_notes(run, subjects))),
        steps=tuple(_steps(run, subjects, file, incomplete)),
    )


def _section(subject: FigureSubject) -> MeasuredSection:
    result = subject.result
    told = [v for v in result.verdicts if v.outcome not in _UNTOLD and v.phase == STEP]
    told.sort(key=lambda v: WORST_FIRST.index(v.outcome))
    worst = told[0].outcome if told else None
    attribution = result.attribution
    processes = len(result.measurements)
    counted = f", {processes} processes" if processes > 1 else ""
    return MeasuredSection(
        label=subject.label,
        test=result.test if result.name == STEP else f"{result.test}, {result.name}",
        outcome=worst.value if worst else NOT_JUDGED,
        tone=_TONES[worst] if worst else "",
        device=f"{subject.device.name} ({subject.device.arch}{counted})",
        headline=_says(told) if worst else "This run was compared with no baseline.",
        rows=tuple(VerdictRow(table.cells(v), _TONES.get(v.outcome, "")) for v in told),
        details=tuple(dict.fromkeys(v.detail for v in told if v.detail)),
        kernels=_kernels(attribution) if attribution else (),
        moved=_moved(attribution) if attribution else "",
        kernel_notes=tuple(kernel_lines.notes(attribution)) if attribution else (),
    )


def _says(told: Sequence[Verdict]) -> str:
    """The verdicts of the worst kind, in a few words: "cycles x4.81, instructions x5.31"."""
    worst = [v for v in told if v.outcome is told[0].outcome]
    parts = [
        f"{v.metric} {units.change(v)}" if v.change is not None else v.metric for v in worst[:4]
    ]
    return ", ".join(parts)


def _kernels(attribution: Attribution) -> tuple[tuple[str, str, str, str], ...]:
    rows = kernel_lines.rows([entry for entry in attribution.entries if entry.significant])
    return tuple(
        (kernel_lines.duration(row.change), kernel_lines.share(row.share), row.what, row.how)
        for row in rows[: kernel_lines.MOST]
    )


def _moved(attribution: Attribution) -> str:
    relative = "" if attribution.relative is None else f" ({units.moved(attribution.relative)})"
    return f"{kernel_lines.duration(attribution.change)}{relative} in a step"


def _headline(
    judged: Sequence[MeasuredSection], expected: Sequence[Expectation]
) -> tuple[str, str]:
    """One sentence on the whole run, and its tone."""
    total = len(judged)
    if not total:
        return "The run has no measurements", "doubtful"
    broken = sum(entry.outcome is Outcome.BROKEN for entry in expected)
    outcomes = [entry.outcome for entry in judged]
    names = (*(outcome.value for outcome in WORST_FIRST), NOT_JUDGED)
    parts = [f"{outcomes.count(name)} {name}" for name in names if name in outcomes]
    parts += [f"{broken} expectation{'s' if broken > 1 else ''} broken"] if broken else []
    tones = {entry.tone for entry in judged} | ({"bad"} if broken else set())
    tone = next((t for t in ("bad", "doubtful", "good") if t in tones), "")
    if total == 1 and not broken:
        return f"{judged[0].label}: {judged[0].outcome}", tone
    if len(parts) == 1:
        return f"All {parts[0]}", tone
    return f"{', '.join(parts)}, of {total} measurement{'s' if total > 1 else ''}", tone


def _notes(run: Run, subjects: Sequence[FigureSubject]) -> Iterator[str]:
    """What was odd, as sentences."""
    for subject in subjects:
        for measurement in subject.measurements:
            conditions = measurement.fingerprint.conditions
            for complaint in guard.complaints(conditions) if conditions else ():
                yield f"{subject.label} was measured {complaint}"
        if subject.left_out:
            kept = len(subject.kernels.launches) if subject.kernels else 0
            yield (
                f"Figures of the kernels of {subject.label} are of its {kept:,} longest launches: "
                f"{subject.left_out:,} shorter ones are left out"
            )
    unsupported: dict[str, dict[str, None]] = {}
    for verdict in run.verdicts:
        if verdict.outcome is Outcome.UNSUPPORTED:
            unsupported.setdefault(verdict.detail, {})[verdict.metric] = None
    for reason, metrics in unsupported.items():
        yield f"Unsupported: {', '.join(metrics)}: {reason}"


def _steps(
    run: Run, subjects: Sequence[FigureSubject], file: str, incomplete: bool
) -> Iterator[tuple[str, str]]:
    """What to do and the command for it, the most urgent first."""
    tests: dict[Outcome, dict[str, None]] = {}
    for verdict in run.verdicts:
        tests.setdefault(verdict.outcome, {})[verdict.test] = None
    accept = CommandContext(run=file).accept()
    if Outcome.REGRESSED in tests:
        known = {(entry.test, entry.name) for entry in run.attributions}
        unknown = dict.fromkeys(
            v.test
            for v in run.verdicts
            if v.outcome is Outcome.REGRESSED and (v.test, v.name) not in known
        )
        if unknown:
            yield "To find the kernels:", f"pytest {shlex.join(unknown)} {KERNELS}"
        yield "If the change is intended:", accept
    if Outcome.INCONCLUSIVE in tests:
        record, _ = CommandContext(shlex.join(tests[Outcome.INCONCLUSIVE])).record()
        yield "To settle what is inconclusive, measure more processes:", record
    if Outcome.NO_BASELINE in tests:
        record, update = CommandContext(shlex.join(tests[Outcome.NO_BASELINE])).record()
        yield "To make a baseline on this device:", record
        yield "Then:", update
    if Outcome.IMPROVED in tests and Outcome.REGRESSED not in tests:
        yield "To accept what improved, so that a later slowdown shows:", accept
    if not run.verdicts and file:
        command = f"gpuperf report {shlex.quote(file)} --baseline baselines"
        yield "To judge this run against a folder of baselines:", command
    if incomplete:
        measured = list(dict.fromkeys(subject.result.test for subject in subjects))
        if len(measured) > 1:
            measured = list(dict.fromkeys(test.partition("::")[0] for test in measured))
        flags = f"--gpuperf-metrics paper {KERNELS} {TIMELINE} --gpuperf-report report.html"
        yield "To fill the figures that lack metrics:", f"pytest {shlex.join(measured)} {flags}"
