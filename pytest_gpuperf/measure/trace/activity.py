"""Metrics of a step's activity on the GPU, of the whole step and of each component.

They come from the single entries of a trace (`profile.py`), including those inside a CUDA graph.
Overlapping work on several streams counts once: times are those of unions of intervals.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

from pytest_gpuperf.catalogue import kernel_families
from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.measure.collector import (
    Collected,
    Plan,
    check_alike,
    each,
    samples_of,
)
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
    length,
    union,
)
from pytest_gpuperf.model.measurement import STEP, Unsupported, grouped

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
Values = dict[str, dict[str, float]]
"""The metrics of one execution, of each part by its name."""


def measured(executions: Executions, plan: Plan, *, alone: bool = False) -> Collected:
    """The metrics of `plan.activity`: one value per trace. Empty if none is requested.

    Of `executions`, one more is traced. Several are traced of a short step, if components are
    measured too, for one of several ranks, and for traces `alone`, without counters. An extra first
    trace then takes a profiler's one-time work. Components take executions of their own. Raises
    MeasurementError for components that cannot be separated, and what the step raises.
    """
    if not plan.activity:
        return Collected(())
    tracer = _Tracer(executions, plan, alone)
    names: tuple[str, ...] = ()
    parts: list[Values] = []
    try:
        if plan.components:
            names, parts = tracer.components()
        wholes = tracer.wholes()
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
    together = executions.work.together
    if together:
        wanted |= {"own_time", "collective_time"}
    series = _series([values for values, _ in wholes], wanted) | _series(parts, wanted)
    return Collected(
        samples_of(series),
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


def _untraced(plan: Plan, reason: str) -> Collected:
    missing = tuple(Unsupported(metric.name, reason) for metric in plan.activity)
    return Collected((), missing, {"traces": 0})


@dataclass(frozen=True)
class _Tracer:
    """Traces executions of one step as planned; `alone` are traces without counters."""

    executions: Executions
    plan: Plan
    alone: bool

    @property
    def _of_parts(self) -> int:
        """Traces for the components, after a first one that finds them."""
        return min(TRACES, self.plan.rounds) if self.plan.components else 0

    def components(self) -> tuple[tuple[str, ...], list[Values]]:
        """The step's components and their metrics in several executions, after a first one.

        A step without components is executed only once.
        """
        work, timer = self.executions.work, self.executions.timer
        heard: list[list[str]] = []
        parts: list[Values] = []
        for _ in self._each("tracing components", 1 + self._of_parts):
            spans = Spans(COMPONENT)
            with work.components.heard_by(spans):
                trace = profile.trace(work.step, timer.synchronize, spans=spans)
            heard.append(spans.names)
            if not spans.names:
                break
            of = launched_in(trace, COMPONENT)
            parts.append({name: values_of_part(of.get(name, ())) for name in spans.names})
        return checked(heard, self.executions.phases), parts[1:]

    def wholes(self) -> list[tuple[Values, Sequence[Activity]]]:
        """The whole step in each execution that is traced for it, with a value of every metric.

        Where there are several, another comes before them for a profiler's one-time work.
        """
        together = self.executions.work.together
        count = TRACES_OF_RANKS if together else self._of_parts or (TRACES if self.alone else 1)
        discarded = int(count > 1 and not self.plan.components)
        traced = [(reset, self._whole()) for reset in self._each("tracing", discarded + count)]
        wholes = [whole for _, whole in traced[discarded:]]
        if not (together or self.plan.components):
            wall_ms = traced[-1][0] + self.executions.wall_ms
            again = max(0, _enough(wholes[0][0], wall_ms) - count)
            wholes += [self._whole() for _ in self._each("tracing a short step again", again)]
        return wholes

    def _each(self, stage: str, count: int) -> Iterator[float]:
        """Announces and prepares so many executions; the milliseconds that this took."""
        work, timer = self.executions.work, self.executions.timer
        for _ in each(work.progress, stage, count):
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
        for phase in dict.fromkeys(one.name for one in marked):
            values[phase] = {
                **values_of_part(launched.get(phase, ())),
                **host_calls.counted(name for at, name in calls if ranges.at(at) == phase),
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


def launched_in(trace: Trace, prefix: str) -> dict[str | None, list[Activity]]:
    """Activities by the innermost range that was open at their launch; None for none."""
    ranges = Ranges(trace.ranges(prefix))
    return grouped(trace.activities, lambda one: ranges.at(one.launched))


def checked(heard: Sequence[Collection[str]], phases: Collection[str]) -> tuple[str, ...]:
    """The components of several executions of a step, each once.

    Raises MeasurementError if they differ between executions, and if one has a phase's name,
    because the two could not be distinguished.
    """
    names = tuple(dict.fromkeys(heard[0])) if heard else ()
    for others in heard[1:]:
        if {*others} != {*names}:
            check_alike("components", names, tuple(dict.fromkeys(others)))
    for name in names:
        if name in phases:
            raise MeasurementError(
                f'"{name}" is both a phase and a component of the step. Rename one of them'
            )
    return names


def values_of_step(ran: Sequence[Activity]) -> dict[str, float]:
    """The metrics of a step, by name. Shares and gaps only where there is something to divide."""
    values = values_of_part(ran)
    span = max(one.end for one in ran) - min(one.begin for one in ran) if ran else 0.0
    values["gpu_span"] = span
    if span:
        values["gpu_idle"] = 100 * max(0.0, 1 - length(union(ran)) / span)
    gaps = _gaps(ran)
    if gaps:
        values["launch_gaps"] = math.fsum(gaps)
        values["launch_gap_median"] = median(gaps)
    kernels = [one for one in ran if one.kind == KERNEL]
    copies = [one for one in ran if one.way[0]]
    if copying := length(union(copies)):
        beside = length(union([*kernels, *copies])) - length(union(kernels))
        values["copy_overlap"] = round(100 * max(0.0, 1 - beside / copying), 9)
    return values


def values_of_part(ran: Sequence[Activity]) -> dict[str, float]:
    """The metrics that a part of a step has too, by name."""
    copies = [one for one in ran if one.way[0]]
    kernels = [one for one in ran if one.kind == KERNEL]
    graphs = {one.graph for one in ran} - {None}

    def size(*way: str) -> float:
        return math.fsum(one.size for one in copies if one.way == way)

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
            f"copy_time_{way}": length(union(one for one in copies if one.way[0] == way))
            for way in DIRECTIONS
        },
    }


def _gaps(ran: Iterable[Activity]) -> list[float]:
    """The time before each kernel but the first in which no kernel ran."""
    kernels = sorted((e.begin, e.end) for e in ran if e.kind == KERNEL)
    reached = accumulate((end for _, end in kernels), max)
    return [max(0.0, begin - end) for end, (begin, _) in zip(reached, kernels[1:], strict=False)]


def _by_name(collectives: Iterable[Activity]) -> dict[str, tuple[float, ...]]:
    """Nanoseconds of the collectives of one execution by their names, in order."""
    named = grouped(collectives, lambda one: one.name)
    return {name: tuple(one.duration for one in of) for name, of in named.items()}
