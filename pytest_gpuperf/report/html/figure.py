"""A figure as data: the rows that its chart, its table and its words are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.errors import printable
from pytest_gpuperf.report.view import gathered

RATIO = "ratio"
"""The unit of a value that is relative to another: "x0.18"."""

_MICROSECONDS = 1e5
"""Below so many nanoseconds, time is shown in microseconds: kernels take few of them."""
_MOST = 3
"""The number of configurations of a finding that a sentence names."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with its unit, of the catalogue's or RATIO."""

    value: float
    unit: str

    @property
    def text(self) -> str:
        """The number with its unit, for people."""
        if self.unit == RATIO:
            return f"x{self.value:.3g}"
        if self.unit == "ns" and 0 < abs(self.value) < _MICROSECONDS:
            return f"{units.value(self.value / 1e3, '')} us"
        return units.value(self.value, self.unit)


Cell = str | Quantity | None
"""The content of a row in a column; None if it is empty."""

Plain = dict[str, object]
"""JSON for the page's script."""


@dataclass(frozen=True, slots=True)
class Plot:
    """The columns that are drawn, by their titles, and the form of the chart."""

    shape: Literal["bars", "stack", "points"]
    """The form of the chart: a bar per row, beside each other where several rows share a name; a
    segment per row, one after the other; or a point per row, at its x and y."""
    name: str
    """The column of text that names a row: at the axis for bars."""
    values: Sequence[str]
    """Columns of quantities: a series each for bars; x and y for points."""
    series: str = ""
    """The column of text that divides rows into series, each with its colour."""
    panels: Sequence[str] = ()
    """The columns of text that divide rows into charts side by side."""
    published: tuple[str, ...] = ()
    """The columns of `values` from the ICPE '26 paper: drawn hollow."""
    logarithmic: Sequence[bool] = (False, False)
    """Whether the axes of x and y are logarithmic, for points."""
    most: float | None = None
    """The end of the axis of values; None if the values decide."""
    roofs: tuple[Plain, ...] = ()
    """Lines that no point is above: their `name`, `slope` (y per x) up to the ridge, and `top`."""
    sizes: str = ""
    """The column of quantities proportional to the areas, for points."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the report. `plot` is drawn from `rows`, and so is the table."""

    key: str
    """Its anchor in the page."""
    title: str
    """The title in the page."""
    conclusion: str
    """A conclusion in a sentence or two."""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    plot: Plot | None = None
    """The chart of the rows; None if none of them can be drawn."""
    source: str = ""
    """The figure of the ICPE '26 paper that it answers to; "" for none."""
    notes: tuple[str, ...] = ()
    """Notes for the reader, such as what was left out."""
    missing: str = ""
    """The flag that collects the data of a figure without rows; "" for others."""


def quantity(value: float | None, unit: str) -> Quantity | None:
    """A cell of this number; None for none, and for what is no number at all."""
    if value is None or not math.isfinite(value):
        return None
    return Quantity(value, unit)


def ratio(value: float | None, base: float | None, unit: str = RATIO) -> Quantity | None:
    """A cell of `value` over `base`, or in "%" of it; None if one is missing, or the base is 0."""
    if value is None or not base:
        return None
    return quantity((100 if unit == "%" else 1) * value / base, unit)


def cell_text(cell: Cell) -> str:
    """A cell as people read it, in one line that no browser interprets; "-" for nothing."""
    if cell is None:
        return "-"
    return printable(cell) if isinstance(cell, str) else cell.text


def told(findings: Sequence[tuple[str, str]], before: str = "") -> str:
    """Findings and the configuration of each as a sentence that begins with `before`; "" of none.

    "Most time goes to: gemm (31 %) in tf32, bf16 and 2 others; layout (40 %) in channels_last. ".
    """
    groups = gathered(findings).items()
    said = "; ".join(f"{what} in {units.few(of, _MOST, 'others')}" for what, of in groups)
    # A name is written as it is, at the beginning of a sentence too.
    return f"{before}{said}. " if findings else ""
