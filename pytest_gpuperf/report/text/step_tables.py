"""The configurations of a suite side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.metric_catalogue import ALWAYS, catalogue
from pytest_gpuperf.judge.interval import centre
from pytest_gpuperf.judge.verdict import samples_by_phase
from pytest_gpuperf.model.measurement import STEP, Measurement
from pytest_gpuperf.model.result import Verdict
from pytest_gpuperf.report.text import protocol_lines, table
from pytest_gpuperf.report.text.table import Line

_FIRST = "baseline"


def configurations(
    judged: Sequence[tuple[Sequence[Measurement], Sequence[Verdict]]],
    width: int,
    *,
    verbose: bool = False,
) -> list[Line]:
    """One table of the configurations side by side, each against the first of them.

    The one named "baseline" is the first, whatever the order in which they were measured (under
    pytest-xdist it is by chance). Empty when fewer than two configurations were measured, or the
    table does not fit. Where there are many metrics, only those that decide have a row, unless
    `verbose`.
    """
    named = [
        (measurements[0], {s.metric: s for s in measurements[0].samples if s.phase == STEP})
        for measurements, _ in judged
        if measurements[0].configuration
    ]
    named.sort(key=lambda entry: entry[0].configuration != _FIRST)
    if len(named) < 2 or len({m.test.split("[")[0] for m, _ in named}) > 1:
        return []
    first = named[0][1]
    columns = [m.configuration for m, _ in named]
    rows = []
    brief = shown_metrics(list(first), verbose=verbose)
    for metric in (catalogue().metrics[name] for name in brief):
        base = centre([first[metric.name].values])
        cells = [units.value(base, metric.unit)]
        for _, samples in named[1:]:
            sample = samples.get(metric.name)
            if sample is None:
                cells.append("-")
            elif base and not metric.percentage:
                cells.append(f"x{centre([sample.values]) / base:.3g}")
            else:
                cells.append(units.value(centre([sample.values]), metric.unit))
        rows.append([metric.name, *cells])
    rows += _windows([m for m, _ in named])
    table_rows = [["", *columns], *rows]
    widths = [max(len(row[i]) for row in table_rows) for i in range(len(columns) + 1)]
    title = "configurations, relative to the first"
    if max(2 * len(columns) + sum(widths), len(title)) > width:
        return []
    others = table.wrapped([other_metrics(len(first) - len(brief))], width, "")
    return [
        Line(title, "heading"),
        *(Line(_aligned(row, widths)) for row in table_rows),
        *map(Line, others),
    ]


def _windows(measurements: Sequence[Measurement]) -> list[list[str]]:
    """Rows of the paper's window, where each configuration has one."""
    found = [protocol_lines.window_values(measurement) for measurement in measurements]
    rows = []
    for name in protocol_lines.SHOWN:
        if all(values.get(name) for values in found):
            base, *others = (values[name] for values in found)
            unit = catalogue().metrics[name].unit
            relative = [f"x{other / base:.3g}" for other in others]
            rows.append([f"{name}, paper window", units.value(base, unit), *relative])
    return rows


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    name, *cells = row
    padded = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
    return "  ".join([name.ljust(widths[0]), *padded])


# The components of a step: what each took, the longest first.

TIMES = ("kernel_time", "wall_time")
"""The time of a component: that of its kernels on a GPU, that of the host elsewhere."""
COPY_TIMES = ("copy_time_h2d", "copy_time_d2h", "copy_time_d2d")
OUTSIDE = "(outside)"
"""What is in no component."""
_NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Component:
    """One component of a measurement, of all its processes. Times are in the unit of the metric."""

    name: str
    time: float
    share: float | None
    """Of the step's time, in percent."""
    launches: float | None
    copy_time: float | None
    """Of copies in any direction, added up."""
    change: str = ""
    """Of the time, against the baseline; "" where there is none."""

    @property
    def empty(self) -> bool:
        """Nothing was launched in it, which is no time of 0: there was nothing to take any."""
        return self.launches == 0 and not self.copy_time


@dataclass(frozen=True, slots=True)
class ComponentTable:
    """Those of one measurement, the longest first, what is outside of them last."""

    metric: str
    """What the times are of."""
    unit: str
    entries: tuple[Component, ...]
    notes: tuple[str, ...]


def component_table(
    measurements: Sequence[Measurement], verdicts: Sequence[Verdict] = ()
) -> ComponentTable | None:
    """The components of a test's measurements, one per process; None where there are none."""
    names = measurements[0].components
    values = _values(measurements)
    metric = next((m for m in TIMES if any((n, m) in values for n in names)), None)
    if metric is None:
        return None
    changes = {
        v.phase: units.change(v)
        for v in verdicts
        if v.metric == metric and v.change is not None and v.phase in names
    }
    whole = values.get((STEP, metric))
    found = [
        Component(
            name,
            values[name, metric],
            _share(values[name, metric], whole),
            values.get((name, "launches")),
            _copy_time(values, name),
            changes.get(name, ""),
        )
        for name in names
        if (name, metric) in values
    ]
    found.sort(key=lambda entry: -entry.time)
    outside = _outside(found, values, metric)
    return ComponentTable(
        metric,
        catalogue().metrics[metric].unit,
        (*found, *([outside] if outside else [])),
        tuple(_notes(values)),
    )


def component_cells(found: ComponentTable) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The headings of a table and its rows. A column that has nothing in it is left out."""
    headings = ("component", found.metric, "share", "launches", "copies", "change")
    rows = [
        (
            units.printable(entry.name),
            _NOTHING if entry.empty else units.value(entry.time, found.unit),
            _NOTHING if entry.share is None or entry.empty else f"{entry.share:.1f} %",
            units.value(entry.launches, "launches"),
            units.value(entry.copy_time or None, "ns"),
            entry.change or _NOTHING,
        )
        for entry in found.entries
    ]
    kept = [i for i in range(len(headings)) if i < 2 or {row[i] for row in rows} != {_NOTHING}]
    return tuple(headings[i] for i in kept), [tuple(row[i] for i in kept) for row in rows]


def component_lines(
    measurements: Sequence[Measurement], verdicts: Sequence[Verdict], width: int
) -> Iterator[Line]:
    """The table as lines of at most `width` characters; nothing where there are no components."""
    found = component_table(measurements, verdicts)
    if found is None:
        return
    headings, rows = component_cells(found)
    yield from table.fitted_columns(headings, rows, width, left=(0,))
    for note in found.notes:
        yield from table.wrapped_words(note, width, "", "  ")


def _values(measurements: Sequence[Measurement]) -> dict[tuple[str, str], float]:
    rounds: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    for measurement in measurements:
        for sample in measurement.samples:
            rounds.setdefault((sample.phase, sample.metric), []).append(sample.values)
    return {key: centre(values) for key, values in rounds.items()}


def _outside(
    found: Sequence[Component], values: dict[tuple[str, str], float], metric: str
) -> Component | None:
    """What the step took beyond its components; None where that is nothing.

    Of kernels that ran at once on several streams, components have more than the step.
    """
    whole = values.get((STEP, metric), 0.0)
    time = max(0.0, whole - sum(entry.time for entry in found))
    launches = values.get((STEP, "launches"))
    left = None if launches is None else launches - sum(entry.launches or 0.0 for entry in found)
    copies = _copy_time(values, STEP)
    other = None if copies is None else max(0.0, copies - sum(e.copy_time or 0.0 for e in found))
    # On the host, what the clock itself takes is outside too.
    if left == 0 or (left is None and time == 0):
        return None
    return Component(OUTSIDE, time, _share(time, whole), left, other)


def _notes(values: dict[tuple[str, str], float]) -> Iterator[str]:
    graphs = round(values.get((STEP, "graph_launches"), 0.0))
    if graphs:
        yield (
            f"{graphs} of the launches {'are CUDA graphs' if graphs > 1 else 'is a CUDA graph'}"
            ": its kernels belong to the component in which the graph is launched, not to those "
            "that were open when it was captured"
        )


def _copy_time(values: dict[tuple[str, str], float], part: str) -> float | None:
    found = [values[part, name] for name in COPY_TIMES if (part, name) in values]
    return sum(found) if found else None


def _share(time: float, whole: float | None) -> float | None:
    return 100 * time / whole if whole else None


# What was measured of a step, one number per metric.


def step_values(measurements: Sequence[Measurement]) -> dict[str, float]:
    """Of each metric of the whole step the median over processes of the medians over their rounds.

    In the metric's unit. `measurements` are those of one test and name, one or more per process.
    """
    series = samples_by_phase(measurements).get(STEP, {})
    return {metric: centre(processes) for metric, processes in series.items()}


# Which metrics have a row in the terminal, where all that were measured would be too many.

MANY_METRICS = 20
"""With more metrics than this, those that nothing depends on have no row."""


def shown_metrics(metrics: Sequence[str], *, verbose: bool = False) -> list[str]:
    """Those of `metrics` that have a row: all of them, unless there are many.

    Of many, what may fail a test, the set core, and what no set of counters adds. `verbose`: all.
    """
    if verbose or len(metrics) <= MANY_METRICS:
        return list(metrics)
    return [metric for metric in metrics if not _extra(metric)]


def other_metrics(count: int) -> str:
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
