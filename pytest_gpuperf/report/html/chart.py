"""A figure as what the page's script draws: names, series and items, each with the row it is of.

Generic: it knows shapes and no figure. The script adds colours of the theme and nothing else, so
that chart, table and CSV are of one set of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuperf.catalogue.kernel_families import FAMILIES
from pytest_gpuperf.report.html.figure import Cell, Figure, Plain, Plot, Quantity, Shape, cell_text

_COLOURS = 8
"""Of series that are no family of kernels, in page.css: --s0 to --s7."""
_REST = f"s{_COLOURS - 1}"
"""The grey one: in a stack of more series, that of the ones that are small everywhere."""
_CONFIGURATION = "configuration"
_OTHERS = "others"
"""Their name in the legend; each keeps its own where the pointer is."""

_Rows = Sequence[Sequence[Cell]]
_ORDER: dict[str, int] = {family: position for position, family in enumerate(FAMILIES)}


@dataclass(frozen=True, slots=True)
class _Item:
    """One bar, segment or point."""

    panel: str
    name: str
    series: str
    column: str
    """Of the value."""
    value: float
    x: float
    """Of points: where it is; 0 for bars."""
    size: float
    row: int


def drawing(figure: Figure) -> Plain | None:
    """What is to be drawn of a figure; None where nothing is."""
    plot = figure.plot
    if plot is None:
        return None
    drawn = _bars_or_points(figure, plot)
    if not drawn["panels"] or (plot.shape is Shape.POINTS and len(figure.rows) < 2):
        return None  # one point alone is a number
    return {
        "key": figure.key,
        "title": figure.title,
        "shape": plot.shape.value,
        "most": plot.most,
        # Charts of configurations are held against each other; those of metrics have other units.
        "shared": plot.panel == _CONFIGURATION,
        "roofs": [{"name": roof.name, "slope": roof.slope, "top": roof.top} for roof in plot.roofs],
        **drawn,
    }


def _bars_or_points(figure: Figure, plot: Plot) -> Plain:
    items = _items(figure, plot)
    colours = _colours(plot, items)
    panels: dict[str, list[_Item]] = {}
    for item in items:
        panels.setdefault(item.panel, []).append(item)
    axes = zip(plot.values, plot.logarithmic, strict=True) if plot.shape is Shape.POINTS else ()
    return {
        "axes": [_axis(figure, column, logarithmic) for column, logarithmic in axes],
        "columns": list(figure.columns),
        "rows": [[cell_text(cell) for cell in row] for row in figure.rows],
        "legend": _legend(plot, items, colours),
        "panels": [_panel(figure, plot, name, inside, colours) for name, inside in panels.items()],
    }


def _axis(figure: Figure, column: str, logarithmic: bool) -> Plain:
    unit = _unit(figure.rows, figure.at(column))
    return {"title": column, "unit": unit, "logarithmic": logarithmic}


def _unit(rows: _Rows, column: int) -> str:
    return next((cell.unit for row in rows if isinstance(cell := row[column], Quantity)), "")


def _items(figure: Figure, plot: Plot) -> list[_Item]:
    name, panel, series = (
        figure.at(column) if column else None for column in (plot.name, plot.panel, plot.series)
    )
    points = plot.shape is Shape.POINTS
    items = []
    for index, row in enumerate(figure.rows):
        x = row[figure.at(plot.values[0])] if points else None
        size = row[figure.at(plot.sizes)] if plot.sizes else None
        if points and not (isinstance(x, Quantity) and _fits(x, plot.logarithmic[0])):
            continue
        for column in plot.values[1:] if points else plot.values:
            value = row[figure.at(column)]
            if isinstance(value, Quantity) and _fits(value, plot.logarithmic[1]):
                items.append(
                    _Item(
                        panel=_name(row, panel),
                        name=_name(row, name),
                        series=_name(row, series),
                        column=column,
                        value=value.value,
                        x=x.value if isinstance(x, Quantity) else 0.0,
                        size=size.value if isinstance(size, Quantity) else 0.0,
                        row=index,
                    )
                )
    return items


def _fits(quantity: Quantity, logarithmic: bool) -> bool:
    """Whether it has a place on the axis: zero has none where that is logarithmic."""
    return quantity.value > 0 or not logarithmic


def _name(row: Sequence[Cell], column: int | None) -> str:
    return "" if column is None else cell_text(row[column])


def _label(plot: Plot, item: _Item) -> str:
    """The name of an item's series: its column, where columns are series."""
    several = len(plot.values) > 1 and plot.shape is not Shape.POINTS
    return ", ".join(filter(None, [item.series, item.column if several else ""]))


def _colours(plot: Plot, items: Sequence[_Item]) -> dict[str, str]:
    """A colour of page.css per series: families have their own in every figure."""
    labels = list(dict.fromkeys(_label(plot, item) for item in items))
    colours = {label: f"f{_ORDER[label]}" for label in labels if label in _ORDER}
    others = [label for label in labels if label not in _ORDER]
    if plot.shape is Shape.STACK and len(others) > _COLOURS:
        share = _shares(plot, items)
        # Python's sort is stable: of two that are equal, the first keeps its colour.
        large = {*sorted(others, key=lambda label: -share[label])[: _COLOURS - 1]}
        colours |= {label: _REST for label in others if label not in large}
        others = [label for label in others if label in large]
    return colours | {label: f"s{at % _COLOURS}" for at, label in enumerate(others)}


def _shares(plot: Plot, items: Sequence[_Item]) -> dict[str, float]:
    """The largest share of a bar that each series has."""
    totals: dict[tuple[str, str], float] = {}
    for item in items:
        bar = item.panel, item.name
        totals[bar] = totals.get(bar, 0.0) + item.value
    shares: dict[str, float] = {}
    for item in items:
        label, total = _label(plot, item), totals[item.panel, item.name]
        shares[label] = max(shares.get(label, 0.0), item.value / total if total else 0.0)
    return shares


def _legend(plot: Plot, items: Sequence[_Item], colours: dict[str, str]) -> list[Plain]:
    """The series, in their order, where there are several."""
    published = {_label(plot, item): item.column in plot.published for item in items}
    if len(published) < 2 or plot.series == plot.name:
        return []
    grey = [label for label, colour in colours.items() if colour == _REST]
    folded = grey if len(grey) > 1 and plot.shape is Shape.STACK else []
    entries: list[Plain] = [
        {"name": label, "colour": colours[label], "hollow": published[label]}
        for label in sorted(published, key=_order)
        if label not in folded
    ]
    if folded:
        entries.append({"name": _OTHERS, "colour": _REST, "hollow": False})
    return entries


def _order(label: str) -> int:
    """Families stand in the same order everywhere, whichever is the largest."""
    return _ORDER.get(label, -1)


def _panel(
    figure: Figure, plot: Plot, title: str, items: Sequence[_Item], colours: dict[str, str]
) -> Plain:
    names = list(dict.fromkeys(item.name for item in items))
    # Bars that no other stands beside are one series: each then has the whole width of its name.
    alone = plot.shape is Shape.BARS and len({item.name for item in items}) == len(items)
    series: dict[str, list[_Item]] = {}
    for item in items:
        series.setdefault("" if alone else _label(plot, item), []).append(item)
    return {
        "title": title,
        "unit": _unit([figure.rows[items[0].row]], figure.at(items[0].column)),
        "names": names,
        "series": [
            {
                "name": name,
                "items": [
                    {
                        "at": names.index(item.name),
                        "name": item.name,
                        "value": item.value,
                        "text": cell_text(figure.rows[item.row][figure.at(item.column)]),
                        "x": item.x,
                        "size": item.size,
                        "row": item.row,
                        "colour": colours[_label(plot, item)],
                        "hollow": item.column in plot.published,
                    }
                    for item in group
                ],
            }
            for name, group in sorted(series.items(), key=lambda entry: _order(entry[0]))
        ],
    }
