"""Where work on kernels pays: estimated speedup and priority score of families (Equations 1, 2).

Nsight Compute, and so the paper (section 4.1), compares a kernel's performance with the limit of
its dominant bottleneck, and multiplies by the kernel's time. Here performance comes from the
throughputs of the speed-of-light section. Each is a share of the peak of one unit, and the highest
names the bottleneck.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuperf.analysis.launch_totals import Family, groups, lacking, left_out, ratio
from pytest_gpuperf.model.measurement import KernelTable, grouped

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
    """The possible gain from a family of kernels, by its launches with a throughput."""

    family: str
    launches: int
    speedup: float | None
    """The estimated speedup, 0 to 1: score over time. None where that is 0."""
    score: float
    """Nanoseconds."""
    share: float | None
    """The share of the step's score; None if that is 0."""
    bottleneck: str
    """The metric of THROUGHPUTS that limits most of the time."""
    throughput: float | None
    """% of a peak: the highest of each launch, weighed by their time. None where that is 0."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Families of kernels by what could be gained from them."""

    families: tuple[Priority, ...]
    """The highest score first."""
    missing: tuple[str, ...]


def observed(throughputs: Mapping[str, float]) -> float | None:
    """The highest share of a unit's peak, %, over all cycles; None without any."""
    return max((throughputs[m] for m in (*UNITS, MEMORY) if m in throughputs), default=None)


def estimated_speedup(highest: float) -> float:
    """Equation 2: achievable / observed performance - 1, clamped to [0, 1].

    `highest` is what is `observed`, achievable is 100 %: a kernel at 80 % of its bottleneck's peak
    has 100 / 80 - 1 = 0.25. From 50 % down it is 1, so that scores do not tell slow kernels from
    very slow ones.
    """
    return min(max(_PEAK / highest - 1, 0.0), 1.0) if highest > 0 else 1.0


def bottleneck(throughputs: Mapping[str, float], highest: float) -> str:
    """The metric of the unit closest to its peak; `highest` is what is `observed`.

    If MEMORY is clearly above those of UNITS, the bottleneck is L1. Without L1 it is MEMORY itself,
    for a unit that has no metric.
    """
    near = [m for m, value in throughputs.items() if value >= _SAME * highest]
    units = [unit for unit in UNITS if unit in near]
    if units:
        return max(units, key=throughputs.__getitem__)
    return L1 if L1 in near else MEMORY


def priorities(table: KernelTable, family: Family) -> Ranking:
    """Estimated speedups and priority scores of a table's families of kernels, ranked.

    Equation 1: score = duration x estimated speedup, of each launch, with its duration without
    counters; a family's and the step's are the sums (figure 5). Copies and fills have no
    throughputs and no score.
    """
    by_family = groups(table, family, families=True)
    rated = {
        group.name: [
            (one.duration, one.values, highest)
            for one in group.launches
            if (highest := observed(one.values)) is not None
        ]
        for group in by_family
    }
    whole = sum(time * estimated_speedup(most) for own in rated.values() for time, _, most in own)
    families = [_priority(name, own, whole) for name, own in rated.items() if own]
    missing = [*lacking(table, THROUGHPUTS)]
    if families:
        every = sum(len(group.launches) for group in by_family)
        missing += left_out(every - sum(map(len, rated.values())), every, "they have no throughput")
    return Ranking(tuple(sorted(families, key=lambda one: -one.score)), tuple(missing))


_Rated = tuple[float, Mapping[str, float], float]
"""A launch: its nanoseconds, its throughputs and the highest of them that is `observed`."""


def _priority(family: str, rated: Sequence[_Rated], whole: float) -> Priority:
    """The priority of a family's launches; `whole` is the step's score."""
    limited = grouped(rated, lambda one: bottleneck(one[1], one[2]))
    by_limit = {limit: sum(time for time, _, _ in own) for limit, own in limited.items()}
    every = sum(time for time, _, _ in rated)
    score = sum(time * estimated_speedup(highest) for time, _, highest in rated)
    return Priority(
        family=family,
        launches=len(rated),
        speedup=ratio(score, every),
        score=score,
        share=ratio(score, whole),
        bottleneck=max(by_limit, key=by_limit.__getitem__),
        throughput=ratio(sum(time * highest for time, _, highest in rated), every),
    )
