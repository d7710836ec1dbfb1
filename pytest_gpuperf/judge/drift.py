"""Creep: slowdowns too small to be seen in any one acceptance, and large when added up.

Every new baseline is held against an immutable origin, the first one that was accepted: process
against process. A slowdown of 0.1 % of cycles per acceptance is never seen
against the latest baseline, and is seen against the origin after six or seven.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuperf.judge.interval import Difference, difference
from pytest_gpuperf.judge.noise import BaselineGpus, Rounds, Variance, places_of
from pytest_gpuperf.judge.tolerance import Tolerance, is_judged, tolerance_for
from pytest_gpuperf.model.entry import Calibration
from pytest_gpuperf.model.metric import Direction, Metric

CREEP_RATE = 1e-3
"""One-sided false alarms per comparison with the origin, over all its gated metrics."""


@dataclass(frozen=True)
class Recorded:
    """The processes of one accepted entry, over the whole step."""

    samples: Mapping[str, Rounds]
    """The rounds per metric; the processes of each metric are in the same order."""
    gpus: tuple[str, ...] = ()
    """The GPU of each process, in that order; empty if the GPU of any process is unknown."""
    days: tuple[str, ...] = ()
    """The day of each process, in that order; empty when not kept."""


@dataclass(frozen=True)
class Drift:
    """The change of one gated metric since an earlier entry."""

    metric: str
    change: float | None
    """The change in readable form: 0.01 is 1 %, or 1 point of a percentage; None: from zero."""
    tolerance: float
    """In the units of `change`."""
    points: bool
    drifted: bool
    """Whether the metric is worse than the tolerance, and by more than chance explains."""


def drifts(
    new: Recorded,
    origin: Recorded,
    metrics: Mapping[str, Metric],
    tolerances: Mapping[str, str],
    calibration: Calibration | None = None,
) -> tuple[Drift, ...]:
    """The drift from `origin` of each gated metric that both have, in the order of `new`.

    With d = median(new) - mean(origin) in the bad direction: drifted when d > tolerance and
    d > t.isf(0.001 / number of metrics, df) se; d, se and df are those of `difference`. A median,
    since one slow process of five is no drift. `tolerances` are those that the
    suite wrote, per metric ("1%"). Metrics that are neither better nor worse are left out. Raises
    UsageFailure for a tolerance that cannot be read.
    """
    gated = [
        metrics[name]
        for name in new.samples
        if name in origin.samples
        and is_judged(metrics[name], tolerances.get(name))
        and metrics[name].direction is not Direction.NEUTRAL
    ]
    return tuple(
        _drift(
            metric,
            new,
            origin,
            tolerance_for(metric, tolerances.get(metric.name), calibration),
            len(gated),
        )
        for metric in gated
    )


def _drift(
    metric: Metric, new: Recorded, origin: Recorded, tolerance: Tolerance, family: int
) -> Drift:
    looks = _looks(metric.name, new, origin, tolerance)
    first = looks[0]
    change, error = _together(looks)
    worse = -change if metric.direction is Direction.HIGHER else change
    if first.from_zero:
        shown = 0.0 if change == 0 else None
        return Drift(metric.name, shown, tolerance.floor, tolerance.points, drifted=worse > 0)
    # Each look has the class's knowledge of the noise in its degrees of freedom: no sum of them.
    chance = Variance(error**2, min(look.error.degrees for look in looks))
    floor = first.floor
    return Drift(
        metric=metric.name,
        change=first.shown(change),
        tolerance=first.shown(floor),
        points=tolerance.points,
        drifted=worse > floor and worse > chance.reach(CREEP_RATE / family),
    )


def _looks(
    name: str, new: Recorded, origin: Recorded, tolerance: Tolerance
) -> tuple[Difference, ...]:
    """The comparisons that tell of a metric's drift: one per GPU that both have processes of.

    A mean over several GPUs moves with the share that each has in it, and they differ by more than
    the creep that is looked for. Where there is no such GPU, all are compared with all, and the
    difference between GPUs is part of the error and of the tolerance.
    """
    now, then = new.samples[name], origin.samples[name]
    if not (new.gpus and origin.gpus and tolerance.between_gpus):
        return (difference(now, then, tolerance, None),)
    common = [gpu for gpu in dict.fromkeys(origin.gpus) if gpu in new.gpus]
    places = places_of(origin.gpus, origin.days)
    if not common:
        return (difference(now, then, tolerance, BaselineGpus(places, new.gpus)),)
    looks = []
    for gpu in common:
        ours = [rounds for rounds, on in zip(now, new.gpus, strict=True) if on == gpu]
        theirs = [rounds for rounds, on in zip(then, places, strict=True) if on.gpu == gpu]
        there = tuple(place for place in places if place.gpu == gpu)
        looks.append(difference(ours, theirs, tolerance, BaselineGpus(there, (gpu,) * len(ours))))
    if len({look.logarithmic for look in looks}) > 1:
        # Something is zero on one of the GPUs only: their changes are not on one scale.
        return (difference(now, then, tolerance, None),)
    return tuple(looks)


def _together(looks: Sequence[Difference]) -> tuple[float, float]:
    """The change and its standard error, with GPUs weighted by w = 1 / se^2."""
    weights = [1 / look.error.square for look in looks]
    total = math.fsum(weights)
    changes = [look.change for look in looks]
    change = math.fsum(w * d for w, d in zip(weights, changes, strict=True)) / total
    return change, total**-0.5
