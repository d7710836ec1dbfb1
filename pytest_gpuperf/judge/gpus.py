"""The GPU and the day of each process: two GPUs of one name are not alike, nor are two days.

Between H200s, cycles of one training step differ by up to 3 %, in either direction depending on
the kernels, while processes on one of them agree to 0.1 % (docs/verdict.md). So a process is
compared with the baseline's processes on its own GPU where there are any. Where there are none, the
difference between GPUs is part of the noise, and the tolerance is wider by that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

PRIOR_WEIGHT = 20
"""Degrees of freedom that the class's scale between GPUs counts for, beside the U - 1 seen."""


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
        kept = [p for p in range(len(self.baseline)) if p not in positions]
        days = tuple(self.days[p] for p in kept) if self.days else ()
        return BaselineGpus(tuple(self.baseline[p] for p in kept), self.measured, days)


def error_between(means: Sequence[float], scale: float) -> float:
    """The standard error of one more GPU's difference from the mean over GPUs.

    s_u sqrt(1 + 1/U), with s_u pooling the class's `scale` (weight 20) and the spread of the U
    `means`.
    """
    centre = fmean(means)
    squares = math.fsum((mean - centre) ** 2 for mean in means)
    pooled = (PRIOR_WEIGHT * scale**2 + squares) / (PRIOR_WEIGHT + len(means) - 1)
    return math.sqrt(pooled * (1 + 1 / len(means)))
