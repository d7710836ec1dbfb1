"""Stragglers: ranks that are slower than their peers, by the time that each works itself.

Ranks that wait for each other have the same step time; what differs is their own work. Two GPUs of
one name differ by themselves, and how far is known of those whose canary reads the same
(`noise.py`). A rank is compared with those peers whose GPUs are most like its own, and named where
it is slower than at least half of these, than each by more than chance allows: chance names any
rank of a step in ALPHA of all measurements at most, as each of the n (n - 1) comparisons is allowed
ALPHA / (n (n - 1)). Less than LEAST is nobody's concern.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median, stdev

from pytest_gpuperf.judge.noise import ALIKE, SLOPES, Kind

ALPHA = 0.001
LEAST = 0.01
NOISE = 0.001
"""Standard deviation of a process's mean on one GPU, relative. The largest of five configurations
on 17 H200s (tests/data/h200-kinds): TF32's, 0.0010."""
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
    """Its mean, in the unit of the times."""
    peers: float
    """That median."""


def stragglers(
    times: Sequence[Sequence[float]], kinds: Sequence[Kind | None] = ()
) -> tuple[Straggler, ...]:
    """The ranks of a step that are slower than their peers, by the times of each; slowest first.

    `kinds` are those of the ranks' GPUs, where their canaries say them. Of fewer than two ranks, or
    where one has no time above 0, nobody can say.
    """
    count = len(times)
    if count < 2 or not all(values and min(values) > 0 for values in times):
        return ()
    known = kinds if len(kinds) == count else (None,) * count
    means = [fmean(values) for values in times]
    # Two or three values say little about their own spread: it is never taken for less than NOISE.
    noises = [
        max(NOISE, stdev(map(math.log, values)) / math.sqrt(len(values)))
        if len(values) > 1
        else NOISE
        for values in times
    ]
    allowed = NormalDist().inv_cdf(1 - ALPHA / (count * (count - 1)))
    found = []
    for rank, own in enumerate(means):
        spreads = {
            peer: math.hypot(_between(known[rank], known[peer]), noises[rank], noises[peer])
            for peer in range(count)
            if peer != rank
        }
        alike = [p for p, spread in spreads.items() if spread <= _ALIKE * min(spreads.values())]
        beyond = [math.log(own / means[peer]) > allowed * spreads[peer] for peer in alike]
        usual = median(means[peer] for peer in alike)
        if 2 * sum(beyond) >= len(alike) and own / usual - 1 >= LEAST:
            found.append(Straggler(rank, own / usual - 1, own, usual))
    return tuple(sorted(found, key=lambda one: -one.slower))


def _between(one: Kind | None, other: Kind | None) -> float:
    """The standard deviation of the difference of two GPUs, as a logarithm."""
    if one is None or other is None:
        return math.sqrt(2) * BETWEEN_GPUS
    apart = (slope * (a - b) for slope, a, b in zip(SLOPES, one, other, strict=True))
    return _SCALE * math.sqrt(2 * ALIKE**2 + math.fsum(value**2 for value in apart))
