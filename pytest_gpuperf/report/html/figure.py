"""A figure as data: the rows that its chart, its table, its CSV file and its words are made of."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.errors import printable

RATIO = "ratio"
"""The unit of a value that is relative to another: "x0.18"."""

_MICROSECONDS = 1e5
"""Below so many nanoseconds, time is shown in microseconds: kernels take few of them."""
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a spreadsheet takes for the beginning of a formula, in its wide forms too."""
_MOST = 3
"""So many findings are named, and so many configurations of one; the table has the others."""


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


@dataclass(frozen=True, slots=True)
class Roof:
    """A line that no point is above: sloped up to the ridge, flat beyond it."""

    name: str
    slope: float
    """y per x, left of the ridge."""
    top: float
    """y, right of the ridge."""


@dataclass(frozen=True, slots=True)
class Plot:
    """Which columns are drawn, and how. Columns are named by their titles."""

    shape: Shape
    name: str
    """The column of text that names a row: at the axis for bars."""
    values: tuple[str, ...]
    """Columns of quantities: a series each for bars; x and y for points."""
    series: str = ""
    """The column of text that divides rows into series, each with its colour."""
    panels: tuple[str, ...] = ()
    """The columns of text that divide rows into charts side by side."""
    published: tuple[str, ...] = ()
    """Which of `values` somebody else measured: drawn hollow."""
    logarithmic: Sequence[bool] = (False, False)
    """For points: the axes of x and y."""
    most: float | None = None
    """Where the axis of values ends; None where the values decide."""
    roofs: tuple[Roof, ...] = ()
    sizes: str = ""
    """For points: the column of quantities that areas are proportional to."""


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

    def __post_init__(self) -> None:
        for row in self.rows:
            assert len(row) == len(self.columns), (self.key, row)

    def at(self, column: str) -> int:
        """The position of a column. Raises ValueError where there is none."""
        return self.columns.index(column)

    def unit(self, column: str) -> str:
        """The unit of the first number in a column; "" where it has none."""
        cells = (row[self.at(column)] for row in self.rows)
        return next((cell.unit for cell in cells if isinstance(cell, Quantity)), "")


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
    columns: list[list[str]] = []
    for at, title in enumerate(figure.columns):
        cells = [row[at] for row in figure.rows]
        known = list(dict.fromkeys(cell.unit for cell in cells if isinstance(cell, Quantity)))
        heading = f"{title} [{known[0]}]" if len(known) == 1 and known[0] else title
        columns.append([_inert(heading), *map(_plain, cells)])
        if len(known) > 1:
            columns.append(["unit", *(c.unit if isinstance(c, Quantity) else "" for c in cells)])
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerows(zip(*columns, strict=True))
    return out.getvalue()


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


def told(findings: Sequence[tuple[str, str]], before: str = "") -> str:
    """Findings and the configuration of each as a sentence that begins with `before`; "" of none.

    "Most time goes to: gemm (31 %) in tf32, bf16 and 2 others; layout (40 %) in channels_last. ".
    """
    groups: dict[str, list[str]] = {}
    for what, label in findings:
        groups.setdefault(what, []).append(label)
    parts = [f"{what} in {units.few(of, _MOST, 'others')}" for what, of in groups.items()]
    more = len(parts) - _MOST
    said = "; ".join(parts[:_MOST]) + (f"; and {more} more in the table" if more > 0 else "")
    # A name is written as it is, at the beginning of a sentence too.
    return f"{before}{said}. " if findings else ""
