"""What the ICPE '26 paper reports of Med-DDPM training (arXiv 2606.19365), to stand beside ours.

Its protocol is another than ours: ncu counts 100 kernel launches after the first 10 of a process,
kernel by kernel, and percentages are averages over these. Text is where the paper gives a range.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_gpuperf.report.html.figure import RATIO, Cell, Quantity

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
