"""The configurations of a suite side by side."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.judge.interval import centre
from pytest_gpuperf.metrics import catalogue
from pytest_gpuperf.model import STEP, Measurement, Verdict
from pytest_gpuperf.report import brevity, numbers, table, window
from pytest_gpuperf.report.line import Line

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
    brief = brevity.shown(list(first), verbose=verbose)
    for metric in (catalogue().metrics[name] for name in brief):
        base = centre([first[metric.name].values])
        cells = [numbers.value(base, metric.unit)]
        for _, samples in named[1:]:
            sample = samples.get(metric.name)
            if sample is None:
                cells.append("-")
            elif base and not metric.percentage:
                cells.append(f"x{centre([sample.values]) / base:.3g}")
            else:
                cells.append(numbers.value(centre([sample.values]), metric.unit))
        rows.append([metric.name, *cells])
    rows += _windows([m for m, _ in named])
    table_rows = [["", *columns], *rows]
    widths = [max(len(row[i]) for row in table_rows) for i in range(len(columns) + 1)]
    title = "configurations, relative to the first"
    if max(2 * len(columns) + sum(widths), len(title)) > width:
        return []
    others = table.wrapped([brevity.others(len(first) - len(brief))], width, "")
    return [
        Line(title, "heading"),
        *(Line(_aligned(row, widths)) for row in table_rows),
        *map(Line, others),
    ]


def _windows(measurements: Sequence[Measurement]) -> list[list[str]]:
    """Rows of the paper's window, where each configuration has one."""
    found = [window.values(measurement) for measurement in measurements]
    rows = []
    for name in window.SHOWN:
        if all(values.get(name) for values in found):
            base, *others = (values[name] for values in found)
            unit = catalogue().metrics[name].unit
            relative = [f"x{other / base:.3g}" for other in others]
            rows.append([f"{name}, paper window", numbers.value(base, unit), *relative])
    return rows


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    name, *cells = row
    padded = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
    return "  ".join([name.ljust(widths[0]), *padded])
