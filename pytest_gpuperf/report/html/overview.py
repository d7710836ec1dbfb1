"""The first screen as data: the verdicts, worst first, what changed, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue, timeline_metrics
from pytest_gpuperf.measure.device import guard
from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.model.result import Attribution, Expectation, Outcome, Run, Verdict
from pytest_gpuperf.report import order
from pytest_gpuperf.report.html.figure import of_each
from pytest_gpuperf.report.html.subject import FigureSubject
from pytest_gpuperf.report.text import expectation_lines, kernel_lines, table
from pytest_gpuperf.report.text.next_command import CommandContext

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
    blame: tuple[tuple[str, str, str, str], ...]
    """Change, share, kernel, and what happened to it: the worst first."""
    blame_heading: str
    blame_notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to do next, and the command that does it."""

    why: str
    command: str


@dataclass(frozen=True, slots=True)
class Overview:
    """The first screen."""

    headline: str
    tone: str
    judged: tuple[MeasuredSection, ...]
    expected: tuple[VerdictRow, ...]
    """Cells: metric, subject, bounds, measured, outcome."""
    notes: tuple[str, ...]
    steps: tuple[NextStep, ...]


def overview(
    run: Run, subjects: Sequence[FigureSubject], file: str, *, incomplete: bool
) -> Overview:
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
            VerdictRow(expectation_lines.row(entry), _TONES.get(entry.outcome, ""))
            for entry in expected
        ),
        notes=tuple(dict.fromkeys(_notes(run, subjects))),
        steps=tuple(_steps(run, subjects, file, incomplete)),
    )


def _judged(run: Run, subject: FigureSubject) -> MeasuredSection:
    first = subject.first
    verdicts = [v for v in run.verdicts if (v.test, v.name) == (first.test, first.name)]
    told = [v for v in verdicts if v.outcome not in _UNTOLD and v.phase == STEP]
    told.sort(key=lambda v: order.rank(v.outcome))
    blames = [b.blame for b in run.blames if (b.test, b.name) == (first.test, first.name)]
    worst = told[0] if told else None
    found = blames[0] if blames else None
    processes = len(subject.measurements)
    counted = f", {processes} processes" if processes > 1 else ""
    return MeasuredSection(
        label=subject.label,
        test=first.test if first.name == STEP else f"{first.test}, {first.name}",
        outcome=worst.outcome.value if worst else NOT_JUDGED,
        tone=_TONES[worst.outcome] if worst else "",
        device=f"{subject.device.name} ({subject.device.arch}{counted})",
        headline=_says(told) if worst else "This run was compared with no baseline.",
        rows=tuple(VerdictRow(table.cells(v), _TONES.get(v.outcome, "")) for v in told),
        details=tuple(dict.fromkeys(v.detail for v in told if v.detail)),
        blame=_blamed(found),
        blame_heading=_heading(found),
        blame_notes=tuple(kernel_lines.notes(found)) if found else (),
    )


def _says(told: Sequence[Verdict]) -> str:
    """The verdicts of the worst kind, in a few words: "cycles x4.81, instructions x5.31"."""
    worst = [v for v in told if v.outcome is told[0].outcome]
    parts = [
        f"{v.metric} {units.change(v)}" if v.change is not None else v.metric for v in worst[:4]
    ]
    return ", ".join(parts)


def _blamed(found: Attribution | None) -> tuple[tuple[str, str, str, str], ...]:
    if found is None:
        return ()
    rows = kernel_lines.rows([entry for entry in found.entries if entry.significant])
    return tuple(
        (kernel_lines.duration(row.change), kernel_lines.share(row.share), row.what, row.how)
        for row in rows[: kernel_lines.MOST]
    )


def _heading(found: Attribution | None) -> str:
    if found is None:
        return ""
    relative = "" if found.relative is None else f" ({units.moved(found.relative)})"
    return f"{kernel_lines.duration(found.change)}{relative} in a step"


def _headline(
    judged: Sequence[MeasuredSection], expected: Sequence[Expectation]
) -> tuple[str, str]:
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


def _notes(run: Run, subjects: Sequence[FigureSubject]) -> list[str]:
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


def _steps(
    run: Run, subjects: Sequence[FigureSubject], file: str, incomplete: bool
) -> list[NextStep]:
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
            steps.append(
                NextStep("To find the kernels:", f"pytest {shlex.join(regressed)} {KERNELS}")
            )
        steps.append(NextStep("If the change is intended:", f'{accept} --reason "..."'))
    if Outcome.INCONCLUSIVE in outcomes:
        tests = dict.fromkeys(v.test for v in run.verdicts if v.outcome is Outcome.INCONCLUSIVE)
        steps.append(
            NextStep(
                "To settle what is inconclusive, measure more processes:",
                f"gpuperf record --processes 5 -- {shlex.join(tests)}",
            )
        )
    if Outcome.NO_BASELINE in outcomes:
        tests = dict.fromkeys(v.test for v in run.verdicts if v.outcome is Outcome.NO_BASELINE)
        record, update = CommandContext(command=shlex.join(tests)).record()
        steps += [NextStep("To make a baseline on this device:", record), NextStep("Then:", update)]
    if Outcome.IMPROVED in outcomes and Outcome.REGRESSED not in outcomes:
        steps.append(
            NextStep(
                "To accept what improved, so that a later loss shows:", f'{accept} --reason "..."'
            )
        )
    if not run.verdicts and file:
        steps.append(
            NextStep(
                "To judge this run against a folder of baselines:",
                f"gpuperf report {shlex.quote(file)} --baseline baselines",
            )
        )
    if incomplete:
        tests = dict.fromkeys(subject.first.test for subject in subjects)
        shown = shlex.join(tests) if len(tests) == 1 else shlex.join(_files(tests))
        steps.append(
            NextStep(
                "To fill the figures that lack metrics:",
                f"pytest {shown} --gpuperf-metrics paper {KERNELS} {TIMELINE} "
                "--gpuperf-report report.html",
            )
        )
    return steps


def _files(tests: Sequence[str] | dict[str, None]) -> list[str]:
    """The files of node ids, each once."""
    return list(dict.fromkeys(test.partition("::")[0] for test in tests))


# What a run lacks for a figure, and the flag that collects it.

KERNELS = "--gpuperf-kernels always"
WINDOW = "--gpuperf-protocol paper-window"
TIMELINE = "--gpuperf-timeline always"


def missing_metrics(
    subjects: Sequence[FigureSubject], names: Sequence[str], *, per_kernel: bool = False
) -> str:
    """Which of these metrics no subject has, with the reason or the flag; "" when all are there.

    `per_kernel` asks for values of each kernel, not of the whole step. What these architectures do
    not have is missed only where they have none of the metrics; the first screen names it.
    """
    absent = [n for n in names if not any(_has(subject, n, per_kernel) for subject in subjects)]
    reasons = {
        unsupported.metric: unsupported.reason
        for subject in subjects
        for measurement in subject.measurements
        for unsupported in measurement.unsupported
    }
    possible = [name for name in absent if _exists(subjects, name)]
    if absent and not possible and len(absent) == len(names) and subjects:
        archs = " and ".join(dict.fromkeys(subject.device.arch for subject in subjects))
        return f"Not available here: {archs} does not have {', '.join(absent)}"
    absent = possible if subjects else absent
    if not absent:
        return ""
    told = [f"{name} ({reasons[name]})" for name in absent if name in reasons]
    wanted = [name for name in absent if name not in reasons]
    parts = [f"not available here: {'; '.join(told)}"] if told else []
    if wanted:
        flags = [flag for flag in (_set_flag(wanted), KERNELS if per_kernel else "") if flag]
        by = f": measure with {' '.join(flags)}" if flags else ""
        of = " of each kernel" if per_kernel else ""
        parts.append(f"this run has no {', '.join(wanted)}{of}{by}")
    return _sentence("; ".join(parts))


def collectable(text: str) -> bool:
    """Whether what is missing, as the functions here say it, is collected by a flag.

    The paper's window is not: it is another protocol, to be asked for by name.
    """
    return "measure with" in text and WINDOW not in text


def missing_kernels(subjects: Sequence[FigureSubject]) -> str:
    """That no subject has a kernel table, and the flag that collects one; "" when one has."""
    if any(subject.kernels for subject in subjects):
        return ""
    return f"This run has no kernels: measure with {KERNELS}"


def missing_timelines(subjects: Sequence[FigureSubject]) -> str:
    """Which subjects have no timeline, or not all of it: with the reason, or with the flag that
    collects it; "" when nothing is missing.
    """
    archs = dict.fromkeys(subject.device.arch for subject in subjects)
    if subjects and not any(m.exists_on(arch) for m in timeline_metrics() for arch in archs):
        return f"Not available here: {' and '.join(archs)} cannot be sampled"
    absent: dict[str, list[str]] = {}
    for subject in subjects:
        for reason in _not_sampled(subject):
            absent.setdefault(reason, []).append(subject.label)
    parts = [
        reason if len(labels) == len(subjects) else of_each([(reason, one) for one in labels])
        for reason, labels in absent.items()
    ]
    asked = [subject for subject in subjects if subject.sampled]
    if not asked:
        parts.append(f"this run has no timeline: measure with {TIMELINE}")
    elif len(asked) < len(subjects):
        labels = ", ".join(subject.label for subject in subjects if not subject.sampled)
        parts.append(f"this run has no timeline of {labels}: measure with {TIMELINE}")
    return _sentence("; ".join(parts))


def _not_sampled(subject: FigureSubject) -> Iterator[str]:
    """Why a subject has no timeline, or which of its metrics are not in it."""
    found = subject.sampled.timeline if subject.sampled else None
    if found is None:
        return
    if found.obstacle:
        yield f"not sampled ({found.obstacle})"
    for entry in found.unsupported:
        yield f"no {entry.metric} ({entry.reason})"


def _set_flag(names: Sequence[str]) -> str:
    """The flag for the first set of the catalogue that has all of these; "" where none has."""
    for name, members in catalogue().sets.items():
        if set(names) <= set(members):
            return f"--gpuperf-metrics {name}"
    return ""


def _exists(subjects: Sequence[FigureSubject], name: str) -> bool:
    """Whether one of the architectures that were measured has it, as far as the catalogue knows."""
    metric = catalogue().metrics.get(name)
    return metric is None or any(metric.exists_on(subject.device.arch) for subject in subjects)


def _has(subject: FigureSubject, metric: str, per_kernel: bool) -> bool:
    if not per_kernel:
        return subject.value(metric) is not None
    table = subject.kernels
    return table is not None and not table.mismatch and metric in table.metrics


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
