"""Change points: on which nights a metric's level became another one, and what stays within noise.

Penalised least squares over a series of nights, with a noise that is known, so that nothing is to
be tuned. With values z in units of that noise, and M points in all the series that are looked at
together, the segments are those of the least

    sum over segments of (z - mean of its segment)^2 + 2 ln(M) (segments - 1)

by which about a sixth of a change point is false in a whole history (docs/history.md says why).

A segment has two nights at least: one night that stands apart is no change of level, and is set
aside like a process that does (`noise.py`), the last one too, until the next night agrees with it.

A night on which the machine is slow moves all series of a device at once. Two such nights that are
near each other look like a level of two nights in any of them. So the medians, over all series of a
class, of the steps between nights are judged first, as a series of its own (`_apart_together`):
its noise is that of a median, and two slow nights seldom agree in it by chance. The nights that
stand apart there are set aside in all series; a level that the machine keeps for two nights is one.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import TYPE_CHECKING

from pytest_gpuperf.judge.interval import shown
from pytest_gpuperf.judge.noise import PRIOR_WEIGHT, judged_unit, on_judged_scale
from pytest_gpuperf.judge.tolerance import Tolerance, tolerance_for
from pytest_gpuperf.judge.verdict import COMPILED
from pytest_gpuperf.model.entry import Calibration
from pytest_gpuperf.model.metric import Direction, Metric

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]
    Places = npt.NDArray[np.intp]
    Flags = npt.NDArray[np.bool_]
    Steps = Mapping[int, Array]

LEAST_NIGHTS = 2
"""Of a level."""
OUTLIER_SPREADS = 5
"""A night further than this many spreads from its neighbours stands apart."""
MAD_TO_SIGMA = 1.4826
"""The standard deviation of normal noise over its median absolute deviation."""
_LAGS = (1, 2, 3)
"""Nights between values whose differences tell the noise: it may last for more than a night."""
_MOST_STEPS = 0.1
"""No more than this share of the differences are of changes; of more, they are the noise."""
_RARELY = 1e-3
_LEAST_MOVES = 3
"""So often a series goes between two GPUs until how they differ is known: once may be a change."""


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
    """Nights that stand apart."""
    pending: float | None = None
    """The change of the last night, where it stands apart by itself: the next will tell."""


class _JudgedSeries:
    """A series on its way to a trend."""

    def __init__(self, metric: Metric, nights: NightlyValues, tolerance: Tolerance) -> None:
        import numpy as np

        self.metric, self.nights, self.tolerance = metric, nights, tolerance
        self.noise_class = (metric.metric_class.value, metric.percentage)
        self.values = _as_on_one_gpu(nights, tolerance)
        """In the metric's unit."""
        self.unit = judged_unit(self.values.tolist(), tolerance)
        """Of the judged scale; None of logarithms."""
        self.scaled = np.array(on_judged_scale(self.values.tolist(), self.unit))
        """So that differences are what is judged: logarithms, shares or points."""
        self.deviation = _deviation(_steps(self.scaled), tolerance.scale)
        self.sigma = 0.0
        self.apart: Flags = np.zeros(len(self.values), dtype=bool)
        self.places: Places = np.arange(len(self.values))
        """Of its nights among those of the device."""

    @property
    def kept(self) -> Places:
        """The nights that do not stand apart."""
        import numpy as np

        return np.flatnonzero(~self.apart)

    def normal(self) -> Array:
        """What is kept, in units of its noise."""
        kept = self.scaled[self.kept]
        return (kept - kept[0]) / self.sigma if len(kept) else kept


def trends(
    series: Sequence[tuple[Metric, NightlyValues]], calibration: Calibration | None = None
) -> list[Trend]:
    """The trend of each of these series, which are all those of one device.

    The noise of each is that of differences between its nights, pooled with its class's as between
    processes: s^2 = max((20 S^2 + (n - 1) s_n^2) / (20 + n - 1), s_n^2), where S is the median over
    the class, and no less than what is assumed or calibrated.
    """
    lines = [
        _JudgedSeries(metric, nights, tolerance_for(metric, None, calibration))
        for metric, nights in series
    ]
    classes: dict[tuple[str, bool], list[_JudgedSeries]] = {}
    for line in lines:
        classes.setdefault(line.noise_class, []).append(line)
    for members in classes.values():
        _know_noise(members)
    for line in lines:
        line.apart = _apart(_steps(line.scaled), line.sigma, len(line.values))
    pending = [bool(len(line.apart)) and bool(line.apart[-1]) for line in lines]
    nights = _place(lines)
    for members in classes.values():
        _set_aside_together(members, nights)
    normal = [line.normal() for line in lines]
    cuts = segmented(normal, 2 * math.log(max(sum(map(len, normal)), 2)))
    return list(map(_trend, lines, cuts, pending))


def segmented(series: Sequence[Array], penalty: float) -> list[list[int]]:
    """Where segments of each series begin, but for the first: exactly the least sum, no heuristics.

    Values are in units of their noise. All of them at once, night by night, by dynamic programming:
    F(t) = min over s of F(s) + penalty - (sum of z between s and t)^2 / (t - s), in which the sum
    of squares, the same for all, is left out.
    """
    import numpy as np

    longest = max(map(len, series), default=0)
    sums = np.zeros((len(series), longest + 1))
    for row, values in enumerate(series):
        sums[row, 1 : len(values) + 1] = np.cumsum(values)
    # Of what ends at each night, with the penalty for what follows; the first level has none.
    least = np.full((len(series), longest + 1), np.inf)
    least[:, 0] = 0.0
    last = np.zeros((len(series), longest + 1), dtype=np.int64)
    for t in range(LEAST_NIGHTS, longest + 1):
        until = t - LEAST_NIGHTS + 1
        costs = sums[:, :until] - sums[:, t, None]
        costs *= costs
        costs *= 1 / np.arange(t, t - until, -1.0)
        np.subtract(least[:, :until], costs, out=costs)
        last[:, t] = costs.argmin(axis=1)
        least[:, t] = costs.min(axis=1) + penalty
    return [_cuts(before, len(values)) for before, values in zip(last, series, strict=True)]


def _cuts(last: Places, nights: int) -> list[int]:
    """Where segments begin, by where the last one of each length does."""
    cuts: list[int] = []
    t = nights
    while t >= LEAST_NIGHTS and (t := int(last[t])):
        cuts.append(t)
    return cuts[::-1]


def _as_on_one_gpu(nights: NightlyValues, tolerance: Tolerance) -> Array:
    """The values; those of a pool's other GPUs as on the one that measured most.

    They differ by the median of the steps between neighbouring nights on the two. Where there are
    few such steps the values stay as they are: one step may be the change itself.
    """
    import numpy as np

    values = np.array(nights.values, dtype=float)
    names = list(dict.fromkeys(nights.gpus))
    if len(names) < 2:
        return values
    first = max(names, key=nights.gpus.count)
    unit, gpus = judged_unit(values.tolist(), tolerance), np.array(nights.gpus)
    steps = np.diff(on_judged_scale(values.tolist(), unit))
    for other in set(names) - {first}:
        there = (gpus[:-1] == first) & (gpus[1:] == other)
        back = (gpus[:-1] == other) & (gpus[1:] == first)
        moves = np.concatenate([steps[there], -steps[back]])
        if len(moves) >= _LEAST_MOVES:
            offset = float(np.median(moves))
            mine = values[gpus == other]
            values[gpus == other] = (
                mine / math.exp(offset) if unit is None else mine - unit * offset
            )
    return values


def _know_noise(members: Sequence[_JudgedSeries]) -> None:
    """Sets the standard deviation of a night's value of each of one class, on the judged scale."""
    known = [line.deviation for line in members if len(line.values) > LEAST_NIGHTS]
    shared = median(known) if known else 0.0
    for line in members:
        seen = max(len(line.values) - 1, 0)
        of_class = shared
        if len(line.values) > LEAST_NIGHTS:
            # The others of a class may be of steps that wait for the host, and far noisier.
            of_class = min(shared, line.deviation * _most_times(seen))
        line.sigma = _pooled(max(line.tolerance.scale, of_class), line.deviation, seen)


@cache
def _most_times(seen: int) -> float:
    """By how much a noise is greater than what is seen of it, but for one series of 1000."""
    from scipy.special import chdtri

    return math.sqrt(seen / float(chdtri(seen, 1 - _RARELY)))


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
        robust = max(MAD_TO_SIGMA * float(np.median(sizes)), assumed / PRIOR_WEIGHT)
        near = sizes[sizes <= OUTLIER_SPREADS * robust]
        used = near if len(near) >= (1 - _MOST_STEPS * lag) * len(sizes) - 2 * lag else sizes
        largest = max(largest, math.sqrt(float(used @ used) / len(used)) if len(used) else 0.0)
    return largest


def _apart(steps: Steps, sigma: float, nights: int) -> Flags:
    """Nights that are near to none of the two before them and of the two behind."""
    import numpy as np

    reach = OUTLIER_SPREADS * sigma
    near = np.zeros(nights, dtype=bool)
    for lag in (1, 2):
        close = ~(np.abs(steps[lag]) > reach)  # also where nobody knows
        near[lag:] |= close
        near[:-lag] |= close
    return ~near if nights > LEAST_NIGHTS else np.zeros(nights, dtype=bool)


def _place(lines: Sequence[_JudgedSeries]) -> int:
    """Sets where the nights of each series are among those of all; how many these are.

    The second value of a day is another night than the first.
    """
    import numpy as np

    days = [np.array(line.nights.days or range(len(line.values)), dtype=np.int64) for line in lines]
    again = [np.arange(len(of_one)) - np.searchsorted(of_one, of_one) for of_one in days]
    most = 1 + max((int(of_one.max()) for of_one in again if len(of_one)), default=0)
    keys = [of_one * most + nth for of_one, nth in zip(days, again, strict=True)]
    nights = np.unique(np.concatenate([*keys, np.zeros(0, dtype=np.int64)]))
    for line, of_one in zip(lines, keys, strict=True):
        line.places = np.searchsorted(nights, of_one)
    return len(nights)


def _set_aside_together(members: Sequence[_JudgedSeries], nights: int) -> None:
    """Sets the nights aside on which the device as a whole stands apart in a class of metrics.

    By the steps of its median series: from one night to another the median of the steps of all.
    What changes fewer than half of them is not in it. Its noise is pooled with that of one of
    them, and so becomes known with the nights.
    """
    import numpy as np

    table = np.full((nights, len(members)), np.nan)
    for column, line in enumerate(members):
        table[line.places, column] = line.scaled
    steps = {lag: _medians(table[lag:] - table[:-lag]) for lag in _LAGS}
    shared = median(line.sigma for line in members)
    known = {lag: of_lag[~np.isnan(of_lag)] for lag, of_lag in steps.items()}
    sigma = _pooled(shared, _deviation(known, shared), max(nights - 1, 0))
    together = _apart(steps, sigma, nights)
    for line in members:
        line.apart = line.apart | together[line.places]


def _medians(rows: Array) -> Array:
    """The median of each row, of what is there; NaN where nothing is."""
    import numpy as np

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a row without any
        middle: Array = np.nanmedian(rows, axis=1)
    return middle


def _trend(line: _JudgedSeries, cuts: Sequence[int], pending: bool) -> Trend:
    import numpy as np

    kept, tolerance = line.kept, line.tolerance
    parts = [part for part in np.split(kept, list(cuts)) if len(part)]
    means = [float(line.scaled[part].sum()) / len(part) for part in parts]
    moved = None
    if pending and len(kept):
        moved = shown(float(line.scaled[-1]) - means[-1], line.unit is None)
    pairs = zip(parts[:-1], parts[1:], means[:-1], means[1:], strict=True)
    return Trend(
        changes=tuple(_change(line, *pair) for pair in pairs),
        levels=tuple(float(np.median(line.values[part])) for part in parts),
        noise=line.sigma,
        points=tolerance.points,
        tolerance=tolerance.floor,
        set_aside=tuple(np.flatnonzero(line.apart).tolist()),
        pending=moved,
    )


def _change(line: _JudgedSeries, one: Places, other: Places, old: float, new: float) -> ChangePoint:
    """Between the nights of two levels, with these means on the judged scale."""
    logarithmic = line.unit is None
    change = shown(new - old, logarithmic)
    error = line.sigma * math.sqrt(1 / len(one) + 1 / len(other))
    of_old = 1.0 if logarithmic or line.tolerance.points else old
    worse = None
    if line.metric.direction is not Direction.NEUTRAL:
        # As in a verdict, a step that lost torch.compile is not better.
        lost = line.metric.name == COMPILED and not logarithmic and not new
        worse = lost or (change > 0) is (line.metric.direction is Direction.LOWER)
    return ChangePoint(
        before=int(one[-1]),
        at=int(other[0]),
        change=change / of_old if of_old else None,
        error=error / (abs(of_old) or 1.0),
        worse=worse,
        matters=abs(change) > line.tolerance.floor,
    )
