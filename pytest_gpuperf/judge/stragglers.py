"""Stragglers: ranks that are slower than their peers, by the time that each works itself.

Ranks that wait for each other have the same step time; what differs is their own work. Waiting
makes that longer, too: a collective that waits for a peer takes processors and memory from the
kernels beside it. So a share of its collectives' time (WAITING) is taken off each rank's own time.

Two GPUs of one name differ by themselves, and how far is known of those whose canary reads the same
(`noise.py`). A rank is compared with those peers whose GPUs are most like its own. It is named
where it is slower than at least half of these, than each by more than chance allows. Chance names
any rank of a step in ALPHA of all measurements at most: each of the n (n - 1) comparisons is
allowed ALPHA / n (n - 1), by Student's t (`Variance.reach`). The noise of a comparison is that of
all ranks, or of the two where theirs is larger. A smaller difference than LEAST is ignored.

Against a baseline each rank is compared with itself (`changed_rank`): GPUs that differ by
themselves did so before.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from statistics import fmean, median

from pytest_gpuperf.judge.alignment import keys
from pytest_gpuperf.judge.noise import ALIKE, SLOPES, Kind, Variance, squares_of, total
from pytest_gpuperf.model.measurement import KernelTable

_OwnTime = tuple[Sequence[float], Kind | None]
"""The logarithms of one rank's own times, and the kind of its GPU."""

ALPHA = 0.001
LEAST = 0.01
FREEDOM = 7
"""The fewest degrees of freedom of what is left: with fewer, as three executions of two ranks have,
ALPHA is not kept (tests/judge/test_stragglers.py)."""
WAITING = 0.04
"""By how much waiting in collectives lengthens a rank's own time, as a share of the wait: on
recorded H100s 3 to 4 us in each 100."""
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
    busy, idle = ([_grown(new, old, part) for new, old in sides] for part in (0, 1))
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
    new: Sequence[KernelTable], old: Sequence[KernelTable], part: int
) -> tuple[float, float]:
    """The growth of a part of a rank's `traces`, and the growth needed to be sure, in nanoseconds.

    Of the shortest of each table's executions: what they share is none of chance's.
    """
    times = [[[of[part] for of in table.traces] for table in side] for side in (new, old)]
    now, then = (fmean(map(min, of)) for of in times)
    apart = max(max(one) - min(one) for of in times for one in of)
    step = fmean(sum(map(min, zip(*table.traces, strict=True))) for table in old)
    return now - then, max(LEAST * step, SURE * apart)


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
    """The geometric mean of the rank's times in their unit, without what waiting added."""
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
    freedom = sum(map(len, times)) - count
    if count < 2 or freedom < FREEDOM or min(map(len, times)) < 2:
        return ()
    if [*map(len, collectives)] == [*map(len, times)]:
        times = [
            [own - WAITING * waited for own, waited in zip(*of_rank, strict=True)]
            for of_rank in zip(times, collectives, strict=True)
        ]
    if min(map(min, times)) <= 0:
        return ()
    known = kinds if len(kinds) == count else (None,) * count
    logs = [[*map(math.log, values)] for values in times]
    pooled = Variance(squares_of(logs) / freedom, freedom)
    ranks = [*zip(logs, known, strict=True)]
    found = (_compared(number, ranks, pooled) for number in range(count))
    return tuple(sorted(filter(None, found), key=lambda one: -one.slower))


def _compared(number: int, ranks: Sequence[_OwnTime], pooled: Variance) -> Straggler | None:
    """The rank of this number as a straggler; None if it is none."""
    own, peers = ranks[number], [*ranks[:number], *ranks[number + 1 :]]
    mean, means = fmean(own[0]), [fmean(logs) for logs, _ in peers]
    spreads = [_spread(own, peer, pooled) for peer in peers]
    farthest = _ALIKE * min(spread.root for spread in spreads)
    alike = [pair for pair in zip(means, spreads, strict=True) if pair[1].root <= farthest]
    chance = ALPHA / (len(ranks) * len(peers))
    beyond = [mean - of_peer > spread.reach(chance) for of_peer, spread in alike]
    usual = median(of_peer for of_peer, _ in alike)
    slower = math.expm1(mean - usual)
    if 2 * sum(beyond) < len(alike) or slower < LEAST:
        return None
    return Straggler(number, slower, math.exp(mean), math.exp(usual))


def _spread(one: _OwnTime, other: _OwnTime, pooled: Variance) -> Variance:
    """The variance of the difference of two ranks' means, by noise and by their GPUs.

    `pooled` is that of one execution, by all ranks.
    """
    pair = one[0], other[0]
    own = total(Variance(squares_of([logs]) / (n := len(logs)) / (n - 1), n - 1) for logs in pair)
    of_all = pooled.times(sum(1 / len(logs) for logs in pair))
    degrees = min(of_all.degrees, own.degrees) if own.square else of_all.degrees
    noise = Variance(max(2 * NOISE**2, of_all.square, own.square), degrees)
    return total([noise, Variance(_between(one[1], other[1]) ** 2, math.inf)])


def _between(one: Kind | None, other: Kind | None) -> float:
    """The standard deviation of the difference of two GPUs, as a logarithm."""
    if one is None or other is None:
        return math.sqrt(2) * BETWEEN_GPUS
    apart = (slope * (a - b) for slope, a, b in zip(SLOPES, one, other, strict=True))
    return _SCALE * math.sqrt(2 * ALIKE**2 + math.fsum(value**2 for value in apart))
