"""The raw page of an ncu report as CSV text: a header, units, and a row per kernel or range."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.measure.ncu import ncu_command, report_reader
from pytest_gpuperf.measure.ncu.report_reader import Page

REMEDY = (
    "Make the CSV again from the report: ncu --import FILE.ncu-rep --csv --page raw "
    "--print-units base > FILE.csv"
)
"""How to get a file that can be read; ends the messages about those that cannot."""

_FIRST = ("ID", "Process ID")
"""The first columns of each page. What was printed before them is not part of it."""
_NOT_RAW = {"Metric Name", "Metric Value"}
"""Columns of the details page, which has a row per metric."""
_NOTICE = "=="
"""What ncu's own lines begin with: ==PROF==, ==WARNING==, ==ERROR==."""


@dataclass(frozen=True, slots=True)
class RawRow:
    """One kernel or range, as it is written."""

    where: str
    """Where it is in the file: "line 3"."""
    cells: Mapping[str, str]
    """By column."""


@dataclass(frozen=True, slots=True)
class RawTable:
    """A raw page, of whichever origin."""

    file: Path
    units: Mapping[str, str]
    """By column, in their order: "byte", "ns", or "" for what has none."""
    units_at: str
    """Where the units are in the file: "line 2"."""
    lines: tuple[RawRow, ...]

    def cell(self, line: RawRow, column: str) -> str:
        """What is written in this cell; "" where it says n/a, or there is no such column."""
        text = line.cells.get(column, "").strip()
        return "" if text == "n/a" else text


def load_csv(file: Path) -> RawTable:
    """The table in `file`. Raises BadFile with the line, and UsageFailure where there is no file.

    Lines that ncu or the program printed before the header, and notices of ncu after it, are
    skipped: they are there when both were sent to one file.
    """
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise UsageFailure(f"{file}: no such file") from None
    except OSError as error:
        raise UsageFailure(f"{file}: cannot be read ({error.strerror})") from None
    return parse_csv(content, file)


def parse_csv(content: bytes, file: Path) -> RawTable:
    """The table in what ncu printed; `file` is named in errors. Raises BadFile with the line."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadFile(file, f"byte {error.start}", "not UTF-8 text", REMEDY) from None
    lines = text.split("\n")
    begin = _header(lines)
    if begin is None:
        raise _no_table(text, file)
    records = _records(lines[begin:], begin, file)
    where, header = next(records, ("", []))
    _check_header(header, where, file)
    units_at, units = next(records, ("", []))
    if not units:
        raise BadFile(file, "", "ends after its header: no units and no kernel", REMEDY)
    _check_width(units, header, units_at, file)
    if units[0].strip():
        raise BadFile(file, units_at, "expected the row of units, found a kernel's", REMEDY)
    found = []
    for where, cells in records:
        _check_width(cells, header, where, file)
        found.append(RawRow(where, dict(zip(header, cells, strict=True))))
    if not found:
        raise BadFile(file, "", "has no kernel: nothing was profiled", REMEDY)
    return RawTable(file, dict(zip(header, units, strict=True)), units_at, tuple(found))


def _header(lines: list[str]) -> int | None:
    """The index of the header among these lines, if there is one."""
    quoted, plain = '"' + '","'.join(_FIRST) + '"', ",".join(_FIRST)
    for index, line in enumerate(lines):
        if line.startswith((quoted, plain)):
            return index
    return None


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


def _check_header(header: list[str], where: str, file: Path) -> None:
    if set(header) >= _NOT_RAW:
        raise BadFile(file, where, "this is ncu's details page, not its raw page", REMEDY)
    for column in header:
        if header.count(column) > 1:
            raise BadFile(file, where, f'the column "{column}" is there twice', REMEDY)


def _check_width(cells: list[str], header: list[str], where: str, file: Path) -> None:
    if len(cells) != len(header):
        problem = f"{len(cells)} cells where the header has {len(header)}; the file may be cut off"
        raise BadFile(file, where, problem, REMEDY)


def _no_table(text: str, file: Path) -> BadFile:
    """Why there is no table: ncu may have said so in its place."""
    failure = ncu_command.recognized(text)
    if failure is not None:
        return BadFile(file, "", f"no CSV but an error of ncu: {failure.reason}", failure.remedy)
    return BadFile(file, "", "no raw page of ncu: there is no header that begins with ID", REMEDY)


# Reports in ncu's own format (.ncu-rep), as the table that its CSV is.
#
# They are opened by NVIDIA's Python module `ncu_report` (in `extras/python` of Nsight Compute),
# or by an `ncu` executable; neither needs a GPU. Nothing else reads the format.

_TIME_LIMIT_SECONDS = 600
_INSTALLED = Path("/opt/nvidia/nsight-compute")
_EXTRAS = Path("extras/python")
_REMEDY = (
    "See that the file is complete and that this Nsight Compute is not older than the one that "
    "wrote it"
)


def load_native(file: Path, ncu: Path | None, counters: Collection[str]) -> RawTable:
    """The table of the report in `file`; of its metrics those named in `counters`, at least.

    `ncu` is the executable to open it with; the module that lies beside it goes before it, since
    its numbers are not rounded. Without one, any such module is tried, then an `ncu` on the PATH.
    Where the module crashes, the executable is asked.

    Raises BadFile for a report that does not open, and UsageFailure where nothing here opens
    such files, or the executable does not run.
    """
    if not file.is_file():
        raise UsageFailure(f"{file}: no such file")
    folder = _folder_of(ncu) if ncu else None
    page, crash = None, ""
    if folder is not None or ncu is None:
        page, crash = _page(file, folder, counters)
    if page is not None and page.there:
        return _table(file, page)
    executable = str(ncu) if ncu else shutil.which("ncu")
    if executable is not None:
        return _by_executable(file, executable)
    if crash:
        raise BadFile(file, "", crash, _REMEDY)
    raise UsageFailure(
        f"{file}: to open it takes Nsight Compute: its Python module ncu_report (add its "
        "folder extras/python to PYTHONPATH) or its executable ncu (on the PATH, or --ncu "
        "FILE), and neither is here. Or make a CSV where it is, and import that: ncu --import "
        f"{file.name} --csv --page raw --print-units base > {file.stem}.csv"
    )


def _folder_of(ncu: Path) -> Path | None:
    """The folder of the module that belongs to this executable; None where it lies not there."""
    home = ncu.resolve().parent
    if any(part.startswith("cuda") for part in home.parts):
        # The toolkit's ncu only starts the one that is installed for itself.
        home = max(_INSTALLED.glob("*"), key=ncu_command.numbers, default=home)
    folder = home / _EXTRAS
    return folder if (folder / f"{report_reader.MODULE}.py").is_file() else None


def _page(file: Path, folder: Path | None, counters: Collection[str]) -> tuple[Page | None, str]:
    """What the module reads, in a process of its own; or None and how that process ended."""
    places = [str(folder)] if folder else []
    with tempfile.TemporaryDirectory(prefix="gpuperf-") as scratch:
        out = Path(scratch) / "page.json"
        words = (str(file.resolve()), str(out), ",".join(counters))
        try:
            done = subprocess.run(
                [sys.executable, "-m", report_reader.__name__, *words],
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=_TIME_LIMIT_SECONDS,
                check=False,
                # It finds what this process finds, however that came to find it.
                env={**os.environ, "PYTHONPATH": os.pathsep.join([*places, *sys.path])},
            )
        except subprocess.TimeoutExpired:
            return None, f"ncu_report did not read this within {_TIME_LIMIT_SECONDS} s"
        if done.returncode == 0:
            return Page(**json.loads(out.read_text(encoding="utf-8"))), ""
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    return None, f"ncu_report ended the process that read this ({': '.join([how, *said])})"


def _table(file: Path, page: Page) -> RawTable:
    if page.problem:
        raise BadFile(file, "", f"ncu_report did not open it: {page.problem}", _REMEDY)
    if not page.lines:
        raise BadFile(file, "", "has no kernel: nothing was profiled", _REMEDY)
    lines = tuple(RawRow(f"result {number}", cells) for number, cells in enumerate(page.lines))
    return RawTable(file, page.units, "units", lines)


def _by_executable(file: Path, executable: str) -> RawTable:
    command = [executable, "--import", str(file), "--csv", "--page", "raw"]
    try:
        done = subprocess.run(
            [*command, "--print-units", "base"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_TIME_LIMIT_SECONDS,
            check=False,
            # Numbers are grouped as the language of the user does it.
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
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
    return parse_csv(done.stdout, file)


# Numbers and units as ncu (Nsight Compute) writes them, in the catalogue's units.
#
# ncu writes base units with `--print-units base` ("byte", "ns") and scaled ones without ("Kbyte",
# "us"); versions before 2024 spell times out ("nsecond"). Its prefixes are decimal: 1 Kbyte is 1000
# bytes.

_NUMBER = re.compile(r"(\d{1,3}(,\d{3})+|\d+)(\.\d+)?([eE][+-]?\d+)?")
_ABSENT = frozenset({"", "n/a", "(!) n/a", "nan", "-nan", "(!) nan"})
"""What ncu writes for a metric that it could not collect of a kernel."""

_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_SECONDS = {"n": 1.0, "u": 1e3, "m": 1e6, "": 1e9}
"""Nanoseconds, by the prefix of a second."""


def _prefixed(base: str) -> dict[str, float]:
    return {f"{prefix}{base}": factor for prefix, factor in _PREFIXES.items()}


_OPERATIONS = ("", "op", "ops", "math_op", "flop", "inst")
"""What operations of the tensor cores may be called: CUPTI says "math_op", ncu's own word is not
documented."""

# The averages over cycles and issues are of warps; which of these units they have depends on the
# version of ncu, and some versions give a ratio none.
_UNITS: dict[str, dict[str, float]] = {
    "cycles": _prefixed("cycle"),
    "instructions": _prefixed("inst"),
    "thread instructions": _prefixed("inst"),
    "FLOP": {p: f for base in _OPERATIONS for p, f in _prefixed(base).items()},
    "bytes": _prefixed("byte"),
    "ns": {f"{p}{s}": f for p, f in _SECONDS.items() for s in ("s", "second")},
    "%": {"%": 1.0},
    "instructions/cycle": {"inst/cycle": 1.0},
    "warps/cycle": {"warp": 1.0, "warp/cycle": 1.0},
    "warps/issue": {"": 1.0, "inst": 1.0, "warp": 1.0, "warp/inst": 1.0},
    "warps": _prefixed("warp"),
}


def factor(unit: str, written: str) -> float | None:
    """What a value in ncu's unit `written` is multiplied by to be in the catalogue's `unit`.

    None for a unit that is not known for it: guessing would be wrong by powers of ten.
    """
    return _UNITS.get(unit, {}).get(written.strip())


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
