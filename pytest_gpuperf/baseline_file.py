"""What a baseline file holds: entries with their samples, what they are held against, and a log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_gpuperf.model import Calibration, Scalar

SCHEMA = 1
_CHECKED = {"extra": "forbid", "allow_inf_nan": False}

Processes = tuple[tuple[float, ...], ...]
"""Per process, the values of its rounds."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """The first accepted samples of a measurement. Never changed by accepting others."""

    __pydantic_config__ = _CHECKED

    recorded: str
    revision: str
    samples: Mapping[str, Processes]
    """Per gated metric of the whole step."""
    units: tuple[str, ...] = ()
    days: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelList:
    """What a baseline file itself says of a kernel table."""

    __pydantic_config__ = _CHECKED

    digest: str
    """Of the whole table, as `kernel_files.digest` makes it."""
    launches: tuple[tuple[str, str, int], ...]
    """Family, short name and number of launches of each kernel, by family and name: the order of
    launches would move many rows in a diff."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The accepted samples of one measurement of one test."""

    __pydantic_config__ = _CHECKED

    recorded: str
    """The day of the measurement, UTC."""
    configuration: str
    workload: Mapping[str, Scalar]
    software: Mapping[str, str]
    settings: Mapping[str, Scalar]
    revision: str
    samples: Mapping[str, Mapping[str, Processes]]
    """Per phase and metric."""
    units: tuple[str, ...] = ()
    """The GPU of each process, in the order of the samples: a digest of its UUID."""
    days: tuple[str, ...] = ()
    """The day of each process, UTC, in the same order."""
    anchor: Anchor | None = None
    """The first accepted samples, which later ones are held against; None: these are the first."""
    kernels: KernelList | None = None
    """What the step launched; the whole table is beside this file (`kernel_files.py`)."""


@dataclass(frozen=True, slots=True)
class Change:
    """The centre of one metric before and after an acceptance; None where there was none."""

    __pydantic_config__ = _CHECKED

    old: float | None
    new: float | None


@dataclass(frozen=True, slots=True)
class Acceptance:
    """One line of the log: what was accepted, when and why."""

    __pydantic_config__ = _CHECKED

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

    __pydantic_config__ = _CHECKED

    schema: int
    arch: str
    device: str
    suite: str
    tolerance: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """The suite's own tolerances, as a marker writes them: {cycles: "1%"}. Edited by hand."""
    calibration: Calibration | None = field(default=None, kw_only=True)
    """What `gpuperf calibrate --write` found."""
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
