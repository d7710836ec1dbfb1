"""The phases of the step side by side."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.metrics import catalogue
from pytest_gpuperf.report.html.figure import Cell, Figure, Plot, Shape, quantity
from pytest_gpuperf.report.html.subject import Subject

_METRICS = (
    "cycles", "instructions", "ipc", "tensor_utilization", "dram_throughput", "flops", "operators",
)  # fmt: skip
"""What is shown of each phase, where it was measured."""


def phases(subjects: Sequence[Subject]) -> Figure:
    """A chart per metric, the phases of each configuration beside each other."""
    known = catalogue().metrics
    rows: list[tuple[Cell, ...]] = []
    for metric in _METRICS:
        for subject in subjects:
            whole = subject.value(metric)
            for phase in subject.phases:
                value = subject.value(metric, phase)
                if value is None:
                    continue
                share = value / whole * 100 if known[metric].additive and whole else None
                rows.append(
                    (
                        metric,
                        subject.label,
                        phase,
                        quantity(value, known[metric].unit),
                        quantity(share, "%"),
                    )
                )
    return Figure(
        key="phases",
        title="The phases of the step side by side",
        conclusion=_conclusion(subjects),
        columns=("metric", "configuration", "phase", "value", "share of the step"),
        rows=tuple(rows),
        plot=Plot(
            Shape.BARS, name="configuration", values=("value",), series="phase", panel="metric"
        )
        if rows
        else None,
        missing=""
        if rows
        else "This run has no phases: a step names them by `with gpuperf.phase(...)`",
    )


def _conclusion(subjects: Sequence[Subject]) -> str:
    """In which phase most cycles go, in the first subject that has them."""
    for subject in subjects:
        whole = subject.value("cycles")
        found = [(subject.value("cycles", phase), phase) for phase in subject.phases]
        known = [(value, phase) for value, phase in found if value is not None]
        if known and whole:
            value, phase = max(known)
            return (
                f"{phase} takes {100 * value / whole:.0f} % of the cycles of {subject.label}: what "
                "is saved there counts most."
            )
    return "The longest phase is where a saving counts most."
