"""Baseline files: entries with their samples, what they are held against, and a log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_gpuperf.model.measurement import (
    CHECKED,
    KernelTable,
    Machine,
    Scalar,
    checked,
)


@dataclass(frozen=True, slots=True)
class Spread:
    """How much one class of metrics varies on identical code: standard deviations.

    Shares of the value (0.001 is 0.1 %); for percentages, points divided by 100.
    """

    __pydantic_config__ = checked(gpus="units")

    rounds: float
    """Between the rounds of one process."""
    processes: float
    """Between the processes of one allocation, each represented by the median of its rounds."""
    allocations: float | None
    """Between days on one GPU, beyond what processes explain; None where only one day was seen."""
    gpus: float | None
    """Between GPUs of one name, beyond the same; None where only one was seen."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What runs of identical code taught about a suite's noise on one device."""

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
    """How many of them said "regressed"."""
    classes: Mapping[str, Spread]
    """By the value of `MetricClass`."""


Processes = tuple[tuple[float, ...], ...]
"""Per process, the values of its rounds."""


@dataclass(frozen=True, slots=True)
class CanarySeries:
    """What the canary read before and after each process, in the order of the samples."""

    __pydantic_config__ = CHECKED

    codes: tuple[str, ...]
    """Per process the canary's `code`; "" where none was read."""
    before: Mapping[str, tuple[float | None, ...]]
    """Per reading a value of each process, None where it was not read."""
    after: Mapping[str, tuple[float | None, ...]]

    def around(self, process: int, reading: str) -> list[float | None]:
        """What was read before and after this process; empty where nothing was of any process."""
        moments = (self.before, self.after)
        return [moment[reading][process] for moment in moments if reading in moment]


@dataclass(frozen=True, slots=True)
class Origin:
    """The first accepted samples of a measurement. Never changed by accepting others."""

    __pydantic_config__ = checked(gpus="units")

    recorded: str
    revision: str
    samples: Mapping[str, Processes]
    """Per gated metric of the whole step."""
    gpus: tuple[str, ...] = ()
    days: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelList:
    """What a baseline file itself says of a kernel table."""

    __pydantic_config__ = CHECKED

    digest: str
    """Of the whole table, as `kernel_files.digest` makes it."""
    launches: tuple[tuple[str, str, int], ...]
    """Family, short name and number of launches of each kernel, by family and name: the order of
    launches would move many rows in a diff."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The accepted samples of one measurement of one test."""

    __pydantic_config__ = checked(gpus="units", origin="anchor")

    recorded: str
    """The day of the measurement, UTC."""
    configuration: str
    workload: Mapping[str, Scalar]
    software: Mapping[str, str]
    settings: Mapping[str, Scalar]
    revision: str
    samples: Mapping[str, Mapping[str, Processes]]
    """Per phase and metric."""
    gpus: tuple[str, ...] = ()
    """The GPU of each process, in the order of the samples: a digest of its UUID."""
    days: tuple[str, ...] = ()
    """The day of each process, UTC, in the same order."""
    origin: Origin | None = None
    """The first accepted samples, which later ones are held against; None: these are the first.
    Files call it `anchor`."""
    kernels: KernelList | None = None
    """What the step launched; the whole table is beside this file (`kernel_files.py`)."""
    machines: tuple[str, ...] = ()
    """Per process what its GPU is beyond its name: a key of the file's `machines`, "" where nobody
    said."""
    canary: CanarySeries | None = None
    """What the canary read; None where no process has one."""


@dataclass(frozen=True, slots=True)
class Change:
    """The centre of one metric before and after an acceptance; None where there was none."""

    __pydantic_config__ = CHECKED

    old: float | None
    new: float | None


@dataclass(frozen=True, slots=True)
class Acceptance:
    """One line of the log: what was accepted, when and why."""

    __pydantic_config__ = CHECKED

    date: str
    reason: str
    test: str
    name: str
    revision: str
    processes: int
    changes: Mapping[str, Change]
    forced: tuple[str, ...] = ()
    """What --force overruled: too few processes, an unfit device, a dirty tree, creep."""


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
    """What `gpuperf calibrate --write` found."""
    machines: Mapping[str, Machine] = field(default_factory=dict, kw_only=True)
    """What the GPUs of the entries' processes are beyond their name, by a digest of it."""
    metric_units: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """The unit of each metric's samples; empty in older files, whose units are the catalogue's."""
    tests: Mapping[str, Mapping[str, Entry]]
    """Per test's node id and measurement's name."""
    accepted: tuple[Acceptance, ...]
    """Last, and never left out: a file that was cut short does not have it."""

    @property
    def kernels(self) -> dict[tuple[str, str], KernelList]:
        """What the entries say of their kernel tables, by test and name, where they have one."""
        return {
            (test, name): entry.kernels
            for test, entries in self.tests.items()
            for name, entry in entries.items()
            if entry.kernels is not None
        }


Tables = Mapping[str, Mapping[str, KernelTable]]
"""Per test's node id and measurement's name."""


@dataclass(frozen=True, slots=True)
class KernelFile:
    """The kernel tables of one suite's baselines on one device."""

    __pydantic_config__ = CHECKED

    schema: int
    arch: str
    device: str
    suite: str
    tests: Tables
    replaced: Tables = field(default_factory=dict)
    """Tables of entries that are being replaced: what the baselines name until they are written."""
