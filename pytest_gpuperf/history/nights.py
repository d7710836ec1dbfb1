"""Many nights: the trend of every metric, the events at which levels changed, gaps and creep.

The history is advisory and gates nothing. An event groups all changes on one device on one night,
for any number of tests and metrics. One cause has one entry.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from statistics import median

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.architectures import CPU
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.history.levels import ChangePoint, Trend, trends
from pytest_gpuperf.history.reading import DeviceKey, MeasurementKey, Observations, Recollection
from pytest_gpuperf.history.suspects import Night, Suspect, SuspectKind, differences
from pytest_gpuperf.judge.drift import Recorded, drifts
from pytest_gpuperf.model.measurement import titles
from pytest_gpuperf.model.metric import Metric
from pytest_gpuperf.storage import run_files

RECENT = 5
"""Nights that are compared with as many first ones, each as one process."""


@dataclass(frozen=True, slots=True)
class Crept:
    """The loss of the last nights since the first ones, if it did not come by steps alone."""

    change: float
    """Relative (0.01 is 1 %), or points for a percentage."""
    steps: float
    """The part at change points that matter, in the same units."""


@dataclass(frozen=True, slots=True)
class MetricHistory:
    """One metric of one measurement on one device."""

    seen: Observations
    trend: Trend
    gaps: frozenset[int]
    """The days of nights without a value: they are no zeros."""
    creep: Crept | None = None

    @property
    def key(self) -> MeasurementKey:
        """Test, measurement, architecture and device."""
        return self.seen.key

    @property
    def metric(self) -> Metric:
        """The metric."""
        return self.seen.metric


@dataclass(frozen=True, slots=True)
class Move:
    """One change point of an event."""

    series: MetricHistory
    change: ChangePoint

    @property
    def nights(self) -> tuple[Night, Night]:
        """The last before and the first after."""
        return self.series.seen.nights[self.change.before], self.series.seen.nights[self.change.at]

    @property
    def files(self) -> tuple[Path, Path]:
        """A run of each of these nights."""
        return self.series.seen.files[self.change.before], self.series.seen.files[self.change.at]

    @property
    def failing(self) -> bool:
        """Whether a gated metric is worse: such changes come first."""
        return self.change.worse is True and self.series.metric.gated

    @property
    def size(self) -> float:
        """The size of the change; a point of a percentage counts as 1 %."""
        size = math.inf if self.change.change is None else abs(self.change.change)
        return size / (100 if self.series.trend.points else 1)


@dataclass(frozen=True, slots=True)
class LevelChange:
    """All changes on one device on one night: an event with its suspects."""

    device: DeviceKey
    day: int
    """The day of the first night of the new level."""
    nights: tuple[Night, Night]
    """The closest two nights that a change lies between."""
    suspects: tuple[Suspect, ...]
    """Suspects in the order of `SuspectKind`; empty if no recorded fact differs."""
    moves: tuple[Move, ...] = ()
    """The largest first; none if the two nights are only the last ones."""

    @property
    def worse(self) -> bool:
        """Whether any of it is a change for the worse."""
        return any(one.change.worse for one in self.moves)


@dataclass(frozen=True, slots=True)
class History:
    """The history of many runs."""

    days: tuple[int, ...]
    """All nights, including nights missing from the usual rhythm."""
    devices: Mapping[DeviceKey, str]
    """The device's name, by architecture and slug."""
    series: tuple[MetricHistory, ...]
    events: tuple[LevelChange, ...]
    """Events with changes that matter, the latest first."""
    titles: Mapping[tuple[str, str], str]
    """The title of each test and measurement in reports."""
    source: Recollection
    last_nights: tuple[LevelChange, ...]
    """The last two nights of each device that has two, with what differs between them."""

    @property
    def creeping(self) -> list[tuple[MetricHistory, Crept]]:
        """Series that creep, the worst first."""
        creeps = [(one, one.creep) for one in self.series if one.creep]
        return sorted(creeps, key=lambda pair: -abs(pair[1].change))


def history(source: Recollection, tests: Sequence[str] = ()) -> History:
    """The history in `source`.

    With patterns, only matching tests are returned; the others still contribute to noise and
    suspects. Raises UsageFailure if no test matches.
    """
    days = _rhythm(source.days.values())
    devices: dict[DeviceKey, str] = {}
    for one in source.series:
        devices.setdefault(one.device, one.nights[0].surroundings.device)
    series: list[MetricHistory] = []
    for device in devices:
        series += _of_device(source, device, days)
    events = [_event(*key, moves) for key, moves in _grouped(series).items()]
    events.sort(key=lambda one: (-one.day, one.device))
    named = titles((one.seen.test, one.seen.name) for one in series)
    last = tuple(_last_nights(source, devices))
    past = History(days, devices, tuple(series), tuple(events), named, source, last)
    return _matching(past, tests)


def _matching(past: History, patterns: Sequence[str]) -> History:
    """The part of the history for tests that match; all of it without a pattern."""
    tests = {test for test, _ in past.titles if run_files.matches_any(test, patterns)}
    if patterns and not tests:
        known = ", ".join(dict.fromkeys(past.titles.values()))
        raise UsageFailure(f"no test matches --test {', '.join(patterns)}. The history has {known}")
    moves = [tuple(m for m in e.moves if m.series.seen.test in tests) for e in past.events]
    return replace(
        past,
        series=tuple(one for one in past.series if one.seen.test in tests),
        events=tuple(replace(e, moves=m) for e, m in zip(past.events, moves, strict=True) if m),
    )


def _rhythm(nights: Iterable[Iterable[int]]) -> tuple[int, ...]:
    """All nights, including missing nights if there is usually one a day."""
    known = sorted({day for days in nights for day in days})
    if len(known) > 2 and median(b - a for a, b in pairwise(known)) == 1:
        return tuple(range(known[0], known[-1] + 1))
    return tuple(known)


def _of_device(
    source: Recollection, device: DeviceKey, days: Sequence[int]
) -> Iterator[MetricHistory]:
    mine = [one for one in source.series if one.device == device]
    last = max(source.days[device])
    for seen, trend in zip(mine, trends(mine), strict=True):
        since_then = (day for day in days if seen.days[0] <= day <= last)
        series = MetricHistory(seen, trend, frozenset(since_then).difference(seen.days))
        yield replace(series, creep=_crept(series))


def _crept(one: MetricHistory) -> Crept | None:
    """The drift of the last nights from the first, if it is a creep.

    A metric that is not gated, that has too few nights, or that starts from 0 has none. A drift
    from the baseline is left to the verdict and to the acceptance, which judge it.
    """
    if not one.metric.gated or len(one.seen.days) < 2 * RECENT:
        return None
    first, last = _recorded(one, slice(0, RECENT)), _recorded(one, slice(-RECENT, None))
    steps = _steps(one)
    (drift,) = drifts(last, first, {one.metric.name: one.metric}, {}) or (None,)
    if drift is None or drift.change is None or steps is None:
        return None
    creeps = drift.drifted and abs(drift.change - steps) > drift.tolerance
    return Crept(drift.change, steps) if creeps else None


def _recorded(one: MetricHistory, part: slice) -> Recorded:
    aside = {*one.trend.set_aside}
    kept = [n for n in range(len(one.seen.values)) if n not in aside][part]
    return Recorded(
        {one.metric.name: [(one.seen.values[n],) for n in kept]},
        tuple(one.seen.nights[n].surroundings.gpu for n in kept),
        tuple(date(one.seen.days[n]) for n in kept),
    )


def _steps(one: MetricHistory) -> float | None:
    """The sum of the change points that matter, in their units; None for one from 0."""
    steps = [change.change for change in one.trend.changes if change.matters]
    known = [step for step in steps if step is not None]
    if len(known) < len(steps):
        return None
    return math.fsum(known) if one.trend.points else math.prod(1 + of for of in known) - 1


def date(day: int) -> str:
    """A day as people write it, "2026-03-01"."""
    return (datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(days=day)).strftime("%Y-%m-%d")


def _last_nights(source: Recollection, devices: Iterable[DeviceKey]) -> Iterator[LevelChange]:
    """The differences between the last two nights of each device that has two.

    If a night has several GPUs, as with workers, each GPU is compared with itself.
    """
    for device in devices:
        series = (one for one in source.series if one.device == device)
        measured = {id(night): night for one in series for night in one.nights}
        together: dict[tuple[int, str], dict[str, Night]] = {}
        for night in sorted(measured.values(), key=lambda night: night.day):
            under = night.surroundings
            together.setdefault((night.day, under.revision), {})[under.gpu] = night
        if len(together) > 1:
            *_, before, now = together.values()
            of_both = [gpu for gpu in now if gpu in before]
            old, new = (of[of_both[-1] if of_both else [*of][-1]] for of in (before, now))
            yield LevelChange(device, new.day, (old, new), differences(old, new))


def _event(device: DeviceKey, day: int, workload: str, moves: Sequence[Move]) -> LevelChange:
    """One event, with its suspects."""
    largest = sorted(moves, key=lambda move: (not move.failing, -move.size))
    nights = min((move.nights for move in largest), key=lambda of: of[1].day - of[0].day)
    # Another workload explains the change by itself.
    by_workload = (Suspect(SuspectKind.WORKLOAD, workload),) if workload else ()
    small = any(move.change.error for move in moves)
    doubt = "(noise makes one in a history)" if small else "(a second night must confirm it)"
    doubtful = all(move.change.doubtful for move in moves)
    by_chance = (Suspect(SuspectKind.CHANCE, doubt),) if doubtful else ()
    suspects = by_workload or (*differences(*nights), *by_chance)
    return LevelChange(device, day, nights, suspects, tuple(largest))


def _grouped(
    series: Sequence[MetricHistory],
) -> dict[tuple[DeviceKey, int, str], list[Move]]:
    """The changes that matter by device, day and how the workload changed.

    The times of a CPU are not judged. A test that was not measured on the night itself changed with
    most of those that were.
    """
    judged = (one for one in series if one.metric.gated or one.seen.device[0] != CPU)
    moves = [Move(one, change) for one in judged for change in one.trend.changes if change.matters]
    grouped: dict[tuple[DeviceKey, int, str], list[Move]] = {}
    late: list[tuple[Move, str]] = []
    for move in moves:
        first, last = (night.day for night in move.nights)
        workload = units.differences(*(night.surroundings.workload for night in move.nights))
        if any(first < day < last for day in move.series.gaps):
            late.append((move, workload))
        else:
            grouped.setdefault((move.series.seen.device, last, workload), []).append(move)
    sizes = {key: len(of_night) for key, of_night in grouped.items()}
    for move, workload in late:
        (first, last), device = (night.day for night in move.nights), move.series.seen.device
        likely = max(range(last, first, -1), key=lambda d: sizes.get((device, d, workload), 0))
        grouped.setdefault((device, likely, workload), []).append(move)
    return grouped
