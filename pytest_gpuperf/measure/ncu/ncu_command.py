"""ncu (Nsight Compute): where it is, its command line, its failures as our errors, its raw page.

The raw page of a report is CSV text: a header, units, and a row per kernel or range.
"""

from __future__ import annotations

import csv
import math
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_gpuperf.catalogue import yaml_table
from pytest_gpuperf.errors import (
    BadFile,
    CountersUnavailable,
    GpuperfError,
    MeasurementError,
    UsageFailure,
)
from pytest_gpuperf.measure import paper_window
from pytest_gpuperf.storage import files

KERNEL, RANGE, APP_RANGE = REPLAYS = ("kernel", "range", "app-range")
"""How ncu repeats what it counts: each kernel, all calls of the step, or the whole program."""

_PLACES = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
_TIME_LIMIT_SECONDS = 60
_FAILURES = Path(__file__).with_name("failures.yaml")
_QUOTED_LINES = 5
"""So many last lines of an output that nobody here knows are quoted."""
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


@dataclass(frozen=True)
class Control:
    """How ncu is run."""

    program: Path | None = None
    """The executable; None for the one that `find` finds."""
    replay: str = RANGE
    clocks: str = "none"
    """Whether ncu locks the GPU to its base clocks ("base") or leaves them alone ("none")."""
    caches: str = "none"
    """Whether it empties the caches before every replay ("all") or not ("none")."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong under ncu, and what to do about it."""

    reason: str
    remedy: str
    counters: bool = False
    """Counters cannot be read here at all, whatever is measured."""

    def error(self) -> GpuperfError:
        """As an exception: CountersUnavailable, or MeasurementError for this one step."""
        if self.counters:
            return CountersUnavailable(self.reason, self.remedy)
        return MeasurementError(f"{self.reason}. {self.remedy}")


def find() -> Path | None:
    """The ncu on the PATH, or of the newest Nsight Compute where NVIDIA installs it; or None."""
    on_path = shutil.which("ncu")
    if on_path:
        return Path(on_path)
    installed = [file for place in _PLACES for file in Path("/").glob(place[1:])]
    return max(installed, key=numbers, default=None)


def program(control: Control) -> Path:
    """The executable to run. Raises CountersUnavailable where there is none."""
    executable = control.program or find()
    if executable is None:
        raise CountersUnavailable(
            "ncu (Nsight Compute) was not found on the PATH or where NVIDIA installs it",
            "Install it, or name it: --gpuperf-ncu PROGRAM. The collector cupti does not need it",
        )
    return executable


def captured(
    command: Sequence[str], seconds: float, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """A command that has ended, and what it printed. Raises OSError and TimeoutExpired."""
    return subprocess.run(
        command,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=seconds,
        check=False,
        env={**os.environ, **environment},
    )


def version(executable: Path) -> str:
    """What `ncu --version` says: "2025.3.1.0"; "" where it cannot be run."""
    try:
        done = captured([str(executable), "--version"], _TIME_LIMIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r"Version ([\d.]+)", done.stdout.decode("utf-8", "replace"))
    return match[1].rstrip(".") if match else ""


def of_step(
    executable: Path, control: Control, metrics: Sequence[str], report: Path, *, replay: str = ""
) -> list[str]:
    """The command that profiles what its program marks by cudaProfilerStart and -Stop.

    `metrics` are NVIDIA's names; `replay` goes before that of `control`.
    """
    replay = replay or control.replay
    # A range is what lies between the two calls: there the option is refused.
    marked = ["--profile-from-start", "off", "--nvtx"] if replay == KERNEL else []
    return [
        *_begun(executable, control, report),
        *("--replay-mode", replay, *marked),
        *("--metrics", ",".join(metrics)),
    ]


def of_window(
    executable: Path, control: Control, metrics: Sequence[str], report: Path
) -> list[str]:
    """The paper's command: 100 kernels after the first 10 of the process, the full set.

    The process is ended after them.
    """
    return [
        *_begun(executable, control, report),
        *("--replay-mode", KERNEL, "--set", "full", "--metrics", ",".join(metrics)),
        *("--launch-skip", str(paper_window.SKIPPED), "--launch-count", str(paper_window.COUNTED)),
        *("--kill", "yes"),
    ]


def numbers(path: Path) -> list[int]:
    """The numbers in a path: versions, by which the newest is found."""
    return [int(number) for number in re.findall(r"\d+", str(path))]


def recognized(output: str) -> Failure | None:
    """The failure that ncu's terminal output speaks of, if it is one of those known here."""
    for known in yaml_table(_FAILURES):
        match = re.search(known["pattern"], output, re.IGNORECASE)
        if match:
            names = {name: text.strip(" .") for name, text in match.groupdict("").items()}
            reason = known["reason"].format(**names)
            return Failure(reason, known["remedy"], known.get("counters", False))
    return None


def failure(output: str, code: int) -> Failure:
    """Why ncu, which printed `output` (stdout and stderr) and exited with `code`, failed.

    What is not known here is quoted: ncu's ==ERROR== lines, else its last lines.
    """
    known = recognized(output)
    if known is not None:
        return known
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("==ERROR==")] or lines
    quoted = " / ".join(said[-_QUOTED_LINES:]) or "it printed nothing"
    return Failure(
        f"ncu failed with exit code {code}: {quoted}",
        "Run the ncu command by itself to see all of its output",
    )


def _begun(executable: Path, control: Control, report: Path) -> list[str]:
    return [
        *(str(executable), "--target-processes", "all"),
        *("--clock-control", control.clocks, "--cache-control", control.caches),
        # A test that fails after it measured fails in the session as well, and says why there.
        *("--check-exit-code", "no"),
        *("--force-overwrite", "--export", str(report)),
    ]


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
        failure = recognized(text)
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
        _nvtx(written),
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


def _nvtx(cells: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the NVTX ranges, from cells such as `772  "<default domain>:step:none:..."`."""
    names = []
    for column, cell in cells.items():
        if column.startswith(_NVTX):
            for quoted in re.findall(r'"([^"]*)"', cell):
                fields = quoted.split(":")[1:-_NVTX_FIELDS]
                names.append(":".join(fields) or quoted)
    return tuple(names)
