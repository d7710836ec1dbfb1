"""The frozen data that travels: metrics, samples, measurements, runs and verdicts.

Nothing here computes anything, reads a file or knows pytest. The classes are plain dataclasses;
`files.py` validates and writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

STEP = "step"
"""The name under which the whole step is reported, beside the phases inside it."""

Scalar = str | int | float | bool

_CHECKED = {"extra": "forbid", "allow_inf_nan": False}
"""What files.py checks beyond the types: no unknown keys, no numbers that are none."""


class Direction(str, Enum):
    """Which way a metric gets better."""

    LOWER = "lower"
    HIGHER = "higher"
    NEUTRAL = "neutral"
    """Neither: the metric explains others and is never gated (IPC rises when slow code spins)."""


class MetricClass(str, Enum):
    """How a metric's noise behaves; the judge has its scales per class (docs/statistics.md)."""

    DETERMINISTIC = "deterministic"
    CYCLE = "cycle"
    RATIO = "ratio"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the catalogue."""

    name: str
    unit: str
    direction: Direction
    metric_class: MetricClass
    gated: bool
    """Whether a change of this metric may fail a test; the others are reported beside it."""
    additive: bool
    """Whether values of consecutive ranges add up to the value of the range that spans them."""
    percentage: bool
    """A bounded percentage (0 to 100): its changes are absolute points, not relative."""
    summary: str
    hardware: Mapping[str, str] = field(default_factory=dict)
    """NVIDIA's name per architecture; "default" for those not named. Empty: not a counter."""

    def hardware_name(self, arch: str) -> str | None:
        """NVIDIA's name for this metric on `arch`, or None where it does not exist."""
        return self.hardware.get(arch, self.hardware.get("default")) or None


@dataclass(frozen=True, slots=True)
class Sample:
    """The values of one metric over one phase, one value per round, in the metric's unit."""

    __pydantic_config__ = _CHECKED

    phase: str
    metric: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A metric that was asked for and does not exist here, with the reason."""

    __pydantic_config__ = _CHECKED

    metric: str
    reason: str


@dataclass(frozen=True, slots=True)
class Device:
    """What was measured: the key of a baseline. Driver and library versions are not part of it."""

    __pydantic_config__ = _CHECKED

    arch: str
    """An architecture of `arch.py`: sm70 ... sm120, or cpu."""
    name: str
    """The marketing name as NVML gives it, "NVIDIA H200"; "portable" for counts on a CPU."""
    slug: str
    """The name as a folder: "nvidia-h200"."""
    identity: str = ""
    """A short digest of the GPU's UUID: two GPUs of one name can differ by 3 % in cycles."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of the device at one moment, read through NVML."""

    __pydantic_config__ = _CHECKED

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_celsius: int | None = None
    power_watts: float | None = None
    throttle_reasons: tuple[str, ...] = ()
    """Clock-event reasons that slow the device down; idle and user-set clocks are not."""
    other_processes: tuple[int, ...] = ()
    """Process ids of other compute processes on the device."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The device before and after a measurement."""

    __pydantic_config__ = _CHECKED

    before: Reading
    after: Reading


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What the numbers depend on."""

    __pydantic_config__ = _CHECKED

    device: Device
    software: Mapping[str, str]
    """Versions: driver, cuda, cudnn, torch, cupti, python, gpuperf, ... A change is a suspect."""
    settings: Mapping[str, Scalar]
    """How it was measured: collector, metric set, rounds, warm-up, passes."""
    revision: str = ""
    """The git revision of the measured code, with "+dirty" when the tree had changes."""
    conditions: Conditions | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one `gpuperf.measure(...)` produced in one process."""

    __pydantic_config__ = _CHECKED

    test: str
    """The test's node id, relative to the root directory."""
    name: str
    """The measurement's name within its test; "step" unless the test gave another."""
    suite: str
    process: str
    """An id per interpreter start: samples of one process are not independent of each other."""
    configuration: str
    """The optimization's name, from the marker, or ""."""
    workload: Mapping[str, Scalar]
    """What was run (sizes, data): a baseline of another workload does not apply."""
    samples: tuple[Sample, ...]
    unsupported: tuple[Unsupported, ...]
    fingerprint: Fingerprint


class Outcome(str, Enum):
    """The verdicts of DESIGN: what the judge says of one metric of one measurement."""

    UNCHANGED = "unchanged"
    IMPROVED = "improved"
    REGRESSED = "regressed"
    INCONCLUSIVE = "inconclusive"
    NO_BASELINE = "no-baseline"
    UNSUPPORTED = "unsupported"
    REPORTED = "reported"
    """Not gated: shown for its value."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the judge says of one metric of one phase, with the numbers that led to it."""

    __pydantic_config__ = _CHECKED

    test: str
    name: str
    phase: str
    metric: str
    unit: str
    outcome: Outcome
    reason: str
    """A reason code, for machines: `beyond-floor`, `within-tolerance`, `no-entry`, ..."""
    baseline: float | None = None
    measured: float | None = None
    change: float | None = None
    """Relative change (0.01 is 1 %), or percentage points where `points` is set."""
    points: bool = False
    tolerance: float | None = None
    """In the units of `change`."""
    low: float | None = None
    high: float | None = None
    """The interval of `change`."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """The measurements of one pytest invocation, or of several merged by `gpuperf record`."""

    __pydantic_config__ = _CHECKED

    schema: int
    created: str
    """UTC, ISO 8601."""
    command: str
    measurements: tuple[Measurement, ...]
    verdicts: tuple[Verdict, ...] = ()


@dataclass(frozen=True)
class Check:
    """One question about the machine, and its answer."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    """What to do about a "no"."""
    optional: bool = False
    """Measuring works without it."""
