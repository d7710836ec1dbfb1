"""The values of steps, configurations side by side, and the sentence on the paper's window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.interval import centre
from pytest_gpuperf.judge.verdict import samples_by_phase
from pytest_gpuperf.model.measurement import STEP, Measurement
from pytest_gpuperf.model.result import Result
from pytest_gpuperf.report.text import table

FIRST = "baseline"
"""The configuration that others are held against, as the paper does."""
_IN_DETAIL = ("kernel_time", "launches", "copies", "copy_bytes")
"""Prefixes of gated metrics that the table leaves out, since step_time includes them."""

_IN_WINDOW = ("cycles", "instructions")
"""The metrics of the paper's comparisons (section 6.1)."""
Values = Mapping[tuple[str, str], float]
"""Values by phase and metric."""


def measured_values(measurements: Sequence[Measurement]) -> dict[tuple[str, str], float]:
    """Per phase and metric, the median over processes of the medians over their rounds.

    Values are in the metric's unit. `measurements` belong to one test and name, one per process.
    """
    return {
        (phase, metric): centre(processes)
        for phase, series in samples_by_phase(measurements).items()
        for metric, processes in series.items()
    }


def step_values(measurements: Sequence[Measurement]) -> dict[str, float]:
    """The measured values of the whole step, by metric."""
    values = measured_values(measurements).items()
    return {metric: value for (phase, metric), value in values if phase == STEP}


def configurations(results: Sequence[Result], width: int) -> list[table.Line]:
    """One table of the configurations side by side, each compared with the first.

    "baseline" is always first; under pytest-xdist the order of measurement is random. Empty unless
    several configurations of one test were measured, each once, and the table fits. It shows the
    gated metrics that are not zero everywhere, except those of _IN_DETAIL.
    """
    named = [result.first for result in results if result.first.configuration]
    named.sort(key=lambda measurement: measurement.configuration != FIRST)
    names = {measurement.configuration for measurement in named}
    if len(names) < max(2, len(named)) or len({m.test.split("[")[0] for m in named}) > 1:
        return []
    values = [step_values([measurement]) for measurement in named]
    gated = {
        name
        for name, metric in catalogue().metrics.items()
        if metric.gated and not name.startswith(_IN_DETAIL)
    }
    shown = [m for m in values[0] if m in gated and any(one.get(m) for one in values)]
    rows = [["relative to the first", *(measurement.configuration for measurement in named)]]
    rows += [[metric, *_relative(metric, values)] for metric in shown or values[0]]
    widths = table.column_widths(rows)
    texts = [table.aligned(row, widths, left=(0,), indent="") for row in rows]
    if max(map(len, texts)) > width:
        return []
    return [table.Line(text, "" if number else "heading") for number, text in enumerate(texts)]


def _relative(metric: str, values: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """The first value in its unit, the others as its multiples; percentages as they are."""
    known = catalogue().metrics[metric]
    base = values[0][metric]
    for number, value in enumerate(configuration.get(metric) for configuration in values):
        if number and value is not None and base and not known.percentage:
            yield f"x{value / base:.3g}"
        else:
            yield units.value(value, known.unit)


def window_line(measurement: Measurement) -> str:
    """One sentence on the window of a measurement; "" if it was not counted."""
    window = measurement.window
    if window is None:
        return ""
    parts = [
        f"{one.metric} {units.value(one.values[0], catalogue().metrics[one.metric].unit)}"
        for one in window.samples
        if one.metric in _IN_WINDOW
    ]
    launches = f"launches {window.skipped + 1} to {window.skipped + window.counted}"
    return f"paper window, {launches} of a process ({window.collector}): {'; '.join(parts)}"
