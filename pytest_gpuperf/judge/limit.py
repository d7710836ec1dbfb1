"""Limits as people write them: "250ms" of a duration, "6GiB" of memory, "30%" of a hit rate."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.model import Direction, Metric

_NUMBER = re.compile(r"^\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([^\W\d]*|%)\s*$")

_TIMES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_DECIMAL_BYTES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_BINARY_BYTES = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_COUNTS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_OPERATIONS = {**_COUNTS, **{f"{prefix}FLOP": size for prefix, size in _COUNTS.items()}}


@dataclass(frozen=True)
class Limit:
    """A bound of one metric, in the metric's unit."""

    bound: float
    lower: bool
    """A value has to be at least this: so for metrics that are better when higher."""


@dataclass(frozen=True)
class _Kind:
    """Which units a metric's limits can be written in."""

    units: Mapping[str, float]
    """What each unit is in that of the metric."""
    says: str
    """How to write one, with an example that fits."""


def parse_limit(written: object, metric: Metric) -> Limit:
    """A limit as a number: "250ms" is 250e6 of a metric in ns.

    A string with a unit that fits the metric; where that can be none (counts and ratios), a plain
    number too. It is a lower bound for a metric that is better when higher, and an upper bound for
    all others. Raises UsageFailure, with an example.
    """
    kind = _kind(metric)
    number, unit = _parts(written)
    if number is None or unit not in kind.units:
        raise UsageFailure(f"limit {written!r} for {metric.name}: write {kind.says}")
    bound = number * kind.units[unit]
    if not math.isfinite(bound):
        raise UsageFailure(f"limit {written!r} for {metric.name}: too large; write {kind.says}")
    return Limit(bound, lower=metric.direction is Direction.HIGHER)


def _parts(written: object) -> tuple[float | None, str]:
    if isinstance(written, str):
        match = _NUMBER.match(written)
        return (float(match[1]), match[2]) if match else (None, "")
    if isinstance(written, (int, float)) and not isinstance(written, bool) and written >= 0:
        return float(written), ""
    return None, ""


def _kind(metric: Metric) -> _Kind:
    if metric.unit in ("ns", "ms"):
        own = _TIMES[metric.unit]
        units = {unit: seconds / own for unit, seconds in _TIMES.items()}
        return _Kind(units, 'a time in ns, us, ms or s, such as "250ms"')
    if metric.unit == "bytes":
        units = {**_DECIMAL_BYTES, **_BINARY_BYTES}
        return _Kind(units, 'bytes in B, KiB, MiB, GiB or TiB (or kB, MB, GB), such as "6GiB"')
    if metric.unit == "%":
        return _Kind({"%": 1.0}, 'a percentage, such as "30%"')
    if metric.unit == "FLOP":
        return _Kind(_OPERATIONS, 'a count, plain or with k, M, G or T, such as "260G"')
    if "/" in metric.unit:
        return _Kind({"": 1.0}, f'a plain number ({metric.unit}), such as "1.5"')
    return _Kind(_COUNTS, f'a count of {metric.unit}, plain or with k, M, G or T, such as "450M"')
