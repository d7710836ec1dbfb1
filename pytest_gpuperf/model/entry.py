"""Baseline files: entries with the values that are judged, their origins, and a log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from pytest_gpuperf.model.measurement import CHECKED, LENIENT, KernelTable, Scalar, checked


@dataclass(frozen=True, slots=True)
class Spread:
    """The noise of one class of metrics on identical code: standard deviations.

    They are shares of the value (0.001 is 0.1 %); for percentages, points divided by 100.
    """

    __pydantic_config__ = checked(gpus="units")

    rounds: float
    """Between the rounds of one process."""
    processes: float
    """Between the processes of one allocation, each represented by the median of its rounds."""
    allocations: float | None
    """Noise between days on one GPU, beyond that of processes; None where only one day was seen."""
    gpus: float | None
    """Noise between GPUs of one name, beyond that of one GPU; None where only one was seen."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The noise of a suite on one device, found by runs of identical code."""

    __pydantic_config__ = checked(gpus="units", trials="nights")

    date: str
    """The day of the calibration, UTC."""
    processes: int
    allocations: int
    """Pairs of a GPU and a day."""
    gpus: int
    trials: int
    """A/A trials: judgements of identical code that were made of these runs (cross-validated)."""
    false_alarms: int
    """The number of them that reported "regressed"."""
    classes: Mapping[str, Spread]
    """The noise of each class, by the value of `MetricClass`."""


Processes = tuple[tuple[float, ...], ...]
"""Per process, the values of its rounds."""
Values = float | tuple[float, ...]
"""A value of each process, the median of its rounds; a single number if all are equal."""


@dataclass(frozen=True, slots=True)
class CanarySeries:
    """The canary's readings beside each process, in the order of the processes."""

    code: str | tuple[str, ...]
    """The canary's `code`, one for all processes if they agree; "" without readings."""
    readings: Mapping[str, tuple[float | None, ...]]
    """Per reading the geometric mean of before and after each process, None without both."""

    @property
    def codes(self) -> tuple[str, ...]:
        """The canary's code of each process."""
        if isinstance(self.code, tuple):
            return self.code
        return (self.code,) * max(map(len, self.readings.values()), default=0)

    def of(self, process: int, reading: str) -> float | None:
        """The reading taken beside this process; None where it was not taken."""
        values = self.readings.get(reading, ())
        return values[process] if process < len(values) else None


_UNKNOWN = "-"
_GPU, _DAY = r"[\w.]+|-", r"\d{4}-\d\d-\d\d|-"
_PLACE = re.compile(rf"({_GPU}) ({_DAY})(?: x([1-9]\d{{0,4}}))?")


def places_text(gpus: Sequence[str], days: Sequence[str]) -> tuple[str, ...]:
    """The places of processes, as in a file: "838fbb58b5ce 2026-11-24 x5" is five on one GPU.

    "-" stands for a GPU or a day that is missing or unreadable.
    """
    places = (
        f"{gpu if re.fullmatch(_GPU, gpu) else _UNKNOWN} "
        f"{day if re.fullmatch(_DAY, day) else _UNKNOWN}"
        for gpu, day in zip(gpus, days, strict=True)
    )
    runs = ((place, len([*group])) for place, group in groupby(places))
    return tuple(f"{place} x{count}" if count > 1 else place for place, count in runs)


def _places(where: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The GPU and the day of each process; "" for what was not kept."""
    for text in where:
        if found := _PLACE.fullmatch(text):
            gpu, day, count = found.groups()
            known = gpu.replace(_UNKNOWN, ""), "" if day == _UNKNOWN else day
            yield from [known] * int(count or 1)


def unreadable_places(where: Sequence[str]) -> list[str]:
    """Returns the texts of `where` that are not in the format of `places_text`."""
    return [text for text in where if not _PLACE.fullmatch(text)]


@dataclass(frozen=True, slots=True)
class Accepted:
    """Values of one measurement that were accepted once."""

    recorded: str
    """The day of the measurement, UTC."""
    revision: str
    where: tuple[str, ...]
    """The GPU and the day of each process, in the order of the values: `places_text`."""
    metrics: Mapping[str, Values]
    """Per metric of the whole step that can fail a test."""
    zero: tuple[str, ...] = ()
    """Metrics that are zero in every process."""

    @property
    def processes(self) -> int:
        """The number of processes with values."""
        return sum(1 for _ in _places(self.where))

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPU of each process, a digest of its UUID; empty where none was kept."""
        gpus = tuple(gpu for gpu, _ in _places(self.where))
        return gpus if any(gpus) else ()

    @property
    def days(self) -> tuple[str, ...]:
        """The day of each process, UTC; empty where none was kept."""
        days = tuple(day for _, day in _places(self.where))
        return days if any(days) else ()

    @property
    def step(self) -> dict[str, Processes]:
        """Per metric of the whole step, the value of each process."""
        count = self.processes
        known: dict[str, Values] = {**self.metrics, **dict.fromkeys(self.zero, 0.0)}
        return {
            name: tuple((one,) for one in values)
            if isinstance(values, tuple)
            else ((values,),) * count
            for name, values in known.items()
        }


@dataclass(frozen=True, slots=True)
class Acceptance:
    """One line of an entry's log: the date on which the entry was accepted, and the reason."""

    date: str
    reason: str
    revision: str
    processes: int
    moved: Mapping[str, str] = field(default_factory=dict)
    """Per gated metric, how far it moved from the entry before, as people read it: "+1.2 %"."""
    forced: tuple[str, ...] = ()
    """Problems that --force overruled: too few processes, an unfit device, a dirty tree, creep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Accepted):
    """The accepted values of one measurement of one test, and their conditions."""

    __pydantic_config__ = checked(origin="anchor", log="accepted")

    configuration: str = ""
    workload: Mapping[str, Scalar] = field(default_factory=dict)
    software: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    canary: CanarySeries | None = None
    """The canary's readings; None where no process has any."""
    data: str = ""
    """The name of the file that has the rest: rounds, phases, kernels (`data_files.py`)."""
    origin: Accepted | None = None
    """The first accepted values, which later ones are held against; None: these are the first.
    They have gated metrics alone. Files call it `anchor`."""
    log: tuple[Acceptance, ...] = ()
    """The acceptances of this entry, oldest first. Files call the field `accepted`."""


@dataclass(frozen=True, slots=True)
class BaselineFile:
    """All baselines of one suite on one device."""

    __pydantic_config__ = CHECKED

    schema: int
    arch: str
    device: str
    suite: str
    tolerance: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """The suite's own tolerances, as a marker writes them: {cycles: "1%"}. Edited by hand."""
    calibration: Calibration | None = field(default=None, kw_only=True)
    """The noise that `gpuperf calibrate --write` found."""
    tests: Mapping[str, Mapping[str, Entry]]
    """Per test's node id and measurement's name."""


@dataclass(frozen=True, slots=True)
class EntryData:
    """The part of an entry that no verdict needs: every round, the phases, and the kernels."""

    __pydantic_config__ = LENIENT

    schema: int
    samples: Mapping[str, Mapping[str, Processes]]
    """Per phase and metric."""
    kernels: KernelTable | None = None
    """The launches of the step."""
