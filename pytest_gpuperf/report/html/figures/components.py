"""The components of the step: what each takes, by configuration."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.report import components as found_in
from pytest_gpuperf.report import numbers
from pytest_gpuperf.report.components import OUTSIDE, Component, Components
from pytest_gpuperf.report.html.figure import Cell, Figure, Plot, Shape, quantity
from pytest_gpuperf.report.html.figures.transfers import ACTIVITY
from pytest_gpuperf.report.html.subject import Subject


def components(subjects: Sequence[Subject]) -> Figure:
    """A bar per configuration, of its components one after the other."""
    known = [
        (subject, listed)
        for subject in subjects
        if (listed := found_in.components(subject.measurements)) is not None
    ]
    # Where all are graphs, in which nothing can be told apart, that is what there is to see.
    found = [(subject, listed) for subject, listed in known if _inside(listed)] or known
    left_out = [subject.label for subject, listed in known if (subject, listed) not in found]
    rows: list[tuple[Cell, ...]] = [
        (
            subject.label,
            entry.name,
            None if entry.empty else quantity(entry.time, listed.unit),
            None if entry.empty else quantity(entry.share, "%"),
            quantity(entry.launches, "launches"),
            quantity(entry.copy_time, "ns"),
        )
        for subject, listed in found
        for entry in listed.entries
    ]
    notes: dict[str, list[str]] = {}
    for subject, listed in found:
        for note in listed.notes:
            notes.setdefault(note, []).append(subject.label)
    if left_out:
        notes["left out here, since nothing was launched in a component"] = left_out
    return Figure(
        key="components",
        title="The components of the step: what each takes",
        conclusion=_conclusion(found),
        columns=("configuration", "component", "time", "share of the step", "launches", "copies"),
        rows=tuple(rows),
        plot=Plot(Shape.STACK, name="configuration", values=("time",), series="component")
        if rows
        else None,
        notes=tuple(f"{', '.join(labels)}: {note}" for note, labels in notes.items()),
        missing="" if rows else _missing(subjects),
    )


def _conclusion(found: Sequence[tuple[Subject, Components]]) -> str:
    """Which component takes most, in the first subject that has any."""
    for subject, listed in found:
        inside = _inside(listed)
        if inside:
            first = inside[0]
            share = "" if first.share is None else f", {first.share:.0f} % of it"
            return (
                f"{first.name} takes {numbers.value(first.time, listed.unit)} of {subject.label}"
                f"{share}: what is saved there counts most."
            )
    return "The longest component is where a saving counts most."


def _inside(listed: Components) -> list[Component]:
    """Those in which something was launched."""
    return [entry for entry in listed.entries if entry.name != OUTSIDE and not entry.empty]


def _missing(subjects: Sequence[Subject]) -> str:
    """What the run lacks: the set that hears components, or their marks."""
    traced = any(subject.value("launches") is not None for subject in subjects)
    by = "" if traced else f", and is measured with {ACTIVITY}"
    return f"This run has no components: a step names them by `with gpuperf.component(...)`{by}"
