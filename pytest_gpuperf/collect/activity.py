"""The metrics of the set `activity`: what the GPU did when, as numbers. Pure arithmetic.

What ran on several streams at once is counted once: times are those of unions of intervals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median

from pytest_gpuperf.collect.activities import (
    D2D,
    D2H,
    DIRECTIONS,
    H2D,
    PAGEABLE,
    PINNED,
    Activity,
    graphs,
    launches,
)
from pytest_gpuperf.collect.trace import KERNEL

Interval = tuple[float, float]
"""Begin and end."""


def whole(found: Sequence[Activity]) -> dict[str, float]:
    """The metrics of a step, by name. Shares and gaps only where there is something to divide."""
    values = part(found)
    kernels = union(entry for entry in found if entry.kind == KERNEL)
    copies = union(entry for entry in found if entry.direction)
    span = max(e.end for e in found) - min(e.begin for e in found) if found else 0.0
    values["gpu_span"] = span
    if span:
        values["gpu_idle"] = 100 * max(0.0, 1 - length(union(found)) / span)
    gaps = _gaps(found)
    if gaps:
        values["launch_gaps"] = math.fsum(gaps)
        values["launch_gap_median"] = median(gaps)
    if length(copies):
        values["copy_overlap"] = 100 * length(common(copies, kernels)) / length(copies)
    return values


def part(found: Sequence[Activity]) -> dict[str, float]:
    """The metrics that a part of a step has too, by name."""
    copies = [entry for entry in found if entry.direction]
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
        "kernel_time": length(union(entry for entry in found if entry.kind == KERNEL)),
        "launches": float(launches(found)),
        "graph_launches": float(graphs(found)),
        "copies": float(len(copies)),
        **sizes,
        "copy_bytes_d2d": _size(copies, D2D, ""),
        **times,
    }


def union(found: Iterable[Activity]) -> list[Interval]:
    """When any of them ran: intervals that neither overlap nor touch, in order."""
    merged: list[Interval] = []
    for begin, end in sorted((entry.begin, entry.end) for entry in found):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def common(some: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """When both were. Each of them is a union."""
    found: list[Interval] = []
    left, right = 0, 0
    while left < len(some) and right < len(others):
        begin = max(some[left][0], others[right][0])
        end = min(some[left][1], others[right][1])
        if begin < end:
            found.append((begin, end))
        if some[left][1] <= others[right][1]:
            left += 1
        else:
            right += 1
    return found


def length(intervals: Iterable[Interval]) -> float:
    """How long they are together, of intervals that do not overlap."""
    return math.fsum(end - begin for begin, end in intervals)


def _gaps(found: Iterable[Activity]) -> list[float]:
    """The time before each kernel but the first in which no kernel ran."""
    kernels = sorted((e.begin, e.end) for e in found if e.kind == KERNEL)
    gaps, reached = [], -math.inf
    for (_, end), (begin, _) in pairwise(kernels):
        reached = max(reached, end)
        gaps.append(max(0.0, begin - reached))
    return gaps


def _size(copies: Iterable[Activity], way: str, memory: str) -> float:
    return math.fsum(e.size for e in copies if (e.direction, e.memory) == (way, memory))
