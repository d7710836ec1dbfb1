"""The figure of timelines: what the device does over one step, with its phases marked."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pytest_gpuperf.measure.trace import timelines
from pytest_gpuperf.model.measurement import STEP, Measurement, Timeline, TimelinePhase
from pytest_gpuperf.report.html import chart
from pytest_gpuperf.report.html.figure import (
    Band,
    Cell,
    Figure,
    FigureTable,
    Plot,
    Shape,
    percent,
    quantity,
    told,
)
from pytest_gpuperf.report.html.subject import FigureSubject, missing_timelines
from pytest_gpuperf.report.text import protocol_lines

_MOST = 16
"""Configurations whose timelines are drawn: each has thousands of points."""
_MOST_BANDS = 100
"""Occurrences of phases that are marked, per configuration: the longest."""
_MOST_PHASES = 20
"""Phases that have a row of the table, per configuration: the longest."""
_LONGEST_NAME = 120
"""Characters of a name that are kept: it stands in thousands of rows."""
_FULL = 100.0


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
        for metric, name in protocol_lines.NAMES.items()
        if any(timelines.mean(one.timeline, metric) is not None for one in drawn)
    }
    return Figure(
        key="timeline",
        title="What the GPU does over one step",
        conclusion=_conclusion(drawn),
        columns=("configuration", "time", "phase", *metrics.values()),
        rows=tuple(row for one in drawn for row in _rows(one, metrics)),
        plot=Plot(
            Shape.LINES,
            name="",
            values=("time", *metrics.values()),
            panel="configuration",
            most=_FULL,
            bands=tuple(band for one in drawn for band in _bands(one)),
        ),
        notes=tuple(_notes(drawn, len(every) - len(drawn))),
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
            and any(timelines.mean(timeline, m) is not None for m in protocol_lines.NAMES)
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
            protocol_lines.sampling(one.timeline, point),
            *protocol_lines.slower(one.timeline, one.measurement),
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


def _conclusion(drawn: Sequence[_Sampled]) -> str:
    """How busy the SMs and the tensor pipe are on average."""
    said = []
    for one in drawn:
        busy, tensor = (timelines.mean(one.timeline, m) for m in ("sm_active", "tensor_active"))
        if busy is not None and tensor is not None:
            said.append((f"SMs {busy:.0f} %, tensor pipe {tensor:.0f} %", one.label))
    return (
        told(said, "On average: ")
        + "SMs far below 100 % for long: a kernel has too few blocks to fill them. SMs at 0: the "
        "GPU waits for the host. SMs at 100 % while the other lines are low: kernels wait, or do "
        "other work."
    )


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."
