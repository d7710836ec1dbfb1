"""The frozen data that travels: metrics, samples, measurements, runs and verdicts.

Nothing here computes anything, reads a file or knows pytest. The classes are plain dataclasses;
`files.py` validates and writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from pytest_gpuperf.judge.blamed import Blame

STEP = "step"
"""The name under which the whole step is reported, beside the phases inside it."""

PAPER_WINDOW = "paper-window"
"""The name of the paper's protocol, and of the part of a process that it counts."""

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
    hardware: Mapping[str, str | None] = field(default_factory=dict)
    """NVIDIA's name per architecture, None where there is none; "default" for those not named.
    Empty: not a counter."""
    traced: bool = False
    """Read from a trace of what the GPU did, not counted; chosen as counters are."""

    @property
    def chosen(self) -> bool:
        """Whether it is measured only where asked for; others always are, where they exist."""
        return self.traced or bool(self.hardware)

    def hardware_name(self, arch: str) -> str | None:
        """NVIDIA's name for this metric on `arch`, or None where it does not exist."""
        return self.hardware.get(arch, self.hardware.get("default")) or None

    def instrumented(self, arch: str) -> bool:
        """Whether it is counted by instructions that are put into every kernel, not by hardware.

        NVIDIA says so in the name ("smsp__sass_inst_executed..."): exact, and many times slower.
        """
        return "__sass_" in (self.hardware_name(arch) or "")

    def exists_on(self, arch: str) -> bool:
        """Whether it can be measured on `arch` at all; true of what nobody has to choose."""
        if self.traced:
            return arch != "cpu"
        return not self.hardware or self.hardware_name(arch) is not None


@dataclass(frozen=True, slots=True)
class Sample:
    """The values of one metric over one phase, one value per round, in the metric's unit."""

    __pydantic_config__ = _CHECKED

    phase: str
    metric: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch, copy, fill or graph of a step."""

    __pydantic_config__ = _CHECKED

    name: int
    """Its position in the table's names: a step of 1600 launches has some 80 names."""
    kind: str
    """kernel, copy, fill, or graph (a CUDA graph, launched and counted as one)."""
    grid: tuple[int, int, int] | None
    """Blocks; None for copies and fills, which have none."""
    block: tuple[int, int, int] | None
    """Threads."""
    duration: float
    """Nanoseconds on the GPU, from a trace without counters."""
    values: tuple[float | None, ...] = ()
    """Per metric of the table, None where it has none; empty for copies and fills, which are not
    counted."""


@dataclass(frozen=True, slots=True)
class KernelTable:
    """What one execution of a step launched, in its order."""

    __pydantic_config__ = _CHECKED

    names: tuple[str, ...]
    """Demangled, as the trace gives them."""
    metrics: tuple[str, ...]
    """Of the catalogue: what `Launch.values` are of."""
    launches: tuple[Launch, ...]
    idle: float
    """Nanoseconds between the first launch and the end in which nothing ran on the GPU."""
    mismatch: str = ""
    """Why counters and trace could not be matched, launch by launch; then there are no values."""


@dataclass(frozen=True, slots=True)
class Window:
    """The paper's window: some of the first launches of a process, whatever they belong to.

    The protocol of the ICPE '26 paper (arXiv 2606.19365): `ncu --launch-skip 10 --launch-count
    100`. Its numbers are never compared with those of a whole step.
    """

    __pydantic_config__ = _CHECKED

    skipped: int
    """Launches before it, from the start of the process."""
    counted: int
    """Launches in it; fewer than were asked for where the process had no more."""
    collector: str
    """cupti or ncu."""
    samples: tuple[Sample, ...]
    """Over all its launches together, one value each; the phase is PAPER_WINDOW."""
    kernels: KernelTable | None = None
    """The launches by name, where the collector knows them."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A metric that was asked for and does not exist here, with the reason."""

    __pydantic_config__ = _CHECKED

    metric: str
    reason: str


@dataclass(frozen=True, slots=True)
class TimelinePhase:
    """When the device was at one occurrence of a phase, in ns since the step began."""

    __pydantic_config__ = _CHECKED

    name: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """What the device's units did over one execution of a step, sampled by the device itself.

    Times are in ns, and those of an execution of its own: nothing else was counted meanwhile.
    """

    __pydantic_config__ = _CHECKED

    samples: int
    """How many the device took of this execution."""
    sampling_interval: float
    """From one sample to the next."""
    interval: float
    """From one point of a series to the next: a point is the mean over so much time. Longer than
    the sampling interval where there were too many samples to keep."""
    begin: float
    """When the first point begins, since the step began: within a sample of 0, before or after."""
    duration: float
    """Of the step."""
    series: Mapping[str, tuple[float | None, ...]]
    """Per metric of metrics/timeline.yaml the points, in percent; None where no sample was."""
    phases: tuple[TimelinePhase, ...]
    """As they occurred."""
    unsupported: tuple[Unsupported, ...] = ()
    """Metrics of a timeline that cannot be sampled here, by our names."""
    obstacle: str = ""
    """Why nothing was sampled; then there are no series."""


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
    measured: str = ""
    """When the measurement began: UTC, ISO 8601 to the second; "" in runs of version 0.1."""


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
    kernels: KernelTable | None = None
    """What the step launched, where that was collected."""
    window: Window | None = None
    """What the paper's protocol saw of it, where that was asked for."""
    timeline: Timeline | None = None
    """What the device did over one execution of it, where that was asked for."""
    components: tuple[str, ...] = ()
    """Which of the samples' phases are components (`gpuperf.component`), in order of their first
    appearance. They may be inside phases and inside each other."""


class Outcome(str, Enum):
    """The verdicts of DESIGN: what the judge says of one metric of one measurement."""

    UNCHANGED = "unchanged"
    IMPROVED = "improved"
    REGRESSED = "regressed"
    INCONCLUSIVE = "inconclusive"
    NO_BASELINE = "no-baseline"
    UNSUPPORTED = "unsupported"
    UNFIT = "unfit"
    """The device was throttled or shared while it was measured: nothing is judged."""
    REPORTED = "reported"
    """Not gated: shown for its value."""
    HOLDS = "holds"
    """An expectation (a ratio, a limit) that was shown to be met."""
    KERNELS_CHANGED = "kernels-changed"
    """The step launches other kernels than the baseline's, or in another order. Fails nothing."""
    BROKEN = "broken"
    """An expectation that was shown not to be met."""


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
    detectable: float | None = None
    """The smallest loss that would be found 99 times in 100, in the units of `change`."""
    processes: int = 1
    """How many processes were looked at."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a test's author expects of a number, and what the judge says of it.

    A ratio between two configurations (`gpuperf.expect_ratio`), or an absolute limit of a metric
    (`limit=` in the marker).
    """

    __pydantic_config__ = _CHECKED

    test: str
    metric: str
    unit: str
    """The unit of `measured`: the metric's for a limit, "" for a ratio."""
    subject: str
    """What is expected something of: "tf32 / baseline", or the measurement's name."""
    above: float | None
    """The measured value has to be above this; None where there is no such bound."""
    below: float | None
    outcome: Outcome
    """holds, broken, inconclusive or unsupported."""
    reason: str
    """A reason code, for machines: `within`, `beyond`, `unsure`, `not-collected`."""
    measured: float | None = None
    low: float | None = None
    high: float | None = None
    """The interval of `measured`."""
    processes: int = 1
    verified: bool = True
    """Somebody has seen it hold on this architecture; a claim of a paper is not that."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class KernelBlame:
    """Which kernels the change of one measurement's time comes from."""

    __pydantic_config__ = _CHECKED

    test: str
    name: str
    blame: Blame


@dataclass(frozen=True, slots=True)
class Spread:
    """How much one class of metrics varies on identical code: standard deviations.

    Shares of the value (0.001 is 0.1 %); for percentages, points divided by 100.
    """

    __pydantic_config__ = _CHECKED

    rounds: float
    """Between the rounds of one process."""
    processes: float
    """Between the processes of one allocation, each represented by the median of its rounds."""
    allocations: float | None
    """Between days on one GPU, beyond what processes explain; None where only one day was seen."""
    units: float | None
    """Between GPUs of one name, beyond the same; None where only one was seen."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What runs of identical code taught about a suite's noise on one device."""

    __pydantic_config__ = _CHECKED

    date: str
    """The day of the calibration, UTC."""
    processes: int
    allocations: int
    """Pairs of a GPU and a day."""
    units: int
    nights: int
    """Judgements of identical code that were made of these runs (cross-validated)."""
    false_alarms: int
    """How many of them said "regressed"."""
    classes: Mapping[str, Spread]
    """By the value of `MetricClass`."""


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
    expectations: tuple[Expectation, ...] = ()
    blames: tuple[KernelBlame, ...] = ()


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
