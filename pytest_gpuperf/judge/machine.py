"""Machine or code: what the canary, the same work every time, explains of a change of the step.

Where a cycle count or a time moved beyond its tolerance, and the canary moved by as much, it is
confounded by the machine: it may not be the code. Counts are the code's: no machine changes them.
What a moved clock leaves unknown of the kernels' time is a term of that comparison (`clock_error`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median

from pytest_gpuperf.judge.noise import PRIOR_WEIGHT, Kind, Variance
from pytest_gpuperf.judge.stopping import LEAST_TO_ALARM
from pytest_gpuperf.model.entry import CanarySeries
from pytest_gpuperf.model.measurement import RANK_COUNT, STEP, Canary, Conditions, Measurement
from pytest_gpuperf.model.metric import Metric, MetricClass
from pytest_gpuperf.model.result import Outcome, Verdict

CLOCK = "sm_clock_mhz"
CLOCK_NOISE = 0.005
"""The noise of the clock by itself, as a logarithm: two thirds of a step of 15 MHz, in which H100s
go from 1975 to 2070 MHz, and as fast do kernels that do not wait for memory
(tests/data/h100-clocks)."""
MOST_CLOCK = 0.04
"""The largest move of the clock that the comparison of kernel times allows for, as a logarithm: all
that was seen of H100s. Further off, the clock explains a change afterwards (`confounded`)."""
PER_CLOCK = 0.35
"""The standard deviation of kernel times per move of the clock, as logarithms. Kernels follow the
clock (1), or the memory and not the clock (0): at the judge's confidence of about three deviations
the whole move is allowed for. On H100s ConvNeXt's steps had 0.3 to 1, Med-DDPM's 0 to 0.2."""
KERNEL_TIME = "kernel_time"
"""The metric that is the time of kernels, and of nothing else."""
KIND_READINGS = ("dram_ns", "l2_cycles")
"""The readings that GPUs of one name are told apart by. Of 17 H200s the first was 1.954 to 1.962 M
on six and 2.000 to 2.005 M on the others; the second 1.86 M on two and 1.81 to 1.84 M on the
others, whatever the first was. DRAM's is in nanoseconds, as it has a clock of its own: in cycles of
an SM it takes as many as that one's clock is fast, which on two H100s was 1975 to 2054 MHz in turn.
"""
_MOST_WAITING = 0.99
"""The largest share of waiting of a step in which a kernel ran at all."""
REASON = "canary-moved"
"""The reason code of a verdict that the machine explains."""
UNKNOWN_HOST = "unknown-host"
"""The reason code of a verdict if the speed of the host that the GPU waits for is unknown."""
KNOWN_HOSTS = 3
"""From so many GPUs on, the spread of the baseline's own processes says how far hosts differ."""


@dataclass(frozen=True)
class Trait:
    """The meaning of a canary's reading for the machine."""

    noise: float
    """The noise of the reading by itself, as a log: more than any of 220 readings beside 110
    measurements on two H200s of one host (tests/data/h200-canary) was from their median, of
    `time_share` than any of 30 alone (tests/data/h200-shared: 0.995 to 1.0003); of the
    host's readings, which were up to 0.56 apart there, twice the standard deviation."""
    says: str
    slower: int
    """The sign: 1 if more of the reading is slower, -1 if less is, 0 if either may be."""
    host: bool = False
    clock: bool = False
    drift: float = 0.0
    """The reading's move from before a measurement to after, as work warms the GPU; 0 if no
    further than by itself."""
    of_clock: bool = False
    """Whether the reading moves with the SM's clock: it counts that clock's cycles, or takes it for
    as fast as a moment ago: H100s went down by 3.0 % while a step was measured, and reads of DRAM
    took 3.3 % fewer cycles in the same time (tests/data/h100-rank-sessions)."""
    alone: float | None = None
    """The reading on a GPU without other users, whatever that GPU is: a baseline that has no such
    reading was measured on one. Where it moves, it explains a change of any size: it says that
    other users were there, not how much of the step they took."""


TRAITS: Mapping[str, Trait] = {
    "arithmetic_cycles": Trait(0.0005, "another kind of GPU", 0),
    "tensor_cycles": Trait(0.0005, "another kind of GPU", 0),
    "l2_cycles": Trait(0.02, "another kind of GPU or other processes on it", 0, of_clock=True),
    "dram_cycles": Trait(0.01, "another kind of GPU or other processes on it", 0, of_clock=True),
    "dram_ns": Trait(0.005, "another kind of GPU or other processes on it", 1),
    CLOCK: Trait(CLOCK_NOISE, "another clock", -1, clock=True, drift=0.04),
    "tensor_clock_mhz": Trait(0.02, "another clock under load", -1, clock=True),
    "time_share": Trait(0.02, "other processes on it", -1, alone=1.0, of_clock=True),
    "launch_us": Trait(0.4, "another host", 1, host=True),
    "host_ms": Trait(0.25, "another host", 1, host=True),
}


@dataclass(frozen=True)
class Moved:
    """A reading that has changed."""

    reading: str
    before: float
    now: float

    @property
    def change(self) -> float:
        """The logarithm of the reading now over the reading before."""
        return math.log(self.now / self.before)

    @property
    def trait(self) -> Trait:
        """The meaning of the reading."""
        return TRAITS[self.reading]

    def __str__(self) -> str:
        """The reading's change as text: "launch_us +48.2 % (3.31 -> 4.91): the host"."""
        change = f"{100 * math.expm1(self.change):+.3g} % ({self.before:.6g} -> {self.now:.6g})"
        return f"{self.reading} {change} suggests {self.trait.says}"


def kinds(
    measurements: Sequence[Measurement], known: CanarySeries
) -> tuple[tuple[Kind | None, ...], Kind | None]:
    """The kind of GPU of each of the baseline's processes, and of the new ones.

    Readings of another canary are left out.
    """
    canaries = _canaries(measurements)
    codes, kind = {canary.code for canary in canaries}, _kind_by(canaries)
    if kind is None or len(codes) > 1:
        return (), None
    return tuple(
        _kind([[known.of(process, name)] for name in KIND_READINGS]) if {code} == codes else None
        for process, code in enumerate(known.codes)
    ), kind


def kind_of(conditions: Conditions | None) -> Kind | None:
    """The kind of the GPU in these conditions; None if its canary was not read."""
    return _kind_by(conditions.canaries or () if conditions else ())


def _kind_by(canaries: Sequence[Canary]) -> Kind | None:
    return _kind([[canary.readings.get(name) for canary in canaries] for name in KIND_READINGS])


def _kind(values: Sequence[Sequence[float | None]]) -> Kind | None:
    """The mean logarithm of each reading; None if a reading is missing."""
    logarithms = [[math.log(one) for one in series if one and one > 0] for series in values]
    return tuple(map(fmean, logarithms)) if all(logarithms) else None


def _canaries(measurements: Sequence[Measurement]) -> list[Canary]:
    """The readings of the canary before and after each of these measurements."""
    conditions = (measurement.fingerprint.conditions for measurement in measurements)
    return [canary for one in conditions if one for canary in one.canaries or ()]


def moved(
    measurements: Sequence[Measurement], known: CanarySeries | None, gpus: Sequence[str] = ()
) -> tuple[Moved, ...]:
    """The readings that moved since the baseline, or from before a measurement to after it.

    `known` is what the baseline's processes read, and `gpus` the GPU of each: where there are any
    of this very GPU, it is they that count. Compared is with the nearest of them: a baseline of two
    hosts knows both; of a clock with the median. Readings of another canary are not comparable.
    """
    canaries = _canaries(measurements)
    codes = {canary.code for canary in canaries}
    measured = {measurement.fingerprint.device.identity for measurement in measurements}
    known = known or CanarySeries((), {})
    here = [process for process, code in enumerate(known.codes) if {code} == codes]
    own = [process for process in here if {*gpus[process : process + 1]} & measured]
    conditions = [measurement.fingerprint.conditions for measurement in measurements]
    found = {one.reading: one for each in conditions if each for one in between(each)}
    for name, trait in TRAITS.items():
        before = [value for process in own or here if (value := known.of(process, name))]
        if trait.alone and not before:
            before = [trait.alone]
        values = [value for canary in canaries if (value := canary.readings.get(name))]
        if before and values:
            now = median(values)
            # A clock that one process of five had is not what the others were measured at.
            usual = median(before) if trait.clock else now
            nearest = min(before, key=lambda value: abs(math.log(usual / value)))
            one = Moved(name, nearest, now)
            if abs(one.change) > trait.noise:
                found[name] = one
    return tuple(found.values())


def between(conditions: Conditions) -> tuple[Moved, ...]:
    """The readings of the GPU that moved from before a measurement to after it.

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


@dataclass(frozen=True)
class MachineState:
    """The state of the machine that a step was measured on, by the reference workload."""

    measurements: Sequence[Measurement]
    canary: CanarySeries | None
    """The readings of the canary beside each process of the baseline."""
    gpus: Sequence[str]
    """The GPU of each of these."""
    is_unseen: bool
    """Whether the baseline has no process on this GPU."""

    @property
    def is_known(self) -> bool:
        """False where nothing tells the machine's state, as of a CPU."""
        return self.is_unseen or bool(_canaries(self.measurements))

    @cached_property
    def moved(self) -> Sequence[Moved]:
        """The readings that changed."""
        return moved(self.measurements, self.canary, self.gpus)

    @cached_property
    def waiting(self) -> float:
        """The share of the step's time in which no kernel ran; 0 if it was not measured.

        Also 0 for a step over ranks, whose collectives wait for each other: kernel_time lacks them.
        """
        shares = []
        for measurement in self.measurements:
            if RANK_COUNT in measurement.workload:
                continue
            values = {s.metric: median(s.values) for s in measurement.samples if s.phase == STEP}
            kernels_ns, step_ms = values.get("kernel_time"), values.get("step_time")
            if kernels_ns is not None and step_ms:
                shares.append(1 - min(1.0, kernels_ns / (step_ms * 1e6)))
        return min(median(shares), _MOST_WAITING) if shares else 0.0

    @property
    def clock(self) -> float:
        """The change of the SM's clock, as a logarithm."""
        return next((one.change for one in self.moved if one.reading == CLOCK), 0.0)

    @property
    def clock_error(self) -> Variance:
        """What the moved clock leaves unknown of the time of kernels, as a logarithm."""
        size = abs(self.clock)
        return Variance((PER_CLOCK * size) ** 2 if size <= MOST_CLOCK else 0.0, PRIOR_WEIGHT)


def confounded(verdict: Verdict, metric: Metric, machine: MachineState) -> Verdict:
    """The verdict, or a verdict of MACHINE if the machine explains the change.

    Only cycles and times with a baseline value can be explained. Metrics that are not gated, and
    phases, have no verdict but `reported`.
    """
    if metric.metric_class is not MetricClass.CYCLE or verdict.change is None:
        return verdict
    if verdict.outcome is Outcome.UNCHANGED:
        # Of a GPU of a kind that the baseline has none of, nothing says what to expect.
        moved = machine.moved if machine.is_unseen else ()
        causes = [one for one in moved if one.reading in KIND_READINGS]
    elif _is_doubtful(verdict):
        causes = [one for one in machine.moved if _explains(one, verdict, metric, machine)]
    else:
        return verdict
    # The few launches of the canary say less of a host than a thousand of a step do. Of how much
    # faster a faster host makes a step, its own waiting says nothing.
    is_unknown = machine.is_unseen and len({*machine.gpus}) < KNOWN_HOSTS
    is_slower = verdict.outcome is not Outcome.UNCHANGED and _slower(verdict)
    if causes:
        reason = REASON
        detail = "gpuperf's reference kernels (canary) changed too: " + "; ".join(map(str, causes))
    elif is_unknown and is_slower and _within_waiting(verdict, metric, machine):
        reason = UNKNOWN_HOST
        detail = (
            f"no kernel ran in {machine.waiting:.0%} of the step, and this host may be slower than "
            "the baseline's. Accept runs of both: gpuperf update-baseline RUN RUN --reason TEXT"
        )
    else:
        return verdict
    return replace(verdict, outcome=Outcome.MACHINE, reason=reason, detail=detail)


def _is_doubtful(verdict: Verdict) -> bool:
    """Whether the metric changed, or is undecided after as many processes as there will be."""
    if verdict.outcome is Outcome.INCONCLUSIVE:
        return verdict.processes >= LEAST_TO_ALARM
    return verdict.outcome in (Outcome.REGRESSED, Outcome.IMPROVED)


def _explains(cause: Moved, verdict: Verdict, metric: Metric, machine: MachineState) -> bool:
    """Whether the verdict's change, at its end next to none, is one that the reading explains.

    Of a time, cycles say what is left beside the clock. What a GPU waits for its host is explained
    where the host is another.
    """
    trait, change = cause.trait, cause.change
    if trait.clock and metric.unit == "cycles":
        return False
    if trait.slower and (change * trait.slower > 0) is not _slower(verdict):
        return False
    if trait.alone:
        return True
    if trait.host:
        return _within_waiting(verdict, metric, machine)
    if trait.of_clock and metric.unit != "cycles":
        change -= machine.clock
        if abs(change) <= trait.noise:
            return False
    return _within(verdict, abs(change))


def _within_waiting(verdict: Verdict, metric: Metric, machine: MachineState) -> bool:
    """Whether the GPU's waiting for its host is enough for the change; kernels do not wait."""
    return metric.name != KERNEL_TIME and _within(verdict, -math.log1p(-machine.waiting))


def _slower(verdict: Verdict) -> bool:
    """Whether the metric took more, of cycles or of time."""
    return (verdict.change or 0.0) > 0


def _within(verdict: Verdict, share: float) -> bool:
    """Whether a logarithm of that size explains the end of the change that is next to none.

    Of an interval that is too wide to decide that end says nothing: there it is the change itself.
    """
    change = verdict.change or 0.0
    near = verdict.low if change > 0 else verdict.high
    if verdict.outcome is Outcome.INCONCLUSIVE or near is None:
        near = change
    least = abs(math.log1p(max(near, -1 + 1e-9))) if near * change > 0 else 0.0
    return share > 0 and least <= share + math.log1p(verdict.tolerance or 0.0)
