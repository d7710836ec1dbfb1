"""One execution of a step as torch.profiler records it: activities on the GPU, and host calls.

The trace is of an execution without counters. Kernels of a CUDA graph are in it one by one, and
also as one entry of kind `graph`, as counters count them.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

from pytest_gpuperf.errors import CountersUnavailable, UnsoundStep
from pytest_gpuperf.measure.collector import PhaseNames

KERNEL, COPY, FILL, GRAPH, RANGE = "kernel", "copy", "fill", "graph", "range"
COUNTED = (KERNEL, GRAPH)
"""The kinds that counters see."""
KINDS = {"kernel": KERNEL, "gpu_memcpy": COPY, "gpu_memset": FILL}
"""The trace's categories (Kineto's names of activity types) and ours."""
MICROSECOND = 1000.0
"""The trace's unit of time, in nanoseconds."""
LAUNCHING = ("cuda_runtime", "cuda_driver")
"""The categories of the host's calls; a call and what it launches share a correlation id."""
_GRAPH_CALLS = ("cudaGraphLaunch", "cuGraphLaunch")
_COLLECTIVE = ("ncclDevKernel", "ncclKernel")
_COPY = re.compile(r"Memcpy (?P<from>\w)to(?P<to>\w)(?: \((?P<source>.*) -> (?P<target>.*)\))?")
"""Kineto's names: "Memcpy HtoD (Pinned -> Device)"; H is the host, other letters a device."""
H2D, D2H, D2D = DIRECTIONS = ("h2d", "d2h", "d2d")
PINNED, PAGEABLE = "pinned", "pageable"

MEASURED = 0
"""The GPU of the measurement's state, canary and name, as CUDA numbers visible GPUs."""
ANNOTATION = "user_annotation"
"""The category of ranges that a program opened by itself."""
OPERATOR = "cpu_op"
"""The category of torch's own ranges. On a GPU there are ranges of the same names."""
STEP_RANGE = "gpuperf step"
"""The name of the range that is the step, without the wait at its end."""
_BORDER_NS = 20_000
"""The host's wait at each border of a range: its clock and the trace's agree to some 3 us."""

Event = Mapping[str, Any]
"""One event of an exported trace (Chrome's format: `ts` and `dur` in microseconds)."""
Size = tuple[int, int, int]
Interval = tuple[float, float]
"""Begin and end."""


@dataclass(frozen=True, slots=True)
class Activity:
    """One kernel, copy or fill, one graph of them, or one range of the host's.

    Times are in nanoseconds since the device began.
    """

    kind: str
    """kernel, copy, fill, graph or range."""
    name: str
    begin: float
    duration: float
    launched: float | None = None
    """The time of its launch by the host; None if the trace lacks it."""
    graph: int | None = None
    """The launch of a CUDA graph that it belongs to; None for a separate launch."""
    grid: Size | None = None
    block: Size | None = None
    size: float = 0.0
    """The size of a copy, in bytes."""
    gpu: int = MEASURED
    """The number of the GPU that it ran on."""
    context: int = 0
    """CUPTI's number of the CUDA context that it was launched in."""

    @property
    def end(self) -> float:
        """The time of its end."""
        return self.begin + self.duration

    @property
    def collective(self) -> bool:
        """Whether it is a kernel of NCCL."""
        return self.kind == KERNEL and is_collective(self.name)

    @property
    def way(self) -> tuple[str, str]:
        """The direction of a copy, "" without a device, and whether the host's memory is pinned."""
        return _way(self.name) if self.kind == COPY else ("", "")


class Trace:
    """One execution of a step, read from the events of an exported trace."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events

    @cached_property
    def activities(self) -> tuple[Activity, ...]:
        """Kernels, copies and fills one by one, in order of their start."""
        made = [e for e in self.events if "correlation" in e.get("args", {})]
        launching = [event for event in made if event.get("cat") in LAUNCHING]
        calls = {e["args"]["correlation"]: self._at(e) for e in reversed(launching)}
        # A trace may lack the launch of a graph, but several kernels of one launch are a graph.
        kernels = Counter(e["args"]["correlation"] for e in made if e.get("cat") == KERNEL)
        graphs = {number for number, count in kernels.items() if number and count > 1}
        graphs |= {
            event["args"]["correlation"]
            for event in made
            if str(event.get("name", "")).startswith(_GRAPH_CALLS)
        }
        return tuple(self._activity(event, calls, graphs) for event in self._on_device)

    @cached_property
    def entries(self) -> tuple[Activity, ...]:
        """The activities in the order of their launches, with each launch of a graph as one.

        That is also the order of counters. The order of execution on several streams is random, and
        collectives have their own streams. It decides only if the trace lacks a launch.
        """
        parts: dict[tuple[int | None, int], list[Activity]] = {}
        for number, one in enumerate(self.activities):
            alone = number if one.graph is None else 0
            parts.setdefault((one.graph, alone), []).append(one)
        entries = [_graph(of) if of[0].graph is not None else of[0] for of in parts.values()]
        launched = [entry.launched for entry in entries if entry.launched is not None]
        if len(launched) == len(entries):
            entries.sort(key=lambda entry: entry.launched or 0.0)
        return tuple(entries)

    @property
    def counted(self) -> tuple[int, ...]:
        """Positions of the entries that counters see, kernels and graphs."""
        return tuple(i for i, entry in enumerate(self.entries) if entry.kind in COUNTED)

    @property
    def gaps(self) -> list[Interval]:
        """The idle intervals between the first start and the last end: begin and end.

        A graph runs from its first start to its last end.
        """
        return [(end, begin) for (_, end), (begin, _) in pairwise(union(self.entries))]

    @property
    def idle(self) -> float:
        """Nanoseconds between the first start and the last end in which nothing ran."""
        return length(self.gaps)

    @cached_property
    def calls(self) -> list[tuple[float, str]]:
        """The start of each CUDA call of the host, and its name."""
        made = (event for event in self.events if event.get("cat") in LAUNCHING)
        return sorted((self._at(event), str(event["name"])) for event in made)

    @property
    def step(self) -> tuple[float, float]:
        """The beginning and end of the step; infinite if the trace has no such range."""
        found = ((one.begin, one.end) for one in self.ranges(STEP_RANGE))
        return next(found, (-math.inf, math.inf))

    def ranges(self, prefix: str, category: str = ANNOTATION) -> list[Activity]:
        """The host's ranges whose names begin so, without that, the outer before the inner."""
        found = [
            Activity(RANGE, name.removeprefix(prefix), self._at(event), self._lasted(event))
            for event in self.events
            if event.get("cat") == category and (name := str(event["name"])).startswith(prefix)
        ]
        return sorted(found, key=lambda one: (one.begin, -one.duration))

    @cached_property
    def _on_device(self) -> list[Event]:
        """Events on the device, in order of their start."""
        on_device = (event for event in self.events if event.get("cat") in KINDS)
        return sorted(on_device, key=lambda event: float(event["ts"]))

    @cached_property
    def _origin(self) -> float:
        """The start of the device's work, in the trace's time."""
        return float(self._on_device[0]["ts"]) if self._on_device else 0.0

    def _at(self, event: Event) -> float:
        return (float(event["ts"]) - self._origin) * MICROSECOND

    @staticmethod
    def _lasted(event: Event) -> float:
        return float(event["dur"]) * MICROSECOND

    def _activity(self, event: Event, calls: dict[int, float], graphs: set[int]) -> Activity:
        arguments = event.get("args", {})
        correlation = arguments.get("correlation")
        return Activity(
            KINDS[event["cat"]],
            str(event["name"]),
            self._at(event),
            self._lasted(event),
            launched=calls.get(correlation),
            graph=correlation if correlation in graphs else None,
            grid=_three(arguments.get("grid")),
            block=_three(arguments.get("block")),
            size=float(arguments.get("bytes", 0.0)),
            gpu=int(arguments.get("device", MEASURED)),
            context=int(arguments.get("context", 0)),
        )


class Ranges:
    """The innermost open range over time, by its name."""

    def __init__(self, ranges: Sequence[Activity]) -> None:
        self._borders: list[tuple[float, str | None]] = []
        open_ranges: list[Activity] = []
        for one in (*ranges, Activity(RANGE, "", math.inf, 0.0)):
            while open_ranges and open_ranges[-1].end <= one.begin:
                end = open_ranges.pop().end
                self._borders.append((end, open_ranges[-1].name if open_ranges else None))
            open_ranges.append(one)
            self._borders.append((one.begin, one.name))

    def at(self, moment: float | None) -> str | None:
        """The innermost range at `moment`; None without a range or a moment."""
        if moment is None:
            return None
        position = bisect_right(self._borders, moment, key=itemgetter(0))
        return self._borders[position - 1][1] if position else None


def union(ran: Iterable[Activity]) -> list[Interval]:
    """The times at which any of them ran: intervals in order that neither overlap nor touch."""
    merged: list[Interval] = []
    for begin, end in sorted((entry.begin, entry.end) for entry in ran):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def length(intervals: Iterable[Interval]) -> float:
    """The total length of intervals that do not overlap."""
    return math.fsum(end - begin for begin, end in intervals)


def check_gpu(traced: Trace) -> None:
    """Raises UnsoundStep where some of the step ran on another GPU, or in another context."""
    ran = Counter(one.gpu for one in traced.activities)
    others = [f"{ran[gpu]:,} ran on cuda:{gpu}" for gpu in sorted(ran) if gpu != MEASURED]
    if others:
        raise UnsoundStep(
            f"{' and '.join(others)}, of {ran.total():,} kernels, copies and fills of the step, "
            f"but gpuperf reads counters of cuda:{MEASURED} only. Keep the step on cuda:{MEASURED} "
            "(CUDA_VISIBLE_DEVICES chooses the GPU). Or give each GPU a process by "
            "gpuperf.measure_ranks or the marker gpus(n)"
        )
    contexts = Counter(one.context for one in traced.activities if one.kind == KERNEL)
    if len(contexts) > 1:
        apart = contexts.total() - max(contexts.values())
        raise UnsoundStep(
            f"{apart:,} of {contexts.total():,} kernels of the step ran in a second CUDA context, "
            "but counters cover one context. Let the library that calls cuCtxCreate use the "
            "primary context, as torch, CuPy and Numba do"
        )


def is_collective(kernel: str) -> bool:
    """Whether the kernel of this name is one of NCCL's."""
    return kernel.startswith(_COLLECTIVE)


@lru_cache
def _way(name: str) -> tuple[str, str]:
    """The direction of a copy, and the kind of the host's memory: pinned is what says it is."""
    match = _COPY.match(name)
    if match is None or match["from"] == match["to"] == "H":
        return "", ""
    if "H" not in (match["from"], match["to"]):
        return D2D, ""
    direction, host = (H2D, "source") if match["from"] == "H" else (D2H, "target")
    return direction, PINNED if match[host] == "Pinned" else PAGEABLE


def _graph(parts: Sequence[Activity]) -> Activity:
    kernels = sum(part.kind == KERNEL for part in parts)
    begin, end = parts[0].begin, max(part.end for part in parts)
    name = f"CUDA graph of {kernels} kernel{'s' if kernels != 1 else ''}"
    return Activity(GRAPH, name, begin, end - begin, parts[0].launched)


def _three(numbers: list[int] | None) -> Size | None:
    return (numbers[0], numbers[1], numbers[2]) if numbers else None


def trace(
    step: Callable[[], object],
    synchronize: Callable[[], None],
    *,
    host: bool = False,
    spans: Spans | None = None,
) -> Trace:
    """One execution of `step` on the current CUDA device.

    The trace has CUDA runtime calls with the device's activities. With `host` it also has torch's
    operators and all annotations, which cost host microseconds each. The step is a range in it, and
    so is each of the noted `spans`. Raises CountersUnavailable if torch.profiler cannot record, and
    what the step raises.
    """
    spans = spans or Spans("")
    profile = _started(host=host)
    try:
        begin = _border()
        step()
        spans.add(STEP_RANGE, begin, _border())
        synchronize()
    finally:
        profile.__exit__(None, None, None)
    exported = _exported(profile)
    origin = exported.get("baseTimeNanoseconds", 0)
    return Trace([*exported["traceEvents"], *spans.events(origin)])


class Spans(PhaseNames):
    """Notes the open times of phases or components, for the trace of the same execution.

    It uses the host's own clock, which costs less than ranges of torch.profiler: those include all
    of torch's operators. The name of a range begins with `prefix`.
    """

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix
        self._open: list[tuple[str, int]] = []
        self._closed: list[tuple[str, int, int]] = []

    def enter(self, phase: str) -> None:
        """The phase is open from now on."""
        super().enter(phase)
        self._open.append((self._prefix + phase, _border()))

    def leave(self, phase: str) -> None:  # noqa: ARG002 -- the innermost is left first
        """The phase ends now."""
        self._closed.append((*self._open.pop(), _border()))

    def add(self, name: str, begin: int, end: int) -> None:
        """Notes another range, in nanoseconds since 1970."""
        self._closed.append((name, begin, end))

    def events(self, origin: int) -> list[Event]:
        """These ranges as events of a trace whose time begins then, in nanoseconds since 1970."""
        return [
            {
                "ph": "X",
                "cat": ANNOTATION,
                "name": name,
                "ts": (begin - origin) / MICROSECOND,
                "dur": (end - begin) / MICROSECOND,
            }
            for name, begin, end in self._closed
        ]


def _border() -> int:
    """Now, in nanoseconds since 1970, with some time on either side."""
    _wait()
    now = time.time_ns()
    _wait()
    return now


def _wait() -> None:
    until = time.perf_counter_ns() + _BORDER_NS
    while time.perf_counter_ns() < until:
        pass


def _started(*, host: bool) -> Any:
    """A profiler of torch's that records from now on. Raises CountersUnavailable."""
    try:
        from torch.autograd import profiler
        from torch.profiler import ProfilerActivity, supported_activities
    except ImportError as error:  # a step of another library
        raise _refused(error) from error
    supported: Any = supported_activities  # untyped
    device = ProfilerActivity.CUDA in supported()
    if not (device or host):
        raise _refused("this build of torch cannot trace a GPU")
    # What torch.profiler.profile is made of: that one imports torch's compiler when it starts,
    # which takes 3 s in every process, only to look at a setting.
    profile: Any = profiler.profile
    try:
        made = profile(use_cpu=host, use_device="cuda" if device else None, use_kineto=True)
        return made.__enter__()
    except (RuntimeError, AssertionError) as error:
        raise _refused(error) from error


def _refused(why: object) -> CountersUnavailable:
    return CountersUnavailable(
        f"torch.profiler cannot record: {why}", "End other profilers of this process"
    )


def _exported(made: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="gpuperf-") as folder:
        # The exported form is the only one that has grids and blocks.
        file = Path(folder) / "trace.json"
        made.export_chrome_trace(str(file))
        exported: dict[str, Any] = json.loads(file.read_text(encoding="utf-8", errors="replace"))
    return exported
