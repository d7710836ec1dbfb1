"""The paper's window beside the step in which it was counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pytest_gpuperf.metrics import catalogue
from pytest_gpuperf.model import Measurement
from pytest_gpuperf.report import window as seen
from pytest_gpuperf.report.html import missing, paper
from pytest_gpuperf.report.html.figure import Cell, Figure, Plot, Shape, quantity, ratio
from pytest_gpuperf.report.html.subject import Subject

_METRICS = ("cycles", "instructions", "ipc")
_STEP, _WINDOW = "step, relative", "window, relative"


def window(subjects: Sequence[Subject]) -> Figure:
    """A chart per metric: what the step and what the window say of each configuration."""
    found = [(subject, seen.values(one)) for subject, one in _counted(subjects)]
    known = catalogue().metrics
    gpu = next((paper.GPUS.get(s.device.arch) for s, _ in found), None)
    published = f"paper, {gpu}"
    rows: list[tuple[Cell, ...]] = []
    for metric in _METRICS:
        for subject, values in found:
            value, whole = values.get(metric), subject.value(metric)
            if value is None:
                continue
            first, first_values = found[0]
            share = 100 * value / whole if known[metric].additive and whole else None
            paper_says = (
                paper.relative(metric, subject.configuration, gpu)
                if gpu and subject.first.suite == paper.SUITE
                else None
            )
            rows.append(
                (
                    metric,
                    subject.label,
                    quantity(whole, known[metric].unit),
                    quantity(value, known[metric].unit),
                    quantity(share, "%"),
                    ratio(whole, first.value(metric)),
                    ratio(value, first_values.get(metric)),
                    paper_says,
                )
            )
    return Figure(
        key="window",
        title="The paper's window beside the step that it is cut from",
        conclusion=_conclusion(found),
        columns=(
            "metric", "configuration", "step", "window", "share of the step", _STEP, _WINDOW,
            published if gpu else "paper",
        ),
        rows=tuple(rows),
        plot=Plot(
            Shape.BARS,
            name="configuration",
            values=(_STEP, _WINDOW, *([published] if gpu else [])),
            panel="metric",
            published=(published,) if gpu else (),
        )
        if rows
        else None,
        source="section 6.1",
        notes=tuple(
            f"{subject.label}: {seen.line(one)}" for subject, one in _counted(subjects)
        ),
        missing=""
        if found
        else f"This run has no window: measure with {missing.WINDOW}",
    )  # fmt: skip


def _counted(subjects: Sequence[Subject]) -> Iterator[tuple[Subject, Measurement]]:
    """Subjects of which a process counted the window, with that process."""
    for subject in subjects:
        for measurement in subject.measurements:
            if measurement.window is not None:
                yield subject, measurement
                break


def _conclusion(found: Sequence[tuple[Subject, Mapping[str, float]]]) -> str:
    """How much of the step's cycles the window has seen."""
    shares = []
    for subject, values in found:
        whole, value = subject.value("cycles"), values.get("cycles")
        if whole and value is not None:
            shares.append(f"{100 * value / whole:.2g} % of the cycles of {subject.label}")
    seen_of = f"The window saw {' and '.join(shares)}. " if shares else ""
    return (
        f"{seen_of}A window of so few launches says what a process begins with; the step says how "
        "fast it trains."
    )
