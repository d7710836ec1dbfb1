"""A comparison as text: what it is of, metric by metric, kernel by kernel."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.judge.blamed import Blame
from pytest_gpuperf.judge.compared import Comparison, Pair
from pytest_gpuperf.model import STEP
from pytest_gpuperf.report import columns, compared
from pytest_gpuperf.report.line import Line

_INDENT = "  "


def lines(comparison: Comparison, *, kernels: int = 10, width: int = 80) -> list[Line]:
    """The text of a comparison, at most `width` wide.

    Of the kernels of each pair, the `kernels` whose times changed most; nothing at all for 0.
    """
    found: list[Line] = []
    for label, source in (("a", comparison.a), ("b", comparison.b)):
        found += columns.wrapped(f"{label}: {compared.source(source)}", width, "heading")
    shared = compared.shared_notes(comparison, kernels=kernels > 0)
    for note in shared:
        found += columns.wrapped(note, width, "doubtful")
    for pair in comparison.pairs:
        found += [Line(""), *_pair(pair, shared, kernels, width)]
    for label, alone in (("a", comparison.only_a), ("b", comparison.only_b)):
        if alone:
            found += [Line(""), Line(f"only in {label}:", "heading")]
        for entry in alone:
            found += columns.wrapped(compared.unpaired(entry), width, "doubtful", _INDENT)
    return found


def _pair(pair: Pair, shared: Sequence[str], kernels: int, width: int) -> list[Line]:
    found = columns.wrapped(compared.title(pair), width, "heading")
    for note in compared.notes(pair, kernels=kernels > 0):
        if note not in shared:
            found += columns.wrapped(note, width, "doubtful")
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
    if columns.fits(headings, cells, width) or not columns.fits(headings[:fewer], without, width):
        return columns.fitted(headings, cells, width, left=(0,))
    return columns.fitted(headings[:fewer], without, width, left=(0,))


def _kernels(blame: Blame, pair: Pair, most: int, width: int) -> list[Line]:
    said = compared.kernels(blame, pair, most)
    found = columns.wrapped(said.title, width, "heading")
    found += columns.fitted(compared.KERNELS, said.cells, width, left=(0, 5))
    found += columns.wrapped(said.rest, width, "", _INDENT)
    for note in said.notes:
        found += columns.wrapped(note, width, "doubtful")
    return found
