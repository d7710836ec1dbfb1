"""Which kernels' times differ by more than noise, when all kernels of a step are asked at once.

A kernel by itself is noisier than a step: 0.8 % between executions for one of a millisecond and
more, and several per cent for one of microseconds, whose start-up and place in the caches matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from pytest_gpuperf.judge.scale import PRIOR_WEIGHT, WEAK_PRIOR_WEIGHT

FALSE_DISCOVERIES = 0.05
"""The share of the kernels found to differ that may be wrong (Benjamini and Hochberg)."""
KERNEL_SPREAD = 8e-3
"""s0 of a kernel by itself: the spread of its time between executions that is assumed."""
SHORT_SPREAD = 6.0
"""What comes on top for short ones: a variance of so many nanoseconds over the kernel's total. Two
tables of one step on an H200 differ as 4 to 5 would have it, from 2 us to 100 us; but with heavier
tails than Student's."""
GAP_SPREAD = 0.05
"""The same for the time between kernels, which the host's work decides."""
_LEAST = 1.0
"""Nanoseconds below which a time has no logarithm worth taking."""


@dataclass(frozen=True)
class Distance:
    """How far a kernel's time has moved, in standard errors."""

    statistic: float
    """t = d / (s sqrt(1/m + 1/n)), d = mean ln(measured) - mean ln(baseline)."""
    degrees_of_freedom: int

    @property
    def p_value(self) -> float:
        """How likely a statistic at least as far from 0 is, on either side, without a change."""
        from scipy import stats

        return float(2 * stats.t.sf(abs(self.statistic), self.degrees_of_freedom))


def assumed(total: float) -> float:
    """The spread that is assumed of a kernel that takes `total` nanoseconds in a step.

    sqrt(s0^2 + 6 ns / total): 0.8 % from a millisecond on, 1.4 % at 50 us, 5.5 % at 2 us.
    """
    return math.sqrt(KERNEL_SPREAD**2 + SHORT_SPREAD / max(total, _LEAST))


def distance(measured: Sequence[float], baseline: Sequence[float], spread: float) -> Distance:
    """How far one kernel has moved; both sides hold its total nanoseconds, once per table.

    s^2 = max((w s0^2 + SS) / (w + n), SS / n) as for whole steps (`scale.py`): SS is the sum of
    squares within the sides, n = tables - 2, s0 the assumed `spread`, and w is 20, or 2 where the
    kernel is more than twice as noisy as that. With one table per side s is s0.
    """
    new = [math.log(max(value, _LEAST)) for value in measured]
    old = [math.log(max(value, _LEAST)) for value in baseline]
    squares = math.fsum((x - fmean(side)) ** 2 for side in (new, old) for x in side)
    seen = len(new) + len(old) - 2
    own = squares / seen if seen else 0.0
    weight = WEAK_PRIOR_WEIGHT if own > 4 * spread**2 else PRIOR_WEIGHT
    variance = max((weight * spread**2 + squares) / (weight + seen), own)
    error = math.sqrt(variance * (1 / len(new) + 1 / len(old)))
    return Distance((fmean(new) - fmean(old)) / error, weight + seen)


def found(p_values: Sequence[float]) -> list[bool]:
    """Which of these are significant together, at most 5 % of them falsely."""
    if not p_values:
        return []
    from scipy.stats import false_discovery_control

    return [bool(p <= FALSE_DISCOVERIES) for p in false_discovery_control(p_values)]
