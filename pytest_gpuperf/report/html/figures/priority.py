"""Where work on kernels pays most: the priority score (figure 5, Equations 1 and 2)."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.derived.priority import THROUGHPUTS, priorities
from pytest_gpuperf.report.html import missing
from pytest_gpuperf.report.html.figure import Cell, Figure, Plot, Shape, quantity
from pytest_gpuperf.report.html.launched import family
from pytest_gpuperf.report.html.subject import Subject
from pytest_gpuperf.report.html.wording import of_each


def priority(subjects: Sequence[Subject]) -> Figure:
    """Time times estimated speedup by family, a chart per configuration."""
    rows: list[tuple[Cell, ...]] = []
    notes: list[str] = []
    said: list[tuple[str, str]] = []
    for subject in subjects:
        if subject.kernels is None:
            continue
        found = priorities(subject.kernels, family)
        notes += found.missing if found.families else ()
        rows += [
            (
                subject.label,
                one.family,
                quantity(one.score, found.unit),
                quantity(None if one.share is None else 100 * one.share, "%"),
                quantity(one.nanoseconds, "ns"),
                quantity(None if one.speedup is None else 100 * one.speedup, "%"),
                one.bottleneck,
                quantity(one.throughput, "%"),
                quantity(float(one.launches), "launches"),
            )
            for one in found.families
        ]
        if found.families:
            said.append((found.families[0].family, subject.label))
    first = f"Most could be gained from {of_each(said)}. " if said else ""
    return Figure(
        key="priority",
        title="Priority scores: where a faster kernel would save most time",
        conclusion=f"{first}The score is the time of each kernel times its estimated speedup, 1 at "
        "most; it says what a perfect kernel would save, not how hard it is to write.",
        columns=(
            "configuration", "family", "priority score", "share of the score", "time",
            "estimated speedup", "bottleneck", "of its peak", "launches",
        ),
        rows=tuple(rows),
        plot=Plot(
            Shape.BARS,
            name="family",
            values=("priority score",),
            series="family",
            panel="configuration",
        )
        if rows
        else None,
        source="figure 5",
        notes=(
            "Paper: normalization has the largest sum, then tensor-core GEMMs, then elementwise "
            "kernels.",
            *dict.fromkeys(notes),
        )
        if rows
        else (),
        missing=missing.metrics(subjects, THROUGHPUTS, per_kernel=True),
    )  # fmt: skip
