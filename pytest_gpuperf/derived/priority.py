"""Where work on kernels pays: estimated speedup and priority score (Equations 1 and 2).

Nsight Compute, and so the paper (section 4.1), compares what a kernel achieves with what its
dominant bottleneck could sustain, and multiplies with the time the kernel takes. Here the
throughputs of the speed-of-light section say what is achieved: each is a share of the peak of one
unit, and the highest names the bottleneck.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pytest_gpuperf.derived.launches import (
    Counters,
    Family,
    Group,
    left_out,
    of_graphs,
    ratio,
    total,
)
from pytest_gpuperf.model import KernelTable

UNITS = ("sm_throughput", "l1_throughput", "l2_throughput", "dram_throughput")
"""Throughputs of one unit each, %."""
MEMORY = "memory_throughput"
"""The highest of all units of the memory system, %; of more than the three that have metrics."""
THROUGHPUTS = (*UNITS, MEMORY)
_SAME = 0.98
"""Within this of the highest, a unit is the bottleneck: throughputs are read in several passes, and
MEMORY only repeats one of them."""
_PEAK = 100.0


@dataclass(frozen=True, slots=True)
class Priority:
    """What could be gained from a kernel, a family, or the step."""

    name: str
    """The kernel's name, the family, or STEP."""
    family: str
    """The kernel's, or the family itself; "" for STEP."""
    launches: int
    """With a throughput."""
    nanoseconds: float
    """Their time, without counters."""
    speedup: float | None
    """The estimated speedup, 0 to 1: score over time. None where that is 0."""
    score: float
    """Nanoseconds."""
    share: float | None
    """Of the step's score; None where that is 0."""
    bottleneck: str
    """The metric of THROUGHPUTS that limits most of the time."""
    throughput: float | None
    """%, the bottlenecks' over the launches, weighed by their time. None where that is 0."""


@dataclass(frozen=True, slots=True)
class Priorities:
    """Kernels and families by what could be gained from them."""

    unit: str
    """Of every score."""
    step: Priority | None
    """All launches together; None where no launch has a throughput."""
    families: tuple[Priority, ...]
    """The highest score first."""
    kernels: tuple[Priority, ...]
    """By name; the highest score first."""
    missing: tuple[str, ...]


def estimated_speedup(throughputs: Mapping[str, float]) -> float | None:
    """Equation 2: achievable / observed performance - 1, clamped to [0, 1].

    Observed is the highest of `throughputs` (THROUGHPUTS, in % of a peak), achievable is 100 %: a
    kernel at 80 % of its bottleneck's peak has 100 / 80 - 1 = 0.25. From 50 % down it is 1, so that
    scores do not tell slow kernels from very slow ones. None without any throughput.
    """
    if not throughputs:
        return None
    observed = max(throughputs.values())
    if observed <= 0:
        return 1.0
    return min(max(_PEAK / observed - 1, 0.0), 1.0)


def bottleneck(throughputs: Mapping[str, float]) -> str | None:
    """The metric of the unit that is closest to its peak; None without any throughput.

    MEMORY where that is clearly higher than those of UNITS: then it is a unit without a metric.
    """
    if not throughputs:
        return None
    limit = _SAME * max(throughputs.values())
    units = [unit for unit in UNITS if unit in throughputs and throughputs[unit] >= limit]
    return max(units or throughputs, key=throughputs.__getitem__)


def priorities(table: KernelTable, family: Family) -> Priorities:
    """Estimated speedups and priority scores of a table's kernels, ranked.

    Equation 1: score = duration x estimated speedup, of each launch, with its duration without
    counters; a kernel's, a family's and the step's are the sums (figure 5). Copies and fills have
    no throughputs and no score.
    """
    counters = Counters(table)
    everything = counters.whole()
    step = _priority(counters, everything, None)
    missing = [*counters.absent(*THROUGHPUTS)]
    if step is not None:
        if missing:
            missing.append("a kernel that one of these limits can gain less than is said here")
        every = len(everything.launches)
        missing += left_out(every - step.launches, every, "they have no throughput")
    missing += of_graphs(everything.launches)
    whole = step.score if step else 0.0
    return Priorities(
        unit="ns",
        step=step,
        families=_ranked(_priority(counters, g, whole) for g in counters.by_family(family)),
        kernels=_ranked(_priority(counters, g, whole) for g in counters.by_kernel(family)),
        missing=tuple(missing),
    )


def _ranked(found: Iterable[Priority | None]) -> tuple[Priority, ...]:
    known = (priority for priority in found if priority is not None)
    return tuple(sorted(known, key=lambda priority: -priority.score))


def _priority(counters: Counters, group: Group, whole: float | None) -> Priority | None:
    """Of the group's launches with a throughput; None where there are none.

    `whole` is the step's score, None where the group is the step.
    """
    times: dict[str, list[float]] = {}
    scores, weighed = [], []
    for launch in group.launches:
        found = counters.values(launch, THROUGHPUTS)
        speedup, limit = estimated_speedup(found), bottleneck(found)
        if speedup is None or limit is None:
            continue
        times.setdefault(limit, []).append(launch.duration)
        scores.append(launch.duration * speedup)
        weighed.append(launch.duration * found[limit])
    if not scores:
        return None
    by_limit = {limit: total(durations) for limit, durations in times.items()}
    time, score = total(by_limit.values()), total(scores)
    return Priority(
        name=group.name,
        family=group.family,
        launches=len(scores),
        nanoseconds=time,
        speedup=ratio(score, time),
        score=score,
        share=ratio(score, score if whole is None else whole),
        bottleneck=max(by_limit, key=by_limit.__getitem__),
        throughput=ratio(total(weighed), time),
    )
