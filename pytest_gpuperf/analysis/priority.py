"""Where work on kernels pays: estimated speedup and priority score (Equations 1 and 2).

Nsight Compute, and so the paper (section 4.1), compares a kernel's performance with the limit of
its dominant bottleneck, and multiplies by the kernel's time. Here performance comes from the
throughputs of the speed-of-light section. Each is a share of the peak of one unit, and the highest
names the bottleneck.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pytest_gpuperf.analysis.launch_totals import (
    Counters,
    Family,
    Group,
    left_out,
    of_graphs,
    ratio,
    total,
)
from pytest_gpuperf.model.measurement import KernelTable

UNITS = ("sm_throughput", "l2_throughput", "dram_throughput")
"""Throughputs of one unit each: % of its peak over all cycles of the kernel."""
MEMORY = "memory_throughput"
"""The highest % of all units of the memory system, including units without a metric."""
L1 = "l1_throughput"
"""% of L1's peak over the cycles in which L1 was active. So it is no bottleneck by itself: it only
says whether MEMORY is L1."""
THROUGHPUTS = ("sm_throughput", L1, "l2_throughput", "dram_throughput", MEMORY)
"""All throughputs that are collected."""
_SAME = 0.98
"""Within this of the highest, a unit is the bottleneck: throughputs are read in several passes, and
MEMORY only repeats one of them."""
_PEAK = 100.0


@dataclass(frozen=True, slots=True)
class Priority:
    """The possible gain from a kernel, a family, or the step."""

    name: str
    """The kernel's name, the family, or STEP."""
    family: str
    """The kernel's, or the family itself; "" for STEP."""
    launches: int
    """Launches with a throughput."""
    nanoseconds: float
    """Their time without counters."""
    speedup: float | None
    """The estimated speedup, 0 to 1: score over time. None where that is 0."""
    score: float
    """Nanoseconds."""
    share: float | None
    """The share of the step's score; None if the score is 0."""
    bottleneck: str
    """The metric of THROUGHPUTS that limits most of the time."""
    throughput: float | None
    """% of a peak: the highest of each launch, weighed by their time. None where that is 0."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Kernels and families by what could be gained from them."""

    step: Priority | None
    """All launches together; None if no launch has a throughput."""
    families: tuple[Priority, ...]
    """The highest score first."""
    kernels: tuple[Priority, ...]
    """Kernels by name; the highest score first."""
    missing: tuple[str, ...]


def observed(throughputs: Mapping[str, float]) -> float | None:
    """The highest share of a unit's peak, %, over all cycles; None without any."""
    return max((throughputs[m] for m in (*UNITS, MEMORY) if m in throughputs), default=None)


def estimated_speedup(throughputs: Mapping[str, float]) -> float | None:
    """Equation 2: achievable / observed performance - 1, clamped to [0, 1].

    Observed is the highest of `throughputs` (by metric, in % of a peak), achievable is 100 %: a
    kernel at 80 % of its bottleneck's peak has 100 / 80 - 1 = 0.25. From 50 % down it is 1, so that
    scores do not tell slow kernels from very slow ones. None without any throughput.
    """
    highest = observed(throughputs)
    if highest is None:
        return None
    return min(max(_PEAK / highest - 1, 0.0), 1.0) if highest > 0 else 1.0


def bottleneck(throughputs: Mapping[str, float]) -> str | None:
    """The metric of the unit closest to its peak; None without any throughput.

    If MEMORY is clearly above those of UNITS, the bottleneck is L1. Without L1 it is MEMORY itself,
    for a unit that has no metric.
    """
    highest = observed(throughputs)
    if highest is None:
        return None
    near = [m for m, value in throughputs.items() if value >= _SAME * highest]
    units = [unit for unit in UNITS if unit in near]
    if units:
        return max(units, key=throughputs.__getitem__)
    return L1 if L1 in near else MEMORY


def priorities(table: KernelTable, family: Family) -> Ranking:
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
        missing += _narrowed(table)
        every = len(everything.launches)
        missing += left_out(every - step.launches, every, "they have no throughput")
    missing += of_graphs(everything.launches)
    whole = step.score if step else 0.0
    return Ranking(
        step=step,
        families=_ranked(_priority(counters, g, whole) for g in counters.by_family(family)),
        kernels=_ranked(_priority(counters, g, whole) for g in counters.by_kernel(family)),
        missing=tuple(missing),
    )


def _narrowed(table: KernelTable) -> Iterator[str]:
    """A warning that a bottleneck may be hidden; MEMORY includes those of the memory system."""
    lacking = [unit for unit in ("sm_throughput", MEMORY) if unit not in table.metrics]
    if lacking:
        yield (
            f"{' and '.join(lacking)} was not collected. Another unit may limit a kernel, which "
            "then can gain less than this shows"
        )


def _ranked(every: Iterable[Priority | None]) -> tuple[Priority, ...]:
    known = (priority for priority in every if priority is not None)
    return tuple(sorted(known, key=lambda priority: -priority.score))


def _priority(counters: Counters, group: Group, whole: float | None) -> Priority | None:
    """The priority of the group's launches with a throughput; None if there are none.

    `whole` is the step's score; None if the group is the step.
    """
    times: dict[str, list[float]] = {}
    scores, weighed = [], []
    for launch in group.launches:
        throughputs = counters.values(launch, THROUGHPUTS)
        highest, speedup, limit = (
            observed(throughputs),
            estimated_speedup(throughputs),
            bottleneck(throughputs),
        )
        if highest is None or speedup is None or limit is None:
            continue
        times.setdefault(limit, []).append(launch.duration)
        scores.append(launch.duration * speedup)
        weighed.append(launch.duration * highest)
    if not scores:
        return None
    by_limit = {limit: total(durations) for limit, durations in times.items()}
    time = total(duration for durations in times.values() for duration in durations)
    score = total(scores)
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
