"""The noise of a metric: what makes processes of identical code differ, level by level.

A process differs from another by itself; a night may be noisier than the baseline's were; days
differ, and so do GPUs of one name. Each level has a variance (`Variance`): what is assumed of it
counts for some degrees of freedom, and what was seen is pooled with that. What a comparison may be
wrong by is the sum of its levels (`total`), and the interval follows from that sum alone.

Between H200s, cycles of one training step differ by up to 3 %, in either direction depending on the
kernels, while processes on one of them agree to 0.1 % (docs/evidence.md). So a process is compared
with the baseline's processes on its own GPU where there are any. Where there are none, it is
compared with what the baseline's GPUs predict for one whose canary reads as this one's does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from statistics import fmean, median_low
from typing import TypeVar

from pytest_gpuperf.judge.tolerance import Tolerance
from pytest_gpuperf.model.measurement import grouped

_T = TypeVar("_T")

Rounds = Sequence[Sequence[float]]
"""The values of the rounds, per process."""

PRIOR_WEIGHT = 20
"""Degrees of freedom that the class's scale counts for, beside those that were seen: between
processes, and between GPUs."""
ALIKE_WEIGHT = 10
"""Degrees of freedom of ALIKE. Steps differ: left out in turn, 19 H200s are 0.11 to 0.18 % off
the prediction by the others, by configuration."""
ALIKE = 0.12
"""The share of the class's scale that is left between GPUs with equal canary readings."""
SLOPES = (70.0, 5.0)
"""Standard deviations of how much a metric moves with each reading of a `Kind`, in class scales per
logarithm: where the scale is 1 %, as of cycles, by 0.7 % and 0.05 % of itself for 1 % of a reading.
These and ALIKE are the likeliest for cycles and times of 5 configurations on 17 H200s
(tests/data/h200-kinds; revision 16aa1d4, benchmarks.unmet)."""
FITTED_ON = "nvidia-h200"
"""The GPUs that are known to differ as the canary's readings do."""
ALIKE_ELSEWHERE = 0.7
"""In place of ALIKE on all others. Kernels of the same steps take up to 2.6 % longer on one of four
H100s than on another whose DRAM reads the same to 0.1 %: a standard deviation between GPUs of 1.0 %
in steps whose convolutions are cuDNN's, of 0.3 % in others (tests/data/h100-unmet)."""
NIGHT_WEIGHT = 8
"""Degrees of freedom that the baseline's spread counts for tonight, beside what is seen tonight:
nights are not alike. An assumption: no campaign has measured how far nights differ in noise."""
DAYS_WEIGHT = 20
"""Degrees of freedom of the spread assumed between days. An assumption, as that spread is."""
CLEARLY = 2
"""The multiple of the assumed spread from which a spread stands by itself."""
LEAST_WEIGHT = 2
"""The least degrees of freedom of an assumed value, however noisy the values are."""
WILD_SPREADS = 4
"""The multiple of its class's median spread from which a metric is not typical of the class."""
OUTLIER_RATE = 1e-4
"""The rate at which chance takes a process so far from others that the process is set aside."""
MOST_OUTLIERS = 2
"""No more processes than this are set aside, and never two that agree: counts of identical code can
have two modes, and then the second one is no outlier but the metric's nature."""
_LARGEST = 1e100
"""The largest change: a larger square, as of a change from next to zero, is not finite."""
LEAST_GROUP = 4
"""The least number of processes that remain: of five noisy ones three agree by chance often."""


@dataclass(frozen=True)
class Variance:
    """The square of a standard deviation, and the degrees of freedom with which it is known."""

    square: float
    degrees: float

    @property
    def root(self) -> float:
        """The standard deviation."""
        return math.sqrt(self.square)

    def times(self, factor: float) -> Variance:
        """The variance times `factor`: 1 / n for a mean of n values."""
        return replace(self, square=self.square * factor)

    def seen(self, squares: float, degrees: int) -> Variance:
        """The assumed variance, pooled with a seen sum of squares: (w S^2 + SS) / (w + n).

        No less than was seen, SS / n. Where that is more than twice the spread that was assumed, it
        stands by itself, with n + 1 degrees of freedom.
        """
        own = squares / (degrees or 1)
        if own > CLEARLY**2 * self.square:
            return Variance(own, degrees + 1)
        together = self.degrees + degrees
        return Variance(max((self.degrees * self.square + squares) / together, own), together)

    def reach(self, rate: float) -> float:
        """The distance from zero that chance exceeds, in one direction, in this share of cases."""
        return quantile(rate, self.degrees) * self.root


NOTHING = Variance(0.0, 1)
"""The variance of a value that is not in doubt."""


def total(terms: Iterable[Variance]) -> Variance:
    """The variance of a sum of independent terms, degrees of freedom by Welch and Satterthwaite."""
    known = [term for term in terms if term.square]
    square = math.fsum(term.square for term in known)
    doubt = math.fsum((term.square / square) ** 2 / term.degrees for term in known)
    return Variance(square, 1 / doubt) if doubt else NOTHING


@lru_cache(maxsize=65536)
def quantile(rate: float, degrees_of_freedom: float) -> float:
    """Student's t that is exceeded at `rate`, one-sided."""
    # Not scipy.stats, whose import takes most of a second.
    from scipy import special

    return float(-special.stdtrit(degrees_of_freedom, rate))


Kind = tuple[float, ...]
"""The kind of a GPU among those of one name: the logarithms of the readings of the canary that
`machine.KIND_READINGS` names, one for each of SLOPES."""


@dataclass(frozen=True)
class BaselineGpus:
    """The GPUs and days of the baseline's processes, in order, and those of the new processes."""

    gpus: tuple[str, ...]
    """The GPU of each of the baseline's processes: a digest of its UUID."""
    days: tuple[str, ...]
    """The day of each of the baseline's processes; empty where none was kept."""
    new: tuple[str, ...]
    """The GPU of each new process."""
    day: str = ""
    """The day of the new processes, if they share one; "" if the day is not known."""
    kinds: tuple[Kind | None, ...] = ()
    """The kind of the GPU of each of the baseline's processes; empty where none is known."""
    kind: Kind | None = None
    """The kind of the GPU that the new processes ran on."""
    alike: float = ALIKE
    """The share of the class's scale that is left between GPUs of one kind."""

    @property
    def known(self) -> bool:
        """Whether every new process ran on a GPU that the baseline has processes of."""
        return {*self.new} <= {*self.gpus}

    def groups(self, values: Sequence[_T]) -> list[list[_T]]:
        """The values, one for each of the baseline's processes, grouped by GPU."""
        pairs = grouped(zip(self.gpus, values, strict=True), itemgetter(0))
        return [[value for _, value in of_gpu] for of_gpu in pairs.values()]

    def without(self, positions: frozenset[int]) -> BaselineGpus:
        """The same without the baseline's processes at these positions."""
        kept = [n for n in range(len(self.gpus)) if n not in positions]
        gpus, days = (tuple(one[n] for n in kept if one) for one in (self.gpus, self.days))
        kinds = tuple(self.kinds[n] for n in kept if self.kinds)
        return replace(self, gpus=gpus, days=days, kinds=kinds)

    def predicted(self, values: Sequence[float], scale: float) -> Prediction:
        """The prediction, from the baseline's values, for the GPU that the new processes ran on.

        The surer of two: by the values' mean over GPUs, and by their kinds where all are known.
        """
        means = [fmean(group) for group in self.groups(values)]
        of_all = _mean_of_all(means, scale)
        kinds = map(_mean_kind, self.groups(self.kinds) if self.kinds else ())
        known = [kind for kind in kinds if kind is not None]
        if self.kind is None or len(known) < len(means):
            return of_all
        by_kind = prediction(means, known, self.kind, scale, self.alike)
        return min(of_all, by_kind, key=lambda one: one.error.square)


def _mean_kind(kinds: Sequence[Kind | None]) -> Kind | None:
    """The mean kind over processes on one GPU."""
    known = [kind for kind in kinds if kind]
    return tuple(map(fmean, zip(*known, strict=True))) if known else None


@dataclass(frozen=True)
class Prediction:
    """The value expected of a metric on a GPU that the baseline has no process of."""

    value: float
    error: Variance
    """The variance of one GPU's difference from `value`."""
    shares: tuple[float, ...]
    """The share of each of the baseline's GPUs in `value`; the shares add up to 1."""


@dataclass(frozen=True)
class Scale:
    """The spread of one metric between processes, on the scale that it is judged on."""

    variance: Variance
    """s^2: of a share of the value, or of points of a percentage."""
    set_aside: frozenset[int] = frozenset()
    """The positions of the processes that are left out, as their values are outliers."""


def on_judged_scale(values: Sequence[float], unit: float | None) -> list[float]:
    """Values so that differences are what is judged, by their `judged_unit`."""
    return [value / unit if unit else math.log(value) for value in values]


def judged_unit(
    values: Sequence[float], tolerance: Tolerance, beside: Sequence[float] = ()
) -> float | None:
    """The size of a difference of 1 on the judged scale in the values' own unit; None: logarithms.

    1 for points. A value that is zero or negative, also of those `beside`, forbids logarithms for
    all: then the size is the mean of the values, as shares of it differ like logarithms.
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

    `values` are on the judged scale, one per process, or differences of two each. An outlier
    in most of the metrics is set aside, as a process is slow as a whole; none of counts is. What is
    left is pooled by `spreads`, with s0 as what is assumed, for 20 degrees of freedom.
    """
    groups = {}
    for name, series in values.items():
        positions = [*range(len(series))]
        by_gpu = gpus is not None and tolerances[name].between_gpus
        groups[name] = gpus.groups(positions) if gpus and by_gpu else [positions]
    assumed = {n: Variance(tolerances[n].scale ** 2, PRIOR_WEIGHT) for n in values}
    aside = {
        # A count that differs once is no accident but a second mode.
        n: frozenset() if tolerances[n].counted else outliers(values[n], groups[n], assumed[n])
        for n in values
    }
    votes = Counter(position for odd in aside.values() for position in odd)
    together = frozenset(p for p, count in votes.items() if 2 * count > len(values))
    aside = {name: odd & together for name, odd in aside.items()}
    kept = {
        name: [[values[name][p] for p in group if p not in aside[name]] for group in groups[name]]
        for name in values
    }
    found = spreads(kept, assumed)
    return {name: Scale(found[name], aside[name]) for name in values}


def tonight(values: Sequence[float], spread: Variance, gpus: BaselineGpus | None) -> Variance:
    """The spread between the new processes: the baseline's, pooled with what is seen of theirs."""
    positions = [*range(len(values))]
    values = [min(max(value, -_LARGEST), _LARGEST) for value in values]
    groups = [positions]
    # A process may lack a metric that the others have.
    if gpus is not None and len(gpus.new) == len(values):
        groups = [*grouped(positions, gpus.new.__getitem__).values()]
    assumed = of_night(spread)
    odd = outliers(values, groups, assumed)
    kept = [[values[p] for p in group if p not in odd] for group in groups]
    return assumed.seen(squares_of(kept), sum(len(group) - 1 for group in kept if group))


def of_night(spread: Variance) -> Variance:
    """The baseline's spread, as applied to a night of which nothing was seen yet."""
    return replace(spread, degrees=min(NIGHT_WEIGHT, spread.degrees))


def spreads(
    values: Mapping[str, Sequence[Sequence[float]]], assumed: Mapping[str, Variance]
) -> dict[str, Variance]:
    """The spread of each of these metrics of one class within its groups of processes.

    With SS_i a metric's squares about its groups' means and n_i = processes - groups: S^2 = the
    larger of what is `assumed`, s0^2 for w degrees of freedom, and the mean SS_j / n_j of the
    others, without those more than 4 times noisier than is typical. The same processes say it of
    all, so it counts for w s0^2 / S^2 degrees, 2 at least. `Variance.seen` pools that with SS_i.
    """
    seen = {name: sum(len(group) - 1 for group in groups) for name, groups in values.items()}
    squares = {name: squares_of(groups) for name, groups in values.items()}
    own = {name: squares[name] / (seen[name] or 1) for name in values}
    # The lower of two in the middle: one of a pair must not vouch for itself.
    typical = median_low([own[name] for name in values if seen[name]] or [0.0])
    by_metric = {}
    for name, prior in assumed.items():
        # A count with two modes says nothing about the others of its class.
        limit = WILD_SPREADS**2 * max(prior.square, typical)
        others = [own[o] for o in values if o != name and seen[o] and own[o] <= limit]
        shared = max(prior.square, fmean(others) if others else 0.0)
        weight = prior.degrees * prior.square / shared if shared else prior.degrees
        known = Variance(shared, max(weight, LEAST_WEIGHT))
        by_metric[name] = known.seen(squares[name], seen[name])
    return by_metric


def _mean_of_all(means: Sequence[float], scale: float) -> Prediction:
    """The prediction for one more GPU of the same name whose kind is not known.

    Its error is s_u sqrt(1 + 1/U), with s_u pooling the class's `scale` (weight 20) and the spread
    of the U `means`.
    """
    count, degrees = len(means), PRIOR_WEIGHT + len(means) - 1
    variance = (PRIOR_WEIGHT * scale**2 + squares_of([means])) / degrees
    error = Variance(variance * (1 + 1 / count), degrees)
    return Prediction(fmean(means), error, (1 / count,) * count)


def prediction(
    means: Sequence[float], kinds: Sequence[Kind], kind: Kind, scale: float, alike: float
) -> Prediction:
    """The prediction for a GPU of this `kind`, by GPUs of these `kinds` with these `means`.

    A Bayesian regression: mean = m + b (kind - centre) + e, with any m, b_j normal around 0 of
    standard deviation SLOPES[j] scale, and e of s = `alike` scale. With M the penalised least
    squares and h the leverage of `kind`, the error is s_u sqrt(1 + h), where s_u pools s (weight
    w) and what was seen: s_u^2 = (w s^2 + Q) / (w + U - 1), with Q = the residuals' squares +
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
    weight = ALIKE_WEIGHT if alike == ALIKE else PRIOR_WEIGHT
    degrees = weight + len(means) - 1
    variance = (weight * own**2 + seen) / degrees
    leverage = new @ np.linalg.solve(known.T @ known + penalty, new)
    return Prediction(
        float(means[0] + new @ coefficients),
        Variance(float(variance * (1 + leverage)), degrees),
        tuple(float(share) for share in new @ weights),
    )


def outliers(
    values: Sequence[float],
    groups: Sequence[Sequence[int]],
    assumed: Variance,
    least: int = LEAST_GROUP,
) -> frozenset[int]:
    """The processes that are further from the others of their group than chance explains.

    At `least` so many other processes remain in each group.
    """
    outliers: list[int] = []
    for group in groups:
        middle = sorted(values[p] for p in group)[len(group) // 2]
        far = sorted(group, key=lambda p: abs(values[p] - middle), reverse=True)
        for count in range(min(MOST_OUTLIERS, len(group) - least), 0, -1):
            odd, rest = far[:count], [values[p] for p in far[count:]]
            spread = assumed.seen(squares_of([rest]), len(rest) - 1).times(1 + 1 / len(rest))
            reach, mean = spread.reach(OUTLIER_RATE), fmean(rest)
            agree = count > 1 and abs(values[odd[0]] - values[odd[1]]) <= reach
            if not agree and all(abs(values[p] - mean) > reach for p in odd):
                outliers += odd
                break
    return frozenset(outliers) if len(outliers) <= MOST_OUTLIERS else frozenset()


def squares_of(groups: Sequence[Sequence[float]]) -> float:
    """The sum of the squared distances of values from the mean of their group."""
    return math.fsum(
        (value - mean) ** 2
        for group in groups
        if group
        for mean in [fmean(group)]
        for value in group
    )
