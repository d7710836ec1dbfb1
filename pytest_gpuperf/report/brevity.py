"""Which metrics have a row in the terminal, where all that were measured would be too many."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.metrics import ALWAYS, catalogue

MANY = 20
"""With more metrics than this, those that nothing depends on have no row."""


def shown(metrics: Sequence[str], *, verbose: bool = False) -> list[str]:
    """Those of `metrics` that have a row: all of them, unless there are many.

    Of many, what may fail a test, the set core, and what no set of counters adds. `verbose`: all.
    """
    if verbose or len(metrics) <= MANY:
        return list(metrics)
    return [metric for metric in metrics if not _extra(metric)]


def others(count: int) -> str:
    """Where the other `count` metrics are; "" where all are shown."""
    if not count:
        return ""
    return f"{count} more reported: see -v, the run's file or --gpuperf-report"


def _extra(name: str) -> bool:
    known = catalogue()
    metric = known.metrics.get(name)  # the verdict on kernels is on none of the catalogue's
    if metric is None or metric.gated or not metric.chosen:
        return False
    return name not in known.sets[ALWAYS]
