"""The parts that collectors share: the work, the plan, phases, and the Collector protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.model.measurement import (
    STEP,
    Device,
    KernelTable,
    Sample,
    Scalar,
    Unsupported,
    Window,
)
from pytest_gpuperf.model.metric import Metric
from pytest_gpuperf.storage.files import writable


class PhaseListener(Protocol):
    """Told when the step enters and leaves a phase or a component."""

    def enter(self, phase: str) -> None:
        """The phase begins."""
        ...

    def leave(self, phase: str) -> None:
        """The phase ends, also by an exception."""
        ...


class Components:
    """Reports the step's marks of components to the current listener, if there is one.

    A step marks its parts with `with components.mark("conv2d"): ...`. Without a listener, a mark
    costs one attribute look-up. Components may be nested and may occur any number of times.
    """

    _what = "component"
    _nested = True

    def __init__(self) -> None:
        self._listener: PhaseListener | None = None
        self._open: list[str] = []

    def mark(self, name: str) -> AbstractContextManager[None]:
        """A context manager around one part of the step."""
        if self._listener is None:
            return _UNHEARD
        return self._marked(self._listener, name)

    @contextmanager
    def _marked(self, listener: PhaseListener, name: str) -> Iterator[None]:
        self._check(name)
        listener.enter(name)
        self._open.append(name)
        try:
            yield
        finally:
            self._open.pop()
            listener.leave(name)

    def _check(self, name: str) -> None:
        if self._open and not self._nested:
            raise MeasurementError(
                f'phase "{name}" begins inside phase "{self._open[-1]}", and phases cannot be '
                "nested. End one phase before the next begins"
            )
        if name == STEP:
            raise MeasurementError(
                f'a {self._what} cannot be named "{STEP}": this name means the whole step'
            )
        if writable(name) != name:
            raise MeasurementError(
                f'the name of the {self._what} "{writable(name)}" has half of a surrogate pair, '
                "which UTF-8 cannot encode. Choose another name"
            )

    @contextmanager
    def heard_by(self, listener: PhaseListener) -> Iterator[None]:
        """Sends the marks made inside the block to `listener`."""
        self._listener, before = listener, self._listener
        try:
            yield
        finally:
            self._listener = before


class Phases(Components):
    """The marks of the step's phases. Phases are sequential.

    Raises MeasurementError for a phase inside another.
    """

    _what = "phase"
    _nested = False


_UNHEARD: AbstractContextManager[None] = nullcontext()


class PhaseNames:
    """A listener that notes the order in which phases or components begin, each time."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def enter(self, phase: str) -> None:
        """Notes the phase."""
        self.names.append(phase)

    def leave(self, phase: str) -> None:
        """Ignored: only the beginnings count."""


class Progress:
    """Receives the state of a measurement, between two executions of the step, never inside one.

    This class ignores it.
    """

    def begins(self, stage: str, place: str = "") -> None:
        """One more execution, or other unit of the stage, begins.

        `stage` is the activity ("timing") and `place` the position in it ("2 of 3").
        """

    def aside(self) -> AbstractContextManager[object]:
        """Entered by who waits for other processes: that is no time of the test's."""
        return nullcontext()


SILENT = Progress()
"""The progress of measurements without a display."""


def each(progress: Progress, stage: str, count: int) -> Iterator[int]:
    """The numbers from 1 of `count` executions in a row, each announced as it begins."""
    for number in range(1, count + 1):
        progress.begins(stage, f"{number} of {count}")
        yield number


def no_reset() -> None:
    """The reset of a step that does the same work in every repetition anyway."""


REPRODUCIBLE = 1e-3
"""The relative difference that is allowed between the losses of two executions after a reset.

Sums in another order (atomics) move a float32 loss by 1e-7 to 1e-5 of itself, a bfloat16 one by up
to 1e-4; a random generator that is not reset moves it by percents.
"""


@dataclass(frozen=True)
class Work:
    """The callable to measure. `reset` is called before every repetition and is never measured."""

    step: Callable[[], object]
    phases: Phases
    reset: Callable[[], object] = no_reset
    test: str = ""
    """The node id of the test that it is of, for collectors that run the test elsewhere."""
    name: str = STEP
    """The measurement's name within its test."""
    progress: Progress = SILENT
    """Told how far a collector has come."""
    components: Components = field(default_factory=Components)
    reproducible: float | None = REPRODUCIBLE
    """The largest relative difference between losses after `reset`; None: no limit."""
    barrier: Callable[[], object] = no_reset
    """Called right before every execution: returns when all ranks are there."""
    together: bool = False
    """Whether the step is one of several ranks'."""

    def begin(self) -> None:
        """Puts the step's state back; returns when all ranks have done so."""
        self.reset()
        self.barrier()


Rounds = Mapping[str, Sequence[float]]
"""The counts of the whole step in one process so far: by metric, one value per round."""


def never(rounds: Rounds) -> bool:  # noqa: ARG001
    """Any number of rounds may be followed by another."""
    return False


@dataclass(frozen=True)
class Plan:
    """The number of executions of the step.

    A process executes it once to warm up, then once per pass of each round. Phases take one more
    per pass, and instrumented kernels one. Traces come on top.
    """

    metrics: tuple[Metric, ...]
    """The hardware metrics asked for."""
    rounds: int = 5
    """The most samples of each counter."""
    enough: Callable[[Rounds], bool] = never
    """Whether the rounds so far tell what this process has to tell: the judge knows."""
    repetitions: int | None = None
    """Executions only for times. None: the collector's default if counting takes device time, else
    the times of the counted executions."""
    warmup: int = 1
    """First executions, discarded: lazy loading, allocation, algorithm choice."""
    activity: tuple[Metric, ...] = ()
    """Metrics from traces that were asked for."""
    components: bool = False
    """Components are measured as well, which takes executions of its own."""
    extremes: bool = False
    """Best, worst and mean of the wall times are reported by themselves."""


@dataclass(frozen=True)
class Collected:
    """The data that a collector returns for one `Work`."""

    samples: tuple[Sample, ...]
    unsupported: tuple[Unsupported, ...] = ()
    settings: dict[str, Scalar] | None = None
    """The collector's settings: passes per round, cost in seconds, ..."""
    window: Window | None = None
    """The counts of the paper's window, if that was the task."""
    components: tuple[str, ...] = ()
    """The phases of the samples that are components."""
    collectives: tuple[Mapping[str, tuple[float, ...]], ...] = ()
    """The collectives in a step of several ranks, see `Peer`."""
    launched: Mapping[str, str] = field(default_factory=dict)
    """See `Measurement`."""


class Collector(Protocol):
    """Obtains counters and times for a step on one device. Knows nothing of baselines."""

    name: str
    torch_device: str
    """The device of the step's tensors: "cuda" or "cpu"."""

    def device(self) -> Device:
        """The device that is measured."""
        ...

    def software(self) -> dict[str, str]:
        """Versions the numbers depend on, beyond those of the process and the driver (cupti)."""
        ...

    def collect(self, work: Work, plan: Plan) -> Collected:
        """Runs the step as planned. Raises CountersUnavailable or MeasurementError."""
        ...


@runtime_checkable
class KernelCollector(Protocol):
    """A collector that can also count every kernel of a step by itself."""

    def kernels(self, work: Work, metrics: Sequence[Metric]) -> KernelTable:
        """Runs the step for a kernel table; its `mismatch` says why counts are missing."""
        ...


def check_alike(parts: str, first: Sequence[str], then: Sequence[str]) -> None:
    """Raises MeasurementError if two executions of a step have other phases or components."""
    if first != then:
        raise MeasurementError(
            f"the {parts} of the step change from one execution to the next: first {list(first)}, "
            f"then {list(then)}. Give `measure` a `reset` after which the step does the same work "
            "again"
        )


def samples_of(series: dict[tuple[str, str], list[float]]) -> tuple[Sample, ...]:
    """Samples from values gathered per (phase, metric), in order of first appearance."""
    return tuple(Sample(phase, metric, tuple(values)) for (phase, metric), values in series.items())
