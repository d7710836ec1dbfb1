"""Lines as what the page's script draws: few enough points for a screen and for the page's size.

Generic, as chart.py is. What is drawn of many rows is their mean, and how far they are from it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.report.html.figure import Cell, Figure, Plain, Plot, Quantity

_MOST, _LEAST = 1000, 250
"""Points of a line: about one per pixel, and fewer where there are many charts."""
_ALTOGETHER = 4000
"""Points of one line in every chart, as far as _LEAST allows."""

_DIGITS, _X_DIGITS = 3, 6

_Rows = Sequence[Sequence[Cell]]


def drawing(figure: Figure, plot: Plot) -> Plain | None:
    """What is to be drawn of a figure of lines; None where nothing is."""
    x = figure.at(plot.values[0])
    found: dict[str, list[tuple[Cell, ...]]] = {}
    for row in figure.rows:
        if isinstance(row[x], Quantity):
            found.setdefault(str(row[figure.at(plot.panel)]), []).append(row)
    panels = [_panel(figure, plot, name, rows, len(found)) for name, rows in found.items()]
    panels = [panel for panel in panels if panel["series"]]
    if not panels:
        return None
    return {
        "key": figure.key,
        "title": figure.title,
        "shape": plot.shape.value,
        "most": plot.most,
        "axes": [{"title": plot.values[0], "unit": _unit(figure.rows, x), "logarithmic": False}],
        "roofs": [],
        "columns": [],
        "rows": [],
        "legend": [],
        "panels": panels,
    }


def drawn_together(rows: int, panels: int) -> int:
    """How many rows become one point of a line, of so many in a chart, and so many charts."""
    most = max(_LEAST, min(_MOST, _ALTOGETHER // max(panels, 1)))
    return max(1, -(-rows // most))


def _panel(figure: Figure, plot: Plot, title: str, rows: _Rows, panels: int) -> Plain:
    count = drawn_together(len(rows), panels)
    groups = [rows[at : at + count] for at in range(0, len(rows), count)]
    series = [
        _line(name, f"s{position}", groups, figure.at(name))
        for position, name in enumerate(plot.values[1:])
    ]
    x = figure.at(plot.values[0])
    return {
        "title": title,
        "x": [_rounded(_middle(_values(group, x)), _X_DIGITS) for group in groups],
        "series": [line for line in series if line["unit"]],
        "bands": [
            {"name": band.name, "begin": band.begin, "end": band.end}
            for band in plot.bands
            if band.panel == title
        ],
    }


def _line(name: str, colour: str, groups: Sequence[_Rows], column: int) -> Plain:
    """A line with a point per group, None for a gap. Groups of one row have no extremes."""
    values = [_values(group, column) for group in groups]
    single = all(len(group) == 1 for group in groups)
    return {
        "name": name,
        "unit": next((_unit(group, column) for group in groups if _unit(group, column)), ""),
        "colour": colour,
        "means": [_rounded(_mean(found)) if found else None for found in values],
        "lowest": [] if single else [_rounded(min(v)) if v else None for v in values],
        "highest": [] if single else [_rounded(max(v)) if v else None for v in values],
    }


def _values(rows: _Rows, column: int) -> list[float]:
    return [cell.value for row in rows if isinstance(cell := row[column], Quantity)]


def _unit(rows: _Rows, column: int) -> str:
    return next((cell.unit for row in rows if isinstance(cell := row[column], Quantity)), "")


def _mean(values: Sequence[float]) -> float:
    # Divided first: a sum may be too large for a number.
    return sum(value / len(values) for value in values)


def _middle(values: Sequence[float]) -> float:
    return values[0] / 2 + values[-1] / 2


def _rounded(value: float, digits: int = _DIGITS) -> float:
    """As many digits as anybody sees, in as few characters."""
    found = float(f"{value:.{digits}g}")
    return int(found) if found.is_integer() and abs(found) < 10**digits else found
