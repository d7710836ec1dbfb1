"""Stragglers: ranks that are slower than their peers, by the time that each works itself.

Ranks that wait for each other have the same step time; what differs is their own work. Waiting in a
collective takes processors and memory from the kernels beside it, so chance makes a rank's own time
longer, by up to 6 % of an execution seen, and hardly ever shorter: a rank's time is the mean of the
faster half of its executions, and its noise their standard deviation. Over a square root of their
number it would be too little, as the faster half of anything is closer together than the whole; as
it is, chance names nobody more often than it may, by a simulation with normal and exponential
noise (tests/judge/test_stragglers.py).

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
from statistics import fmean, median, stdev

from pytest_gpuperf.judge.interval import quantile
from pytest_gpuperf.judge.noise import ALIKE, SLOPES, Kind

ALPHA = 0.001
LEAST = 0.01
FEWEST = 7
"""Executions: of fewer the spread of the faster half is too uncertain for ALPHA to be kept."""
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
    """The mean of the faster half of its executions, in the unit of the times."""
    peers: float
    """That median, of the peers' means."""


def stragglers(
    times: Sequence[Sequence[float]], kinds: Sequence[Kind | None] = ()
) -> tuple[Straggler, ...]:
    """The ranks of a step that are slower than their peers, by the times of each; slowest first.

    `kinds` are those of the ranks' GPUs, where their canaries say them. Of fewer than two ranks, or
    where one has fewer than FEWEST times or one that is not above 0, nobody can say.
    """
    count = len(times)
    if count < 2 or any(len(values) < FEWEST or min(values) <= 0 for values in times):
        return ()
    known = kinds if len(kinds) == count else (None,) * count
    faster = [sorted(values)[: (len(values) + 1) // 2] for values in times]
    means = [fmean(values) for values in faster]
    noises = [max(NOISE, stdev(map(math.log, values))) for values in faster]
    found = []
    for rank, own in enumerate(means):
        spreads = {
            peer: math.hypot(_between(known[rank], known[peer]), noises[rank], noises[peer])
            for peer in range(count)
            if peer != rank
        }
        alike = [p for p, spread in spreads.items() if spread <= _ALIKE * min(spreads.values())]
        beyond = []
        for peer in alike:
            of_noise = sum(noises[one] ** 4 / (len(faster[one]) - 1) for one in (rank, peer))
            freedom = math.floor(spreads[peer] ** 4 / of_noise)
            allowed = quantile(ALPHA / (count * (count - 1)), freedom) * spreads[peer]
            beyond.append(math.log(own / means[peer]) > allowed)
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
