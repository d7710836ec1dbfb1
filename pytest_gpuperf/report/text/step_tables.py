"""The tables of steps: configurations side by side, the components of one, and its values.

This module also writes the sentence on the paper's window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import printable
from pytest_gpuperf.judge.interval import centre
from pytest_gpuperf.judge.verdict import samples_by_phase
from pytest_gpuperf.model.measurement import STEP, Measurement
from pytest_gpuperf.model.result import Result, Verdict
from pytest_gpuperf.report.text import table
from pytest_gpuperf.report.text.table import NOTHING, Line

FIRST = "baseline"
"""The configuration that others are held against, as the paper does."""
_TIME = "kernel_time"
"""The time of a component."""
_COPY_TIMES = ("copy_time_h2d", "copy_time_d2h", "copy_time_d2d")
OUTSIDE = "(outside)"
"""The row for time outside all components."""
_TITLE = "relative to the first"
_IN_DETAIL = ("kernel_time", "launches", "copies", "copy_bytes")
"""Prefixes of gated metrics that only a verbose table has, since step_time includes them."""

_IN_WINDOW = ("cycles", "instructions")
"""The metrics of the paper's comparisons (section 6.1). Both add up, so they have shares."""
Values = Mapping[tuple[str, str], float]
"""Values by phase and metric."""


@dataclass(frozen=True, slots=True)
class ComponentRow:
    """One component of a measurement over all processes."""

    name: str
    time: float
    """Nanoseconds of its kernels."""
    share: float | None
    """The share of the step's time, in percent."""
    launches: float | None
    copy_time: float | None
    """The time of copies in all directions, added up."""
    change: str = ""
    """The change of the time from the baseline; "" if there is none."""

    @property
    def empty(self) -> bool:
        """Whether it has no launches and no copies, so that its time is undefined and not 0."""
        return self.launches == 0 and not self.copy_time


@dataclass(frozen=True, slots=True)
class ComponentTable:
    """The components of one measurement, the longest first, the time outside them last."""

    entries: tuple[ComponentRow, ...]
    notes: tuple[str, ...]


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


def configurations(results: Sequence[Result], width: int, *, verbose: bool = False) -> list[Line]:
    """One table of the configurations side by side, each compared with the first.

    "baseline" is always first; under pytest-xdist the order of measurement is random. Empty unless
    several configurations of one test were measured, each once, and the table fits. Without
    `verbose` it shows the gated metrics that are not zero everywhere, except those of _IN_DETAIL.
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
    shown = [
        metric
        for metric in values[0]
        if verbose or (metric in gated and any(one.get(metric) for one in values))
    ]
    rows = [[_TITLE, *(measurement.configuration for measurement in named)]]
    rows += [[metric, *_relative(metric, values)] for metric in shown or values[0]]
    widths = table.column_widths(rows)
    texts = [table.aligned(row, widths, left=(0,), indent="") for row in rows]
    if max(map(len, texts)) > width:
        return []
    return [Line(text, "" if number else "heading") for number, text in enumerate(texts)]


def _relative(metric: str, values: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """The first value in its unit, the others as its multiples; percentages as they are."""
    known = catalogue().metrics[metric]
    base = values[0][metric]
    for number, value in enumerate(configuration.get(metric) for configuration in values):
        if number and value is not None and base and not known.percentage:
            yield f"x{value / base:.3g}"
        else:
            yield units.value(value, known.unit)


def component_table(
    measurements: Sequence[Measurement], verdicts: Sequence[Verdict] = ()
) -> ComponentTable | None:
    """The components of a test's measurements, one per process; None without components."""
    values = measured_values(measurements) if measurements[0].components else {}
    names = [name for name in measurements[0].components if (name, _TIME) in values]
    if not names:
        return None
    timed = [v for v in verdicts if v.metric == _TIME and v.change is not None]
    changes = {verdict.phase: units.change(verdict) for verdict in timed}
    entries = [
        ComponentRow(
            name,
            values[name, _TIME],
            _share(values[name, _TIME], values),
            values.get((name, "launches")),
            _copy_time(values, name),
            changes.get(name, ""),
        )
        for name in names
    ]
    entries.sort(key=lambda entry: -entry.time)
    return ComponentTable((*entries, *_outside(entries, values)), tuple(_notes(values)))


def component_lines(
    measurements: Sequence[Measurement], verdicts: Sequence[Verdict], width: int
) -> Iterator[Line]:
    """The table as lines of at most `width` characters; nothing where there are no components.

    A column that has nothing in it is left out.
    """
    components = component_table(measurements, verdicts)
    if components is None:
        return
    rows = [
        (
            printable(entry.name),
            NOTHING if entry.empty else units.value(entry.time, "ns"),
            NOTHING if entry.share is None or entry.empty else f"{entry.share:.1f} %",
            units.value(entry.launches, "launches"),
            units.value(entry.copy_time or None, "ns"),
            entry.change or NOTHING,
        )
        for entry in components.entries
    ]
    headings = ("component", _TIME, "share", "launches", "copies", "change")
    columns = zip(headings, *rows, strict=True)
    kept = [column for column in columns if {*column[1:]} != {NOTHING}]
    shown, *cells = zip(*kept, strict=True)
    yield from table.column_lines(shown, cells, width, left=(0,))
    for note in components.notes:
        yield from table.wrapped_lines(note, width, indent="  ")


def _outside(inside: Sequence[ComponentRow], values: Values) -> Iterator[ComponentRow]:
    """The part of the step outside its components, if it has launches.

    With kernels on several streams at once, components can add up to more than the step.
    """
    time = max(0.0, values.get((STEP, _TIME), 0.0) - sum(entry.time for entry in inside))
    left = values.get((STEP, "launches"), 0.0) - sum(entry.launches or 0.0 for entry in inside)
    copies = _copy_time(values, STEP)
    other = None if copies is None else max(0.0, copies - sum(e.copy_time or 0.0 for e in inside))
    if left:
        yield ComponentRow(OUTSIDE, time, _share(time, values), left, other)


def _notes(values: Values) -> Iterator[str]:
    graphs = round(values.get((STEP, "graph_launches"), 0.0))
    if graphs:
        yield (
            f"{graphs} of the launches {'are CUDA graphs' if graphs > 1 else 'is a CUDA graph'}"
            ": its kernels belong to the component that launches the graph, not to the component "
            "that was open at its capture"
        )


def _copy_time(values: Values, part: str) -> float | None:
    times = [values[part, name] for name in _COPY_TIMES if (part, name) in values]
    return sum(times) if times else None


def _share(time: float, values: Values) -> float | None:
    whole = values.get((STEP, _TIME))
    return 100 * time / whole if whole else None


def window_line(measurement: Measurement) -> str:
    """One sentence on the window of a measurement; "" if it was not counted."""
    window = measurement.window
    if window is None:
        return ""
    step = {s.metric: centre([s.values]) for s in measurement.samples if s.phase == STEP}
    parts = []
    for sample in (one for one in window.samples if one.metric in _IN_WINDOW):
        value, unit = sample.values[0], catalogue().metrics[sample.metric].unit
        parts.append(f"{sample.metric} {units.value(value, unit)}")
        if step.get(sample.metric):
            share = 100 * value / step[sample.metric]
            parts[-1] += f", {share:{'.2g' if share < 100 else '.0f'}} % of the step's"
    launches = f"launches {window.skipped + 1} to {window.skipped + window.counted}"
    return f"paper window, {launches} of a process ({window.collector}): {'; '.join(parts)}"
