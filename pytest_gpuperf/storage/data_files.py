"""The data of a baseline entry that no verdict needs: every round, phases, kernels.

The YAML has what people review. The rest of an entry is in `<suite>/<test>-<digest>.json.xz` beside
it; the digest is of the content, and the entry names the file. So no file ever changes: two people
who accept different tests add different files, and a killed process leaves a file without entry.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import BadFile
from pytest_gpuperf.model.entry import BaselineFile, EntryData
from pytest_gpuperf.model.measurement import KernelTable, Measurement
from pytest_gpuperf.storage import files
from pytest_gpuperf.storage.files import Problem

SCHEMA = 2
SUFFIX = ".json.xz"
_REMEDY = (
    "Restore the file from git, or accept a new run (gpuperf record, then gpuperf "
    "update-baseline). The test is compared without this file"
)
_DIGITS = 12
_LONGEST = 60
"""Characters of a test's name in the name of its file."""
_NAME = re.compile(rf"[\w.+-]{{1,200}}-[0-9a-f]{{{_DIGITS}}}\.json\.xz")


def folder_beside(baseline: Path) -> Path:
    """The folder with the data of the entries in this YAML file."""
    return baseline.with_suffix("")


def content(data: EntryData) -> bytes:
    """The content of this data's file. Raises BadFile for more bytes than are ever read."""
    text = files.adapter(EntryData).dump_json(data, by_alias=True, exclude_defaults=True)
    return files.packed(text, Path(SUFFIX))


def name_of(test: str, name: str, content: bytes) -> str:
    """The name of the file with this content, of a test's node id and a measurement's name."""
    called = re.sub(r"[^\w.+-]+", "-", f"{test.rpartition('::')[2]}-{name}").strip("-.")
    digest = hashlib.sha256(content).hexdigest()[:_DIGITS]
    return f"{called[:_LONGEST]}-{digest}{SUFFIX}"


def load(baseline: Path, name: str, entry: str) -> EntryData:
    """The data in the file that an entry of this YAML names; `entry` is its place, for messages.

    Raises UsageFailure for a file that cannot be read, and BadFile for a file that is gone, or
    differs from the accepted one.
    """
    if not _NAME.fullmatch(name):
        problem = f'"{name}" is not a data file name' if name else "the entry names no data file"
        raise BadFile(baseline, f"{entry}/data", problem, _REMEDY)
    file = folder_beside(baseline) / name
    try:
        return parsed(file, files.read_bytes(file))
    except FileNotFoundError:
        raise BadFile(file, "", "no such file", _REMEDY) from None


# A measurement asks for its own more than once.
@lru_cache(maxsize=2)
def parsed(file: Path, content: bytes) -> EntryData:
    """The data in `content`, which was read from `file`. Raises BadFile."""
    digest = hashlib.sha256(content).hexdigest()[:_DIGITS]
    if digest not in file.name:
        raise BadFile(file, "", f"the file was changed: its digest is {digest}", _REMEDY)
    plain = files.parse_json(content, file, _REMEDY)
    retired = tuple(catalogue().retired)
    return files.validate(plain, EntryData, file, SCHEMA, _REMEDY, retired, _problems)


def unnamed(baseline: Path, loaded: BaselineFile) -> list[Path]:
    """The files beside this YAML file that none of its entries names."""
    named = {entry.data for entries in loaded.tests.values() for entry in entries.values()}
    there = folder_beside(baseline).glob(f"*{SUFFIX}")
    return sorted(file for file in there if _NAME.fullmatch(file.name) and file.name not in named)


def chosen(measurements: Sequence[Measurement]) -> KernelTable | None:
    """The kernel table for the entry of these processes, or None where no process has a table.

    The table is the first with counters, else the first; never one whose counters and trace do not
    match, since then the step launches something else every time or was not counted.
    """
    tables = [m.kernels for m in measurements if m.kernels is not None and not m.kernels.mismatch]
    return next((table for table in tables if table.metrics), tables[0] if tables else None)


def _problems(loaded: EntryData) -> Iterator[Problem]:
    if loaded.kernels is not None:
        yield from ((f"kernels/{where}", problem) for where, problem in problems(loaded.kernels))


def problems(table: KernelTable) -> Iterator[Problem]:
    """The problems of a table that its types do not exclude."""
    for what, length, expected in (
        ("site_of", len(table.site_of) or len(table.launches), len(table.launches)),
        ("idles", len(table.idles), len(table.busy)),
    ):
        if length != expected:
            yield what, f"{length} entries, expected {expected}"
    places = len(table.sites)
    for what, indices, there in (
        ("launches", [launch.name for launch in table.launches], len(table.names)),
        ("site_of", table.site_of, places),
        ("calls", [call.site for call in table.calls], places),
        ("idle_at", [entry.site for entry in table.idle_at], places),
    ):
        for number, index in enumerate(indices):
            if not 0 <= index < there:
                yield f"{what}/{number}", f"index {index} of {there} entries"
    for number, launch in enumerate(table.launches):
        if launch.values and len(launch.values) != (wanted := len(table.metrics)):
            problem = f"{len(launch.values)} values for {wanted} metrics"
            yield f"launches/{number}/values", problem
    for what, times in (
        ("launches", [launch.duration for launch in table.launches]),
        ("busy", table.busy),
        ("idles", (*table.idles, table.idle)),
        ("idle_at", [entry.idle for entry in table.idle_at]),
    ):
        for number, time in enumerate(times):
            if time < 0:
                yield f"{what}/{number}", f"{time:g} ns, but a time cannot be negative"
    for number, peer in enumerate(table.peers):
        yield from ((f"peers/{number}/{where}", problem) for where, problem in problems(peer))
