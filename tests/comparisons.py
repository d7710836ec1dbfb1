"""Comparisons of measurements that were made by hand, for the reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge import comparison
from pytest_gpuperf.judge.comparison import Chosen, Comparison, Measurements
from pytest_gpuperf.model.measurement import Measurement
from tests.examples import measurement, processes
from tests.kernel_steps import NAMING

ALONE = tuple(
    replace(one, test="suites/meddpm/test_sampling.py::test_sampling_step")
    for one in processes("cycles", [[1.0]] * 3)
)


def compared(
    *pairs: tuple[Sequence[Measurement], Sequence[Measurement]],
    only_a: Sequence[Measurements] = (),
    only_b: Sequence[Measurements] = (),
) -> Comparison:
    """The comparison of old.json with new.json, which have these measurements."""
    metrics = catalogue().metrics
    return Comparison(
        Chosen(Path("old.json"), (measurement(),)),
        Chosen(Path("new.json"), (measurement(),)),
        tuple(comparison.pair(tuple(a), tuple(b), metrics, NAMING) for a, b in pairs),
        tuple(only_a),
        tuple(only_b),
    )
