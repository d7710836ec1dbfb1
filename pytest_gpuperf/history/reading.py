"""Many run files over time. Each is read in full, but only the fields of a history are kept.

Parsing also validates these fields. If a file is wrong, `run_files.load` reads it once more and
names the problem.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

from pytest_gpuperf.catalogue.metric_catalogue import catalogue, impossible
from pytest_gpuperf.catalogue.units import counted
from pytest_gpuperf.errors import BadFile, GpuperfError, UsageFailure, printable
from pytest_gpuperf.history.levels import NightlyValues
from pytest_gpuperf.history.suspects import Night, Surroundings
from pytest_gpuperf.model.measurement import STEP, Fingerprint, Sample, Scalar
from pytest_gpuperf.model.result import Unfinished
from pytest_gpuperf.storage import files, run_files
from pytest_gpuperf.storage.files import COMPRESSED

_ENDINGS = (".json", f".json{COMPRESSED}")
_REMEDY = "The history omits this file"
_ALONE = 400
"""The most files read without other processes, which take as long to start."""
_CHUNK = 200
"""Files that a process reads at a time."""
_DAY = 86_400
_UNFIT = "unfit"
_NO_RUN = (("missing", ("measurements",)), ("dataclass_type", ()))
"""Errors of pydantic, with their places, for JSON that is no run."""


DeviceKey = tuple[str, str]
"""Architecture and slug."""
MeasurementKey = tuple[str, str, str, str]
"""Test, name of the measurement within it, architecture and device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations(NightlyValues):
    """One metric of one measurement on one device, by night in order of time.

    A value is the median over the night's processes of each one's median over its rounds.
    """

    key: MeasurementKey
    nights: Sequence[Night]
    files: Sequence[Path]
    """Per night a file that it is from."""

    @property
    def test(self) -> str:
        """The node id."""
        return self.key[0]

    @property
    def name(self) -> str:
        """The measurement's name within its test."""
        return self.key[1]

    @property
    def device(self) -> DeviceKey:
        """Architecture and slug."""
        return self.key[2:]


@dataclass(frozen=True, slots=True)
class Recollection:
    """The data of many runs."""

    series: tuple[Observations, ...]
    files: Sequence[Path]
    """The runs that were read."""
    days: Mapping[DeviceKey, Collection[int]]
    """The days on which a device measured, fit or not."""
    problems: tuple[str, ...]
    """One message for each file, and for each project, that was left out."""
    partial: tuple[str, ...]
    """One message for each night on which pytest did not finish, the latest first."""


def run_files_of(named: Sequence[str]) -> list[Path]:
    """The run files that these folders, patterns and files name.

    Folders are searched recursively; names that begin with a dot are skipped. Raises UsageFailure
    for a name that matches nothing.
    """
    import glob

    places: dict[Path, None] = {}
    for name in named:
        matched = [Path(one) for one in glob.glob(name, recursive=True)]  # noqa: PTH207
        matched = matched or ([Path(name)] if Path(name).exists() else [])
        runs = [run for place in matched for run in _runs_in(place)]
        if not runs:
            raise UsageFailure(
                f"{name} has no run file. Name a folder with runs (.json, .json.xz), a pattern in "
                "quotes, or files"
            )
        places |= dict.fromkeys(runs)
    return sorted(places, key=str)


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


def recollect(places: Sequence[Path], projects: Collection[str] = ()) -> Recollection:
    """The observations in those of these files that are runs of `projects`.

    Without `projects`: of the project of the latest run. A run that names no project is of any.
    Named in `problems`: broken files, runs dated before 1970 or later than now, and runs of other
    projects. JSON without measurements, and what `gpuperf prove` wrote, is no run of a night.
    """
    found = [(file, one) for file, one in zip(places, _extracts(places), strict=True) if one]
    named = [(one.at, one.project) for _, one in found if one.project]
    own = {*(projects or (name for _, name in sorted(named)[-1:]))}
    runs = [(file, one) for file, one in found if one.project in {"", *own} and not one.problem]
    others = Counter(name for _, name in named if name not in own)
    partial = filter(None, (one.partial for _, one in runs))
    measured = _joined(runs)
    known = _nights(measured.values())
    return Recollection(
        series=tuple(one for key, of in measured.items() for one in _series(key, of, known)),
        files=[file for file, _ in runs],
        days=_days(measured),
        problems=(
            *(_of_another(name, runs, own) for name, runs in others.items()),
            *(printable(one.problem) for _, one in found if one.problem),
        ),
        partial=tuple(sorted(map(printable, partial), reverse=True)),
    )


def _of_another(name: str, runs: int, own: Collection[str]) -> str:
    """A message for the runs of a project that the history is not of."""
    return printable(
        f"{counted(runs, 'run')} of the project {name} left out: this is the history of "
        f"{', '.join(sorted(own))}. To see them: gpuperf history --project {shlex.quote(name)}"
    )


# Reading a file


@dataclass(frozen=True, slots=True)
class _SlimMeasurement:
    """A `Measurement` with only the fields of a history, without kernels."""

    test: str
    name: str
    process: str
    workload: Mapping[str, Scalar]
    samples: tuple[Sample, ...]
    fingerprint: Fingerprint


@dataclass(frozen=True, slots=True)
class _SlimVerdict:
    test: str
    name: str
    outcome: str


@dataclass(frozen=True, slots=True)
class _SlimRun:
    """A run file's fields that a history needs; the others are skipped."""

    schema: int
    created: datetime
    command: str
    measurements: tuple[_SlimMeasurement, ...]
    verdicts: tuple[_SlimVerdict, ...] = ()
    unfinished: Unfinished | None = None


@dataclass(frozen=True, slots=True)
class _Taken:
    """The kept fields of one measurement."""

    key: MeasurementKey
    process: str
    at: int
    """The time of its file: seconds since 1970."""
    environment: str
    """A `Surroundings`, as JSON."""
    fit: bool
    values: Mapping[str, float]
    """Values by metric."""
    canaries: Sequence[Mapping[str, float]]
    """What the canary read before and after it; () if those cannot be compared."""


@dataclass(frozen=True, slots=True)
class _Extract:
    """The kept fields of one file."""

    problem: str
    """Why it is left out; "" if it is not."""
    measurements: Sequence[_Taken] = ()
    partial: str = ""
    """The night and the progress of a pytest that did not finish; "" if it finished."""
    at: int = 0
    """The time of the file: seconds since 1970."""
    project: str = ""
    """As `Fingerprint` has it."""


def _extracts(places: Sequence[Path]) -> Iterator[_Extract | None]:
    """The kept fields of each of these files, read by one process per core; None for no run."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if len(places) < _ALONE or cores < 2:
        yield from map(_extract_of, places)
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(min(cores, 8), mp_context=get_context("spawn")) as pool:
        yield from pool.map(_extract_of, places, chunksize=_CHUNK)


def _extract_of(place: Path) -> _Extract | None:
    """The kept fields of a file; None for no run."""
    try:
        slim = _read(place)
    except FileNotFoundError:
        return _Extract(f"{place}: no such file. {_REMEDY}")
    except BadFile as error:
        # The remedy only helps a reader of this one file.
        return _Extract(str(BadFile(error.file, error.entry, error.problem, _REMEDY)))
    except GpuperfError as error:
        return _Extract(str(error))
    if slim is None:
        return None
    created = slim.created if slim.created.tzinfo else slim.created.replace(tzinfo=timezone.utc)
    at = int(created.timestamp())
    if not 0 <= at <= time.time():
        when = "before 1970" if at < 0 else "in the future"
        return _Extract(f"{place} is dated {created.isoformat()}, which is {when}. {_REMEDY}")
    night = datetime.fromtimestamp(at, timezone.utc).date()
    partial = f"{night} is partial: {slim.unfinished} ({place})" if slim.unfinished else ""
    unfit = {(one.test, one.name) for one in slim.verdicts if one.outcome == _UNFIT}
    taken = [_taken(one, at, (one.test, one.name) not in unfit) for one in slim.measurements]
    projects = (one.fingerprint.project for one in slim.measurements)
    return _Extract("", taken, partial, at, next(filter(None, projects), ""))


def _read(place: Path) -> _SlimRun | None:
    """The run in this file; None for no run. Raises FileNotFoundError, BadFile, UsageFailure."""
    from pydantic import ValidationError

    text = files.decoded(files.read_bytes(place), place, _REMEDY)
    try:
        slim = files.adapter(_SlimRun).validate_json(text)
    except ValidationError as error:
        if any((one["type"], one["loc"]) in _NO_RUN for one in error.errors()):
            return None
        run_files.load(place)
        raise UsageFailure(f"{place}: {error.errors()[0]['msg']}. {_REMEDY}") from None
    if slim.command.startswith(run_files.PROVE):
        return None
    if slim.schema != run_files.SCHEMA or any(map(_wrong, slim.measurements)):
        run_files.load(place)
    return slim


def _wrong(measured: _SlimMeasurement) -> bool:
    """Whether it has impossible values; `run_files.load` names them."""
    device = measured.fingerprint.device
    of_step = {s.metric: s.values for s in measured.samples if s.phase == STEP}
    problems = (
        *filter(files.name_problem, (device.arch, device.slug)),
        *impossible(STEP, of_step),
    )
    return bool(problems) or not all(of_step.values())


def _taken(measured: _SlimMeasurement, at: int, fit: bool) -> _Taken:
    under = measured.fingerprint
    canaries = under.conditions.canaries if under.conditions else None
    code = canaries[0].code if canaries and canaries[0].code == canaries[1].code else ""
    facts = asdict(under.machine) if under.machine else {}
    environment = Surroundings(
        device=under.device.name,
        gpu=under.device.identity,
        revision=under.revision,
        software=under.software,
        machine={name: fact for name, fact in facts.items() if fact not in (None, "")},
        workload=measured.workload,
        collector=str(under.settings.get("collector", "")),
        canary=code,
    )
    known = catalogue().metrics
    return _Taken(
        key=(measured.test, measured.name, under.device.arch, under.device.slug),
        process=measured.process,
        at=at,
        environment=json.dumps({n: getattr(environment, n) for n in Surroundings.__slots__}),
        fit=fit,
        values={
            # The catalogue's own name: there are ten of them, and a million values.
            known[sample.metric].name: median(sample.values)
            for sample in measured.samples
            if sample.phase == STEP and sample.metric in known and sample.values
        },
        canaries=[canary.readings for canary in canaries or ()] if code else (),
    )


# Joining files

_NightKey = tuple[int, str]
"""A day, and the surroundings as JSON."""
_Processes = dict[_NightKey, list[tuple[Path, _Taken]]]
"""The processes of each night of one measurement, with their files."""


def _joined(extracts: Iterable[tuple[Path, _Extract]]) -> dict[MeasurementKey, _Processes]:
    """The processes of each measurement, each counted once even if several files have it."""
    counted: dict[tuple[str, str, str], Path] = {}
    joined: dict[MeasurementKey, _Processes] = {}
    for file, extract in extracts:
        for one in extract.measurements:
            test, name, *_ = one.key
            if counted.setdefault((test, name, one.process), file) == file:
                nights = joined.setdefault(one.key, {})
                nights.setdefault((one.at // _DAY, one.environment), []).append((file, one))
    return joined


def _nights(measured: Iterable[_Processes]) -> dict[_NightKey, Night]:
    """The nights, with the median of each canary reading."""
    read: dict[_NightKey, dict[str, list[float]]] = {}
    for nights in measured:
        for night, processes in nights.items():
            known = read.setdefault(night, {})
            for readings in (readings for _, one in processes for readings in one.canaries):
                for name, value in readings.items():
                    known.setdefault(name, []).append(value)
    under = {text: Surroundings(**json.loads(text)) for text in {text for _, text in read}}
    return {
        (day, text): Night(day, under[text], {n: median(of) for n, of in known.items()})
        for (day, text), known in read.items()
    }


def _series(
    key: MeasurementKey, nights: _Processes, known: Mapping[_NightKey, Night]
) -> Iterator[Observations]:
    """Each metric of a measurement, from fit processes."""
    begins = {night: min(one.at for _, one in processes) for night, processes in nights.items()}
    by_metric: dict[str, list[tuple[_NightKey, float]]] = {}
    for night in sorted(nights, key=lambda night: (night[0], begins[night])):
        for metric, value in _medians_of(nights[night]).items():
            by_metric.setdefault(metric, []).append((night, value))
    for metric, points in by_metric.items():
        yield Observations(
            catalogue().metrics[metric],
            [value for _, value in points],
            [day for (day, _), _ in points],
            key=key,
            nights=[known[night] for night, _ in points],
            files=[nights[night][0][0] for night, _ in points],
        )


def _medians_of(processes: Sequence[tuple[Path, _Taken]]) -> Mapping[str, float]:
    """The median over fit processes, by metric."""
    fit = [one.values for _, one in processes if one.fit]
    if len(fit) == 1:
        return fit[0]
    metrics = dict.fromkeys(metric for values in fit for metric in values)
    return {name: median(values[name] for values in fit if name in values) for name in metrics}


def _days(measured: Mapping[MeasurementKey, _Processes]) -> Mapping[DeviceKey, Collection[int]]:
    days: dict[DeviceKey, set[int]] = {}
    for (_, _, *device), nights in measured.items():
        days.setdefault((device[0], device[1]), set()).update(day for day, _ in nights)
    return days
