"""The page of a history: one file without a script, that asks nothing of the network.

HTML is made by history.html.j2; what comes from outside is escaped there. Charts are SVG, in the
colours of the report's own style.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_gpuperf import __version__
from pytest_gpuperf.analysis.nights import History, LevelChange, MetricHistory, date, said_of
from pytest_gpuperf.catalogue import units
from pytest_gpuperf.report.html.page import policy, style, template

MAIN = ("step_time", "wall_time", "cycles", "duration")
"""What a test's row is about: the first of these that was measured."""
RECENT_DAYS = 30
"""That a sparkline shows."""
_WIDTH, _HEIGHT = 640, 92
_SPARK_WIDTH, _SPARK_HEIGHT = 150, 26
_MARGIN = 5
_MOST_EVENTS, _MOST_MOVES, _DRAWN = 120, 12, 1
"""Events on the page; metrics of one that are named; and that are drawn."""


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
class _Row:
    label: str
    title: str
    device: str
    metric: str
    now: str
    change: str
    tone: str
    since: str
    gaps: str
    spark: Drawing


@dataclass(frozen=True, slots=True)
class _Event:
    anchor: str
    day: str
    before: str
    device: str
    what: str
    tone: str
    moves: tuple[tuple[str, str, str], ...]
    """Title, what became of it, tone."""
    more: int
    suspects: tuple[tuple[str, str, str], ...]
    """Share, kind and what."""
    commands: tuple[str, ...]
    drawn: tuple[tuple[str, Drawing], ...]


def history_page(past: History, commands: Mapping[int, Sequence[str]]) -> str:
    """The history as HTML; `commands` are what one types next, by the `id` of each event."""
    text = template("history.html.j2").render(
        version=__version__,
        policy=policy(style(), ()),
        style=style(),
        past=past,
        span=(date(past.days[0]), date(past.days[-1])) if past.days else ("", ""),
        tone="bad" if _fresh(past) else "",
        events=[
            _event(past, n, one, commands.get(id(one), ()))
            for n, one in enumerate(past.events[:_MOST_EVENTS], 1)
        ],
        left_out=max(0, len(past.events) - _MOST_EVENTS),
        creeping=[(past.title(one), one.crept) for one in past.creeping],
        rows=sorted(_rows(past), key=lambda row: (row.tone != "bad", row.label, row.device)),
    )
    return text.encode("utf-8", "replace").decode()


def _fresh(past: History) -> bool:
    """Whether something got worse within the nights of a sparkline."""
    return any(e.worse and e.day > past.days[-1] - RECENT_DAYS for e in past.events)


def _event(past: History, number: int, event: LevelChange, commands: Sequence[str]) -> _Event:
    moves = [(past.series[move.series], move.change) for move in event.moves]
    return _Event(
        anchor=f"e{number}",
        day=date(event.day),
        before=date(event.before),
        device=past.devices[event.device],
        what=past.what(event),
        tone="bad" if event.worse else "good",
        moves=tuple(
            (
                past.title(one, device=False),
                said_of(one, change),
                "" if change.worse is None else "bad" if change.worse else "good",
            )
            for one, change in moves[:_MOST_MOVES]
        ),
        more=max(0, len(moves) - _MOST_MOVES),
        suspects=tuple(
            (f"{one.share:.0%}", one.kind.value, one.what)
            for one in event.suspects
            if one.share >= 0.005
        ),
        commands=tuple(commands),
        drawn=tuple(
            (
                f"{past.title(one, device=False)}, {one.metric.name}",
                drawing(one, past.days[0], past.days[-1], _WIDTH, _HEIGHT),
            )
            for one, _ in moves[:_DRAWN]
        ),
    )


def _rows(past: History) -> Iterator[_Row]:
    by_test: dict[tuple[str, str, str, str], dict[str, MetricHistory]] = {}
    for one in past.series:
        seen = one.seen
        key = (seen.test, seen.name, seen.arch, seen.slug)
        by_test.setdefault(key, {})[one.metric.name] = one
    for (test, name, arch, slug), metrics in by_test.items():
        main = next((metrics[m] for m in MAIN if m in metrics), None)
        if main is None:
            continue
        matters = [change for change in main.trend.changes if change.matters]
        last = matters[-1] if matters else None
        recent = last and main.seen.days[last.at] > past.days[-1] - RECENT_DAYS
        worse = last is not None and last.worse
        yield _Row(
            label=past.titles[test, name],
            title=test,
            device=past.devices[arch, slug],
            metric=main.metric.name,
            now=units.value(main.trend.levels[-1], main.metric.unit) if main.trend.levels else "-",
            change=units.moved(last.change, points=main.trend.points) if last else "",
            tone=("bad" if worse else "good") if last and recent else "",
            since=date(main.seen.days[last.at]) if last else "",
            gaps=main.gap_text if main.gaps else "",
            spark=drawing(
                main,
                max(past.days[0], past.days[-1] - RECENT_DAYS + 1),
                past.days[-1],
                _SPARK_WIDTH,
                _SPARK_HEIGHT,
            ),
        )


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
