"""How far the new processes are from the baseline's, and how sure that is.

The unit of replication is the process: rounds within one are not independent, so each process
counts once, with its median. Pooling rounds is what makes other tools alarm on identical code
(docs/statistics.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from pytest_gpuperf.judge.tolerance import Tolerance
from pytest_gpuperf.judge.units import PRIOR_WEIGHT as UNITS_PRIOR_WEIGHT
from pytest_gpuperf.judge.units import Units, error_between

Rounds = Sequence[Sequence[float]]
"""Per process, the values of its rounds."""

PRIOR_WEIGHT = 20
"""Degrees of freedom that the class's scale counts for, beside the K - 1 that were seen."""

UNCHANGED_RATE = 0.0025
"""One-sided error of the interval that shows "unchanged"."""

_MEDIAN_COST = {1: 1.0, 2: 1.0, 3: 1.16, 5: 1.20, 9: 1.22}
"""Standard error of a median of k over that of a mean of k, for normal noise."""
_LARGEST_LOGARITHM = 700.0
"""Beyond it a ratio is no finite number; such an interval is wide enough anyway."""
_MEDIAN_COST_LIMIT = math.sqrt(math.pi / 2)


@dataclass(frozen=True)
class Difference:
    """New against baseline, on the scale that the metric is judged on."""

    baseline: float
    """The centre of the baseline's processes, in the metric's unit."""
    measured: float
    change: float
    """Log ratio of a relative metric; points of a percentage; a plain ratio where one is zero."""
    standard_error: float
    degrees_of_freedom: int
    relative: bool
    """The change is a share of the baseline; otherwise it is points of a percentage."""
    logarithmic: bool
    """The change is the logarithm of a ratio: always, unless a zero or a negative value forbids."""

    widening: float = 0.0
    """By how much the tolerance widens, since the baseline has no process on this GPU."""

    def shown(self, change: float) -> float:
        """A change on the judged scale as people read it: 0.01 is 1 % (or 1 point)."""
        return math.expm1(min(change, _LARGEST_LOGARITHM)) if self.logarithmic else change

    def judged(self, shown: float) -> float:
        """The inverse of `shown`: a limit as people write it, on the judged scale."""
        return math.log1p(shown) if self.logarithmic else shown

    def floor(self, tolerance: Tolerance) -> float:
        """The tolerance of this comparison, on the judged scale."""
        return self.judged(tolerance.floor) + self.widening

    def equivalence(self, tolerance: Tolerance) -> float:
        """The bound within which "unchanged" has to be shown, on the judged scale."""
        return self.judged(tolerance.equivalence) + 2 * self.widening

    @property
    def from_zero(self) -> bool:
        """The baseline is zero where relative changes are asked for: there is no ratio to give."""
        return self.relative and self.baseline == 0


def quantile(rate: float, degrees_of_freedom: int) -> float:
    """Student's t that is exceeded at `rate`, one-sided."""
    from scipy import stats

    return float(stats.t.isf(rate, degrees_of_freedom))


def centre(rounds: Rounds) -> float:
    """The median over processes of each process's median over its rounds."""
    return median(median(process) for process in rounds)


def difference(
    measured: Rounds, baseline: Rounds, tolerance: Tolerance, units: Units | None = None
) -> Difference:
    """Compares the medians of `measured`'s processes with those of `baseline`'s.

    d = median(new) - mean(baseline); se = s sqrt(1/K + c_k^2/k), where s pools the class's scale
    (weight 20) with the spread between the baseline's processes on one GPU, and is never below the
    latter. `units` says which GPU each process ran on; without it, all on the same. On a GPU that
    the baseline lacks, the error between GPUs comes on top (`units.py`).

    Both sides hold at least one process with at least one value.
    """
    old = [median(process) for process in baseline]
    new = [median(process) for process in measured]
    logarithmic = not tolerance.points and min(*old, *new) > 0
    now = median(new)
    if logarithmic:
        size, scaled = 1.0, [math.log(value) for value in old]
        new_scaled = median([math.log(value) for value in new])
    else:
        # A relative metric with a zero somewhere: no logarithm, so shares of the plain mean.
        size = 1.0 if tolerance.points or fmean(old) == 0 else abs(fmean(old))
        scaled, new_scaled = [value / size for value in old], now / size

    if not tolerance.between_units:
        units = None
    groups = [scaled] if units is None else units.groups(scaled)
    spread = _pooled_spread(groups, tolerance.scale)
    cost = _MEDIAN_COST.get(len(new), _MEDIAN_COST_LIMIT)
    variance = spread**2 * cost**2 / len(new)
    if units is None or units.known:
        if units is not None:
            scaled = [v for group in units.groups(scaled, comparable=True) for v in group]
        centre_scaled = fmean(scaled)
        variance += spread**2 / len(scaled)
        degrees = PRIOR_WEIGHT + sum(len(group) - 1 for group in groups)
        widening = 0.0
    else:
        means = [fmean(group) for group in groups]
        centre_scaled = fmean(means)
        between = error_between(means, tolerance.between_units)
        variance += between**2 + spread**2 * fmean(1 / len(g) for g in groups) / len(groups)
        degrees = UNITS_PRIOR_WEIGHT + len(groups) - 1
        # A GPU that is no worse than others of its name has to be found unchanged, not undecided.
        widening = quantile(UNCHANGED_RATE, degrees) * between
    return Difference(
        baseline=math.exp(centre_scaled) if logarithmic else centre_scaled * size,
        measured=now,
        change=new_scaled - centre_scaled,
        standard_error=math.sqrt(variance),
        degrees_of_freedom=degrees,
        relative=not tolerance.points,
        logarithmic=logarithmic,
        widening=widening,
    )


def _pooled_spread(groups: Sequence[Sequence[float]], scale: float) -> float:
    """s: the class's scale with its prior weight, pooled with the spread seen within the groups."""
    squares = math.fsum((v - fmean(group)) ** 2 for group in groups for v in group)
    seen = sum(len(group) - 1 for group in groups)
    own = math.sqrt(squares / seen) if seen else 0.0
    pooled = math.sqrt((PRIOR_WEIGHT * scale**2 + squares) / (PRIOR_WEIGHT + seen))
    return max(pooled, own)
