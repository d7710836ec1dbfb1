"""How much change matters: per noise class by default, per metric by a test's marker."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.model import Metric, MetricClass


@dataclass(frozen=True)
class Tolerance:
    """The judge's scales for one metric. All fractions (0.01 is 1 %), or points where `points`."""

    floor: float
    """Below this change nothing is reported: the smallest change that matters (delta0)."""
    equivalence: float
    """"unchanged" is claimed only when the change is shown to be within this (delta1)."""
    scale: float
    """The spread between processes that is assumed before any was seen (s0)."""
    points: bool
    """Changes are absolute percentage points, not relative."""
    between_units: float = 0.0
    """The spread between GPUs of one name that is assumed; 0: the metric does not depend on it."""


_CLASSES = {
    MetricClass.DETERMINISTIC: (0.001, 0.005, 2e-5, 0.0),
    MetricClass.CYCLE: (0.005, 0.01, 1e-3, 1e-2),
    MetricClass.RATIO: (0.0075, 0.015, 1.5e-3, 1e-2),
}
"""(delta0, delta1, s0, spread between GPUs) per class: docs/statistics.md says where from."""

_WRITTEN = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(%|pt)\s*$")


def tolerance_for(metric: Metric, written: str | None = None) -> Tolerance:
    """The tolerance of `metric`: its class's, or what a marker wrote ("1%", "2pt").

    A written tolerance moves the floor; the equivalence bound keeps its class's ratio to it.
    Raises UsageFailure for a tolerance that cannot be read, or of the wrong kind for the metric.
    """
    unit = 100 if metric.percentage else 1
    floor, equivalence, scale, between = (unit * v for v in _CLASSES[metric.metric_class])
    if written is not None:
        asked = parse(written, metric)
        floor, equivalence = asked, asked * equivalence / floor
    return Tolerance(floor, equivalence, scale, metric.percentage, between)


def parse(written: str, metric: Metric) -> float:
    """A tolerance as a number: "1%" is 0.01 of a relative metric, "2pt" 2 points of a percentage.

    Raises UsageFailure.
    """
    match = _WRITTEN.match(written) if isinstance(written, str) else None
    if match is None or not math.isfinite(float(match[1])) or float(match[1]) <= 0:
        raise UsageFailure(
            f'tolerance {written!r} for {metric.name}: write a share such as "1%", or points of a '
            'percentage such as "2pt", above zero'
        )
    if metric.percentage and match[2] == "%":
        raise UsageFailure(
            f'tolerance "{written}" for {metric.name}: this metric is a percentage, so its '
            f'tolerance is in points: "{match[1]}pt"'
        )
    if not metric.percentage and match[2] == "pt":
        raise UsageFailure(
            f'tolerance "{written}" for {metric.name}: points are for percentages; this metric is '
            f'in {metric.unit}: "{match[1]}%"'
        )
    return float(match[1]) if metric.percentage else float(match[1]) / 100
