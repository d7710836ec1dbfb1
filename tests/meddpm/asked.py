"""What a configuration is asked, each time of a network of its own."""

from __future__ import annotations

from suites.meddpm.limits import Errors, Similarity
from suites.meddpm.optimizations import Optimization
from suites.meddpm.quality import Quality


def errors_of(quality: Quality, optimization: Optimization) -> Errors:
    """How far it is from float64."""
    with quality.configured(optimization) as configured:
        return configured.errors()


def deviation_of(quality: Quality, optimization: Optimization) -> float:
    """How far its loss curve is from the baseline's."""
    with quality.configured(optimization) as configured:
        return configured.deviation()


def likeness_of(quality: Quality, optimization: Optimization) -> Similarity:
    """How much its sample looks like the baseline's."""
    with quality.configured(optimization) as configured:
        return configured.similarity()
