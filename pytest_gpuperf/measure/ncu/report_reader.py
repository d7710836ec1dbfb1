"""Reports of ncu as rows: in its own format (.ncu-rep), and their raw page as CSV text.

The CSV has a header, units, and a row per kernel or range. The other is opened by NVIDIA's package
ncu-report or by ncu itself. Neither needs a GPU. The package is native code of others, which has
been seen to end the process that it is loaded into (a segmentation fault, in version 2025.3.1,
beside torch), so it reads in a process of its own:

    python -m pytest_gpuperf.measure.ncu.report_reader REPORT OUT COUNTER[,COUNTER ...]

writes a list of rows into OUT as JSON: the fields of a `ProfiledRow`, and its cells.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.measure.ncu import ncu_command
from pytest_gpuperf.storage import files

PACKAGE = "ncu_report"
_TIME_LIMIT_SECONDS = 600
_REMEDY = (
    "See that the file is complete, and that ncu-report or Nsight Compute is not older than the "
    "one that wrote it"
)
REMEDY = (
    "Make the CSV again from the report: ncu --import FILE.ncu-rep --csv --page raw "
    "--print-units base > FILE.csv"
)
"""How to get a file that can be read; ends the messages about those that cannot."""

Size = tuple[int, int, int]

_FIRST = ("ID", "Process ID")
"""The first columns of each page. What was printed before them is not part of it."""
_NOT_RAW = {"Metric Name", "Metric Value"}
"""Columns of the details page, which has a row per metric."""
_NOTICE = "=="
"""What ncu's own lines begin with: ==PROF==, ==WARNING==, ==ERROR==."""

_DEVICE = "device__attribute_display_name"
_CAPABILITY = "device__attribute_compute_capability_"
_SIZE = re.compile(r"\(?\s*([\d,.]+?)\s*,\s*([\d,.]+?)\s*,\s*([\d,.]+?)\s*\)?")
_NVTX = ("thread Domain:Push/Pop_Range", "Id:Domain:Start/Stop_Range")
_NVTX_FIELDS = 6
"""Fields after the name of an NVTX range; the name itself may have colons."""

_NUMBER = re.compile(r"(\d{1,3}(,\d{3})+|\d+)(\.\d+)?([eE][+-]?\d+)?")
_ABSENT = frozenset({"", "n/a", "(!) n/a", "nan", "-nan", "(!) nan"})
"""What ncu writes for a metric that it could not collect of a kernel."""


@dataclass(frozen=True, slots=True)
class ProfiledRow:
    """One kernel, graph or range of a report."""

    where: str
    """Where it is in the file: "line 3"."""
    name: str
    """Demangled."""
    kind: str
    """kernel, graph (counted as one), or range (range replay: all that ran in it)."""
    process: str
    """The id of the process that launched it; "" where the report does not say."""
    grid: Size | None
    """Blocks; None for ranges and graphs, where what ncu gives are maxima of their kernels."""
    block: Size | None
    """Threads."""
    gpu: str
    """Its number; "" where the report does not say, as `device`."""
    device: str
    capability: str
    """The compute capability of the GPU, "9.0"."""
    nvtx: tuple[str, ...]
    """The NVTX ranges around the launch, as ncu lists them; () unless it ran with --nvtx."""
    values: Mapping[str, float] = field(default_factory=dict)
    """By the catalogue's names, in its units, and what rates are made of by NVIDIA's
    (WARPS_ACTIVE). What ncu could not collect here is missing."""


Cells = Mapping[str, str | float | None]
"""By NVIDIA's names: text as ncu writes it, or a number in base units; None for no value."""


@dataclass(frozen=True, slots=True)
class RawPage:
    """What a report has, of whichever origin."""

    file: Path
    rows: tuple[ProfiledRow, ...]
    """Without their values."""
    cells: tuple[Cells, ...]
    """Per row."""
    units: Mapping[str, str] | None = None
    """By column: "byte", "Kbyte", or "" for what has none; None where the values are numbers."""
    units_at: str = ""
    """Where the units are in the file: "line 2"."""


def load(file: Path, ncu: Path | None, counters: Collection[str]) -> RawPage:
    """What the report in `file` has, of its metrics those named in `counters` at least.

    The package goes first, since its numbers are not rounded. Where it is not installed or does not
    read this, the executable does: `ncu`, or the one on the PATH.

    Raises BadFile for a report that does not open, and UsageFailure where nothing here opens such
    files, or the executable does not run.
    """
    if not file.is_file():
        raise UsageFailure(f"{file}: no such file")
    problem = ""
    if importlib.util.find_spec(PACKAGE) is not None:
        read = _by_package(file, counters)
        if not isinstance(read, str):
            return read
        problem = read
    executable = str(ncu) if ncu else shutil.which("ncu")
    if executable is not None:
        return _by_executable(file, executable)
    if problem:
        raise BadFile(file, "", problem, _REMEDY)
    raise UsageFailure(
        f"{file}: to open it takes NVIDIA's package ncu-report (pip install ncu-report) or Nsight "
        "Compute's executable ncu (on the PATH, or --ncu FILE), and neither is here. Or make a CSV "
        f"where it is, and import that: ncu --import {file.name} --csv --page raw "
        f"--print-units base > {file.stem}.csv"
    )


def _by_package(file: Path, counters: Collection[str]) -> RawPage | str:
    """What the package reads in a process of its own, or why it does not."""
    with tempfile.TemporaryDirectory(prefix="gpuperf-") as scratch:
        out = Path(scratch) / "rows.json"
        command = [sys.executable, "-m", __name__, str(file.resolve()), str(out)]
        # It finds what this process finds, however that came to find it.
        path = os.pathsep.join(sys.path)
        try:
            done = ncu_command.captured(
                [*command, ",".join(counters)], _TIME_LIMIT_SECONDS, PYTHONPATH=path
            )
        except subprocess.TimeoutExpired:
            return f"ncu_report did not read this within {_TIME_LIMIT_SECONDS} s"
        if done.returncode == 0:
            read: Any = files.parse_json(files.read_bytes(out), file, _REMEDY)
            if not read:  # nor has a file that is no report
                return "has no kernel: nothing was profiled"
            rows = tuple(ProfiledRow(**{k: _tupled(v) for k, v in row.items()}) for row, _ in read)
            return RawPage(file, rows, tuple(cells for _, cells in read))
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    return f"ncu_report ended the process that read this ({': '.join([how, *said])})"


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _by_executable(file: Path, executable: str) -> RawPage:
    command = [executable, "--import", str(file), "--csv", "--page", "raw"]
    command += ["--print-units", "base"]
    try:
        # Numbers are grouped as the language of the user does it.
        done = ncu_command.captured(command, _TIME_LIMIT_SECONDS, LC_ALL="C.UTF-8")
    except OSError as error:
        raise UsageFailure(
            f"{executable}: cannot be run ({error.strerror}). Name the ncu of Nsight Compute"
        ) from None
    except subprocess.TimeoutExpired:
        problem = f"{executable} did not open it within {_TIME_LIMIT_SECONDS} s"
        raise BadFile(file, "", problem, _REMEDY) from None
    if done.returncode:
        said = (done.stdout + b"\n" + done.stderr).decode("utf-8", "replace")
        failure = ncu_command.failure(said, done.returncode)
        raise BadFile(file, "", f"{executable} did not open it: {failure.reason}", _REMEDY)
    return parse_page(done.stdout, file)


def main(arguments: list[str]) -> int:
    """Reads what the arguments name; see the module."""
    report, out, counters = arguments
    package = importlib.import_module(PACKAGE)
    context = package.load_report(report)
    results = [
        part.action_by_idx(number)
        for part in map(context.range_by_idx, range(context.num_ranges()))
        for number in range(part.num_actions())
    ]
    rows = [_read(result, n, counters.split(",")) for n, result in enumerate(results)]
    Path(out).write_text(json.dumps(rows), encoding="utf-8")
    return 0


def _read(result: Any, number: int, counters: Sequence[str]) -> tuple[dict[str, Any], Cells]:
    """The fields of a result's row, and its cells."""
    there = frozenset(result.metric_names())

    def whole(name: str) -> str:
        return str(int(result[name].as_double())) if name in there else ""

    kinds = {result.WorkloadType_RANGE: "range", result.WorkloadType_GRAPH: "graph"}
    kind = kinds.get(result.workload_type(), "kernel")
    sizes = {
        of: [int(result[f"launch__{of}_dim_{axis}"].as_double()) for axis in "xyz"]
        if kind == "kernel" and f"launch__{of}_dim_x" in there
        else None
        for of in ("grid", "block")
    }
    capability = [whole(f"device__attribute_compute_capability_{p}") for p in ("major", "minor")]
    device = "device__attribute_display_name"
    fields = {
        "where": f"result {number}",
        "name": str(result.name(result.NameBase_DEMANGLED)),
        "kind": kind,
        "process": "",
        **sizes,
        "gpu": whole("launch__device_id"),
        "device": str(result[device].as_string()) if device in there else "",
        "capability": ".".join(capability),
        "nvtx": _nvtx(result.nvtx_state()),
    }
    values = {name: result[name].as_double() for name in counters if name in there}
    return fields, {name: v if math.isfinite(v) else None for name, v in values.items()}


def _nvtx(state: Any) -> list[str]:
    """The names of the NVTX ranges around a result."""
    domains = [state.domain_by_id(number) for number in state.domains()] if state else []
    opened = [domain.push_pop_ranges() + domain.start_end_ranges() for domain in domains]
    return [str(name) for names in opened for name in names]


def load_page(file: Path) -> RawPage:
    """The page in `file`. Raises BadFile with the line, and UsageFailure where there is no file.

    Lines that ncu or the program printed before the header, and notices of ncu after it, are
    skipped: they are there when both were sent to one file.
    """
    try:
        return parse_page(files.read_bytes(file), file)
    except FileNotFoundError:
        raise UsageFailure(f"{file}: no such file") from None


def parse_page(content: bytes, file: Path) -> RawPage:
    """The page that ncu printed; `file` is named in errors.

    Raises BadFile with the line, and for more than is read.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadFile(file, f"byte {error.start}", "not UTF-8 text", REMEDY) from None
    files.check_values(text, file, REMEDY)
    lines = text.split("\n")
    headers = ('"' + '","'.join(_FIRST) + '"', ",".join(_FIRST))
    begin = next((n for n, line in enumerate(lines) if line.startswith(headers)), None)
    if begin is None:
        # ncu may have said why.
        failure = ncu_command.recognized(text)
        if failure is not None:
            problem = f"no CSV but an error of ncu: {failure.reason}"
            raise BadFile(file, "", problem, failure.remedy)
        problem = "no raw page of ncu: there is no header that begins with ID"
        raise BadFile(file, "", problem, REMEDY)
    records = _records(lines[begin:], begin, file)
    where, header = next(records, ("", []))
    if set(header) >= _NOT_RAW:
        raise BadFile(file, where, "this is ncu's details page, not its raw page", REMEDY)
    for column, count in Counter(header).items():
        if count > 1:
            raise BadFile(file, where, f'the column "{column}" is there twice', REMEDY)
    parts = []
    for where, cells in records:
        if len(cells) != len(header):
            problem = f"{len(cells)} cells where the header has {len(header)}"
            raise BadFile(file, where, f"{problem}; the file may be cut off", REMEDY)
        parts.append((where, dict(zip(header, cells, strict=True))))
    if not parts:
        raise BadFile(file, "", "ends after its header: no units and no kernel", REMEDY)
    (units_at, units), *kernels = parts
    if units[header[0]].strip():
        raise BadFile(file, units_at, "expected the row of units, found a kernel's", REMEDY)
    if not kernels:
        raise BadFile(file, "", "has no kernel: nothing was profiled", REMEDY)
    rows = tuple(_row(where, cells, file) for where, cells in kernels)
    return RawPage(file, rows, tuple(cells for _, cells in kernels), units, units_at)


def number(text: str) -> float | None:
    """A number as ncu writes it, "1,980,000" or "118,161.68"; None for a cell without a value.

    Raises ValueError for anything else: another language's separators, a negative count, a value
    beyond all floats.
    """
    text = text.strip()
    if text.lower() in _ABSENT:
        return None
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f'"{text}" is not a number as ncu writes it')
    value = float(text.replace(",", ""))
    if not math.isfinite(value):
        raise ValueError(f'"{text}" is beyond all floats')
    return value


def factor(unit: str, written: str) -> float | None:
    """What a value in ncu's unit `written` is multiplied by to be in the catalogue's `unit`.

    ncu writes base units with `--print-units base` ("byte", "ns") and scaled ones without
    ("Kbyte", "us"), with decimal prefixes. None for a unit that is not known for it: guessing would
    be wrong by powers of ten.
    """
    return _UNITS.get(unit, {}).get(written.strip())


def _prefixed(*bases: str) -> dict[str, float]:
    prefixes = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
    return {f"{prefix}{base}": factor for base in bases for prefix, factor in prefixes.items()}


# The averages over cycles and issues are of warps; which of these units they have depends on the
# version of ncu, and some versions give a ratio none. What operations of the tensor cores are
# called is not documented; CUPTI says "math_op". Versions before 2024 spell times out ("nsecond").
_UNITS: dict[str, dict[str, float]] = {
    "cycles": _prefixed("cycle"),
    "instructions": _prefixed("inst"),
    "thread instructions": _prefixed("inst"),
    "FLOP": _prefixed("", "op", "ops", "math_op", "flop", "inst"),
    "bytes": _prefixed("byte"),
    "ns": {
        f"{prefix}{second}": factor
        for prefix, factor in {"n": 1.0, "u": 1e3, "m": 1e6, "": 1e9}.items()
        for second in ("s", "second")
    },
    "%": {"%": 1.0},
    "instructions/cycle": {"inst/cycle": 1.0},
    "warps/cycle": {"warp": 1.0, "warp/cycle": 1.0},
    "warps/issue": {"": 1.0, "inst": 1.0, "warp": 1.0, "warp/inst": 1.0},
    "warps": _prefixed("warp"),
}


def _records(lines: list[str], before: int, file: Path) -> Iterator[tuple[str, list[str]]]:
    """The records with their places, without blank lines and ncu's notices."""
    reader = csv.reader((f"{line}\n" for line in lines), strict=True)
    first = 1
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            place = f"line {before + first}"
            raise BadFile(file, place, f"not CSV: {error}", REMEDY) from None
        where, first = f"line {before + first}", reader.line_num + 1
        if len(cells) <= 1 and not "".join(cells).strip():
            continue
        if not cells[0].startswith(_NOTICE):
            yield where, cells


def _row(where: str, written: Mapping[str, str], file: Path) -> ProfiledRow:
    cells = {column: text.strip() for column, text in written.items() if text.strip() != "n/a"}
    kind = _kind(cells)
    grid, block = (
        _size(cells, of, where, file) if kind == "kernel" else None for of in ("Grid", "Block")
    )
    parts = [cells.get(f"{_CAPABILITY}{part}", "") for part in ("major", "minor")]
    return ProfiledRow(
        where,
        cells.get("Kernel Name", ""),
        kind,
        cells.get("Process ID", ""),
        grid,
        block,
        cells.get("Device", ""),
        cells.get(_DEVICE, ""),
        cells.get("CC") or ".".join(parts),
        _nvtx_of_cells(written),
    )


def _kind(cells: Mapping[str, str]) -> str:
    """What a row is, which no column says."""
    if cells.get("Grid Size"):
        return "kernel"
    name = cells.get("Kernel Name", "").lower()
    if "graph" in name and "(" not in name:
        return "graph"
    # Older versions give kernels no column of their size either, and newer ones ranges attributes.
    return "kernel" if name != "range" and cells.get("launch__grid_dim_x") else "range"


def _size(cells: Mapping[str, str], of: str, where: str, file: Path) -> Size | None:
    """A grid's or block's size, from its column or, in older reports, from its three."""
    column, text = f"{of} Size", cells.get(f"{of} Size", "")
    if text:
        match = _SIZE.fullmatch(text)
        parts = list(match.groups()) if match else []
    else:
        column = f"launch__{of.lower()}_dim_x"
        parts = [cells.get(f"{column[:-1]}{axis}", "") for axis in "xyz"]
        if not any(parts):
            return None
    try:
        sizes = [number(part) for part in parts]
        x, y, z = (int(size) for size in sizes if size and size.is_integer())
    except ValueError:
        problem = f'"{text or ", ".join(parts)}" is not the size of a {of.lower()}'
        raise BadFile(file, f"{where} column {column}", problem, REMEDY) from None
    return x, y, z


def _nvtx_of_cells(cells: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the NVTX ranges, from cells such as `772  "<default domain>:step:none:..."`."""
    names = []
    for column, cell in cells.items():
        if column.startswith(_NVTX):
            for quoted in re.findall(r'"([^"]*)"', cell):
                fields = quoted.split(":")[1:-_NVTX_FIELDS]
                names.append(":".join(fields) or quoted)
    return tuple(names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
