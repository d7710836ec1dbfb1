"""IPC against step time (the paper's figure 2)."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.metrics import catalogue
from pytest_gpuperf.report import numbers
from pytest_gpuperf.report.html import missing
from pytest_gpuperf.report.html.figure import Figure, Plot, Shape, quantity
from pytest_gpuperf.report.html.subject import Subject

_TIMES = ("step_time", "wall_time")
"""The time of a step, the best first: a run of a CPU has no step_time."""
_IPC = ("ipc", "cpu_ipc")


def ipc(subjects: Sequence[Subject]) -> Figure:
    """One point per configuration."""
    time = _first(subjects, _TIMES)
    rate = _first(subjects, _IPC)
    known = catalogue().metrics
    found = [
        (subject, subject.value(time), subject.value(rate))
        for subject in subjects
        if subject.value(time) is not None
    ]
    drawn = any(value is not None for _, _, value in found)
    conclusion = "To the left is faster; higher is busier."
    timed = [(t, s) for s, t, _ in found if t is not None]
    if timed:
        least, fastest = min(timed, key=lambda entry: entry[0])
        said = f"{fastest.label} is the fastest, {numbers.value(least, known[time].unit)} a step"
        conclusion = f"{said if len(timed) > 1 else 'To the left is faster'}. "
        conclusion += "A high IPC does not make a step fast: the work it does counts as well."
    return Figure(
        key="ipc-time",
        title="Instructions per cycle against the time of a step",
        conclusion=conclusion,
        columns=("configuration", "step time", "IPC"),
        rows=tuple(
            (s.label, quantity(t, known[time].unit), quantity(v, known[rate].unit))
            for s, t, v in found
        ),
        plot=Plot(
            Shape.POINTS, name="configuration", values=("step time", "IPC"), series="configuration"
        )
        if drawn
        else None,
        source="figure 2",
        notes=("The paper's figure 2 compares models, whose values it does not print.",),
        missing=missing.metrics(subjects, (time, rate)),
    )


def _first(subjects: Sequence[Subject], names: Sequence[str]) -> str:
    return next((n for n in names if any(s.value(n) is not None for s in subjects)), names[0])
