"""Tolerances and limits: how much change matters, and the bounds that people write.

A tolerance is its noise class's, or a test's marker has one ("1%", or "any": not judged). A limit
is a value with a unit: "250ms" of a duration, "6GiB" of memory, "30%" of a hit rate.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.model.entry import Calibration
from pytest_gpuperf.model.metric import Metric, MetricClass


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
    between_gpus: float = 0.0
    """The assumed spread between GPUs of one name; 0: the metric does not depend on the GPU."""
    between_days: float = 0.0
    """The spread between days on one GPU: as a calibration found it, else as it is assumed."""
    written: bool = False
    """Whether a test's author wrote the tolerance: then the metric is unlike its class."""
    counted: bool = False
    """Whether the metric is a deterministic count."""
    two_sided: bool = False
    """Whether a gain is to be told from no change as surely as a loss is. A build asks only for
    losses; who compares two revisions asks for both."""


_CLASSES = {
    MetricClass.DETERMINISTIC: (0.0001, 0.0005, 2e-5, 0.0, 0.0),
    MetricClass.CYCLE: (0.005, 0.01, 1e-3, 1e-2, 5e-4),
    MetricClass.RATIO: (0.0075, 0.015, 1.5e-3, 1e-2, 7.5e-4),
}
"""(delta0, delta1, s0, spread between GPUs, between days) per class: docs/evidence.md says
where from."""

ANY = "any"
"""The tolerance of a metric that is reported and not judged, as it says nothing of the code: of the
time of a step whose GPU waits for its host."""

LEAST_SHARE = 0.1
"""A measured scale counts for no less than this share of its class's: luck is no precision."""

PAIRED_SHARE = 0.5
"""The floor of cycles, times and ratios between two revisions that are measured in turn on one
device, as a share of that against a baseline: days and GPUs, for which the other has room, are
none."""

_NUMBER = re.compile(r"^\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([^\W\d]*|%)\s*$")

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_DECIMAL_BYTES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_BINARY_BYTES = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_COUNTS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_TIME = 'a time in ns, us, ms or s, such as "250ms"'
_LIMITS: Mapping[str, tuple[Mapping[str, float], str]] = {
    "ns": ({unit: seconds / 1e-9 for unit, seconds in _SECONDS.items()}, _TIME),
    "ms": ({unit: seconds / 1e-3 for unit, seconds in _SECONDS.items()}, _TIME),
    "bytes": (
        {**_DECIMAL_BYTES, **_BINARY_BYTES},
        'bytes in B, KiB, MiB, GiB or TiB (or kB, MB, GB), such as "6GiB"',
    ),
    "%": ({"%": 1.0}, 'a percentage, such as "30%"'),
    "FLOP": (
        {**_COUNTS, **{f"{prefix}FLOP": size for prefix, size in _COUNTS.items()}},
        'a count, plain or with k, M, G or T, such as "260G"',
    ),
}
"""The units that limits are written in, by that of the metric, and how to write one."""


def tolerance_for(
    metric: Metric, written: str | None = None, calibration: Calibration | None = None
) -> Tolerance:
    """The tolerance of `metric`: as written ("1%", "2pt"), the metric's own, or the class's.

    The class's also applies to ANY: a reported metric has an interval. Another floor than the
    class's moves the equivalence bound with it, in the class's ratio. A `calibration` replaces the
    scales that are assumed by those that were measured. Raises UsageFailure for a tolerance that
    cannot be read, or of the wrong kind for the metric.
    """
    unit = 100 if metric.percentage else 1
    floor, equivalence, scale, between, days = _CLASSES[metric.metric_class]
    measured = calibration.classes.get(metric.metric_class.value) if calibration else None
    if measured is not None:
        scale = max(measured.processes, LEAST_SHARE * scale)
        days = days if measured.allocations is None else measured.allocations
        # The GPUs that happened to be seen say little about the next one of a pool, so it is only
        # ever raised; and metrics that do not depend on the GPU by their nature do not begin to.
        between = max(between, measured.gpus or 0.0) if between else 0.0
    floor, equivalence = unit * floor, unit * equivalence
    asked = metric.practical_floor if written in (None, ANY) else parse(written, metric)
    if asked is not None:
        floor, equivalence = asked, asked * equivalence / floor
    return Tolerance(
        floor,
        equivalence,
        unit * scale,
        metric.percentage,
        between_gpus=unit * between,
        between_days=unit * days,
        written=written is not None,
        counted=metric.metric_class is MetricClass.DETERMINISTIC,
    )


def is_judged(metric: Metric, written: str | None) -> bool:
    """Whether a change of the metric in a whole step may fail a test with this tolerance of it."""
    return metric.gated and written != ANY


def of_pairs(tolerance: Tolerance) -> Tolerance:
    """The tolerance of differences between two processes that were measured one after the other.

    Their spread is that of two. What an author wrote, and what is worth saying of exact counts, is
    as it was.
    """
    share = 1.0 if tolerance.written or tolerance.counted else PAIRED_SHARE
    return replace(
        tolerance,
        floor=share * tolerance.floor,
        equivalence=share * tolerance.equivalence,
        scale=math.sqrt(2) * tolerance.scale,
        between_gpus=0.0,
        between_days=0.0,
        two_sided=True,
    )


def default_scale(metric_class: MetricClass) -> float:
    """s0 of a class: the spread between processes that is assumed without a calibration."""
    return _CLASSES[metric_class][2]


def parse(written: str, metric: Metric) -> float:
    """A tolerance as a number: "1%" is 0.01 of a relative metric, "2pt" 2 points of a percentage.

    ANY is infinite. Raises UsageFailure.
    """
    if written == ANY:
        return math.inf
    units = {"pt": 1.0} if metric.percentage else {"%": 0.01}
    number = _number(written, units)
    if number is None or not 0 < number < math.inf:
        says = f'"1%", as the metric is in {metric.unit}, not in percent'
        if metric.percentage:
            says = '"2pt" (percentage points), as the metric is a percentage'
        raise UsageFailure(
            f"tolerance {written!r} for {metric.name} is not valid. Write a value above zero: "
            f'{says}. "{ANY}" allows every change'
        )
    return number


def unreadable(
    written: Mapping[str, str], metrics: Mapping[str, Metric]
) -> Iterator[tuple[str, str]]:
    """The tolerances of known metrics that cannot be read, with the reason, by metric."""
    for name, text in written.items():
        if name in metrics:
            try:
                parse(text, metrics[name])
            except UsageFailure as failure:
                yield name, str(failure)


def parse_limit(written: object, metric: Metric) -> float:
    """A limit as a number: "250ms" is 250e6 of a metric in ns.

    A string with a unit that fits the metric; where that can be none (counts and ratios), a plain
    number too. Raises UsageFailure, with an example.
    """
    counted = _COUNTS, f'a count of {metric.unit}, plain or with k, M, G or T, such as "450M"'
    units, says = _LIMITS.get(metric.unit, counted)
    if "/" in metric.unit:
        units, says = {"": 1.0}, f'a plain number ({metric.unit}), such as "1.5"'
    bound = _number(written, units)
    if bound is None:
        raise UsageFailure(f"limit {written!r} for {metric.name} is not valid. Write {says}")
    if not math.isfinite(bound):
        raise UsageFailure(f"limit {written!r} for {metric.name} is too large. Write {says}")
    return bound


def _number(written: object, units: Mapping[str, float]) -> float | None:
    """A number with one of these units, times its size; None for all else."""
    is_text = isinstance(written, (str, int, float)) and not isinstance(written, bool)
    match = _NUMBER.match(str(written)) if is_text else None
    return float(match[1]) * units[match[2]] if match and match[2] in units else None
