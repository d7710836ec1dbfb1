"""Comparisons of measurements that were made by hand, for the reports."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge import comparison
from pytest_gpuperf.judge.comparison import Comparison, Source, Unpaired
from pytest_gpuperf.model.measurement import Measurement
from tests.kernel_steps import NAMING

ALONE = Unpaired("suites/meddpm/test_sampling.py::test_sampling_step", "step", "", 3)


def source(run: str) -> Source:
    return Source(run, "2026-03-01T12:00:00Z", None, ("NVIDIA H200 (sm90)",), ("0123456789ab",), "")


def compared(
    *pairs: tuple[Sequence[Measurement], Sequence[Measurement]],
    only_a: Sequence[Unpaired] = (),
    only_b: Sequence[Unpaired] = (),
) -> Comparison:
    """The comparison of old.json with new.json, which have these measurements."""
    metrics = catalogue().metrics
    return Comparison(
        schema=1,
        a=source("old.json"),
        b=source("new.json"),
        pairs=tuple(comparison.pair(a, b, metrics, NAMING) for a, b in pairs),
        only_a=tuple(only_a),
        only_b=tuple(only_b),
    )
