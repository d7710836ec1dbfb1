"""Traces of a step, and the metrics that they give: of the whole, and of each component."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pytest_gpuperf.collect import activity, trace
from pytest_gpuperf.collect.activities import Activity, activities
from pytest_gpuperf.collect.base import Plan, Work, each
from pytest_gpuperf.collect.components import Annotations, checked
from pytest_gpuperf.collect.cupti.timing import DeviceTimer
from pytest_gpuperf.collect.execution import Series, prepare
from pytest_gpuperf.collect.trace import Event
from pytest_gpuperf.model import STEP, Scalar, Unsupported

TRACES = 3
"""Executions that are traced for the step, and as many again for its components."""
NOTHING = (
    "the trace of the step has no kernel, copy or fill: torch.profiler sees nothing while another "
    "profiler (nsys, ncu) watches the process, or the step uses no GPU"
)


class Tracing(Protocol):
    """`trace.events`, or a script in its place."""

    def __call__(
        self, step: Callable[[], object], synchronize: Callable[[], None], *, host: bool = False
    ) -> list[Event]:
        """The events of one execution; with `host`, those that the program annotated as well."""
        ...


@dataclass(frozen=True)
class Active:
    """What the traces have shown."""

    series: Series = field(default_factory=dict)
    unsupported: tuple[Unsupported, ...] = ()
    components: tuple[str, ...] = ()
    settings: dict[str, Scalar] = field(default_factory=dict)


def measured(
    work: Work,
    plan: Plan,
    phases: Sequence[str],
    timer: DeviceTimer,
    traced: Tracing = trace.events,
) -> Active:
    """The metrics of `plan.activity`: one value per trace. Nothing where none is asked for.

    Components take executions of their own, since a trace that knows them slows the host down. The
    first of these is made in any case: it tells whether there are components, and takes along what
    a profiler does once. Raises MeasurementError for components that cannot be told apart, and what
    the step raises.
    """
    if not plan.activity:
        return Active()
    names, parts = _in_components(work, phases, timer, traced)
    wholes = []
    for _ in each(work.progress, "tracing", TRACES, after=None):
        prepare(work, timer)
        wholes.append(activities(traced(work.step, timer.synchronize)))
    if not all(wholes):
        missing = tuple(Unsupported(metric.name, NOTHING) for metric in plan.activity)
        return Active(unsupported=missing, settings={"traces": 0})
    wanted = {metric.name for metric in plan.activity}
    series: Series = {}
    for found in wholes:
        _append(series, STEP, activity.whole(found), wanted)
    for name in names:
        for launched in parts:
            _append(series, name, activity.part(launched[name]), wanted)
    # A share of nothing is no number: some of the traces may have had nothing to copy.
    series = {key: values for key, values in series.items() if len(values) == TRACES}
    return Active(series, components=names, settings={"traces": TRACES})


def _in_components(
    work: Work, phases: Sequence[str], timer: DeviceTimer, traced: Tracing
) -> tuple[tuple[str, ...], list[dict[str, list[Activity]]]]:
    """The step's components, and what each launched, in each execution that was traced for it."""
    heard: list[list[str]] = []
    found: list[dict[str, list[Activity]]] = []
    for _ in each(work.progress, "tracing components", TRACES, after=None):
        prepare(work, timer)
        listener = Annotations()
        with work.components.heard_by(listener):
            events = traced(work.step, timer.synchronize, host=True)
        heard.append(listener.names)
        if not any(heard):
            break
        ran = activities(events)
        found.append(
            {
                name: [entry for entry in ran if entry.component == number]
                for name, number in listener.numbers.items()
            }
        )
    return checked(heard, phases), found


def _append(series: Series, part: str, values: dict[str, float], wanted: set[str]) -> None:
    for name, value in values.items():
        if name in wanted:
            series.setdefault((part, name), []).append(value)
