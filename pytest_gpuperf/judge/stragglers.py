"""Stragglers: ranks that are slower than their peers, by the time that each works itself.

Ranks that wait for each other have the same step time; what differs is their own work. Waiting
makes that longer, too: a collective that waits for a peer takes processors and memory from the
kernels beside it, on recorded H100s 3 to 4 us in each 100 of waiting, and which rank waits is
chance, or else it is the faster one. So a rank's own time is adjusted for how long its collectives
took, by an analysis of covariance: one slope for all ranks, never below 0, one variance of what is
left, and of each rank the time that it would have with the others' waiting.

Two GPUs of one name differ by themselves, and how far is known of those whose canary reads the same
(`noise.py`). A rank is compared with those peers whose GPUs are most like its own, and named where
it is slower than at least half of these, than each by more than chance allows: chance names any
rank of a step in ALPHA of all measurements at most, as each of the n (n - 1) comparisons is allowed
ALPHA / (n (n - 1)), by Student's t with Satterthwaite's degrees of freedom. Less than LEAST is
nobody's concern.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from pytest_gpuperf.judge.interval import quantile
from pytest_gpuperf.judge.noise import ALIKE, SLOPES, Kind

ALPHA = 0.001
LEAST = 0.01
FREEDOM = 7
"""The fewest degrees of freedom of what is left: with fewer, as three executions of two ranks have,
ALPHA is not kept (tests/judge/test_stragglers.py)."""
NOISE = 0.001
"""The least noise of a rank's own time, relative: a process's mean on one GPU. The largest of five
configurations on 17 H200s (tests/data/h200-kinds): TF32's, 0.0010."""
BETWEEN_GPUS = 0.011
"""The same between GPUs of which no canary tells the kind: the largest there, 0.0110."""
_ALIKE = 1.5
"""Peers whose spread is up to so many times the least are compared with."""
_SCALE = 0.01
"""The class's scale that SLOPES and ALIKE are multiples of, as of cycles."""


@dataclass(frozen=True)
class Straggler:
    """A rank that is slower than its peers."""

    rank: int
    slower: float
    """How much longer it works than the median of those it is compared with, as a share."""
    own: float
    """The mean of its times, adjusted, in their unit."""
    peers: float
    """That median."""


def stragglers(
    times: Sequence[Sequence[float]],
    kinds: Sequence[Kind | None] = (),
    collectives: Sequence[Sequence[float]] = (),
) -> tuple[Straggler, ...]:
    """The ranks of a step that are slower than their peers, by the times of each; slowest first.

    `kinds` are those of the ranks' GPUs, where their canaries say them, and `collectives` how long
    collectives took in each of the same executions; without them no rank has waited. Of fewer than
    two ranks, with less than FREEDOM, or where a time is not above 0, nobody can say.
    """
    count = len(times)
    freedom = sum(map(len, times)) - count - 1
    if count < 2 or freedom < FREEDOM or not all(times) or min(map(min, times)) <= 0:
        return ()
    known = kinds if len(kinds) == count else (None,) * count
    if [*map(len, collectives)] != [*map(len, times)]:
        collectives = [[0.0] * len(values) for values in times]
    ranks = _adjusted(times, collectives, freedom)
    found = []
    for rank, own in enumerate(ranks.means):
        between = {p: _between(known[rank], known[p]) for p in range(count) if p != rank}
        noises = {peer: ranks.noise(rank, peer) for peer in between}
        spreads = {peer: math.hypot(between[peer], noises[peer]) for peer in between}
        alike = [p for p, spread in spreads.items() if spread <= _ALIKE * min(spreads.values())]
        beyond = []
        for peer in alike:
            of_both = math.floor(freedom * (spreads[peer] / noises[peer]) ** 4)
            allowed = quantile(ALPHA / (count * (count - 1)), of_both) * spreads[peer]
            beyond.append(own - ranks.means[peer] > allowed)
        usual = median(ranks.means[peer] for peer in alike)
        slower = math.expm1(own - usual)
        if 2 * sum(beyond) >= len(alike) and slower >= LEAST:
            found.append(Straggler(rank, slower, math.exp(own), math.exp(usual)))
    return tuple(sorted(found, key=lambda one: -one.slower))


@dataclass(frozen=True)
class _Adjusted:
    """The ranks' own times as logarithms, had all waited as long as the one that waited least."""

    means: list[float]
    deviation: float
    """What is left has this standard deviation."""
    executions: list[int]
    waited: list[float]
    """The mean time of each rank's collectives."""
    scatter: float
    """The sum of squares of those times around each rank's mean."""

    def noise(self, one: int, other: int) -> float:
        """The standard error of the difference of two ranks' means, as of GPUs that are alike."""
        executions = 1 / self.executions[one] + 1 / self.executions[other]
        apart = self.waited[one] - self.waited[other]
        slope = apart**2 / self.scatter if self.scatter else 0.0
        return max(math.sqrt(2) * NOISE, self.deviation * math.sqrt(executions + slope))


def _adjusted(
    times: Sequence[Sequence[float]], collectives: Sequence[Sequence[float]], freedom: int
) -> _Adjusted:
    logs = [[math.log(value) for value in values] for values in times]
    means, waited = [*map(fmean, logs)], [*map(fmean, collectives)]
    pairs = [
        (log - mean, wait - usual)
        for of_rank, waits, mean, usual in zip(logs, collectives, means, waited, strict=True)
        for log, wait in zip(of_rank, waits, strict=True)
    ]
    scatter = math.fsum(wait**2 for _, wait in pairs)
    slope = max(math.fsum(log * wait for log, wait in pairs) / scatter, 0.0) if scatter else 0.0
    left = math.fsum((log - slope * wait) ** 2 for log, wait in pairs)
    least = min(map(min, collectives))
    return _Adjusted(
        [mean - slope * (usual - least) for mean, usual in zip(means, waited, strict=True)],
        math.sqrt(left / freedom),
        [*map(len, times)],
        waited,
        scatter,
    )


def _between(one: Kind | None, other: Kind | None) -> float:
    """The standard deviation of the difference of two GPUs, as a logarithm."""
    if one is None or other is None:
        return math.sqrt(2) * BETWEEN_GPUS
    apart = (slope * (a - b) for slope, a, b in zip(SLOPES, one, other, strict=True))
    return _SCALE * math.sqrt(2 * ALIKE**2 + math.fsum(value**2 for value in apart))
