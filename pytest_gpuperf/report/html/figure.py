"""A figure as data: the rows that its chart, its table and its CSV file are all made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from pytest_gpuperf.report import numbers

RATIO = "ratio"
"""The unit of a value that is relative to another: "x0.18"."""

_MICROSECONDS = 1e5
"""Below so many nanoseconds, time is shown in microseconds: kernels take few of them."""


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
            return f"{numbers.value(self.value / 1e3, '')} us"
        return numbers.value(self.value, self.unit)


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
class Table:
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
    source: str = ""
    """Which figure of the ICPE '26 paper it answers to, "" for none."""
    notes: tuple[str, ...] = ()
    """What has to be known to read it: what was left out, what was not comparable."""
    missing: str = ""
    """Which metrics the run lacks for it, and what collects them; "" where nothing is missing."""
    summary: Table | None = None
    """The table to show, where there are more rows than anybody reads."""

    def __post_init__(self) -> None:
        for table in (self, self.summary) if self.summary else (self,):
            for row in table.rows:
                assert len(row) == len(table.columns), (self.key, row)

    def at(self, column: str) -> int:
        """The position of a column. Raises ValueError where there is none."""
        return self.columns.index(column)


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


def text(cell: Cell) -> str:
    """A cell as people read it; "-" for nothing."""
    if cell is None:
        return "-"
    return cell if isinstance(cell, str) else cell.text
