"""The noise of a metric between processes of identical code: the s of the judge's rule.

A baseline of five processes says little about its own spread. The metrics of one noise class share
what they know: each metric's spread is pooled with the class's, which counts for 20 degrees of
freedom, or for 2 where the metric is clearly noisier than its class.

Two GPUs of one name are not alike, nor are two days. Between H200s, cycles of one training step
differ by up to 3 %, in either direction depending on the kernels, while processes on one of them
agree to 0.1 % (docs/verdict.md). So a process is compared with the baseline's processes on its own
GPU where there are any. Where there are none, it is compared with what the baseline's GPUs predict
for one whose canary reads as this one's does; what that leaves open is part of the noise, and the
tolerance is wider where it has to be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, median_low
from typing import TypeVar

from pytest_gpuperf.judge.tolerance import Tolerance

_T = TypeVar("_T")

Rounds = Sequence[Sequence[float]]
"""Per process, the values of its rounds."""

PRIOR_WEIGHT = 20
"""Degrees of freedom that the class's scale counts for, beside those that were seen."""
GPUS_PRIOR_WEIGHT = 20
"""The same for the class's scale between GPUs, beside the U - 1 that were seen."""
ALIKE = 0.12
"""How much of the class's scale is left between GPUs on which the canary reads the same."""
SLOPES = (70.0, 5.0)
"""Standard deviations of how much a metric moves with each reading of a `Kind`, in class scales per
logarithm: where the scale is 1 %, as of cycles, by 0.7 % and 0.05 % of itself for 1 % of a reading.
These and ALIKE are the likeliest for cycles and times of 5 configurations on 17 H200s
(tests/data/h200-kinds; revision 16aa1d4, benchmarks.unmet)."""
FITTED_ON = "nvidia-h200"
"""The GPUs of which it is known that what the canary reads tells them apart."""
ALIKE_ELSEWHERE = 0.7
"""In place of ALIKE on all others. Kernels of the same steps take up to 2.6 % longer on one of four
H100s than on another whose DRAM reads the same to 0.1 %: a standard deviation between GPUs of 1.0 %
in steps whose convolutions are cuDNN's, of 0.3 % in others (tests/data/h100-unmet)."""
WEAK_PRIOR_WEIGHT = 2
"""PRIOR_WEIGHT for a metric whose spread is more than twice that of its class."""
WILD_SPREADS = 4
"""A metric so many times noisier than its class's median is not of its class's kind."""
OUTLIER_SPREADS = 5
"""A process further than this many class scales from its group's median is set aside."""
MOST_OUTLIERS = 2
"""No more processes than this are set aside, and never two that agree: counts of identical code can
have two modes, and then the second one is no outlier but the metric's nature."""

LEAST_GROUP = 3
"""Two processes that differ do not say which of them is odd."""
MAD_TO_SIGMA = 1.4826
"""The standard deviation of normal noise over its median absolute deviation."""


Kind = tuple[float, ...]
"""What tells GPUs of one name apart: the logarithms of those readings of the canary that
`machine.KIND_READINGS` names, one for each of SLOPES."""


@dataclass(frozen=True)
class ProcessPlace:
    """Where a process of the baseline ran."""

    gpu: str
    """A digest of the GPU's UUID."""
    day: str = ""
    """"" where that was not kept."""
    kind: Kind | None = None
    """The kind of its GPU, where that is known."""


def places_of(gpus: Sequence[str], days: Sequence[str]) -> tuple[ProcessPlace, ...]:
    """The places of processes by their GPUs and days; without the days where there are none."""
    return tuple(map(ProcessPlace, gpus, days or ("",) * len(gpus)))


@dataclass(frozen=True)
class BaselineGpus:
    """Where the baseline's processes ran, in order, and the GPUs of the new ones."""

    places: tuple[ProcessPlace, ...]
    measured: frozenset[str]
    kind: Kind | None = None
    """Of the GPU that the new ones ran on."""
    alike: float = ALIKE
    """How much of the class's scale is left between GPUs of one kind."""

    @property
    def known(self) -> bool:
        """Whether every new process ran on a GPU that the baseline has processes of."""
        return self.measured <= {place.gpu for place in self.places}

    def groups(self, values: Sequence[_T]) -> list[list[_T]]:
        """What there is one of for each of the baseline's processes, by GPU."""
        by_gpu: dict[str, list[_T]] = {}
        for place, value in zip(self.places, values, strict=True):
            by_gpu.setdefault(place.gpu, []).append(value)
        return list(by_gpu.values())

    def without(self, positions: frozenset[int]) -> BaselineGpus:
        """Without the baseline's processes at these positions."""
        kept = (place for n, place in enumerate(self.places) if n not in positions)
        return replace(self, places=tuple(kept))

    def predicted(self, values: Sequence[float], scale: float) -> Prediction:
        """What these values of the baseline's processes say of the GPU that the new ones ran on.

        Of what their mean over GPUs says and what the kinds of these say, the surer.
        """
        means = [fmean(group) for group in self.groups(values)]
        of_all = _mean_of_all(means, scale)
        kinds = [_mean_kind(group) for group in self.groups([one.kind for one in self.places])]
        told = {gpu: kind for gpu, kind in enumerate(kinds) if kind is not None}
        if self.kind is None or not told:
            return of_all
        known = [means[gpu] for gpu in told]
        by_kind = prediction(known, [*told.values()], self.kind, scale, self.alike)
        shares = dict(zip(told, by_kind.shares, strict=True))
        by_kind = replace(by_kind, shares=tuple(shares.get(n, 0.0) for n in range(len(means))))
        return min(of_all, by_kind, key=lambda one: one.error)


def _mean_kind(kinds: Sequence[Kind | None]) -> Kind | None:
    """The mean over processes on one GPU."""
    known = [kind for kind in kinds if kind]
    return tuple(map(fmean, zip(*known, strict=True))) if known else None


@dataclass(frozen=True)
class Prediction:
    """What a metric is expected to be on a GPU that the baseline has no process of."""

    value: float
    error: float
    """The standard error of one GPU's difference from it."""
    shares: tuple[float, ...]
    """How much of `value` is of each of the baseline's GPUs; they add up to 1."""
    degrees_of_freedom: int
    by_kind: bool = False
    """Whether it is of GPUs of its kind above all."""


@dataclass(frozen=True)
class Scale:
    """The spread of one metric between processes, on the scale that it is judged on."""

    spread: float
    """s: a standard deviation; a share of the value, or points of a percentage."""
    degrees_of_freedom: int
    set_aside: frozenset[int] = frozenset()
    """Positions of processes that are outliers: kept on file, left out of the comparison."""


def on_judged_scale(values: Sequence[float], unit: float | None) -> list[float]:
    """Values so that differences are what is judged, by their `judged_unit`."""
    return [value / unit if unit else math.log(value) for value in values]


def judged_unit(
    values: Sequence[float], tolerance: Tolerance, beside: Sequence[float] = ()
) -> float | None:
    """What a difference of 1 on the judged scale is in the values' own unit; None of logarithms.

    1 of points. One value that is zero or negative, also of those `beside`, forbids logarithms for
    all: then it is the mean of the values, as shares of it differ like logarithms.
    """
    if tolerance.points:
        return 1.0
    positive = min((*values, *beside), default=1.0) > 0
    return None if positive else abs(fmean(values)) or 1.0


def scales(
    values: Mapping[str, Sequence[float]],
    tolerances: Mapping[str, Tolerance],
    gpus: BaselineGpus | None,
) -> dict[str, Scale]:
    """The scale of each of these metrics, which are of one noise class and share its spread.

    `values` are on the judged scale, one per process, or differences of two each.
    S0 = max(s0, median over the class of the MAD estimate): up to 2 processes beyond 5 S0 are set
    aside. S = max(s0, root mean square of the spreads s_b of the class's other metrics), without
    those that are more than 4 times noisier than is typical of the class. Then
    s^2 = max((w S^2 + SS) / (w + n), s_b^2) with n + w degrees of freedom, where SS and s_b are
    sum of squares and spread about the mean of each GPU's processes, n = processes - GPUs, and w
    is 20, or 2 when s_b > 2 S.
    """
    groups = {}
    for name, series in values.items():
        positions = [*range(len(series))]
        by_gpu = gpus is not None and tolerances[name].between_gpus
        groups[name] = gpus.groups(positions) if gpus and by_gpu else [positions]
    robust = median(_deviation(values[name], groups[name]) for name in values)
    aside = {
        name: _outliers(values[name], groups[name], max(tolerances[name].scale, robust))
        for name in values
    }
    kept = {
        name: [[values[name][p] for p in group if p not in aside[name]] for group in groups[name]]
        for name in values
    }
    seen = {name: sum(len(group) - 1 for group in groups) for name, groups in kept.items()}
    squares = {name: _squares(groups) for name, groups in kept.items()}
    own = {name: squares[name] / (seen[name] or 1) for name in values}
    # The lower of two in the middle: one of a pair must not vouch for itself.
    typical = median_low([own[name] for name in values if seen[name]] or [0.0])
    by_metric = {}
    for name in values:
        least = tolerances[name].scale ** 2
        # A count with two modes says nothing about the others of its class.
        limit = WILD_SPREADS**2 * max(least, typical)
        others = [own[o] for o in values if o != name and seen[o] and own[o] <= limit]
        shared = max(least, fmean(others) if others else 0.0)
        variance, degrees = pooled(shared, squares[name], seen[name])
        by_metric[name] = Scale(math.sqrt(variance), degrees, aside[name])
    return by_metric


def pooled(shared: float, squares: float, seen: int) -> tuple[float, int]:
    """A variance with its degrees of freedom: what is known of the class, and what was seen.

    max((w S^2 + SS) / (w + n), SS / n), with w = 20, or 2 where SS / n is more than 4 S^2.
    """
    own = squares / (seen or 1)
    weight = WEAK_PRIOR_WEIGHT if own > 4 * shared else PRIOR_WEIGHT
    return max((weight * shared + squares) / (weight + seen), own), weight + seen


def _mean_of_all(means: Sequence[float], scale: float) -> Prediction:
    """What GPUs of one name say of one more, where nothing is known of its kind.

    Its error is s_u sqrt(1 + 1/U), with s_u pooling the class's `scale` (weight 20) and the spread
    of the U `means`.
    """
    count, degrees = len(means), GPUS_PRIOR_WEIGHT + len(means) - 1
    variance = (GPUS_PRIOR_WEIGHT * scale**2 + _squares([means])) / degrees
    shares = (1 / count,) * count
    return Prediction(fmean(means), math.sqrt(variance * (1 + 1 / count)), shares, degrees)


def alike_on(slug: str) -> float:
    """How much of the class's scale is left between GPUs of this name whose canaries read alike."""
    return ALIKE if slug == FITTED_ON else ALIKE_ELSEWHERE


def prediction(
    means: Sequence[float],
    kinds: Sequence[Sequence[float]],
    kind: Kind,
    scale: float,
    alike: float,
) -> Prediction:
    """What GPUs of these `kinds`, with these `means`, say of one of this `kind`.

    A Bayesian regression: mean = m + b (kind - centre) + e, with any m, b_j normal around 0 of
    standard deviation SLOPES[j] scale, and e of s = `alike` scale. With M the penalised least
    squares and h the leverage of `kind`, the error is s_u sqrt(1 + h), where s_u pools s (weight
    20) and what was seen: s_u^2 = (20 s^2 + Q) / (20 + U - 1), with Q = the residuals' squares +
    s^2 b'b.
    """
    import numpy as np

    own = alike * scale
    centre = np.mean(kinds, axis=0)
    slopes = np.array(SLOPES) * scale
    known = np.column_stack([np.ones(len(means)), (np.array(kinds) - centre) * slopes])
    new = np.concatenate([[1.0], (np.array(kind) - centre) * slopes])
    penalty = own**2 * np.diag([0.0] + [1.0] * len(slopes))
    weights = np.linalg.solve(known.T @ known + penalty, known.T)
    # Of differences from the first: the sum of the shares is 1, and nothing is lost in large logs.
    differences = np.array(means) - means[0]
    coefficients = weights @ differences
    residuals = differences - known @ coefficients
    seen = residuals @ residuals + own**2 * (coefficients[1:] @ coefficients[1:])
    degrees = GPUS_PRIOR_WEIGHT + len(means) - 1
    variance = (GPUS_PRIOR_WEIGHT * own**2 + seen) / degrees
    leverage = new @ np.linalg.solve(known.T @ known + penalty, new)
    return Prediction(
        float(means[0] + new @ coefficients),
        math.sqrt(variance * (1 + leverage)),
        tuple(float(share) for share in new @ weights),
        degrees,
        by_kind=True,
    )


def _deviation(values: Sequence[float], groups: Sequence[Sequence[int]]) -> float:
    """A standard deviation within the groups that one or two outliers do not move."""
    distances = [
        abs(values[position] - middle)
        for group in groups
        if len(group) >= LEAST_GROUP
        for middle in [median(values[p] for p in group)]
        for position in group
    ]
    return MAD_TO_SIGMA * median(distances) if distances else 0.0


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
        if alone and len(far) <= min(MOST_OUTLIERS, len(group) - LEAST_GROUP):
            outliers += far
    return frozenset(p for _, p in outliers) if len(outliers) <= MOST_OUTLIERS else frozenset()


def _squares(groups: Sequence[Sequence[float]]) -> float:
    return math.fsum(
        (value - mean) ** 2 for group in groups for mean in [fmean(group)] for value in group
    )
