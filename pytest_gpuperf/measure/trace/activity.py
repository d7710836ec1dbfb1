"""Activity of the GPU over a step: kernels, copies and fills one by one, and the metrics of them.

Read from the events of a trace (`profile.py`): of the whole step, and of each component, which
annotates the trace. What a CUDA graph ran is here by itself, too. What ran on several streams at
once is counted once: times are those of unions of intervals.
"""

from __future__ import annotations

import math
import re
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.measure.collector import PhaseNames, Plan, Work, each
from pytest_gpuperf.measure.execution import CudaTimer, Executions, Series, prepare
from pytest_gpuperf.measure.trace import host_calls, profile
from pytest_gpuperf.measure.trace.profile import (
    ANNOTATION,
    COPY,
    KERNEL,
    KINDS,
    MICROSECOND,
    Event,
    Spans,
    graph_launches,
    launch_calls,
    on_device,
)
from pytest_gpuperf.model.measurement import STEP, Scalar, Unsupported

COMPONENT, PHASE = "gpuperf component: ", "gpuperf phase: "
"""What the names of their ranges in the trace begin with."""
H2D, D2H, D2D = DIRECTIONS = ("h2d", "d2h", "d2d")
PINNED, PAGEABLE = "pinned", "pageable"
TRACES = 3
"""The most executions that are traced for the step of one process, and as many again for its
components: not more than there are rounds of counters."""
TRACES_OF_RANKS = 7
"""Where ranks are compared by what each works itself: of so many, a rank that was slowed by 2 % was
named in 19 of 20 trials on two H100s (docs/runs/ranks)."""
ENOUGH_NS, ENOUGH_WALL_MS, MOST = 20e6, 200.0, 5
"""A short step is traced again until its kernels, or its executions, took so long together, at most
so often and an odd number of times. The first execution that is traced takes 0.2 % longer than
most, and processes agree to 0.08 % on the median of five, to 0.11 % on the first alone
(tests/data/h100-traces). Of nine they agree no better."""
NOTHING = (
    "the trace of the step has no kernel, copy or fill: torch.profiler sees nothing while another "
    "profiler (nsys, ncu) watches the process, or the step uses no GPU"
)
_COPY = re.compile(r"Memcpy (?P<from>\w)to(?P<to>\w)(?: \((?P<source>.*) -> (?P<target>.*)\))?")
"""Kineto's names: "Memcpy HtoD (Pinned -> Device)"; H is the host, all else is on a device."""
_COLLECTIVE = ("ncclDevKernel", "ncclKernel")
_OF_GLOO = "gloo:"
"""How the ranges begin that torch's process group gloo opens from a collective's start to its end,
in threads of its own."""
Interval = tuple[float, float]
"""Begin and end."""
Collectives = dict[str, tuple[float, ...]]
"""Nanoseconds of the collectives of one execution by their names, in order."""
Tracing = Callable[..., list[Event]]
"""`profile.events`, or a script in its place."""


@dataclass(frozen=True, slots=True)
class Activity:
    """One kernel, copy or fill, in nanoseconds of the trace's own clock."""

    kind: str
    """kernel, copy or fill."""
    begin: float
    end: float
    graph: int | None = None
    """Which launch of a CUDA graph it belongs to; None for what was launched by itself."""
    component: str = ""
    """The innermost component that was open when the host launched it, as the trace calls it; ""
    for none."""
    direction: str = ""
    """Of a copy: h2d, d2h or d2d; "" for a copy that no device takes part in."""
    memory: str = ""
    """Of a copy from or to the host: pinned, or pageable for all that is not pinned."""
    size: float = 0.0
    """Of a copy, in bytes."""
    collective: str = ""
    """The name of a kernel of NCCL; "" for all else."""


Parts = dict[str, list[Activity]]
"""What each component of a step has launched in one execution, by its name."""


@dataclass(frozen=True)
class Active:
    """What the traces have shown."""

    series: Series = field(default_factory=dict)
    unsupported: tuple[Unsupported, ...] = ()
    components: tuple[str, ...] = ()
    settings: dict[str, Scalar] = field(default_factory=dict)
    collectives: tuple[Collectives, ...] = ()
    """Of a step of several ranks, per trace."""


@dataclass(frozen=True)
class TracePlan:
    """How many executions of a step are traced, in their order: see `measured`."""

    components: int
    """For the components, after one in which these are learnt."""
    warmup: int
    """Of the whole step, discarded: the first takes along what a profiler does once."""
    count: int
    """Of the whole step, each with a value of every metric."""
    extended: bool
    """Whether more of the whole step follow where it is short."""

    @classmethod
    def of(cls, plan: Plan, *, together: bool, alone: bool) -> TracePlan:
        """The plan for a step, of several ranks `together` or not."""
        components = min(TRACES, plan.rounds) if plan.components else 0
        count = TRACES_OF_RANKS if together else components or (TRACES if alone else 1)
        warmup = int(count > 1 and not plan.components)
        return cls(components, warmup, count, extended=not (together or plan.components))


def measured(
    executions: Executions,
    plan: Plan,
    traced: Tracing = profile.events,
    *,
    alone: bool = False,
) -> Active:
    """The metrics of `plan.activity`: one value per trace. Nothing where none is asked for.

    One execution more is traced than `executions` has made. Several are of a short step, where
    components are measured too, where the step is one of several ranks, and where the traces are
    `alone` with the verdict, since no counters can be read; before them then comes one more, which
    takes along what a profiler does once. Components take executions of their own. Raises
    MeasurementError for components that cannot be told apart, and what the step raises.
    """
    if not plan.activity:
        return Active()
    together = executions.work.together
    planned = TracePlan.of(plan, together=together, alone=alone)
    names: tuple[str, ...] = ()
    parts: list[Parts] = []
    try:
        if plan.components:
            names, parts = _in_components(executions, traced, planned.components)
        wholes = _wholes(executions, traced, planned)
    except CountersUnavailable as error:
        return _untraced(plan, str(error))
    if not all(whole.values for whole in wholes):
        return _untraced(plan, NOTHING)
    wanted = {metric.name for metric in plan.activity}
    if together:
        wanted |= {"own_time", "collective_time"}
    of_parts = [{name: values_of_part(launched[name]) for name in names} for launched in parts]
    return Active(
        {**_series([whole.values for whole in wholes], wanted), **_series(of_parts, wanted)},
        components=names,
        settings={"traces": len(wholes)},
        collectives=tuple(whole.collectives for whole in wholes) if together else (),
    )


def _series(executions: Sequence[dict[str, dict[str, float]]], wanted: set[str]) -> Series:
    """The values of the metrics that are wanted, by part, of each of these executions.

    A share of nothing is no number: a metric is left out where an execution had nothing to copy.
    """
    series: Series = {}
    for parts in executions:
        for part, values in parts.items():
            for name, value in values.items():
                if name in wanted:
                    series.setdefault((part, name), []).append(value)
    return {key: values for key, values in series.items() if len(values) == len(executions)}


def _wholes(executions: Executions, traced: Tracing, plan: TracePlan) -> list[_Whole]:
    """The whole step in each execution that is traced for it, without the discarded one."""
    work, timer = executions.work, executions.timer
    wholes = []
    reset_ms = 0.0
    for _ in each(work.progress, "tracing", plan.warmup + plan.count, after=None):
        before = time.perf_counter()
        prepare(work, timer)
        reset_ms = 1e3 * (time.perf_counter() - before)
        wholes.append(_whole(work, timer, traced))
    wholes = wholes[plan.warmup :]
    wall_ms = reset_ms + executions.wall_ms
    again = max(0, _enough(wholes[0].values, wall_ms) - plan.count) if plan.extended else 0
    for _ in each(work.progress, "tracing a short step again", again, after=None):
        prepare(work, timer)
        wholes.append(_whole(work, timer, traced))
    return wholes


def _enough(whole: dict[str, dict[str, float]], wall_ms: float) -> int:
    """How many executions of such a step are traced, each with its reset."""
    kernels_ns = whole.get(STEP, {}).get("kernel_time", 0.0)
    if not (kernels_ns and wall_ms):
        return 1
    count = min(MOST, math.ceil(ENOUGH_NS / kernels_ns), max(1, int(ENOUGH_WALL_MS / wall_ms)))
    return count if count % 2 else count - 1


def _untraced(plan: Plan, reason: str) -> Active:
    missing = tuple(Unsupported(metric.name, reason) for metric in plan.activity)
    return Active(unsupported=missing, settings={"traces": 0})


@dataclass(frozen=True)
class _Whole:
    """What one trace has shown of a step."""

    values: dict[str, dict[str, float]] = field(default_factory=dict)
    """Of the step and its phases, by metric; none where the trace saw nothing."""
    collectives: Collectives = field(default_factory=dict)


def _whole(work: Work, timer: CudaTimer, traced: Tracing) -> _Whole:
    """Traces one execution.

    torch's own ranges, which take the host time, are in the trace where something was compiled.
    """
    spans, compilations = Spans(PHASE), host_calls.Compilations()
    with work.phases.heard_by(spans):
        events = traced(work.step, timer.synchronize, host=compilations.any, spans=spans)
    ran, calls = activities(events), host_calls.during(events)
    if not (ran or launch_calls(events)):
        return _Whole()
    ranges = Ranges(events, PHASE)
    values = {STEP: {**values_of_step(ran), **host_calls.counted(name for _, name in calls)}}
    values[STEP] |= compilations.counted(events)
    in_phases = activities(events, PHASE)
    for phase, number in spans.numbers.items():
        if ranges.has(number):
            values[phase] = {
                **values_of_part([entry for entry in in_phases if entry.component == number]),
                **host_calls.counted(name for at, name in calls if ranges.at(at) == number),
            }
    shared = [entry for entry in ran if entry.collective]
    values[STEP]["own_time"] = length(union(entry for entry in ran if not entry.collective))
    values[STEP]["collective_time"] = length(union(shared))
    durations = ((entry.collective, entry.end - entry.begin) for entry in shared)
    return _Whole(values, _by_name(durations))


def checked(heard: Sequence[Collection[str]], phases: Collection[str]) -> tuple[str, ...]:
    """The components of several executions of a step, each once.

    Raises MeasurementError where executions differ in them, and where one has a phase's name: what
    was measured of the two could not be told apart.
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
                f'"{name}" is both a phase and a component of the step: give one of them another '
                "name"
            )
    return names


def values_of_step(ran: Sequence[Activity]) -> dict[str, float]:
    """The metrics of a step, by name. Shares and gaps only where there is something to divide."""
    values = values_of_part(ran)
    kernels = union(entry for entry in ran if entry.kind == KERNEL)
    copies = union(entry for entry in ran if entry.direction)
    span = max(e.end for e in ran) - min(e.begin for e in ran) if ran else 0.0
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
    copies = [entry for entry in ran if entry.direction]
    sizes = {
        f"copy_bytes_{way}_{memory}": _size(copies, way, memory)
        for way in (H2D, D2H)
        for memory in (PINNED, PAGEABLE)
    }
    times = {
        f"copy_time_{way}": length(union(e for e in copies if e.direction == way))
        for way in DIRECTIONS
    }
    return {
        "kernel_time": length(union(e for e in ran if e.kind == KERNEL and not e.collective)),
        "launches": float(launches(ran)),
        "collectives": float(sum(bool(entry.collective) for entry in ran)),
        "graph_launches": float(graphs(ran)),
        "copies": float(len(copies)),
        **sizes,
        "copy_bytes_d2d": _size(copies, D2D, ""),
        **times,
    }


def activities(traced: Sequence[Event], prefix: str = COMPONENT) -> tuple[Activity, ...]:
    """What a trace has of the device, in the order of the beginnings.

    Each with its innermost component, or its phase where the ranges have that `prefix`.
    """
    events, calls, components = on_device(traced), launch_calls(traced), Ranges(traced, prefix)
    graphs = graph_launches(traced) | _shared(events)
    return tuple(_activity(event, graphs, calls, components) for event in events)


def launches(ran: Sequence[Activity]) -> int:
    """How often the host launched a kernel or a graph."""
    alone = sum(entry.kind == KERNEL and entry.graph is None for entry in ran)
    return alone + graphs(ran)


def graphs(ran: Sequence[Activity]) -> int:
    """How many CUDA graphs were launched."""
    return len({entry.graph for entry in ran if entry.graph is not None})


def union(ran: Iterable[Activity]) -> list[Interval]:
    """When any of them ran: intervals that neither overlap nor touch, in order."""
    merged: list[Interval] = []
    for begin, end in sorted((entry.begin, entry.end) for entry in ran):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def common(some: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """When both were. Each of them is a union."""
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
    """How long they are together, of intervals that do not overlap."""
    return math.fsum(end - begin for begin, end in intervals)


def _in_components(
    executions: Executions, traced: Tracing, traces: int
) -> tuple[tuple[str, ...], list[Parts]]:
    """The step's components, and what each launched, in each execution that was traced for it."""
    work, timer = executions.work, executions.timer
    first = PhaseNames()
    for _ in each(work.progress, "tracing for the first time", 1, after=None):
        prepare(work, timer)
        with work.components.heard_by(first):
            traced(work.step, timer.synchronize)
    heard: list[list[str]] = [first.names]
    parts: list[Parts] = []
    for _ in each(work.progress, "tracing components", traces if first.names else 0, after=None):
        prepare(work, timer)
        listener = Spans(COMPONENT)
        with work.components.heard_by(listener):
            events = traced(work.step, timer.synchronize, spans=listener)
        heard.append(listener.names)
        ran = activities(events)
        parts.append(
            {
                name: [entry for entry in ran if entry.component == number]
                for name, number in listener.numbers.items()
            }
        )
    return checked(heard, executions.phases), parts


def _gaps(ran: Iterable[Activity]) -> list[float]:
    """The time before each kernel but the first in which no kernel ran."""
    kernels = sorted((e.begin, e.end) for e in ran if e.kind == KERNEL)
    gaps, reached = [], -math.inf
    for (_, end), (begin, _) in pairwise(kernels):
        reached = max(reached, end)
        gaps.append(max(0.0, begin - reached))
    return gaps


def _size(copies: Iterable[Activity], way: str, memory: str) -> float:
    return math.fsum(e.size for e in copies if (e.direction, e.memory) == (way, memory))


def _shared(events: Sequence[Event]) -> set[int]:
    """Correlation ids of several kernels: not every call that launches a graph is in a trace."""
    counts = Counter(
        event.get("args", {}).get("correlation") for event in events if event["cat"] == KERNEL
    )
    return {correlation for correlation, count in counts.items() if correlation and count > 1}


def _activity(
    event: Event, graphs: set[int], calls: dict[int, float], components: Ranges
) -> Activity:
    arguments = event.get("args", {})
    correlation = arguments.get("correlation")
    launched = calls.get(correlation)
    begin = float(event["ts"]) * MICROSECOND
    kind = KINDS[event["cat"]]
    direction, memory = _way(str(event["name"])) if kind == COPY else ("", "")
    return Activity(
        kind,
        begin,
        begin + float(event["dur"]) * MICROSECOND,
        correlation if correlation in graphs else None,
        "" if launched is None else components.at(launched),
        direction,
        memory,
        float(arguments.get("bytes", 0.0)) if kind == COPY else 0.0,
        str(event["name"]) if kind == KERNEL and is_collective(str(event["name"])) else "",
    )


def _way(name: str) -> tuple[str, str]:
    """The direction of a copy, and the kind of the host's memory."""
    match = _COPY.match(name)
    if match is None or match["from"] == match["to"] == "H":
        return "", ""
    if match["from"] == "H":
        return H2D, _memory(match["source"])
    if match["to"] == "H":
        return D2H, _memory(match["target"])
    return D2D, ""


def _memory(said: str | None) -> str:
    return PINNED if said == "Pinned" else PAGEABLE


class Ranges:
    """When which component, or phase, was the innermost one that was open."""

    def __init__(self, traced: Sequence[Event], prefix: str = COMPONENT) -> None:
        ranges = sorted(
            (float(e["ts"]), -float(e["dur"]), str(e["name"]).removeprefix(prefix))
            for e in traced
            if e.get("cat") == ANNOTATION and str(e.get("name", "")).startswith(prefix)
        )
        self._moments: list[float] = []
        self._names: list[str] = []
        open_ranges: list[tuple[float, str]] = []
        for begin, negative, name in ranges:
            self._close(open_ranges, begin)
            open_ranges.append((begin - negative, name))
            self._from(begin, name)
        self._close(open_ranges, float("inf"))

    def at(self, moment: float) -> str:
        """The innermost component at `moment`, in the trace's time; "" for none."""
        position = bisect_right(self._moments, moment) - 1
        return self._names[position] if position >= 0 else ""

    def has(self, name: str) -> bool:
        """Whether the trace has a range of this name."""
        return name in self._names

    def _close(self, open_ranges: list[tuple[float, str]], moment: float) -> None:
        while open_ranges and open_ranges[-1][0] <= moment:
            end, _ = open_ranges.pop()
            self._from(end, open_ranges[-1][1] if open_ranges else "")

    def _from(self, moment: float, name: str) -> None:
        self._moments.append(moment)
        self._names.append(name)


def is_collective(kernel: str) -> bool:
    """Whether the kernel of this name is one of NCCL's."""
    return kernel.startswith(_COLLECTIVE)


def host_collectives(traced: Sequence[Event]) -> tuple[float, Collectives]:
    """Nanoseconds in which a collective of gloo was under way, and those of each by itself."""
    ran = sorted(
        (
            Activity(KERNEL, begin, begin + float(e["dur"]) * MICROSECOND, collective=e["name"])
            for e in traced
            if e.get("cat") == ANNOTATION and str(e.get("name", "")).startswith(_OF_GLOO)
            for begin in [float(e["ts"]) * MICROSECOND]
        ),
        key=lambda entry: entry.begin,
    )
    return length(union(ran)), _by_name(
        (entry.collective, entry.end - entry.begin) for entry in ran
    )


def _by_name(durations: Iterable[tuple[str, float]]) -> Collectives:
    named: dict[str, list[float]] = {}
    for name, duration in durations:
        named.setdefault(name, []).append(duration)
    return {name: tuple(values) for name, values in named.items()}
