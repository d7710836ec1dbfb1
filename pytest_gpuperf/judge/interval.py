"""The difference between new processes and the baseline's, with its interval.

The unit of replication is the process: rounds within one are not independent, so each process
counts once, with its median. Pooling rounds is what makes other tools alarm on identical code
(docs/verdict.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from statistics import fmean, median

from pytest_gpuperf.judge.noise import (
    BaselineGpus,
    Prediction,
    ProcessPlace,
    Rounds,
    Scale,
    judged_unit,
    on_judged_scale,
    scales,
)
from pytest_gpuperf.judge.tolerance import Tolerance

UNCHANGED_RATE = 0.0025
"""One-sided error of the interval that is printed, and that shows "unchanged"."""

_COSTS = {1: 1.0, 2: 1.0, 3: 1.16, 5: 1.20, 9: 1.22}
"""Standard error of a median of k over that of a mean of k, for normal noise."""
_COST_LIMIT = math.sqrt(math.pi / 2)
_LARGEST_LOGARITHM = 700.0
"""Beyond it a ratio is no finite number; such an interval is wide enough anyway."""


@dataclass(frozen=True)
class Difference:
    """New against baseline, on the scale that the metric is judged on."""

    tolerance: Tolerance
    baseline: float
    """The centre of the baseline's processes, in the metric's unit."""
    measured: float
    changes: tuple[float, ...]
    """Per new process: log ratio of a relative metric; points of a percentage; a plain share where
    something is zero or negative."""
    spread: float
    """s: between processes, one standard deviation."""
    reference_error: float
    """The standard error of the baseline's centre, differences between GPUs and days included."""
    degrees_of_freedom: int
    logarithmic: bool
    """The change is the logarithm of a ratio: always, unless a zero or a negative value forbids."""
    set_aside: tuple[float, ...] = ()
    """Changes, against the same centre, of the baseline's processes that were left out of it."""
    widening: float = 0.0
    """By how much the tolerance has to widen, since the baseline has no process on this GPU."""
    by_kind: bool = False
    """What the canary reads on this GPU said what to expect of it."""

    @property
    def processes(self) -> int:
        """k: how many new processes there are."""
        return len(self.changes)

    @cached_property
    def change(self) -> float:
        """d: the median of the processes' changes."""
        return median(self.changes)

    @property
    def standard_error(self) -> float:
        """The standard error of `change`."""
        return self.error_of(self.processes)

    def error_of(self, processes: int) -> float:
        """The standard error that `change` would have with so many new processes."""
        return math.hypot(self.reference_error, error_of_median(self.spread, processes))

    @property
    def margin(self) -> float:
        """Half of the interval of `change`: one-sided error 0.25 %, so 99.5 % lie inside."""
        return quantile(UNCHANGED_RATE, self.degrees_of_freedom) * self.standard_error

    @property
    def least_margin(self) -> float:
        """What would be left of it with any number of new processes: the baseline's own part."""
        return quantile(UNCHANGED_RATE, self.degrees_of_freedom) * self.reference_error

    def shown(self, change: float) -> float:
        """A change on the judged scale as people read it: 0.01 is 1 % (or 1 point)."""
        return shown(change, self.logarithmic)

    @property
    def floor(self) -> float:
        """delta0, the tolerance of this comparison, on the judged scale."""
        return _judged(self.tolerance.floor, self.logarithmic) + self.widening

    @property
    def equivalence(self) -> float:
        """delta1, within which "unchanged" has to be shown, on the judged scale."""
        return _judged(self.tolerance.equivalence, self.logarithmic) + 2 * self.widening

    @property
    def from_zero(self) -> bool:
        """The baseline is zero where relative changes are asked for: there is no ratio to give."""
        return not self.tolerance.points and self.baseline == 0


def shown(change: float, logarithmic: bool) -> float:
    """A change on the judged scale as people read it, and never infinite."""
    return math.expm1(min(change, _LARGEST_LOGARITHM)) if logarithmic else change


def _judged(limit: float, logarithmic: bool) -> float:
    """A limit as people write it, on the judged scale: the inverse of `shown`."""
    return math.log1p(limit) if logarithmic else limit


@lru_cache(maxsize=4096)
def quantile(rate: float, degrees_of_freedom: int) -> float:
    """Student's t that is exceeded at `rate`, one-sided."""
    # Not scipy.stats, whose import takes most of a second.
    from scipy import special

    return float(-special.stdtrit(degrees_of_freedom, rate))


def finite_exp(logarithm: float) -> float:
    """The exponential function, but no infinity: such an interval is wide enough anyway."""
    return math.exp(min(logarithm, _LARGEST_LOGARITHM))


def error_of_median(spread: float, processes: int) -> float:
    """The standard error of the median of so many processes: c_k s / sqrt(k)."""
    return spread * _COSTS.get(processes, _COST_LIMIT) / math.sqrt(processes)


def centre(rounds: Rounds) -> float:
    """The median over processes of each process's median over its rounds."""
    return median(medians(rounds))


def medians(rounds: Rounds) -> list[float]:
    """What counts of each process."""
    return [median(process) for process in rounds]


def difference(
    measured: Rounds,
    baseline: Rounds,
    tolerance: Tolerance,
    gpus: BaselineGpus | None = None,
    scale: Scale | None = None,
) -> Difference:
    """Compares the medians of `measured`'s processes with those of `baseline`'s.

    d = median(new) - mean(baseline); se = sqrt(s^2 (1/K + c_k^2/k) + a^2 (1 + 1/A)). `scale` has s
    and the processes to set aside; without it the metric is the only one of its class (`noise.py`).
    `gpus` says which GPU each process ran on, and on which day; without it, all on the same. On an
    unseen GPU, the error between GPUs comes on top (`noise.py`). a is the spread between days that
    a calibration has found, over the A that the baseline has: once it dominates, more processes of
    one day no longer help.

    Both sides hold at least one process with at least one value.
    """
    new, every = medians(measured), medians(baseline)
    if scale is None:
        alone = on_judged_scale(every, judged_unit(every, tolerance))
        scale = scales({"": alone}, {"": tolerance}, gpus)[""]
    kept = [place for place in range(len(every)) if place not in scale.set_aside]
    unit = judged_unit([every[place] for place in kept], tolerance, beside=[*every, *new])
    old = on_judged_scale(every, unit)
    gpus = gpus.without(scale.set_aside) if gpus and tolerance.between_gpus else None
    expected, widening = _expected([old[place] for place in kept], tolerance, gpus, scale, unit)
    middle = expected.value
    return Difference(
        tolerance=tolerance,
        baseline=math.exp(middle) if unit is None else middle * unit,
        measured=median(new),
        changes=tuple(value - middle for value in on_judged_scale(new, unit)),
        spread=scale.spread,
        reference_error=expected.error,
        degrees_of_freedom=expected.degrees_of_freedom,
        logarithmic=unit is None,
        set_aside=tuple(old[place] - middle for place in sorted(scale.set_aside)),
        widening=widening,
        by_kind=expected.by_kind,
    )


def _expected(
    old: Sequence[float],
    tolerance: Tolerance,
    gpus: BaselineGpus | None,
    scale: Scale,
    unit: float | None,
) -> tuple[Prediction, float]:
    """What the baseline's processes say that a new one has, and by how much the tolerance widens.

    The mean of the processes on the same GPUs; of all where GPUs make no difference. Or what the
    baseline's GPUs predict for one that it has no process of: within the floor one process must be
    able to show "unchanged", else GPUs that differ no more than is usual would be undecided. So
    the tolerance widens; how noisy this metric is does not count for that.
    """
    if gpus is None or gpus.known:
        places = gpus.places if gpus else [ProcessPlace("")] * len(old)
        here = [n for n, place in enumerate(places) if not gpus or place.gpu in gpus.measured]
        variance = scale.spread**2 / len(here)
        if tolerance.between_days:
            days = len({(places[n].gpu, places[n].day) for n in here})
            variance += tolerance.between_days**2 * (1 + 1 / days)
        mean = fmean(old[n] for n in here)
        return Prediction(mean, math.sqrt(variance), (), scale.degrees_of_freedom), 0.0
    expected = gpus.predicted(old, tolerance.between_gpus)
    shares = zip(expected.shares, gpus.groups(old), strict=True)
    weight = math.fsum(share**2 / len(group) for share, group in shares)
    room = _judged(tolerance.equivalence, unit is None) - _judged(tolerance.floor, unit is None)
    usual = math.hypot(expected.error, math.sqrt(1 + weight) * tolerance.scale)
    reach = quantile(UNCHANGED_RATE, expected.degrees_of_freedom) * usual
    error = math.sqrt(expected.error**2 + weight * scale.spread**2)
    return replace(expected, error=error), max(0.0, reach - room)


def pair_changes(measured: Rounds, baseline: Rounds, tolerance: Tolerance) -> tuple[float, ...]:
    """By how much each of `measured`'s processes differs from its partner, on the judged scale.

    Both sides hold as many processes, each with at least one value; those of one place are partners
    and were measured one after the other.
    """
    new, old = medians(measured), medians(baseline)
    unit = judged_unit(old, tolerance, beside=new)
    pairs = zip(old, new, strict=True)
    return tuple((b - a) / unit if unit else math.log(b) - math.log(a) for a, b in pairs)


def paired_difference(
    measured: Rounds, baseline: Rounds, tolerance: Tolerance, scale: Scale
) -> Difference:
    """The difference between processes that were measured in turn, from the pairs' own differences.

    d = median(new - old); se = c_k s / sqrt(k), with s between pairs, of `scale`. What both of a
    pair share (the GPU, its day, clocks that drift) is in neither.
    """
    new, old = medians(measured), medians(baseline)
    return Difference(
        tolerance=tolerance,
        baseline=median(old),
        measured=median(new),
        changes=pair_changes(measured, baseline, tolerance),
        spread=scale.spread,
        reference_error=0.0,
        degrees_of_freedom=scale.degrees_of_freedom,
        logarithmic=judged_unit(old, tolerance, beside=new) is None,
    )
