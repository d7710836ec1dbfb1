"""Reports of ncu in the form of `stand_in_ncu_report`: real ones of an H200, and made-up ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_gpuperf.measure.ncu import report_reader
from tests import ROOT
from tests.measure import stand_in_ncu_report

DATA = ROOT / "tests" / "data" / "ncu"
KERNELS = DATA / "kernel-replay.ncu-rep"
NVTX = DATA / "nvtx-include.ncu-rep"
"""Four steps of the same four kernels, inside an NVTX range."""
RANGES = (DATA / "range-replay.ncu-rep", DATA / "app-range-replay.ncu-rep")
"""One step as one range."""

NAME = "device__attribute_display_name"
MAJOR, MINOR = (f"device__attribute_compute_capability_{part}" for part in ("major", "minor"))
TIME = "gpu__time_duration.sum"
CYCLES = "sm__cycles_elapsed.max"

KERNEL = {
    "name": "add(int, float)",
    "workload": "kernel",
    **{f"launch__grid_dim_{axis}": size for axis, size in (("x", "1024"), ("y", "2"), ("z", "1"))},
    **{f"launch__block_dim_{axis}": size for axis, size in (("x", "128"), ("y", "1"), ("z", "1"))},
    "launch__device_id": "0",
    "device__attribute_architecture": "not asked for",
    MAJOR: "9",
    MINOR: "0",
    NAME: "NVIDIA H200",
    TIME: "3000",
    "sm__cycles_active.sum": "500000",
    CYCLES: "5000",
    "sm__inst_executed.avg.per_cycle_active": "0.40",
    "sm__warps_active.avg.per_cycle_active": "8.00",
    "sm__warps_active.sum": "4000000",
    "smsp__inst_executed.sum": "200000",
    "l1tex__t_sector_hit_rate.pct": "50.25",
}
"""A kernel: its name, what it is, and its metrics and attributes."""

LONGER = {
    **KERNEL,
    "name": "mul",
    TIME: "30000",
    "sm__cycles_active.sum": "4500000",
    CYCLES: "50000",
    "sm__inst_executed.avg.per_cycle_active": "2.00",
    "sm__warps_active.avg.per_cycle_active": "16.00",
    "sm__warps_active.sum": "72000000",
    "smsp__inst_executed.sum": "9000000",
}
"""Another, of ten times the duration."""

RANGE = {**LONGER, "name": "range", "workload": "range"}
"""A whole step, of range replay."""


def without(kernel: Mapping[str, str], *names: str) -> dict[str, str]:
    """A kernel that lacks these."""
    return {name: text for name, text in kernel.items() if name not in names}


def page(*kernels: Mapping[str, str], fails: str = "") -> str:
    """A report with these kernels."""
    results = [
        {
            "name": kernel["name"],
            "workload": kernel["workload"],
            "texts": without(kernel, "name", "workload"),
        }
        for kernel in kernels
    ]
    return json.dumps({"results": results, "fails": fails})


def written(folder: Path, text: str, name: str = "step.ncu-rep") -> Path:
    """A file of this text."""
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def module(folder: Path) -> Path:
    """The folder with the stand-in for NVIDIA's module in it."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(stand_in_ncu_report.__file__, folder / "ncu_report.py")
    return folder


def read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has reports read by the stand-in in this process, which takes no time."""
    monkeypatch.setattr(
        report_reader,
        "load",
        lambda file, _, counters: report_reader.rows_of(stand_in_ncu_report, str(file), counters),
    )
