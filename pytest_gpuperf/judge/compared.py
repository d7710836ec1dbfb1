"""What a comparison of two runs finds, as `gpuperf compare --format json` writes it.

Computes nothing (`comparison.py` does). The sides are called a and b, and changes are from a to b.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pytest_gpuperf.judge.blamed import Blame


class Devices(str, Enum):
    """What the two sides were measured on."""

    SAME = "same"
    """The very same GPUs, or CPU."""
    OTHER = "other"
    """Other ones of one name: cycles of one step differ by some per cent between such GPUs."""
    KINDS = "kinds"
    """Devices of two names: what changes is the device, whatever the code."""


@dataclass(frozen=True, slots=True)
class Source:
    """What one side was taken from."""

    run: str
    """The run's file, as it was named."""
    created: str
    """When that run was saved: UTC, ISO 8601."""
    configuration: str | None
    """The one that was asked for; None: all."""
    devices: tuple[str, ...]
    """Such as "NVIDIA H200 (sm90)"."""
    revisions: tuple[str, ...]
    measured: str
    """When the first measurement began: UTC, ISO 8601; "" where nobody kept it."""


@dataclass(frozen=True, slots=True)
class Side:
    """One measurement, of all processes that made it."""

    test: str
    name: str
    configuration: str
    device: str
    """Its name: "NVIDIA H200"."""
    arch: str
    gpus: tuple[str, ...]
    """Digests of the UUIDs of the GPUs that the processes ran on."""
    processes: int
    tables: int
    """How many processes have a kernel table."""
    mismatches: tuple[str, ...]
    """Why kernels of the tables have no counters."""


@dataclass(frozen=True, slots=True)
class Differing:
    """Something beside the numbers that differs, and may be why those do."""

    what: str
    """workload, software or settings."""
    key: str
    a: str | None
    """The values of the processes, joined by commas; None where there is none."""
    b: str | None


@dataclass(frozen=True, slots=True)
class Change:
    """One metric of one phase."""

    phase: str
    metric: str
    unit: str
    """Of `a` and `b`."""
    points: bool
    """`change`, `low` and `high` are percentage points, not shares of `a` (0.01 is 1 %)."""
    a: float | None
    """The median over processes of the medians over their rounds; None where not measured."""
    b: float | None
    change: float | None
    """None where a side has no value, and where `a` is 0 and nothing can be a share of it."""
    low: float | None
    """The 99.5 % interval of the change; None where a side has fewer than three processes."""
    high: float | None


@dataclass(frozen=True, slots=True)
class Pair:
    """One measurement of both sides."""

    a: Side
    b: Side
    devices: Devices
    differing: tuple[Differing, ...]
    metrics: tuple[Change, ...]
    """Those of the whole step first."""
    blame: Blame | None
    """a is its baseline. None where a side has no kernel table, or kernels were not asked for."""


@dataclass(frozen=True, slots=True)
class Unpaired:
    """A measurement that only one side has."""

    test: str
    name: str
    configuration: str
    processes: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs, or two configurations."""

    schema: int
    a: Source
    b: Source
    pairs: tuple[Pair, ...]
    only_a: tuple[Unpaired, ...]
    only_b: tuple[Unpaired, ...]
