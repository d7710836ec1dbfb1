"""A figure as data for the page's script: names, series and items, each with the row it shows.

This module knows shapes and no specific figure. The script adds only the theme's colours, so chart
and table show the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

from pytest_gpuperf.catalogue.kernel_families import FAMILIES
from pytest_gpuperf.report.html.figure import Cell, Figure, Plain, Plot, Quantity, cell_text

_COLOURS = 8
"""The number of colours in page.css, --s0 to --s7, for series that are no family of kernels."""

_Item = dict[str, Any]
"""One bar, segment or point, in the script's format."""
_ORDER: dict[str, int] = {family: position for position, family in enumerate(FAMILIES)}


def drawing(figure: Figure) -> Plain | None:
    """The drawing of a figure; None if it has none."""
    plot = figure.plot
    items = _items(figure, plot) if plot else []
    # One point alone is a number.
    if plot is None or not items or (plot.shape == "points" and len(figure.rows) < 2):
        return None
    colours = _colours(items)
    panels: dict[str, list[_Item]] = {}
    for item in items:
        item["colour"] = colours[item["series"]]
        panels.setdefault(item.pop("panel"), []).append(item)
    cells = [pair for row in figure.rows for pair in zip(figure.columns, row, strict=True)]
    units = {column: cell.unit for column, cell in cells if isinstance(cell, Quantity)}
    axes = zip(plot.values, plot.logarithmic, strict=True) if plot.shape == "points" else ()
    return {
        "key": figure.key,
        "title": figure.title,
        "shape": plot.shape,
        "most": plot.most,
        # Charts of configurations share a scale for comparison; metrics have different units.
        "shared": "configuration" in plot.panels[:1],
        "roofs": list(plot.roofs),
        "axes": [
            {"title": column, "unit": units.get(column, ""), "logarithmic": logarithmic}
            for column, logarithmic in axes
        ],
        "columns": list(figure.columns),
        "rows": [[cell_text(cell) for cell in row] for row in figure.rows],
        "legend": _legend(plot, items),
        "panels": [_panel(plot, name, inside) for name, inside in panels.items()],
    }


def _items(figure: Figure, plot: Plot) -> list[_Item]:
    """Every bar, segment or point, with the row that it shows."""
    points = plot.shape == "points"
    columns = plot.values[1:] if points else plot.values
    items = []
    for at, row in enumerate(figure.rows):
        cells = dict(zip(figure.columns, row, strict=True))
        x, size = cells[plot.values[0]] if points else None, cells.get(plot.sizes)
        if points and not _fits(x, plot.logarithmic[0]):
            continue
        for column in columns:
            value = cells[column]
            if not _fits(value, plot.logarithmic[1]):
                continue
            several = [column] if len(columns) > 1 else []
            items.append(
                {
                    "panel": ", ".join(cell_text(cells[panel]) for panel in plot.panels),
                    "name": cell_text(cells[plot.name]),
                    "series": ", ".join(
                        [*([cell_text(cells[plot.series])] if plot.series else []), *several]
                    ),
                    "unit": value.unit,
                    "value": value.value,
                    "text": value.text,
                    "x": x.value if isinstance(x, Quantity) else 0.0,
                    "size": size.value if isinstance(size, Quantity) else 0.0,
                    "row": at,
                    "hollow": column in plot.published,
                }
            )
    return items


def _fits(cell: Cell, logarithmic: bool) -> TypeGuard[Quantity]:
    """True if it has a place on the axis: zero has none on a logarithmic one."""
    return isinstance(cell, Quantity) and (cell.value > 0 or not logarithmic)


def _colours(items: Sequence[_Item]) -> dict[str, str]:
    """A colour of page.css per series: families have their own; of many, the smallest are grey."""
    sizes: dict[str, float] = {}
    for item in items:
        sizes[item["series"]] = sizes.get(item["series"], 0.0) + item["value"]
    colours = {label: f"f{_ORDER[label]}" for label in sizes if label in _ORDER}
    others = [label for label in sizes if label not in _ORDER]
    if len(others) > _COLOURS:
        others.sort(key=lambda label: -sizes[label])
    return colours | {label: f"s{min(at, _COLOURS - 1)}" for at, label in enumerate(others)}


def _legend(plot: Plot, items: Sequence[_Item]) -> list[Plain]:
    """The series, in their order, if there are several."""
    series = {item["series"]: item for item in sorted(items, key=_order)}
    if len(series) < 2 or plot.series == plot.name:
        return []
    return [
        {"name": label, "colour": item["colour"], "hollow": item["hollow"]}
        for label, item in series.items()
    ]


def _order(item: _Item) -> int:
    """Families stand in the same order everywhere, whichever is the largest."""
    return _ORDER.get(item["series"], -1)


def _panel(plot: Plot, title: str, items: Sequence[_Item]) -> Plain:
    names = list(dict.fromkeys(item["name"] for item in items))
    # Single bars form one series, so each has the full width of its name.
    alone = plot.shape == "bars" and len(names) == len(items)
    series: dict[str, list[_Item]] = {}
    for item in items if alone else sorted(items, key=_order):
        label = "" if alone else item["series"]
        series.setdefault(label, []).append({"at": names.index(item["name"]), **item})
    return {
        "title": title,
        "unit": items[0]["unit"],
        "names": names,
        "series": [{"name": name, "items": group} for name, group in series.items()],
    }
