"""What many nights say in words: what got worse since when, what differs, what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.units import counted
from pytest_gpuperf.history.levels import ChangePoint
from pytest_gpuperf.history.nights import (
    DeviceKey,
    History,
    LastNight,
    LevelChange,
    MetricHistory,
    Move,
    date,
    said_of,
)
from pytest_gpuperf.history.suspects import SuspectKind

RECENT_DAYS = 30
"""What a sparkline shows, and so long something that got worse is news."""
_MAIN = ("step_time", "wall_time", "cycles", "duration")
"""What a test's row is about: the first of these that was measured; else its first gated metric."""
_OTHERS = 2
"""Metrics of a test that are named beside the one that changed most."""
_BARS = "▁▂▃▄▅▆▇█"
_GAP, _CHANGED = "·", "│"


@dataclass(frozen=True, slots=True)
class NightRow:
    """One test on one device over many nights, by the metric that it is about."""

    label: str
    device: str
    main: MetricHistory
    now: str
    change: str
    """The last that matters; "" for none."""
    tone: str
    """Of what changed lately: bad, good or ""."""
    since: str
    gaps: str


def night_rows(past: History) -> list[NightRow]:
    """Every test on every device, what got worse lately first."""
    by_test: dict[tuple[str, str, str, str], dict[str, MetricHistory]] = {}
    for one in past.series:
        by_test.setdefault(one.key, {})[one.metric.name] = one
    rows = []
    for metrics in by_test.values():
        gated = (one for one in metrics.values() if one.metric.gated)
        main = next((metrics[name] for name in _MAIN if name in metrics), None) or next(gated, None)
        if main is not None:
            rows.append(_row(past, main))
    return sorted(rows, key=lambda row: (row.tone != "bad", row.label, row.device))


def _row(past: History, main: MetricHistory) -> NightRow:
    seen, trend = main.seen, main.trend
    last = next((change for change in reversed(trend.changes) if change.matters), None)
    is_recent = last is not None and seen.days[last.at] > past.days[-1] - RECENT_DAYS
    tone = "bad" if last and last.worse else "good"
    return NightRow(
        label=past.titles[seen.test, seen.name],
        device=past.devices[seen.arch, seen.slug],
        main=main,
        now=units.value(trend.levels[-1], main.metric.unit) if trend.levels else "-",
        change=units.from_zero_or(last.change, points=trend.points) if last else "",
        tone=tone if is_recent else "",
        since=date(seen.days[last.at]) if last else "",
        gaps=main.gap_text if main.gaps else "",
    )


def first_recent(past: History) -> int:
    """The first of the days that sparklines show."""
    return max(past.days[0], past.days[-1] - RECENT_DAYS + 1)


def worse_lately(past: History, devices: Collection[DeviceKey] | None = None) -> list[LevelChange]:
    """What got worse in the last 30 days, the latest first; of these devices alone, if named."""
    if not past.days:
        return []
    return [
        event
        for event in past.events
        if event.worse
        and event.day > past.days[-1] - RECENT_DAYS
        and (devices is None or event.device in devices)
    ]


@dataclass(frozen=True, slots=True)
class Occasion:
    """One change, however many devices show it; it is told by one of them."""

    event: LevelChange
    elsewhere: tuple[LevelChange, ...]
    """The same on other devices: on the same day, of the same tests, by the same suspect."""


def calm(*, creeping: bool) -> str:
    """The heading where no level got worse lately."""
    if creeping:
        return f"Creep, which no single one of the last {RECENT_DAYS} days shows"
    return f"Nothing got worse in the last {RECENT_DAYS} days"


def occasions(past: History, events: Iterable[LevelChange]) -> list[Occasion]:
    """These events, of which those that are one change are told once."""
    groups: dict[object, list[LevelChange]] = {}
    for number, event in enumerate(events):
        tests = frozenset(past.series[move.series].seen.test for move in event.moves)
        suspect = event.suspects[0] if event.suspects else None
        alike = (suspect.kind, suspect.what) if suspect else number
        groups.setdefault((event.day, event.worse, alike, tests), []).append(event)
    return [Occasion(first, tuple(others)) for first, *others in groups.values()]


def where(past: History, one: Occasion) -> str:
    """As in "NVIDIA H100 and NVIDIA H200"."""
    return _and([past.devices[event.device] for event in (one.event, *one.elsewhere)])


def _and(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def elsewhere(past: History, one: Occasion) -> list[str]:
    """What changed most on each of the other devices, as "on NVIDIA H200 kernel_time +2.22 %"."""
    told = []
    for event in one.elsewhere:
        move = event.moves[0]
        series = past.series[move.series]
        title = past.title(series, device=False)
        told.append(f"on {past.devices[event.device]} {title}: {_in_short(series, move.change)}")
    return told


def suspected(event: LevelChange) -> list[str]:
    """As in "suspect, driver 570 -> 580", or that only the revision differs."""
    if [one.kind for one in event.suspects] == [SuspectKind.CODE]:
        return [f"only the revision differs, {event.suspects[0].what}"]
    return [f"suspect, {one}" for one in event.suspects]


def moved(past: History, event: LevelChange) -> list[tuple[str, str, bool | None]]:
    """What changed of each test, the largest change first, and whether it is for the worse.

    A test's title, and as in "cycles +2.04 % (805.21 M -> 821.95 M), step_time +1.97 %".
    """
    by_test: dict[str, list[Move]] = {}
    for move in event.moves:
        title = past.title(past.series[move.series], device=False)
        by_test.setdefault(title, []).append(move)
    told = []
    for title, moves in by_test.items():
        first, *others = moves
        said = [said_of(past.series[first.series], first.change)]
        said += [_in_short(past.series[one.series], one.change) for one in others[:_OTHERS]]
        more = len(others) - _OTHERS
        ending = f" and {counted(more, 'other metric')}" if more > 0 else ""
        told.append((title, ", ".join(said) + ending, first.change.worse))
    return told


def _in_short(one: MetricHistory, change: ChangePoint) -> str:
    return f"{one.metric.name} {units.from_zero_or(change.change, points=one.trend.points)}"


def commands(past: History, event: LevelChange) -> tuple[str, ...]:
    """What one types next; where the code is suspected first, how to find the commit."""
    before, after = map(str, event.files)
    typed = [f"gpuperf compare {shlex.quote(before)} {shlex.quote(after)}"]
    if revisions := _revisions(event):
        old, new = revisions
        typed.append(f"git log --oneline {shlex.quote(f'{old}..{new}')}")
        if event.worse and event.suspects and event.suspects[0].kind is SuspectKind.CODE:
            worst = next((m for m in event.moves if m.change.worse), event.moves[0])
            test = past.series[worst.series].seen.test
            typed.append(shlex.join(("gpuperf", "bisect", old, new, "--", test)))
    return tuple(typed)


def comparison(past: History, event: LevelChange) -> str:
    """Where the event's revisions are compared in a browser; "" where that is not known."""
    revisions = _revisions(event)
    return (
        f"{past.web}/compare/{'...'.join(map(quote, revisions))}" if past.web and revisions else ""
    )


def _revisions(event: LevelChange) -> tuple[str, str] | None:
    """The last before and the first after, as git knows them; None where they are one."""
    old, new = (revision.removesuffix("+dirty") for revision in event.revisions)
    return (old, new) if old and new and old != new else None


def since_last_night(one: LastNight) -> str:
    """As in "last night, 2026-03-23, against 2026-03-22: code r20..r21; driver 570 -> 580"."""
    said = "; ".join(map(str, one.differences))
    nights = f"{date(one.day)}, against {date(one.before)}"
    return f"last night, {nights}: {said or 'nothing that runs record differs'}"


def waiting(past: History) -> str:
    """What the next night will tell; "" for nothing."""
    apart = [one for one in past.series if one.trend.pending is not None and one.metric.gated]
    if not apart:
        return ""
    what = counted(len(apart), "metric")
    return f"{what} stood apart in the last night: the next will tell whether that stays"


def sparkline(one: MetricHistory, first: int, last: int) -> str:
    """A character a night: a bar, "·" for one without a value, "│" before one that began a level.

    No series looks wilder than its tolerance.
    """
    seen, trend = one.seen, one.trend
    values = {day: v for day, v in zip(seen.days, seen.values, strict=True) if first <= day <= last}
    if not values:
        return ""
    low, high = min(values.values()), max(values.values())
    room = trend.tolerance if trend.points else abs(high) * trend.tolerance
    half = max((high - low) / 2, room, 1e-300)
    least = (low + high) / 2 - half
    began = {seen.days[change.at] for change in trend.changes if change.matters}
    drawn = []
    for day in sorted({*values, *(day for day in one.gaps if first <= day <= last)}):
        if day not in values:
            drawn.append(_GAP)
            continue
        height = int((values[day] - least) / (2 * half) * len(_BARS))
        mark = _CHANGED if day in began else ""
        drawn.append(mark + _BARS[min(height, len(_BARS) - 1)])
    return "".join(drawn)


def spoken(past: History, devices: Collection[DeviceKey] | None = None) -> Iterator[str]:
    """What differs between the last two nights of each device, or of these.

    A sentence each; one for those of which the same is said.
    """
    said: dict[str, list[str]] = {}
    for one in past.last_nights:
        if devices is None or one.device in devices:
            said.setdefault(since_last_night(one), []).append(past.devices[one.device])
    several = len(past.devices) > 1
    for sentence, names in said.items():
        yield (f"{_and(names)}, " if several else "") + sentence
