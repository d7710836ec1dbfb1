"""Many nights: the trend of every metric, the events at which levels changed, gaps and creep.

Advisory: nothing is gated by it. An event is what changed on one device on one night, whatever the
number of tests and metrics; one cause has one entry.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
"""Nights whose values are held against the origin, each as one process."""
UNFIT, UNMEASURED, NO_RUN = "unfit", "not measured", "no run"
"""Why a night is a gap: the guard refused it, the device ran other tests only, or nothing."""

DeviceKey = tuple[str, str]
"""Architecture and slug."""


@dataclass(frozen=True, slots=True)
class Crept:
    """How the last nights stand against the first accepted ones."""

    since: str
    """The day of the baseline's origin, or of the first night where there is no baseline."""
    of_baseline: bool
    drift: Drift
    steps: float
    """What of it came at change points that matter, in the units of the drift; infinite from 0."""

    @property
    def creeping(self) -> bool:
        """Worse than the tolerance, and what came in steps does not explain it."""
        drift = self.drift
        if drift.change is None:  # from 0: in a step, or else it creeps
            return drift.drifted and not self.steps
        known = math.isfinite(self.steps)  # not from 0, which explains whatever came
        return drift.drifted and known and abs(drift.change - self.steps) > drift.tolerance


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

    @property
    def gap_text(self) -> str:
        """How many nights are gaps, by their reasons; "" for none."""
        reasons = Counter(self.gaps.values())
        said = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        return f"{len(self.gaps)} of {len({*self.gaps, *self.seen.days})} nights: {said}"

    @property
    def crept(self) -> str:
        """As in "cycles +3.10 % since 2026-01-02, of which +1.20 % in steps"; or ""."""
        creep = self.creep
        if creep is None:
            return ""
        points = creep.drift.points
        change = units.from_zero_or(creep.drift.change, points=points)
        steps = f", of which {units.moved(creep.steps, points=points)} in steps"
        origin = "the baseline's origin of" if creep.of_baseline else "the first nights,"
        since = f"{self.metric.name} {change} since {origin} {creep.since}"
        return since + (steps if creep.steps and math.isfinite(creep.steps) else "")


@dataclass(frozen=True, slots=True)
class Move:
    """One change point of an event."""

    series: int
    """As a position in the history's series."""
    change: ChangePoint


@dataclass(frozen=True, slots=True)
class LevelChange:
    """What changed on one device on one night: an event with its suspects."""

    device: DeviceKey
    before: int
    """The day of the last night of the old level."""
    day: int
    """That of the first night of the new one."""
    revisions: tuple[str, str]
    """What was measured on these two."""
    files: tuple[Path, Path]
    """A run of each."""
    moves: tuple[Move, ...]
    """The largest first."""
    suspects: tuple[Suspect, ...]
    """In the order of `SuspectKind`; empty where nothing that is recorded differs."""

    @property
    def worse(self) -> bool:
        """Whether any of it is a change for the worse."""
        return any(one.change.worse for one in self.moves)


@dataclass(frozen=True, slots=True)
class LastNight:
    """What of a device's last night is another thing than on the night before it."""

    device: DeviceKey
    before: int
    """The day of the night before it."""
    day: int
    differences: tuple[Suspect, ...]


@dataclass(frozen=True, slots=True)
class History:
    """All that many runs say."""

    days: tuple[int, ...]
    """Every night that there was, or should have been by the usual rhythm."""
    devices: Mapping[DeviceKey, str]
    """By architecture and slug, the device's name."""
    series: tuple[MetricHistory, ...]
    events: tuple[LevelChange, ...]
    """Of changes that matter, the latest first."""
    titles: Mapping[tuple[str, str], str]
    """What people call each test and measurement."""
    source: Recollection
    last_nights: tuple[LastNight, ...]
    """Of each device that has two nights."""
    web: str = ""
    """Where the code is read in a browser; "" where that is not known."""

    @property
    def headline(self) -> str:
        """How much it is that is looked back at."""
        span = f"{date(self.days[0])} to {date(self.days[-1])}" if self.days else "no night"
        worse = sum(event.worse for event in self.events)
        tests = _many(len({one.seen.test for one in self.series}), "test")
        devices, runs = _many(len(self.devices), "device"), _many(len(self.source.files), "run")
        times = f"Levels changed {_many(len(self.events), 'time')}, {worse} of them for the worse"
        changed = times if self.events else "No level changed"
        return f"{_many(len(self.days), 'night')}, {span}: {tests} on {devices}, {runs}. {changed}"

    def title(self, one: MetricHistory, *, device: bool = True) -> str:
        """What people call a series' measurement, with its device where there are several."""
        title = self.titles[one.seen.test, one.seen.name]
        several = device and len(self.devices) > 1
        return f"{title} on {self.devices[one.seen.arch, one.seen.slug]}" if several else title

    def what(self, event: LevelChange) -> str:
        """How many tests are worse since, and how many better, by gated metrics."""
        sides: dict[bool, set[str]] = {True: set(), False: set()}
        for move in event.moves:
            if move.change.worse is not None:
                sides[move.change.worse].add(self.series[move.series].seen.test)
        better = sides[False] - sides[True]
        said = [f"{len(sides[True])} worse"] if sides[True] else []
        said += [f"{len(better)} better"] if better else []
        tests = len({self.series[move.series].seen.test for move in event.moves})
        return f"{_many(tests, 'test')} changed" + (f", {', '.join(said)}" if said else "")

    @property
    def creeping(self) -> list[MetricHistory]:
        """Series that creep, the worst first."""
        creeps = [one for one in self.series if one.creep is not None and one.creep.creeping]
        return sorted(creeps, key=lambda one: -abs(_creep_of(one)))


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _creep_of(one: MetricHistory) -> float:
    return (one.creep.drift.change or 0.0) if one.creep else 0.0


def history(
    source: Recollection, baselines: Path | None = None, tests: Sequence[str] = ()
) -> History:
    """What `source` says, against the origins of the baselines in this folder where it has any.

    Only of tests that match one of the patterns, where there are any: what levels did elsewhere
    still tells of noise and suspects. Raises BadFile for a baseline that cannot be trusted, and
    UsageFailure where no test matches.
    """
    days = _rhythm(source.nights.values())
    devices: dict[DeviceKey, str] = {}
    for one in source.surroundings:
        devices.setdefault((one.arch, one.slug), one.device)
    series: list[MetricHistory] = []
    for device in devices:
        mine = {one.test for one in source.series if (one.arch, one.slug) == device}
        known = _baselines(baselines, device, mine)
        series += _of_device(source, device, days, known)
    events = _events(source, series)
    named = titles((one.seen.test, one.seen.name) for one in series)
    last = tuple(_last_nights(source, devices))
    past = History(days, devices, tuple(series), tuple(events), named, source, last)
    return _matching(past, tests) if tests else past


def _matching(past: History, patterns: Sequence[str]) -> History:
    """Of tests that match alone."""
    kept: dict[int, int] = {}
    for place, one in enumerate(past.series):
        if any(run_files.matches(one.seen.test, pattern) for pattern in patterns):
            kept[place] = len(kept)
    if not kept:
        known = ", ".join(dict.fromkeys(past.titles.values()))
        raise UsageFailure(f"--test {', '.join(patterns)}: no test matches; there are {known}")
    events = []
    for event in past.events:
        moves = [Move(kept[m.series], m.change) for m in event.moves if m.series in kept]
        if moves:
            events.append(replace(event, moves=tuple(moves)))
    series = tuple(past.series[place] for place in kept)
    return replace(past, series=series, events=tuple(events))


def said_of(one: MetricHistory, change: ChangePoint) -> str:
    """As in "cycles +1.23 % (437.8 M -> 443.2 M)"."""
    place = one.trend.changes.index(change)
    old, new = (units.value(v, one.metric.unit) for v in one.trend.levels[place : place + 2])
    moved = units.from_zero_or(change.change, points=one.trend.points)
    return f"{one.metric.name} {moved} ({old} -> {new})"


def _rhythm(nights: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """All nights; those that are missing of them too, where there is one a day."""
    known = sorted({day for days in nights for day in days})
    if len(known) > 2 and median(b - a for a, b in pairwise(known)) == 1:
        return tuple(range(known[0], known[-1] + 1))
    return tuple(known)


def _baselines(folder: Path | None, device: DeviceKey, tests: set[str]) -> list[BaselineFile]:
    """The baselines of one device, whatever their suites, that have any of these tests."""
    place = folder.joinpath(*device) if folder else None
    suites = sorted(place.glob("*.yaml")) if place and place.is_dir() else []
    # YAML is slow to parse: of a suite that none of these tests is in, nothing is wanted.
    texts = {file: file.read_text("utf-8", errors="replace") for file in suites}
    suites = [file for file in suites if any(test in texts[file] for test in tests)]
    loaded = (baseline_files.load(file) for file in suites)
    return [one for one in loaded if one is not None]


def _of_device(
    source: Recollection, device: DeviceKey, days: Sequence[int], known: Sequence[BaselineFile]
) -> list[MetricHistory]:
    mine = [one for one in source.series if (one.arch, one.slug) == device]
    metrics = [catalogue().metrics[one.metric] for one in mine]
    gpus = [one.gpu for one in source.surroundings]
    nights = [
        NightlyValues(one.values, [gpus[n] for n in one.surroundings], one.days) for one in mine
    ]
    calibration = next((one.calibration for one in known if one.calibration), None)
    judged = trends(list(zip(metrics, nights, strict=True)), calibration)
    here = frozenset(source.nights.get(device, ()))
    series = [
        MetricHistory(seen, metric, trend, _gaps(source, seen, days, here))
        for seen, metric, trend in zip(mine, metrics, judged, strict=True)
    ]
    return [
        replace(one, creep=_crept(one, seen.gpus, known, calibration))
        for one, seen in zip(series, nights, strict=True)
    ]


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
    """How the last nights stand against the first; None of what is not gated, or too young.

    What a single night shows is the verdict's, which knows the machine and measures again.
    """
    name, nights = one.metric.name, len(one.seen.days)
    if not one.metric.gated or nights < RECENT:
        return None
    accepted = _accepted(one, known)
    if accepted is None and nights < 2 * RECENT:
        return None
    first = date(one.seen.days[0]), _recorded(one, gpus, slice(0, RECENT))
    since, origin = accepted or first
    # A tolerance that is written is for machines that differ; these nights are of one.
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
    if name not in origin.samples:
        return None
    return origin.recorded, Recorded({name: origin.samples[name]}, origin.gpus, origin.days)


def _recorded(one: MetricHistory, gpus: Sequence[str], part: slice) -> Recorded:
    aside = {*one.trend.set_aside}
    kept = [n for n in range(len(one.seen.values)) if n not in aside][part]
    return Recorded(
        {one.metric.name: [(one.seen.values[n],) for n in kept]},
        tuple(gpus[n] for n in kept),
        tuple(date(one.seen.days[n]) for n in kept),
    )


def _steps(one: MetricHistory, since: str) -> float:
    """What came at change points that matter since then, in the units of changes."""
    later = [c for c in one.trend.changes if c.matters and date(one.seen.days[c.at]) > since]
    moved = [change.change for change in later]
    if None in moved:
        return math.inf
    known = [change for change in moved if change is not None]
    return math.fsum(known) if one.trend.points else math.prod(1 + of for of in known) - 1


def date(day: int) -> str:
    """A day as people write it, "2026-03-01"."""
    from datetime import date as calendar

    return calendar.fromordinal(_EPOCH + day).isoformat()


_EPOCH = 719_163
"""The ordinal of 1970-01-01."""


def _last_nights(source: Recollection, devices: Iterable[DeviceKey]) -> Iterator[LastNight]:
    """What differs between the last two nights of each device that has two.

    Where a night has several GPUs, as of workers, one of them is held against itself.
    """
    revisions = [repr((one.revision, one.software)) for one in source.surroundings]
    for device in devices:
        mine = (one for one in source.series if (one.arch, one.slug) == device)
        measured: dict[tuple[int, int], None] = {}
        for one in mine:
            measured.update(dict.fromkeys(zip(one.days, one.surroundings, strict=True)))
        together: dict[tuple[int, str], dict[str, Night]] = {}
        for day, at in sorted(measured, key=lambda night: night[0]):
            night = _night(source, day, at)
            together.setdefault((day, revisions[at]), {})[night.surroundings.gpu] = night
        if len(together) > 1:
            *_, before, now = together.values()
            of_both = [gpu for gpu in now if gpu in before]
            old, new = (of[of_both[-1] if of_both else [*of][-1]] for of in (before, now))
            yield LastNight(device, old.day, new.day, differences(old, new))


def _night(source: Recollection, day: int, at: int) -> Night:
    return Night(day, source.surroundings[at], source.readings.get((day, at), {}))


def _events(source: Recollection, series: Sequence[MetricHistory]) -> list[LevelChange]:
    """The changes that matter by device and night, with what differs."""
    events = [
        _event(source, series, day, workload, moves)
        for (_, day, workload), moves in _grouped(source, series).items()
    ]
    return sorted(events, key=lambda one: (-one.day, one.device))


def _event(
    source: Recollection,
    series: Sequence[MetricHistory],
    day: int,
    workload: str,
    moves: Sequence[Move],
) -> LevelChange:
    """One event; its two nights are those of the change that lies between the closest two."""
    largest = sorted(moves, key=lambda move: -_size(series[move.series], move.change))
    closest = min(largest, key=lambda move: _days_between(series[move.series].seen, move.change))
    seen, change = series[closest.series].seen, closest.change
    before, now = (
        _night(source, seen.days[at], seen.surroundings[at]) for at in (change.before, change.at)
    )
    # Another workload explains the change by itself.
    by_workload = (Suspect(SuspectKind.WORKLOAD, workload),) if workload else ()
    first, at = series[largest[0].series].seen, largest[0].change
    return LevelChange(
        device=(seen.arch, seen.slug),
        before=before.day,
        day=day,
        revisions=(before.surroundings.revision, now.surroundings.revision),
        files=(source.files[first.files[at.before]], source.files[first.files[at.at]]),
        moves=tuple(largest),
        suspects=by_workload or differences(before, now),
    )


def _days_between(seen: Observations, change: ChangePoint) -> int:
    return seen.days[change.at] - seen.days[change.before]


def _grouped(
    source: Recollection, series: Sequence[MetricHistory]
) -> dict[tuple[DeviceKey, int, str], list[Move]]:
    """The changes that matter by device, day and how the workload changed.

    A test that was not measured on the night itself changed with most of those that were.
    """
    grouped: dict[tuple[DeviceKey, int, str], list[Move]] = {}
    late: list[tuple[DeviceKey, int, int, str, Move]] = []
    for number, one in enumerate(series):
        device, days = (one.seen.arch, one.seen.slug), one.seen.days
        for change in (change for change in one.trend.changes if change.matters):
            workload = _workloads(source, one.seen, change)
            first, last = days[change.before], days[change.at]
            if any(first < day < last for day in one.gaps):
                late.append((device, first, last, workload, Move(number, change)))
            else:
                grouped.setdefault((device, last, workload), []).append(Move(number, change))
    sizes = {key: len(moves) for key, moves in grouped.items()}
    for device, first, last, workload, move in late:
        likely = max(range(last, first, -1), key=lambda d: sizes.get((device, d, workload), 0))
        grouped.setdefault((device, likely, workload), []).append(move)
    return grouped


def _workloads(source: Recollection, seen: Observations, change: ChangePoint) -> str:
    """How the workloads before and after differ: then nothing else is to be asked."""
    old, new = (source.surroundings[seen.surroundings[n]] for n in (change.before, change.at))
    return units.differences(old.workload, new.workload)


def _size(one: MetricHistory, change: ChangePoint) -> float:
    """How large a change is, beside others: those for the worse first."""
    size = math.inf if change.change is None else abs(change.change)
    size /= 100 if one.trend.points else 1
    return size + (1e6 if change.worse and one.metric.gated else 0.0)
