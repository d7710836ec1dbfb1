"""Reports of ncu (Nsight Compute), as the catalogue's metrics per kernel or range.

Reads the raw page as CSV, and reports in ncu's own format through Nsight Compute where that is
installed. Needs no GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import BadFile
from pytest_gpuperf.measure.ncu import raw_page, report_reader
from pytest_gpuperf.measure.ncu.raw_page import REMEDY, RawRow, RawTable
from pytest_gpuperf.measure.paper_window import WARPS_ACTIVE

NATIVE = ".ncu-rep"
"""The suffix of ncu's own format; any other file is read as CSV."""

_EXTRA = {WARPS_ACTIVE: "warps"}
"""Counts that rates of a whole step are made of, with the unit they are wanted in."""

_NAME = "device__attribute_display_name"
_CAPABILITY = "device__attribute_compute_capability_"
_SIZE = re.compile(r"\(?\s*([\d,.]+?)\s*,\s*([\d,.]+?)\s*,\s*([\d,.]+?)\s*\)?")
_SIZES = ("Grid", "Block")
_CC = re.compile(r"(\d+)\.(\d+)")
_NVTX = ("thread Domain:Push/Pop_Range", "Id:Domain:Start/Stop_Range")
_NVTX_FIELDS = 6
"""Fields after the name of an NVTX range; the name itself may have colons."""


@dataclass(frozen=True, slots=True)
class ProfiledRow:
    """One kernel, graph or range of a report."""

    name: str
    kind: str
    """kernel, graph (counted as one), or range (range replay: all that ran in it)."""
    process: str
    """The id of the process that launched it; "" where the report does not say."""
    stream: str
    grid: tuple[int, int, int] | None
    """Blocks; None for what has no grid."""
    block: tuple[int, int, int] | None
    """Threads."""
    values: Mapping[str, float]
    """By the catalogue's names, in its units. What ncu could not collect here is missing."""
    counts: Mapping[str, float]
    """Further counts by NVIDIA's names: what rates are made of (WARPS_ACTIVE)."""
    nvtx: tuple[str, ...]
    """The NVTX ranges around the launch, as ncu lists them; () unless it ran with --nvtx."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one report says of one device."""

    file: Path
    arch: str
    device: str
    """The marketing name, "NVIDIA H200"; "" where the report does not have it."""
    metrics: tuple[str, ...]
    """Those of the catalogue that it has, in its order, for this architecture."""
    rows: tuple[ProfiledRow, ...]
    """In the order of their launch."""


def read(file: Path, ncu: Path | None = None) -> Report:
    """The report in `file`, a CSV or an .ncu-rep; `ncu` is the executable to open the latter with.

    Raises BadFile, naming line and column, for what cannot be trusted, and UsageFailure for a file
    that is not there or that nothing on this machine opens. The file is never changed.
    """
    if file.suffix == NATIVE:
        return report_of(raw_page.load_native(file, ncu, _counters()))
    return report_of(raw_page.load_csv(file))


def report_of(table: RawTable) -> Report:
    """The report that a raw page is. Raises BadFile naming the line and the column."""
    arch = _only(table, lambda line: _arch(table, line), "architectures")
    device = _only(table, lambda line: table.cell(line, _NAME), "devices")
    _only(table, lambda line: table.cell(line, "Device"), "GPUs")
    columns = {name: metric for name, metric in _names(arch).items() if name in table.units}
    factors = _factors(table, columns)
    rows = tuple(_row(table, line, columns, factors) for line in table.lines)
    metrics = tuple(name for name in catalogue().metrics if name in columns.values())
    return Report(table.file, arch, device, metrics, rows)


def _only(table: RawTable, said_by: Callable[[RawRow], str], what: str) -> str:
    """What all kernels say, as far as they say anything. Raises BadFile where they differ."""
    known = ""
    for line in table.lines:
        said = said_by(line)
        if said and known and said != known:
            problem = f"kernels of several {what}: {known} before, {said} here"
            remedy = "Profile one GPU at a time: ncu --devices 0 ..."
            raise BadFile(table.file, line.where, problem, remedy)
        known = known or said
    return known


def _counters() -> set[str]:
    """NVIDIA's names of all that we read, on any architecture."""
    metrics = catalogue().metrics.values()
    return {name for metric in metrics for name in metric.hardware.values() if name} | set(_EXTRA)


def _names(arch: str) -> dict[str, str]:
    """The catalogue's names by NVIDIA's, on this architecture."""
    named = {metric.hardware_name(arch): name for name, metric in catalogue().metrics.items()}
    return {hardware: name for hardware, name in named.items() if hardware}


def _factors(table: RawTable, columns: Mapping[str, str]) -> dict[str, float]:
    """By column, what its values are multiplied by. Raises BadFile for a unit that is unknown."""
    wanted = {name: catalogue().metrics[metric].unit for name, metric in columns.items()}
    wanted |= {name: unit for name, unit in _EXTRA.items() if name in table.units}
    found = {}
    for name, unit in wanted.items():
        written = table.units[name]
        factor = raw_page.factor(unit, written)
        if factor is None:
            problem = f'the unit "{written}" is not known for {unit}'
            raise BadFile(table.file, f"{table.units_at} column {name}", problem, REMEDY)
        found[name] = factor
    return found


def _row(
    table: RawTable, line: RawRow, columns: Mapping[str, str], factors: Mapping[str, float]
) -> ProfiledRow:
    numbers = {
        name: value * factor
        for name, factor in factors.items()
        if (value := _number(table, line, name)) is not None
    }
    kind = table.cell(line, report_reader.WORKLOAD) or _kind(table, line)
    # What ncu gives as the size of a range or graph are maxima of its kernels.
    grid, block = (_size(table, line, of) if kind == "kernel" else None for of in _SIZES)
    return ProfiledRow(
        name=table.cell(line, "Kernel Name"),
        kind=kind,
        process=table.cell(line, "Process ID"),
        stream=table.cell(line, "Stream"),
        grid=grid,
        block=block,
        values={columns[name]: value for name, value in numbers.items() if name in columns},
        counts={name: value for name, value in numbers.items() if name in _EXTRA},
        nvtx=_nvtx(line),
    )


def _number(table: RawTable, line: RawRow, column: str) -> float | None:
    try:
        return raw_page.number(table.cell(line, column))
    except ValueError as error:
        where = f"{line.where} column {column}"
        raise BadFile(table.file, where, str(error), REMEDY) from None


def _arch(table: RawTable, line: RawRow) -> str:
    """The architecture of the device that a kernel ran on: sm90 for compute capability 9.0."""
    column, text = "CC", table.cell(line, "CC")
    if not text:
        column = f"{_CAPABILITY}major"
        text = ".".join(table.cell(line, f"{_CAPABILITY}{part}") for part in ("major", "minor"))
    found = _CC.fullmatch(text)
    where = f"{line.where} column {column}"
    if found is None:
        raise BadFile(table.file, where, f'"{text}" is no compute capability', REMEDY)
    name = f"sm{int(found[1])}{int(found[2])}"
    if name not in architectures.ARCHITECTURES:
        known = ", ".join(architectures.ARCHITECTURES)
        problem = f"{name} (compute capability {text}) is not an architecture that is known here"
        raise BadFile(table.file, where, problem, f"Known are {known}")
    return name


def _size(table: RawTable, line: RawRow, of: str) -> tuple[int, int, int] | None:
    """A grid's or block's size, from its column or, in older reports, from its three."""
    column, text = f"{of} Size", table.cell(line, f"{of} Size")
    if text:
        match = _SIZE.fullmatch(text)
        parts = list(match.groups()) if match else []
    else:
        column = f"launch__{of.lower()}_dim_x"
        parts = [table.cell(line, f"{column[:-1]}{axis}") for axis in "xyz"]
        if not any(parts):
            return None
    try:
        sizes = [raw_page.number(part) for part in parts]
        x, y, z = (int(size) for size in sizes if size and size.is_integer())
    except ValueError:
        problem = f'"{text or ", ".join(parts)}" is not the size of a {of.lower()}'
        raise BadFile(table.file, f"{line.where} column {column}", problem, REMEDY) from None
    return x, y, z


def _kind(table: RawTable, line: RawRow) -> str:
    """What a row of a CSV is, which has no column for that."""
    if table.cell(line, "Grid Size"):
        return "kernel"
    name = table.cell(line, "Kernel Name").lower()
    if "graph" in name and "(" not in name:
        return "graph"
    # Older versions give kernels no column of their size either, and newer ones ranges attributes.
    return "kernel" if name != "range" and table.cell(line, "launch__grid_dim_x") else "range"


def _nvtx(line: RawRow) -> tuple[str, ...]:
    """The names of the NVTX ranges, from cells such as `772  "<default domain>:step:none:..."`."""
    names = []
    for column, cell in line.cells.items():
        if column.startswith(_NVTX):
            for quoted in re.findall(r'"([^"]*)"', cell):
                fields = quoted.split(":")[1:-_NVTX_FIELDS]
                names.append(":".join(fields) or quoted)
    return tuple(names)
