"""The values of an entry: of each process the median of its rounds, rounded as noise allows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.model.entry import CanarySeries, Values

DIGITS = 7
"""Significant digits of a value that processes differ in: 5e-7 of it, and noise is 1e-4 or more."""


def values_of(
    step: Mapping[str, Sequence[Sequence[float]]],
) -> tuple[dict[str, Values], tuple[str, ...]]:
    """The values of a step's metrics as an entry has them, and the metrics that are zero.

    Only metrics that can fail a test. Older processes lack a count that a newer release added.
    Where all other processes agree on its value, this value is taken for the older ones.
    """
    known = catalogue().metrics
    kept: dict[str, Values] = {}
    zero = []
    for metric, series in step.items():
        values = [median(rounds) for rounds in series]
        if not known[metric].gated:
            continue
        if not any(values):
            zero.append(metric)
        else:
            kept[metric] = values[0] if len({*values}) == 1 else tuple(map(_rounded, values))
    return kept, tuple(zero)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def canary_series(
    codes: Sequence[str],
    before: Mapping[str, Sequence[float | None]],
    after: Mapping[str, Sequence[float | None]],
) -> CanarySeries | None:
    """The canary's readings around each process; None where the canary read nothing."""
    if not any(codes):
        return None
    alike = len({*codes}) == 1 and bool(before or after)
    readings = {
        name: tuple(
            _rounded(math.sqrt(one * other)) if one and other else None
            for one, other in zip(before[name], after[name], strict=True)
        )
        for name in before
        if name in after
    }
    return CanarySeries(
        codes[0] if alike else tuple(codes),
        {name: values for name, values in readings.items() if any(values)},
    )


def moved(metric: str, old: float, new: float, *, factors: bool | None = None) -> str:
    """The change of a metric, as people read it: "+1.2 %", "-0.4 pt", "x2.1", "from 0"."""
    if catalogue().metrics[metric].percentage:
        return units.moved(new - old, points=True)
    if not old:
        return "from 0" if new else "-"
    return units.moved(new / old - 1, factors=factors)
