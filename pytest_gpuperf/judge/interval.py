"""The difference between new processes and the baseline's, with its interval.

The unit of replication is the process: rounds within one are not independent, so each process
counts once, with its median. Pooling rounds is what makes other tools alarm on identical code
(docs/evidence.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median

from pytest_gpuperf.judge.noise import (
    DAYS_WEIGHT,
    NOTHING,
    BaselineGpus,
    Rounds,
    Scale,
    Variance,
    judged_unit,
    of_night,
    on_judged_scale,
    scales,
    tonight,
    total,
)
from pytest_gpuperf.judge.tolerance import Tolerance
from pytest_gpuperf.model.measurement import grouped

UNCHANGED_RATE = 0.0025
"""One-sided error of the interval that is printed, and that shows "unchanged"."""
OWN_NOISE = 4
"""The divisor of the allowed chance for a measurement's own noise: five processes of a baseline
know their noise only so well. An assumption."""
HELD_RATE = 0.0005
"""The rate at which identical code may be beyond the tolerance, whatever processes follow."""

_COSTS = {1: 1.0, 2: 1.0, 3: 1.16, 5: 1.20, 9: 1.22}
"""Standard error of a median of k over that of a mean of k, for normal noise."""
_COST_LIMIT = math.sqrt(math.pi / 2)
_LARGEST_LOGARITHM = 700.0
"""Beyond it a ratio is no finite number; such an interval is wide enough anyway."""


@dataclass(frozen=True)
class Difference:
    """The difference between new processes and the baseline, on the metric's judged scale."""

    tolerance: Tolerance
    baseline: float
    """The centre of the baseline's processes, in the metric's unit."""
    measured: float
    changes: tuple[float, ...]
    """Per new process: log ratio of a relative metric; points of a percentage; a plain share where
    something is zero or negative."""
    spread: Variance
    """The variance s^2 between processes, as the baseline has it."""
    reference: Variance
    """The variance of the baseline's centre, by its processes."""
    shared: Variance
    """The variance that a night's tests share: how far day, GPU and clock are from those of
    the baseline."""
    logarithmic: bool
    """Whether the change is the log of a ratio: always, unless a zero or negative value forbids."""
    tonight: Variance | None = None
    """The variance between the new processes, if it is not the baseline's; None: of pairs."""
    is_unseen: bool = False
    """Whether the baseline has no process on this GPU."""
    of_one_day: bool = False
    """The baseline's processes on this GPU are of one day, and the new ones of another."""

    @property
    def processes(self) -> int:
        """The number of new processes, k."""
        return len(self.changes)

    @cached_property
    def change(self) -> float:
        """The median of the processes' changes, d."""
        return median(self.changes)

    @cached_property
    def error(self) -> Variance:
        """The variance of `change`, se^2."""
        night = of_median(self.tonight or self.spread, self.processes)
        return total([self.shared, self.reference, night])

    def like_the_baselines(self, processes: int) -> Difference:
        """The same difference with so many new processes, on a night as noisy as the baseline."""
        usual = of_night(self.spread)
        night = replace(usual, degrees=usual.degrees + processes - 1) if self.tonight else None
        return replace(self, changes=(self.change,) * processes, tonight=night)

    def chance(self, rate: float, tests: int) -> float:
        """The change that chance exceeds in this share of nights, in any of so many tests.

        The variance that the tests share acts on all of them on the same nights.
        """
        night = of_median(self.tonight or self.spread, self.processes)
        own = total([self.reference, night]).reach(rate / (OWN_NOISE * tests))
        return math.hypot(own, self.shared.reach(rate))

    @cached_property
    def margin(self) -> float:
        """Half of the interval of `change`: one-sided error 0.25 %, so 99.5 % lie inside."""
        return self.error.reach(UNCHANGED_RATE)

    def shown(self, change: float) -> float:
        """The change on the judged scale in readable form: 0.01 is 1 % (or 1 point)."""
        return shown(change, self.logarithmic)

    @cached_property
    def lasting(self) -> Variance:
        """The part of `error` that no further process reduces."""
        return total([self.reference, self.shared])

    @cached_property
    def floor(self) -> float:
        """delta0, the tolerance of this comparison, on the judged scale.

        What is asked for, or what can be held: identical code is hardly ever beyond it, however
        many processes look.
        """
        return max(self._asked(self.tolerance.floor), self.lasting.reach(HELD_RATE))

    @cached_property
    def equivalence(self) -> float:
        """delta1, within which "unchanged" has to be shown, on the judged scale.

        As many times delta0 as was asked for.
        """
        asked = self.tolerance
        return self._asked(asked.equivalence) * self.floor / self._asked(asked.floor)

    @property
    def widened(self) -> float:
        """The tolerance that can be held, as people read it; 0 where it is what was asked for.

        Points are shares of 100.
        """
        is_wider = self.floor > self._asked(self.tolerance.floor)
        return self.shown(self.floor) / (100 if self.tolerance.points else 1) if is_wider else 0.0

    def _asked(self, limit: float) -> float:
        """The limit on the judged scale, from its readable form: the inverse of `shown`."""
        return math.log1p(limit) if self.logarithmic else limit

    @property
    def from_zero(self) -> bool:
        """Whether the baseline is zero and changes are relative: there is no ratio to give."""
        return not self.tolerance.points and self.baseline == 0


def shown(change: float, logarithmic: bool) -> float:
    """The change on the judged scale in readable form, and never infinite."""
    return math.expm1(min(change, _LARGEST_LOGARITHM)) if logarithmic else change


def finite_exp(logarithm: float) -> float:
    """The exponential function, but no infinity: such an interval is wide enough anyway."""
    return math.exp(min(logarithm, _LARGEST_LOGARITHM))


def of_median(spread: Variance, processes: int) -> Variance:
    """The variance of the median of so many processes: c_k^2 s^2 / k."""
    return spread.times(_COSTS.get(processes, _COST_LIMIT) ** 2 / processes)


def centre(rounds: Rounds) -> float:
    """The median over processes of each process's median over its rounds."""
    return median(medians(rounds))


def medians(rounds: Rounds) -> list[float]:
    """The value that counts of each process: the median over its rounds."""
    return [median(process) for process in rounds]


def judged_values(rounds: Rounds, tolerance: Tolerance) -> list[float]:
    """The value of each process, on the scale that its metric is judged on."""
    values = medians(rounds)
    return on_judged_scale(values, judged_unit(values, tolerance))


def difference(
    measured: Rounds,
    baseline: Rounds,
    tolerance: Tolerance,
    gpus: BaselineGpus | None = None,
    scale: Scale | None = None,
) -> Difference:
    """Compares the medians of `measured`'s processes with those of `baseline`'s.

    d = median(new) - mean(baseline). Its error is the sum of what the mean may be wrong by
    (`_expected`) and of the median of k processes of tonight, c_k^2 s_n^2 / k. s_n pools s, for 8
    degrees of freedom, with what is seen tonight, outliers left out. `scale` has s and the
    processes to set aside; without it the metric is the only one of its class (`noise.py`). `gpus`
    says which GPU each process ran on, and on which day; without it, all on the same.

    Both sides hold at least one process with at least one value.
    """
    new, every = medians(measured), medians(baseline)
    if scale is None:
        scale = scales({"": judged_values(baseline, tolerance)}, {"": tolerance}, gpus)[""]
    kept = [place for place in range(len(every)) if place not in scale.set_aside]
    unit = judged_unit([every[place] for place in kept], tolerance, beside=[*every, *new])
    old = on_judged_scale([every[place] for place in kept], unit)
    gpus = gpus.without(scale.set_aside) if gpus and tolerance.between_gpus else None
    expected = _expected(old, tolerance, gpus, scale.variance)
    changes = [value - expected.value for value in on_judged_scale(new, unit)]
    return Difference(
        tolerance=tolerance,
        baseline=math.exp(expected.value) if unit is None else expected.value * unit,
        measured=median(new),
        changes=tuple(changes),
        spread=scale.variance,
        reference=expected.of_processes,
        shared=expected.shared,
        logarithmic=unit is None,
        tonight=tonight(changes, scale.variance, gpus),
        is_unseen=gpus is not None and not gpus.known,
        of_one_day=expected.of_one_day,
    )


@dataclass(frozen=True)
class _Expected:
    """The expectation for a new process, by the baseline's processes."""

    value: float
    of_processes: Variance
    shared: Variance = NOTHING
    of_one_day: bool = False


def _expected(
    old: Sequence[float], tolerance: Tolerance, gpus: BaselineGpus | None, spread: Variance
) -> _Expected:
    """The mean of the processes on the same GPUs, or of all if GPUs make no difference.

    Or what the baseline's GPUs predict for one that it has no process of.
    """
    if gpus and not gpus.known:
        said = gpus.predicted(old, tolerance.between_gpus)
        shares = zip(said.shares, gpus.groups(old), strict=True)
        weight = math.fsum(share**2 / len(group) for share, group in shares)
        return _Expected(said.value, spread.times(weight), said.error)
    here = [n for n in range(len(old)) if not gpus or gpus.gpus[n] in gpus.new]
    of_mean = spread.times(1 / len(here))
    is_dated = gpus and gpus.day and gpus.days and all(gpus.days[n] for n in here)
    if not (tolerance.between_days and gpus and is_dated):
        return _Expected(fmean(old[n] for n in here), of_mean)
    days = grouped(here, gpus.days.__getitem__)
    assumed = Variance(tolerance.between_days**2, DAYS_WEIGHT)
    means = [fmean(old[n] for n in day) for day in days.values()]
    own = spread.square * fmean(1 / len(day) for day in days.values())
    squares = math.fsum((mean - fmean(means)) ** 2 for mean in means) - (len(means) - 1) * own
    between = assumed.seen(max(0.0, squares), len(means) - 1)
    of_days = {day: len(values) / len(here) for day, values in days.items()}
    # What is of the same day as the new ones differs from them by none.
    apart = {**of_days, gpus.day: of_days.get(gpus.day, 0.0) - 1}
    of_day = between.times(math.fsum(share**2 for share in apart.values()))
    one_day = len(days) == 1 and gpus.day not in days
    return _Expected(fmean(old[n] for n in here), of_mean, of_day, of_one_day=one_day)


def pair_changes(measured: Rounds, baseline: Rounds, tolerance: Tolerance) -> tuple[float, ...]:
    """The change from each partner to its process in `measured`, on the judged scale.

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
    """The difference between processes measured in turn, from the pairs' own differences.

    d = median(new - old); se = c_k s / sqrt(k), s between pairs being `scale`'s. What a pair shares
    (the GPU, its day, clocks that drift) is in neither.
    """
    new, old = medians(measured), medians(baseline)
    return Difference(
        tolerance=tolerance,
        baseline=median(old),
        measured=median(new),
        changes=pair_changes(measured, baseline, tolerance),
        spread=scale.variance,
        reference=NOTHING,
        shared=NOTHING,
        logarithmic=judged_unit(old, tolerance, beside=new) is None,
    )
