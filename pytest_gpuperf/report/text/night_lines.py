"""Many nights in words: regressions with their start, differences, and the next commands."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.units import counted
from pytest_gpuperf.history.nights import History, LevelChange, MetricHistory, Move, date
from pytest_gpuperf.history.reading import DeviceKey, MeasurementKey
from pytest_gpuperf.history.suspects import SuspectKind
from pytest_gpuperf.model.measurement import Measurement, grouped
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.report import view

RECENT_DAYS = 30
"""The days that a sparkline shows, and for which a change for the worse is news."""
_OTHERS = 2
"""Metrics of a test that are named beside the first."""
_MOVES, _SUSPECTS = 5, 3
"""Tests and suspects of one event that are named."""
_BARS = "▁▂▃▄▅▆▇█"
_GAP, _CHANGED = "·", "│"


@dataclass(frozen=True, slots=True)
class NightRow:
    """One test on one device over many nights, shown by one metric."""

    label: str
    device: str
    main: MetricHistory
    now: str
    change: str
    """The last change beyond the tolerance; "" for none."""
    tone: str
    """bad, good or "": the last change, if it is from the last 30 days."""
    since: str
    cost: float
    """The time that a step takes longer since then, in ns; 0 if that is unknown."""


@dataclass(frozen=True, slots=True)
class NightEvent:
    """One change on one or several devices; the first device stands for all."""

    day: str
    where: str
    """The devices: "NVIDIA H100, NVIDIA H200"."""
    what: str
    worse: bool
    worst: str
    """The worst test and the change of its first metric."""
    said: tuple[str, ...]
    """The changes of each test, the worst first."""
    suspects: tuple[str, ...]
    """Differences between the two nights."""
    commands: tuple[str, ...]
    """The next commands for the worst test; `gpuperf bisect` if the code is the first suspect."""
    series: MetricHistory
    """The first metric of the worst test."""


@dataclass(frozen=True, slots=True)
class NightView:
    """Many nights in the words of all reports."""

    past: History
    """The history with all that was read, also of other tests and devices."""
    heading: str
    """A title: "Nothing got worse in the last 30 days"."""
    worse: tuple[NightEvent, ...]
    """Changes for the worse in the last 30 days, the latest first."""
    events: tuple[NightEvent, ...]
    """All changes, the latest first."""
    last: tuple[str, ...]
    """Differences between the last two nights of each device."""
    creeping: tuple[tuple[str, str], ...]
    """Title and size of each creep, the worst first."""
    rows: tuple[NightRow, ...]
    """Every test on every device; tests that got worse in the last 30 days come first."""

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last day of what sparklines show."""
        days = self.past.days
        return max(days[0], days[-1] - RECENT_DAYS + 1), days[-1]

    @property
    def headline(self) -> str:
        """The number of nights, tests, devices, runs and changes."""
        past = self.past
        span = f"{date(past.days[0])} to {date(past.days[-1])}" if past.days else "no night"
        worse = sum(event.worse for event in past.events)
        tests = counted(len({one.seen.test for one in past.series}), "test")
        devices, runs = counted(len(past.devices), "device"), counted(len(past.source.files), "run")
        changes = f"{counted(len(past.events), 'change')} of level, {worse} for the worse"
        said = f"{tests} on {devices}, {runs}. {changes if past.events else 'No level changed'}"
        return f"{counted(len(past.days), 'night')}, {span}: {said}"


def night_view(past: History, run: Run | None = None) -> NightView:
    """A view of all nights; only of the tests and devices of `run`, if it is given."""
    keys = {one.key for one in past.series} if run is None else {*map(series_key, run.measurements)}
    devices = {key[2:] for key in keys} if run else {*past.devices}
    groups = _merged(one for one in past.events if one.device in devices)
    events = [(group[0], _told(past, group)) for group in groups]
    since = past.days[-1] - RECENT_DAYS if past.days else 0
    worse = tuple(told for event, told in events if event.worse and event.day > since)
    creeping = tuple(_creeping(past, keys))
    calm = "Slow creep got worse" if creeping else "Nothing got worse"
    return NightView(
        past=past,
        heading=f"{'These got worse' if worse else calm} in the last {RECENT_DAYS} days",
        worse=worse,
        events=tuple(told for _, told in events),
        last=tuple(_last_night(past, devices)),
        creeping=creeping,
        rows=tuple(_night_rows(past, keys)),
    )


def series_key(one: Measurement) -> MeasurementKey:
    """What histories know a measurement by."""
    device = one.fingerprint.device
    return one.test, one.name, device.arch, device.slug


def _night_rows(past: History, keys: Collection[MeasurementKey]) -> list[NightRow]:
    shown = [one for one in past.series if one.key in keys]
    rows = []
    for metrics in grouped(shown, lambda one: one.key).values():
        named = {one.metric.name: one for one in metrics}
        main = [named[name] for name in view.MAIN if name in named]
        main += [one for one in metrics if one.metric.gated]
        rows += [_row(past, one) for one in main[:1]]
    return sorted(rows, key=lambda row: (row.tone != "bad", -row.cost, row.label, row.device))


def _row(past: History, main: MetricHistory) -> NightRow:
    seen, trend = main.seen, main.trend
    last = next((change for change in reversed(trend.changes) if change.matters), None)
    is_recent = last is not None and seen.days[last.at] > past.days[-1] - RECENT_DAYS
    tone = "bad" if last and last.worse else "good"
    return NightRow(
        label=past.titles[seen.test, seen.name],
        device=past.devices[seen.device],
        main=main,
        now=units.value(trend.levels[-1], main.metric.unit) if trend.levels else "-",
        change=units.from_zero_or(last.change, points=trend.points) if last else "",
        tone=tone if is_recent else "",
        since=date(seen.days[last.at]) if last else "",
        cost=_cost(Move(main, last)) if last else 0.0,
    )


def _is_time(move: Move) -> bool:
    return move.series.metric.name in view.TIMES


def _cost(move: Move) -> float:
    """The time that a step takes longer after a change, in ns; 0 for other metrics."""
    trend, metric = move.series.trend, move.series.metric
    if not _is_time(move):
        return 0.0
    before, after = trend.levels[trend.changes.index(move.change) :][:2]
    return (after - before) * (1 if metric.unit == "ns" else 1e6)


def _by_test(event: LevelChange) -> list[list[Move]]:
    """The changes of each test, ranked as `view.worst_first` ranks results.

    Among regressed tests the most costly in time is first; without a time, the largest change.
    """
    # The moves of an event are sorted by their size.
    ranked = sorted(event.moves, key=lambda move: (not move.failing, not _is_time(move)))
    tests = grouped(ranked, lambda move: move.series.key).values()
    return sorted(tests, key=lambda moves: (not moves[0].failing, -_cost(moves[0])))


def title(past: History, one: MetricHistory, *, device: bool = True) -> str:
    """The short name of a measurement, with its device if there are several."""
    name = past.titles[one.seen.test, one.seen.name]
    several = device and len(past.devices) > 1
    return f"{name} on {past.devices[one.seen.device]}" if several else name


def _creeping(past: History, keys: Collection[MeasurementKey]) -> Iterator[tuple[str, str]]:
    """Sentences like "cycles +3.10 % in 90 nights since the first nights, 2026-01-02"."""
    for one, creep in past.creeping:
        if one.key not in keys:
            continue
        points = one.trend.points
        change = units.moved(creep.change, points=points)
        nights, first = counted(len(one.seen.days), "night"), date(one.seen.days[0])
        said = f"{one.metric.name} {change} in {nights} since the first nights, {first}"
        if creep.steps:
            said += f", of which {units.moved(creep.steps, points=points)} came suddenly"
        yield title(past, one), said


def _merged(events: Iterable[LevelChange]) -> list[list[LevelChange]]:
    """Events on several devices, together if day, tests and first suspect agree."""

    def key(event: LevelChange) -> object:
        tests = frozenset(move.series.seen.test for move in event.moves)
        return event.day, event.worse, event.suspects[0] if event.suspects else id(event), tests

    return list(grouped(events, key).values())


def _told(past: History, events: Sequence[LevelChange]) -> NightEvent:
    event = events[0]
    tests = _by_test(event)
    worst = tests[0][0]
    return NightEvent(
        day=date(event.day),
        where=", ".join(past.devices[one.device] for one in events),
        what=_what(event),
        worse=event.worse,
        worst=f"{title(past, worst.series)}: {_in_short(worst)}",
        said=tuple(_moved(past, tests)),
        suspects=tuple(_suspected(event)),
        commands=tuple(_commands(event, worst)),
        series=worst.series,
    )


def _what(event: LevelChange) -> str:
    """The number of tests that changed, got worse and got better."""
    worse = {move.series.seen.test for move in event.moves if move.change.worse}
    better = {move.series.seen.test for move in event.moves if move.change.worse is False} - worse
    said = [f", {len(worse)} worse"] if worse else []
    said += [f", {len(better)} better"] if better else []
    tests = len({move.series.seen.test for move in event.moves})
    return f"{counted(tests, 'test')} changed{''.join(said)}"


def _suspected(event: LevelChange) -> Iterator[str]:
    """Sentences like "suspect: driver 570 -> 580", or that only the code changed."""
    if not event.suspects:
        yield f"no recorded difference from {date(event.nights[0].day)}"
    elif [one.kind for one in event.suspects] == [SuspectKind.CODE]:
        yield f"only the code changed: {event.suspects[0].what}"
    else:
        yield from (f"suspect: {one}" for one in event.suspects[:_SUSPECTS])


def _moved(past: History, tests: Sequence[Sequence[Move]]) -> Iterator[str]:
    """A line per test: "t: step_time +1.97 % (80.2 ms -> 81.8 ms), cycles +2.04 %"."""
    for first, *others in tests[:_MOVES]:
        said = [_at_length(first), *map(_in_short, others[:_OTHERS])]
        more = len(others) - _OTHERS
        ending = f" and {counted(more, 'other metric')}" if more > 0 else ""
        yield f"{title(past, first.series, device=False)}: {', '.join(said)}{ending}"
    if len(tests) > _MOVES:
        yield f"and {counted(len(tests) - _MOVES, 'other test')}"


def _in_short(move: Move) -> str:
    change = units.from_zero_or(move.change.change, points=move.series.trend.points)
    return f"{move.series.metric.name} {change}"


def _at_length(move: Move) -> str:
    """A sentence like "cycles +1.23 % (437.8 M -> 443.2 M)"."""
    trend, unit = move.series.trend, move.series.metric.unit
    place = trend.changes.index(move.change)
    old, new = (units.value(level, unit) for level in trend.levels[place : place + 2])
    return f"{_in_short(move)} ({old} -> {new})"


def _commands(event: LevelChange, worst: Move) -> Iterator[str]:
    """The next commands for the worst test."""
    test = worst.series.seen.test
    before, after = map(str, worst.files)
    yield shlex.join(("gpuperf", "compare", before, after, "--test", test))
    old, new = (n.surroundings.revision.removesuffix("+dirty") for n in event.nights)
    if old and new and old != new:
        yield f"git log --oneline {shlex.quote(f'{old}..{new}')}"
        if event.worse and event.suspects and event.suspects[0].kind is SuspectKind.CODE:
            yield shlex.join(("gpuperf", "bisect", old, new, "--", test))


def _last_night(past: History, devices: Collection[DeviceKey]) -> Iterator[str]:
    """Differences between the last two nights of these devices, and values that differ.

    As in "last night (2026-03-23), compared with 2026-03-22: code r20..r21; driver 570 -> 580".
    """
    for one in past.last_nights:
        if one.device in devices:
            where = f"{past.devices[one.device]}, " if len(past.devices) > 1 else ""
            nights = f"last night ({date(one.day)}), compared with {date(one.nights[0].day)}"
            differs = "; ".join(map(str, one.suspects)) or "no recorded difference"
            yield f"{where}{nights}: {differs}"
    apart = [one for one in past.series if one.trend.pending and one.metric.gated]
    if apart:
        what = counted(len(apart), "metric")
        yield f"{what} differed in the last night; the next night shows whether the change lasts"


def bounds(one: MetricHistory, values: Collection[float]) -> tuple[float, float]:
    """The lowest and the highest value of a drawing, at least the tolerance apart."""
    trend, low, high = one.trend, min(values, default=0.0), max(values, default=1.0)
    room = trend.tolerance if trend.points else abs(high) * trend.tolerance
    middle, half = (low + high) / 2, max((high - low) / 2, room, 1e-300)
    return middle - half, middle + half


def sparkline(one: MetricHistory, span: tuple[int, int]) -> str:
    """A character a night: a bar, "·" for none of its values, "│" before one that began a level."""
    seen, trend = one.seen, one.trend
    days = range(span[0], span[1] + 1)
    values = {day: v for day, v in zip(seen.days, seen.values, strict=True) if day in days}
    if not values:
        return ""
    least, most = bounds(one, values.values())
    began = {seen.days[change.at] for change in trend.changes if change.matters}
    drawn = []
    for day in sorted({*values, *(day for day in one.gaps if day in days)}):
        if day not in values:
            drawn.append(_GAP)
            continue
        height = int((values[day] - least) / (most - least) * len(_BARS))
        mark = _CHANGED if day in began else ""
        drawn.append(mark + _BARS[min(height, len(_BARS) - 1)])
    return "".join(drawn)
