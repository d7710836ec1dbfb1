"""What pages show of a history's nights: its events, and series as lines of SVG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.history.nights import History, LevelChange, MetricHistory
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.report.text import night_lines

_WIDTH, _HEIGHT = 640, 92
_SPARK_WIDTH, _SPARK_HEIGHT = 150, 26
_MARGIN = 5
MOST_EVENTS = 120
"""Events on a page."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A line over nights as SVG's coordinates: a gap in it is a night without a value."""

    width: int
    height: int
    lines: tuple[str, ...]
    """Points of polylines, "x,y x,y"; one ends where a gap begins."""
    dots: tuple[tuple[float, float], ...]
    """Nights alone between gaps, and those that stand apart."""
    levels: tuple[tuple[float, float, float], ...]
    """From, to and height of each level."""
    marks: tuple[tuple[float, str], ...]
    """Change points: where, and whether good or bad."""
    says: str


@dataclass(frozen=True, slots=True)
class DrawnEvent:
    """A night on which levels changed, as the template wants it."""

    told: night_lines.NightEvent
    drawn_of: str
    drawn: Drawing
    """What changed most, over all nights."""


@dataclass(frozen=True, slots=True)
class NightsOfRun:
    """What the nights say of a run's tests, for its own page."""

    events: tuple[DrawnEvent, ...]
    """What got worse lately on the run's devices, the latest first."""
    yesterday: tuple[str, ...]
    """What differs between the last two nights of each device."""
    waiting: str
    creeping: tuple[tuple[str, str], ...]
    calm: str
    """What stands above where there are no events."""
    sparks: Mapping[tuple[str, str, str, str], Drawing]
    """By test, measurement, architecture and device."""
    nights: int


def nights_of_run(past: History, run: Run) -> NightsOfRun:
    """What the nights say of the tests and devices of this run."""
    devices = {
        (device.arch, device.slug)
        for measurement in run.measurements
        for device in [measurement.fingerprint.device]
    }
    keys = {
        (result.test, result.name, device.arch, device.slug)
        for result in run.results()
        if result.measurements
        for device in [result.first.fingerprint.device]
    }
    creeping = tuple(
        (name, said) for one, name, said in night_lines.creeping(past) if one.key in keys
    )
    return NightsOfRun(
        events=tuple(drawn_events(past, night_lines.worse_lately(past, devices))),
        yesterday=tuple(night_lines.spoken(past, devices)),
        waiting=night_lines.waiting(past),
        creeping=creeping,
        calm=night_lines.calm(creeps=bool(creeping)),
        sparks={
            row.main.key: spark(past, row.main)
            for row in night_lines.night_rows(past)
            if row.main.key in keys
        },
        nights=len(past.days),
    )


def spark(past: History, one: MetricHistory) -> Drawing:
    """A series over the last nights, as small as a line of text."""
    first = night_lines.first_recent(past)
    return drawing(one, first, past.days[-1], _SPARK_WIDTH, _SPARK_HEIGHT)


def drawn_events(past: History, events: Iterable[LevelChange]) -> list[DrawnEvent]:
    """These events, as many as a page has."""
    drawn = []
    for told in night_lines.night_events(past, events)[:MOST_EVENTS]:
        first = told.event.moves[0].series
        name = f"{night_lines.title(past, first)}, {first.metric.name}"
        line = drawing(first, past.days[0], past.days[-1], _WIDTH, _HEIGHT)
        drawn.append(DrawnEvent(told, name, line))
    return drawn


def drawing(one: MetricHistory, first: int, last: int, width: int, height: int) -> Drawing:
    """A series from the first to the last day, in so many pixels."""
    seen, trend = one.seen, one.trend
    inside = [n for n, day in enumerate(seen.days) if first <= day <= last]
    shown = [seen.values[n] for n in inside]
    low, high = min(shown, default=0.0), max(shown, default=1.0)
    # No series looks wilder than its tolerance.
    room = trend.tolerance if trend.points else abs(high) * trend.tolerance
    centre, half = (low + high) / 2, max((high - low) / 2, room, 1e-300)

    def x(day: int) -> float:
        share = (day - first) / max(last - first, 1)
        return round(_MARGIN + share * (width - 2 * _MARGIN), 1)

    def y(value: float) -> float:
        value = min(max(value, centre - half), centre + half)
        return round(height / 2 - (value - centre) / half * (height / 2 - _MARGIN), 1)

    parts: list[list[int]] = [[]]
    apart = {*trend.set_aside}
    dots = [(x(seen.days[n]), y(seen.values[n])) for n in inside if n in apart]
    for n in inside:
        if n in apart:
            continue
        part = parts[-1]
        if part and any(day in one.gaps for day in range(seen.days[part[-1]] + 1, seen.days[n])):
            parts.append([])
        parts[-1].append(n)
    dots += [(x(seen.days[p[0]]), y(seen.values[p[0]])) for p in parts if len(p) == 1]
    ends = [0, *(change.at for change in trend.changes), len(seen.days)]
    levels = []
    for (begin, end), level in zip(pairwise(ends), trend.levels, strict=True):
        since, until = max(seen.days[begin], first), min(seen.days[end - 1], last)
        if since <= until:
            levels.append((x(since), x(until), y(level)))
    marks = [
        (x(seen.days[c.at]), "bad" if c.worse else "good")
        for c in trend.changes
        if c.matters and first < seen.days[c.at] <= last
    ]
    said = f"{len(inside)} nights, {len(marks)} changes of level"
    if shown:
        unit = one.metric.unit
        said += f", from {units.value(low, unit)} to {units.value(high, unit)}"
    return Drawing(
        width,
        height,
        tuple(" ".join(_point(x(seen.days[n]), y(seen.values[n])) for n in p) for p in parts if p),
        tuple(dots),
        tuple(levels),
        tuple(marks),
        f"{one.metric.name}: {said}",
    )


def _point(x: float, y: float) -> str:
    return f"{x:g},{y:g}"
