"""Results: a measurement with its verdicts, expectations and attribution; a run is many of them.

Fields only, as they stand in a run's file; nothing here judges.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from pytest_gpuperf.model.measurement import LENIENT, STEP, Measurement, checked, grouped


class Outcome(str, Enum):
    """The verdicts of DESIGN, on one metric of one measurement."""

    UNCHANGED = "unchanged"
    IMPROVED = "improved"
    REGRESSED = "regressed"
    INCONCLUSIVE = "inconclusive"
    NO_BASELINE = "no-baseline"
    UNSUPPORTED = "unsupported"
    UNFIT = "unfit"
    """The device was throttled or shared while it was measured: nothing is judged."""
    MACHINE = "machine"
    """Beyond the tolerance, by no more than the canary moved, whose work is constant."""
    REPORTED = "reported"
    """Not gated, only shown."""
    HOLDS = "holds"
    """An expectation (a ratio, a limit) that was shown to be met."""
    KERNELS_CHANGED = "kernels-changed"
    """The step launches other kernels than the baseline's, or in another order. Fails nothing."""
    BROKEN = "broken"
    """An expectation that was shown not to be met."""
    OUTWEIGHED = "outweighed"
    """Worse beyond its tolerance, by less than the step got faster. Fails nothing."""


FAULTS = (Outcome.REGRESSED, Outcome.BROKEN)
"""Outcomes that fail a test under all settings."""
DOUBTS = (Outcome.UNFIT, Outcome.MACHINE, Outcome.NO_BASELINE, Outcome.INCONCLUSIVE)
"""Outcomes that need a person to look; the settings say whether they fail the test."""
TEST_FAILED = "failed"
"""A value for the reason of a skipped test: it failed, and not by a verdict."""
TEST_NOT_FAILED = "not failed"
"""The same under `gpuperf prove` for a test that regressed, and that pytest counts as no failure.
"""
WORST_FIRST = (
    *(*FAULTS, *DOUBTS, Outcome.IMPROVED, Outcome.OUTWEIGHED, Outcome.KERNELS_CHANGED),
    *(Outcome.UNCHANGED, Outcome.HOLDS, Outcome.UNSUPPORTED, Outcome.REPORTED),
)
"""All outcomes in the order of every report: failures, doubts, improvements, the rest."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judge's decision on one metric of one phase, with the numbers that led to it."""

    __pydantic_config__ = checked(minimum_detectable_effect="detectable")

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
    """The tolerance, in the units of `change`."""
    low: float | None = None
    high: float | None = None
    """The interval of `change`."""
    detail: str = ""
    minimum_detectable_effect: float | None = None
    """The smallest slowdown that would be found 99 times in 100, in the units of `change`."""
    processes: int = 1
    """The number of processes compared."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """A number that a test's author expects, and the judge's decision on it.

    It is a ratio between two configurations (`gpuperf.expect_ratio`), or an absolute limit of a
    metric (`limit=` in the marker).
    """

    test: str
    metric: str
    unit: str
    """The unit of `measured`: the metric's for a limit, "" for a ratio."""
    subject: str
    """The subject of the expectation: "tf32 / baseline", or the measurement's name."""
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
    """Whether a run on this architecture has confirmed it; a paper's claim alone does not."""
    detail: str = ""


class ChangeKind(str, Enum):
    """How a group of launches changed."""

    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"
    """Launched as before, and what its time changed by is within noise."""
    ADDED = "added"
    REMOVED = "removed"
    REPLACED = "replaced"
    GAP = "gap"
    """The time between kernels."""


class ChangeReason(str, Enum):
    """The reason for a change, from the counters and the sequence."""

    CODE = "other code"
    """The kernel executes more or fewer instructions than before."""
    MEMORY = "memory, cache or clocks"
    """The kernel executes the same instructions in a different time."""
    ALGORITHM = "another algorithm"
    SHAPE = "another shape"
    """The same kernel is launched with a different grid or block size."""
    MORE = "called more often"
    LESS = "called less often"
    NEW = "new"
    """The baseline has no launch of this kernel."""
    GONE = "gone"
    WAITED = "the GPU waited"
    """Synchronisation, or work of the host that kernels wait for."""
    WAITED_LESS = "the GPU waited less"
    UNKNOWN = ""
    """No change, or no counters to explain it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelChange:
    """One change of the launches of one kernel, or of the gap between kernels."""

    __pydantic_config__ = LENIENT

    kind: ChangeKind
    cause: ChangeReason
    family: str = ""
    short: str
    """The kernel's short name."""
    formerly: str = ""
    """The short name of the kernel that this one replaced, or ""."""
    launches_before: int = 0
    launches_after: int = 0
    before: float
    """Nanoseconds in all, as `after`."""
    after: float
    change: float
    """after - before."""
    share: float | None
    """change over the step's change; None where that is near zero. All entries' add up to 1."""
    significant: bool
    """Beyond noise, all matched kernels asked at once; always true of added, removed, replaced."""


@dataclass(frozen=True, slots=True)
class LineChange:
    """All launches from one line of code, if the launches or their time changed.

    A removed launch is listed at the line in the baseline, any other at its present line. A line's
    backward pass belongs to it.
    """

    line: str
    """As `CallSite` has it."""
    function: str
    modules: tuple[str, ...]
    """Modules whose launches changed, in order."""
    launches_before: int
    launches_after: int
    before: float
    """Nanoseconds, as `after` and `change`; 0 of operators."""
    after: float
    change: float
    kernels: tuple[tuple[str, int, int], ...]
    """Kernels whose number of launches changed: short name, launches before and after."""
    counts: tuple[tuple[str, float, float], ...] = ()
    """Metric, and its value before and after, of what operators of this line count otherwise."""
    types: tuple[tuple[str, str], ...] = ()
    """Data types before and after, where an operator has another result."""


@dataclass(frozen=True, slots=True)
class IdleChange:
    """Time in which nothing ran on the GPU while the host was at one line of code."""

    line: str
    """As `CallSite` has it: where it is now."""
    function: str
    before: float
    """Nanoseconds, as `after` and `change`."""
    after: float
    change: float


@dataclass(frozen=True, slots=True)
class CallChange:
    """A call of the host at one line of code that became more or less frequent."""

    name: str
    """The name of the call in CUDA, "cudaStreamSynchronize"."""
    line: str
    function: str
    modules: tuple[str, ...]
    """Modules that make the call now, or made it if it is gone."""
    before: int
    """Calls in a step, as `after`."""
    after: int


@dataclass(frozen=True, slots=True)
class StepChange:
    """The time of a step without tracing or counting, as in its verdict."""

    metric: str
    """step_time, or wall_time."""
    before: float
    """Nanoseconds, as `after`, `change`, and `low` and `high`, the interval of the change."""
    after: float
    change: float
    relative: float | None
    low: float
    high: float

    @property
    def slower(self) -> bool:
        """Whether the step takes longer, beyond its noise."""
        return self.low > 0


class CauseKind(str, Enum):
    """The kind of change that makes a step worse."""

    PRECISION = "precision"
    """The same work runs in a different data type."""
    LAYOUT = "layout"
    """Tensors are brought into another memory format."""
    REPEATED = "repeated work"
    """Work that was done once is now repeated."""
    ALGORITHM = "algorithm"
    """Other kernels do the same work."""
    LAUNCHES = "more launches"
    SYNCHRONISATION = "host synchronisation"
    """The host waits for the GPU, which then waits for it."""
    TRANSFER = "transfer"
    """Copies between host and device, or within it."""
    MEMORY = "memory"
    """Memory is allocated or freed by the driver."""
    RECOMPILATION = "recompilation"
    """torch.compile compiles again, or breaks its graph."""
    HOST = "host time"
    """The GPU waits for Python, or for data."""
    COUNT = "more of a count"
    """Operators of a CPU that count more of a metric: floating-point operations, bytes."""
    SLOWER = "slower kernels"
    """The kernels are the same but take longer."""
    UNKNOWN = "unknown"
    """No cause stands out from the noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The cause of a slower step, short enough for one sentence."""

    kind: CauseKind
    line: str
    """The line of code with most of the change, "model/layers.py:118"; "" if unknown."""
    function: str
    """The function that contains the line: several of its lines are one change."""
    modules: tuple[str, ...]
    """The nn.Modules that it works for."""
    what: str = ""
    """The new state: a data type ("float64"), a kernel's short name, a CUDA call or a metric."""
    formerly: str = ""
    """The previous state: a data type or a kernel; "" for nothing."""
    family: str
    """The family of most of the kernels; "" where it is of none."""
    times: int | None = None
    """How often the repeated work is now done; None for other kinds."""
    before: int
    """Launches of the function in these modules, calls, or a metric's value; as `after`."""
    after: int
    bytes: float | None = None
    """Additional bytes copied; None if they were not counted."""
    change: float | None
    """Nanoseconds by which the step takes longer, without a trace; None if unknown or within
    noise."""
    relative: float | None
    """The change as a share of the step."""
    traced: float | None
    """Nanoseconds of it that the trace shows in this function or these kernels; None if untimed."""
    callee: str = ""
    """The function (or BACKWARD) that the line calls more often than before; "" if none."""
    executions: tuple[int, ...] = ()
    """The number of executions before, and now."""
    phase: str = ""
    """BACKWARD where it is of the backward pass alone."""
    since: str = ""
    """The line and function where operators begin to have more work, if they differ."""


@dataclass(frozen=True, slots=True)
class LaunchCounts:
    """The differences in launches from the baseline's: counts of launches."""

    changed: bool
    """Whether the sequence of kernels is another one."""
    added: int
    removed: int
    replaced: int
    moved: int
    """Launched at another place of the sequence."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """Software of another version than before."""

    package: str
    before: str
    after: str
    launches_before: int
    """Launches that its code causes in the step, as `launches_after`; 0 if unknown."""
    launches_after: int

    def __str__(self) -> str:
        """The change as text: "monai 1.4.0 -> 1.6.1"."""
        return f"{self.package} {self.before} -> {self.after}"


@dataclass(frozen=True, slots=True)
class Attribution:
    """The origins of the change in a step's time. `entries` are worst first."""

    __pydantic_config__ = checked(LENIENT, cause="headline")

    before: float
    """Nanoseconds: launches and gaps, as `after` and `change`."""
    after: float
    change: float
    relative: float | None
    explained: float | None
    """The share of the change that is of significant entries."""
    shift: float | None
    """The relative change that most of the matched kernels' time shares: then clocks or power did
    it. None where they do not move alike, or are too few."""
    launched: LaunchCounts
    entries: tuple[KernelChange, ...]
    """The changes by kernel, which has every launch; they add up to `change`."""
    measured_tables: int
    baseline_tables: int
    odd_tables: int
    """Tables whose launches differ from the other tables of their side (`alignment.py`)."""
    lines: tuple[LineChange, ...] = ()
    """Lines of code whose launches were added, removed, replaced or changed in time, the worst
    first. Empty if the tables have no call sites."""
    calls: tuple[CallChange, ...] = ()
    """Host calls, other than launches, with a changed count; the largest change first."""
    idle: tuple[IdleChange, ...] = ()
    """The host's positions during idle time, the largest change first: parts of the gap."""
    step: StepChange | None = None
    """The change of the step's time that was judged; None where it was not."""
    reliable: bool = True
    """Whether the trace agrees with `step`, within the spreads of both."""
    cause: Cause | None = None
    """The cause of a slowdown; None if there is none."""
    rank: int | None = None
    """The rank that changed, if its peers did not; None for all ranks alike, and for one
    process."""
    upgrades: tuple[Upgrade, ...] = ()
    """Software of another version than before, which comes before any line of code."""

    @property
    def of_operators(self) -> bool:
        """Whether it covers operators on a CPU, which have no times."""
        return not (self.before or self.after)


@dataclass(frozen=True, slots=True)
class Attributed:
    """The kernels that explain the change in one measurement's time."""

    __pydantic_config__ = checked(attribution="blame")

    test: str
    name: str
    attribution: Attribution


@dataclass(frozen=True, slots=True)
class JudgedBy:
    """The entry of a baseline, or the revision, that one measurement was compared with."""

    test: str
    name: str
    recorded: str
    """The day on which the entry was measured, UTC."""
    revision: str
    """The git revision of what was measured then; of `gpuperf ab`, A: "main (0123abc Layers)"."""


@dataclass(frozen=True, slots=True)
class Result:
    """One measurement of a test over all its processes, with all verdicts and notes.

    The session makes it once; every report, export and command reads it. Without measurements, it
    is a ratio that a test expects of other tests' measurements.
    """

    test: str
    """The test's node id."""
    name: str
    """The measurement's name within its test; of a ratio, what is expected something of."""
    measurements: tuple[Measurement, ...]
    """The measurements, one per process."""
    verdicts: tuple[Verdict, ...] = ()
    """Verdicts on the whole step and its phases; empty if nothing was judged."""
    expectations: tuple[Expectation, ...] = ()
    """The limits of the measurement, or the ratio."""
    attribution: Attribution | None = None
    """The kernels that explain a change, if known now and in the baseline."""
    notes: tuple[str, ...] = ()
    """Problems during the measurement, as sentences. A run file does not keep them."""
    judged_by: JudgedBy | None = None
    """The baseline of the comparison; None if no baseline applies."""

    @property
    def first(self) -> Measurement:
        """The first process's measurement, for fields that all processes share."""
        return self.measurements[0]

    @property
    def title(self) -> str:
        """The title in reports: "test_step[tf32]", or "tf32 / baseline in x.py::test_ratio"."""
        return self.first.title if self.measurements else f"{self.name} in {self.test}"

    @property
    def said(self) -> tuple[Verdict | Expectation, ...]:
        """The verdicts on the whole step and all expectations, the worst first."""
        step = [verdict for verdict in self.verdicts if verdict.phase == STEP]
        every: tuple[Verdict | Expectation, ...] = (*step, *self.expectations)
        return tuple(sorted(every, key=lambda entry: WORST_FIRST.index(entry.outcome)))

    @property
    def outcome(self) -> Outcome | None:
        """The worst of all that was said of the whole step; None where nothing was judged.

        Kernels that changed explain an outcome, and are none of their own.
        """
        outcomes = (entry.outcome for entry in self.said)
        return next((one for one in outcomes if one is not Outcome.KERNELS_CHANGED), None)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The progress of pytest when the run was last written, before its end."""

    ran: int
    """Tests that had run, as `collected`: whether they measure or not."""
    collected: int
    signal: int | None = None
    """The signal that ended pytest; None if no process observed the end."""

    def __str__(self) -> str:
        """The state as text: "signal 9 ended pytest after 6 of 7 tests"."""
        tests = f"{self.ran:,} of {self.collected:,} tests"
        if self.signal is None:
            return f"pytest ended early: {tests} ran"
        return f"signal {self.signal} ended pytest after {tests}"


@dataclass(frozen=True, slots=True)
class Run:
    """The measurements of one pytest invocation, or of several merged by `gpuperf record`."""

    __pydantic_config__ = checked(attributions="blames")

    schema: int
    created: str
    """UTC, ISO 8601."""
    command: str
    measurements: tuple[Measurement, ...]
    verdicts: tuple[Verdict, ...] = ()
    expectations: tuple[Expectation, ...] = ()
    attributions: tuple[Attributed, ...] = ()
    judged_by: tuple[JudgedBy, ...] = ()
    """The entries of baselines that measurements were compared with."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Tests that were skipped without being measured, or failed but for a verdict, each with its
    reason; of two revisions, those that are not compared.
    """
    unfinished: Unfinished | None = None
    """The progress of a run that has not finished; None once pytest has ended by itself."""
    metric_units: Mapping[str, str] = field(default_factory=dict)
    """In a file, the unit of each metric's samples; empty in older ones, and once it was read."""

    def results(self) -> tuple[Result, ...]:
        """One result per measurement and ratio, in the order of the run."""
        measurements = grouped(self.measurements, lambda one: (one.test, one.name))
        verdicts = grouped(self.verdicts, lambda one: (one.test, one.name))
        limits: defaultdict[tuple[str, str], list[Expectation]] = defaultdict(list)
        ratios = []
        for expectation in self.expectations:
            key = (expectation.test, expectation.subject)
            if expectation.unit and key in measurements:
                limits[key].append(expectation)
            else:
                ratios.append(Result(*key, (), expectations=(expectation,)))
        attributions = {(entry.test, entry.name): entry.attribution for entry in self.attributions}
        judged_by = {(entry.test, entry.name): entry for entry in self.judged_by}
        return (
            *(
                Result(
                    *key,
                    tuple(measured),
                    tuple(verdicts.get(key, ())),
                    tuple(limits[key]),
                    attributions.get(key),
                    judged_by=judged_by.get(key),
                )
                for key, measured in measurements.items()
            ),
            *ratios,
        )

    def with_results(self, results: Iterable[Result]) -> Run:
        """A copy of this run with `results` in place of its own."""
        held = tuple(results)
        return replace(
            self,
            measurements=tuple(m for result in held for m in result.measurements),
            verdicts=tuple(v for result in held for v in result.verdicts),
            expectations=tuple(e for result in held for e in result.expectations),
            attributions=tuple(
                Attributed(result.test, result.name, result.attribution)
                for result in held
                if result.attribution
            ),
            judged_by=tuple(result.judged_by for result in held if result.judged_by),
        )
