"""A figure as data: the rows that its chart, its table, its CSV file and its words are made of.

At the end, its chart as what the page's script draws: names, series and items, each with the row it
is of. That is generic: it knows shapes and no figure. The script adds colours of the theme and
nothing else, so that chart, table and CSV are of one set of rows. Of lines, what is drawn of many
rows is their mean and how far they are from it: few enough points for a screen and for the page's
size.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from pytest_gpuperf.catalogue import units, yaml_table
from pytest_gpuperf.catalogue.kernel_families import FAMILIES
from pytest_gpuperf.errors import printable

_SHARE = "share"
RATIO = "ratio"
"""The unit of a value that is relative to another: "x0.18"."""

_MICROSECONDS = 1e5
"""Below so many nanoseconds, time is shown in microseconds: kernels take few of them."""
_DESCRIPTIONS = Path(__file__).parent / "figures" / "figures.yaml"
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a spreadsheet takes for the beginning of a formula, in its wide forms too."""
_MOST = 3
"""So many findings are named, and so many configurations of one; the table has the others."""

_COLOURS = 8
"""Of series that are no family of kernels, in page.css: --s0 to --s7."""
_REST = f"s{_COLOURS - 1}"
"""The grey one: in a stack of more series, that of the ones that are small everywhere."""
_CONFIGURATION = "configuration"
_OTHERS = "others"
"""Their name in the legend; each keeps its own where the pointer is."""

_MOST_POINTS, _LEAST_POINTS = 1000, 250
"""Points of a line: about one per pixel, and fewer where there are many charts."""
_ALTOGETHER = 4000
"""Points of one line in every chart, as far as _LEAST_POINTS allows."""
_DIGITS, _X_DIGITS = 3, 6

_ORDER: dict[str, int] = {family: position for position, family in enumerate(FAMILIES)}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with its unit, of the catalogue's or RATIO."""

    value: float
    unit: str

    @property
    def text(self) -> str:
        """As people read it."""
        if self.unit == RATIO:
            return f"x{self.value:.3g}"
        if self.unit == "ns" and 0 < abs(self.value) < _MICROSECONDS:
            return f"{units.value(self.value / 1e3, '')} us"
        return units.value(self.value, self.unit)


Cell = str | Quantity | None
"""What a row has in a column; None where it has nothing."""

Plain = dict[str, object]
"""What becomes JSON for the page's script."""


class Shape(str, Enum):
    """How rows are drawn."""

    BARS = "bars"
    """A bar per row, beside each other where several rows share a name."""
    STACK = "stack"
    """The same, one after the other."""
    POINTS = "points"
    """A point per row, at its x and y."""
    LINES = "lines"
    """Lines over a common x, under each other, each of its own column: x, then those."""


@dataclass(frozen=True, slots=True)
class Roof:
    """A line that no point is above: sloped up to the ridge, flat beyond it."""

    name: str
    slope: float
    """y per x, left of the ridge."""
    top: float
    """y, right of the ridge."""


@dataclass(frozen=True, slots=True)
class Band:
    """A part of the axis of x that has a name. For lines."""

    panel: str
    name: str
    begin: float
    """In the unit of x, like `end`."""
    end: float


@dataclass(frozen=True, slots=True)
class Plot:
    """Which columns are drawn, and how. Columns are named by their titles."""

    shape: Shape
    name: str
    """The column of text that names a row: at the axis for bars. None for lines, ""."""
    values: tuple[str, ...]
    """Columns of quantities: a series each for bars; x and y for points; x and a line each."""
    series: str = ""
    """The column of text that divides rows into series, each with its colour."""
    panel: str = ""
    """The column of text that divides rows into charts side by side."""
    published: tuple[str, ...] = ()
    """Which of `values` somebody else measured: drawn hollow."""
    logarithmic: tuple[bool, bool] = (False, False)
    """For points: the axes of x and y."""
    most: float | None = None
    """Where the axis of values ends; None where the values decide."""
    roofs: tuple[Roof, ...] = ()
    sizes: str = ""
    """For points: the column of quantities that areas are proportional to."""
    bands: tuple[Band, ...] = ()


@dataclass(frozen=True, slots=True)
class FigureTable:
    """Rows to read, each a summary of many."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the report. `plot` is drawn from `rows`, and so are table and CSV."""

    key: str
    """Its anchor in the page and the name of its CSV file."""
    title: str
    """What it shows."""
    conclusion: str
    """What to conclude from it, in a sentence or two."""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    plot: Plot | None = None
    """How the rows are drawn, where any of them can be."""
    source: str = ""
    """Which figure of the ICPE '26 paper it answers to, "" for none."""
    notes: tuple[str, ...] = ()
    """What has to be known to read it: what was left out, what was not comparable."""
    missing: str = ""
    """Which metrics the run lacks for it, and what collects them; "" where nothing is missing."""
    summary: FigureTable | None = None
    """The table to show, where there are more rows than anybody reads."""

    def __post_init__(self) -> None:
        for table in (self, self.summary) if self.summary else (self,):
            for row in table.rows:
                assert len(row) == len(table.columns), (self.key, row)

    def at(self, column: str) -> int:
        """The position of a column. Raises ValueError where there is none."""
        return self.columns.index(column)


def description(key: str) -> dict[str, Any]:
    """What `figures.yaml` says of the figure of that key."""
    described: dict[str, Any] = yaml_table(_DESCRIPTIONS)[key]
    return described


def described(
    key: str,
    rows: Iterable[Sequence[Cell | float]],
    *,
    said: Sequence[tuple[str, str]] = (),
    conclusion: str = "",
    columns: Sequence[str] = (),
    notes: Iterable[str] = (),
    missing: str = "",
    summary: FigureTable | None = None,
    **drawn: Any,
) -> Figure:
    """The figure of that key with these rows, and what the run adds to its description.

    What is `said` of configurations (`told`) stands before the conclusion, or another `conclusion`
    in place of both. Numbers in rows are of their column's unit. `columns` come after those
    described; `drawn` are fields of the plot: others, or further `values`. Notes that are alike are
    one.
    """
    known = description(key)
    before = f"{known['before']} " if "before" in known else ""
    plot: dict[str, Any] = {**known["plot"], **drawn}
    plot["shape"] = Shape(plot["shape"])
    plot["values"] = (*known["plot"]["values"], *drawn.get("values", ()))
    plot["logarithmic"] = tuple(plot.get("logarithmic", (False, False)))
    titles = (*known["columns"], *columns)
    units_of = [known.get("units", {}).get(title, "") for title in titles]
    return Figure(
        key=key,
        title=known["title"],
        conclusion=conclusion or told(said, before) + known["conclusion"],
        columns=titles,
        rows=tuple(tuple(map(_cell, row, units_of)) for row in rows),
        plot=Plot(**plot),
        source=known.get("source", ""),
        notes=tuple(dict.fromkeys(notes)),
        missing=missing,
        summary=summary,
    )


def _cell(value: Cell | float, unit: str) -> Cell:
    """A cell as it is, or of a number in this unit; "share" is 0.01 for 1 %."""
    if not isinstance(value, (int, float)):
        return value
    return quantity(100 * value, "%") if unit == _SHARE else quantity(float(value), unit)


def quantity(value: float | None, unit: str) -> Quantity | None:
    """A cell of this number; None for none, and for what is no number at all."""
    if value is None or not math.isfinite(value):
        return None
    return Quantity(value, unit)


def ratio(value: float | None, base: float | None) -> Quantity | None:
    """A cell of `value` over `base`; None where there is nothing to divide."""
    if value is None or not base:
        return None
    return quantity(value / base, RATIO)


def share(part: float | None, whole: float | None) -> Quantity | None:
    """A cell of `part` as percents of `whole`; None where there is nothing to divide."""
    return None if part is None or not whole else quantity(100 * part / whole, "%")


def percent(part: float | None) -> Quantity | None:
    """A cell of a share (0.01 is 1 %) in percents."""
    return None if part is None else quantity(100 * part, "%")


def cell_text(cell: Cell) -> str:
    """A cell as people read it; "-" for nothing."""
    if cell is None:
        return "-"
    return cell if isinstance(cell, str) else cell.text


def csv_text(figure: Figure) -> str:
    """The rows of a figure: numbers in full, their unit in the heading or, where a column has
    several, in a column of its own.

    Text that a spreadsheet would run as a formula is quoted.
    """
    units_of = [_units(figure, column) for column in range(len(figure.columns))]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    heading: list[str] = []
    for title, known in zip(figure.columns, units_of, strict=True):
        heading.append(_inert(f"{title} [{known[0]}]" if len(known) == 1 and known[0] else title))
        heading += ["unit"] if len(known) > 1 else []
    writer.writerow(heading)
    for row in figure.rows:
        cells: list[str] = []
        for cell, known in zip(row, units_of, strict=True):
            cells.append(_plain(cell))
            cells += [cell.unit if isinstance(cell, Quantity) else ""] if len(known) > 1 else []
        writer.writerow(cells)
    return out.getvalue()


def _units(figure: Figure, column: int) -> list[str]:
    cells = (row[column] for row in figure.rows)
    return list(dict.fromkeys(cell.unit for cell in cells if isinstance(cell, Quantity)))


def _plain(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, Quantity):
        return f"{cell.value:.15g}"
    return _inert(cell)


def _inert(text: str) -> str:
    """`text` in one line, for a cell that no spreadsheet runs."""
    text = printable(text)
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text


def of_each(findings: Sequence[tuple[str, str]]) -> str:
    """Findings and the configuration of each, those that are alike together; "" of none.

    "gemm takes 31 % in tf32, bf16 and 2 others; layout takes 40 % in channels_last".
    """
    groups: dict[str, list[str]] = {}
    for what, label in findings:
        groups.setdefault(what, []).append(label)
    parts = [f"{what} in {_listed(labels)}" for what, labels in groups.items()]
    more = len(parts) - _MOST
    return "; ".join(parts[:_MOST]) + (f"; and {more} more in the table" if more > 0 else "")


def told(findings: Sequence[tuple[str, str]], before: str = "") -> str:
    """The same as a sentence that begins with `before`, with a blank behind it; "" of none."""
    # A name is written as it is, at the beginning of a sentence too.
    return f"{before}{of_each(findings)}. " if findings else ""


def _listed(labels: Sequence[str]) -> str:
    more = len(labels) - _MOST
    if more > 1:
        return f"{', '.join(labels[:_MOST])} and {more} others"
    return " and ".join(filter(None, [", ".join(labels[:-1]), labels[-1]]))


_Rows = Sequence[Sequence[Cell]]


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


def chart_of(figure: Figure) -> Plain | None:
    """What is to be drawn of a figure; None where nothing is."""
    plot = figure.plot
    if plot is None:
        return None
    drawn = _lines(figure, plot) if plot.shape is Shape.LINES else _bars_or_points(figure, plot)
    if not drawn["panels"] or (plot.shape is Shape.POINTS and len(figure.rows) < 2):
        return None  # one point alone is a number
    return {
        "key": figure.key,
        "title": figure.title,
        "shape": plot.shape.value,
        "most": plot.most,
        # Charts of configurations are held against each other; those of metrics have other units.
        "shared": plot.panel == _CONFIGURATION,
        "axes": [],
        "roofs": [{"name": roof.name, "slope": roof.slope, "top": roof.top} for roof in plot.roofs],
        "columns": [],
        "rows": [],
        "legend": [],
    } | drawn


def drawn_together(rows: int, panels: int) -> int:
    """How many rows become one point of a line, of so many in a chart, and so many charts."""
    most = max(_LEAST_POINTS, min(_MOST_POINTS, _ALTOGETHER // max(panels, 1)))
    return max(1, -(-rows // most))


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


def _lines(figure: Figure, plot: Plot) -> Plain:
    x = plot.values[0]
    charts: dict[str, list[tuple[Cell, ...]]] = {}
    for row in figure.rows:
        if isinstance(row[figure.at(x)], Quantity):
            charts.setdefault(str(row[figure.at(plot.panel)]), []).append(row)
    panels = [_line_panel(figure, plot, name, rows, len(charts)) for name, rows in charts.items()]
    return {
        "axes": [_axis(figure, x, False)],
        "panels": [panel for panel in panels if panel["series"]],
    }


def _line_panel(figure: Figure, plot: Plot, title: str, rows: _Rows, panels: int) -> Plain:
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
        "unit": next(filter(None, (_unit(group, column) for group in groups)), ""),
        "colour": colour,
        "means": [_rounded(_mean(v)) if v else None for v in values],
        "lowest": [] if single else [_rounded(min(v)) if v else None for v in values],
        "highest": [] if single else [_rounded(max(v)) if v else None for v in values],
    }


def _values(rows: _Rows, column: int) -> list[float]:
    return [cell.value for row in rows if isinstance(cell := row[column], Quantity)]


def _mean(values: Sequence[float]) -> float:
    # Divided first: a sum may be too large for a number.
    return sum(value / len(values) for value in values)


def _middle(values: Sequence[float]) -> float:
    return values[0] / 2 + values[-1] / 2


def _rounded(value: float, digits: int = _DIGITS) -> float:
    """As many digits as anybody sees, in as few characters."""
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 10**digits else rounded
