"""The kernel tables of a suite's baselines: `<suite>.kernels.json.xz`, beside the YAML.

A table of 1,500 launches is too long to review, so the YAML has what people look at (how often each
kernel is launched) and a digest of the table, and the table itself is here. It says which kernels a
regression comes from. No verdict needs it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from pytest_gpuperf.errors import BadFile
from pytest_gpuperf.model.entry import KernelFile, KernelList, Tables
from pytest_gpuperf.model.measurement import Device, KernelTable, Measurement
from pytest_gpuperf.storage import baseline_files, files
from pytest_gpuperf.storage.files import Problem

SCHEMA = 1
SUFFIX = ".kernels.json.xz"
_REMEDY = (
    "Restore it from git, or delete it and accept a new run (gpuperf record, which counts kernels, "
    "then gpuperf update-baseline)"
)
_DIGITS = 16


def path_beside(baseline: Path) -> Path:
    """Where the kernel tables of the baselines in this YAML file are kept."""
    return baseline.with_name(baseline.stem + SUFFIX)


def load_for(baseline: Path, device: Device, suite: str) -> KernelFile | None:
    """The tables beside the baselines of `suite` on `device`, or None when there are none.

    Raises UsageFailure for a file that cannot be read, and BadFile, also for one of another device
    or suite that was put into this one's place.
    """
    file = path_beside(baseline)
    try:
        loaded = parsed(file, files.read_bytes(file))
    except FileNotFoundError:
        return None
    baseline_files.check_place(loaded, device, suite, file, _REMEDY)
    return loaded


# Each measurement asks for its own table, and reading those of a suite takes half a second.
@lru_cache(maxsize=2)
def parsed(file: Path, content: bytes) -> KernelFile:
    """The tables that `content`, read from `file`, says. Raises BadFile."""
    loaded = files.validate(
        files.parse_json(content, file, _REMEDY), KernelFile, file, SCHEMA, _REMEDY
    )
    files.check(_problems(loaded), file, _REMEDY)
    return loaded


def content(tables: Tables, device: Device, suite: str, replaced: Tables | None = None) -> bytes:
    """What the file of these tables holds; `replaced` are those of the baselines as they still are.

    Without such ones it is as it has always been. Raises BadFile for more than is read.
    """
    kept = KernelFile(SCHEMA, device.arch, device.name, suite, tables, replaced or {})
    absent = None if replaced else {"replaced"}
    text = files.adapter(KernelFile).dump_json(kept, by_alias=True, exclude=absent).decode()
    return files.packed(text.encode(), Path(suite + SUFFIX))


def accepted_table(
    known: KernelFile, test: str, name: str, expected: KernelList
) -> KernelTable | None:
    """The table that an entry was accepted with, where the file has it.

    While tables are replaced a file has the old ones too, so that whoever is killed between the
    writing of two files leaves two that belong together.
    """
    for tables in (known.tests, known.replaced):
        table = tables.get(test, {}).get(name)
        if table is not None and digest(table) == expected.digest:
            return table
    return None


def table_of(
    baseline: Path, device: Device, suite: str, test: str, name: str, expected: KernelList | None
) -> KernelTable:
    """The table that an entry of the baselines in the YAML file was accepted with.

    `expected` is what the entry says of it. Raises UsageFailure and BadFile, which say why there is
    none and what to do about it.
    """
    if expected is None:
        problem = "the entry has no kernels"
        remedy = "Accept a run of gpuperf record, which counts them"
        raise BadFile(baseline, f"tests/{test}/{name}", problem, remedy)
    file, entry = path_beside(baseline), f"tests/{test}/{name}"
    known = load_for(baseline, device, suite)
    if known is None:
        raise BadFile(file, "", "no such file", _REMEDY)
    table = accepted_table(known, test, name, expected)
    if table is None:
        other = known.tests.get(test, {}).get(name)
        if other is None:
            raise BadFile(file, entry, "no such entry", _REMEDY)
        problem = f"not the table that was accepted: {digest(other)}, not {expected.digest}"
        raise BadFile(file, entry, problem, _REMEDY)
    return table


def chosen(measurements: Sequence[Measurement]) -> KernelTable | None:
    """The table that these processes' entry gets, or None where no process has one.

    That of the first with counters, else of the first; never one whose counters and trace did not
    match, since then the step launches something else every time or was not counted.
    """
    tables = [m.kernels for m in measurements if m.kernels is not None and not m.kernels.mismatch]
    return next((table for table in tables if table.metrics), tables[0] if tables else None)


def listed(table: KernelTable) -> KernelList:
    """What the baseline file says of a table."""
    from pytest_gpuperf.catalogue import kernel_families

    # An operator's data type is not shown.
    names = [n.partition(" ")[0] if table.of_operators else n for n in table.names]
    shown = [(kernel_families.family(name), kernel_families.short_name(name)) for name in names]
    counted = Counter(shown[launch.name] for launch in table.launches)
    rows = tuple((family, name, counted[family, name]) for family, name in sorted(counted))
    return KernelList(digest(table), rows)


def digest(table: KernelTable) -> str:
    """The beginning of the SHA-256 of a table.

    What has its default is left out, so that a field that a later version adds changes no digest.
    So are lines of code: an edit elsewhere in a file moves them.
    """
    what = _without_lines(replace(table, peers=tuple(map(_without_lines, table.peers))))
    plain = files.adapter(KernelTable).dump_python(what, mode="json", exclude_defaults=True)
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _without_lines(table: KernelTable) -> KernelTable:
    return replace(table, sites=(), site_of=(), calls=(), idle_at=())


def _problems(loaded: KernelFile) -> Iterator[Problem]:
    for key, tests in (("tests", loaded.tests), ("replaced", loaded.replaced)):
        for test, tables in tests.items():
            for name, table in tables.items():
                for where, problem in problems(table):
                    yield f"{key}/{test}/{name}/{where}", problem


def problems(table: KernelTable) -> Iterator[Problem]:
    """What the types of a table cannot say."""
    for what, length, expected in (
        ("site_of", len(table.site_of) or len(table.launches), len(table.launches)),
        ("idles", len(table.idles), len(table.busy)),
    ):
        if length != expected:
            yield what, f"{length}, and there are {expected}"
    places = len(table.sites)
    for what, indices, there in (
        ("launches", [launch.name for launch in table.launches], len(table.names)),
        ("site_of", table.site_of, places),
        ("calls", [call.site for call in table.calls], places),
        ("idle_at", [entry.site for entry in table.idle_at], places),
    ):
        for number, index in enumerate(indices):
            if not 0 <= index < there:
                yield f"{what}/{number}", f"{index}, and there are {there}"
    for number, launch in enumerate(table.launches):
        if launch.values and len(launch.values) != len(table.metrics):
            yield f"launches/{number}/values", f"{len(launch.values)}, of {len(table.metrics)}"
    for what, times in (
        ("launches", [launch.duration for launch in table.launches]),
        ("busy", table.busy),
        ("idles", (*table.idles, table.idle)),
        ("idle_at", [entry.idle for entry in table.idle_at]),
    ):
        for number, time in enumerate(times):
            if time < 0:
                yield f"{what}/{number}", f"{time:g} ns, which is no time"
    for number, peer in enumerate(table.peers):
        yield from ((f"peers/{number}/{where}", problem) for where, problem in problems(peer))
