"""The figures of the report, in the order in which they stand there."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.report.html.figure import Figure
from pytest_gpuperf.report.html.figures import (
    components,
    instructions,
    kernels,
    metrics,
    phases,
    priority,
    roofline,
    time,
    timeline,
    transfers,
    window,
)
from pytest_gpuperf.report.html.subject import Subject


def all_figures(subjects: Sequence[Subject]) -> list[Figure]:
    """Every figure; one whose metrics the run lacks says which, and what collects them."""
    return [
        time.ipc(subjects),
        metrics.work(subjects),
        phases.phases(subjects),
        timeline.over_the_step(subjects),
        transfers.transfers(subjects),
        components.components(subjects),
        kernels.mix(subjects),
        kernels.convolutions(subjects),
        kernels.longest(subjects),
        kernels.ipc(subjects),
        priority.priority(subjects),
        instructions.stack(subjects),
        instructions.by_pipe(subjects),
        instructions.by_sass(subjects),
        metrics.utilisation(subjects),
        metrics.memory(subjects),
        metrics.warps(subjects),
        metrics.stalls(subjects),
        roofline.under_roofs(subjects),
        window.window(subjects),
    ]
