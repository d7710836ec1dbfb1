"""Machine or code: what the canary, the same work every time, explains of a change of the step.

Where a cycle count or a time moved beyond its tolerance, and the canary moved by as much, nobody
can tell that the code did it. Counts are the code's: no machine changes them.

What a baseline's own processes have taught of the clock is no longer in doubt: times of kernels are
compared at one clock (`at_one_clock`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from statistics import fmean, median

from pytest_gpuperf.judge.noise import Kind, Rounds
from pytest_gpuperf.judge.stopping import LEAST_TO_ALARM, NOISY_BASELINE
from pytest_gpuperf.model.entry import CanarySeries
from pytest_gpuperf.model.measurement import RANK_COUNT, STEP, Canary, Conditions, Measurement
from pytest_gpuperf.model.metric import Metric, MetricClass
from pytest_gpuperf.model.result import Outcome, Verdict

CLOCK = "sm_clock_mhz"
OF_KERNELS = ("kernel_time",)
"""The metrics that are times of kernels, and nothing else."""
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
KIND_READINGS = ("dram_ns", "l2_cycles")
"""The readings that GPUs of one name are told apart by. Of 17 H200s the first was 1.954 to 1.962 M
on six and 2.000 to 2.005 M on the others; the second 1.86 M on two and 1.81 to 1.84 M on the
others, whatever the first was. DRAM's is in nanoseconds, as it has a clock of its own: in cycles of
an SM it takes as many as that one's clock is fast, which on two H100s was 1975 to 2054 MHz in turn.
"""
_MOST_WAITING = 0.99
"""Of a step in which a kernel ran at all."""
REASON = "canary-moved"
"""The reason code of what the machine explains."""
UNKNOWN_HOST = "unknown-host"
"""The same where nobody knows how fast the host is that the GPU waits for."""
KNOWN_HOSTS = 3
"""From so many GPUs on, the spread of the baseline's own processes says how far hosts differ."""


@dataclass(frozen=True)
class Trait:
    """What a reading of the canary says of the machine."""

    noise: float
    """How far it moves by itself, as a logarithm: more than any of 220 readings beside 110
    measurements on two H200s of one host (tests/data/h200-canary) was from their median, of
    `time_share` than any of 30 alone (tests/data/h200-shared: 0.995 to 1.0003); of the
    host's readings, which were up to 0.56 apart there, twice the standard deviation; of the SM's
    clock, two thirds of a step of 15 MHz, in which H100s go from 1975 to 2070 MHz, and as fast do
    kernels that do not wait for memory (tests/data/h100-clocks)."""
    says: str
    slower: int
    """1 where more of it is slower, -1 where less is, 0 where another GPU may be either."""
    host: bool = False
    clock: bool = False
    drift: float = 0.0
    """How far it moves from before a measurement to after it, as that warms the GPU; 0 where no
    further than by itself."""
    of_clock: bool = False
    """Whether it moves with the SM's clock, of whose cycles it is a number, or which it takes for
    as fast as a moment ago: H100s went down by 3.0 % while a step was measured, and reads of DRAM
    took 3.3 % fewer cycles in the same time (tests/data/h100-rank-sessions)."""
    alone: float | None = None
    """What it is on a GPU that nobody else uses, whatever that GPU is: a baseline that has no such
    reading was measured on one. Where it moves, it explains a change of any size: it says that
    somebody was there, not how much of the step they took."""


TRAITS: Mapping[str, Trait] = {
    "arithmetic_cycles": Trait(0.0005, "another kind of GPU", 0),
    "tensor_cycles": Trait(0.0005, "another kind of GPU", 0),
    "l2_cycles": Trait(0.02, "another kind of GPU, or somebody else on it", 0, of_clock=True),
    "dram_cycles": Trait(0.01, "another kind of GPU, or somebody else on it", 0, of_clock=True),
    "dram_ns": Trait(0.005, "another kind of GPU, or somebody else on it", 1),
    CLOCK: Trait(0.005, "the clock", -1, clock=True, drift=0.04),
    "tensor_clock_mhz": Trait(0.02, "the clock under power", -1, clock=True),
    "time_share": Trait(0.02, "somebody else on it", -1, alone=1.0, of_clock=True),
    "launch_us": Trait(0.4, "the host", 1, host=True),
    "host_ms": Trait(0.25, "the host", 1, host=True),
}


@dataclass(frozen=True)
class Moved:
    """A reading that is not what it was."""

    reading: str
    before: float
    now: float

    @property
    def change(self) -> float:
        """The logarithm of now over before."""
        return math.log(self.now / self.before)

    @property
    def trait(self) -> Trait:
        """What the reading says."""
        return TRAITS[self.reading]

    def __str__(self) -> str:
        """As in "launch_us +48.2 % (3.31 -> 4.91): the host"."""
        change = f"{100 * math.expm1(self.change):+.3g} %"
        return f"{self.reading} {change} ({self.before:.6g} -> {self.now:.6g}): {self.trait.says}"


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


def at_one_clock(
    measured: Rounds,
    baseline: Rounds,
    measurements: Sequence[Measurement],
    known: CanarySeries | None,
    gpus: Sequence[str] = (),
    days: Sequence[str] = (),
    *,
    noise: float,
) -> AtOneClock | None:
    """The times of both sides at the clock of `measurements`, as far as the baseline tells.

    A time becomes t (c_new / c)^elasticity, c being the mean of before and after. `gpus` and `days`
    are those of the baseline's processes, where they were kept.

    None where a clock was not read, or not by the same canary, where a process or a time is
    missing, where it is not the clock that times follow (`elasticity_of`), where a clock is further
    than BEYOND from those that the baseline has on this GPU, or on all others where it has none,
    and where no clock differs by more than it does by itself and no elasticity is learnt.
    """
    now, code = clocks_of(measurements)
    before = _clocks_known(known, code) if known else []
    complete = len(now) == len(measured) and len(before) == len(baseline) and None not in before
    if not complete or min(value for series in (*measured, *baseline) for value in series) <= 0:
        return None
    clocks = [clock for clock in before if clock is not None]
    places = gpus if len(gpus) == len(baseline) else [""] * len(baseline)
    dates = days if len(days) == len(baseline) else [""] * len(baseline)
    times = [math.log(median(series)) for series in baseline]
    elasticity = elasticity_of(times, clocks, [*zip(places, dates, strict=True)], noise)
    here = {measurement.fingerprint.device.identity for measurement in measurements}
    own = [clock for clock, gpu in zip(clocks, places, strict=True) if gpu in here] or clocks
    if elasticity is None or min(now) < min(own) - BEYOND or max(now) > max(own) + BEYOND:
        return None
    apart = max(*now, *own) - min(*now, *own)
    if not elasticity.is_learnt and apart <= TRAITS[CLOCK].noise:
        return None
    new, there = fmean(now), fmean(own)

    def at_clock(rounds: Rounds, clocks: Sequence[float]) -> Rounds:
        return [
            [value * math.exp(elasticity.mean * (new - clock)) for value in series]
            for series, clock in zip(rounds, clocks, strict=True)
        ]

    adjusted = at_clock(measured, now)
    # Compared is the process in the middle: it is its clock that counts.
    middle = sorted(range(len(now)), key=lambda at: median(adjusted[at]))[len(now) // 2]
    return AtOneClock(
        measured=adjusted,
        baseline=at_clock(baseline, clocks),
        elasticity=elasticity,
        error=elasticity.error * abs(now[middle] - there),
        clock_mhz=math.exp(new),
        before_mhz=math.exp(there),
    )


def by_clock(
    measurements: Sequence[Measurement],
    known: CanarySeries | None,
    gpus: Sequence[str],
    days: Sequence[str] = (),
) -> tuple[tuple[str, ...], frozenset[str]] | None:
    """The GPUs of the baseline's processes and of the new ones, as if each clock made it another.

    Clocks are one that are reached from each other without a gap of half a clock's noise. None
    where the new processes are not of one GPU and clock, or the baseline has fewer than
    LEAST_ALIKE of it: one process alone may have been slow by itself. Nor where those are of one
    day and others on the GPU of another: what is apart between days is not the clock's.
    """
    now, code = clocks_of(measurements)
    before = _clocks_known(known, code) if known else []
    here = {measurement.fingerprint.device.identity for measurement in measurements}
    if not now or len(here) > 1 or len(before) != len(gpus) or None in before:
        return None
    clocks = [clock for clock in before if clock is not None]
    order = sorted((*clocks, *now))
    steps = [b - a > TRAITS[CLOCK].noise / 2 for a, b in pairwise(order)]
    place = dict(zip(order, accumulate(steps, initial=0), strict=True))
    measured = {f"{gpu} {place[clock]}" for gpu in here for clock in now}
    places = tuple(f"{gpu} {place[clock]}" for gpu, clock in zip(gpus, clocks, strict=True))
    alike = [at for at, own in enumerate(places) if own in measured]
    dates = days if len(days) == len(gpus) else [""] * len(gpus)
    of_clock = {dates[at] for at in alike}
    of_gpu = {day for day, gpu in zip(dates, gpus, strict=True) if gpu in here}
    is_clear = len(of_clock) >= min(2, len(of_gpu))
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


def kinds(
    measurements: Sequence[Measurement], known: CanarySeries | None
) -> tuple[tuple[Kind | None, ...], Kind | None]:
    """The kind of GPU of each of the baseline's processes, and of the new ones.

    As the mean of the logarithms before and after. Readings of another canary are left out.
    """
    conditions = [m.fingerprint.conditions for m in measurements]
    seen = [canary for one in conditions if one for canary in one.canaries or ()]
    codes = {canary.code for canary in seen}
    kind = _kind([[canary.readings.get(name) for canary in seen] for name in KIND_READINGS])
    if known is None or kind is None or len(codes) > 1:
        return (), None
    return tuple(
        _kind([known.around(process, name) for name in KIND_READINGS]) if {code} == codes else None
        for process, code in enumerate(known.codes)
    ), kind


def kind_of(conditions: Conditions | None) -> Kind | None:
    """The kind of the GPU that was in these conditions, where its canary was read."""
    seen = conditions.canaries if conditions else None
    if not seen:
        return None
    return _kind([[canary.readings.get(name) for canary in seen] for name in KIND_READINGS])


def moved(
    measurements: Sequence[Measurement], known: CanarySeries | None, gpus: Sequence[str] = ()
) -> tuple[Moved, ...]:
    """Which readings moved since the baseline, or from before a measurement to after it.

    `known` is what the baseline's processes read, and `gpus` the GPU of each: where there are any
    of this very GPU, it is they that count. Compared is with the nearest of them: a baseline of two
    hosts knows both; of a clock with the median. Readings of another canary are not comparable.
    """
    conditions = [m.fingerprint.conditions for m in measurements]
    seen = [one for one in conditions if one is not None and one.canaries]
    if not seen:
        return ()
    measured = {measurement.fingerprint.device.identity for measurement in measurements}
    since = dict(_since_baseline(seen, known, [gpu in measured for gpu in gpus]))
    within = {one.reading: one for each in seen for one in between(each)}
    return tuple({**within, **since}.values())


def between(conditions: Conditions) -> tuple[Moved, ...]:
    """Which readings of the GPU moved from before a measurement to after it.

    What follows the clock may move as far as that did, and by its noise: as it is read, and as it
    was a moment later, while DRAM was read, in cycles and ns.
    """
    before, after = conditions.canaries or (Canary(), Canary())
    changes = {
        name: Moved(name, before.readings[name], after.readings[name])
        for name, trait in TRAITS.items()
        if name in before.readings and name in after.readings and not trait.host
    }
    clocks = [changes[CLOCK].change] if CLOCK in changes else []
    if {"dram_cycles", "dram_ns"} <= changes.keys():
        clocks.append(changes["dram_cycles"].change - changes["dram_ns"].change)
    clock = max(map(abs, clocks), default=0.0)
    return tuple(
        one
        for one in changes.values()
        if abs(one.change) > max(one.trait.noise + one.trait.of_clock * clock, one.trait.drift)
    )


def told_apart(
    verdicts: Sequence[Verdict],
    measurements: Sequence[Measurement],
    metrics: Mapping[str, Metric],
    canary: tuple[Moved, ...],
    *,
    unmet: bool,
    known_gpus: int,
    at_one_clock: Collection[str] = (),
) -> Iterator[Verdict]:
    """The same verdicts, where what the machine explains is not said of the code.

    Of cycles and times, but where the baseline has none of them, which is no matter of size: what
    is not gated, and a phase, has no verdict but `reported`. A change is explained whose interval
    begins no further from its tolerance than a reading moved, and one that is inconclusive, where
    it is no further from it itself. What a GPU waits for its host, the share of the step in which
    no kernel ran, is explained where the host is another; to know it takes the metric kernel_time.
    So it is on an `unmet` GPU, one that the baseline has no process of, where its `known_gpus` are
    fewer than KNOWN_HOSTS: the canary's few launches say less of a host than a thousand of a step
    do. What is within its tolerance stays there, but on an unmet GPU of a kind that the baseline
    has none of: nobody knows what to expect of that. Metrics that were compared `at_one_clock` have
    no more of it to be explained.
    """
    waiting = _waiting(measurements)
    clock = next((one.change for one in canary if one.reading == CLOCK), 0.0)
    foreign = [one for one in canary if unmet and one.reading in KIND_READINGS]
    unknown_host = unmet and known_gpus < KNOWN_HOSTS
    for verdict in verdicts:
        metric = metrics[verdict.metric]
        judged = metric.metric_class is MetricClass.CYCLE and verdict.change is not None
        # Of what the baseline leaves in doubt there will be no more processes.
        looked = verdict.processes >= LEAST_TO_ALARM or verdict.reason == NOISY_BASELINE
        doubtful = verdict.outcome in (Outcome.REGRESSED, Outcome.IMPROVED) or (
            verdict.outcome is Outcome.INCONCLUSIVE and looked
        )
        causes: Sequence[Moved] = ()
        if judged and doubtful:
            clock_is_known = metric.name in at_one_clock
            causes = [
                one
                for one in canary
                if not (clock_is_known and one.reading == CLOCK)
                if _explains(one, verdict, metric, waiting, clock)
            ]
        elif judged and verdict.outcome is Outcome.UNCHANGED:
            causes = foreign
        if causes:
            detail = "the canary moved too: " + "; ".join(map(str, causes))
            yield replace(verdict, outcome=Outcome.MACHINE, reason=REASON, detail=detail)
        elif judged and doubtful and unknown_host and _waits(verdict, metric, waiting):
            detail = (
                f"no kernel ran in {waiting:.0%} of the step, and how fast this host is the "
                f"baseline does not know: accept a run of this machine beside its others"
            )
            yield replace(verdict, outcome=Outcome.MACHINE, reason=UNKNOWN_HOST, detail=detail)
        else:
            yield verdict


def _explains(cause: Moved, verdict: Verdict, metric: Metric, waiting: float, clock: float) -> bool:
    """Whether the verdict's change, at its end next to none, is one that the reading explains.

    `clock` is how far that of the SM moved, as a logarithm: of a time, cycles say what is left.
    """
    trait, change = cause.trait, cause.change
    if trait.clock and metric.unit == "cycles":
        return False
    if trait.slower and (change * trait.slower > 0) is not _slower(verdict):
        return False
    if trait.alone:
        return True
    if trait.host:
        return metric.name not in OF_KERNELS and _within(verdict, -math.log1p(-waiting))
    if trait.of_clock and metric.unit != "cycles":
        change -= clock
        if abs(change) <= trait.noise:
            return False
    return _within(verdict, abs(change))


def _waits(verdict: Verdict, metric: Metric, waiting: float) -> bool:
    """Whether the step is slower by no more than a slower host explains.

    Of how much faster a faster one makes it, its own waiting says nothing.
    """
    if metric.name in OF_KERNELS or not _slower(verdict):
        return False
    return _within(verdict, -math.log1p(-waiting))


def _slower(verdict: Verdict) -> bool:
    """Whether it took more, of cycles or of time."""
    return (verdict.change or 0.0) > 0


def _within(verdict: Verdict, share: float) -> bool:
    """Whether a logarithm of that size explains the end of the change that is next to none.

    Of an interval that is too wide to decide that end says nothing: there it is the change itself.
    """
    change = verdict.change or 0.0
    near = verdict.low if change > 0 else verdict.high
    if verdict.outcome is Outcome.INCONCLUSIVE:
        near = change
    least = max(0.0, abs(math.log1p(near)) if near is not None and near * change > 0 else 0.0)
    return share > 0 and least <= share + math.log1p(verdict.tolerance or 0.0)


def _waiting(measurements: Sequence[Measurement]) -> float:
    """The share of the step's time in which no kernel ran; 0 where nobody measured that.

    Nor of a step over ranks, which wait for each other in collectives: no kernel_time has those.
    """
    shares = []
    for measurement in measurements:
        if RANK_COUNT in measurement.workload:
            continue
        values = {s.metric: median(s.values) for s in measurement.samples if s.phase == STEP}
        kernels_ns, step_ms = values.get("kernel_time"), values.get("step_time")
        if kernels_ns is not None and step_ms:
            shares.append(1 - min(1.0, kernels_ns / (step_ms * 1e6)))
    return min(median(shares), _MOST_WAITING) if shares else 0.0


def _since_baseline(
    seen: Sequence[Conditions], known: CanarySeries | None, of_this_gpu: Sequence[bool]
) -> Iterator[tuple[str, Moved]]:
    """By reading, those that are further from the nearest of the baseline's than noise is."""
    known = known or CanarySeries((), {}, {})
    code = {canary.code for one in seen for canary in one.canaries or ()}
    here = [i for i, same in enumerate(known.codes) if {same} == code]
    own = [i for i in here if i < len(of_this_gpu) and of_this_gpu[i]]
    for name, trait in TRAITS.items():
        pairs = zip(known.before.get(name, ()), known.after.get(name, ()), strict=True)
        read = [pair for i, pair in enumerate(pairs) if i in (own or here)]
        before = [math.sqrt(one * other) for one, other in read if one and other]
        if trait.alone and not before:
            before = [trait.alone]
        values = [c.readings[name] for s in seen for c in s.canaries or () if c.readings.get(name)]
        if before and values:
            now = median(values)
            # A clock that one process of five had is not what the others were measured at.
            usual = median(before) if trait.clock else now
            nearest = min(before, key=lambda value: abs(math.log(usual / value)))
            one = Moved(name, nearest, now)
            if abs(one.change) > trait.noise:
                yield name, one


def _kind(values: Sequence[Sequence[float | None]]) -> Kind | None:
    """The mean logarithm of each reading; None where one was not read."""
    logarithms = [[math.log(one) for one in series if one and one > 0] for series in values]
    return tuple(fmean(series) for series in logarithms) if all(logarithms) else None
