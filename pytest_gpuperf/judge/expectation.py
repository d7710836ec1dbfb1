"""Expectations of a test's author, apart from baselines: limits and ratios.

Each is judged by the interval of what was measured. It holds when the whole interval lies within
the bound, and is broken when the whole of it lies beyond and there are enough processes to say so.
Anything between is inconclusive, and asks for another look (`interval.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.judge.interval import (
    UNCHANGED_RATE,
    finite_exp,
    judged_values,
    medians,
    of_median,
)
from pytest_gpuperf.judge.noise import Rounds, quantile, scales
from pytest_gpuperf.judge.stopping import LEAST_TO_ALARM
from pytest_gpuperf.judge.tolerance import parse_limit, tolerance_for
from pytest_gpuperf.judge.verdict import samples_by_phase
from pytest_gpuperf.model.entry import Calibration
from pytest_gpuperf.model.measurement import STEP, Measurement
from pytest_gpuperf.model.metric import Direction, Metric, MetricClass
from pytest_gpuperf.model.result import Expectation, Outcome


@dataclass(frozen=True)
class _Centre:
    """The median over processes, and its standard error."""

    value: float
    """In the metric's unit."""
    error: float
    """The standard error: a share of `size`, or points of a percentage."""
    size: float
    """The value that shares refer to, in the metric's unit; 1 for points."""
    degrees_of_freedom: float
    processes: int
    positive: bool
    """Whether all processes are above zero, so that logarithms exist."""
    whole: bool
    """Whether the metric is a count that only code changes: a whole number in each process."""


def limits(
    measurements: Sequence[Measurement],
    limits: Mapping[str, object],
    metrics: Mapping[str, Metric],
    calibration: Calibration | None = None,
) -> tuple[Expectation, ...]:
    """The expectations of the limits, one per limit, in the order in which they are written.

    `measurements` are of the same test, one per process; `limits` is what somebody wrote, by
    metric. What is compared with the limit is the median m over the processes' medians, of the
    whole step, with the half-width h = t(0.25 %, df) s c_k / sqrt(k): m exp(-h) to m exp(h), or
    m - h to m + h in points of a percentage and where something is zero. s and df are those of
    `noise.py`, of these processes and the class's scale (the `calibration`'s, where there is one).
    Of counts that do not vary, only the whole numbers in the interval count. A metric that was not
    measured is `unsupported`.

    Raises UsageFailure for a limit that cannot be read.
    """
    first = measurements[0]
    measured = samples_by_phase(measurements).get(STEP, {})
    return tuple(
        _limited(first, metrics[name], written, measured.get(name), calibration)
        for name, written in limits.items()
    )


@dataclass(frozen=True)
class Ratio:
    """A quotient of one metric of two measurements, and the bounds that a test expects."""

    test: str
    """The node id of the test that compares."""
    suite: str
    metric: Metric
    numerator: str
    denominator: str
    above: float | None = None
    below: float | None = None

    @property
    def subject(self) -> str:
        """The ratio, for reports: "tf32 / baseline"."""
        return f"{self.numerator} / {self.denominator}"


def ratio(
    asked: Ratio,
    numerator: Sequence[Measurement],
    denominator: Sequence[Measurement],
    calibration: Calibration | None = None,
) -> Expectation:
    """The expectation about the quotient of two measurements, given once per process.

    r is the quotient of the medians over the processes' medians. Where all are above zero and the
    metric is no percentage, on the log scale: d = log r, se^2 = the sum of both sides' s^2 c_k^2/k,
    interval exp(d -+ t(0.25 %, df) se), with df the smaller of both sides'. Otherwise
    num - bound den is compared with zero, with se^2 = s_num^2 + bound^2 s_den^2 (each times
    c_k^2/k), which needs no division; the ratio then has no interval.

    `unsupported` is what was not collected on either side, and a ratio of nothing but zeros.
    `processes` is the smaller number of the two.
    """
    metric = asked.metric
    expectation = Expectation(
        test=asked.test,
        metric=metric.name,
        unit="",
        subject=asked.subject,
        above=asked.above,
        below=asked.below,
        outcome=Outcome.UNSUPPORTED,
        reason="not-collected",
        processes=min(len({m.process for m in side}) for side in (numerator, denominator)),
    )
    rounds = []
    for side in (numerator, denominator):
        measured = samples_by_phase(side).get(STEP, {}).get(metric.name)
        if measured is None:
            return replace(expectation, detail=_said(side[0], metric.name))
        rounds.append(measured)
    if not any(value for side in rounds for process in side for value in process):
        detail = "both values are 0, so they have no ratio"
        return replace(expectation, reason="both-zero", detail=detail)
    over, under = (_centre(side, metric, calibration) for side in rounds)
    if over.positive and under.positive and not metric.percentage:
        return _logarithmic(expectation, over, under)
    return _linear(expectation, over, under)


def check_bounds(above: float | None, below: float | None) -> None:
    """Raises UsageFailure unless there is a bound, each is above zero, and above < below."""
    for name, bound in (("above", above), ("below", below)):
        number = isinstance(bound, (int, float)) and not isinstance(bound, bool)
        if bound is not None and not (number and math.isfinite(bound) and bound > 0):
            raise UsageFailure(f"{name}={bound!r} must be a ratio above zero, such as 0.25")
    if above is None and below is None:
        raise UsageFailure("pass a bound: above=, below=, or both, for example below=0.25")
    if above is not None and below is not None and above >= below:
        raise UsageFailure(
            f"above={above:g} must be smaller than below={below:g}, as the ratio must lie between"
        )


def _limited(
    first: Measurement,
    metric: Metric,
    written: object,
    rounds: Rounds | None,
    calibration: Calibration | None,
) -> Expectation:
    bound, is_lower = parse_limit(written, metric), metric.direction is Direction.HIGHER
    expectation = Expectation(
        test=first.test,
        metric=metric.name,
        unit=metric.unit,
        subject=first.name,
        above=bound if is_lower else None,
        below=None if is_lower else bound,
        outcome=Outcome.UNSUPPORTED,
        reason="not-collected",
    )
    if rounds is None:
        said = _said(first, metric.name)
        return replace(expectation, detail=said or "this metric was not measured")
    centre = _centre(rounds, metric, calibration)
    low, high = _interval(centre, metric)
    expectation = replace(
        expectation, measured=centre.value, low=low, high=high, processes=centre.processes
    )

    def apart(bound: float) -> tuple[float, float]:
        """The interval of the value beyond the bound."""
        return low - bound, high - bound

    return _decided(expectation, apart)


def _interval(centre: _Centre, metric: Metric) -> tuple[float, float]:
    """The interval of a value, in the metric's unit; the value lies inside."""
    margin = quantile(UNCHANGED_RATE, centre.degrees_of_freedom) * centre.error
    value = centre.value
    if centre.positive and not metric.percentage:
        low, high = finite_exp(math.log(value) - margin), finite_exp(math.log(value) + margin)
    else:
        low, high = value - margin * centre.size, value + margin * centre.size
    if value >= 0:
        low = max(low, 0.0)
    if metric.percentage:
        high = min(high, 100.0)
    if centre.whole:
        low, high = math.ceil(low), math.floor(high)
    # Rounding, and counters that read 100.1 %, must not put the value outside of its interval.
    return float(min(low, value)), float(max(high, value))


def _logarithmic(expectation: Expectation, over: _Centre, under: _Centre) -> Expectation:
    distance = math.log(over.value) - math.log(under.value)
    margin = _quantile(over, under) * math.hypot(over.error, under.error)
    measured, low, high = map(finite_exp, (distance, distance - margin, distance + margin))

    def apart(bound: float) -> tuple[float, float]:
        """The interval of the ratio's logarithm beyond that of the bound.

        As swapped sides with inverse bounds have, so that they are judged alike.
        """
        beyond = distance - math.log(bound)
        return beyond - margin, beyond + margin

    return _decided(replace(expectation, measured=measured, low=low, high=high), apart)


def _linear(expectation: Expectation, over: _Centre, under: _Centre) -> Expectation:
    errors = over.error * over.size, under.error * under.size

    def apart(bound: float) -> tuple[float, float]:
        """The interval of num - bound den."""
        distance = over.value - bound * under.value
        margin = _quantile(over, under) * math.hypot(errors[0], bound * errors[1])
        return distance - margin, distance + margin

    measured = over.value / under.value if under.value else math.inf
    found = measured if math.isfinite(measured) else None
    return _decided(replace(expectation, measured=found), apart)


def _decided(
    expectation: Expectation, apart: Callable[[float], tuple[float, float]]
) -> Expectation:
    """The outcome, by the interval of the difference between measurement and bound: `apart`."""
    holds, broken = True, False
    if expectation.above is not None:
        low, high = apart(expectation.above)
        holds, broken = low >= 0, high < 0
    if expectation.below is not None:
        low, high = apart(expectation.below)
        holds, broken = holds and high <= 0, broken or low > 0
    if broken and expectation.processes < LEAST_TO_ALARM:
        outcome, reason = Outcome.INCONCLUSIVE, "too-few-processes"
    elif broken:
        outcome, reason = Outcome.BROKEN, "beyond"
    elif holds:
        outcome, reason = Outcome.HOLDS, "within"
    else:
        outcome, reason = Outcome.INCONCLUSIVE, "unsure"
    return replace(expectation, outcome=outcome, reason=reason)


def _centre(rounds: Rounds, metric: Metric, calibration: Calibration | None) -> _Centre:
    tolerance = tolerance_for(metric, None, calibration)
    values = medians(rounds)
    # The processes that were measured are all there is: their own spread counts, beside the class's
    scale = scales({"": judged_values(rounds, tolerance)}, {"": tolerance}, None)[""]
    count = len(values)
    error = of_median(scale.variance, count)
    return _Centre(
        value=float(median(values)),
        error=error.root,
        size=1.0 if tolerance.points else abs(fmean(values)),
        degrees_of_freedom=error.degrees,
        processes=count,
        positive=min(values) > 0,
        whole=metric.metric_class is MetricClass.DETERMINISTIC
        and all(float(value).is_integer() for value in (*values, median(values))),
    )


def _quantile(over: _Centre, under: _Centre) -> float:
    degrees = min(over.degrees_of_freedom, under.degrees_of_freedom)
    return quantile(UNCHANGED_RATE, degrees)


def _said(measurement: Measurement, metric: str) -> str:
    """The reason why `metric` was not collected; "" if the metric was not asked for."""
    return next((entry.reason for entry in measurement.unsupported if entry.metric == metric), "")
