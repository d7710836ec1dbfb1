"""Creep: slowdowns too small to be seen in any one acceptance, and large when added up.

Every new baseline is held against an immutable origin, the first one that was accepted: process
against process. A slowdown of 0.1 % of cycles per acceptance is never seen
against the latest baseline, and is seen against the origin after six or seven.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pytest_gpuperf.judge.interval import Difference, difference
from pytest_gpuperf.judge.noise import BaselineGpus, Rounds
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
    allowed = (tolerance_for(one, tolerances.get(one.name), calibration) for one in gated)
    pairs = zip(gated, allowed, strict=True)
    return tuple(_drift(metric, new, origin, tolerance, len(gated)) for metric, tolerance in pairs)


def _drift(
    metric: Metric, new: Recorded, origin: Recorded, tolerance: Tolerance, family: int
) -> Drift:
    look = _look(metric.name, new, origin, tolerance)
    worse = -look.change if metric.direction is Direction.HIGHER else look.change
    if look.from_zero:
        shown = 0.0 if look.change == 0 else None
        return Drift(metric.name, shown, tolerance.floor, tolerance.points, drifted=worse > 0)
    return Drift(
        metric=metric.name,
        change=look.shown(look.change),
        tolerance=look.shown(look.floor),
        points=tolerance.points,
        drifted=worse > look.floor and worse > look.error.reach(CREEP_RATE / family),
    )


def _look(name: str, new: Recorded, origin: Recorded, tolerance: Tolerance) -> Difference:
    """The comparison that tells of a metric's drift: on the GPU that both have most processes of.

    A mean over several GPUs moves with the share that each has in it, and they differ by more than
    the creep that is looked for. Where there is no such GPU, all are compared with all, and the
    difference between GPUs is part of the error and of the tolerance.
    """
    now, then = new.samples[name], origin.samples[name]
    if not (new.gpus and origin.gpus and tolerance.between_gpus):
        return difference(now, then, tolerance, None)
    gpus = BaselineGpus(origin.gpus, origin.days, new.gpus)
    common = Counter(new.gpus) & Counter(origin.gpus)
    if common:
        here = max(sorted(common), key=common.__getitem__)
        now = [rounds for rounds, gpu in zip(now, new.gpus, strict=True) if gpu == here]
        gpus = replace(gpus, new=(here,) * len(now))
    return difference(now, then, tolerance, gpus)
