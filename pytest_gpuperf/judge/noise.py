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

from pytest_gpuperf.judge.tolerance import Tolerance

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

_LEAST_GROUP = 3
"""Two processes that differ do not say which of them is odd."""
_MAD_TO_SIGMA = 1.4826
"""The standard deviation of normal noise over its median absolute deviation."""


Kind = tuple[float, ...]
"""What tells GPUs of one name apart: the logarithms of those readings of the canary that
`machine.KIND_READINGS` names, one for each of SLOPES."""


@dataclass(frozen=True)
class BaselineGpus:
    """The GPUs (digests of their UUIDs) of the baseline's processes, in order, and of the new."""

    baseline: tuple[str, ...]
    measured: frozenset[str]
    days: tuple[str, ...] = ()
    """The day of each of the baseline's processes, in the same order; empty when not kept."""
    kinds: tuple[Kind | None, ...] = ()
    """Of the GPU of each of the baseline's processes, in the same order; empty when not known."""
    kind: Kind | None = None
    """Of the GPU that the new ones ran on."""
    alike: float = ALIKE
    """How much of the class's scale is left between GPUs of one kind."""

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
        return replace(
            self,
            baseline=tuple(self.baseline[p] for p in kept),
            days=tuple(self.days[p] for p in kept) if self.days else (),
            kinds=tuple(self.kinds[p] for p in kept) if self.kinds else (),
        )

    def predicted(self, values: Sequence[float], scale: float) -> Prediction:
        """What these values of the baseline's processes say of the GPU that the new ones ran on.

        Of what their mean over GPUs says and what the kinds of these say, the surer.
        """
        groups = self.positions()
        means = [fmean(values[p] for p in group) for group in groups]
        predictions = [_mean_of_all(means, scale)]
        kinds = [self._kind_of(group) for group in groups]
        told = {gpu: kind for gpu, kind in enumerate(kinds) if kind is not None}
        if self.kind is not None and told:
            known = [means[gpu] for gpu in told]
            one = prediction(known, [*told.values()], self.kind, scale, self.alike)
            shares = dict(zip(told, one.shares, strict=True))
            of_all = tuple(shares.get(gpu, 0.0) for gpu in range(len(means)))
            predictions.append(replace(one, shares=of_all))
        return min(predictions, key=lambda one: one.error)

    def _kind_of(self, processes: Sequence[int]) -> Kind | None:
        """The mean over these of the baseline's processes, which ran on one GPU."""
        known = [kind for p in processes if self.kinds and (kind := self.kinds[p])]
        return tuple(fmean(readings) for readings in zip(*known, strict=True)) if known else None


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


def on_judged_scale(values: Sequence[float], tolerance: Tolerance) -> list[float]:
    """Processes' values so that differences are what is judged: logarithms, shares or points."""
    unit = judged_unit(values, tolerance)
    return [value / unit if unit else math.log(value) for value in values]


def judged_unit(values: Sequence[float], tolerance: Tolerance) -> float | None:
    """What a difference of 1 on that scale is in the values' own unit; None of logarithms."""
    if tolerance.points:
        return 1.0
    if min(values) > 0:
        return None
    # No logarithm of a zero or a negative value: shares of the mean, which differ like logarithms.
    return abs(fmean(values)) or 1.0


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
    return scales_of(values, tolerances, gpus)


def scales_of(
    values: Mapping[str, Sequence[float]],
    tolerances: Mapping[str, Tolerance],
    gpus: BaselineGpus | None,
) -> dict[str, Scale]:
    """The same of values on the judged scale, one per process; or of differences of two each."""
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


def _mean_of_all(means: Sequence[float], scale: float) -> Prediction:
    """What GPUs of one name say of one more, where nothing is known of its kind."""
    count = len(means)
    error = error_between(means, scale)
    shares = (1 / count,) * count
    return Prediction(fmean(means), error, shares, GPUS_PRIOR_WEIGHT + count - 1)


def alike_on(slug: str) -> float:
    """How much of the class's scale is left between GPUs of this name whose canaries read alike."""
    return ALIKE if slug == FITTED_ON else ALIKE_ELSEWHERE


def prediction(
    means: Sequence[float],
    kinds: Sequence[Sequence[float]],
    kind: Kind,
    scale: float,
    alike: float = ALIKE,
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
    pooled = (GPUS_PRIOR_WEIGHT * own**2 + seen) / (GPUS_PRIOR_WEIGHT + len(means) - 1)
    leverage = new @ np.linalg.solve(known.T @ known + penalty, new)
    return Prediction(
        float(means[0] + new @ coefficients),
        math.sqrt(pooled * (1 + leverage)),
        tuple(float(share) for share in new @ weights),
        GPUS_PRIOR_WEIGHT + len(means) - 1,
        by_kind=True,
    )


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
