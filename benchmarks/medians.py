"""Tables of what a run has of its configurations: medians over processes of medians over rounds."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.model.result import Run

ABSENT = "-"


def of_processes(run: Run, configuration: str, metric: str, part: str = STEP) -> dict[str, float]:
    """The median over rounds of each process that measured it, by process."""
    return {
        measurement.process: median(sample.values)
        for measurement in run.measurements
        if measurement.configuration == configuration
        for sample in measurement.samples
        if (sample.phase, sample.metric) == (part, metric)
    }


def table(run: Run, metrics: Sequence[str], configurations: Sequence[str]) -> str:
    """A row per configuration and a column per metric, of the whole step."""
    rows = [
        f"| configuration | {' | '.join(f'`{metric}`' for metric in metrics)} |",
        f"| --- |{' ---: |' * len(metrics)}",
    ]
    for configuration in configurations:
        cells = [_cell(of_processes(run, configuration, metric), metric) for metric in metrics]
        rows.append(f"| `{configuration}` | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _cell(values: dict[str, float], metric: str) -> str:
    if not values:
        return ABSENT
    return units.value(median(values.values()), catalogue().metrics[metric].unit)
