"""Reports of ncu (.ncu-rep) as rows, by NVIDIA's Python module ncu_report. Needs no GPU.

The module is the package ncu-report, or comes with Nsight Compute. Its native code has ended its
process before (a segmentation fault of 2025.3.1 beside torch), so it reads in a process of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from collections.abc import Collection, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.measure.ncu import ncu_command

MODULE = "ncu_report"
NATIVE = ".ncu-rep"
"""The suffix of ncu's own format."""
REMEDY = (
    "Check that the file is complete. ncu-report or Nsight Compute must not be older than the "
    "version that wrote the file"
)
"""Ends the messages about reports that cannot be read."""
_DEVICE = "device__attribute_display_name"
_CAPABILITY = "device__attribute_compute_capability_"

Size = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ProfiledRow:
    """One kernel, graph or range of a report."""

    where: str
    """Its position in the file: "result 3"."""
    name: str
    """Demangled."""
    kind: str
    """kernel, graph (counted as one), or range (range replay: all that ran in it)."""
    grid: Size | None
    """Blocks; None for ranges and graphs, for which ncu gives maxima over their kernels."""
    block: Size | None
    """Threads."""
    gpu: str
    """The GPU's number; "" if the report lacks it, like `device`."""
    device: str
    capability: str
    """The compute capability of the GPU, "9.0"."""
    values: Mapping[str, float]
    """Values by NVIDIA's names, in base units. Values that ncu could not collect are missing."""


def load(file: Path, ncu: Path | None, counters: Collection[str]) -> tuple[ProfiledRow, ...]:
    """The launches of the report in `file`, in order, with the metrics in `counters`.

    Read by the module beside the program `ncu`, else by the installed package, else by the module
    beside the ncu that is found here. Raises BadFile for a report that does not open. Raises
    UsageFailure for a file that is no report or missing, and without a module.
    """
    if file.suffix != NATIVE:
        raise UsageFailure(
            f"{file} is not a {NATIVE} file. Name the report that ncu --export wrote"
        )
    if not file.is_file():
        raise UsageFailure(f"{file}: no such file")
    places = _module(file, ncu)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as reader:
        try:
            rows = reader.submit(_read, places, str(file.resolve()), counters).result()
        except Exception as error:
            problem = f"{MODULE} failed while it read the report ({error})"
            raise BadFile(file, "", problem, REMEDY) from None
    if not rows:  # nor has a file that is no report
        raise BadFile(file, "", "the report has no kernel", REMEDY)
    return rows


def _module(file: Path, ncu: Path | None) -> list[str]:
    """The folder to import the module from; none for the installed one. Raises UsageFailure."""
    installed = importlib.util.find_spec(MODULE) is not None
    for program in (ncu, None if installed else ncu_command.find()):
        if program and (folder := ncu_command.module_of(program)):
            return [str(folder)]
    if installed:
        return []
    raise UsageFailure(
        f"cannot open {file} without NVIDIA's package ncu-report or Nsight Compute. Type pip "
        "install 'ncu-report>=2026.2', or name ncu by --ncu FILE"
    )


def _read(places: list[str], report: str, counters: Collection[str]) -> tuple[ProfiledRow, ...]:
    """The rows of a report, by the module in one of these folders or the installed one."""
    sys.path[:0] = places
    return rows_of(importlib.import_module(MODULE), report, counters)


def rows_of(module: Any, report: str, counters: Collection[str]) -> tuple[ProfiledRow, ...]:
    """The rows that NVIDIA's `module` reads in this process."""
    context = module.load_report(report)
    results = [
        part.action_by_idx(number)
        for part in map(context.range_by_idx, range(context.num_ranges()))
        for number in range(part.num_actions())
    ]
    return tuple(_row(result, number, counters) for number, result in enumerate(results))


def _row(result: Any, number: int, counters: Collection[str]) -> ProfiledRow:
    there = frozenset(result.metric_names())

    def whole(name: str) -> str:
        return str(int(result[name].as_double())) if name in there else ""

    kinds = {result.WorkloadType_RANGE: "range", result.WorkloadType_GRAPH: "graph"}
    kind = kinds.get(result.workload_type(), "kernel")
    values = {name: result[name].as_double() for name in counters if name in there}
    return ProfiledRow(
        where=f"result {number}",
        name=str(result.name(result.NameBase_DEMANGLED)),
        kind=kind,
        grid=_size(result, there, "grid") if kind == "kernel" else None,
        block=_size(result, there, "block") if kind == "kernel" else None,
        gpu=whole("launch__device_id"),
        device=str(result[_DEVICE].as_string()) if _DEVICE in there else "",
        capability=".".join(whole(f"{_CAPABILITY}{part}") for part in ("major", "minor")),
        values={name: value for name, value in values.items() if math.isfinite(value)},
    )


def _size(result: Any, there: Collection[str], of: str) -> Size | None:
    """The size of a grid or block, where the report has it."""
    if f"launch__{of}_dim_x" not in there:
        return None
    x, y, z = (int(result[f"launch__{of}_dim_{axis}"].as_double()) for axis in "xyz")
    return x, y, z
