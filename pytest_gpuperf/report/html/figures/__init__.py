"""The figures of the report, in the order in which they stand there."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.report.html.figure import Figure
from pytest_gpuperf.report.html.figures import (
    activity_figures,
    kernel_figures,
    paper_figures,
    step_figures,
)
from pytest_gpuperf.report.html.subject import FigureSubject


def all_figures(subjects: Sequence[FigureSubject]) -> list[Figure]:
    """Every figure; one whose metrics the run lacks says which, and what collects them."""
    return [
        step_figures.ipc(subjects),
        step_figures.work(subjects),
        step_figures.counts(subjects),
        step_figures.phases(subjects),
        activity_figures.transfers(subjects),
        activity_figures.components(subjects),
        kernel_figures.mix(subjects),
        kernel_figures.convolutions(subjects),
        kernel_figures.longest(subjects),
        kernel_figures.ipc(subjects),
        kernel_figures.priority(subjects),
        step_figures.stack(subjects),
        step_figures.by_pipe(subjects),
        step_figures.by_sass(subjects),
        *(step_figures.metric_bars(subjects, key) for key in ("utilisation", "memory", "warps")),
        step_figures.stalls(subjects),
        kernel_figures.under_roofs(subjects),
        paper_figures.window(subjects),
    ]
