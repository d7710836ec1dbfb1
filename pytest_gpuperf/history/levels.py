"""Change points: on which nights a metric's level became another one, and what stays within noise.

Penalised least squares over a series of nights, with a noise that is known, so that nothing is to
be tuned (docs/history.md). With values z in units of that noise, the segments are those of the
least

    sum over segments of (z - mean of its segment)^2 + 2 ln(M) (segments - 1)

for M points in all the series that are looked at together. A change point at a given night of a
series without any lessens the sum by the square of one standard normal variable: by more than
2 ln(M) with a chance of about 0.8 / (M sqrt(2 ln M)). M points are M such chances, so that of a
whole history, however long and of however many metrics, about a sixth of a change point is false.
That is the usual penalty of a known variance (2 ln n of one series), over all series at once.

A segment has two nights at least: one night that stands apart is no change of level, and is set
aside like a process that does (`noise.py`), the last one too, until the next night agrees with it.

The chances above are of series that move by themselves. A night on which the machine is slow moves
all of a device's at once, by as much, and two such nights with one between, or one beside a real
change, make what a single series of 0.1 % noise cannot tell from a level of two nights: any of the
M may, and hundreds do. What they share is therefore judged first, as a series of its own: that of
the medians, over all series of a class, of the steps from one night to another (`_apart_together`).
It has the noise of a median of N, at best 1.25 / sqrt(N) of one's, so that two slow nights agree in
it by chance as much more rarely; and what changes fewer than half of the series is not in it. The
nights that stand apart there are set aside in all of them. A level that the whole machine keeps for
two nights is one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import ne
from statistics import median
from typing import TYPE_CHECKING

from pytest_gpuperf.judge.noise import OUTLIER_SPREADS, PRIOR_WEIGHT, judged_unit, on_judged_scale
from pytest_gpuperf.judge.tolerance import Tolerance, tolerance_for
from pytest_gpuperf.judge.verdict import COMPILED
from pytest_gpuperf.model.entry import Calibration
from pytest_gpuperf.model.metric import Direction, Metric

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]
    Steps = Mapping[int, Array]

LEAST_NIGHTS = 2
"""Of a level."""
_LAGS = (1, 2, 3)
"""Nights between values whose differences tell the noise: it may last for more than a night."""
_MOST_STEPS = 0.1
"""No more than this share of the differences are of changes; of more, they are the noise."""
_MAD_TO_SIGMA = 1.4826
_RARELY = 1e-3
_LEAST_MOVES = 3
"""So often a series goes between two GPUs until how they differ is known: once may be a change."""
_TOGETHER = 128
"""Series that are segmented at a time: more, and their tables are too large for a cache."""


@dataclass(frozen=True)
class NightlyValues:
    """One metric of one test on one device, in the order of time."""

    values: Sequence[float]
    gpus: Sequence[str]
    """Per night the GPU (a digest of its UUID)."""
    days: Sequence[int] = ()
    """When each was, of all series by one calendar; () where all have a value of every night."""


@dataclass(frozen=True)
class ChangePoint:
    """The level became another one."""

    before: int
    """The last night of the old level, as a position in the series."""
    at: int
    """The first night of the new one: what changed it is in between."""
    change: float | None
    """As people read it: 0.01 is 1 % of the old level, or 1 point of a percentage. None from 0."""
    error: float
    """Its standard error, in the same units; from 0 as a share of the mean."""
    worse: bool | None
    """None of a metric that is neither better nor worse."""
    matters: bool
    """Beyond the metric's tolerance: smaller ones are only known."""


@dataclass(frozen=True)
class Trend:
    """What became of one metric over the nights."""

    changes: tuple[ChangePoint, ...]
    levels: tuple[float, ...]
    """Between them, in the metric's unit and as on the GPU that measured most: one more than there
    are changes. None where all nights stand apart."""
    noise: float
    """Of a night's value: a share of it, or points."""
    points: bool
    tolerance: float
    """In the units of changes."""
    set_aside: tuple[int, ...] = ()
    """NightlyValues that stand apart."""
    pending: float | None = None
    """The change of the last night, where it stands apart by itself: the next will tell."""
    offsets: Mapping[str, float] = field(default_factory=dict)
    """How GPUs differ that the series goes to and fro between; taken off before anything else."""

    @property
    def worst(self) -> float:
        """The largest change for the worse that matters, 0 for none; points count as percents.

        From 0 it is infinite.
        """
        bad = [
            math.inf if one.change is None else abs(one.change)
            for one in self.changes
            if one.worse and one.matters
        ]
        return max(bad, default=0.0) / (100 if self.points else 1)


def trends(
    series: Sequence[tuple[Metric, NightlyValues]], calibration: Calibration | None = None
) -> list[Trend]:
    """The trend of each of these series, which are all those of one device.

    The noise of each is that of differences between its nights, pooled with its class's as between
    processes: s^2 = max((20 S^2 + (n - 1) s_n^2) / (20 + n - 1), s_n^2), where S is the median over
    the class, and no less than what is assumed or calibrated.
    """
    import numpy as np

    tolerances = [tolerance_for(metric, None, calibration) for metric, _ in series]
    scaled = [
        np.array(on_judged_scale(nights.values, tolerance)) if len(nights.values) else np.zeros(0)
        for (_, nights), tolerance in zip(series, tolerances, strict=True)
    ]
    offsets = [
        _offsets(values, nights.gpus) for values, (_, nights) in zip(scaled, series, strict=True)
    ]
    for values, (_, nights), known in zip(scaled, series, offsets, strict=True):
        if known:
            values -= [known.get(gpu, 0.0) for gpu in nights.gpus]
    sigmas = _noise(series, scaled, tolerances)
    apart = [
        _apart(_steps(values), sigma, len(values))
        for values, sigma in zip(scaled, sigmas, strict=True)
    ]
    pending = [bool(len(one)) and bool(one[-1]) for one in apart]
    for one, together in zip(apart, _apart_together(series, scaled, sigmas), strict=True):
        one |= together
    kept = [np.flatnonzero(~one) for one in apart]
    aside = [np.flatnonzero(one).tolist() for one in apart]
    normal = [
        (values[places] - values[places[0]]) / sigma if len(places) else values[places]
        for values, places, sigma in zip(scaled, kept, sigmas, strict=True)
    ]
    points = sum(map(len, normal))
    cuts = segmented(normal, 2 * math.log(max(points, 2)))
    return [
        _trend(
            metric,
            nights,
            tolerances[n],
            scaled[n],
            kept[n],
            cuts[n],
            sigmas[n],
            offsets[n],
            set_aside=aside[n],
            pending=pending[n],
        )
        for n, (metric, nights) in enumerate(series)
    ]


def segmented(series: Sequence[Array], penalty: float) -> list[list[int]]:
    """Where segments of each series begin, but for the first: exactly the least sum, no heuristics.

    Values are in units of their noise. All of them at once, night by night, by dynamic programming:
    F(t) = min over s of F(s) + penalty - (sum of z between s and t)^2 / (t - s), in which the sum
    of squares, the same for all, is left out.
    """
    order = sorted(range(len(series)), key=lambda n: len(series[n]))
    cuts: list[list[int]] = [[] for _ in series]
    for begin in range(0, len(order), _TOGETHER):
        group = order[begin : begin + _TOGETHER]
        for n, of_one in zip(group, _segmented([series[n] for n in group], penalty), strict=True):
            cuts[n] = of_one
    return cuts


def _segmented(series: Sequence[Array], penalty: float) -> Iterator[list[int]]:
    import numpy as np

    longest = max(map(len, series))
    sums = np.zeros((len(series), longest + 1))
    for row, values in enumerate(series):
        sums[row, 1 : len(values) + 1] = np.cumsum(values)
    # Of what ends at each night, with the penalty for what follows; the first level has none.
    least = np.full((len(series), longest + 1), np.inf)
    least[:, 0] = 0.0
    last = np.zeros((len(series), longest + 1), dtype=np.int64)
    shares = 1 / np.arange(longest, 0, -1.0)
    room = np.empty(len(series) * longest)
    rows = np.arange(len(series))
    for t in range(LEAST_NIGHTS, longest + 1):
        until = t - LEAST_NIGHTS + 1
        costs = room[: len(series) * until].reshape(len(series), until)
        np.subtract(sums[:, :until], sums[:, t, None], out=costs)
        costs *= costs
        costs *= shares[longest - t : longest - t + until]
        np.subtract(least[:, :until], costs, out=costs)
        last[:, t] = np.argmin(costs, axis=1)
        least[:, t] = costs[rows, last[:, t]] + penalty
    for row, values in enumerate(series):
        cuts: list[int] = []
        t = len(values)
        while t >= LEAST_NIGHTS and (t := int(last[row, t])):
            cuts.append(t)
        yield cuts[::-1]


def _offsets(values: Array, gpus: Sequence[str]) -> dict[str, float]:
    """How each GPU of a pool differs from the one that measured most; empty for one GPU.

    By the median of the differences between neighbouring nights on two GPUs, where the series goes
    to and fro between them: one move may be the change itself, and is left in the values.
    """
    if len(set(gpus)) < 2 or sum(map(ne, gpus[:-1], gpus[1:])) < _LEAST_MOVES:
        return {}
    moves: dict[tuple[str, str], list[float]] = {}
    for one, other, step in zip(gpus[:-1], gpus[1:], values[1:] - values[:-1], strict=True):
        if one != other:
            moves.setdefault((one, other), []).append(float(step))
            moves.setdefault((other, one), []).append(-float(step))
    first = max(dict.fromkeys(gpus), key=gpus.count)
    known = {first: 0.0}
    waiting = [first]
    while waiting:
        here = waiting.pop()
        for (one, other), steps in moves.items():
            if one == here and other not in known and len(steps) >= _LEAST_MOVES:
                known[other] = known[here] + median(steps)
                waiting.append(other)
    return known


def _noise(
    series: Sequence[tuple[Metric, NightlyValues]],
    scaled: Sequence[Array],
    tolerances: Sequence[Tolerance],
) -> list[float]:
    """The standard deviation of a night's value, of each series, on the judged scale."""
    own = [
        _deviation(_steps(values), tolerance.scale)
        for values, tolerance in zip(scaled, tolerances, strict=True)
    ]
    classes: dict[tuple[str, bool], list[float]] = {}
    keys = [(metric.metric_class.value, metric.percentage) for metric, _ in series]
    for key, deviation, values in zip(keys, own, scaled, strict=True):
        if len(values) > LEAST_NIGHTS:
            classes.setdefault(key, []).append(deviation)
    sigmas = []
    for key, deviation, values, tolerance in zip(keys, own, scaled, tolerances, strict=True):
        seen = max(len(values) - 1, 0)
        shared = median(classes.get(key, [0.0]))
        if len(values) > LEAST_NIGHTS:
            shared = min(shared, _most(deviation, seen))
        sigmas.append(_pooled(max(tolerance.scale, shared), deviation, seen))
    return sigmas


def _most(deviation: float, seen: int) -> float:
    """The noise above which so little would be seen in one of 1000 series only.

    The others of a class may be of steps that wait for the host, and far noisier.
    """
    return deviation * math.sqrt(seen / _little(seen))


@cache
def _little(seen: int) -> float:
    """The sum of so many squares of standard normals, where it is smaller in one of 1000 only."""
    from scipy.stats import chi2

    return float(chi2.ppf(_RARELY, seen))


def _pooled(shared: float, deviation: float, seen: int) -> float:
    """A noise that was seen `seen` times, with what is known besides; no less than was seen."""
    pooled = (PRIOR_WEIGHT * shared**2 + seen * deviation**2) / (PRIOR_WEIGHT + seen)
    return math.sqrt(max(pooled, deviation**2))


def _steps(values: Array) -> Steps:
    return {lag: values[lag:] - values[:-lag] for lag in _LAGS}


def _deviation(steps: Steps, assumed: float) -> float:
    """From differences between nights, which a change of level moves once.

    Without those that are of changes or of nights that stand apart: few, and far beyond the others.
    """
    import numpy as np

    largest = 0.0
    for lag, of_lag in steps.items():
        sizes = np.abs(of_lag) / math.sqrt(2)
        if len(sizes) < LEAST_NIGHTS:
            break
        robust = max(_MAD_TO_SIGMA * _median(sizes), assumed / PRIOR_WEIGHT)
        near = sizes[sizes <= OUTLIER_SPREADS * robust]
        used = near if len(near) >= (1 - _MOST_STEPS * lag) * len(sizes) - 2 * lag else sizes
        largest = max(largest, math.sqrt(float(used @ used) / len(used)) if len(used) else 0.0)
    return largest


def _apart(steps: Steps, sigma: float, nights: int) -> npt.NDArray[np.bool_]:
    """NightlyValues that are near to none of the two before them and of the two behind."""
    import numpy as np

    reach = OUTLIER_SPREADS * sigma
    near = np.zeros(nights, dtype=bool)
    for lag in (1, 2):
        close = ~(np.abs(steps[lag]) > reach)  # also where nobody knows
        near[lag:] |= close
        near[:-lag] |= close
    return ~near if nights > LEAST_NIGHTS else np.zeros(nights, dtype=bool)


def _apart_together(
    series: Sequence[tuple[Metric, NightlyValues]], scaled: Sequence[Array], sigmas: Sequence[float]
) -> list[npt.NDArray[np.bool_]]:
    """Per series its nights on which the device as a whole stands apart, by the same rule.

    By the steps of its median series, of each class of metrics: from one night to another the
    median of the steps of all. What changes fewer than half of them is not in it. Its noise is
    pooled with that of one of them, and so becomes known with the nights: it is the less, the more
    they are.
    """
    import numpy as np

    places, nights = _calendar([one for _, one in series])
    classes: dict[tuple[str, bool], list[int]] = {}
    for number, (metric, _) in enumerate(series):
        classes.setdefault((metric.metric_class.value, metric.percentage), []).append(number)
    apart = [np.zeros(len(values), dtype=bool) for values in scaled]
    for members in classes.values():
        table = np.full((nights, len(members)), np.nan)
        for column, number in enumerate(members):
            table[places[number], column] = scaled[number]
        steps = {lag: _medians(table[lag:] - table[:-lag]) for lag in _LAGS}
        shared = median(sigmas[number] for number in members)
        known = {lag: of_lag[~np.isnan(of_lag)] for lag, of_lag in steps.items()}
        sigma = _pooled(shared, _deviation(known, shared), max(nights - 1, 0))
        together = _apart(steps, sigma, nights)
        for number in members:
            apart[number] = together[places[number]]
    return apart


def _calendar(series: Sequence[NightlyValues]) -> tuple[list[npt.NDArray[np.intp]], int]:
    """Where the values of each series are among the nights of all, and how many these are.

    The second value of a day is another night than the first.
    """
    import numpy as np

    days = [np.array(one.days or range(len(one.values)), dtype=np.int64) for one in series]
    again = [np.arange(len(of_one)) - np.searchsorted(of_one, of_one) for of_one in days]
    most = 1 + max((int(of_one.max()) for of_one in again if len(of_one)), default=0)
    keys = [of_one * most + nth for of_one, nth in zip(days, again, strict=True)]
    nights = np.unique(np.concatenate([*keys, np.zeros(0, dtype=np.int64)]))
    return [np.searchsorted(nights, of_one) for of_one in keys], len(nights)


def _median(values: Array) -> float:
    """As numpy has it, which takes four times as long of a year's nights."""
    import numpy as np

    half = len(values) // 2
    parted = np.partition(values, half)
    high = float(parted[half])
    return high if len(values) % 2 else (float(parted[:half].max()) + high) / 2


def _medians(rows: Array) -> Array:
    """The median of each row, of what is there; NaN where nothing is."""
    import numpy as np

    ordered = np.sort(rows, axis=1)  # NaN comes last
    counts = np.count_nonzero(~np.isnan(rows), axis=1)
    places = np.arange(len(rows))
    low = ordered[places, np.maximum(counts - 1, 0) // 2]
    high = ordered[places, np.minimum(counts // 2, rows.shape[1] - 1)]
    middle: Array = (low + high) / 2
    return middle


def _trend(
    metric: Metric,
    nights: NightlyValues,
    tolerance: Tolerance,
    values: Array,
    kept: npt.NDArray[np.intp],
    cuts: Sequence[int],
    sigma: float,
    offsets: Mapping[str, float],
    *,
    set_aside: Sequence[int],
    pending: bool,
) -> Trend:
    import numpy as np

    unit = judged_unit(nights.values, tolerance) if len(nights.values) else 1.0
    logarithmic = unit is None
    parts = np.split(kept, list(cuts)) if cuts else [kept]
    measured = np.array(nights.values, dtype=float)
    if offsets:
        others = np.array([offsets.get(gpu, 0.0) for gpu in nights.gpus])
        measured = measured / np.exp(others) if unit is None else measured - unit * others
    means = [float(values[part].sum()) / len(part) if len(part) else 0.0 for part in parts]
    changes = []
    for one, other, old, new in zip(parts[:-1], parts[1:], means[:-1], means[1:], strict=True):
        change = _shown(new - old, logarithmic)
        error = sigma * math.sqrt(1 / len(one) + 1 / len(other))
        of_old = 1.0 if logarithmic or tolerance.points else old
        worse = None
        if metric.direction is not Direction.NEUTRAL:
            # As in a verdict, a step that lost torch.compile is not better.
            lost = metric.name == COMPILED and not logarithmic and not new
            worse = lost or (change > 0) is (metric.direction is Direction.LOWER)
        changes.append(
            ChangePoint(
                before=int(one[-1]),
                at=int(other[0]),
                change=change / of_old if of_old else None,
                error=error / (abs(of_old) or 1.0),
                worse=worse,
                matters=abs(change) > tolerance.floor,
            )
        )
    moved = None
    if pending and len(kept):
        moved = _shown(float(values[-1]) - means[-1], logarithmic)
    return Trend(
        changes=tuple(changes),
        levels=tuple(_median(measured[part]) for part in parts if len(part)),
        noise=sigma,
        points=tolerance.points,
        tolerance=tolerance.floor,
        set_aside=tuple(set_aside),
        pending=moved,
        offsets=offsets,
    )


def _shown(change: float, logarithmic: bool) -> float:
    return math.expm1(min(change, 700.0)) if logarithmic else change
