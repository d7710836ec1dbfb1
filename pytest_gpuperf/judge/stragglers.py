"""Stragglers: ranks that are slower than their peers, by the time that each works itself.

Ranks that wait for each other have the same step time; what differs is their own work. Waiting
makes that longer, too: a collective that waits for a peer takes processors and memory from the
kernels beside it, on recorded H100s 3 to 4 us in each 100 of waiting. Which rank waits is chance,
or else it is the faster one. So ranks are compared in two ways:

- by the times that they would have, had all waited as long as the one that waited least: an
  analysis of covariance, of one slope for all ranks, never below 0. It knows little of ranks whose
  waiting differs by more than it does from execution to execution, as that of a rank which is
  always the last does.
- as measured, with those peers that waited as long or longer: these may have worked less than it
  seems, but not more.

Two GPUs of one name differ by themselves, and how far is known of those whose canary reads the same
(`noise.py`). A rank is compared with those peers whose GPUs are most like its own. It is named
where it is in one of the ways slower than at least half of these, than each by more than chance
allows. Chance names any rank of a step in ALPHA of all measurements at most: each of the n (n - 1)
comparisons of either way is allowed ALPHA / (2 n (n - 1)), by Student's t (`Variance.reach`). The
noise of a comparison is that of all ranks, or of the two where theirs is larger. Less than LEAST is
nobody's concern.

Against a baseline each rank is compared with itself (`changed_rank`): GPUs that differ by
themselves did so before.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from statistics import fmean, median

from pytest_gpuperf.judge.alignment import keys
from pytest_gpuperf.judge.noise import ALIKE, SLOPES, Kind, Variance, total
from pytest_gpuperf.model.measurement import KernelTable

Times = tuple[float, ...]

ALPHA = 0.001
LEAST = 0.01
FREEDOM = 7
"""The fewest degrees of freedom of what is left: with fewer, as three executions of two ranks have,
ALPHA is not kept (tests/judge/test_stragglers.py)."""
NOISE = 0.001
"""The least noise of a rank's own time, relative: a process's mean on one GPU. The largest of five
configurations on 17 H200s (tests/data/h200-kinds): TF32's, 0.0010."""
BETWEEN_GPUS = 0.011
"""The least noise between GPUs whose kind no canary tells: the largest there, 0.0110."""
_ALIKE = 1.5
"""The multiple of the least spread up to which peers are compared with a rank."""
_SCALE = 0.01
"""The class's scale, as of cycles: SLOPES and ALIKE are multiples of this scale."""


SHARED = 0.5
"""The part of another rank's growth above which a rank is taken to have changed alike."""
SURE = 2.0
"""The least growth of a rank, as a multiple of the difference between its executions."""


def changed_rank(
    measured: Sequence[KernelTable], before: Sequence[KernelTable]
) -> tuple[int, bool]:
    """The rank of a step that changed most since `before`, and whether the others did not.

    One that launches what it did not before, and not all of its peers do, goes before all others.
    Then one on which nothing ran for longer, and then one whose kernels took longer: kernels of
    those that wait for it do, too, beside a collective that waits on their GPU.
    """
    count = 1 + min(len(table.peers) for table in measured)
    sides = [
        [[of_rank(table, rank) for table in side] for side in (measured, before)]
        for rank in range(count)
    ]
    more = [Counter(keys(new[0])) - Counter(keys(old[0])) for new, old in sides]
    of_all = reduce(and_, more)
    own = [sum((one - of_all).values()) for one in more]
    busy, idle = ([_grown(new, old, part) for new, old in sides] for part in (_busy, _idle))
    both = [a + b for (a, _), (b, _) in zip(busy, idle, strict=True)]
    most = max(range(count), key=lambda rank: (own[rank] > 0, both[rank], own[rank]))
    if count == 1 or own[most]:
        return most, own[most] > 0 and count > 1
    for grown in (idle, busy):
        first, second = sorted(range(count), key=lambda rank: -grown[rank][0])[:2]
        by, least = grown[first]
        if by > least and grown[second][0] < SHARED * by:
            return first, True
    return most, False


def _grown(
    new: Sequence[KernelTable], old: Sequence[KernelTable], part: Callable[[KernelTable], Times]
) -> tuple[float, float]:
    """The growth of a rank, and the growth needed to be sure, in nanoseconds.

    Of the shortest of each table's executions: what they share is none of chance's.
    """
    times = [[part(table) for table in side] for side in (new, old)]
    now, then = (fmean(map(min, of)) for of in times)
    apart = max(max(one) - min(one) for of in times for one in of)
    step = fmean(min(_busy(table)) + min(_idle(table)) for table in old)
    return now - then, max(LEAST * step, SURE * apart)


def _busy(table: KernelTable) -> Times:
    return table.busy or (math.fsum(launch.duration for launch in table.launches),)


def _idle(table: KernelTable) -> Times:
    return table.idles or (table.idle,)


def of_rank(table: KernelTable, rank: int) -> KernelTable:
    """The table of a rank; rank 0's table if the rank has none."""
    return table.peers[rank - 1] if 0 < rank <= len(table.peers) else replace(table, peers=())


@dataclass(frozen=True)
class Straggler:
    """A rank that is slower than its peers."""

    rank: int
    slower: float
    """The additional work time over the median of the compared peers, as a share."""
    own: float
    """The geometric mean of the rank's times in their unit, adjusted if the adjusted times tell."""
    peers: float
    """The median of the compared peers."""


def stragglers(
    times: Sequence[Sequence[float]],
    kinds: Sequence[Kind | None] = (),
    collectives: Sequence[Sequence[float]] = (),
) -> tuple[Straggler, ...]:
    """The ranks of a step that are slower than their peers, by the times of each; slowest first.

    `kinds` are those of the ranks' GPUs, where their canaries say them, and `collectives` how long
    collectives took in each of the same executions; without them no rank has waited. Of fewer than
    two ranks or two executions of one, with less than FREEDOM, or where a time is not above 0,
    no straggler can be told.
    """
    count = len(times)
    freedom = sum(map(len, times)) - count - 1
    if count < 2 or freedom < FREEDOM or min(map(len, times)) < 2 or min(map(min, times)) <= 0:
        return ()
    known = kinds if len(kinds) == count else (None,) * count
    if [*map(len, collectives)] != [*map(len, times)]:
        collectives = [[0.0] * len(values) for values in times]
    ranks = _adjusted(times, collectives, freedom)
    found = []
    for rank in range(count):
        between = {p: _between(known[rank], known[p]) for p in range(count) if p != rank}
        spreads = {
            peer: math.hypot(of, ranks.noise(rank, peer).root) for peer, of in between.items()
        }
        alike = [p for p, spread in spreads.items() if spread <= _ALIKE * min(spreads.values())]
        for measured in (False, True):
            means = ranks.measured if measured else ranks.adjusted
            beyond = [
                means[rank] - means[peer] > ranks.allowed(rank, peer, between[peer], measured)
                for peer in alike
            ]
            usual = median(means[peer] for peer in alike)
            slower = math.expm1(means[rank] - usual)
            if 2 * sum(beyond) >= len(alike) and slower >= LEAST:
                found.append(Straggler(rank, slower, math.exp(means[rank]), math.exp(usual)))
                break
    return tuple(sorted(found, key=lambda one: -one.slower))


@dataclass(frozen=True)
class _RankSeries:
    """The ranks' own times as logarithms, and the variation in them."""

    measured: list[float]
    """The mean of each rank's times."""
    adjusted: list[float]
    """The mean of each rank, had all waited as long as in the execution that waited least."""
    left: list[float]
    """The sum of squares of each rank that waiting does not explain."""
    freedom: int
    """The degrees of freedom of all ranks together."""
    executions: list[int]
    waited: list[float]
    """The mean time of each rank's collectives."""
    scatter: float
    """The sum of squares of those times around each rank's mean."""

    @property
    def deviation(self) -> Variance:
        """The variance of one execution, by the unexplained squares of all ranks."""
        return Variance(math.fsum(self.left) / self.freedom, self.freedom)

    def noise(self, one: int, other: int) -> Variance:
        """The variance of the difference of two ranks' means, if GPUs and waiting are alike."""
        pair = [(self.left[rank], self.executions[rank]) for rank in (one, other)]
        own = total(Variance(left / (n - 1) / n, n - 1) for left, n in pair)
        pooled = self.deviation.times(sum(1 / n for _, n in pair))
        square = max(2 * NOISE**2, pooled.square, own.square)
        return Variance(square, min(pooled.degrees, own.degrees) if own.square else pooled.degrees)

    def allowed(self, rank: int, peer: int, between: float, measured: bool) -> float:
        """The logarithm by which chance alone makes `rank` slower than `peer`.

        `between` is the standard deviation of the difference of their GPUs. Infinite where the
        times as `measured` say nothing: of a peer that waited less.
        """
        noise = self.noise(rank, peer)
        apart = self.waited[rank] - self.waited[peer]
        if measured and apart > 0:
            return math.inf
        if not measured and self.scatter:
            of_slope = self.deviation.times(apart**2 / self.scatter)
            noise = replace(noise, square=noise.square + of_slope.square)
        count = len(self.executions)
        both = total([noise, Variance(between**2, math.inf)])
        return both.reach(ALPHA / (2 * count * (count - 1)))


def _adjusted(
    times: Sequence[Sequence[float]], collectives: Sequence[Sequence[float]], freedom: int
) -> _RankSeries:
    logs = [[math.log(value) for value in values] for values in times]
    means, waited = [*map(fmean, logs)], [*map(fmean, collectives)]
    pairs = [
        [(log - mean, wait - usual) for log, wait in zip(of_rank, waits, strict=True)]
        for of_rank, waits, mean, usual in zip(logs, collectives, means, waited, strict=True)
    ]
    flat = [pair for of_rank in pairs for pair in of_rank]
    scatter = math.fsum(wait**2 for _, wait in flat)
    slope = max(math.fsum(log * wait for log, wait in flat) / scatter, 0.0) if scatter else 0.0
    least = min(map(min, collectives))
    return _RankSeries(
        measured=means,
        adjusted=[
            mean - slope * (usual - least) for mean, usual in zip(means, waited, strict=True)
        ],
        left=[math.fsum((log - slope * wait) ** 2 for log, wait in of_rank) for of_rank in pairs],
        freedom=freedom,
        executions=[*map(len, times)],
        waited=waited,
        scatter=scatter,
    )


def _between(one: Kind | None, other: Kind | None) -> float:
    """The standard deviation of the difference of two GPUs, as a logarithm."""
    if one is None or other is None:
        return math.sqrt(2) * BETWEEN_GPUS
    apart = (slope * (a - b) for slope, a, b in zip(SLOPES, one, other, strict=True))
    return _SCALE * math.sqrt(2 * ALIKE**2 + math.fsum(value**2 for value in apart))
