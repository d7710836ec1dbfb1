"""Measurements: samples, kernel tables, windows, and the fingerprint they depend on.

Nothing here reads a file or knows pytest. The classes are plain dataclasses;
`files.py` validates and writes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import fsum

STEP = "step"
"""The name under which the whole step is reported, beside the phases inside it."""

RANK_COUNT = "ranks"
"""The entry of a workload that says how many ranks execute the step together."""

UNEQUAL = "unequal"
"""The setting that names operators of which two counted executions differ; absent where none do."""

WALL = "wall_ms"
"""The setting that says how long the fastest execution took on a CPU, whose times are no samples of
a baseline: for a hint alone."""

PAPER_WINDOW = "paper-window"
"""The name of the paper's protocol, and of the part of a process that it counts."""

COMPILING = "compiling"
"""The setting that says in how many of the first executions torch.compile compiled, where in most.
"""

UNSEEN = "unseen"
"""The setting that says where a part of the step ran of which nothing was counted."""

Scalar = str | int | float | bool

CHECKED = {"extra": "forbid", "allow_inf_nan": False}
"""What files.py checks beyond the types: no unknown keys, no numbers that are none."""


def checked(**keys: str) -> dict[str, object]:
    """CHECKED, for a class some of whose fields have another key in files: field="key"."""
    return {**CHECKED, "alias_generator": lambda field: keys.get(field, field)}


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
"""What the name of a `HostCall` begins with that is none of CUDA: then comes dynamo's reason."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch, copy, fill or graph of a step."""

    __pydantic_config__ = CHECKED

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
    """Per metric of the table, None where it has none; empty for copies and fills, which are not
    counted, and for operators of which all are 0."""


BACKWARD = "backward"
"""The function of a `Caller` without a line: autograd's engine, which some line runs."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A frame outside of libraries, and so a line that calls what is inside of it."""

    __pydantic_config__ = CHECKED

    line: str
    function: str
    executions: int = 0
    """How often that function was executed, by the same functions; 0 where nobody knows."""


@dataclass(frozen=True, slots=True)
class CallSite:
    """Where in the code of a step something comes from."""

    __pydantic_config__ = CHECKED

    line: str
    """The innermost line outside of libraries, "model/layers.py:118"; "" where there is none."""
    function: str
    """Which function that line is in, "SelfAttention._attend"."""
    module: str = ""
    """The nn.Module that it works for, as the outermost calls it, "downs.2.attention"; "" for
    none."""
    backward: bool = False
    """Whether it is of the backward pass, of what that line computed."""
    libraries: tuple[str, ...] = ()
    """The installed distributions whose code that line calls for it, the innermost first."""
    executions: int = 0
    """As of a `Caller`."""
    callers: tuple[Caller, ...] = ()
    """The nearest of those that called that function, the innermost first. Of the backward pass
    those of what it is of, and from BACKWARD on those that ran autograd's engine; again and again,
    where that is of a backward pass itself, or computed again for one."""


@dataclass(frozen=True, slots=True)
class HostCall:
    """What the host did in a step beside launching: it waited, or asked the driver for memory."""

    __pydantic_config__ = CHECKED

    name: str
    """The call as CUDA names it, "cudaStreamSynchronize"."""
    site: int
    """The position of where it comes from in the table's `sites`."""
    count: int


@dataclass(frozen=True, slots=True)
class IdleTime:
    """Time in which nothing ran on the GPU while the host was at one line of code."""

    __pydantic_config__ = CHECKED

    site: int
    """The position of that line in the table's `sites`."""
    idle: float
    """Nanoseconds."""


@dataclass(frozen=True, slots=True)
class KernelTable:
    """What one execution of a step launched, in its order."""

    __pydantic_config__ = CHECKED

    names: tuple[str, ...]
    """Demangled, as the trace gives them; an operator's with its result's type: aten.mm float32."""
    metrics: tuple[str, ...]
    """Of the catalogue: what `Launch.values` are of."""
    launches: tuple[Launch, ...]
    idle: float
    """Nanoseconds between the first launch and the end in which nothing ran on the GPU."""
    mismatch: str = ""
    """Why counters and trace could not be matched, launch by launch; then there are no values."""
    sites: tuple[CallSite, ...] = ()
    site_of: tuple[int, ...] = ()
    """Per launch, the position of where it comes from in `sites`; empty where nobody looked."""
    calls: tuple[HostCall, ...] = ()
    """What the host did beside launching, where somebody looked for `sites`."""
    idle_at: tuple[IdleTime, ...] = ()
    """Where the host was while nothing ran: parts of `idle`, as far as that is known."""
    busy: tuple[float, ...] = ()
    """Nanoseconds of all launches in each trace, where there were several: `duration` and `idle`
    are their medians."""
    idles: tuple[float, ...] = ()
    """Nanoseconds in which nothing ran, in each of those traces."""
    peers: tuple[KernelTable, ...] = ()
    """Of a step of several ranks the tables of the others; this one is rank 0's."""

    @property
    def of_operators(self) -> bool:
        """Whether these are operators on a CPU: counts that no time belongs to."""
        return any(launch.kind == OPERATOR for launch in self.launches)

    def total(self, metric: str) -> float:
        """What all launches count of one of the metrics."""
        at = self.metrics.index(metric)
        return fsum(one.values[at] or 0.0 for one in self.launches if one.values)


@dataclass(frozen=True, slots=True)
class Window:
    """The paper's window: some of the first launches of a process, whatever they belong to.

    The protocol of the ICPE '26 paper (arXiv 2606.19365): `ncu --launch-skip 10 --launch-count
    100`. Its numbers are never compared with those of a whole step.
    """

    __pydantic_config__ = CHECKED

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

    __pydantic_config__ = CHECKED

    metric: str
    reason: str


@dataclass(frozen=True, slots=True)
class Device:
    """What was measured: the key of a baseline. Driver and library versions are not part of it."""

    __pydantic_config__ = CHECKED

    arch: str
    """An architecture of `catalogue/architectures.py`: sm70 ... sm120, or cpu."""
    name: str
    """The marketing name as NVML gives it, "NVIDIA H200"; "portable" for counts on a CPU."""
    slug: str
    """The name as a folder: "nvidia-h200"."""
    identity: str = ""
    """A short digest of the GPU's UUID: two GPUs of one name can differ by 3 % in cycles. On a CPU
    of the machine's id, keyed, which tells nothing of its name."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a GPU is beyond its name, where the driver says so: GPUs of one name are not alike."""

    __pydantic_config__ = CHECKED

    gpcs: tuple[int, ...] = ()
    """Of earlier runs: how many SMs each group had that shares clusters of blocks."""
    sm_map: str = ""
    """A short digest of which these were. It was the same on every GPU that was recorded."""
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
    """The best that GPU and slot have together; the current one sinks when nothing is to do."""
    pcie_width: int | None = None


@dataclass(frozen=True, slots=True)
class Canary:
    """What the canary read at one moment: work of ours that is the same every time."""

    __pydantic_config__ = CHECKED

    code: str = ""
    """Architecture and digest of the machine code and of what it has to do: readings are comparable
    where it is the same."""
    readings: Mapping[str, float] = field(default_factory=dict)
    """arithmetic_cycles, tensor_cycles, l2_cycles, dram_cycles (of an SM, on average over all of
    them), dram_ns, sm_clock_mhz and tensor_clock_mhz (under that load), time_share
    (1 on a GPU that nobody else uses), launch_us, host_ms."""
    spreads: Mapping[str, float] = field(default_factory=dict)
    """How far the repeats of each reading were from it: their median distance, as a share of it."""
    obstacle: str = ""
    """Why readings are not there."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of the device at one moment, read through NVML."""

    __pydantic_config__ = CHECKED

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

    __pydantic_config__ = CHECKED

    before: Reading
    after: Reading

    @property
    def canaries(self) -> tuple[Canary, Canary] | None:
        """What the canary read before and after; None where it was not asked."""
        before, after = self.before.canary, self.after.canary
        return None if before is None or after is None else (before, after)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What the numbers depend on."""

    __pydantic_config__ = CHECKED

    device: Device
    software: Mapping[str, str]
    """Versions: driver, cuda, cudnn, torch, cupti, python, gpuperf, and of the libraries that use
    torch. A change is a suspect."""
    settings: Mapping[str, Scalar]
    """How it was measured: collector, metric set, rounds, warm-up, passes."""
    revision: str = ""
    """The git revision of the measured code, with "+dirty" when the tree had changes."""
    conditions: Conditions | None = None
    measured: str = ""
    """When the measurement began: UTC, ISO 8601 to the second; "" in runs of version 0.1."""
    machine: Machine | None = None
    """What the GPU is beyond its name; None on a CPU and where nobody says."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One of several processes that executed a step together, and what was measured of it."""

    __pydantic_config__ = CHECKED

    name: str
    """"rank 0", "rank 1" and so on."""
    device: Device
    samples: tuple[Sample, ...]
    """Those of a rank are of its own executions, in the order of the other ranks'."""
    conditions: Conditions | None = None
    """Its device before and after, where that is a GPU."""
    collectives: tuple[Mapping[str, tuple[float, ...]], ...] = ()
    """Per execution that was traced: the nanoseconds of each of its collectives, in their order, by
    the name that the library gives them."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one `gpuperf.measure(...)` produced in one process."""

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
    """What was run (sizes, data): a baseline of another workload does not apply."""
    samples: tuple[Sample, ...]
    unsupported: tuple[Unsupported, ...]
    fingerprint: Fingerprint
    kernels: KernelTable | None = None
    """What the step launched, where that was collected."""
    window: Window | None = None
    """What the paper's protocol saw of it, where that was asked for."""
    components: tuple[str, ...] = ()
    """Which of the samples' phases are components (`gpuperf.component`), in order of their first
    appearance. They may be inside phases and inside each other."""
    tolerance: Mapping[str, str] = field(default_factory=dict)
    """What is tolerated of it, by metric, as it was written: "1%". By the test's marker, and else
    by its suite's baseline."""
    launched: Mapping[str, str] = field(default_factory=dict)
    """Kernels that may have been chosen by a race, each with a digest of its launches; empty where
    nobody traced it, and where executions differ."""
    peers: tuple[Peer, ...] = ()
    """Where several processes executed the step together, each of them. The samples are those of
    the step as a whole: what is worst of any of them in one execution."""

    @property
    def title(self) -> str:
        """What people call it, see `title_of`."""
        return title_of(self.test, self.name)


def title_of(test: str, name: str = STEP) -> str:
    """The last part of a node id, and the measurement's name where it has one of its own.

    "test_training_step[tf32]", or "test_training_step[tf32], sampling".
    """
    path, bracket, parameters = test.partition("[")
    title = path.rsplit("::", 1)[-1] + bracket + parameters
    return title if name == STEP else f"{title}, {name}"


def titles(tests: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """What people call each of these tests and names, so that no two are called the same.

    `title_of`, or that behind the file's name, "test_a.py::test_step", or else the whole node id.
    """
    left = dict.fromkeys(tests)
    called: dict[tuple[str, str], str] = {}
    for way in (title_of, _in_file, _in_folder):
        said = {key: way(*key) for key in left}
        alike = Counter(said.values())
        called |= said
        left = dict.fromkeys(key for key, title in said.items() if alike[title] > 1)
    return called


def _in_file(test: str, name: str) -> str:
    """A test with its file, without folders."""
    file, colons, rest = test.partition("::")
    return _in_folder(file.rpartition("/")[2] + colons + rest, name)


def _in_folder(test: str, name: str) -> str:
    """A test by its whole node id."""
    return test if name == STEP else f"{test}, {name}"
