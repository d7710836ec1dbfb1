"""The figures of what a trace shows: transfers, gaps, and the components of the step."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.report.html.figure import Cell, Figure, Plot, Shape, quantity, share
from pytest_gpuperf.report.html.subject import FigureSubject
from pytest_gpuperf.report.text.step_tables import (
    OUTSIDE,
    Component,
    ComponentTable,
    component_table,
)

ACTIVITY = "--gpuperf-metrics activity"
_TIMES = {
    "kernel_time": "kernels",
    "copy_time_h2d": "copies to the device",
    "copy_time_d2h": "copies to the host",
    "copy_time_d2d": "copies on the device",
}
_SHARES = {"gpu_idle": "idle", "copy_overlap": "copies under kernels"}
_BYTES = {
    "copy_time_h2d": ("copy_bytes_h2d_pinned", "copy_bytes_h2d_pageable"),
    "copy_time_d2h": ("copy_bytes_d2h_pinned", "copy_bytes_d2h_pageable"),
    "copy_time_d2d": ("copy_bytes_d2d",),
}
_SPAN = "gpu_span"


def transfers(subjects: Sequence[FigureSubject]) -> Figure:
    """A chart of kernels, of each direction of copies, of overlap and of idleness."""
    known = catalogue().metrics
    rows: list[tuple[Cell, ...]] = []
    for metric, name in _TIMES.items():
        # A direction in which nobody copies needs no chart.
        if not any(subject.value(metric) for subject in subjects):
            continue
        for subject in subjects:
            value = subject.value(metric)
            if value is None:
                continue
            rows.append(
                (
                    name,
                    subject.label,
                    quantity(value, known[metric].unit),
                    share(value, subject.value(_SPAN)),
                    quantity(_bytes(subject, metric), "bytes"),
                    _memory(subject, metric),
                )
            )
    for metric, name in _SHARES.items():
        rows += [
            (name, subject.label, quantity(subject.value(metric), "%"), None, None, None)
            for subject in subjects
            if subject.value(metric) is not None
        ]
    return Figure(
        key="transfers",
        title="Transfers and gaps: kernels, copies, and time in which the GPU does nothing",
        conclusion=_idlest(subjects),
        columns=("what", "configuration", "value", "share of the span", "bytes", "host memory"),
        rows=tuple(rows),
        plot=Plot(Shape.BARS, name="configuration", values=("value",), panel="what"),
        notes=(
            "From a trace of the step. The span is from the beginning of the first kernel, copy or "
            "fill to the end of the last; several at once count once, so that kernels and copies "
            "together may be longer. Idle is a share of the span, and copies under kernels are a "
            "share of the copies' time.",
        )
        if rows
        else (),
        missing="" if rows else _without_trace(subjects),
    )


def _idlest(subjects: Sequence[FigureSubject]) -> str:
    idle = [(value, s) for s in subjects if (value := s.value("gpu_idle")) is not None]
    if not idle:
        return "A GPU that waits for copies or for its host is not made faster by better kernels."
    most, worst = max(idle, key=lambda entry: entry[0])
    least, best = min(idle, key=lambda entry: entry[0])
    said = f"Of {worst.label}, the GPU does nothing in {units.value(most, '%')} of its span"
    if best is not worst:
        said += f", of {best.label} in {units.value(least, '%')}"
    return f"{said}: no kernel is to blame for that time, but a host that launches late or waits."


def _without_trace(subjects: Sequence[FigureSubject]) -> str:
    """Why there is no trace, or what takes one."""
    reasons = dict.fromkeys(
        entry.reason
        for subject in subjects
        for measurement in subject.measurements
        for entry in measurement.unsupported
        if entry.metric in _TIMES
    )
    if reasons:
        return f"Not available here: {'; '.join(reasons)}"
    if subjects and not any(
        catalogue().metrics[_SPAN].exists_on(subject.device.arch) for subject in subjects
    ):
        return "Not available here: without a GPU there is nothing to trace"
    return f"This run has no trace of the step: {ACTIVITY} takes one"


def _bytes(subject: FigureSubject, metric: str) -> float | None:
    values = [subject.value(name) for name in _BYTES.get(metric, ())]
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _memory(subject: FigureSubject, metric: str) -> Cell:
    """Which kind of the host's memory is at the other end."""
    named = [name for name in _BYTES.get(metric, ()) if subject.value(name)]
    return " and ".join(name.rpartition("_")[2] for name in named if "d2d" not in name) or None


def components(subjects: Sequence[FigureSubject]) -> Figure:
    """A bar per configuration, of its components one after the other."""
    known = [
        (subject, listed)
        for subject in subjects
        if (listed := component_table(subject.measurements)) is not None
    ]
    # Where all are graphs, in which nothing can be told apart, that is what there is to see.
    shown = [(subject, listed) for subject, listed in known if _inside(listed)] or known
    left_out = [subject.label for subject, listed in known if (subject, listed) not in shown]
    rows: list[tuple[Cell, ...]] = [
        (
            subject.label,
            entry.name,
            None if entry.empty else quantity(entry.time, listed.unit),
            None if entry.empty else quantity(entry.share, "%"),
            quantity(entry.launches, "launches"),
            quantity(entry.copy_time, "ns"),
        )
        for subject, listed in shown
        for entry in listed.entries
    ]
    notes: dict[str, list[str]] = {}
    for subject, listed in shown:
        for note in listed.notes:
            notes.setdefault(note, []).append(subject.label)
    if left_out:
        notes["left out here, since nothing was launched in a component"] = left_out
    return Figure(
        key="components",
        title="The components of the step: what each takes",
        conclusion=_longest_component(shown),
        columns=("configuration", "component", "time", "share of the step", "launches", "copies"),
        rows=tuple(rows),
        plot=Plot(Shape.STACK, name="configuration", values=("time",), series="component"),
        notes=tuple(f"{', '.join(labels)}: {note}" for note, labels in notes.items()),
        missing="" if rows else _without_components(subjects),
    )


def _longest_component(shown: Sequence[tuple[FigureSubject, ComponentTable]]) -> str:
    """Which component takes most, in the first subject that has any."""
    for subject, listed in shown:
        inside = _inside(listed)
        if inside:
            first = inside[0]
            part = "" if first.share is None else f", {first.share:.0f} % of it"
            return (
                f"{first.name} takes {units.value(first.time, listed.unit)} of {subject.label}"
                f"{part}: what is saved there counts most."
            )
    return "The longest component is where a saving counts most."


def _inside(listed: ComponentTable) -> list[Component]:
    """Those in which something was launched."""
    return [entry for entry in listed.entries if entry.name != OUTSIDE and not entry.empty]


def _without_components(subjects: Sequence[FigureSubject]) -> str:
    """What the run lacks: the set that hears components, or their marks."""
    traced = any(subject.value("launches") is not None for subject in subjects)
    by = "" if traced else f", and is measured with {ACTIVITY}"
    return f"This run has no components: a step names them by `with gpuperf.component(...)`{by}"
