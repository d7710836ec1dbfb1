"""What many run files say over time, by an index beside them that nobody has to look after.

Reading ten thousand run files takes half a minute, so what a history needs of each is kept in a
DuckDB file in their folder, and a file is read again when its size or its time of change is another
one. An index that is broken, of another version or somebody else's is made anew; where none can be
written, everything is read each time.

Of a file only what a history needs is validated, in one go with parsing; one that is wrong there is
read once more by `run_files.load`, which says what is wrong with it.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.catalogue.metric_catalogue import catalogue, impossible
from pytest_gpuperf.errors import BadFile, GpuperfError, UsageFailure
from pytest_gpuperf.judge.suspects import Surroundings
from pytest_gpuperf.judge.tolerance import unreadable
from pytest_gpuperf.model.measurement import STEP, Scalar
from pytest_gpuperf.model.result import Unfinished
from pytest_gpuperf.storage import files, run_files
from pytest_gpuperf.storage.files import COMPRESSED

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pydantic import ValidationError

FOLDER = ".gpuperf-history"
"""Of the index, in the folder of the runs."""
INDEX = "index.duckdb"
_VERSION = "3"
"""Of the index; one of another version is made anew."""
_ENDINGS = (".json", f".json{COMPRESSED}")
_REMEDY = "It is left out of the history"
_ALONE = 400
"""So few files are read by this process: another takes as long to begin."""
_CHUNK = 200
"""Files that a process reads at a time."""
_DAY = 86_400
_UNFIT = "unfit"


@dataclass(frozen=True, slots=True)
class Observations:
    """One metric of one measurement on one device, night by night in the order of time."""

    test: str
    name: str
    """Of the measurement within its test."""
    arch: str
    slug: str
    metric: str
    days: Sequence[int]
    """Since 1970-01-01, UTC."""
    values: Sequence[float]
    """The median over the night's processes of each one's median over its rounds."""
    surroundings: Sequence[int]
    """Per night its position in `Recollection.surroundings`."""
    files: Sequence[int]
    """Per night a file that it is from, as a position in `Recollection.files`."""
    tolerance: str | None = None
    """What was tolerated of it in the last night, as it was written; None where nobody did."""


@dataclass(frozen=True, slots=True)
class Recollection:
    """All that is known of many runs."""

    series: tuple[Observations, ...]
    surroundings: Sequence[Surroundings]
    files: Sequence[Path]
    readings: Mapping[tuple[int, int], Mapping[str, float]]
    """Of the canary, by day and position of the surroundings: medians over what was read there."""
    unfit: Mapping[tuple[str, str, str, str], frozenset[int]]
    """By test, name, architecture and device the days whose measurements nobody may judge."""
    nights: Mapping[tuple[str, str], tuple[int, ...]]
    """By architecture and device, the days on which anything was measured on it."""
    problems: tuple[str, ...]
    """Of the files that were left out, a message each."""
    partial: tuple[str, ...]
    """Of the nights whose pytest did not come to its end, a message each, the latest first."""
    read: int
    """How many files were read just now; the others were known."""
    note: str = ""
    """Why nothing is kept for the next time."""


def run_files_of(named: Sequence[str]) -> tuple[list[Path], Path]:
    """The run files that these folders, patterns and files name, and the folder of their index.

    Folders are searched with all inside them; what begins with a dot is none of ours. Raises
    UsageFailure for a name that stands for nothing.
    """
    import glob

    places: dict[Path, None] = {}
    for name in named:
        matched = [Path(one) for one in glob.glob(name, recursive=True)]  # noqa: PTH207
        matched = matched or ([Path(name)] if Path(name).exists() else [])
        runs = [run for place in matched for run in _runs_in(place)]
        if not runs:
            raise UsageFailure(
                f"{name}: no run file there. Name a folder with runs (.json, .json.xz), a pattern "
                "in quotes, or files"
            )
        places |= dict.fromkeys(runs)
    folders = [Path(name) for name in named if Path(name).is_dir()]
    if len(folders) != len(named) or len(folders) > 1:
        above = os.path.commonpath([path.absolute().parent for path in places])
        return sorted(places, key=str), Path(above)
    return sorted(places, key=str), folders[0]


def _runs_in(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        return
    for folder, below, names in os.walk(place):
        below[:] = [name for name in below if not name.startswith(".")]
        here = Path(folder)
        yield from (
            here / name for name in names if name.endswith(_ENDINGS) and not name.startswith(".")
        )


def recollect(runs: Sequence[Path], folder: Path, now: float | None = None) -> Recollection:
    """What these run files say, by the index in `folder`, which is made or brought up to date.

    Broken files, and runs dated after `now` (seconds since 1970; None: this moment), are named in
    `problems`, and left out. Raises UsageFailure where DuckDB is not installed.
    """
    now = time.time() if now is None else now
    try:
        import duckdb
    except ImportError:
        raise UsageFailure(
            "gpuperf history keeps what it reads in DuckDB, which is not installed: "
            "pip install duckdb"
        ) from None
    place = folder / FOLDER / INDEX
    files.ignored_by_git(place.parent)
    try:
        return _by_index(place, runs, folder, now)
    except (duckdb.Error, _Foreign) as error:
        problem = str(error).splitlines()[0]
    if "lock" not in problem.lower():
        # No index of ours, or a broken one: once more without it.
        with suppress(OSError):
            for one in (place, place.with_name(f"{INDEX}.wal")):
                one.unlink(missing_ok=True)
        with suppress(duckdb.Error, _Foreign):
            return _by_index(place, runs, folder, now)
    with duckdb.connect(":memory:", config=_CONFIGURATION) as index:
        note = f"{place} cannot be used ({problem}): nothing is kept for the next time"
        return _updated(index, runs, folder, now, note)


def _by_index(place: Path, runs: Sequence[Path], folder: Path, now: float) -> Recollection:
    import duckdb

    with duckdb.connect(str(place), config=_CONFIGURATION) as index:
        return _updated(index, runs, folder, now)


_CONFIGURATION: dict[str, Any] = {"memory_limit": "512MB"}


class _Foreign(Exception):
    """A DuckDB file that is no index of this version."""


_TABLES = """
CREATE TABLE meta (version VARCHAR);
CREATE TABLE files (file INTEGER, path VARCHAR, size BIGINT, mtime BIGINT, problem VARCHAR,
                    made BIGINT, partial VARCHAR);
CREATE TABLE names (kind VARCHAR, id INTEGER, text VARCHAR);
CREATE TABLE measurements (measurement INTEGER, file INTEGER, test INTEGER, environment INTEGER,
                           process INTEGER, made BIGINT, fit BOOLEAN, tolerance INTEGER);
CREATE TABLE points (measurement INTEGER, metric SMALLINT, value DOUBLE);
CREATE TABLE readings (measurement INTEGER, reading SMALLINT, value DOUBLE);
"""


def _updated(
    index: DuckDBPyConnection, runs: Sequence[Path], folder: Path, now: float, note: str = ""
) -> Recollection:
    _prepared(index)
    begin = f"{folder}{os.sep}"
    places = {
        name[len(begin) :]
        if (name := str(run)).startswith(begin)
        else os.path.relpath(run, folder): run
        for run in runs
    }
    stats = {name: _stat(run) for name, run in places.items()}
    known = {
        path: (file, size, mtime)
        for file, path, size, mtime in index.execute(
            "SELECT file, path, size, mtime FROM files"
        ).fetchall()
    }
    changed = [name for name, stat in stats.items() if known.get(name, ())[1:] != stat]
    gone = [name for name in known if name not in stats and not (folder / name).exists()]
    stale = [known[name][0] for name in (*changed, *gone) if name in known]
    if stale or changed:
        index.begin()
        _forget(index, stale)
        _learn(index, changed, places, stats)
        index.commit()
    return _recalled(index, places, len(changed), now, note)


def _prepared(index: DuckDBPyConnection) -> None:
    tables = {
        name for (name,) in index.execute("SELECT table_name FROM duckdb_tables()").fetchall()
    }
    if not tables:
        index.execute(_TABLES)
        index.execute("INSERT INTO meta VALUES (?)", [_VERSION])
    version = index.execute("SELECT version FROM meta").fetchall() if "meta" in tables else []
    if tables and version != [(_VERSION,)]:
        raise _Foreign("of another version, or no index of ours")


def _stat(run: Path) -> tuple[int, int]:
    try:
        status = os.stat(run)  # noqa: PTH116
    except OSError:
        return -1, -1
    return status.st_size, status.st_mtime_ns


def _forget(index: DuckDBPyConnection, stale: Sequence[int]) -> None:
    """What files said that are gone, or that say something else now."""
    if not stale:
        return
    index.execute("CREATE OR REPLACE TEMP TABLE stale AS SELECT unnest(?) AS file", [list(stale)])
    old = "SELECT measurement FROM measurements WHERE file IN (SELECT file FROM stale)"
    index.execute(f"DELETE FROM points WHERE measurement IN ({old})")
    index.execute(f"DELETE FROM readings WHERE measurement IN ({old})")
    index.execute("DELETE FROM measurements WHERE file IN (SELECT file FROM stale)")
    index.execute("DELETE FROM files WHERE file IN (SELECT file FROM stale)")


class _Names:
    """Texts of one kind by number: a column of numbers takes a tenth of one of texts."""

    def __init__(self, index: DuckDBPyConnection, kind: str) -> None:
        self._index, self._kind = index, kind
        rows = index.execute("SELECT text, id FROM names WHERE kind = ?", [kind]).fetchall()
        self._ids: dict[str, int] = dict(rows)
        self._next = max(self._ids.values(), default=-1) + 1
        self._new: list[str] = []

    def __getitem__(self, text: str) -> int:
        known = self._ids.get(text)
        if known is None:
            known = self._ids[text] = self._next
            self._next += 1
            self._new.append(text)
        return known

    def save(self) -> None:
        """Puts those that are new into the index."""
        ids = [self._ids[text] for text in self._new]
        _insert(self._index, "names", (_texts([self._kind] * len(ids)), ids, _texts(self._new)))


def _texts(texts: Sequence[str]) -> Any:
    import numpy as np

    return np.array(texts, dtype=object)


def _insert(index: DuckDBPyConnection, table: str, columns: Sequence[Any]) -> None:
    """Rows by columns: DuckDB takes arrays a hundred times faster than rows of Python's."""
    import numpy as np

    if not len(columns[0]):
        return
    rows = {f"c{n}": np.asarray(column) for n, column in enumerate(columns)}  # noqa: F841
    index.execute(f"INSERT INTO {table} SELECT * FROM rows")


def _learn(
    index: DuckDBPyConnection,
    changed: Sequence[str],
    places: Mapping[str, Path],
    stats: Mapping[str, tuple[int, int]],
) -> None:
    """Reads these files and puts what they say into the index."""
    kinds = ("test", "process", "environment", "metric", "reading", "tolerance")
    names = {kind: _Names(index, kind) for kind in kinds}
    (file,) = index.execute("SELECT coalesce(max(file), -1) FROM files").fetchall()[0]
    query = "SELECT coalesce(max(measurement), -1) FROM measurements"
    (number,) = index.execute(query).fetchall()[0]
    rows: list[tuple[Any, ...]] = []
    measured: list[tuple[Any, ...]] = []
    points: list[tuple[int, int, float]] = []
    readings: list[tuple[int, int, float]] = []
    for name, extract in zip(changed, _extracts([places[n] for n in changed]), strict=True):
        file += 1
        rows.append((file, name, *stats[name], extract.problem, extract.at, extract.partial))
        for one in extract.measurements:
            number += 1
            test, process = names["test"][one.test], names["process"][one.process]
            environment = names["environment"][one.environment]
            tolerance = names["tolerance"][one.tolerance]
            measured.append(
                (number, file, test, environment, process, extract.at, one.fit, tolerance)
            )
            points += ((number, names["metric"][m], v) for m, v in one.values)
            readings += ((number, names["reading"][r], v) for r, v in one.readings)
        if len(points) > _AT_ONCE:
            _insert_rows(index, measured, points, readings)
    _insert_rows(index, measured, points, readings)
    ids, paths, sizes, mtimes, problems, made, partial = [*zip(*rows, strict=True)] or [()] * 7
    columns = (ids, _texts(paths), sizes, mtimes, _texts(problems), made, _texts(partial))
    _insert(index, "files", columns)
    for kind in names.values():
        kind.save()


_AT_ONCE = 200_000
"""Points that are kept until they are put into the index."""


def _insert_rows(index: DuckDBPyConnection, *tables: list[tuple[Any, ...]]) -> None:
    for table, rows in zip(("measurements", "points", "readings"), tables, strict=True):
        if rows:
            _insert(index, table, list(zip(*rows, strict=True)))
            rows.clear()


# Reading a file


_FINITE: Any = {"allow_inf_nan": False}


@dataclass(frozen=True, slots=True)
class _SlimSample:
    __pydantic_config__ = _FINITE

    phase: str
    metric: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Read:
    code: str = ""
    readings: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _State:
    canary: _Read | None = None


@dataclass(frozen=True, slots=True)
class _States:
    before: _State
    after: _State


@dataclass(frozen=True, slots=True)
class _Where:
    arch: str
    name: str
    slug: str
    identity: str = ""


@dataclass(frozen=True, slots=True)
class _Under:
    device: _Where
    software: Mapping[str, str]
    settings: Mapping[str, Scalar]
    revision: str = ""
    conditions: _States | None = None
    machine: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _Measured:
    test: str
    name: str
    process: str
    workload: Mapping[str, Scalar]
    samples: tuple[_SlimSample, ...]
    fingerprint: _Under
    tolerance: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Said:
    test: str
    name: str
    outcome: str


@dataclass(frozen=True, slots=True)
class _Slim:
    """Of a run file what a history needs; the rest is passed over."""

    schema: int
    created: datetime
    measurements: tuple[_Measured, ...]
    verdicts: tuple[_Said, ...] = ()
    unfinished: Unfinished | None = None


@dataclass(frozen=True, slots=True)
class _Taken:
    """What is kept of one measurement."""

    test: str
    """Test and name, as JSON."""
    process: str
    environment: str
    """A `Surroundings`, as JSON."""
    fit: bool
    tolerance: str
    """What is tolerated of it, by metric, as JSON."""
    values: list[tuple[str, float]]
    readings: list[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class _Extract:
    """What is kept of one file."""

    problem: str
    at: int
    """When it was made: seconds since 1970."""
    measurements: list[_Taken]
    partial: str = ""
    """How far pytest had come that did not come to its end; "" where it did."""


def _extracts(places: Sequence[Path]) -> Iterator[_Extract]:
    """What is kept of each of these files, by as many processes as there are cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if len(places) < _ALONE or cores < 2:
        yield from _extract(places)
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    chunks = [places[n : n + _CHUNK] for n in range(0, len(places), _CHUNK)]
    # Not forked: DuckDB has threads here.
    with ProcessPoolExecutor(min(cores, 8), mp_context=get_context("spawn")) as pool:
        for extracts in pool.map(_extract, chunks):
            yield from extracts


def _extract(places: Iterable[Path]) -> list[_Extract]:
    return [_extract_of(place) for place in places]


def _extract_of(place: Path) -> _Extract:
    from pydantic import ValidationError

    try:
        text = files.decoded(files.read_bytes(place), place, _REMEDY)
        files.check_values(text, place, _REMEDY)
        try:
            slim = files.adapter(_Slim).validate_json(text)
        except ValidationError as error:
            if _is_no_run(error):
                return _Extract(f"{place} is no run file: left out", 0, [])
            run_files.load(place)
            raise UsageFailure(f"{place}: {error.errors()[0]['msg']}. {_REMEDY}") from None
        if slim.schema != run_files.SCHEMA or any(_wrong(one) for one in slim.measurements):
            run_files.load(place)
    except FileNotFoundError:
        return _Extract(f"{place}: it is gone", 0, [])
    except BadFile as error:
        # The remedy is for somebody who wants this very file.
        left_out = BadFile(error.file, error.entry, error.problem, _REMEDY)
        return _Extract(str(left_out).split("\n", 1)[0], 0, [])
    except GpuperfError as error:
        return _Extract(str(error).split("\n", 1)[0], 0, [])
    created = slim.created if slim.created.tzinfo else slim.created.replace(tzinfo=timezone.utc)
    unfit = {(one.test, one.name) for one in slim.verdicts if one.outcome == _UNFIT}
    taken = [_taken(one, (one.test, one.name) not in unfit) for one in slim.measurements]
    return _Extract("", int(created.timestamp()), taken, str(slim.unfinished or ""))


def _is_no_run(error: ValidationError) -> bool:
    """Whether the JSON is of another kind: no mapping, or one that names no version of ours."""
    return any(
        (one["type"], one["loc"]) in (("dataclass_type", ()), ("missing", ("schema",)))
        for one in error.errors(include_url=False, include_input=False)
    )


def _wrong(measured: _Measured) -> bool:
    """Whether it has values that nothing can have measured; `run_files.load` says which."""
    device = measured.fingerprint.device
    if files.name_problem(device.arch) or files.name_problem(device.slug):
        return True
    if any(True for _ in unreadable(measured.tolerance, catalogue().metrics)):
        return True
    by_phase = {s.metric: s.values for s in measured.samples if s.phase == STEP}
    return any(True for _ in impossible(STEP, by_phase)) or not all(by_phase.values())


def _taken(measured: _Measured, fit: bool) -> _Taken:
    under = measured.fingerprint
    states = under.conditions
    both = [s.canary for s in (states.before, states.after) if s.canary] if states else []
    codes = {canary.code for canary in both}
    device = under.device
    environment = Surroundings(
        arch=device.arch,
        slug=device.slug,
        device=device.name,
        gpu=device.identity,
        revision=under.revision,
        software=under.software,
        machine=_flat(under.machine or {}),
        workload=measured.workload,
        collector=str(under.settings.get("collector", "")),
        canary=next(iter(codes)) if len(codes) == 1 else "",
    )
    known = catalogue().metrics
    return _Taken(
        test=json.dumps([measured.test, measured.name]),
        process=measured.process,
        environment=json.dumps({n: getattr(environment, n) for n in Surroundings.__slots__}),
        fit=fit,
        tolerance=json.dumps(dict(measured.tolerance)),
        values=[
            (sample.metric, median(sample.values))
            for sample in measured.samples
            if sample.phase == STEP and sample.metric in known and sample.values
        ],
        readings=_both(both) if len(both) == 2 and len(codes) == 1 else [],
    )


def _flat(machine: Mapping[str, Any]) -> dict[str, Scalar]:
    return {
        name: ", ".join(map(str, value)) if isinstance(value, list) else value
        for name, value in machine.items()
        if value not in (None, "", [])
    }


def _both(canaries: Sequence[_Read]) -> list[tuple[str, float]]:
    """What the canary read before and after a measurement: the mean of the logarithms."""
    before, after = (canary.readings for canary in canaries)
    return [
        (name, math.sqrt(value * after[name]))
        for name, value in before.items()
        if after.get(name, 0) > 0 and value > 0
    ]


# Asking the index

_ONE_EACH = """
CREATE OR REPLACE TEMP TABLE counted AS
SELECT m.*, m.made // 86400 AS day FROM measurements m JOIN wanted USING (file)
QUALIFY m.file = min(m.file) OVER (PARTITION BY m.test, m.process)
"""
"""No process counts twice, whichever files it is in."""
_SERIES = """
SELECT test, device, metric, day, environment, median(value) AS value, min(file) AS file,
       arg_max(tolerance, made) AS tolerance
FROM (SELECT *, d.device AS device FROM counted JOIN points USING (measurement)
      JOIN devices d USING (environment) WHERE fit)
GROUP BY ALL ORDER BY test, device, metric, day, min(made), environment
"""


def _recalled(
    index: DuckDBPyConnection, places: Mapping[str, Path], read: int, now: float, note: str
) -> Recollection:
    import numpy as np

    query = "SELECT file, path, problem, made, partial FROM files"
    known = [row for row in index.execute(query).fetchall() if row[1] in places]
    dates = {row[0]: str(np.datetime64(row[3], "s")) for row in known}
    wanted = {
        file: (path, f"{places[path]} is dated {dates[file]}Z, after now: left out")
        if made > now
        else (path, problem)
        for file, path, problem, made, _ in known
    }
    told = [row for row in known if not wanted[row[0]][1]]
    partial = [
        f"{dates[file][:10]} is partial: {how} ({places[path]})"
        for file, path, _, _, how in told
        if how
    ]
    numbers = np.array([row[0] for row in told], dtype=np.int32)
    index.execute("CREATE OR REPLACE TEMP TABLE wanted (file INTEGER)")
    _insert(index, "wanted", (numbers,))
    index.execute(_ONE_EACH)
    names = {
        kind: dict(rows)
        for kind in ("test", "metric", "environment", "reading", "tolerance")
        for rows in [index.execute("SELECT id, text FROM names WHERE kind = ?", [kind]).fetchall()]
    }
    # The index has those of all files in its folder, whichever were named.
    under = index.execute("SELECT DISTINCT environment FROM counted ORDER BY environment")
    surroundings = {
        n: Surroundings(**json.loads(names["environment"][n])) for (n,) in under.fetchall()
    }
    devices: dict[tuple[str, str], int] = {}
    of = [devices.setdefault((s.arch, s.slug), len(devices)) for s in surroundings.values()]
    index.execute("CREATE OR REPLACE TEMP TABLE devices (environment INTEGER, device INTEGER)")
    _insert(index, "devices", (list(surroundings), of))
    keys = list(devices)
    order = {file: position for position, file in enumerate(wanted)}
    tests = {n: tuple(json.loads(text)) for n, text in names["test"].items()}
    placed = {n: position for position, n in enumerate(surroundings)}
    tolerated = {n: json.loads(text) for n, text in names["tolerance"].items()}
    return Recollection(
        series=tuple(_series(index, tests, keys, names["metric"], tolerated, placed, order)),
        surroundings=list(surroundings.values()),
        files=[places[path] for path, _ in wanted.values()],
        readings=_readings(index, names["reading"], placed),
        unfit=_unfit(index, tests, keys),
        nights=_nights(index, keys),
        problems=tuple(problem for _, problem in wanted.values() if problem),
        partial=tuple(sorted(partial, reverse=True)),
        read=read,
        note=note,
    )


def _series(
    index: DuckDBPyConnection,
    tests: Mapping[int, tuple[str, str]],
    devices: Sequence[tuple[str, str]],
    metrics: Mapping[int, str],
    tolerated: Mapping[int, Mapping[str, str]],
    placed: Mapping[int, int],
    order: Mapping[int, int],
) -> Iterator[Observations]:
    import numpy as np

    columns = index.execute(_SERIES).fetchnumpy()
    test, device, metric = columns["test"], columns["device"], columns["metric"]
    if not len(test):
        return
    begins = np.flatnonzero(
        np.r_[True, (np.diff(test) != 0) | (np.diff(device) != 0) | (np.diff(metric) != 0)]
    )
    days, values = columns["day"].tolist(), columns["value"].tolist()
    under = _replaced(columns["environment"], placed)
    sources = _replaced(columns["file"], order)
    for begin, end in zip(begins, [*begins[1:], len(test)], strict=True):
        part = slice(int(begin), int(end))
        name = metrics[int(metric[begin])]
        yield Observations(
            *tests[int(test[begin])],
            *devices[int(device[begin])],
            name,
            days[part],
            values[part],
            under[part],
            sources[part],
            tolerated[int(columns["tolerance"][end - 1])].get(name),
        )


def _replaced(numbers: Any, by: Mapping[int, int]) -> list[int]:
    """Each number as `by` has it: looking up half a million one by one takes longer."""
    import numpy as np

    table = np.zeros(max(by) + 1, dtype=np.int64)
    table[list(by)] = list(by.values())
    replaced: list[int] = table[numbers].tolist()
    return replaced


def _readings(
    index: DuckDBPyConnection, readings: Mapping[int, str], placed: Mapping[int, int]
) -> dict[tuple[int, int], dict[str, float]]:
    rows = index.execute(
        "SELECT day, environment, reading, median(value) FROM counted "
        "JOIN readings USING (measurement) GROUP BY ALL"
    ).fetchall()
    known: dict[tuple[int, int], dict[str, float]] = {}
    for day, environment, reading, value in rows:
        known.setdefault((day, placed[environment]), {})[readings[reading]] = value
    return known


def _unfit(
    index: DuckDBPyConnection,
    tests: Mapping[int, tuple[str, str]],
    devices: Sequence[tuple[str, str]],
) -> dict[tuple[str, str, str, str], frozenset[int]]:
    rows = index.execute(
        "SELECT test, device, list(DISTINCT day) FROM counted JOIN devices USING (environment) "
        "GROUP BY test, device, day HAVING NOT bool_or(fit)"
    ).fetchall()
    known: dict[tuple[str, str, str, str], set[int]] = {}
    for test, device, days in rows:
        known.setdefault((*tests[test], *devices[device]), set()).update(days)
    return {key: frozenset(days) for key, days in known.items()}


def _nights(
    index: DuckDBPyConnection, devices: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], tuple[int, ...]]:
    rows = index.execute(
        "SELECT device, list(DISTINCT day) FROM counted JOIN devices USING (environment) "
        "GROUP BY device"
    ).fetchall()
    return {devices[device]: tuple(sorted(days)) for device, days in rows}
