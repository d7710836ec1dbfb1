"""The paper's window beside the step in which it was counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.report.html import overview
from pytest_gpuperf.report.html.figure import (
    RATIO,
    Cell,
    Figure,
    Plot,
    Quantity,
    Shape,
    quantity,
    ratio,
)
from pytest_gpuperf.report.html.subject import FigureSubject
from pytest_gpuperf.report.text import protocol_lines as seen

_METRICS = ("cycles", "instructions", "ipc")
_STEP, _WINDOW = "step, relative", "window, relative"


def window(subjects: Sequence[FigureSubject]) -> Figure:
    """A chart per metric: what the step and what the window say of each configuration."""
    found = [(subject, seen.window_values(one)) for subject, one in _counted(subjects)]
    known = catalogue().metrics
    gpu = next((GPUS.get(s.device.arch) for s, _ in found), None)
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
                relative(metric, subject.configuration, gpu)
                if gpu and subject.first.suite == SUITE
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
            f"{subject.label}: {seen.window_line(one)}" for subject, one in _counted(subjects)
        ),
        missing=""
        if found
        else f"This run has no window: measure with {overview.WINDOW}",
    )  # fmt: skip


def _counted(subjects: Sequence[FigureSubject]) -> Iterator[tuple[FigureSubject, Measurement]]:
    """Subjects of which a process counted the window, with that process."""
    for subject in subjects:
        for measurement in subject.measurements:
            if measurement.window is not None:
                yield subject, measurement
                break


def _conclusion(found: Sequence[tuple[FigureSubject, Mapping[str, float]]]) -> str:
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


# What the ICPE '26 paper reports of Med-DDPM training (arXiv 2606.19365), to stand beside ours.
#
# Its protocol is another than ours: ncu counts 100 kernel launches after the first 10 of a process,
# kernel by kernel, and percentages are averages over these. Text is where the paper gives a range.

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


def absolute(what: str, configuration: str, gpu: str) -> Cell:
    """The paper's value of a percentage; None where it gives none."""
    return _cell(_ABSOLUTE, what, configuration, gpu, "%")


def relative(metric: str, configuration: str, gpu: str) -> Cell:
    """The paper's value relative to its Baseline; None where it gives none."""
    return _cell(_RELATIVE, metric, configuration, gpu, RATIO)


def _cell(
    values: Mapping[str, _Values], what: str, configuration: str, gpu: str, unit: str
) -> Cell:
    found = values.get(what, {}).get(gpu, {}).get(configuration)
    return Quantity(found, unit) if isinstance(found, float) else found
