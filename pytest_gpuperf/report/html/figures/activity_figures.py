"""The figures of what a step's time is spent on: its timeline, transfers, gaps and components."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.measure.trace import timelines
from pytest_gpuperf.model.measurement import STEP, Measurement, Timeline, TimelinePhase
from pytest_gpuperf.report.html import chart
from pytest_gpuperf.report.html.figure import (
    Band,
    Cell,
    Figure,
    FigureTable,
    described,
    percent,
    quantity,
    share,
)
from pytest_gpuperf.report.html.subject import (
    NO_GPU,
    FigureSubject,
    having,
    missing_timelines,
    portable,
)
from pytest_gpuperf.report.text import step_tables
from pytest_gpuperf.report.text.step_tables import (
    OUTSIDE,
    ComponentRow,
    ComponentTable,
    component_table,
)

ACTIVITY = "--gpuperf-metrics activity"
_TIMES = {
    "kernel_time": "kernels",
    "copy_time_h2d": "copies to the device",
    "copy_time_d2h": "copies to the host",
    "copy_time_d2d": "copies on the device",
}
_SHARES = {"gpu_idle": "idle", "copy_overlap": "copies under kernels"}
_BYTES = {
    "copy_time_h2d": ("copy_bytes_h2d_pinned", "copy_bytes_h2d_pageable"),
    "copy_time_d2h": ("copy_bytes_d2h_pinned", "copy_bytes_d2h_pageable"),
    "copy_time_d2d": ("copy_bytes_d2d",),
}
_SPAN = "gpu_span"
_TRACED = (
    "From a trace of the step. The span is from the beginning of the first kernel, copy or fill to "
    "the end of the last; several at once count once, so that kernels and copies together may be "
    "longer. Idle is a share of the span, and copies under kernels are a share of the copies' time."
)
_MOST = 16
"""Configurations whose timelines are drawn: each has thousands of points."""
_MOST_BANDS = 100
"""Occurrences of phases that are marked, per configuration: the longest."""
_MOST_PHASES = 20
"""Phases that have a row of the table, per configuration: the longest."""
_LONGEST_NAME = 120
"""Characters of a name that are kept: it stands in thousands of rows."""


@dataclass(frozen=True)
class _Sampled:
    """The timeline of a subject."""

    label: str
    measurement: Measurement
    timeline: Timeline

    @cached_property
    def phases(self) -> list[TimelinePhase]:
        """As they begin, each with a time."""
        named = (replace(p, name=_short(p.name)) for p in self.timeline.phases if p.begin < p.end)
        return sorted(named, key=lambda phase: phase.begin)

    @cached_property
    def points(self) -> list[tuple[float, str]]:
        """The middle of each point in ns, and the phase in which that is; "" for none."""
        begins = [phase.begin for phase in self.phases]
        count = len(next(iter(self.timeline.series.values())))
        middles = []
        for number in range(count):
            middle = self.timeline.begin + (number + 0.5) * self.timeline.interval
            at = bisect_right(begins, middle) - 1
            inside = at >= 0 and middle < self.phases[at].end
            middles.append((middle, self.phases[at].name if inside else ""))
        return middles

    def during(self, phase: str) -> Timeline:
        """The same with the points of a phase alone."""
        kept = [number for number, (_, name) in enumerate(self.points) if name == phase]
        series = self.timeline.series.items()
        return replace(
            self.timeline,
            series={name: tuple(values[number] for number in kept) for name, values in series},
        )


def over_the_step(subjects: Sequence[FigureSubject]) -> Figure:
    """A chart per configuration, a line per unit of the device."""
    every = list(_sampled(subjects))
    drawn = every[:_MOST]
    metrics = {
        metric: name
        for metric, name in step_tables.NAMES.items()
        if any(timelines.mean(one.timeline, metric) is not None for one in drawn)
    }
    return described(
        "timeline",
        (row for one in drawn for row in _rows(one, metrics)),
        said=_busy(drawn),
        columns=[*metrics.values()],
        values=[*metrics.values()],
        bands=tuple(band for one in drawn for band in _bands(one)),
        notes=_notes(drawn, len(every) - len(drawn)),
        missing=missing_timelines(subjects),
        summary=FigureTable(
            ("configuration", "phase", "time", *metrics.values(), "SMs idle"),
            tuple(row for one in drawn for row in _summary(one, metrics)),
        ),
    )


def _sampled(subjects: Sequence[FigureSubject]) -> Iterator[_Sampled]:
    """Subjects with a timeline that has a value."""
    for number, subject in enumerate(subjects, 1):
        measurement = subject.sampled
        timeline = measurement.timeline if measurement else None
        if (
            measurement
            and timeline
            and any(timelines.mean(timeline, m) is not None for m in step_tables.NAMES)
        ):
            label = _short(subject.label)
            unique = label if label == subject.label else f"{label} ({number})"
            yield _Sampled(unique, measurement, timeline)


def _rows(one: _Sampled, metrics: dict[str, str]) -> Iterator[tuple[Cell, ...]]:
    """A row per point."""
    series = [one.timeline.series.get(metric) for metric in metrics]
    for number, (middle, phase) in enumerate(one.points):
        yield (
            one.label,
            quantity(round(middle / 1e6, 6), "ms"),
            phase or None,
            *(quantity(values[number] if values else None, "%") for values in series),
        )


def _summary(one: _Sampled, metrics: dict[str, str]) -> Iterator[tuple[Cell, ...]]:
    """A row for the step, and one per phase."""
    durations: dict[str, float] = {}
    for phase in one.phases:
        durations[phase.name] = durations.get(phase.name, 0.0) + phase.end - phase.begin
    longest = set(sorted(durations, key=lambda name: -durations[name])[:_MOST_PHASES])
    parts = [(STEP, one.timeline.duration, one.timeline)]
    parts += [(n, time, one.during(n)) for n, time in durations.items() if n in longest]
    for name, duration, part in parts:
        idle = timelines.idle(part)
        yield (
            one.label,
            name,
            quantity(duration, "ns"),
            *(quantity(timelines.mean(part, metric), "%") for metric in metrics),
            percent(idle),
        )


def _bands(one: _Sampled) -> Iterator[Band]:
    longest = sorted(one.phases, key=lambda phase: phase.begin - phase.end)[:_MOST_BANDS]
    for phase in sorted(longest, key=lambda phase: phase.begin):
        begin, end = phase.begin / 1e6, phase.end / 1e6
        yield Band(one.label, phase.name, round(begin, 6), round(end, 6))


def _notes(drawn: Sequence[_Sampled], others: int) -> Iterator[str]:
    for one in drawn:
        together = chart.drawn_together(len(one.points), len(drawn))
        point = together * one.timeline.interval if together > 1 else 0.0
        parts = [
            step_tables.sampling(one.timeline, point),
            *step_tables.slower(one.timeline, one.measurement),
        ]
        if len(one.phases) > _MOST_BANDS:
            parts.append(f"the {_MOST_BANDS} longest of {len(one.phases):,} phases are marked")
        yield f"{one.label}: {'; '.join(parts)}."
    if any(chart.drawn_together(len(one.points), len(drawn)) > 1 for one in drawn):
        yield (
            "A line is the mean of several points, in a lighter band from the lowest to the "
            "highest of them. The CSV file has every point."
        )
    if others:
        yield f"The timelines of {others} more configurations are in the run file."


def _busy(drawn: Sequence[_Sampled]) -> list[tuple[str, str]]:
    """How busy the SMs and the tensor pipe are on average, where both were sampled."""
    said = []
    for one in drawn:
        busy, tensor = (timelines.mean(one.timeline, m) for m in ("sm_active", "tensor_active"))
        if busy is not None and tensor is not None:
            said.append((f"SMs {busy:.0f} %, tensor pipe {tensor:.0f} %", one.label))
    return said


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."


def transfers(subjects: Sequence[FigureSubject]) -> Figure:
    """A chart of kernels, of each direction of copies, of overlap and of idleness."""
    rows: list[tuple[Cell, ...]] = []
    for metric, name in _TIMES.items():
        unit, known = catalogue().metrics[metric].unit, having(subjects, metric)
        # A direction in which nobody copies needs no chart.
        if any(value for value, _ in known):
            rows += [
                (
                    *(name, s.label, quantity(value, unit), share(value, s.value(_SPAN))),
                    *(quantity(_bytes(s, metric), "bytes"), _memory(s, metric)),
                )
                for value, s in known
            ]
    for metric, name in _SHARES.items():
        rows += [
            (name, s.label, quantity(value, "%"), None, None, None)
            for value, s in having(subjects, metric)
        ]
    return described(
        "transfers",
        rows,
        conclusion=_idlest(subjects),
        notes=[_TRACED] if rows else [],
        missing="" if rows else _without_trace(subjects),
    )


def _idlest(subjects: Sequence[FigureSubject]) -> str:
    """Who waits most and least; "" where nobody knows."""
    idle = having(subjects, "gpu_idle")
    if not idle:
        return ""
    most, worst = max(idle, key=lambda entry: entry[0])
    least, best = min(idle, key=lambda entry: entry[0])
    said = f"Of {worst.label}, the GPU does nothing in {units.value(most, '%')} of its span"
    if best is not worst:
        said += f", of {best.label} in {units.value(least, '%')}"
    return f"{said}: no kernel is to blame for that time, but a host that launches late or waits."


def _without_trace(subjects: Sequence[FigureSubject]) -> str:
    """Why there is no trace, or what takes one."""
    reasons = dict.fromkeys(
        entry.reason
        for subject in subjects
        for measurement in subject.measurements
        for entry in measurement.unsupported
        if entry.metric in _TIMES
    )
    if reasons:
        return f"Not available here: {'; '.join(reasons)}"
    if portable(subjects):
        return f"{NO_GPU} there is nothing to trace"
    return f"This run has no trace of the step: {ACTIVITY} takes one"


def _bytes(subject: FigureSubject, metric: str) -> float | None:
    values = [subject.value(name) for name in _BYTES.get(metric, ())]
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _memory(subject: FigureSubject, metric: str) -> Cell:
    """Which kind of the host's memory is at the other end."""
    named = [name for name in _BYTES.get(metric, ()) if subject.value(name)]
    return " and ".join(name.rpartition("_")[2] for name in named if "d2d" not in name) or None


def components(subjects: Sequence[FigureSubject]) -> Figure:
    """A bar per configuration, of its components one after the other."""
    known = [
        (subject, listed)
        for subject in subjects
        if (listed := component_table(subject.measurements)) is not None
    ]
    # Where all are graphs, in which nothing can be told apart, that is what there is to see.
    shown = [(subject, listed) for subject, listed in known if _inside(listed)] or known
    left_out = [subject.label for subject, listed in known if (subject, listed) not in shown]
    rows: list[tuple[Cell, ...]] = [
        (
            subject.label,
            entry.name,
            None if entry.empty else quantity(entry.time, listed.unit),
            None if entry.empty else quantity(entry.share, "%"),
            quantity(entry.launches, "launches"),
            quantity(entry.copy_time, "ns"),
        )
        for subject, listed in shown
        for entry in listed.entries
    ]
    notes: dict[str, list[str]] = {}
    for subject, listed in shown:
        for note in listed.notes:
            notes.setdefault(note, []).append(subject.label)
    if left_out:
        notes["left out here, since nothing was launched in a component"] = left_out
    return described(
        "components",
        rows,
        conclusion=_longest_component(shown),
        notes=(f"{', '.join(labels)}: {note}" for note, labels in notes.items()),
        missing="" if rows else _without_components(subjects),
    )


def _longest_component(shown: Sequence[tuple[FigureSubject, ComponentTable]]) -> str:
    """Which component takes most, in the first subject that has any; "" where none has."""
    for subject, listed in shown:
        inside = _inside(listed)
        if inside:
            first = inside[0]
            part = "" if first.share is None else f", {first.share:.0f} % of it"
            return (
                f"{first.name} takes {units.value(first.time, listed.unit)} of {subject.label}"
                f"{part}: what is saved there counts most."
            )
    return ""


def _inside(listed: ComponentTable) -> list[ComponentRow]:
    """Those in which something was launched."""
    return [entry for entry in listed.entries if entry.name != OUTSIDE and not entry.empty]


def _without_components(subjects: Sequence[FigureSubject]) -> str:
    """What the run lacks: the set that hears components, or their marks."""
    traced = any(subject.value("launches") is not None for subject in subjects)
    by = "" if traced or portable(subjects) else f", and is measured with {ACTIVITY}"
    return f"This run has no components: a step names them by `with gpuperf.component(...)`{by}"
