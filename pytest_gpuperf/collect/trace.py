"""What a step launches, in order: names, grids, durations and copies, from torch.profiler.

The trace is of one execution without counters. Kernels that a CUDA graph launches are one entry of
kind `graph`, as counters count them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KERNEL, GRAPH = "kernel", "graph"
COUNTED = (KERNEL, GRAPH)
"""The kinds that counters see."""
_KINDS = {"kernel": KERNEL, "gpu_memcpy": "copy", "gpu_memset": "fill"}
"""The trace's categories (Kineto's names of activity types) and ours."""
_LAUNCHING = ("cuda_runtime", "cuda_driver")
"""The categories of the host's calls; a call and what it launches share a correlation id."""
_MICROSECOND = 1000.0


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
        """Positions of the entries that counters see: kernels and graphs."""
        return tuple(i for i, entry in enumerate(self.entries) if entry.kind in COUNTED)

    @property
    def graphs(self) -> tuple[int, ...]:
        """Positions of the graphs in the order in which the host launched them."""
        found = [
            (entry.launched or 0.0, position)
            for position, entry in enumerate(self.entries)
            if entry.kind == GRAPH
        ]
        return tuple(position for _, position in sorted(found))

    @property
    def idle(self) -> float:
        """Nanoseconds between the first start and the last end in which nothing ran."""
        idle, reached = 0.0, 0.0
        for entry in sorted(self.entries, key=lambda e: e.start):
            idle += max(entry.start - reached, 0.0)
            reached = max(reached, entry.start + entry.duration)
        return idle


def trace(step: Callable[[], object], synchronize: Callable[[], None]) -> Trace:
    """Traces one execution of `step` on the current CUDA device."""
    tracer = Tracer()
    tracer.start()
    try:
        step()
        synchronize()
    finally:
        made = tracer.stop()
    return made()


class Tracer:
    """torch.profiler, around whatever is launched between `start` and `stop`."""

    def __init__(self) -> None:
        self._profile: Any = None

    def start(self) -> None:
        """From here on."""
        from torch.profiler import ProfilerActivity, profile

        # The calls of the CUDA runtime come with the device's activities; torch's operators do not,
        # and nobody misses them.
        self._profile = profile(activities=[ProfilerActivity.CUDA], acc_events=True)
        self._profile.start()

    def stop(self) -> Callable[[], Trace]:
        """Up to here, where the device has done its work. The result reads what was traced."""
        made = self._profile
        made.stop()
        return lambda: _exported(made)


def _exported(made: Any) -> Trace:
    with tempfile.TemporaryDirectory(prefix="gpuperf-") as folder:
        # The exported form is the only one that has grids and blocks.
        file = Path(folder) / "trace.json"
        made.export_chrome_trace(str(file))
        events = json.loads(file.read_text(encoding="utf-8", errors="replace"))["traceEvents"]
    return parse(events)


def parse(events: Iterable[Mapping[str, Any]]) -> Trace:
    """The entries of an exported trace (Chrome's format: `ts` and `dur` in microseconds)."""
    events = list(events)
    graphs = {
        event["args"]["correlation"]
        for event in events
        if str(event.get("name", "")).startswith("cudaGraphLaunch")
        and "correlation" in event.get("args", {})
    }
    calls: dict[int, float] = {}
    for event in events:
        if event.get("cat") in _LAUNCHING and "correlation" in event.get("args", {}):
            calls.setdefault(event["args"]["correlation"], float(event["ts"]))
    on_gpu = sorted((e for e in events if e.get("cat") in _KINDS), key=lambda e: float(e["ts"]))
    origin = float(on_gpu[0]["ts"]) if on_gpu else 0.0
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


def _traced(event: Mapping[str, Any], origin: float, launched: float | None) -> Traced:
    arguments = event.get("args", {})
    return Traced(
        name=str(event["name"]),
        kind=_KINDS[event["cat"]],
        grid=_three(arguments.get("grid")),
        block=_three(arguments.get("block")),
        start=(float(event["ts"]) - origin) * _MICROSECOND,
        duration=float(event["dur"]) * _MICROSECOND,
        launched=None if launched is None else (launched - origin) * _MICROSECOND,
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
