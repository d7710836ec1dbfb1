"""The figure of the paper's window, and what the ICPE '26 paper reports, to stand beside ours.

The paper (arXiv 2606.19365) reports of Med-DDPM training. Its protocol is another than ours: ncu
counts 100 kernel launches after the first 10 of a process, kernel by kernel, and percentages are
averages over these. Text is where the paper gives a range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.report.html.figure import (
    RATIO,
    Cell,
    Figure,
    Plot,
    Quantity,
    Shape,
    quantity,
    ratio,
    share,
)
from pytest_gpuperf.report.html.subject import WINDOW, FigureSubject
from pytest_gpuperf.report.text import protocol_lines

_METRICS = ("cycles", "instructions", "ipc")
_STEP, _WINDOW = "step, relative", "window, relative"

SUITE = "meddpm"
"""The suite that repeats the paper's workload."""
GPUS = {"sm70": "V100", "sm80": "A100", "sm90": "H100"}
"""The paper's GPU of an architecture."""
PROTOCOL = (
    "Paper: ICPE '26, its own GPUs, 100 kernel launches after the first 10 of a process under "
    "Nsight Compute, averaged over kernels. Here: the whole step"
)
IDS = {
    "baseline": "Baseline",
    "tf32": "OPT1",
    "channels_last": "OPT2",
    "tf32_channels_last": "OPT12",
}
"""What the paper calls our configurations."""

_B, _T, _C, _TC = IDS
_Values = Mapping[str, Mapping[str, float | str]]

_ABSOLUTE: Mapping[str, _Values] = {
    "tensor_utilization": {
        "V100": {_B: 0.0, _T: 0.0, _C: 0.0, _TC: 0.0},
        "A100": {_B: 1.4, _T: 9.98, _C: 1.59, _TC: 1.76},
        "H100": {_B: 1.44, _T: 7.81, _C: 1.47, _TC: 1.62},
    },
    "fma_utilization": {
        "V100": {_B: 23.63, _T: 23.6, _C: 9.65},
        "A100": {_B: 29.39, _T: 18.46, _C: 12.01, _TC: 11.69},
        "H100": {_B: 20.60, _T: 10.53, _C: 6.81, _TC: 6.66},
    },
    "int_alu_utilization": {
        "A100": {_B: 22.66, _T: 20.00},
        "H100": {_B: 21.38, _T: 18.11},
    },
    "sm_throughput": {
        "V100": {_B: 25.11, _T: 25.1, _C: 14.5, _TC: 14.5},
        "A100": {_B: 32.64, _T: 27.77, _C: 16.48, _TC: 16.16},
        "H100": {_B: 37.14, _T: 31.27, _C: 18.18, _TC: 17.60},
    },
    "l1_hit_rate": {
        "A100": {_B: 24.50, _T: 16.15, _C: 29.03, _TC: 27.84},
        "H100": {_B: 23.86, _T: 13.51},
    },
    "l2_hit_rate": {
        "V100": {_B: 56.03, _C: 81.57},
        "A100": {_B: 64.21, _T: 64.63, _C: 81.40},
        "H100": {_B: 64.10, _T: 62.44, _C: 85.47},
    },
    "dram_throughput": {
        "V100": {_B: 33.07, _C: 28.39},
        "A100": {_B: 29.95, _T: 36.55, _C: "15.14 to 15.15 %", _TC: "15.14 to 15.15 %"},
        "H100": {_B: 25.00, _T: 35.66, _C: "11.32 to 11.87 %", _TC: "11.32 to 11.87 %"},
    },
    "convolution and GEMM share": {
        "V100": {_B: 80.0, _T: 80.0},
        "A100": {_B: 91.0, _T: 43.0, _TC: 42.0},
        "H100": {_B: 78.0, _T: 31.0},
    },
}
"""Percentages."""

_FEWER = "x0.01 to x0.02"
_STALLS = "x0.03 to x0.10"
_RELATIVE: Mapping[str, _Values] = {
    "cycles": {
        "V100": {_B: 1.0, _T: 1.0},
        "A100": {_B: 1.0, _T: 0.18, _C: _FEWER},
        "H100": {_B: 1.0, _T: 0.39, _C: _FEWER},
    },
    "instructions": {
        "V100": {_B: 1.0, _T: 1.0},
        "A100": {_B: 1.0, _T: 0.09, _C: 0.01},
        "H100": {_B: 1.0, _T: 0.18, _C: 0.01},
    },
    "ipc": {
        "V100": {_B: 1.0, _T: 1.0},
        "A100": {_B: 1.0, _T: 1.02, _C: 1.07},
        "H100": {_B: 1.0, _T: 0.95, _C: 1.07},
    },
    "active_warps": {
        "V100": {_B: 1.0, _T: 1.00, _C: 1.40, _TC: 1.40},
        "A100": {_B: 1.0, _T: 1.00, _C: 1.40, _TC: 1.40},
        "H100": {_B: 1.0, _T: 1.15, _C: 1.30, _TC: 1.30},
    },
    "stall_long_scoreboard": {
        "A100": {_B: 1.0, _T: 0.74, _C: _STALLS, _TC: _STALLS},
        "H100": {_B: 1.0, _T: 1.45, _C: _STALLS, _TC: _STALLS},
    },
    "stall_math_pipe_throttle": {
        "A100": {_B: 1.0, _T: 0.08, _C: _STALLS, _TC: _STALLS},
        "H100": {_B: 1.0, _T: 0.52, _C: _STALLS, _TC: _STALLS},
    },
    "stall_branch_resolving": {
        "A100": {_B: 1.0, _T: 0.08, _C: _STALLS, _TC: _STALLS},
        "H100": {_B: 1.0, _T: 1.38, _C: _STALLS, _TC: _STALLS},
    },
}
"""Relative to the paper's Baseline."""


def window(subjects: Sequence[FigureSubject]) -> Figure:
    """A chart per metric: what the step and what the window say of each configuration."""
    counted = _counted(subjects)
    values = [protocol_lines.window_values(measurement) for _, measurement in counted]
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
    return Figure(
        key="window",
        title="The paper's window beside the step that it is cut from",
        conclusion=_conclusion(counted, values),
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
        ),
        source="section 6.1",
        notes=tuple(f"{s.label}: {protocol_lines.window_line(m)}" for s, m in counted),
        missing="" if counted else f"This run has no window: measure with {WINDOW}",
    )  # fmt: skip


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
    return (
        f"{seen}A window of so few launches says what a process begins with; the step says how "
        "fast it trains."
    )


Published = Callable[[str, FigureSubject, str], Cell]
"""What the paper gives of something, of a subject's configuration, on one of its GPUs."""


def absolute(what: str, subject: FigureSubject, gpu: str) -> Cell:
    """The paper's value of a percentage; None where it gives none."""
    return _cell(_ABSOLUTE, what, subject, gpu, "%")


def relative(what: str, subject: FigureSubject, gpu: str) -> Cell:
    """The paper's value relative to its Baseline; None where it gives none."""
    return _cell(_RELATIVE, what, subject, gpu, RATIO)


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


def _cell(
    values: Mapping[str, _Values], what: str, subject: FigureSubject, gpu: str, unit: str
) -> Cell:
    if subject.result.first.suite != SUITE:
        return None
    value = values.get(what, {}).get(gpu, {}).get(subject.configuration)
    return Quantity(value, unit) if isinstance(value, float) else value
