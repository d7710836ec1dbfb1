"""Columns of text that fit their width, or rows that are stacked where they do not."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.report import table
from pytest_gpuperf.report.line import Line

_INDENT = "  "
_GAP = "  "


def wrapped(text: str, width: int, tone: str, indent: str = "") -> list[Line]:
    """`text` as lines of at most `width`, all of one tone."""
    return [Line(part, tone) for part in table.wrapped([text], width, indent)]


def fitted(
    headings: Sequence[str],
    cells: Sequence[Sequence[str]],
    width: int,
    left: Sequence[int],
    below: str = _INDENT * 3,
) -> list[Line]:
    """A table where it fits; else each row as its first cell, and the others wrapped below it.

    A last column without a heading may be wrapped below its row, indented by `below`, before that.
    A row of one cell stands above those that belong to it. Columns of `left` are aligned so.
    """
    if not cells:
        return []
    wide = _widths(headings, cells)
    if fits(headings, cells, width):
        return [
            Line(_aligned(row, wide, left), "heading" if not number or len(row) == 1 else "")
            for number, row in enumerate([headings, *cells])
        ]
    apart = not headings[-1]
    columns = len(headings) - apart
    if apart and fits(headings[:-1], [row[: len(headings) - 1] for row in cells], width):
        found = [Line(_aligned(headings[:-1], wide, left), "heading")]
        for row in cells:
            if len(row) == 1:
                found += wrapped(row[0], width, "heading", _INDENT)
                continue
            found.append(Line(_aligned(row[:-1], wide, left)))
            found += wrapped(row[-1], width, "", below)
        return found
    found = []
    for row in cells:
        name = row[0].lstrip()
        indent = _INDENT + " " * (len(row[0]) - len(name))
        found += wrapped(f"{name}:", width, "" if row[1:] else "heading", indent)
        named = [f"{headings[i]} {row[i]}" for i in range(1, columns) if row[i:] and row[i] != "-"]
        found += wrapped(
            ", ".join([*named, *filter(None, row[columns:])]), width, "", indent + _INDENT
        )
    return found


def _widths(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    return [
        max(len(row[i]) for row in [headings, *cells] if len(row) > i) for i in range(len(headings))
    ]


def fits(headings: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> bool:
    """Whether all columns have room beside each other."""
    wide = _widths(headings, cells)
    return len(_INDENT) + sum(wide) + len(_GAP) * (len(wide) - 1) <= width


def _aligned(row: Sequence[str], wide: Sequence[int], left: Sequence[int]) -> str:
    padded = (
        cell.ljust(wide[i]) if i in left else cell.rjust(wide[i]) for i, cell in enumerate(row)
    )
    return (_INDENT + _GAP.join(padded)).rstrip()
