"""The raw page of an ncu report as CSV text: a header, units, and a row per kernel or range."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf.collect import ncu_errors
from pytest_gpuperf.errors import BadFile, UsageFailure

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
class Line:
    """One kernel or range, as it is written."""

    where: str
    """Where it is in the file: "line 3"."""
    cells: Mapping[str, str]
    """By column."""


@dataclass(frozen=True, slots=True)
class Table:
    """A raw page, of whichever origin."""

    file: Path
    units: Mapping[str, str]
    """By column, in their order: "byte", "ns", or "" for what has none."""
    units_at: str
    """Where the units are in the file: "line 2"."""
    lines: tuple[Line, ...]

    def cell(self, line: Line, column: str) -> str:
        """What is written in this cell; "" where it says n/a, or there is no such column."""
        text = line.cells.get(column, "").strip()
        return "" if text == "n/a" else text


def load(file: Path) -> Table:
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
    return parse(content, file)


def parse(content: bytes, file: Path) -> Table:
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
        found.append(Line(where, dict(zip(header, cells, strict=True))))
    if not found:
        raise BadFile(file, "", "has no kernel: nothing was profiled", REMEDY)
    return Table(file, dict(zip(header, units, strict=True)), units_at, tuple(found))


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
    failure = ncu_errors.recognized(text)
    if failure is not None:
        return BadFile(file, "", f"no CSV but an error of ncu: {failure.reason}", failure.remedy)
    return BadFile(file, "", "no raw page of ncu: there is no header that begins with ID", REMEDY)
