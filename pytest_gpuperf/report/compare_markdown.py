"""A comparison as Markdown, for pull requests and job summaries."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.judge.blamed import Blame
from pytest_gpuperf.judge.compared import Comparison, Pair
from pytest_gpuperf.model import STEP
from pytest_gpuperf.report import compared
from pytest_gpuperf.report.markdown import cell, row

_KERNELS = (*compared.KERNELS[:-1], "what happened")


def markdown(comparison: Comparison, *, kernels: int = 10) -> str:
    """A table per pair of measurements, and one of its kernels. Everything from outside is escaped.

    Of the kernels of each pair, the `kernels` whose times changed most; nothing at all for 0.
    """
    parts = ["# gpuperf compare", ""]
    for label, source in (("a", comparison.a), ("b", comparison.b)):
        parts.append(f"- {label}: {cell(compared.source(source))}")
    shared = compared.shared_notes(comparison, kernels=kernels > 0)
    parts += _listed(shared)
    for pair in comparison.pairs:
        parts += ["", f"## {cell(compared.title(pair))}"]
        notes = compared.notes(pair, kernels=kernels > 0)
        parts += _listed([note for note in notes if note not in shared])
        parts += _table(compared.metric_headings(pair), _metrics(pair), left=(0,))
        parts += _kernels(pair.blame, pair, kernels) if pair.blame and kernels else []
    for label, alone in (("a", comparison.only_a), ("b", comparison.only_b)):
        if alone:
            parts += ["", f"## Only in {label}"]
            parts += _listed([compared.unpaired(entry) for entry in alone])
    return "\n".join(parts) + "\n"


def _metrics(pair: Pair) -> list[tuple[str, ...]]:
    return [
        (name if phase == STEP else f"{name} ({phase})", *others)
        for phase, cells in compared.metric_cells(pair).items()
        for name, *others in cells
    ]


def _kernels(blame: Blame, pair: Pair, most: int) -> list[str]:
    said = compared.kernels(blame, pair, most)
    parts = ["", cell(said.title)]
    if said.cells:
        parts += _table(_KERNELS, said.cells, left=(0, 5))
    return parts + _listed([note for note in (said.rest, *said.notes) if note])


def _listed(texts: Sequence[str]) -> list[str]:
    return ["", *(f"- {cell(text)}" for text in texts)] if texts else []


def _table(
    headings: Sequence[str], cells: Sequence[Sequence[str]], left: Sequence[int]
) -> list[str]:
    sides = ("---" if i in left else "---:" for i in range(len(headings)))
    return ["", row(headings), f"| {' | '.join(sides)} |", *map(row, cells)]
