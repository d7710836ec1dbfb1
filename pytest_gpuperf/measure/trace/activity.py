"""Metrics of a step's activity on the GPU, of the whole step and of each component.

They come from the single entries of a trace (`profile.py`), including those inside a CUDA graph.
Overlapping work on several streams counts once: times are those of unions of intervals.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from pytest_gpuperf.catalogue import kernel_families
from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.measure.collector import PhaseNames, Plan, each
from pytest_gpuperf.measure.execution import Executions, Series, prepare
from pytest_gpuperf.measure.trace import host_calls, profile
from pytest_gpuperf.measure.trace.profile import (
    D2D,
    D2H,
    DIRECTIONS,
    H2D,
    KERNEL,
    PAGEABLE,
    PINNED,
    Activity,
    Ranges,
    Spans,
    Trace,
)
from pytest_gpuperf.model.measurement import STEP, Scalar, Unsupported

COMPONENT, PHASE = "gpuperf component: ", "gpuperf phase: "
"""The prefixes of their ranges in the trace."""
TRACES = 3
"""The most executions that are traced for the step of one process, and as many again for its
components: not more than there are rounds of counters."""
TRACES_OF_RANKS = 7
"""Traces if ranks are compared by their own work. With this many, a rank slowed by 2 % was named in
19 of 20 trials on two H100s (docs/runs/ranks)."""
ENOUGH_NS, ENOUGH_WALL_MS, MOST = 20e6, 200.0, 5
"""Limits for repeated traces of a short step: total kernel time, total wall time, and the most
traces, an odd number. The first traced execution takes 0.2 % longer than most. Processes agree to
0.08 % on the median of five, to 0.11 % on the first (tests/data/h100-traces), no better on nine."""
NOTHING = (
    "torch.profiler recorded no kernel, copy or fill of the step. Either the step does not use "
    "the GPU, or another profiler (nsys, ncu) watches this process"
)
_OF_GLOO = "gloo:"
"""The prefix of ranges that torch's process group gloo opens from a collective's start to its end,
in threads of its own."""
Interval = tuple[float, float]
"""Begin and end."""
Collectives = dict[str, tuple[float, ...]]
"""Nanoseconds of the collectives of one execution by their names, in order."""
Tracing = Callable[..., Trace]
"""`profile.trace`, or a script in its place."""
Values = dict[str, dict[str, float]]
"""The metrics of one execution, of each part by its name."""


@dataclass(frozen=True)
class Active:
    """The results of the traces."""

    series: Series = field(default_factory=dict)
    unsupported: tuple[Unsupported, ...] = ()
    components: tuple[str, ...] = ()
    settings: dict[str, Scalar] = field(default_factory=dict)
    collectives: tuple[Collectives, ...] = ()
    """Per trace, the collectives in a step of several ranks."""
    launched: Mapping[str, str] = field(default_factory=dict)
    """As `Measurement` has it."""


@dataclass(frozen=True)
class TracePlan:
    """The numbers of traced executions of a step, in order: see `measured`."""

    components: int
    """Traces for the components, after a first one that finds them."""
    warmup: int
    """Discarded traces of the whole step: the first includes a profiler's one-time work."""
    count: int
    """Traces of the whole step, each with a value of every metric."""
    extended: bool
    """Whether more of the whole step follow where it is short."""

    @classmethod
    def of(cls, plan: Plan, *, together: bool, alone: bool) -> TracePlan:
        """The plan for a step, of several ranks `together` or not."""
        components = min(TRACES, plan.rounds) if plan.components else 0
        count = TRACES_OF_RANKS if together else components or (TRACES if alone else 1)
        warmup = int(count > 1 and not plan.components)
        return cls(components, warmup, count, extended=not (together or plan.components))


def measured(executions: Executions, plan: Plan, *, alone: bool = False) -> Active:
    """The metrics of `plan.activity`: one value per trace. Empty if none is requested.

    Of `executions`, one more is traced. Several are traced of a short step, if components are
    measured too, for one of several ranks, and for traces `alone`, without counters. An extra first
    trace then takes a profiler's one-time work. Components take executions of their own. Raises
    MeasurementError for components that cannot be separated, and what the step raises.
    """
    if not plan.activity:
        return Active()
    together = executions.work.together
    planned = TracePlan.of(plan, together=together, alone=alone)
    tracer = _Tracer(executions)
    names: tuple[str, ...] = ()
    parts: list[Values] = []
    try:
        if plan.components:
            names, parts = tracer.components(planned.components)
        wholes = tracer.wholes(planned)
    except CountersUnavailable as error:
        return _untraced(plan, str(error))
    if not all(values for values, _ in wholes):
        return _untraced(plan, NOTHING)
    launched = [
        kernel_families.launched((k.name, k.grid, k.block) for k in ran if k.kind == KERNEL)
        for _, ran in wholes
    ]
    shared = [_by_name(one for one in ran if one.collective) for _, ran in wholes]
    wanted = {metric.name for metric in plan.activity}
    if together:
        wanted |= {"own_time", "collective_time"}
    return Active(
        {**_series([values for values, _ in wholes], wanted), **_series(parts, wanted)},
        components=names,
        settings={"traces": len(wholes)},
        collectives=tuple(shared) if together else (),
        launched=launched[0] if all(one == launched[0] for one in launched) else {},
    )


def _series(executions: Sequence[Values], wanted: set[str]) -> Series:
    """The values of the metrics that are wanted, by part, of each of these executions.

    A share of nothing is no number: a metric is left out where an execution had nothing to copy.
    """
    series: Series = {}
    for parts in executions:
        for part, values in parts.items():
            for name in wanted & {*values}:
                series.setdefault((part, name), []).append(values[name])
    return {key: values for key, values in series.items() if len(values) == len(executions)}


def _untraced(plan: Plan, reason: str) -> Active:
    missing = tuple(Unsupported(metric.name, reason) for metric in plan.activity)
    return Active(unsupported=missing, settings={"traces": 0})


@dataclass(frozen=True)
class _Tracer:
    """Traces executions of one step."""

    executions: Executions

    def components(self, count: int) -> tuple[tuple[str, ...], list[Values]]:
        """The step's components and their metrics in `count` executions, after a first one.

        A step without components is executed only once.
        """
        work, timer = self.executions.work, self.executions.timer
        first = PhaseNames()
        for _ in self._each("tracing for the first time", 1):
            with work.components.heard_by(first):
                profile.trace(work.step, timer.synchronize)
        heard: list[list[str]] = [first.names]
        parts: list[Values] = []
        for _ in self._each("tracing components", count if first.names else 0):
            spans = Spans(COMPONENT)
            with work.components.heard_by(spans):
                trace = profile.trace(work.step, timer.synchronize, spans=spans)
            heard.append(spans.names)
            of = launched_in(trace, COMPONENT)
            numbers = spans.numbers.items()
            parts.append({name: values_of_part(of.get(number, ())) for name, number in numbers})
        return checked(heard, self.executions.phases), parts

    def wholes(self, plan: TracePlan) -> list[tuple[Values, Sequence[Activity]]]:
        """The whole step in each execution that is traced for it, without the discarded one."""
        stage, count = "tracing", plan.warmup + plan.count
        traced = [(reset_ms, self._whole()) for reset_ms in self._each(stage, count)]
        wholes = [whole for _, whole in traced[plan.warmup :]]
        wall_ms = traced[-1][0] + self.executions.wall_ms
        again = max(0, _enough(wholes[0][0], wall_ms) - plan.count) if plan.extended else 0
        wholes += [self._whole() for _ in self._each("tracing a short step again", again)]
        return wholes

    def _each(self, stage: str, count: int) -> Iterator[float]:
        """Announces and prepares so many executions; the milliseconds that this took."""
        work, timer = self.executions.work, self.executions.timer
        for _ in each(work.progress, stage, count, after=None):
            before = time.perf_counter()
            prepare(work, timer)
            yield 1e3 * (time.perf_counter() - before)

    def _whole(self) -> tuple[Values, Sequence[Activity]]:
        """The metrics of the step and its phases in one execution; empty for an empty trace.

        It includes torch's own ranges, which take host time, if anything was compiled.
        """
        work, timer = self.executions.work, self.executions.timer
        spans, compilations = Spans(PHASE), host_calls.Compilations()
        with work.phases.heard_by(spans):
            waits, host = timer.synchronize_all, compilations.any
            trace = profile.trace(work.step, waits, host=host, spans=spans)
        profile.check_gpu(trace)
        ran, calls = trace.activities, host_calls.during(trace)
        if not (ran or trace.calls):
            return {}, ran
        values = {STEP: {**values_of_step(ran), **host_calls.counted(name for _, name in calls)}}
        values[STEP] |= compilations.counted(trace)
        marked = trace.ranges(PHASE)
        ranges, launched = Ranges(marked), launched_in(trace, PHASE)
        for phase, number in spans.numbers.items():
            if any(one.name == number for one in marked):
                values[phase] = {
                    **values_of_part(launched.get(number, ())),
                    **host_calls.counted(name for at, name in calls if ranges.at(at) == number),
                }
        shared = [one for one in ran if one.collective]
        values[STEP]["own_time"] = length(union(one for one in ran if not one.collective))
        values[STEP]["collective_time"] = length(union(shared))
        return values, ran


def _enough(whole: Values, wall_ms: float) -> int:
    """The number of traced executions of such a step, each with its reset."""
    kernels_ns = whole.get(STEP, {}).get("kernel_time", 0.0)
    if not (kernels_ns and wall_ms):
        return 1
    count = min(MOST, math.ceil(ENOUGH_NS / kernels_ns), max(1, int(ENOUGH_WALL_MS / wall_ms)))
    return count if count % 2 else count - 1


def launched_in(trace: Trace, prefix: str) -> dict[str, list[Activity]]:
    """Activities by the innermost range that was open at their launch; "" for none."""
    ranges = Ranges(trace.ranges(prefix))
    launched: dict[str, list[Activity]] = {}
    for one in trace.activities:
        launched.setdefault(ranges.at(one.launched), []).append(one)
    return launched


def checked(heard: Sequence[Collection[str]], phases: Collection[str]) -> tuple[str, ...]:
    """The components of several executions of a step, each once.

    Raises MeasurementError if they differ between executions, and if one has a phase's name,
    because the two could not be distinguished.
    """
    names = tuple(dict.fromkeys(heard[0])) if heard else ()
    for others in heard[1:]:
        if set(others) != set(names):
            raise MeasurementError(
                "the components of the step change from one execution to the next: first "
                f"{list(names)}, then {list(dict.fromkeys(others))}. Give `measure` a `reset` "
                "after which the step does the same work again"
            )
    for name in names:
        if name in phases:
            raise MeasurementError(
                f'"{name}" is both a phase and a component of the step. Rename one of them'
            )
    return names


def values_of_step(ran: Sequence[Activity]) -> dict[str, float]:
    """The metrics of a step, by name. Shares and gaps only where there is something to divide."""
    values = values_of_part(ran)
    kernels = union(one for one in ran if one.kind == KERNEL)
    copies = union(one for one in ran if one.way[0])
    span = max(one.end for one in ran) - min(one.begin for one in ran) if ran else 0.0
    values["gpu_span"] = span
    if span:
        values["gpu_idle"] = 100 * max(0.0, 1 - length(union(ran)) / span)
    gaps = _gaps(ran)
    if gaps:
        values["launch_gaps"] = math.fsum(gaps)
        values["launch_gap_median"] = median(gaps)
    if length(copies):
        values["copy_overlap"] = 100 * length(common(copies, kernels)) / length(copies)
    return values


def values_of_part(ran: Sequence[Activity]) -> dict[str, float]:
    """The metrics that a part of a step has too, by name."""
    copies = [(one, *one.way) for one in ran if one.way[0]]
    kernels = [one for one in ran if one.kind == KERNEL]
    graphs = {one.graph for one in ran} - {None}

    def size(way: str, memory: str) -> float:
        return math.fsum(one.size for one, *said in copies if said == [way, memory])

    return {
        "kernel_time": length(union(one for one in kernels if not one.collective)),
        "launches": float(sum(one.graph is None for one in kernels) + len(graphs)),
        "collectives": float(sum(one.collective for one in kernels)),
        "graph_launches": float(len(graphs)),
        "copies": float(len(copies)),
        **{
            f"copy_bytes_{way}_{memory}": size(way, memory)
            for way in (H2D, D2H)
            for memory in (PINNED, PAGEABLE)
        },
        "copy_bytes_d2d": size(D2D, ""),
        **{
            f"copy_time_{way}": length(union(one for one, said, _ in copies if said == way))
            for way in DIRECTIONS
        },
    }


def union(ran: Iterable[Activity]) -> list[Interval]:
    """The times at which any of them ran: intervals in order that neither overlap nor touch."""
    merged: list[Interval] = []
    for begin, end in sorted((entry.begin, entry.end) for entry in ran):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def common(some: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """The common part of two unions."""
    shared: list[Interval] = []
    left, right = 0, 0
    while left < len(some) and right < len(others):
        begin = max(some[left][0], others[right][0])
        end = min(some[left][1], others[right][1])
        if begin < end:
            shared.append((begin, end))
        if some[left][1] <= others[right][1]:
            left += 1
        else:
            right += 1
    return shared


def length(intervals: Iterable[Interval]) -> float:
    """The total length of intervals that do not overlap."""
    return math.fsum(end - begin for begin, end in intervals)


def _gaps(ran: Iterable[Activity]) -> list[float]:
    """The time before each kernel but the first in which no kernel ran."""
    kernels = sorted((e.begin, e.end) for e in ran if e.kind == KERNEL)
    gaps, reached = [], -math.inf
    for (_, end), (begin, _) in pairwise(kernels):
        reached = max(reached, end)
        gaps.append(max(0.0, begin - reached))
    return gaps


def host_collectives(trace: Trace) -> tuple[float, Collectives]:
    """Nanoseconds with a gloo collective under way, and those of each collective."""
    ran = [one for one in trace.ranges("") if one.name.startswith(_OF_GLOO)]
    return length(union(ran)), _by_name(ran)


def _by_name(collectives: Iterable[Activity]) -> Collectives:
    named: dict[str, list[float]] = {}
    for one in collectives:
        named.setdefault(one.name, []).append(one.duration)
    return {name: tuple(durations) for name, durations in named.items()}
