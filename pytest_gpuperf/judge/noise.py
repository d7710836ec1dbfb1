"""The noise of a metric between processes of identical code: the s of the judge's rule.

A baseline of five processes says little about its own spread. The metrics of one noise class share
what they know: each metric's spread is pooled with the class's, which counts for 20 degrees of
freedom, or for 2 where the metric is clearly noisier than its class.

Two GPUs of one name are not alike, nor are two days. Between H200s, cycles of one training step
differ by up to 3 %, in either direction depending on the kernels, while processes on one of them
agree to 0.1 % (docs/verdict.md). So a process is compared with the baseline's processes on its own
GPU where there are any. Where there are none, the difference between GPUs is part of the noise, and
the tolerance is wider by that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, median_low

from pytest_gpuperf.judge.tolerance import Tolerance

Rounds = Sequence[Sequence[float]]
"""Per process, the values of its rounds."""

PRIOR_WEIGHT = 20
"""Degrees of freedom that the class's scale counts for, beside those that were seen."""
GPUS_PRIOR_WEIGHT = 20
"""The same for the class's scale between GPUs, beside the U - 1 that were seen."""
WEAK_PRIOR_WEIGHT = 2
"""PRIOR_WEIGHT for a metric whose spread is more than twice that of its class."""
WILD_SPREADS = 4
"""A metric so many times noisier than its class's median is not of its class's kind."""
OUTLIER_SPREADS = 5
"""A process further than this many class scales from its group's median is set aside."""
MOST_OUTLIERS = 2
"""No more processes than this are set aside, and never two that agree: counts of identical code can
have two modes, and then the second one is no outlier but the metric's nature."""

_LEAST_GROUP = 3
"""Of two processes that differ, nobody can say which one is odd."""
_MAD_TO_SIGMA = 1.4826
"""The standard deviation of normal noise over its median absolute deviation."""


@dataclass(frozen=True)
class BaselineGpus:
    """The GPUs (digests of their UUIDs) of the baseline's processes, in order, and of the new."""

    baseline: tuple[str, ...]
    measured: frozenset[str]
    days: tuple[str, ...] = ()
    """The day of each of the baseline's processes, in the same order; empty when not kept."""

    @property
    def known(self) -> bool:
        """Whether every new process ran on a GPU that the baseline has processes of."""
        return self.measured <= set(self.baseline)

    def groups(self, values: Sequence[float], *, comparable: bool = False) -> list[list[float]]:
        """The baseline's values by GPU; with `comparable`, only of GPUs that the new ran on."""
        return [[values[p] for p in group] for group in self.positions(comparable=comparable)]

    def positions(self, *, comparable: bool = False) -> list[list[int]]:
        """The same for the positions of the baseline's processes."""
        by_gpu: dict[str, list[int]] = {}
        for position, gpu in enumerate(self.baseline):
            if not comparable or gpu in self.measured:
                by_gpu.setdefault(gpu, []).append(position)
        return list(by_gpu.values())

    @property
    def allocations(self) -> int:
        """How many pairs of a GPU and a day the comparable processes come from; at least 1."""
        days = self.days or ("",) * len(self.baseline)
        pairs = {
            (gpu, day)
            for gpu, day in zip(self.baseline, days, strict=True)
            if not self.known or gpu in self.measured
        }
        return max(len(pairs), 1)

    def without(self, positions: frozenset[int]) -> BaselineGpus:
        """Without the baseline's processes at these positions."""
        if not positions:
            return self
        kept = [p for p in range(len(self.baseline)) if p not in positions]
        days = tuple(self.days[p] for p in kept) if self.days else ()
        return BaselineGpus(tuple(self.baseline[p] for p in kept), self.measured, days)


@dataclass(frozen=True)
class Scale:
    """The spread of one metric between processes, on the scale that it is judged on."""

    spread: float
    """s: a standard deviation; a share of the value, or points of a percentage."""
    degrees_of_freedom: int
    set_aside: frozenset[int] = frozenset()
    """Positions of processes that are outliers: kept on file, left out of the comparison."""


def on_judged_scale(values: Sequence[float], tolerance: Tolerance) -> list[float]:
    """Processes' values so that differences are what is judged: logarithms, shares or points."""
    if tolerance.points:
        return list(values)
    if min(values) > 0:
        return [math.log(value) for value in values]
    # No logarithm of a zero or a negative value: shares of the mean, which differ like logarithms.
    size = abs(fmean(values)) or 1.0
    return [value / size for value in values]


def scales(
    baselines: Mapping[str, Rounds], tolerances: Mapping[str, Tolerance], gpus: BaselineGpus | None
) -> dict[str, Scale]:
    """The scale of each of these metrics, which are of one noise class and share its spread.

    S0 = max(s0, median over the class of the MAD estimate): up to 2 processes beyond 5 S0 are set
    aside. S = max(s0, root mean square of the spreads s_b of the class's other metrics), without
    those that are more than 4 times noisier than is typical of the class. Then
    s^2 = max((w S^2 + SS) / (w + n), s_b^2) with n + w degrees of freedom, where SS and s_b are
    sum of squares and spread about the mean of each GPU's processes, n = processes - GPUs, and w
    is 20, or 2 when s_b > 2 S.
    """
    values = {
        name: on_judged_scale([median(process) for process in rounds], tolerances[name])
        for name, rounds in baselines.items()
    }
    by_gpu = gpus.positions() if gpus is not None else []
    groups = {
        name: by_gpu
        if gpus is not None and tolerances[name].between_gpus
        else [list(range(len(series)))]
        for name, series in values.items()
    }
    robust = median(_deviation(values[name], groups[name]) for name in values) if values else 0.0
    aside = {
        name: _outliers(values[name], groups[name], max(tolerances[name].scale, robust))
        for name in values
    }
    kept = {
        name: [[values[name][p] for p in group if p not in aside[name]] for group in groups[name]]
        for name in values
    }
    squares = {name: _squares(groups) for name, groups in kept.items()}
    seen = {name: sum(len(group) - 1 for group in groups) for name, groups in kept.items()}
    own = {name: squares[name] / seen[name] if seen[name] else 0.0 for name in values}
    # The lower of two in the middle: one of a pair must not vouch for itself.
    typical = median_low([own[name] for name in values if seen[name]] or [0.0])
    by_metric = {}
    for name in values:
        # A count with two modes says nothing about the others of its class.
        limit = WILD_SPREADS**2 * max(tolerances[name].scale ** 2, typical)
        others = [own[o] for o in values if o != name and seen[o] and own[o] <= limit]
        shared = max(tolerances[name].scale ** 2, fmean(others) if others else 0.0)
        weight = WEAK_PRIOR_WEIGHT if own[name] > 4 * shared else PRIOR_WEIGHT
        pooled = (weight * shared + squares[name]) / (weight + seen[name])
        spread = math.sqrt(max(pooled, own[name]))
        by_metric[name] = Scale(spread, weight + seen[name], aside[name])
    return by_metric


def error_between(means: Sequence[float], scale: float) -> float:
    """The standard error of one more GPU's difference from the mean over GPUs.

    s_u sqrt(1 + 1/U), with s_u pooling the class's `scale` (weight 20) and the spread of the U
    `means`.
    """
    centre = fmean(means)
    squares = math.fsum((mean - centre) ** 2 for mean in means)
    pooled = (GPUS_PRIOR_WEIGHT * scale**2 + squares) / (GPUS_PRIOR_WEIGHT + len(means) - 1)
    return math.sqrt(pooled * (1 + 1 / len(means)))


def _deviation(values: Sequence[float], groups: Sequence[Sequence[int]]) -> float:
    """A standard deviation within the groups that one or two outliers do not move."""
    distances = [
        abs(values[position] - middle)
        for group in groups
        if len(group) >= _LEAST_GROUP
        for middle in [median(values[p] for p in group)]
        for position in group
    ]
    return _MAD_TO_SIGMA * median(distances) if distances else 0.0


def _outliers(
    values: Sequence[float], groups: Sequence[Sequence[int]], scale: float
) -> frozenset[int]:
    reach = OUTLIER_SPREADS * scale
    outliers: list[tuple[float, int]] = []
    for group in groups:
        centre = median(values[p] for p in group)
        far = sorted(((abs(values[p] - centre), p) for p in group), reverse=True)
        far = [(distance, p) for distance, p in far if distance > reach]
        alone = all(
            abs(values[one] - values[other]) > reach
            for _, one in far
            for _, other in far
            if one != other
        )
        if alone and len(far) <= min(MOST_OUTLIERS, len(group) - _LEAST_GROUP):
            outliers += far
    return frozenset(p for _, p in outliers) if len(outliers) <= MOST_OUTLIERS else frozenset()


def _squares(groups: Sequence[Sequence[float]]) -> float:
    return math.fsum(
        (value - mean) ** 2 for group in groups for mean in [fmean(group)] for value in group
    )
