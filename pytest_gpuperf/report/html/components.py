"""The components of a step: each with its share of the step's kernel time, and what is outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.report.text.step_tables import Values

OUTSIDE = "(outside)"
"""The row for time outside all components."""
TIME = "kernel_time"
_COPY_TIMES = ("copy_time_h2d", "copy_time_d2h", "copy_time_d2d")


@dataclass(frozen=True, slots=True)
class ComponentRow:
    """One component of a measurement over all processes."""

    name: str
    time: float
    """Nanoseconds of its kernels."""
    launches: float | None
    copy_time: float | None
    """The time of copies in all directions, added up."""

    @property
    def empty(self) -> bool:
        """Whether it has no launches and no copies, so that its time is undefined and not 0."""
        return self.launches == 0 and not self.copy_time


def component_rows(names: Sequence[str], values: Values) -> list[ComponentRow]:
    """The components of these names, the longest first, the time outside them last; [] for none.

    With kernels on several streams at once, components can add up to more than the step.
    """
    inside = [_row(name, values) for name in names if (name, TIME) in values]
    step = _row(STEP, values)
    left = (step.launches or 0.0) - sum(row.launches or 0.0 for row in inside)
    time = max(0.0, step.time - sum(row.time for row in inside))
    copies = step.copy_time
    if copies is not None:
        copies = max(0.0, copies - sum(row.copy_time or 0.0 for row in inside))
    outside = [ComponentRow(OUTSIDE, time, left, copies)] if inside and left else []
    return [*sorted(inside, key=lambda row: -row.time), *outside]


def _row(name: str, values: Values) -> ComponentRow:
    times = [values[name, metric] for metric in _COPY_TIMES if (name, metric) in values]
    time, launches = values.get((name, TIME), 0.0), values.get((name, "launches"))
    return ComponentRow(name, time, launches, sum(times) if times else None)


def graph_note(values: Values) -> str:
    """The component that the kernels of CUDA graphs belong to; "" without graphs."""
    graphs = round(values.get((STEP, "graph_launches"), 0.0))
    if not graphs:
        return ""
    return (
        f"{graphs} of the launches {'are CUDA graphs' if graphs > 1 else 'is a CUDA graph'}: its "
        "kernels belong to the component that launches the graph, not to the component that was "
        "open at its capture"
    )
