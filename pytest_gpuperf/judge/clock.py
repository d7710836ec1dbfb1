"""Times of kernels at one clock: what a baseline's own processes teach of it, and what is supposed.

A GPU of one name runs at other clocks from day to day, and times of kernels follow. What the
baseline has taught of that is no longer in doubt: both sides are compared at one clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean, median

from pytest_gpuperf.judge.noise import Rounds
from pytest_gpuperf.model.entry import CanarySeries
from pytest_gpuperf.model.measurement import RANK_COUNT, Measurement

CLOCK = "sm_clock_mhz"
CLOCK_NOISE = 0.005
"""How far the clock moves by itself, as a logarithm: two thirds of a step of 15 MHz, in which H100s
go from 1975 to 2070 MHz, and as fast do kernels that do not wait for memory
(tests/data/h100-clocks)."""
KERNEL_TIME = "kernel_time"
"""The metric that is the time of kernels, and of nothing else."""
ELASTICITY, ELASTICITY_ERROR = -0.5, 0.35
"""What is supposed of a step before its baseline says it, as a normal distribution: its kernels
take as much longer as the clock is slower (-1), or as long at any clock (0), which is the memory's.
On H100s ConvNeXt's steps had -0.3 to -1, and Med-DDPM's, under whose load the clock is another than
under the canary, 0 to -0.2."""
MOST_UNKNOWN, MOST_WITHOUT = 0.2, 0.3
"""The largest standard error of an elasticity that counts as learnt, and the largest that it may
have without any one of the processes that it is learnt of: one alone teaches nothing."""
BEYOND = 0.008
"""How far outside of the clocks that it is learnt at it still holds, as a logarithm: one step of an
H100's. Further off nobody has seen what the clock does, and a slope that is a little wrong makes
much of it."""
LEAST_ALIKE = 2
"""Processes of the baseline on one GPU at one clock that new ones of the same are compared with."""
NOTEWORTHY = 0.001
"""An adjustment that is said, where it is larger."""


@dataclass(frozen=True)
class Elasticity:
    """The share by which kernels take longer for each share by which the clock is faster."""

    mean: float
    """-1 to 0."""
    error: float
    """Its standard error; of one that is not learnt, without the process that says most of it."""
    is_learnt: bool
    """Whether processes say so; else it is hardly more than what is supposed of any step."""


@dataclass(frozen=True)
class AtOneClock:
    """Times of kernels, had all processes run at the clock of those that are judged."""

    measured: Rounds
    baseline: Rounds
    elasticity: Elasticity
    error: float
    """Of the baseline's centre, as a logarithm: what is not known of the elasticity, times how far
    the clocks are apart."""
    clock_mhz: float
    before_mhz: float
    """The clock of the baseline's processes on this GPU, or of all: the geometric mean."""

    @property
    def is_noteworthy(self) -> bool:
        """Whether it changes what is compared by so much that it has to be said."""
        change = self.elasticity.mean * math.log(self.clock_mhz / self.before_mhz)
        return abs(change) > NOTEWORTHY or not self.elasticity.is_learnt

    def __str__(self) -> str:
        """As in "at 1980 MHz, where the baseline's clock was 1995: by its own processes ..."."""
        now, before = f"{self.clock_mhz:.0f}", f"{self.before_mhz:.0f}"
        longer = f"{-self.elasticity.mean:.2f} % longer for 1 % less of it"
        says = f"by its own processes kernels take {longer}"
        if not self.elasticity.is_learnt:
            says = f"supposed that kernels take {longer}, give or take {self.elasticity.error:.2f}"
        return f"at {now} MHz, where the baseline's clock was {before}: {says}"


@dataclass(frozen=True)
class Clocks:
    """The clock of each process on both sides, as a logarithm, and where the baseline's ran."""

    now: Sequence[float]
    before: Sequence[float]
    places: Sequence[tuple[str, str]]
    """GPU and day of each of the baseline's processes; "" where that was not kept."""
    here: frozenset[str]
    """The GPUs of the new processes."""

    @classmethod
    def read(
        cls,
        measurements: Sequence[Measurement],
        known: CanarySeries | None,
        gpus: Sequence[str],
        days: Sequence[str],
    ) -> Clocks | None:
        """As one canary read them all; None where one was not read, or by another canary.

        `known` is what it read beside the baseline's processes, and `gpus` and `days` are theirs.
        """
        now, code = clocks_of(measurements)
        before = _clocks_known(known, code) if known and now else []
        clocks = [clock for clock in before if clock is not None]
        if not clocks or len(clocks) < len(before):
            return None
        unknown = [""] * len(clocks)
        kept = (one if len(one) == len(clocks) else unknown for one in (gpus, days))
        here = frozenset(one.fingerprint.device.identity for one in measurements)
        return cls(now, clocks, [*zip(*kept, strict=True)], here)

    @property
    def own(self) -> Sequence[float]:
        """The baseline's on the same GPUs; on all others where it has none there."""
        places = zip(self.before, self.places, strict=True)
        return [clock for clock, (gpu, _) in places if gpu in self.here] or self.before

    @property
    def are_near(self) -> bool:
        """Whether no new one is further than BEYOND from those of the baseline."""
        return min(self.own) - BEYOND <= min(self.now) and max(self.now) <= max(self.own) + BEYOND

    @property
    def differ(self) -> bool:
        """Whether any differ by more than a clock does by itself."""
        return max(*self.now, *self.own) - min(*self.now, *self.own) > CLOCK_NOISE


def at_one_clock(
    clocks: Clocks, measured: Rounds, baseline: Rounds, *, noise: float
) -> AtOneClock | None:
    """The times of both sides at the clock of the new ones, as far as the baseline tells.

    A time becomes t (c_new / c)^elasticity, c being the mean of before and after.

    None where a process or a time is missing, where it is not the clock that times follow
    (`elasticity_of`), where a new clock is further than BEYOND from the baseline's on this GPU, or
    on all others where it has none, and where no clock differs by more than it does by itself and
    no elasticity is learnt.
    """
    complete = len(clocks.now) == len(measured) and len(clocks.before) == len(baseline)
    if not complete or min(value for series in (*measured, *baseline) for value in series) <= 0:
        return None
    times = [math.log(median(series)) for series in baseline]
    elasticity = elasticity_of(times, clocks.before, clocks.places, noise)
    if elasticity is None or not clocks.are_near:
        return None
    if not (elasticity.is_learnt or clocks.differ):
        return None
    new, there = fmean(clocks.now), fmean(clocks.own)

    def at_clock(rounds: Rounds, own: Sequence[float]) -> Rounds:
        return [
            [value * math.exp(elasticity.mean * (new - clock)) for value in series]
            for series, clock in zip(rounds, own, strict=True)
        ]

    adjusted = at_clock(measured, clocks.now)
    # Compared is the process in the middle: it is its clock that counts.
    order = sorted(range(len(adjusted)), key=lambda at: median(adjusted[at]))
    middle = clocks.now[order[len(order) // 2]]
    return AtOneClock(
        measured=adjusted,
        baseline=at_clock(baseline, clocks.before),
        elasticity=elasticity,
        error=elasticity.error * abs(middle - there),
        clock_mhz=math.exp(new),
        before_mhz=math.exp(there),
    )


def by_clock(clocks: Clocks) -> tuple[tuple[str, ...], frozenset[str]] | None:
    """The GPUs of the baseline's processes and of the new ones, as if each clock made it another.

    Clocks are one that are reached from each other without a gap of half a clock's noise. None
    where the new processes are not of one GPU and clock, or the baseline has fewer than
    LEAST_ALIKE of it: one process alone may have been slow by itself. Nor where those are of one
    day and others on the GPU of another: what is apart between days is not the clock's.
    """
    order = sorted((*clocks.before, *clocks.now))
    steps = [b - a > CLOCK_NOISE / 2 for a, b in pairwise(order)]
    number = dict(zip(order, accumulate(steps, initial=0), strict=True))
    measured = {f"{gpu} {number[clock]}" for gpu in clocks.here for clock in clocks.now}
    own = zip(clocks.before, clocks.places, strict=True)
    places = tuple(f"{gpu} {number[clock]}" for clock, (gpu, _) in own)
    alike = [
        day for place, (_, day) in zip(places, clocks.places, strict=True) if place in measured
    ]
    days = {day for gpu, day in clocks.places if gpu in clocks.here}
    is_clear = len({*alike}) >= min(2, len(days))
    enough = len(measured) == 1 and len(alike) >= LEAST_ALIKE and is_clear
    return (places, frozenset(measured)) if enough else None


def elasticity_of(
    times: Sequence[float],
    clocks: Sequence[float],
    allocations: Sequence[tuple[str, str]],
    noise: float,
) -> Elasticity | None:
    """By how much times of kernels follow the clock; both sides as logarithms.

    Of processes of the same code, each on a GPU and a day. With sums of squares around the mean of
    each GPU, s^2 = (Syy - Sxy^2 / Sxx) / (n - GPUs - 1), at least `noise`^2: the mean of Sxy / Sxx
    and ELASTICITY, weighted by Sxx / s^2 and 1 / ELASTICITY_ERROR^2, between -1 and 0. Where a GPU
    has several processes of a day, the means are those of its days: what else differs from day to
    day is not the clock's.

    Not learnt is what has an error of more than MOST_UNKNOWN, or without any one of the processes
    of more than MOST_WITHOUT. None where the mean is by more than two errors outside of -1 to 0:
    there it is not the clock.
    """
    several = len(set(allocations)) < len(allocations)
    groups = [place if several else (place[0], "") for place in allocations]
    pairs = _centred(times, clocks, groups)
    degrees = len(pairs) - len(set(groups)) - 1
    sxx, sxy, syy = (math.fsum(product) for product in zip(*map(_products, pairs), strict=True))
    if degrees < 1 or not sxx:
        return Elasticity(ELASTICITY, ELASTICITY_ERROR, is_learnt=False)
    variance = max(noise**2, (syy - sxy**2 / sxx) / degrees)
    prior = 1 / ELASTICITY_ERROR**2
    weight = sxx / variance
    error = 1 / math.sqrt(weight + prior)
    mean = (sxy / variance + ELASTICITY * prior) / (weight + prior)
    if not -1 - 2 * error <= mean <= 2 * error:
        return None
    least = min(_squares_without(at, clocks, groups) for at in range(len(clocks)))
    without = 1 / math.sqrt(least / variance + prior)
    is_learnt = error <= MOST_UNKNOWN and without <= MOST_WITHOUT
    return Elasticity(max(-1.0, min(0.0, mean)), error if is_learnt else without, is_learnt)


def _centred(
    times: Sequence[float], clocks: Sequence[float], groups: Sequence[tuple[str, str]]
) -> list[tuple[float, float]]:
    """Each process's clock and time, less the means of its group."""
    pairs = []
    for group in dict.fromkeys(groups):
        own = [at for at, other in enumerate(groups) if other == group]
        clock, time = (fmean(series[at] for at in own) for series in (clocks, times))
        pairs += [(clocks[at] - clock, times[at] - time) for at in own]
    return pairs


def _squares_without(
    left_out: int, clocks: Sequence[float], groups: Sequence[tuple[str, str]]
) -> float:
    """Sxx of all processes but this one."""
    rest = [at for at in range(len(clocks)) if at != left_out]
    values, places = [clocks[at] for at in rest], [groups[at] for at in rest]
    return math.fsum(x * x for x, _ in _centred(values, values, places))


def _products(pair: tuple[float, float]) -> tuple[float, float, float]:
    x, y = pair
    return x * x, x * y, y * y


def clocks_of(measurements: Sequence[Measurement]) -> tuple[list[float], str]:
    """The logarithm of each process's clock, and the canary that read them all; empty if none did.

    Of a process that measured twice it is the mean. Of a step over ranks nobody knows whose clock
    and whose time it is.
    """
    read: dict[str, list[float]] = {}
    codes = set()
    for one in measurements:
        both = one.fingerprint.conditions.canaries if one.fingerprint.conditions else None
        values = [canary.readings.get(CLOCK) for canary in both or ()]
        if not values or not all(values) or RANK_COUNT in one.workload:
            return [], ""
        codes |= {canary.code for canary in both or ()}
        read.setdefault(one.process, []).extend(math.log(value) for value in values if value)
    return ([fmean(logs) for logs in read.values()], codes.pop()) if len(codes) == 1 else ([], "")


def _clocks_known(known: CanarySeries, code: str) -> list[float | None]:
    """The same of the baseline's processes; None where this canary did not read it."""
    clocks: list[float | None] = []
    for process, own in enumerate(known.codes):
        values = [value for value in known.around(process, CLOCK) if value]
        read = own == code and len(values) == len((known.before, known.after))
        clocks.append(fmean(map(math.log, values)) if read else None)
    return clocks
