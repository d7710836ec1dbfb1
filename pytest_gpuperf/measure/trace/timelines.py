"""Timelines: what the device's units did over one execution of a step, as series of equal length.

From the samples that the hardware took, whatever took them, to what a run file keeps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from pytest_gpuperf.catalogue.metric_catalogue import MOST_PERCENT
from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.model.measurement import Timeline, TimelinePhase, Unsupported
from pytest_gpuperf.storage.run_files import MOST_POINTS

LONGEST = 100_000
"""Nanoseconds between samples, at most: 10 kHz."""
SHORTEST = 20_000
"""At least. NVIDIA names no limit; the shorter, the sooner the hardware's buffer is full."""
_WANTED = 1000
"""Samples that a step is to have, where these limits allow for them."""

IDLE = 1.0
"""Percent of the SMs' time below which the device is said to be idle."""

_DECIMALS = 2
_NO_DATA = 0.01
"""Share of a point's time below which samples say nothing about it."""


@dataclass(frozen=True)
class TimelineReading:
    """One sample: the values of the metrics from `begin` to `end`, in ns since the step began."""

    begin: float
    end: float
    values: tuple[float, ...]


def interval_for(duration: float) -> int:
    """How often to sample a step of `duration`; both in ns."""
    return round(min(LONGEST, max(SHORTEST, duration / _WANTED)))


def of_readings(
    readings: Sequence[TimelineReading],
    metrics: Sequence[str],
    duration: float,
    phases: tuple[TimelinePhase, ...] = (),
    unsupported: tuple[Unsupported, ...] = (),
) -> Timeline:
    """The timeline of a step that took `duration` ns, from the samples taken around it.

    A sample belongs to the step when its middle does; none is cut, since its value is of all of its
    time. They become at most MOST_POINTS points at equal intervals, each the mean of the samples in
    it, weighted by time. Raises MeasurementError where no sample belongs to the step.
    """
    inside = sorted(
        (r for r in readings if r.begin < r.end and 0 <= (r.begin + r.end) / 2 <= duration),
        key=lambda reading: reading.begin,
    )
    if not inside:
        raise MeasurementError(_none_found(readings, duration))
    begin, span = inside[0].begin, inside[-1].end - inside[0].begin
    # As many as there would be without gaps: a single sample's width is only known roughly.
    regular = round(span / median(reading.end - reading.begin for reading in inside))
    factor = math.ceil(regular / MOST_POINTS)
    width = span / regular
    interval, count = factor * width, math.ceil(regular / factor)
    return Timeline(
        samples=len(inside),
        sampling_interval=round(width, 1),
        interval=round(interval, 1),
        begin=round(begin, 1),
        duration=round(duration, 1),
        series={
            name: _means(inside, place, begin, interval, count)
            for place, name in enumerate(metrics)
        },
        phases=phases,
        unsupported=unsupported,
    )


def absent(obstacle: str) -> Timeline:
    """The timeline of a step that could not be sampled, with the reason."""
    return Timeline(0, 0.0, 0.0, 0.0, 0.0, {}, (), obstacle=obstacle)


def mean(timeline: Timeline, metric: str) -> float | None:
    """The mean of a series in its unit; None where it has no value."""
    values = [value for value in timeline.series.get(metric, ()) if value is not None]
    return fmean(values) if values else None


def idle(timeline: Timeline) -> float | None:
    """The share of the points in which the SMs did nothing, 0 to 1; None where nobody knows."""
    values = [value for value in timeline.series.get("sm_active", ()) if value is not None]
    return sum(value < IDLE for value in values) / len(values) if values else None


def _means(
    readings: Sequence[TimelineReading], place: int, begin: float, interval: float, count: int
) -> tuple[float | None, ...]:
    sums, weights = [0.0] * count, [0.0] * count
    for reading in readings:
        value = reading.values[place]
        # Also what is no number, as a ratio of nothing to nothing.
        if not 0 <= value <= MOST_PERCENT:
            continue
        first = int((reading.begin - begin) / interval)
        for point in range(first, min(count, int((reading.end - begin) / interval) + 1)):
            since = max(reading.begin, begin + point * interval)
            until = min(reading.end, begin + (point + 1) * interval)
            if until > since:
                sums[point] += value * (until - since)
                weights[point] += until - since
    return tuple(
        round(total / weight, _DECIMALS) if weight > _NO_DATA * interval else None
        for total, weight in zip(sums, weights, strict=True)
    )


def _none_found(readings: Sequence[TimelineReading], duration: float) -> str:
    if not readings:
        return f"no sample was taken in {duration / 1e6:.3f} ms"
    first, last = min(r.begin for r in readings), max(r.end for r in readings)
    return (
        f"none of {len(readings)} samples was taken during the step: they are from "
        f"{first / 1e6:.3f} to {last / 1e6:.3f} ms, and the step from 0 to {duration / 1e6:.3f} ms"
    )
