"""A text table that fits its width: columns where they fit, stacked lines where they do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_gpuperf.model import Outcome, Verdict
from pytest_gpuperf.report import numbers

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
        numbers.value(verdict.baseline, verdict.unit),
        numbers.value(verdict.measured, verdict.unit),
        numbers.change(verdict),
        numbers.tolerance(verdict) if compared else "-",
        numbers.detectable(verdict) if compared else "-",
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
