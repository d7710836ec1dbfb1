"""The components of a step: each with its share of the step's kernel time, and what is outside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.report.text.step_tables import Values

OUTSIDE = "(outside)"
"""The row for time outside all components."""
_TIME = "kernel_time"
_COPY_TIMES = ("copy_time_h2d", "copy_time_d2h", "copy_time_d2d")


@dataclass(frozen=True, slots=True)
class ComponentRow:
    """One component of a measurement over all processes."""

    name: str
    time: float
    """Nanoseconds of its kernels."""
    share: float | None
    """The share of the step's time, in percent."""
    launches: float | None
    copy_time: float | None
    """The time of copies in all directions, added up."""

    @property
    def empty(self) -> bool:
        """Whether it has no launches and no copies, so that its time is undefined and not 0."""
        return self.launches == 0 and not self.copy_time


def component_rows(names: Sequence[str], values: Values) -> list[ComponentRow]:
    """The components of these names, the longest first, the time outside them last; [] for none."""
    inside = [
        ComponentRow(
            name,
            values[name, _TIME],
            _share(values[name, _TIME], values),
            values.get((name, "launches")),
            _copy_time(values, name),
        )
        for name in names
        if (name, _TIME) in values
    ]
    inside.sort(key=lambda row: -row.time)
    return [*inside, *(_outside(inside, values) if inside else ())]


def _outside(inside: Sequence[ComponentRow], values: Values) -> Iterator[ComponentRow]:
    """The part of the step outside its components, if it has launches.

    With kernels on several streams at once, components can add up to more than the step.
    """
    time = max(0.0, values.get((STEP, _TIME), 0.0) - sum(row.time for row in inside))
    left = values.get((STEP, "launches"), 0.0) - sum(row.launches or 0.0 for row in inside)
    copies = _copy_time(values, STEP)
    other = None if copies is None else max(0.0, copies - sum(r.copy_time or 0.0 for r in inside))
    if left:
        yield ComponentRow(OUTSIDE, time, _share(time, values), left, other)


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


def _copy_time(values: Values, part: str) -> float | None:
    times = [values[part, name] for name in _COPY_TIMES if (part, name) in values]
    return sum(times) if times else None


def _share(time: float, values: Values) -> float | None:
    whole = values.get((STEP, _TIME))
    return 100 * time / whole if whole else None
