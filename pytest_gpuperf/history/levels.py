"""Change points: nights on which a metric's level changed by more than its noise.

A series consists of levels, which may slope, and noise, part of which lasts for some nights.
Penalised least squares finds the nearest stair; steps that a slope explains are dropped. An exact
count has values instead of noise: see docs/history.md.

An outlying night is set aside as an outlying process is (`noise.py`), the last one until the next
agrees. A median step of a whole class of metrics is attributed to the machine.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from statistics import median

import numpy as np
import numpy.typing as npt

from pytest_gpuperf.judge.interval import shown
from pytest_gpuperf.judge.noise import PRIOR_WEIGHT, Variance, judged_unit, on_judged_scale
from pytest_gpuperf.judge.tolerance import Tolerance, tolerance_for
from pytest_gpuperf.judge.verdict import COMPILED
from pytest_gpuperf.model.metric import Direction, Metric

Array = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]
Steps = Mapping[int, Array]

LEAST_NIGHTS = 2
"""The fewest nights of a level."""
OUTLIER_SPREADS = 5
"""A night further than this many spreads from its neighbours stands apart."""
MAD_TO_SIGMA = 1.4826
"""The standard deviation of normal noise over its median absolute deviation."""
_LAGS, _NEAR = (1, 2, 3, 5), 3
"""Nights between values whose differences tell how the noise lasts; the first three, how large."""
_MEMORY_NIGHTS = 100
"""Weight, in nights, of the prior that noise does not last."""
_FADES, _LASTS = 0.75, 6
"""The share of lasting noise left a night later, and how many times more nights it needs."""
_AROUND = 30
"""Nights on each side that tell whether a step stands on a slope; a younger history may begin with
a level of one night."""
_DOUBT = 1.5
"""A change may be chance that so many times the noise makes once in a history."""
_REPEATED, _EARLY = 0.4, 0.7
"""A count is exact if so many nights repeat the one before, but for a change among the first."""
_MOST_STEPS = 0.1
"""The largest share of differences that can be changes; a larger share is noise."""
_RARELY = 1e-3


@dataclass(frozen=True, slots=True)
class NightlyValues:
    """One metric of one test on one device, in the order of time."""

    metric: Metric
    values: Sequence[float]
    days: Sequence[int] = ()
    """The day of each value since 1970-01-01, UTC; () if no series has gaps."""


@dataclass(frozen=True)
class ChangePoint:
    """The level became another one."""

    before: int
    """The last night of the old level, as a position in the series."""
    at: int
    """The first night of the new level: the cause lies before it."""
    change: float | None
    """The relative change (0.01 is 1 %), or points for a percentage. None if it starts from 0."""
    error: float
    """The standard error, in the same units; from 0 as a share of the mean."""
    worse: bool | None
    """Whether it is worse; None for a metric without a direction."""
    matters: bool
    """Beyond the metric's tolerance: smaller ones are only known."""
    doubtful: bool
    """Whether chance can explain it: a size that noise reaches once, or a count of one night."""


@dataclass(frozen=True)
class Trend:
    """The changes and levels of one metric over the nights."""

    changes: tuple[ChangePoint, ...]
    levels: tuple[float, ...]
    """The levels between changes, each by its last month, in the metric's unit: one more than the
    changes. None if all nights are outliers."""
    noise: float
    """The noise of one night's value: a share of the value, or points."""
    points: bool
    tolerance: float
    """The tolerance, in the units of changes."""
    set_aside: tuple[int, ...] = ()
    """Nights that stand apart."""
    pending: bool = False
    """Whether the last night is a single outlier: the next night decides."""


class _JudgedSeries:
    """A series on its way to a trend."""

    def __init__(self, nights: NightlyValues, tolerance: Tolerance) -> None:
        self.metric, self.days, self.tolerance = nights.metric, nights.days, tolerance
        self.values = np.array(nights.values, dtype=float)
        """The values in the metric's unit."""
        self.unit = judged_unit(self.values.tolist(), tolerance)
        """The unit of the judged scale; None for logarithms."""
        self.scaled = np.array(on_judged_scale(self.values.tolist(), self.unit))
        """The judged scale, on which differences count: logarithms, shares or points."""
        self.spreads = _deviations(_steps(self.scaled), tolerance.scale)
        self.deviation = max(self.spreads[:_NEAR], default=0.0)
        self.sigma = 0.0
        self.shared = 0.0
        """The share of a night's variance that lasts."""
        self.modes = _modes(self.scaled, tolerance)
        """The index of an exact count's value; None for other metrics."""
        self.stair: list[int] = []
        """The beginnings of levels after the first, among the kept nights."""
        self.pending = False
        self.apart: Flags = np.zeros(len(self.values), dtype=bool)
        self.places: Places = np.arange(len(self.values))
        """The positions of its nights among the device's nights."""

    @property
    def kept(self) -> Places:
        """The nights that do not stand apart."""
        return np.flatnonzero(~self.apart)

    @property
    def lasting(self) -> float:
        """The noise of nights that share none, whose means are as uncertain."""
        return self.sigma * math.sqrt(1 + _LASTS * self.shared)

    def normal(self) -> Array:
        """The kept values, in units of their noise."""
        kept = self.scaled[self.kept]
        return (kept - kept[0]) / self.lasting if len(kept) else kept


def trends(series: Sequence[NightlyValues]) -> list[Trend]:
    """The trend of each of these series, which must be all series of one device.

    The noise of each comes from differences between its nights, pooled with its class as between
    processes. s^2 = max((20 S^2 + (n - 1) s_n^2) / (20 + n - 1), s_n^2), where S is the median over
    the class, at least the assumed noise.
    """
    lines = [_JudgedSeries(one, tolerance_for(one.metric, None)) for one in series]
    penalty = 2 * math.log(max(sum(len(line.values) for line in lines), 2))
    noisy = [line for line in lines if line.modes is None]
    alike: dict[object, list[_JudgedSeries]] = {}
    for line in lines:
        of_class = line.metric.metric_class, line.metric.percentage
        alike.setdefault(of_class if line.modes is None else line.metric.name, []).append(line)
    nights = _place(noisy)
    for members in alike.values():
        if members[0].modes is not None:
            _know_counts(members, penalty + 4)
            continue
        _know_noise(members)
        for line in members:
            line.apart = _apart(_steps(line.scaled), line.sigma, len(line.values))
            line.pending = bool(line.apart[-1:].any())
        _set_aside_together(members, nights)
    stairs = segmented([line.normal() for line in noisy], penalty)
    for line, stair in zip(noisy, stairs, strict=True):
        line.stair = stair
    return [_trend(line, penalty) for line in lines]


def segmented(series: Sequence[Array], penalty: float) -> list[list[int]]:
    """The beginnings of the segments of each series after the first, by the exact minimum.

    Values are in units of their noise. Dynamic programming handles all series at once: F(t) = min
    over s of F(s) + penalty - (sum of z between s and t)^2 / (t - s). The sum of squares is the
    same for all and is left out.
    """
    longest = max(map(len, series), default=0)
    sums = np.zeros((len(series), longest + 1))
    for row, values in enumerate(series):
        sums[row, 1 : len(values) + 1] = np.cumsum(values)
    # The least cost up to each night, with the penalty of the next level; the first has none.
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


def _cuts(last: Places, nights: int, least: int = LEAST_NIGHTS) -> list[int]:
    """The beginnings of segments, from the beginning of the last one for each length."""
    cuts: list[int] = []
    t = nights
    while t >= least and (t := int(last[t])):
        cuts.append(t)
    return cuts[::-1]


def _know_noise(members: Sequence[_JudgedSeries]) -> None:
    """Sets the noise of each of one class on the judged scale, and how it lasts."""
    known = [line.deviation for line in members if len(line.values) > LEAST_NIGHTS]
    shared = median(known) if known else 0.0
    for line in members:
        seen = max(len(line.values) - 1, 0)
        of_class = shared
        if len(line.values) > LEAST_NIGHTS:
            # The others of a class may be of steps that wait for the host, and far noisier.
            of_class = min(shared, line.deviation * _most_times(seen))
        line.sigma = _pooled(max(line.tolerance.scale, of_class), line.deviation, seen)
    long = [one for one in members if len(one.values) > _AROUND and one.deviation]
    shares = {id(one): np.square(one.spreads) / one.deviation**2 for one in long}
    of_all = np.median([*shares.values()], axis=0) if shares else None
    for line in members:
        own, nights = shares.get(id(line)), len(line.values)
        line.shared = max(_shared(own, nights), _shared(of_all, nights * len(shares)))


def _shared(variances: Array | None, nights: int) -> float:
    """The lasting share, from half the variances of differences: own + shared (1 - fades^lag)."""
    if variances is None:
        return 0.0
    terms = np.array([[1.0, 1 - _FADES**lag] for lag in _LAGS])
    own, shared = np.linalg.lstsq(terms, variances, rcond=None)[0].clip(0).tolist()
    return float(shared / (own + shared) * nights / (nights + _MEMORY_NIGHTS))


@cache
def _most_times(seen: int) -> float:
    """The factor by which true noise may exceed observed noise, except in one series of 1000."""
    from scipy.special import chdtri

    return math.sqrt(seen / float(chdtri(seen, 1 - _RARELY)))


def _pooled(shared: float, deviation: float, seen: int) -> float:
    """Noise observed `seen` times, pooled with the prior; at least the observed noise."""
    return Variance(shared**2, PRIOR_WEIGHT).seen(seen * deviation**2, seen).root


def _steps(values: Array) -> Steps:
    return {lag: values[lag:] - values[:-lag] for lag in _LAGS}


def _deviations(steps: Steps, assumed: float) -> list[float]:
    """The deviation at each lag, from differences between nights; a change of level affects few.

    Differences at changes and outlying nights are left out: few, and far beyond the others.
    """
    spreads = []
    for lag, of_lag in steps.items():
        sizes = np.abs(of_lag) / math.sqrt(2)
        if len(sizes) < LEAST_NIGHTS:
            break
        robust = max(MAD_TO_SIGMA * float(np.median(sizes)), assumed / PRIOR_WEIGHT)
        near = sizes[sizes <= OUTLIER_SPREADS * robust]
        used = near if len(near) >= (1 - _MOST_STEPS * lag) * len(sizes) - 2 * lag else sizes
        spreads.append(math.sqrt(float(used @ used) / len(used)) if len(used) else 0.0)
    return spreads


def _apart(steps: Steps, sigma: float, nights: int) -> Flags:
    """Nights that are near to none of the two before them and of the two behind."""
    reach = OUTLIER_SPREADS * sigma
    near = np.zeros(nights, dtype=bool)
    for lag in (1, 2):
        close = ~(np.abs(steps[lag]) > reach)  # also if unknown
        near[lag:] |= close
        near[:-lag] |= close
    return ~near if nights > LEAST_NIGHTS else np.zeros(nights, dtype=bool)


def _place(lines: Sequence[_JudgedSeries]) -> int:
    """Sets the positions of each series' nights among all nights; returns the number of nights.

    A second value of a day counts as another night.
    """
    days = [np.array(line.days or range(len(line.values)), dtype=np.int64) for line in lines]
    again = [np.arange(len(of_one)) - np.searchsorted(of_one, of_one) for of_one in days]
    most = 1 + max((int(of_one.max()) for of_one in again if len(of_one)), default=0)
    keys = [of_one * most + nth for of_one, nth in zip(days, again, strict=True)]
    nights = np.unique(np.concatenate([*keys, np.zeros(0, dtype=np.int64)]))
    for line, of_one in zip(lines, keys, strict=True):
        line.places = np.searchsorted(nights, of_one)
    return len(nights)


def _set_aside_together(members: Sequence[_JudgedSeries], nights: int) -> None:
    """Sets aside the nights on which the whole device is an outlier in a class of metrics.

    It uses the median series: its step from night to night is the median of the steps of all. A
    change of fewer than half of them does not show. Its noise is pooled with that of one series, so
    it becomes known over the nights.
    """
    table = np.full((nights, len(members)), np.nan)
    for column, line in enumerate(members):
        table[line.places, column] = line.scaled
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of nights without any value
        steps = {lag: np.nanmedian(table[lag:] - table[:-lag], axis=1) for lag in _LAGS}
    shared = median(line.sigma for line in members)
    known = {lag: of_lag[~np.isnan(of_lag)] for lag, of_lag in steps.items()}
    seen = max(_deviations(known, shared)[:_NEAR], default=0.0)
    sigma = _pooled(shared, seen, max(nights - 1, 0))
    together = _apart(steps, sigma, nights)
    for line in members:
        line.apart = line.apart | together[line.places]


def _modes(scaled: Array, tolerance: Tolerance) -> Places | None:
    """The index of each night's value, to half the tolerance; None where few nights repeat."""
    if not tolerance.counted:
        return None
    modes = np.unique(np.rint(scaled * 2 / tolerance.floor), return_inverse=True)[1]
    repeated = np.diff(modes) == 0
    return modes if repeated.sum() >= _REPEATED * len(repeated) - _EARLY else None


def _know_counts(tests: Sequence[_JudgedSeries], penalty: float) -> None:
    """Sets the levels and outliers of one exact count in all tests.

    A new value on the last night is an outlier too, if earlier values as far away have gone again.
    """
    went = 0.0
    for line in tests:
        assert line.modes is not None
        line.stair = split_by_values(line.modes, penalty)
        for part in filter(len, np.split(np.arange(len(line.modes)), line.stair)):
            once = np.bincount(line.modes[part])[line.modes[part]] == 1
            line.apart[part] = once & (not once.all())
            went = max(went, float(np.ptp(line.values[part])))
    for line in tests:
        if line.stair[-1:] == [len(line.values) - 1]:
            line.pending = bool(abs(line.values[-1] - line.values[-2]) <= went)
            line.apart[-1] = line.pending
        line.stair = np.searchsorted(line.kept, line.stair).tolist()


def split_by_values(modes: Places, penalty: float) -> list[int]:
    """The beginnings of the levels of an exact count after the first.

    It minimises the sum of -2 ln(share of the night's value in its level) over all nights, plus a
    penalty for each level and each further value in it. So a new value is a change at once, until
    the old value returns. Only the last level, or a young first, is one night.
    """
    nights = len(modes)
    edges = np.flatnonzero(np.diff(modes, prepend=-1, append=-1))
    seen = np.zeros((nights + 1, int(modes.max(initial=0)) + 1), dtype=np.intp)
    seen[np.arange(nights) + 1, modes] = 1
    seen = seen.cumsum(axis=0)[edges]
    terms = np.arange(nights + 1) * np.log(np.maximum(np.arange(nights + 1), 1))
    least, last = np.zeros(len(edges)), np.zeros(len(edges), dtype=np.intp)
    for t in range(1, len(edges)):
        counts, long = seen[t] - seen[:t], edges[t] - edges[:t]
        costs = least[:t] + 2 * (terms[long] - terms[counts].sum(axis=1))
        costs += penalty * (np.count_nonzero(counts, axis=1) - 1)
        if edges[t] < nights:
            alone = counts.max(axis=1) < LEAST_NIGHTS
            costs[alone & ((edges[:t] > 0) | (nights > _AROUND))] = np.inf
        last[t] = costs.argmin()
        least[t] = costs[last[t]] + penalty
    return edges[_cuts(last, len(edges) - 1, 1)].tolist() if nights else []


def _sharp(normal: Array, stair: Sequence[int], penalty: float, shared: float) -> list[int]:
    """The steps of a stair that a slope does not explain; the smallest other step goes first."""

    @cache
    def gain(*edges: int) -> float:
        step, error = _step_on_slope(normal, edges, shared)
        return (step / error) ** 2

    left = [0, *stair, len(normal)]
    while len(left) > 2:
        gains = [gain(*edges) for edges in zip(left, left[1:], left[2:], strict=False)]
        if min(gains) >= penalty / 2:
            break
        del left[gains.index(min(gains)) + 1]
    return left[1:-1]


def _step_on_slope(normal: Array, edges: Sequence[int], shared: float) -> tuple[float, float]:
    """The size and error of a step between two levels of equal slope: least squares."""
    first, at, last = edges
    nights = np.arange(max(first, at - _AROUND), min(last, at + _AROUND))
    terms = np.array([np.ones(len(nights)), nights - at, nights >= at])
    apart = np.abs(nights[:, None] - nights)
    alike = (1 - shared) * (apart == 0) + shared * _FADES**apart
    weighed = np.linalg.solve(alike / (1 + _LASTS * shared), terms.T)
    errors = np.linalg.inv(terms @ weighed)
    return float(errors[2] @ weighed.T @ normal[nights]), math.sqrt(float(errors[2, 2]))


def _trend(line: _JudgedSeries, penalty: float) -> Trend:
    kept, modes, cuts = line.kept, line.modes, line.stair
    if modes is None:
        cuts = _sharp(line.normal(), cuts, penalty, line.shared)
    edges, smooth = [0, *cuts, len(kept)], {*line.stair}.difference(cuts)
    usual = parts = [part for part in np.split(kept, cuts) if len(part)]
    if modes is not None:
        usual = [part[modes[part] == np.bincount(modes[part]).argmax()] for part in parts]
    means = [float(line.scaled[part].sum()) / len(part) for part in usual]
    changes = []
    for n, (one, other) in enumerate(pairwise(parts)):
        step = means[n + 1] - means[n], line.lasting * math.sqrt(1 / len(one) + 1 / len(other))
        if smooth.intersection(range(edges[n], edges[n + 2])):
            size, error = _step_on_slope(line.normal(), edges[n : n + 3], line.shared)
            step = line.lasting * size, line.lasting * error
        changes.append(_change(line, (one, other), means[n], step, penalty))
    return Trend(
        changes=tuple(changes),
        levels=tuple(float(np.median(line.values[part[-_AROUND:]])) for part in usual),
        noise=line.sigma,
        points=line.tolerance.points,
        tolerance=line.tolerance.floor,
        set_aside=tuple(np.flatnonzero(line.apart).tolist()),
        pending=line.pending and len(kept) > 0,
    )


def _change(
    line: _JudgedSeries,
    parts: tuple[Places, Places],
    old: float,
    found: tuple[float, float],
    penalty: float,
) -> ChangePoint:
    """Between the nights of two levels: a step from the old one and its error, as judged."""
    step, error = found
    logarithmic = line.unit is None
    change = shown(step, logarithmic)
    of_old = 1.0 if logarithmic or line.tolerance.points else old
    worse = None
    if line.metric.direction is not Direction.NEUTRAL:
        # As in a verdict, a step that lost torch.compile is not better.
        lost = line.metric.name == COMPILED and not logarithmic and not old + step
        worse = lost or (change > 0) is (line.metric.direction is Direction.LOWER)
    return ChangePoint(
        before=int(parts[0][-1]),
        at=int(parts[1][0]),
        change=change / of_old if of_old else None,
        error=error / (abs(of_old) or 1.0),
        worse=worse,
        matters=abs(change) > line.tolerance.floor,
        doubtful=abs(step) < _DOUBT * math.sqrt(penalty) * error or len(parts[1]) < LEAST_NIGHTS,
    )
