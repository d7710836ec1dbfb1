"""Reports of ncu (Nsight Compute), as the catalogue's metrics per kernel or range.

A report is the CSV of its raw page, or a file in ncu's own format. Needs no GPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import BadFile
from pytest_gpuperf.measure.ncu import raw_page, report_reader
from pytest_gpuperf.measure.ncu.raw_page import REMEDY, ProfiledRow, RawPage
from pytest_gpuperf.measure.paper_window import WARPS_ACTIVE

NATIVE = ".ncu-rep"
"""The suffix of ncu's own format; any other file is read as CSV."""

_EXTRA = {WARPS_ACTIVE: "warps"}
"""Counts that rates of a whole step are made of, with the unit they are wanted in."""


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
    if file.suffix != NATIVE:
        return report_of(raw_page.load(file))
    metrics = catalogue().metrics.values()
    anywhere = {name for metric in metrics for name in metric.hardware.values() if name}
    return report_of(report_reader.load(file, ncu, sorted(anywhere | set(_EXTRA))))


def report_of(page: RawPage) -> Report:
    """The report that a raw page is. Raises BadFile naming the line and the column."""
    arch = _only(page, [_arch(page, row) for row in page.rows], "architectures")
    device = _only(page, [row.device for row in page.rows], "devices")
    _only(page, [row.gpu for row in page.rows], "GPUs")
    known, there = catalogue().metrics, {name for cells in page.cells for name in cells}
    names = {metric.hardware_name(arch): name for name, metric in known.items()}
    columns = {hardware: name for hardware, name in names.items() if hardware in there}
    units = {hardware: known[name].unit for hardware, name in columns.items() if hardware} | {
        name: unit for name, unit in _EXTRA.items() if name in there
    }
    factors = {name: _factor(page, name, unit) for name, unit in units.items()}
    rows = []
    for row, cells in zip(page.rows, page.cells, strict=True):
        values = {name: _number(page, row, name, cells.get(name)) for name in factors}
        in_units = {
            columns.get(name, name): value * factors[name]
            for name, value in values.items()
            if value is not None
        }
        rows.append(replace(row, values=in_units))
    metrics = tuple(name for name in known if name in columns.values())
    return Report(page.file, arch, device, metrics, tuple(rows))


def _only(page: RawPage, said: list[str], what: str) -> str:
    """What all rows say, as far as they say anything. Raises BadFile where they differ."""
    known = ""
    for row, here in zip(page.rows, said, strict=True):
        if here and known and here != known:
            problem = f"kernels of several {what}: {known} before, {here} here"
            remedy = "Profile one GPU at a time: ncu --devices 0 ..."
            raise BadFile(page.file, row.where, problem, remedy)
        known = known or here
    return known


def _arch(page: RawPage, row: ProfiledRow) -> str:
    """The architecture of the device that a kernel ran on: sm90 for compute capability 9.0."""
    capability = re.fullmatch(r"(\d+)\.(\d+)", row.capability)
    if capability is None:
        problem = f'"{row.capability}" is no compute capability'
        raise BadFile(page.file, row.where, problem, REMEDY)
    name = f"sm{int(capability[1])}{int(capability[2])}"
    if name not in architectures.ARCHITECTURES:
        known = ", ".join(architectures.ARCHITECTURES)
        problem = f"{name} (compute capability {row.capability}) is not an architecture"
        raise BadFile(page.file, row.where, f"{problem} that is known here", f"Known are {known}")
    return name


def _factor(page: RawPage, column: str, unit: str) -> float:
    """What a column's values are multiplied by. Raises BadFile for a unit that is unknown."""
    if page.units is None:
        return 1.0
    factor = raw_page.factor(unit, page.units[column])
    if factor is None:
        problem = f'the unit "{page.units[column]}" is not known for {unit}'
        raise BadFile(page.file, f"{page.units_at} column {column}", problem, REMEDY)
    return factor


def _number(
    page: RawPage, row: ProfiledRow, column: str, written: str | float | None
) -> float | None:
    if not isinstance(written, str):
        return written
    try:
        return raw_page.number(written)
    except ValueError as error:
        raise BadFile(page.file, f"{row.where} column {column}", str(error), REMEDY) from None
