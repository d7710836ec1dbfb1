"""Raw pages of ncu: the real ones of an H200, and made-up ones in their form."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import ROOT

DATA = ROOT / "tests" / "data" / "ncu"
KERNELS = DATA / "kernel-replay.csv"
NVTX = DATA / "nvtx-include.csv"
"""Four steps of the same four kernels, inside an NVTX range."""
RANGES = (DATA / "range-replay.csv", DATA / "app-range-replay.csv")
"""One step as one range."""

NAME = "device__attribute_display_name"
COLUMNS = {
    "ID": "",
    "Process ID": "",
    "Kernel Name": "",
    "Stream": "",
    "Block Size": "",
    "Grid Size": "",
    "Device": "",
    "CC": "",
    NAME: "",
    "gpu__time_duration.sum": "ns",
    "sm__cycles_active.sum": "cycle",
    "sm__cycles_elapsed.max": "cycle",
    "sm__inst_executed.avg.per_cycle_active": "inst/cycle",
    "sm__warps_active.avg.per_cycle_active": "warp/cycle",
    "sm__warps_active.sum": "warp",
    "smsp__inst_executed.sum": "inst",
    "l1tex__t_sector_hit_rate.pct": "%",
}
"""The columns of a made-up page, with their units."""

KERNEL = {
    "ID": "0",
    "Process ID": "7",
    "Kernel Name": "add(int, float)",
    "Stream": "7",
    "Block Size": "(128, 1, 1)",
    "Grid Size": "(1024, 2, 1)",
    "Device": "0",
    "CC": "9.0",
    NAME: "NVIDIA H200",
    "gpu__time_duration.sum": "3,000",
    "sm__cycles_active.sum": "500,000",
    "sm__cycles_elapsed.max": "5,000",
    "sm__inst_executed.avg.per_cycle_active": "0.40",
    "sm__warps_active.avg.per_cycle_active": "8.00",
    "sm__warps_active.sum": "4,000,000",
    "smsp__inst_executed.sum": "200,000",
    "l1tex__t_sector_hit_rate.pct": "50.25",
}
"""A kernel."""

LONGER = {
    **KERNEL,
    "ID": "1",
    "Kernel Name": "mul",
    "gpu__time_duration.sum": "30,000",
    "sm__cycles_active.sum": "4,500,000",
    "sm__cycles_elapsed.max": "50,000",
    "sm__inst_executed.avg.per_cycle_active": "2.00",
    "sm__warps_active.avg.per_cycle_active": "16.00",
    "sm__warps_active.sum": "72,000,000",
    "smsp__inst_executed.sum": "9,000,000",
}
"""Another, of ten times the duration."""

RANGE = {
    **LONGER,
    "ID": "0",
    "Kernel Name": "range",
    "Stream": "n/a",
    "Block Size": "",
    "Grid Size": "",
    "launch__grid_dim_x": "1,024",
}
"""A whole step, of range replay."""


def page(*kernels: Mapping[str, str], units: Mapping[str, str] = COLUMNS) -> str:
    """A page with these kernels; cells that a kernel lacks are empty."""
    rows: list[Sequence[str]] = [list(units), list(units.values())]
    rows += [[kernel.get(column, "") for column in units] for kernel in kernels]
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return text.getvalue()


def written(folder: Path, text: str, name: str = "step.csv") -> Path:
    """A file of this text."""
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file
