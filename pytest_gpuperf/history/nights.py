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
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.history.levels import ChangePoint, NightlyValues, Trend, trends
from pytest_gpuperf.history.reading import Observations, Recollection
from pytest_gpuperf.history.suspects import Night, Suspect, SuspectKind, differences
from pytest_gpuperf.judge.drift import Drift, Recorded, drifts
from pytest_gpuperf.model.entry import BaselineFile, Calibration
from pytest_gpuperf.model.measurement import titles
from pytest_gpuperf.model.metric import Metric
from pytest_gpuperf.storage import baseline_files, run_files

RECENT = 5
"""Nights that are compared with the origin, each as one process."""
UNFIT, UNMEASURED, NO_RUN = "unfit", "not measured", "no run"
"""Why a night is a gap: the guard refused it, the device ran other tests only, or nothing."""

DeviceKey = tuple[str, str]
"""Architecture and slug."""


@dataclass(frozen=True, slots=True)
class Crept:
    """The drift of the last nights from the first accepted ones."""

    since: str
    """The day of the baseline's origin, or of the first night where there is no baseline."""
    of_baseline: bool
    drift: Drift
    steps: float | None
    """The part at change points that matter, in the units of the drift; None for one from 0."""

    @property
    def creeping(self) -> bool:
        """Worse than the tolerance, and not by steps alone, as whatever comes from 0 does."""
        change, tolerance = self.drift.change, self.drift.tolerance
        if change is None or self.steps is None:
            return False
        return self.drift.drifted and abs(change - self.steps) > tolerance


@dataclass(frozen=True, slots=True)
class MetricHistory:
    """One metric of one measurement on one device."""

    seen: Observations
    metric: Metric
    trend: Trend
    gaps: Mapping[int, str]
    """Nights without a value, by day, with the reason: they are no zeros."""
    creep: Crept | None = None

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Test, measurement, architecture and device."""
        seen = self.seen
        return seen.test, seen.name, seen.arch, seen.slug


@dataclass(frozen=True, slots=True)
class Move:
    """One change point of an event."""

    series: MetricHistory
    change: ChangePoint

    @property
    def nights(self) -> tuple[int, int]:
        """The last before and the first after, as positions in the series."""
        return self.change.before, self.change.at

    @property
    def days(self) -> tuple[int, int]:
        """The days of these two nights."""
        return self.series.seen.days[self.change.before], self.series.seen.days[self.change.at]

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
    before: int
    """The day of the last night of the old level."""
    day: int
    """The day of the first night of the new level."""
    revisions: tuple[str, str]
    """The revisions measured on these two nights."""
    files: tuple[Path, Path]
    """A run of each."""
    moves: tuple[Move, ...]
    """The largest first."""
    suspects: tuple[Suspect, ...]
    """Suspects in the order of `SuspectKind`; empty if no recorded fact differs."""

    @property
    def worse(self) -> bool:
        """Whether any of it is a change for the worse."""
        return any(one.change.worse for one in self.moves)


@dataclass(frozen=True, slots=True)
class LastNight:
    """The differences between a device's last night and the night before."""

    device: DeviceKey
    before: int
    """The day of the night before it."""
    day: int
    differences: tuple[Suspect, ...]


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
    last_nights: tuple[LastNight, ...]
    """The last night of each device that has two nights."""

    @property
    def creeping(self) -> list[tuple[MetricHistory, Crept]]:
        """Series that creep, the worst first."""
        creeps = [(one, one.creep) for one in self.series if one.creep and one.creep.creeping]
        return sorted(creeps, key=lambda pair: -abs(pair[1].drift.change or 0))


def history(
    source: Recollection, baselines: Path | None = None, tests: Sequence[str] = ()
) -> History:
    """The history in `source`, compared with the origins of the baselines in this folder, if any.

    With patterns, only matching tests are returned; the others still contribute to noise and
    suspects. Raises BadFile for a baseline that cannot be trusted, and UsageFailure if no test
    matches.
    """
    days = _rhythm([*(one.days for one in source.series), *source.unfit.values()])
    devices: dict[DeviceKey, str] = {}
    for one in source.surroundings:
        devices.setdefault((one.arch, one.slug), one.device)
    series: list[MetricHistory] = []
    for device in devices:
        series += _of_device(source, device, days, _baselines(baselines, device))
    events = _events(source, series)
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


def _baselines(folder: Path | None, device: DeviceKey) -> list[BaselineFile]:
    """The baselines of one device, whatever their suites."""
    suites = sorted(folder.joinpath(*device).glob("*.yaml")) if folder else []
    loaded = map(baseline_files.load, suites)
    return [one for one in loaded if one is not None]


def _of_device(
    source: Recollection, device: DeviceKey, days: Sequence[int], known: Sequence[BaselineFile]
) -> Iterator[MetricHistory]:
    mine = [one for one in source.series if (one.arch, one.slug) == device]
    metrics = [catalogue().metrics[one.metric] for one in mine]
    gpus = [[source.surroundings[at].gpu for at in one.surroundings] for one in mine]
    nights = [
        NightlyValues(metric, one.values, one.days)
        for one, metric in zip(mine, metrics, strict=True)
    ]
    calibration = next((one.calibration for one in known if one.calibration), None)
    judged = trends(nights, calibration)
    unfit = (days for key, days in source.unfit.items() if key[2:] == device)
    here = frozenset[int]().union(*(one.days for one in mine), *unfit)
    for seen, metric, trend, of in zip(mine, metrics, judged, gpus, strict=True):
        series = MetricHistory(seen, metric, trend, _gaps(source, seen, days, here))
        yield replace(series, creep=_crept(series, of, known, calibration))


def _gaps(
    source: Recollection, seen: Observations, days: Sequence[int], here: frozenset[int]
) -> dict[int, str]:
    first, last = seen.days[0], max(here)
    unfit = source.unfit.get((seen.test, seen.name, seen.arch, seen.slug), frozenset())
    return {
        day: UNFIT if day in unfit else UNMEASURED if day in here else NO_RUN
        for day in sorted({*days}.difference(seen.days))
        if first <= day <= last
    }


def _crept(
    one: MetricHistory,
    gpus: Sequence[str],
    known: Sequence[BaselineFile],
    calibration: Calibration | None,
) -> Crept | None:
    """The drift of the last nights from the first; None for a metric not gated, or too few nights.

    A single night is left to the verdict, which knows the machine and can repeat the test.
    """
    name, nights = one.metric.name, len(one.seen.days)
    if not one.metric.gated or nights < RECENT:
        return None
    accepted = _accepted(one, known)
    if accepted is None and nights < 2 * RECENT:
        return None
    first = date(one.seen.days[0]), _recorded(one, gpus, slice(0, RECENT))
    since, origin = accepted or first
    # A written tolerance allows for different machines; these nights ran on one.
    tolerated = {name: one.seen.tolerance} if accepted and one.seen.tolerance else {}
    recent = _recorded(one, gpus, slice(-RECENT, None))
    (drift,) = drifts(recent, origin, {name: one.metric}, tolerated, calibration) or (None,)
    return Crept(since, accepted is not None, drift, _steps(one, since)) if drift else None


def _accepted(one: MetricHistory, known: Sequence[BaselineFile]) -> tuple[str, Recorded] | None:
    """The day and samples of the metric's origin in the baselines, where they have it."""
    entries = (file.tests.get(one.seen.test, {}).get(one.seen.name) for file in known)
    entry = next((entry for entry in entries if entry is not None), None)
    if entry is None:
        return None
    origin, name = entry.origin or baseline_files.origin_of(entry), one.metric.name
    if name not in origin.step:
        return None
    return origin.recorded, Recorded({name: origin.step[name]}, origin.gpus, origin.days)


def _recorded(one: MetricHistory, gpus: Sequence[str], part: slice) -> Recorded:
    aside = {*one.trend.set_aside}
    kept = [n for n in range(len(one.seen.values)) if n not in aside][part]
    return Recorded(
        {one.metric.name: [(one.seen.values[n],) for n in kept]},
        tuple(gpus[n] for n in kept),
        tuple(date(one.seen.days[n]) for n in kept),
    )


def _steps(one: MetricHistory, since: str) -> float | None:
    """The sum of the change points that matter since then, in their units; None for one from 0."""
    later = [c for c in one.trend.changes if c.matters and date(one.seen.days[c.at]) > since]
    known = [change.change for change in later if change.change is not None]
    if len(known) < len(later):
        return None
    return math.fsum(known) if one.trend.points else math.prod(1 + of for of in known) - 1


def date(day: int) -> str:
    """A day as people write it, "2026-03-01"."""
    return (datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(days=day)).strftime("%Y-%m-%d")


def _last_nights(source: Recollection, devices: Iterable[DeviceKey]) -> Iterator[LastNight]:
    """The differences between the last two nights of each device that has two.

    If a night has several GPUs, as with workers, each GPU is compared with itself.
    """
    for device in devices:
        measured: dict[tuple[int, int], None] = {}
        for one in source.series:
            if (one.arch, one.slug) == device:
                measured |= dict.fromkeys(zip(one.days, one.surroundings, strict=True))
        together: dict[tuple[int, str], dict[str, Night]] = {}
        for day, at in sorted(measured, key=lambda night: night[0]):
            under = source.surroundings[at]
            night = Night(day, under, source.readings.get((day, at), {}))
            together.setdefault((day, under.revision), {})[under.gpu] = night
        if len(together) > 1:
            *_, before, now = together.values()
            of_both = [gpu for gpu in now if gpu in before]
            old, new = (of[of_both[-1] if of_both else [*of][-1]] for of in (before, now))
            yield LastNight(device, old.day, new.day, differences(old, new))


def _night(source: Recollection, seen: Observations, at: int) -> Night:
    """The night at this position of a series."""
    day, under = seen.days[at], seen.surroundings[at]
    return Night(day, source.surroundings[under], source.readings.get((day, under), {}))


def _events(source: Recollection, series: Sequence[MetricHistory]) -> list[LevelChange]:
    """The changes that matter by device and night, with what differs."""
    events = [
        _event(source, day, workload, moves)
        for (_, day, workload), moves in _grouped(source, series).items()
    ]
    return sorted(events, key=lambda one: (-one.day, one.device))


def _event(source: Recollection, day: int, workload: str, moves: Sequence[Move]) -> LevelChange:
    """One event. Its two nights are the closest two that a change lies between."""
    largest = sorted(moves, key=lambda move: (not move.failing, -move.size))
    closest = min(largest, key=lambda move: move.days[1] - move.days[0])
    before, now = (_night(source, closest.series.seen, at) for at in closest.nights)
    # Another workload explains the change by itself.
    by_workload = (Suspect(SuspectKind.WORKLOAD, workload),) if workload else ()
    small = any(move.change.error for move in moves)
    doubt = "(noise makes one in a history)" if small else "(a second night must confirm it)"
    doubtful = all(move.change.doubtful for move in moves)
    by_chance = (Suspect(SuspectKind.CHANCE, doubt),) if doubtful else ()
    old, new = (source.files[largest[0].series.seen.files[at]] for at in largest[0].nights)
    return LevelChange(
        device=closest.series.key[2:],
        before=before.day,
        day=day,
        revisions=(before.surroundings.revision, now.surroundings.revision),
        files=(old, new),
        moves=tuple(largest),
        suspects=by_workload or (*differences(before, now), *by_chance),
    )


def _grouped(
    source: Recollection, series: Sequence[MetricHistory]
) -> dict[tuple[DeviceKey, int, str], list[Move]]:
    """The changes that matter by device, day and how the workload changed.

    The times of a CPU are not judged. A test that was not measured on the night itself changed with
    most of those that were.
    """
    judged = (one for one in series if one.metric.gated or one.seen.arch != "cpu")
    moves = [Move(one, change) for one in judged for change in one.trend.changes if change.matters]
    grouped: dict[tuple[DeviceKey, int, str], list[Move]] = {}
    late: list[tuple[Move, str]] = []
    for move in moves:
        (first, last), workload = move.days, _workloads(source, move)
        if any(first < day < last for day in move.series.gaps):
            late.append((move, workload))
        else:
            grouped.setdefault((move.series.key[2:], last, workload), []).append(move)
    sizes = {key: len(of_night) for key, of_night in grouped.items()}
    for move, workload in late:
        (first, last), device = move.days, move.series.key[2:]
        likely = max(range(last, first, -1), key=lambda d: sizes.get((device, d, workload), 0))
        grouped.setdefault((device, likely, workload), []).append(move)
    return grouped


def _workloads(source: Recollection, move: Move) -> str:
    """The differences between the workloads before and after; they explain the change alone."""
    seen = move.series.seen
    old, new = (source.surroundings[seen.surroundings[at]] for at in move.nights)
    return units.differences(old.workload, new.workload)
