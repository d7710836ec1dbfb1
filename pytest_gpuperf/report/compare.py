"""A comparison as text: what it is of, metric by metric, kernel by kernel."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.judge.blamed import Blame
from pytest_gpuperf.judge.compared import Comparison, Pair
from pytest_gpuperf.model import STEP
from pytest_gpuperf.report import compared, table
from pytest_gpuperf.report.line import Line

_INDENT = "  "
_GAP = "  "


def lines(comparison: Comparison, *, kernels: int = 10, width: int = 80) -> list[Line]:
    """The text of a comparison, at most `width` wide.

    Of the kernels of each pair, the `kernels` whose times changed most; nothing at all for 0.
    """
    found: list[Line] = []
    for label, source in (("a", comparison.a), ("b", comparison.b)):
        found += _wrapped(f"{label}: {compared.source(source)}", width, "heading")
    shared = compared.shared_notes(comparison, kernels=kernels > 0)
    for note in shared:
        found += _wrapped(note, width, "doubtful")
    for pair in comparison.pairs:
        found += [Line(""), *_pair(pair, shared, kernels, width)]
    for label, alone in (("a", comparison.only_a), ("b", comparison.only_b)):
        if alone:
            found += [Line(""), Line(f"only in {label}:", "heading")]
        for entry in alone:
            found += _wrapped(compared.unpaired(entry), width, "doubtful", _INDENT)
    return found


def _pair(pair: Pair, shared: Sequence[str], kernels: int, width: int) -> list[Line]:
    found = _wrapped(compared.title(pair), width, "heading")
    for note in compared.notes(pair, kernels=kernels > 0):
        if note not in shared:
            found += _wrapped(note, width, "doubtful")
    found += _metrics(pair, width)
    return found + _kernels(pair.blame, pair, kernels, width) if pair.blame and kernels else found


def _metrics(pair: Pair, width: int) -> list[Line]:
    """The metrics of the step, then those of each phase under its name."""
    headings = compared.metric_headings(pair)
    cells: list[tuple[str, ...]] = []
    for phase, rows in compared.metric_cells(pair).items():
        if phase == STEP:
            cells += rows
        else:
            cells += [(phase,), *((_INDENT + name, *others) for name, *others in rows)]
    # Where not all fits in columns, the interval is the first thing to be left out.
    fewer = len(compared.METRICS)
    without = [row[:fewer] for row in cells]
    if _fits(headings, cells, width) or not _fits(headings[:fewer], without, width):
        return _fitted(headings, cells, width, left=(0,))
    return _fitted(headings[:fewer], without, width, left=(0,))


def _kernels(blame: Blame, pair: Pair, most: int, width: int) -> list[Line]:
    said = compared.kernels(blame, pair, most)
    found = _wrapped(said.title, width, "heading")
    found += _fitted(compared.KERNELS, said.cells, width, left=(0, 5))
    found += _wrapped(said.rest, width, "", _INDENT)
    for note in said.notes:
        found += _wrapped(note, width, "doubtful")
    return found


def _wrapped(text: str, width: int, tone: str, indent: str = "") -> list[Line]:
    return [Line(part, tone) for part in table.wrapped([text], width, indent)]


def _fitted(
    headings: Sequence[str], cells: Sequence[Sequence[str]], width: int, left: Sequence[int]
) -> list[Line]:
    """A table where it fits; else each row as its first cell, and the others wrapped below it.

    A last column without a heading may be wrapped below its row before that. A row of one cell
    stands above those that belong to it.
    """
    if not cells:
        return []
    wide = _widths(headings, cells)
    if _fits(headings, cells, width):
        return [
            Line(_aligned(row, wide, left), "heading" if not number or len(row) == 1 else "")
            for number, row in enumerate([headings, *cells])
        ]
    below = not headings[-1]
    columns = len(headings) - below
    if below and _fits(headings[:-1], [row[:-1] for row in cells], width):
        found = [Line(_aligned(headings[:-1], wide, left), "heading")]
        for row in cells:
            found.append(Line(_aligned(row[:-1], wide, left)))
            found += _wrapped(row[-1], width, "", _INDENT * 3)
        return found
    found = []
    for row in cells:
        name = row[0].lstrip()
        indent = _INDENT + " " * (len(row[0]) - len(name))
        found += _wrapped(f"{name}:", width, "" if row[1:] else "heading", indent)
        named = [f"{headings[i]} {row[i]}" for i in range(1, columns) if row[i:] and row[i] != "-"]
        found += _wrapped(", ".join([*named, *row[columns:]]), width, "", indent + _INDENT)
    return found


def _widths(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    return [
        max(len(row[i]) for row in [headings, *cells] if len(row) > i) for i in range(len(headings))
    ]


def _fits(headings: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> bool:
    wide = _widths(headings, cells)
    return len(_INDENT) + sum(wide) + len(_GAP) * (len(wide) - 1) <= width


def _aligned(row: Sequence[str], wide: Sequence[int], left: Sequence[int]) -> str:
    padded = (
        cell.ljust(wide[i]) if i in left else cell.rjust(wide[i]) for i, cell in enumerate(row)
    )
    return (_INDENT + _GAP.join(padded)).rstrip()
