"""A figure's rows as CSV, for a spreadsheet or a script."""

from __future__ import annotations

import csv
import io

from pytest_gpuperf.report.html.figure import Cell, Figure, Quantity

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula."""


def text(figure: Figure) -> str:
    """The rows of a figure: numbers in full, their unit in the heading or, where a column has
    several, in a column of its own.

    Text that a spreadsheet would run as a formula is quoted.
    """
    units = [_units(figure, column) for column in range(len(figure.columns))]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    heading: list[str] = []
    for title, found in zip(figure.columns, units, strict=True):
        heading.append(f"{title} [{found[0]}]" if len(found) == 1 and found[0] else title)
        heading += ["unit"] if len(found) > 1 else []
    writer.writerow(heading)
    for row in figure.rows:
        cells: list[str] = []
        for cell, found in zip(row, units, strict=True):
            cells.append(_plain(cell))
            cells += [cell.unit if isinstance(cell, Quantity) else ""] if len(found) > 1 else []
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
    return f"'{cell}" if cell.startswith(_FORMULA) else cell
