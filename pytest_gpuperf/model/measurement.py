"""Measurements: samples, kernel tables, windows, and the fingerprint they depend on.

Nothing here reads a file or knows pytest. The classes are plain dataclasses;
`files.py` validates and writes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from math import fsum
from typing import TypeVar

_T = TypeVar("_T")
_K = TypeVar("_K", bound=Hashable)

STEP = "step"
"""The name under which the whole step is reported, beside the phases inside it."""

RANK_COUNT = "ranks"
"""The entry of a workload that says how many ranks execute the step together."""

UNEQUAL = "unequal"
"""The setting that names operators with different counts in two executions; absent without any."""

WALL = "wall_ms"
"""The setting that says how long the fastest execution took on a CPU, whose times are no samples of
a baseline: for a hint alone."""

PAPER_WINDOW = "paper-window"
"""The name of the paper's protocol, and of the part of a process that it counts."""

COMPILING = "compiling"
"""The setting that says in how many of the first executions torch.compile compiled, where in most.
"""

UNSEEN = "unseen"
"""The setting that names the part of the step where nothing was counted."""

SLOWDOWN, SLOWDOWN_SHARE, SLOWDOWN_AT = "slowdown", "slowdown_share", "slowdown_at"
"""The settings of a measurement by `gpuperf prove`: the slowdown in the step, its share of the
step's time, and the line of code where it was put in. It is no baseline."""

Scalar = str | int | float | bool

CHECKED = {"extra": "forbid", "allow_inf_nan": False}
"""Checks of files.py beyond the types: unknown keys, NaN and infinity are rejected. A class without
its own inherits those of the class that it is a part of, as pydantic has it."""
LENIENT = {**CHECKED, "extra": "ignore"}
"""CHECKED, for a class that once had more fields: what older files have in these is left out."""


def checked(checks: Mapping[str, object] = CHECKED, **keys: str) -> dict[str, object]:
    """The `checks`, for a class some of whose fields have another key in files: field="key"."""
    return {**checks, "alias_generator": lambda field: keys.get(field, field)}


@dataclass(frozen=True, slots=True)
class Sample:
    """The values of one metric over one phase, one value per round, in the metric's unit."""

    __pydantic_config__ = CHECKED

    phase: str
    metric: str
    values: tuple[float, ...]


OPERATOR = "operator"
MADE_BYTES = "made_bytes"
"""Bytes of new memory for an operator's results: of a table of operators only, no metric."""

GRAPH_BREAK = "graph break"
"""The first words of a `HostCall` name for a graph break; dynamo's reason follows."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch, copy, fill or graph of a step."""

    name: int
    """Its position in the table's names: a step of 1600 launches has some 80 names."""
    kind: str
    """kernel, copy, fill, or graph (a CUDA graph, launched and counted as one); on a CPU operator,
    which has neither grid nor duration."""
    grid: tuple[int, int, int] | None
    """Blocks; None for copies and fills, which have none."""
    block: tuple[int, int, int] | None
    """Threads."""
    duration: float
    """Nanoseconds on the GPU, from a trace without counters."""
    values: tuple[float | None, ...] = ()
    """One value per metric of the table, or None. Empty for copies and fills, which are not
    counted, and for operators with only zeros."""


BACKWARD = "backward"
"""The function of a `Caller` without a line: autograd's engine, which some line runs."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A frame outside of libraries, and so a line that calls what is inside of it."""

    line: str
    function: str
    executions: int = 0
    """How often the same functions executed that function; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class CallSite:
    """An origin in the code of a step."""

    line: str
    """The innermost line outside of libraries, "model/layers.py:118"; "" where there is none."""
    function: str
    """The function that contains the line, "SelfAttention._attend"."""
    module: str = ""
    """The nn.Module that it works for, as the outermost calls it, "downs.2.attention"; "" for
    none."""
    backward: bool = False
    """Whether it belongs to the backward pass of the work at that line."""
    libraries: tuple[str, ...] = ()
    """The installed distributions whose code that line calls for it, the innermost first."""
    executions: int = 0
    """Executions, counted as for a `Caller`."""
    callers: tuple[Caller, ...] = ()
    """The nearest callers of that function, innermost first. In the backward pass: callers of the
    forward code, then, from BACKWARD on, of autograd's engine. Recomputed and nested passes repeat
    this."""


@dataclass(frozen=True, slots=True)
class HostCall:
    """A call of the host in a step other than a launch: a wait, or a request for memory."""

    name: str
    """The call as CUDA names it, "cudaStreamSynchronize"."""
    site: int
    """The position of where it comes from in the table's `sites`."""
    count: int


@dataclass(frozen=True, slots=True)
class IdleTime:
    """Time in which nothing ran on the GPU while the host was at one line of code."""

    site: int
    """The position of that line in the table's `sites`."""
    idle: float
    """Nanoseconds."""


@dataclass(frozen=True, slots=True)
class KernelTable:
    """The launches of one execution of a step, in order."""

    __pydantic_config__ = CHECKED

    names: tuple[str, ...]
    """Demangled, as the trace gives them; an operator's with its result's type: aten.mm float32."""
    metrics: tuple[str, ...]
    """The metrics in `Launch.values`, by their names in the catalogue."""
    launches: tuple[Launch, ...]
    idle: float
    """Nanoseconds between the first launch and the end in which nothing ran on the GPU."""
    mismatch: str = ""
    """Why counters and trace could not be matched, launch by launch; then there are no values."""
    sites: tuple[CallSite, ...] = ()
    site_of: tuple[int, ...] = ()
    """Per launch, the position of its origin in `sites`; empty if origins were not collected."""
    calls: tuple[HostCall, ...] = ()
    """The host's calls other than launches; empty if `sites` were not collected."""
    idle_at: tuple[IdleTime, ...] = ()
    """The host's position during `idle` time, as far as known."""
    busy: tuple[float, ...] = ()
    """Nanoseconds of all launches in each trace, where there were several: `duration` and `idle`
    are their medians."""
    idles: tuple[float, ...] = ()
    """Nanoseconds of idle time on the GPU, in each of those traces."""
    peers: tuple[KernelTable, ...] = ()
    """In a step of several ranks, the tables of the other ranks; this table is rank 0's."""

    @property
    def of_operators(self) -> bool:
        """Whether these are operators on a CPU: counts that no time belongs to."""
        return any(launch.kind == OPERATOR for launch in self.launches)

    @property
    def traces(self) -> list[tuple[float, float]]:
        """Nanoseconds of launches, and of idle time, in each trace that the table is of."""
        if self.busy:
            return list(zip(self.busy, self.idles, strict=True))
        return [(fsum(launch.duration for launch in self.launches), self.idle)]

    def total(self, metric: str) -> float:
        """The sum of one metric over all launches."""
        at = self.metrics.index(metric)
        return fsum(one.values[at] or 0.0 for one in self.launches if one.values)


@dataclass(frozen=True, slots=True)
class Window:
    """The paper's window: some of the first launches of a process, whatever they belong to.

    The protocol of the ICPE '26 paper (arXiv 2606.19365): `ncu --launch-skip 10 --launch-count
    100`. Its numbers are never compared with those of a whole step.
    """

    skipped: int
    """Launches before it, from the start of the process."""
    counted: int
    """Launches in it; fewer than were asked for where the process had no more."""
    collector: str
    """cupti; in runs of earlier versions also ncu."""
    samples: tuple[Sample, ...]
    """Over all its launches together, one value each; the phase is PAPER_WINDOW."""
    kernels: KernelTable | None = None
    """The launches by name, in runs of earlier versions."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A metric that was asked for and does not exist here, with the reason."""

    metric: str
    reason: str


@dataclass(frozen=True, slots=True)
class Device:
    """The measured device: the key of a baseline. It excludes driver and library versions."""

    arch: str
    """An architecture of `catalogue/architectures.py`: sm70 ... sm120, or cpu."""
    name: str
    """The marketing name as NVML gives it, "NVIDIA H200"; "portable" for counts on a CPU."""
    slug: str
    """The name as a folder: "nvidia-h200"."""
    identity: str = ""
    """A short digest of the GPU's UUID: two GPUs of one name can differ by 3 % in cycles. On a CPU
    a keyed digest of the machine's id, which does not reveal its name."""

    def __str__(self) -> str:
        """The device as reports name it: "NVIDIA H200 (sm90)"."""
        return f"{self.name} ({self.arch})"


@dataclass(frozen=True, slots=True)
class Machine:
    """Properties in which GPUs of one name differ, as the driver reports them."""

    vbios: str = ""
    board_part: str = ""
    """The part number of the board, which all boards of its kind have."""
    inforom: str = ""
    """The version of the InfoROM's image."""
    memory_bytes: int | None = None
    ecc: bool | None = None
    mig: bool | None = None
    power_limit_watts: float | None = None
    """The one that the GPU has by default."""
    enforced_power_limit_watts: float | None = None
    pcie_generation: int | None = None
    """The best that GPU and slot have in common; the current value falls when idle."""
    pcie_width: int | None = None


@dataclass(frozen=True, slots=True)
class Canary:
    """The canary's readings at one moment. The canary is a fixed workload of this package."""

    code: str = ""
    """Architecture and digest of the machine code and its work: readings are comparable if it is
    equal."""
    readings: Mapping[str, float] = field(default_factory=dict)
    """arithmetic_cycles, tensor_cycles, l2_cycles, dram_cycles (averaged over all SMs), dram_ns,
    sm_clock_mhz and tensor_clock_mhz (under that load), time_share (1 on a GPU without other
    users), launch_us, host_ms."""
    spreads: Mapping[str, float] = field(default_factory=dict)
    """The spread of each reading's repeats: their median distance from it, as a share of it."""
    obstacle: str = ""
    """Why readings are not there."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of the device at one moment, read through NVML."""

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_celsius: int | None = None
    power_watts: float | None = None
    throttle_reasons: tuple[str, ...] = ()
    """Clock-event reasons that slow the device down; idle and user-set clocks are not."""
    other_processes: tuple[int, ...] = ()
    """Process ids of other compute processes on the device."""
    canary: Canary | None = None
    """Right after that, where it was asked."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The device before and after a measurement."""

    before: Reading
    after: Reading

    @property
    def canaries(self) -> tuple[Canary, Canary] | None:
        """The canary's readings before and after; None where it did not run."""
        before, after = self.before.canary, self.after.canary
        return None if before is None or after is None else (before, after)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The conditions that the numbers depend on."""

    __pydantic_config__ = CHECKED

    device: Device
    software: Mapping[str, str]
    """Versions: driver, cuda, cudnn, torch, cupti, python, gpuperf, and of the libraries that use
    torch. A change is a suspect."""
    settings: Mapping[str, Scalar]
    """The settings of the measurement: collector, metric set, rounds, warm-up, passes."""
    revision: str = ""
    """The git revision of the measured code, with "+dirty" when the tree had changes."""
    conditions: Conditions | None = None
    measured: str = ""
    """The start of the measurement: UTC, ISO 8601 to the second; "" in runs of version 0.1."""
    machine: Machine | None = None
    """Properties of this GPU beyond its name; None on a CPU and if the driver gives none."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One of several processes that executed a step together, with its own measurements."""

    name: str
    """"rank 0", "rank 1" and so on."""
    device: Device
    samples: tuple[Sample, ...]
    """Samples of this rank's own executions, in the same order for all ranks."""
    conditions: Conditions | None = None
    """The state of its device before and after, for a GPU."""
    collectives: tuple[Mapping[str, tuple[float, ...]], ...] = ()
    """Per execution that was traced: the nanoseconds of each of its collectives, in their order, by
    the name that the library gives them."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """The data of one `gpuperf.measure(...)` in one process."""

    __pydantic_config__ = CHECKED

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
    """The workload (sizes, data). A baseline of another workload does not apply."""
    samples: tuple[Sample, ...]
    unsupported: tuple[Unsupported, ...]
    fingerprint: Fingerprint
    kernels: KernelTable | None = None
    """The launches of the step, where they were collected."""
    window: Window | None = None
    """The window of the paper's protocol, if the test asked for it."""
    components: tuple[str, ...] = ()
    """Phases in the samples that are components (`gpuperf.component`), in order of their first
    appearance. They may be inside phases and inside each other."""
    tolerance: Mapping[str, str] = field(default_factory=dict)
    """Tolerances by metric as written, "1%": from the test's marker, else the suite's baseline."""
    launched: Mapping[str, str] = field(default_factory=dict)
    """Kernels that autotuning may choose, with digests of their launches. Empty if untraced, and if
    executions differ."""
    peers: tuple[Peer, ...] = ()
    """The processes, if several executed the step together. The samples are of the whole step, the
    worst value of any process in each execution."""

    @property
    def title(self) -> str:
        """The title that reports show, see `title_of`."""
        return title_of(self.test, self.name)


def plain_name(measured: Measurement) -> str:
    """The measurement's name, without the slowdown that `gpuperf prove` put in."""
    if SLOWDOWN not in measured.fingerprint.settings:
        return measured.name
    return measured.name.rpartition(" [")[0]


def title_of(test: str, name: str = STEP) -> str:
    """The last part of a node id, and the measurement's name unless it is the default.

    "test_training_step[tf32]", or "test_training_step[tf32], sampling".
    """
    path, bracket, parameters = test.partition("[")
    return _with_name(path.rsplit("::", 1)[-1] + bracket + parameters, name)


def _with_name(title: str, name: str) -> str:
    return title if name == STEP else f"{title}, {name}"


def grouped(items: Iterable[_T], key: Callable[[_T], _K]) -> dict[_K, list[_T]]:
    """The items by their key: the keys as they first occur, and the items of each in order."""
    groups: dict[_K, list[_T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def titles(tests: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """The title of each test and name: `title_of`, or the node id where two would be the same."""
    called = {key: title_of(*key) for key in tests}
    alike = Counter(called.values())
    return {key: title if alike[title] == 1 else _with_name(*key) for key, title in called.items()}
