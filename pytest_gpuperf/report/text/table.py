"""A text table that fits its width: columns where they fit, stacked lines where they do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.model.result import Outcome, Verdict

HEADINGS = ("metric", "baseline", "measured", "change", "tolerance", "detects", "verdict")
_LEFT = ("metric", "verdict")
_INDENT = "  "
_NOTHING = "-"
_DISPENSABLE = "detects"


def cells(verdict: Verdict) -> tuple[str, ...]:
    """A verdict as the cells of one row, in the order of HEADINGS."""
    compared = verdict.tolerance is not None and verdict.outcome is not Outcome.REPORTED
    return (
        verdict.metric,
        units.value(verdict.baseline, verdict.unit),
        units.value(verdict.measured, verdict.unit),
        units.change(verdict),
        units.tolerance(verdict) if compared else "-",
        units.detectable(verdict) if compared else "-",
        verdict.outcome.value,
    )


def lines(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """`rows` of cells as lines of at most `width` characters.

    Where the columns do not fit even without the last but one, each row becomes stacked lines: the
    metric and its verdict, then the numbers, wrapped between them.
    """
    heading, blocks = fitted(rows, width)
    return [*heading, *(line for block in blocks for line in block)]


def fitted(rows: Sequence[Sequence[str]], width: int) -> tuple[list[str], list[list[str]]]:
    """The same, apart: the lines of the heading, and the lines of each row."""
    every = range(len(HEADINGS))
    # What would be detected is the first thing to be left out: it says nothing of this change.
    for columns in (every, [i for i in every if HEADINGS[i] != _DISPENSABLE]):
        widths = {i: max(len(row[i]) for row in [HEADINGS, *rows]) for i in columns}
        if len(_INDENT) + sum(widths.values()) + 2 * (len(widths) - 1) <= width:
            return [_aligned(HEADINGS, widths)], [[_aligned(row, widths)] for row in rows]
    return [], [_stacked(row, width) for row in rows]


def _stacked(row: Sequence[str], width: int) -> list[str]:
    metric, baseline, measured, change, tolerance, detects, verdict = row
    parts = [measured] if baseline == _NOTHING else [f"{baseline} -> {measured},"]
    parts += [f"change {change},"] if change != _NOTHING else []
    parts += [f"tolerance {tolerance},"] if tolerance != _NOTHING else []
    parts += [f"detects {detects}"] if detects != _NOTHING else []
    parts[-1] = parts[-1].removesuffix(",")
    return [
        *wrapped([f"{metric}:", verdict], width, _INDENT),
        *wrapped(parts, width, _INDENT * 2),
    ]


def wrapped(parts: Sequence[str], width: int, indent: str) -> list[str]:
    """`parts` joined by blanks, broken between parts (and, where one is too long, inside it)."""
    from textwrap import wrap

    room = max(width, len(indent) + 10)
    return wrap(
        " ".join(parts),
        room,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )


def _aligned(row: Sequence[str], widths: Mapping[int, int]) -> str:
    padded = (
        row[i].ljust(width) if HEADINGS[i] in _LEFT else row[i].rjust(width)
        for i, width in widths.items()
    )
    return (_INDENT + "  ".join(padded)).rstrip()


# Columns of text that fit their width, or rows that are stacked where they do not.

_COLUMN_INDENT = "  "
_GAP = "  "


def wrapped_words(text: str, width: int, tone: str, indent: str = "") -> list[Line]:
    """`text` as lines of at most `width`, all of one tone."""
    return [Line(part, tone) for part in wrapped([text], width, indent)]


def fitted_columns(
    headings: Sequence[str],
    cells: Sequence[Sequence[str]],
    width: int,
    left: Sequence[int],
    below: str = _COLUMN_INDENT * 3,
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
            Line(_padded(row, wide, left), "heading" if not number or len(row) == 1 else "")
            for number, row in enumerate([headings, *cells])
        ]
    apart = not headings[-1]
    columns = len(headings) - apart
    if apart and fits(headings[:-1], [row[: len(headings) - 1] for row in cells], width):
        found = [Line(_padded(headings[:-1], wide, left), "heading")]
        for row in cells:
            if len(row) == 1:
                found += wrapped_words(row[0], width, "heading", _COLUMN_INDENT)
                continue
            found.append(Line(_padded(row[:-1], wide, left)))
            found += wrapped_words(row[-1], width, "", below)
        return found
    found = []
    for row in cells:
        name = row[0].lstrip()
        indent = _COLUMN_INDENT + " " * (len(row[0]) - len(name))
        found += wrapped_words(f"{name}:", width, "" if row[1:] else "heading", indent)
        named = [f"{headings[i]} {row[i]}" for i in range(1, columns) if row[i:] and row[i] != "-"]
        found += wrapped_words(
            ", ".join([*named, *filter(None, row[columns:])]), width, "", indent + _COLUMN_INDENT
        )
    return found


def _widths(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    return [
        max(len(row[i]) for row in [headings, *cells] if len(row) > i) for i in range(len(headings))
    ]


def fits(headings: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> bool:
    """Whether all columns have room beside each other."""
    wide = _widths(headings, cells)
    return len(_COLUMN_INDENT) + sum(wide) + len(_GAP) * (len(wide) - 1) <= width


def _padded(row: Sequence[str], wide: Sequence[int], left: Sequence[int]) -> str:
    padded = (
        cell.ljust(wide[i]) if i in left else cell.rjust(wide[i]) for i, cell in enumerate(row)
    )
    return (_COLUMN_INDENT + _GAP.join(padded)).rstrip()


# A line of a text report, apart from how a terminal colours it.

_LEFT_OUT = "..."


@dataclass(frozen=True)
class Line:
    """One line of text and how it is meant: "" plain, or good, bad, doubtful, heading."""

    text: str
    tone: str = ""


def shortened(text: str, width: int) -> str:
    """`text` in at most `width` characters. Of a longer one the middle is left out.

    What tells tests apart is mostly at the end: their parameters.
    """
    if len(text) <= width:
        return text
    kept = max(width - len(_LEFT_OUT), 0)
    end = (2 * kept + 2) // 3
    return (text[: kept - end] + _LEFT_OUT + text[len(text) - end :])[: max(width, 0)]
