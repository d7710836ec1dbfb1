"""Runs to make reports of: the committed ones, and one in which every figure has its metrics."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from pytest_gpuperf.model.measurement import Sample
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.report.html.page import page
from pytest_gpuperf.storage import run_files
from tests import ROOT

DOCS = ROOT / "docs" / "runs"
COMMITTED = (
    "h200-meddpm.json",
    "h200-paper.json.xz",
    "h200-tf32-broken.json.xz",
    "h200-paper-window.json.xz",
    "collectors/cupti.json.xz",
    "cpu-meddpm.json",
)
CONFIGURATIONS = (
    "baseline", "tf32", "channels_last", "tf32_channels_last", "bf16", "bf16_compiled",
    "bf16_channels_last", "fp8",
)  # fmt: skip

_ACTIVITY = {
    "kernel_time": 8e6, "launches": 300.0, "graph_launches": 1.0, "gpu_span": 1e7, "gpu_idle": 12.5,
    "launch_gaps": 2e6, "launch_gap_median": 1400.0, "copies": 9.0, "copy_bytes_h2d_pinned": 4e6,
    "copy_bytes_h2d_pageable": 2e6, "copy_bytes_d2h_pinned": 0.0, "copy_bytes_d2h_pageable": 1e6,
    "copy_bytes_d2d": 0.0, "copy_time_h2d": 5e5, "copy_time_d2h": 2e5, "copy_time_d2d": 0.0,
    "copy_overlap": 35.0,
}  # fmt: skip
_COUNTS = {
    "flops": 3.2e10, "operators": 3501.0, "layout_copies": 48.0, "layout_copy_bytes": 1.5e8,
    "saved_bytes": 3.4e7, "peak_memory": 1.8e8,
}  # fmt: skip
_COMPONENTS = {"layer_norm": (2e6, 60.0), "conv2d": (5e6, 40.0), "extract": (0.0, 0.0)}
"""Time of the kernels, in ns, and launches: the longest stands in the middle."""


@cache
def committed(name: str) -> Run:
    """A run of docs/runs."""
    return run_files.load(DOCS / name)


@cache
def rendered(name: str) -> str:
    """The page of a committed run."""
    return page(committed(name), name)


@cache
def full(configurations: int = 8) -> Run:
    """A run in which every figure has its metrics.

    The paper's set, measured on an H200, with a window that was counted there;
    beyond the fourth, configurations begin again.
    """
    paper = committed("h200-paper.json.xz")
    window = committed("h200-paper-window.json.xz").measurements[0].window
    measurements = []
    for number, configuration in enumerate(CONFIGURATIONS[:configurations]):
        measured = paper.measurements[number % 4]
        measurements.append(
            replace(
                measured,
                configuration=configuration,
                test=f"suites/meddpm/test_training.py::test_training_step[{configuration}]",
                samples=(*measured.samples, *_activity(1 + number / 10)),
                window=window,
                components=tuple(_COMPONENTS),
            )
        )
    return replace(paper, measurements=tuple(measurements), attributions=())


def _activity(slower: float) -> tuple[Sample, ...]:
    """What a trace has shown of the step and of its components, and what is counted on a CPU."""
    step = [
        Sample("step", name, (value * slower,)) for name, value in (_ACTIVITY | _COUNTS).items()
    ]
    for name, (time, launches) in _COMPONENTS.items():
        step.append(Sample(name, "kernel_time", (time * slower,)))
        step.append(Sample(name, "launches", (launches,)))
        step.append(Sample(name, "copy_time_h2d", (0.0,)))
    return tuple(step)
