"""What many run files say over time: each is read anew, and of it only what a history needs.

That is validated in one go with parsing. A file that is wrong there is read once more by
`run_files.load`, which says what is wrong with it.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from pytest_gpuperf.catalogue.metric_catalogue import catalogue, impossible
from pytest_gpuperf.errors import BadFile, GpuperfError, UsageFailure
from pytest_gpuperf.history.suspects import Surroundings
from pytest_gpuperf.judge.tolerance import unreadable
from pytest_gpuperf.model.measurement import STEP, Canary, Fingerprint, Machine, Sample, Scalar
from pytest_gpuperf.model.result import Unfinished
from pytest_gpuperf.storage import files, run_files
from pytest_gpuperf.storage.files import COMPRESSED

if TYPE_CHECKING:
    from pydantic import ValidationError

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
    """What was tolerated of it in the last night, as it was written; None where nothing was."""


@dataclass(frozen=True, slots=True)
class Recollection:
    """All that is known of many runs."""

    series: tuple[Observations, ...]
    surroundings: Sequence[Surroundings]
    files: Sequence[Path]
    readings: Mapping[tuple[int, int], Mapping[str, float]]
    """Of the canary, by day and position of the surroundings: medians over what was read there."""
    unfit: Mapping[tuple[str, str, str, str], frozenset[int]]
    """By test, name, architecture and device, the days of which no measurement may be judged."""
    nights: Mapping[tuple[str, str], tuple[int, ...]]
    """By architecture and device, the days on which anything was measured on it."""
    problems: tuple[str, ...]
    """Of the files that were left out, a message each."""
    partial: tuple[str, ...]
    """Of the nights whose pytest did not come to its end, a message each, the latest first."""


def run_files_of(named: Sequence[str]) -> list[Path]:
    """The run files that these folders, patterns and files name.

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


def recollect(runs: Sequence[Path], now: float | None = None) -> Recollection:
    """What these run files say.

    Broken files, and runs dated after `now` (seconds since 1970; None: this moment), are named in
    `problems`, and left out.
    """
    now = time.time() if now is None else now
    kept = _Gathering()
    problems, partial = [], []
    for file, (run, extract) in enumerate(zip(runs, _extracts(runs), strict=True)):
        made = datetime.fromtimestamp(extract.at, timezone.utc) if not extract.problem else None
        if made is None:
            problems.append(extract.problem)
        elif extract.at > now:
            problems.append(f"{run} is dated {made:%Y-%m-%dT%H:%M:%S}Z, after now: left out")
        else:
            kept.add(file, extract)
            if extract.partial:
                partial.append(f"{made:%Y-%m-%d} is partial: {extract.partial} ({run})")
    return Recollection(
        series=tuple(kept.series()),
        surroundings=[Surroundings(**json.loads(text)) for text in kept.environments],
        files=list(runs),
        readings=kept.readings(),
        unfit=kept.unfit(),
        nights=kept.nights(),
        problems=tuple(problems),
        partial=tuple(sorted(partial, reverse=True)),
    )


# Reading a file


@dataclass(frozen=True, slots=True)
class _SlimMeasurement:
    """A `Measurement` without its kernels and all else that a history does not ask for."""

    test: str
    name: str
    process: str
    workload: Mapping[str, Scalar]
    samples: tuple[Sample, ...]
    fingerprint: Fingerprint
    tolerance: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _SlimVerdict:
    test: str
    name: str
    outcome: str


@dataclass(frozen=True, slots=True)
class _SlimRun:
    """Of a run file what a history needs; the rest is passed over."""

    schema: int
    created: datetime
    measurements: tuple[_SlimMeasurement, ...]
    verdicts: tuple[_SlimVerdict, ...] = ()
    unfinished: Unfinished | None = None


@dataclass(frozen=True, slots=True)
class _Taken:
    """What is kept of one measurement."""

    test: str
    name: str
    process: str
    device: tuple[str, str]
    """Architecture and slug."""
    environment: str
    """A `Surroundings`, as JSON."""
    fit: bool
    tolerance: Mapping[str, str]
    values: Mapping[str, float]
    """By metric."""
    readings: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Extract:
    """What is kept of one file."""

    problem: str
    at: int = 0
    """When it was made: seconds since 1970."""
    measurements: Sequence[_Taken] = ()
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
    with ProcessPoolExecutor(min(cores, 8), mp_context=get_context("spawn")) as pool:
        for extracts in pool.map(_extract, chunks):
            yield from extracts


def _extract(places: Iterable[Path]) -> list[_Extract]:
    return [_extract_of(place) for place in places]


def _extract_of(place: Path) -> _Extract:
    try:
        slim = _read(place)
    except FileNotFoundError:
        return _Extract(f"{place}: it is gone")
    except BadFile as error:
        # The remedy is for whoever wants this very file.
        left_out = BadFile(error.file, error.entry, error.problem, _REMEDY)
        return _Extract(str(left_out).split("\n", 1)[0])
    except GpuperfError as error:
        return _Extract(str(error).split("\n", 1)[0])
    if slim is None:
        return _Extract(f"{place} is no run file: left out")
    created = slim.created if slim.created.tzinfo else slim.created.replace(tzinfo=timezone.utc)
    unfit = {(one.test, one.name) for one in slim.verdicts if one.outcome == _UNFIT}
    taken = [_taken(one, (one.test, one.name) not in unfit) for one in slim.measurements]
    return _Extract("", int(created.timestamp()), taken, str(slim.unfinished or ""))


def _read(place: Path) -> _SlimRun | None:
    """The run in this file; None where its JSON is of another kind.

    Raises FileNotFoundError, BadFile and UsageFailure.
    """
    from pydantic import ValidationError

    text = files.decoded(files.read_bytes(place), place, _REMEDY)
    files.check_values(text, place, _REMEDY)
    try:
        slim = files.adapter(_SlimRun).validate_json(text)
    except ValidationError as error:
        if _is_no_run(error):
            return None
        run_files.load(place)
        raise UsageFailure(f"{place}: {error.errors()[0]['msg']}. {_REMEDY}") from None
    if slim.schema != run_files.SCHEMA or any(_wrong(one) for one in slim.measurements):
        run_files.load(place)
    return slim


def _is_no_run(error: ValidationError) -> bool:
    """Whether the JSON is of another kind: no mapping, or one that names no version of ours."""
    return any(
        (one["type"], one["loc"]) in (("dataclass_type", ()), ("missing", ("schema",)))
        for one in error.errors(include_url=False, include_input=False)
    )


def _wrong(measured: _SlimMeasurement) -> bool:
    """Whether it has values that nothing can have measured; `run_files.load` says which."""
    device = measured.fingerprint.device
    if files.name_problem(device.arch) or files.name_problem(device.slug):
        return True
    if any(True for _ in unreadable(measured.tolerance, catalogue().metrics)):
        return True
    by_phase = {s.metric: s.values for s in measured.samples if s.phase == STEP}
    return any(True for _ in impossible(STEP, by_phase)) or not all(by_phase.values())


def _taken(measured: _SlimMeasurement, fit: bool) -> _Taken:
    under = measured.fingerprint
    canaries = under.conditions.canaries if under.conditions else None
    code = canaries[0].code if canaries and canaries[0].code == canaries[1].code else ""
    environment = Surroundings(
        arch=under.device.arch,
        slug=under.device.slug,
        device=under.device.name,
        gpu=under.device.identity,
        revision=under.revision,
        software=under.software,
        machine=_flat(under.machine),
        workload=measured.workload,
        collector=str(under.settings.get("collector", "")),
        canary=code,
    )
    known = catalogue().metrics
    return _Taken(
        test=measured.test,
        name=measured.name,
        process=measured.process,
        device=(under.device.arch, under.device.slug),
        environment=json.dumps({n: getattr(environment, n) for n in Surroundings.__slots__}),
        fit=fit,
        tolerance=measured.tolerance,
        values={
            # The catalogue's own name: there are ten of them, and a million values.
            known[sample.metric].name: median(sample.values)
            for sample in measured.samples
            if sample.phase == STEP and sample.metric in known and sample.values
        },
        readings=_both(*canaries) if canaries and code else {},
    )


def _flat(machine: Machine | None) -> dict[str, Scalar]:
    """What is known of a machine, in words and numbers."""
    facts = asdict(machine) if machine else {}
    return {
        name: ", ".join(map(str, value)) if isinstance(value, tuple) else value
        for name, value in facts.items()
        if value not in (None, "", ())
    }


def _both(before: Canary, after: Canary) -> dict[str, float]:
    """What the canary read before and after a measurement: the mean of the logarithms."""
    return {
        name: math.sqrt(value * after.readings[name])
        for name, value in before.readings.items()
        if after.readings.get(name, 0) > 0 and value > 0
    }


# Joining files

_Night = tuple[int, int]
"""A day, and the position of what was measured under."""


@dataclass(slots=True)
class _Group:
    """The processes of one measurement in one night."""

    made: int
    """When the first was."""
    file: int
    taken: list[_Taken] = field(default_factory=list)
    tolerance: tuple[int, Mapping[str, str]] = (0, {})
    """The last one's, and when that was made."""


class _Gathering:
    """What files say, by measurement, device and night. No process counts twice."""

    def __init__(self) -> None:
        self.environments: dict[str, int] = {}
        """What was measured under, as JSON, with its position."""
        self._file_of: dict[tuple[str, str, str], int] = {}
        """Of each process of a measurement, the file that counts."""
        self._groups: dict[tuple[str, str, str, str], dict[_Night, _Group]] = {}

    def add(self, file: int, extract: _Extract) -> None:
        """Takes in what this file says, whose position is `file`."""
        for one in extract.measurements:
            if self._file_of.setdefault((one.test, one.name, one.process), file) != file:
                continue
            environment = self.environments.setdefault(one.environment, len(self.environments))
            nights = self._groups.setdefault((one.test, one.name, *one.device), {})
            night = (extract.at // _DAY, environment)
            group = nights.setdefault(night, _Group(extract.at, file))
            group.taken.append(one)
            group.made = min(group.made, extract.at)
            group.tolerance = max(group.tolerance, (extract.at, one.tolerance), key=lambda t: t[0])

    def series(self) -> Iterator[Observations]:
        """Each metric of each measurement, of what is fit."""
        for key, nights in self._groups.items():
            ordered = sorted(nights.items(), key=lambda entry: (entry[0][0], entry[1].made))
            by_metric: dict[str, list[tuple[_Night, float, _Group]]] = {}
            for night, group in ordered:
                values: dict[str, list[float]] = {}
                for one in group.taken:
                    for metric, value in one.values.items() if one.fit else ():
                        values.setdefault(metric, []).append(value)
                for metric, of_night in values.items():
                    value = of_night[0] if len(of_night) == 1 else median(of_night)
                    by_metric.setdefault(metric, []).append((night, value, group))
            for metric, points in by_metric.items():
                yield _observations(key, metric, points)

    def readings(self) -> dict[_Night, dict[str, float]]:
        """What the canary read of each night."""
        read: dict[_Night, dict[str, list[float]]] = {}
        for nights in self._groups.values():
            for night, group in nights.items():
                for one in group.taken:
                    for name, value in one.readings.items():
                        read.setdefault(night, {}).setdefault(name, []).append(value)
        return {
            night: {name: median(values) for name, values in of_night.items()}
            for night, of_night in read.items()
        }

    def unfit(self) -> dict[tuple[str, str, str, str], frozenset[int]]:
        """The days of each measurement on which all of it was unfit."""
        return {
            key: days
            for key, nights in self._groups.items()
            if (days := frozenset(day for day, _ in nights) - _fit_days(nights))
        }

    def nights(self) -> dict[tuple[str, str], tuple[int, ...]]:
        """The days of each device."""
        days: dict[tuple[str, str], set[int]] = {}
        for (_, _, arch, slug), nights in self._groups.items():
            days.setdefault((arch, slug), set()).update(day for day, _ in nights)
        return {device: tuple(sorted(of_one)) for device, of_one in days.items()}


def _fit_days(nights: Mapping[_Night, _Group]) -> set[int]:
    return {day for (day, _), group in nights.items() if any(one.fit for one in group.taken)}


def _observations(
    key: tuple[str, str, str, str], metric: str, points: Sequence[tuple[_Night, float, _Group]]
) -> Observations:
    *_, (_, _, last) = points
    return Observations(
        *key,
        metric,
        days=[day for (day, _), _, _ in points],
        values=[value for _, value, _ in points],
        surroundings=[environment for (_, environment), _, _ in points],
        files=[group.file for _, _, group in points],
        tolerance=last.tolerance[1].get(metric),
    )
