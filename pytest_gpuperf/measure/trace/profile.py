"""What a step launches, in order: names, grids, durations and copies, from torch.profiler.

The trace is of one execution without counters. Kernels that a CUDA graph launches are one entry of
kind `graph`, as counters count them; `activity.py` has them one by one.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_gpuperf.errors import CountersUnavailable
from pytest_gpuperf.measure.collector import PhaseNames

KERNEL, COPY, FILL, GRAPH = "kernel", "copy", "fill", "graph"
COUNTED = (KERNEL, GRAPH)
"""The kinds that counters see."""
KINDS = {"kernel": KERNEL, "gpu_memcpy": COPY, "gpu_memset": FILL}
"""The trace's categories (Kineto's names of activity types) and ours."""
MICROSECOND = 1000.0
"""The trace's unit of time, in nanoseconds."""
LAUNCHING = ("cuda_runtime", "cuda_driver")
"""The categories of the host's calls; a call and what it launches share a correlation id."""
_GRAPH_CALLS = ("cudaGraphLaunch", "cuGraphLaunch")

ANNOTATION = "user_annotation"
"""The category of ranges that a program opened by itself."""
STEP_RANGE = "gpuperf step"
"""The name of the range that is the step, without the wait at its end."""
_BORDER_NS = 20_000
"""What the host waits at each border of a range: its clock and the trace's agree to some 3 us."""

Event = Mapping[str, Any]
"""One event of an exported trace (Chrome's format: `ts` and `dur` in microseconds)."""


@dataclass(frozen=True)
class Traced:
    """One entry of the trace."""

    name: str
    kind: str
    """kernel, copy, fill or graph."""
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    start: float
    """Nanoseconds since the first entry."""
    duration: float
    """Nanoseconds."""
    launched: float | None = None
    """When the host launched it, in nanoseconds as `start`; None where the trace does not say."""


@dataclass(frozen=True)
class Trace:
    """One execution of a step."""

    entries: tuple[Traced, ...]

    @property
    def counted(self) -> tuple[int, ...]:
        """Positions of the entries that counters see, kernels and graphs, as they were launched.

        Counters number launches. On another stream, as a collective is, a kernel may begin later
        than one that was launched after it. Where the trace lacks when anything was launched, they
        are in the order in which they began.
        """
        seen = [i for i, entry in enumerate(self.entries) if entry.kind in COUNTED]
        launched = {i: at for i in seen if (at := self.entries[i].launched) is not None}
        if len(launched) == len(seen):
            seen.sort(key=launched.__getitem__)
        return tuple(seen)

    @property
    def graphs(self) -> tuple[int, ...]:
        """Positions of the graphs in the order in which the host launched them."""
        launched = [
            (entry.launched or 0.0, position)
            for position, entry in enumerate(self.entries)
            if entry.kind == GRAPH
        ]
        return tuple(position for _, position in sorted(launched))

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """When nothing ran between the first start and the last end: begin and end."""
        gaps, reached = [], 0.0
        for entry in sorted(self.entries, key=lambda e: e.start):
            if entry.start > reached:
                gaps.append((reached, entry.start))
            reached = max(reached, entry.start + entry.duration)
        return gaps

    @property
    def idle(self) -> float:
        """Nanoseconds between the first start and the last end in which nothing ran."""
        return sum(end - begin for begin, end in self.gaps)


def trace(step: Callable[[], object], synchronize: Callable[[], None]) -> Trace:
    """Traces one execution of `step` on the current CUDA device."""
    return parse(events(step, synchronize))


def events(
    step: Callable[[], object],
    synchronize: Callable[[], None],
    *,
    host: bool = False,
    spans: Spans | None = None,
) -> list[Event]:
    """The events of one execution of `step` on the current CUDA device.

    The calls of the CUDA runtime come with the device's activities. With `host`, so do torch's
    operators and whatever was annotated, which takes the host microseconds for each. The step is a
    range among them, and so is each of the `spans` that were noted meanwhile. Raises
    CountersUnavailable where torch.profiler cannot record, and what the step raises.
    """
    spans = spans or Spans("")
    profile = _started(host=host)
    try:
        with spans.named(STEP_RANGE):
            step()
        synchronize()
    finally:
        profile.__exit__(None, None, None)
    return spans.among(_exported(profile))


class Spans(PhaseNames):
    """Notes when phases or components were open, for the trace of the same execution.

    The host's own clock tells, which costs less than ranges that torch.profiler records: those
    come with all of torch's operators. A range has a number in place of the name, after `prefix`:
    a trace does not keep every character.
    """

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.numbers: dict[str, str] = {}
        """What stands in the trace for each name."""
        self._prefix = prefix
        self._open: list[tuple[str, int]] = []
        self._closed: list[tuple[str, int, int]] = []

    def enter(self, phase: str) -> None:
        """It is open from now on."""
        super().enter(phase)
        number = self.numbers.setdefault(phase, str(len(self.numbers)))
        self._open.append((self._prefix + number, _border()))

    def leave(self, phase: str) -> None:  # noqa: ARG002 -- the innermost is left first
        """It was open up to now."""
        self._closed.append((*self._open.pop(), _border()))

    @contextmanager
    def named(self, name: str) -> Iterator[None]:
        """The block is a range of this name."""
        begin = _border()
        yield
        self._closed.append((name, begin, _border()))

    def moment(self, name: str) -> None:
        """A range of this name, right now and of no length."""
        now = time.time_ns()
        self._closed.append((name, now, now))

    def among(self, traced: list[Event]) -> list[Event]:
        """The events of the trace, with these ranges."""
        origin = next((e["ts"] for e in traced if e.get("name") == _ORIGIN), None)
        if origin is None:
            return traced
        ranges: list[Event] = [
            {
                "ph": "X",
                "cat": ANNOTATION,
                "name": name,
                "ts": (begin - origin) / MICROSECOND,
                "dur": (end - begin) / MICROSECOND,
            }
            for name, begin, end in self._closed
        ]
        return [*traced, *ranges]


def _border() -> int:
    """Now, in nanoseconds since 1970, with some time on either side."""
    until = time.perf_counter_ns() + _BORDER_NS
    while time.perf_counter_ns() < until:
        pass
    now = time.time_ns()
    until = time.perf_counter_ns() + _BORDER_NS
    while time.perf_counter_ns() < until:
        pass
    return now


def _started(*, host: bool) -> Any:
    """A profiler of torch's that records from now on. Raises CountersUnavailable."""
    try:
        from torch.autograd import profiler
        from torch.profiler import ProfilerActivity, supported_activities
    except ImportError as error:
        raise CountersUnavailable(
            "torch.profiler records what the GPU did, and torch is not installed", "Install it"
        ) from error
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
        f"torch.profiler cannot record: {why}", "End what else profiles this process"
    )


def _exported(made: Any) -> list[Event]:
    with tempfile.TemporaryDirectory(prefix="gpuperf-") as folder:
        # The exported form is the only one that has grids and blocks.
        file = Path(folder) / "trace.json"
        made.export_chrome_trace(str(file))
        exported = json.loads(file.read_text(encoding="utf-8", errors="replace"))
    origin: Event = {"ph": "M", "name": _ORIGIN, "ts": exported.get("baseTimeNanoseconds", 0)}
    return [*exported["traceEvents"], origin]


_ORIGIN = "gpuperf origin"
"""An event that says when the trace's time begins, in nanoseconds since 1970."""


def graph_launches(traced: Iterable[Event]) -> set[int]:
    """Correlation ids of the calls that launched CUDA graphs, and of what these ran."""
    return {
        event["args"]["correlation"]
        for event in traced
        if str(event.get("name", "")).startswith(_GRAPH_CALLS)
        and "correlation" in event.get("args", {})
    }


def launch_calls(traced: Iterable[Event]) -> dict[int, float]:
    """When the host began each call, in the trace's time, by correlation id."""
    calls: dict[int, float] = {}
    for event in traced:
        if event.get("cat") in LAUNCHING and "correlation" in event.get("args", {}):
            calls.setdefault(event["args"]["correlation"], float(event["ts"]))
    return calls


def on_device(traced: Iterable[Event]) -> list[Event]:
    """Kernels, copies and fills, in the order of their beginnings."""
    return sorted((e for e in traced if e.get("cat") in KINDS), key=lambda e: float(e["ts"]))


def beginning(traced: Iterable[Event]) -> float:
    """When the device began, in the trace's time; times of entries count from there."""
    return min((float(e["ts"]) for e in traced if e.get("cat") in KINDS), default=0.0)


def parse(traced: Sequence[Event]) -> Trace:
    """The entries of an exported trace."""
    graphs, calls, on_gpu = graph_launches(traced), launch_calls(traced), on_device(traced)
    origin = beginning(traced)
    launched: dict[int, list[Traced]] = {}
    order: list[Traced | int] = []
    for event in on_gpu:
        correlation = event.get("args", {}).get("correlation")
        entry = _traced(event, origin, calls.get(correlation))
        if correlation in graphs:
            if correlation not in launched:
                order.append(correlation)
            launched.setdefault(correlation, []).append(entry)
        else:
            order.append(entry)
    return Trace(tuple(_graph(launched[item]) if isinstance(item, int) else item for item in order))


def _traced(event: Event, origin: float, launched: float | None) -> Traced:
    arguments = event.get("args", {})
    return Traced(
        name=str(event["name"]),
        kind=KINDS[event["cat"]],
        grid=_three(arguments.get("grid")),
        block=_three(arguments.get("block")),
        start=(float(event["ts"]) - origin) * MICROSECOND,
        duration=float(event["dur"]) * MICROSECOND,
        launched=None if launched is None else (launched - origin) * MICROSECOND,
    )


def _graph(parts: list[Traced]) -> Traced:
    """All that one graph launched, as one: its time from the first start to the last end."""
    kernels = sum(part.kind == KERNEL for part in parts)
    start = min(part.start for part in parts)
    end = max(part.start + part.duration for part in parts)
    name = f"CUDA graph of {kernels} kernel{'s' if kernels != 1 else ''}"
    return Traced(name, GRAPH, None, None, start, end - start, parts[0].launched)


def _three(numbers: object) -> tuple[int, int, int] | None:
    if not isinstance(numbers, list) or len(numbers) != 3:
        return None
    x, y, z = numbers
    return int(x), int(y), int(z)
