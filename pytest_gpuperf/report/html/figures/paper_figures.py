"""The figure of the paper's window, and what the ICPE '26 paper reports, to stand beside ours.

The paper (arXiv 2606.19365) reports of Med-DDPM training. Its protocol is another than ours: ncu
counts 100 kernel launches after the first 10 of a process, kernel by kernel, and percentages are
averages over these. Text is where the paper gives a range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pytest_gpuperf.catalogue import yaml_table
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.report.html.figure import (
    RATIO,
    Cell,
    Figure,
    Quantity,
    described,
    description,
    quantity,
    ratio,
    share,
)
from pytest_gpuperf.report.html.subject import NO_GPU, WINDOW, FigureSubject, portable
from pytest_gpuperf.report.text import step_tables

_METRICS = ("cycles", "instructions", "ipc")

SUITE = "meddpm"
"""The suite that repeats the paper's workload."""
GPUS = {"sm70": "V100", "sm80": "A100", "sm90": "H100"}
"""The paper's GPU of an architecture."""
PROTOCOL = (
    "Paper: ICPE '26, its own GPUs, 100 kernel launches after the first 10 of a process under "
    "Nsight Compute, averaged over kernels. Here: the whole step"
)
_VALUES = Path(__file__).with_name("paper_values.yaml")


def window(subjects: Sequence[FigureSubject]) -> Figure:
    """A chart per metric: what the step and what the window say of each configuration."""
    counted = _counted(subjects)
    values = [step_tables.window_values(measurement) for _, measurement in counted]
    known = catalogue().metrics
    gpu = next((GPUS.get(subject.device.arch) for subject, _ in counted), None)
    published = column(gpu or "")
    rows: list[tuple[Cell, ...]] = []
    for metric in _METRICS:
        unit = known[metric].unit
        for (subject, _), window_values in zip(counted, values, strict=True):
            value, whole = window_values.get(metric), subject.value(metric)
            if value is None:
                continue
            rows.append(
                (
                    metric,
                    subject.label,
                    quantity(whole, unit),
                    quantity(value, unit),
                    share(value, whole) if known[metric].additive else None,
                    ratio(whole, counted[0][0].value(metric)),
                    ratio(value, values[0].get(metric)),
                    relative(metric, subject, gpu) if gpu else None,
                )
            )
    return described(
        "window",
        rows,
        conclusion=_conclusion(counted, values),
        columns=[published if gpu else "paper"],
        values=[published] if gpu else [],
        published=(published,) if gpu else (),
        notes=(f"{s.label}: {step_tables.window_line(m)}" for s, m in counted),
        missing=_without_window(subjects) if not counted else "",
    )


def _without_window(subjects: Sequence[FigureSubject]) -> str:
    if portable(subjects):
        return f"{NO_GPU} there is no window of launches"
    return f"This run has no window: measure with {WINDOW}"


def _counted(subjects: Sequence[FigureSubject]) -> list[tuple[FigureSubject, Measurement]]:
    """Subjects of which a process counted the window, with the first such process."""
    first = [(s, next((m for m in s.measurements if m.window), None)) for s in subjects]
    return [(subject, measurement) for subject, measurement in first if measurement]


def _conclusion(
    counted: Sequence[tuple[FigureSubject, Measurement]], values: Sequence[Mapping[str, float]]
) -> str:
    """How much of the step's cycles the window has seen."""
    shares = []
    for (subject, _), window_values in zip(counted, values, strict=True):
        whole, value = subject.value("cycles"), window_values.get("cycles")
        if whole and value is not None:
            shares.append(f"{100 * value / whole:.2g} % of the cycles of {subject.label}")
    seen = f"The window saw {' and '.join(shares)}. " if shares else ""
    return f"{seen}{description('window')['conclusion']}"


Published = Callable[[str, FigureSubject, str], Cell]
"""What the paper gives of something, of a subject's configuration, on one of its GPUs."""


def absolute(what: str, subject: FigureSubject, gpu: str) -> Cell:
    """The paper's value of a percentage; None where it gives none."""
    return _cell("absolute", what, subject, gpu, "%")


def relative(what: str, subject: FigureSubject, gpu: str) -> Cell:
    """The paper's value relative to its Baseline; None where it gives none."""
    return _cell("relative", what, subject, gpu, RATIO)


def gpus_of(entries: Sequence[tuple[str, FigureSubject]], find: Published) -> list[str]:
    """The paper's GPUs of which it gives any of these values."""
    return [
        gpu
        for gpu in GPUS.values()
        if any(find(what, subject, gpu) is not None for what, subject in entries)
    ]


def column(gpu: str) -> str:
    """The title of the column of one of the paper's GPUs."""
    return f"paper, {gpu}"


def drawn_columns(gpus: Sequence[str], subjects: Sequence[FigureSubject]) -> tuple[str, ...]:
    """The columns of those GPUs that are of the architecture of a subject."""
    own = {GPUS.get(subject.device.arch) for subject in subjects}
    return tuple(column(gpu) for gpu in gpus if gpu in own)


def _cell(scale: str, what: str, subject: FigureSubject, gpu: str, unit: str) -> Cell:
    if subject.result.first.suite != SUITE:
        return None
    values = yaml_table(_VALUES)[scale].get(what, {})
    value: float | str | None = values.get(gpu, {}).get(subject.configuration)
    return Quantity(value, unit) if isinstance(value, float) else value
