"""Runs to make reports of: the committed ones, and one in which every figure has its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from pytest_gpuperf import runs
from pytest_gpuperf.derived.classes import PIPES, SASS
from pytest_gpuperf.derived.roofline import OPCODES
from pytest_gpuperf.model import KernelTable, Launch, Measurement, Run, Sample

DOCS = Path(__file__).parents[3] / "docs" / "runs"
COMMITTED = (
    "h200-meddpm.json",
    "h200-paper-set.json",
    "h200-tf32-broken.json.xz",
    "h200-paper-window.json.xz",
    "collectors/cupti.json.xz",
    "cpu-meddpm.json",
)
CONFIGURATIONS = (
    "baseline", "tf32", "channels_last", "tf32_channels_last", "bf16", "bf16_compiled",
    "bf16_channels_last", "fp8",
)  # fmt: skip

# Shares of a kernel's instructions, and percentages: invented, so that figures have something.
_PIPES = {
    "pipe_fma": 0.25, "pipe_fp16": 0.02, "pipe_fp64": 0.0, "pipe_alu": 0.3, "pipe_lsu": 0.2,
    "pipe_tex": 0.0, "pipe_cbu": 0.05, "pipe_adu": 0.02, "pipe_uniform": 0.06, "pipe_tensor": 0.04,
    "pipe_xu": 0.01,
}  # fmt: skip
_SASS = {
    "sass_fp32": 8.0, "sass_fp16": 0.5, "sass_fp64": 0.0, "sass_integer": 9.0, "sass_bit": 1.0,
    "sass_memory": 5.0, "sass_control": 2.0, "sass_uniform": 1.0, "sass_conversion": 0.5,
    "sass_communication": 0.3, "sass_misc": 2.0, "sass_fadd": 1.0, "sass_fmul": 1.0,
    "sass_ffma": 6.0, "sass_hadd": 0.0, "sass_hmul": 0.0, "sass_hfma": 0.0, "sass_dadd": 0.0,
    "sass_dmul": 0.0, "sass_dfma": 0.0, "tensor_ops_fp16": 0.0, "tensor_ops_bf16": 0.0,
    "tensor_ops_fp8": 0.0,
}  # fmt: skip
# What this architecture may not have is there too, and counts nothing.
_PIPES |= {name: 0.0 for name in PIPES if name not in _PIPES}
_SASS |= {
    name: 0.0
    for name in (*SASS, *(name for weights in OPCODES.values() for name in weights))
    if name not in _SASS
}
_TENSOR = 0.05
"""Of the chip's TF32 operations per nanosecond and per cent of the tensor cores' utilization."""
_ACTIVITY = {
    "kernel_time": 8e6, "launches": 300.0, "graph_launches": 1.0, "gpu_span": 1e7, "gpu_idle": 12.5,
    "launch_gaps": 2e6, "launch_gap_median": 1400.0, "copies": 9.0, "copy_bytes_h2d_pinned": 4e6,
    "copy_bytes_h2d_pageable": 2e6, "copy_bytes_d2h_pinned": 0.0, "copy_bytes_d2h_pageable": 1e6,
    "copy_bytes_d2d": 0.0, "copy_time_h2d": 5e5, "copy_time_d2h": 2e5, "copy_time_d2d": 0.0,
    "copy_overlap": 35.0,
}  # fmt: skip
_COMPONENTS = {"layer_norm": (2e6, 60.0), "conv2d": (5e6, 40.0), "extract": (0.0, 0.0)}
"""Time of the kernels, in ns, and launches: the longest stands in the middle."""


@cache
def committed(name: str) -> Run:
    """A run of docs/runs."""
    return runs.load(DOCS / name)


@cache
def full(configurations: int = 8) -> Run:
    """A run in which every figure has its metrics: measured where they were, the rest invented.

    Each configuration has the kernels of docs/runs/collectors/cupti.json.xz, the first four the
    values of docs/runs/h200-paper-set.json and verdicts of the same.
    """
    judged = committed("h200-paper-set.json")
    window = committed("h200-paper-window.json.xz").measurements[0].window
    table = committed("collectors/cupti.json.xz").measurements[0].kernels
    assert table is not None
    measurements = []
    for number, configuration in enumerate(CONFIGURATIONS[:configurations]):
        measured = judged.measurements[number % 4]
        measurements.append(
            replace(
                measured,
                configuration=configuration,
                test=f"suites/meddpm/test_training.py::test_training_step[{configuration}]",
                kernels=_enriched(table, 1 + number / 10),
                samples=(*measured.samples, *_counts(measured), *_activity(1 + number / 10)),
                window=window,
                components=tuple(_COMPONENTS),
            )
        )
    return replace(judged, measurements=tuple(measurements), blames=())


def _activity(slower: float) -> tuple[Sample, ...]:
    """What a trace has shown of the step and of its components."""
    step = [Sample("step", name, (value * slower,)) for name, value in _ACTIVITY.items()]
    for name, (time, launches) in _COMPONENTS.items():
        step.append(Sample(name, "kernel_time", (time * slower,)))
        step.append(Sample(name, "launches", (launches,)))
        step.append(Sample(name, "copy_time_h2d", (0.0,)))
    return tuple(step)


def _counts(measured: Measurement) -> tuple[Sample, ...]:
    """Instructions of the whole step by kind."""
    found = {s.metric: s.values for s in measured.samples if s.phase == "step"}
    shares: Mapping[str, float] = {**_PIPES, **_SASS}
    return tuple(
        Sample("step", name, tuple(share * value for value in found["instructions"]))
        for name, share in shares.items()
    )


def _enriched(table: KernelTable, slower: float) -> KernelTable:
    """The same launches, `slower` times as long, with every metric that a figure wants."""
    at = {name: position for position, name in enumerate(table.metrics)}
    throughputs = {"memory_throughput": 0.7, "l1_throughput": 0.5, "l2_throughput": 0.4}
    added = (*_PIPES, *_SASS, "tensor_ops_tf32", *throughputs)

    def enriched(launch: Launch, number: int) -> Launch:
        if not launch.values:
            return replace(launch, duration=slower * launch.duration)
        instructions = launch.values[at["instructions"]] or 0.0
        busy = launch.values[at["sm_throughput"]] or 0.0
        tensor = launch.values[at["tensor_utilization"]] or 0.0
        wobble = 1 + (number % 7) / 20
        values = [share * instructions * wobble / 1.3 for share in _PIPES.values()]
        values += [share * instructions * wobble for share in _SASS.values()]
        values += [_TENSOR * tensor * launch.duration * 1e5]
        values += [share * busy for share in throughputs.values()]
        return replace(launch, duration=slower * launch.duration, values=(*launch.values, *values))

    return replace(
        table,
        metrics=(*table.metrics, *added),
        launches=tuple(enriched(launch, n) for n, launch in enumerate(table.launches)),
    )
