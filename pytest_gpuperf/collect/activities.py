"""What ran on the GPU, one by one: kernels, copies and fills, with sizes, kinds and components.

Read from the events of a trace (`trace.py`). What a CUDA graph ran is here by itself, too.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuperf.collect.trace import (
    COPY,
    KERNEL,
    KINDS,
    MICROSECOND,
    Event,
    graph_launches,
    launch_calls,
    on_device,
)

COMPONENT = "gpuperf component: "
"""What the names of a component's ranges in the trace begin with."""
H2D, D2H, D2D = DIRECTIONS = ("h2d", "d2h", "d2d")
PINNED, PAGEABLE = "pinned", "pageable"

_ANNOTATION = "user_annotation"
"""The category of ranges that a program opened by itself."""
_COPY = re.compile(r"Memcpy (?P<from>\w)to(?P<to>\w)(?: \((?P<source>.*) -> (?P<target>.*)\))?")
"""Kineto's names: "Memcpy HtoD (Pinned -> Device)"; H is the host, all else is on a device."""


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


def activities(traced: Sequence[Event]) -> tuple[Activity, ...]:
    """What a trace has of the device, in the order of the beginnings."""
    events, calls, components = on_device(traced), launch_calls(traced), _Ranges(traced)
    graphs = graph_launches(traced) | _shared(events)
    return tuple(_activity(event, graphs, calls, components) for event in events)


def _shared(events: Sequence[Event]) -> set[int]:
    """Correlation ids of several kernels: not every call that launches a graph is in a trace."""
    found = Counter(
        event.get("args", {}).get("correlation") for event in events if event["cat"] == KERNEL
    )
    return {correlation for correlation, count in found.items() if correlation and count > 1}


def _activity(
    event: Event, graphs: set[int], calls: dict[int, float], components: _Ranges
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


class _Ranges:
    """When which component was the innermost one that was open."""

    def __init__(self, traced: Sequence[Event]) -> None:
        ranges = sorted(
            (float(e["ts"]), -float(e["dur"]), str(e["name"]).removeprefix(COMPONENT))
            for e in traced
            if e.get("cat") == _ANNOTATION and str(e.get("name", "")).startswith(COMPONENT)
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

    def _close(self, open_ranges: list[tuple[float, str]], moment: float) -> None:
        while open_ranges and open_ranges[-1][0] <= moment:
            end, _ = open_ranges.pop()
            self._from(end, open_ranges[-1][1] if open_ranges else "")

    def _from(self, moment: float, name: str) -> None:
        self._moments.append(moment)
        self._names.append(name)


def launches(found: Sequence[Activity]) -> int:
    """How often the host launched a kernel or a graph."""
    alone = sum(entry.kind == KERNEL and entry.graph is None for entry in found)
    return alone + graphs(found)


def graphs(found: Sequence[Activity]) -> int:
    """How many CUDA graphs were launched."""
    return len({entry.graph for entry in found if entry.graph is not None})
