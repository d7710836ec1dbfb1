"""Times of kernels at one clock: what a baseline's own processes teach of it, and what is supposed.

A GPU of one name runs at other clocks from day to day, and times of kernels follow. What the
baseline has taught of that is no longer in doubt: both sides are compared at one clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from pytest_gpuperf.judge.noise import ProcessPlace, Rounds
from pytest_gpuperf.model.entry import CanarySeries
from pytest_gpuperf.model.measurement import RANK_COUNT, Measurement

CLOCK = "sm_clock_mhz"
CLOCK_NOISE = 0.005
"""The noise of the clock by itself, as a logarithm: two thirds of a step of 15 MHz, in which H100s
go from 1975 to 2070 MHz, and as fast do kernels that do not wait for memory
(tests/data/h100-clocks)."""
KERNEL_TIME = "kernel_time"
"""The metric that is the time of kernels, and of nothing else."""
ELASTICITY, ELASTICITY_ERROR = -0.5, 0.35
"""The prior of a step's elasticity, before its baseline tells, as a normal distribution: kernels
take as much longer as the clock is slower (-1), or as long at any clock (0), which is the memory's.
On H100s ConvNeXt's steps had -0.3 to -1, and Med-DDPM's, under whose load the clock is another than
under the canary, 0 to -0.2."""
MOST_UNKNOWN, MOST_WITHOUT = 0.2, 0.3
"""The largest standard error of an elasticity that counts as learnt, and the largest that it may
have without any one of the processes that it is learnt of: one alone teaches nothing."""
BEYOND = 0.008
"""The distance from the learnt clocks to which an elasticity holds, as a log: one step of an
H100's. Further off the clock's effect is unknown, and a slope that is a little wrong makes
much of it."""
NOTEWORTHY = 0.001
"""The size above which an adjustment is mentioned."""


@dataclass(frozen=True)
class Elasticity:
    """The share by which kernels take longer for each share by which the clock is faster."""

    mean: float
    """The mean of the elasticity, -1 to 0."""
    error: float
    """Its standard error; of one that is not learnt, without the process that says most of it."""
    is_learnt: bool
    """Whether processes show the elasticity; else it is hardly more than assumed of any step."""


@dataclass(frozen=True)
class AtOneClock:
    """Times of kernels, had all processes run at the clock of those that are judged."""

    measured: Rounds
    baseline: Rounds
    elasticity: Elasticity
    error: float
    """The error of the baseline's centre, as a logarithm: the elasticity's error times how far
    the clocks are apart."""
    clock_mhz: float
    before_mhz: float
    """The clock of the baseline's processes on this GPU, or of all: the geometric mean."""

    @property
    def is_noteworthy(self) -> bool:
        """Whether the adjustment is large enough that it has to be mentioned."""
        change = self.elasticity.mean * math.log(self.clock_mhz / self.before_mhz)
        return abs(change) > NOTEWORTHY or not self.elasticity.is_learnt

    def __str__(self) -> str:
        """The adjustment as text: "adjusted to the clock (1980 MHz, baseline 1995)", and why."""
        clocks = f"{self.clock_mhz:.0f} MHz, baseline {self.before_mhz:.0f} MHz"
        longer, says = f"{-self.elasticity.mean:.2f} %", "measured in the baseline"
        if not self.elasticity.is_learnt:
            longer, says = f"{longer[:-2]} +- {self.elasticity.error:.2f} %", "an assumption"
        return f"adjusted to the clock ({clocks}): 1 % less makes kernels {longer} slower ({says})"


def at_one_clock(
    measurements: Sequence[Measurement],
    known: CanarySeries,
    places: Sequence[ProcessPlace],
    measured: Rounds,
    baseline: Rounds,
    *,
    noise: float,
) -> AtOneClock | None:
    """The times of both sides at the clock of the new ones, as far as the baseline tells.

    A time becomes t (c_new / c)^elasticity, c being the mean of before and after. `measurements`
    are those with the times `measured`; `known` has the readings beside the processes of the
    `baseline`, and `places` where they ran.

    None where a clock or a time is missing or of another canary, where it is not the clock that
    times follow (`elasticity_of`), where a new clock is further than BEYOND from the baseline's on
    this GPU, or on all others where it has none, and where no clock differs by more than it does by
    itself and no elasticity is learnt.
    """
    now, code = clocks_of(measurements)
    read = [known.of(n, CLOCK) for n, own in enumerate(known.codes) if own == code]
    before = [math.log(clock) for clock in read if clock]
    complete = len(now) == len(measured) and len(before) == len(baseline) == len(places)
    if not complete or min(value for series in (*measured, *baseline) for value in series) <= 0:
        return None
    times = [math.log(median(series)) for series in baseline]
    elasticity = elasticity_of(times, before, [(one.gpu, one.day) for one in places], noise)
    here = {one.fingerprint.device.identity for one in measurements}
    own = [clock for clock, at in zip(before, places, strict=True) if at.gpu in here] or before
    every = (*now, *own)
    is_near = min(own) - BEYOND <= min(every) and max(every) <= max(own) + BEYOND
    if elasticity is None or not is_near:
        return None
    if not (elasticity.is_learnt or max(every) - min(every) > CLOCK_NOISE):
        return None
    new, there = fmean(now), fmean(own)
    adjusted = _at_clock(measured, now, new, elasticity)
    # Compared is the process in the middle: it is its clock that counts.
    order = sorted(range(len(adjusted)), key=lambda at: median(adjusted[at]))
    middle = now[order[len(order) // 2]]
    return AtOneClock(
        measured=adjusted,
        baseline=_at_clock(baseline, before, new, elasticity),
        elasticity=elasticity,
        error=elasticity.error * abs(middle - there),
        clock_mhz=math.exp(new),
        before_mhz=math.exp(there),
    )


def _at_clock(
    rounds: Rounds, clocks: Sequence[float], clock: float, elasticity: Elasticity
) -> Rounds:
    """The times of processes that ran at these `clocks`, had they run at another."""
    return [
        [value * math.exp(elasticity.mean * (clock - own)) for value in series]
        for series, own in zip(rounds, clocks, strict=True)
    ]


def elasticity_of(
    times: Sequence[float],
    clocks: Sequence[float],
    allocations: Sequence[tuple[str, str]],
    noise: float,
) -> Elasticity | None:
    """The dependence of kernel times on the clock; both sides as logarithms.

    For processes of one code, each on a GPU and a day: with sums of squares around the mean of
    each GPU, s^2 = (Syy - Sxy^2 / Sxx) / (n - GPUs - 1), at least `noise`^2: the mean of Sxy / Sxx
    and ELASTICITY, weighted by Sxx / s^2 and 1 / ELASTICITY_ERROR^2, between -1 and 0. Where a GPU
    has several processes of a day, the means are those of its days: what else differs from day to
    day is not the clock's.

    Not learnt is what has an error of more than MOST_UNKNOWN, or without any one of the processes
    of more than MOST_WITHOUT. None where the mean is by more than two errors outside of -1 to 0:
    there it is not the clock.
    """
    several = len(set(allocations)) < len(allocations)
    groups = [place if several else place[0] for place in allocations]
    processes = [*zip(clocks, times, groups, strict=True)]
    pairs = _centred(processes)
    degrees = len(pairs) - len(set(groups)) - 1
    sxx = math.fsum(x * x for x, _ in pairs)
    if degrees < 1 or not sxx:
        return Elasticity(ELASTICITY, ELASTICITY_ERROR, is_learnt=False)
    sxy, syy = math.fsum(x * y for x, y in pairs), math.fsum(y * y for _, y in pairs)
    variance = max(noise**2, (syy - sxy**2 / sxx) / degrees)
    prior = 1 / ELASTICITY_ERROR**2
    weight = sxx / variance
    error = 1 / math.sqrt(weight + prior)
    mean = (sxy / variance + ELASTICITY * prior) / (weight + prior)
    if not -1 - 2 * error <= mean <= 2 * error:
        return None
    others = ([*processes[:at], *processes[at + 1 :]] for at in range(len(processes)))
    least = min(math.fsum(x * x for x, _ in _centred(rest)) for rest in others)
    without = 1 / math.sqrt(least / variance + prior)
    is_learnt = error <= MOST_UNKNOWN and without <= MOST_WITHOUT
    return Elasticity(max(-1.0, min(0.0, mean)), error if is_learnt else without, is_learnt)


def _centred(processes: Sequence[tuple[float, float, object]]) -> list[tuple[float, float]]:
    """The clock and time of each process, less the means of its group (the third value)."""
    pairs = []
    for group in dict.fromkeys(group for *_, group in processes):
        own = [(clock, time) for clock, time, other in processes if other == group]
        clock, time = map(fmean, zip(*own, strict=True))
        pairs += [(x - clock, y - time) for x, y in own]
    return pairs


def clocks_of(measurements: Sequence[Measurement]) -> tuple[list[float], str]:
    """The logarithm of each process's clock, and the canary that read them all; empty if none did.

    A process that measured twice has the mean. In a step over ranks it is unknown which rank's
    clock and time were read.
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
