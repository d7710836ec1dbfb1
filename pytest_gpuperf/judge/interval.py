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

Rounds = Sequence[Sequence[float]]
"""Per process, the values of its rounds."""

PRIOR_WEIGHT = 20
"""Degrees of freedom that the class's scale counts for, beside the K - 1 that were seen."""

_MEDIAN_COST = {1: 1.0, 2: 1.0, 3: 1.16, 5: 1.20, 9: 1.22}
"""Standard error of a median of k over that of a mean of k, for normal noise."""
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

    def shown(self, change: float) -> float:
        """A change on the judged scale as people read it: 0.01 is 1 % (or 1 point)."""
        return math.expm1(change) if self.logarithmic else change

    def judged(self, shown: float) -> float:
        """The inverse of `shown`: a limit as people write it, on the judged scale."""
        return math.log1p(shown) if self.logarithmic else shown

    @property
    def from_zero(self) -> bool:
        """The baseline is zero where relative changes are asked for: there is no ratio to give."""
        return self.relative and self.baseline == 0


def centre(rounds: Rounds) -> float:
    """The median over processes of each process's median over its rounds."""
    return median(median(process) for process in rounds)


def difference(measured: Rounds, baseline: Rounds, tolerance: Tolerance) -> Difference:
    """Compares the medians of `measured`'s processes with those of `baseline`'s.

    d = median(new) - mean(baseline); se = s sqrt(1/K + c_k^2/k), where s pools the class's scale
    (weight 20) with the spread between the baseline's processes, and is never below the latter.
    Both sides hold at least one process with at least one value.
    """
    old = [median(process) for process in baseline]
    new = [median(process) for process in measured]
    logarithmic = not tolerance.points and min(*old, *new) > 0
    mean, now = fmean(old), median(new)
    if logarithmic:
        scaled = [math.log(value) for value in old]
        change = median([math.log(value) for value in new]) - fmean(scaled)
        mean = math.exp(fmean(scaled))
    elif tolerance.points or mean == 0:
        scaled = old
        change = now - mean
    else:
        # A relative metric with a zero somewhere: no logarithm, so the plain relative change.
        scaled = [value / abs(mean) for value in old]
        change = (now - mean) / abs(mean)
    spread = _pooled_spread(scaled, tolerance.scale)
    cost = _MEDIAN_COST.get(len(new), _MEDIAN_COST_LIMIT)
    return Difference(
        baseline=mean,
        measured=now,
        change=change,
        standard_error=spread * math.sqrt(1 / len(old) + cost**2 / len(new)),
        degrees_of_freedom=PRIOR_WEIGHT + len(old) - 1,
        relative=not tolerance.points,
        logarithmic=logarithmic,
    )


def _pooled_spread(values: Sequence[float], scale: float) -> float:
    """s: the class's scale with its prior weight, pooled with the spread that was seen."""
    mean = fmean(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    seen = len(values) - 1
    own = math.sqrt(squares / seen) if seen else 0.0
    pooled = math.sqrt((PRIOR_WEIGHT * scale**2 + squares) / (PRIOR_WEIGHT + seen))
    return max(pooled, own)
