"""The series of a history's nights as lines of SVG."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.history.nights import MetricHistory
from pytest_gpuperf.report.text.night_lines import NightView, bounds

_SIZE, _SPARK_SIZE = (640, 92), (150, 26)
"""The width and height of a drawing in pixels."""
_MARGIN = 5


@dataclass(frozen=True, slots=True)
class Drawing:
    """A line over nights as SVG's coordinates: a gap in it is a night without a value."""

    width: int
    height: int
    lines: tuple[str, ...]
    """Points of polylines, "x,y x,y"; a gap ends a line."""
    dots: tuple[tuple[float, float], ...]
    """Nights alone between gaps, and those that stand apart."""
    levels: tuple[tuple[float, float, float], ...]
    """Start, end and height of each level."""
    marks: tuple[tuple[float, str], ...]
    """Change points: where, and whether good or bad."""
    says: str


def drawing(nights: NightView, one: MetricHistory, *, spark: bool = False) -> Drawing:
    """A series over all nights; a `spark` over the last nights, as small as a line of text."""
    first, last = nights.span if spark else (nights.past.days[0], nights.past.days[-1])
    width, height = _SPARK_SIZE if spark else _SIZE
    seen, trend = one.seen, one.trend
    inside = [n for n, day in enumerate(seen.days) if first <= day <= last]
    shown = [seen.values[n] for n in inside]
    least, most = bounds(one, shown)
    centre, half = (least + most) / 2, (most - least) / 2

    def x(day: int) -> float:
        share = (day - first) / max(last - first, 1)
        return round(_MARGIN + share * (width - 2 * _MARGIN), 1)

    def y(value: float) -> float:
        value = min(max(value, centre - half), centre + half)
        return round(height / 2 - (value - centre) / half * (height / 2 - _MARGIN), 1)

    parts: list[list[int]] = []
    for n in (n for n in inside if n not in trend.set_aside):
        between = range(seen.days[parts[-1][-1]] + 1, seen.days[n]) if parts else ()
        if not parts or any(day in one.gaps for day in between):
            parts.append([])
        parts[-1].append(n)
    parts += [[n] for n in inside if n in trend.set_aside]
    points = [[(x(seen.days[n]), y(seen.values[n])) for n in part] for part in parts]
    ends = [0, *(change.at for change in trend.changes), len(seen.days)]
    levels = []
    # There is no level if all nights stand apart.
    for (begin, end), level in zip(pairwise(ends), trend.levels, strict=False):
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
        said += f", from {units.value(min(shown), unit)} to {units.value(max(shown), unit)}"
    return Drawing(
        width,
        height,
        tuple(" ".join(f"{left:g},{top:g}" for left, top in part) for part in points),
        tuple(part[0] for part in points if len(part) == 1),
        tuple(levels),
        tuple(marks),
        f"{one.metric.name}: {said}",
    )
