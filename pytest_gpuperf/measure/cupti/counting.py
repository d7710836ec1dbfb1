"""Counters of a whole step and of its phases, from range-profiler sessions.

Hardware counts come in rounds: all passes over the step as one range. That costs the device nothing
measurable (on an H200 a step of 229.6 ms takes 229.7, and one of 1221.7 ms 1221.2), so times are
taken there too. Then all passes run once more, with a user range per phase. There the device waits
for the host at each border, for 0.7 to 6 % of the step. Nested ranges would save nothing: CUPTI
repeats all passes for each level.

Metrics that CUPTI counts by instrumenting kernels (`Metric.instrumented`) are exact and slow (on an
H200, 50 times the time of a TF32 training step). They are counted in one execution, in ranges that
cover everything, and the step's value is the sum of the ranges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.measure.collector import Plan, Progress, Work, each
from pytest_gpuperf.measure.cupti.range_session import RangeSession, Values
from pytest_gpuperf.measure.execution import (
    CudaTimer,
    Executions,
    Series,
    Stopwatch,
    prepare,
)
from pytest_gpuperf.model.measurement import STEP, Scalar, Unsupported
from pytest_gpuperf.model.metric import Metric


@dataclass(frozen=True)
class CountedStep:
    """The values per phase and metric, what has none, and how it was counted."""

    series: Series
    unsupported: tuple[Unsupported, ...]
    settings: dict[str, Scalar]


@dataclass(frozen=True)
class PhaseRange:
    """One occurrence of a phase, and the name of its range."""

    phase: str
    name: str


@dataclass
class _Counts:
    """The counts of a step so far."""

    step: dict[str, list[float]] = field(default_factory=dict)
    """The values of the step as one range, by metric and per round."""
    phases: dict[tuple[str, str], float] = field(default_factory=dict)
    """The values of the ranges of its phases, by range name and metric, each counted once."""
    absent: dict[str, str] = field(default_factory=dict)
    """Why a metric is not among them."""
    rounds: int = 0
    passes: int = 0
    """The passes of one round over the step."""
    executions: int = 0
    chip: str = ""
    phases_s: float = 0.0
    """Seconds of the executions in phases."""


@dataclass(frozen=True)
class Counting:
    """Counts executions of one step on the current device of architecture `arch`."""

    arch: str
    executions: Executions

    def of(self, plan: Plan, ranges: Sequence[PhaseRange]) -> CountedStep:
        """The counters of `plan.metrics` over the step and over `ranges`, its phases.

        No more rounds than are enough. Raises CountersUnavailable and MeasurementError, and what
        the step raises.
        """
        existing = [m for m in plan.metrics if m.hardware_name(self.arch)]
        counts = _Counts()
        counts.absent = {
            m.name: f"does not exist on {self.arch}" for m in plan.metrics if m not in existing
        }
        if not existing:
            return CountedStep({}, _unsupported(plan.metrics, counts.absent), {"passes": 0})
        instrumented = [m for m in existing if m.additive and m.instrumented(self.arch)]
        watch = Stopwatch()
        self._rounds(plan, [m for m in existing if m not in instrumented], ranges, counts)
        watch.lap()
        self._instrumented(instrumented, ranges, counts)
        settings: dict[str, Scalar] = {
            "chip": counts.chip,
            "passes": counts.passes,
            "rounds": counts.rounds,
            "counter_passes": counts.executions,
            "ranges": 1 + len(ranges),
            "phases_s": counts.phases_s,
        }
        if instrumented:
            settings["instrumented_s"] = watch.lap()
        series, problems = _series([m for m in existing if m.name in counts.step], counts, ranges)
        return CountedStep(series, _unsupported(plan.metrics, counts.absent) + problems, settings)

    def _rounds(
        self, plan: Plan, metrics: Sequence[Metric], ranges: Sequence[PhaseRange], counts: _Counts
    ) -> None:
        """All passes over the step until the plan is satisfied, then all over its phases once."""
        with self._session(metrics, max(1, len(ranges)), counts) as (session, named):
            for number in range(plan.rounds if named else 0):
                values = self._step_round(session, number, plan)
                counts.rounds, counts.executions = number + 1, counts.executions + session.passes
                for name, hardware in named.items():
                    counts.step.setdefault(name, []).append(values[hardware])
                timed = {metric: v for (_, metric), v in self.executions.series.items()}
                if plan.enough({**counts.step, **timed}):
                    break
            watch = Stopwatch()
            if named and ranges:
                self._in_phases(session, named, covering(ranges), "counting phases", counts)
                counts.phases_s = watch.lap()

    def _instrumented(
        self, metrics: Sequence[Metric], ranges: Sequence[PhaseRange], counts: _Counts
    ) -> None:
        """Runs one execution (if one pass is enough) in ranges that cover the step."""
        covered = covering(ranges)
        stage = "counting in instrumented kernels"
        with self._session(metrics, len(covered), counts) as (session, named):
            if named:
                self._in_phases(session, named, covered, stage, counts, covered=True)
        for name in named:
            parts = (_or_nothing(entry, counts.phases[entry.name, name]) for entry in covered)
            counts.step[name] = [math.fsum(parts)]

    @contextmanager
    def _session(
        self, metrics: Sequence[Metric], most: int, counts: _Counts
    ) -> Iterator[tuple[RangeSession, dict[str, str]]]:
        """Opens a session for `most` ranges; yields it with NVIDIA's names of its metrics.

        Without metrics it is not opened.
        """
        named = {m.name: m.hardware_name(self.arch) or "" for m in metrics}
        session = RangeSession([*named.values()], most)
        with session if named else nullcontext():
            refused = {entry.metric: entry.reason for entry in session.unsupported}
            counts.absent |= {n: refused[hw] for n, hw in named.items() if hw in refused}
            counts.chip, counts.passes = session.chip or counts.chip, counts.passes + session.passes
            yield session, {name: hw for name, hw in named.items() if hw in session.metrics}

    def _step_round(self, session: RangeSession, number: int, plan: Plan) -> dict[str, float]:
        """The values of round `number`, from 0 on; its executions are timed, if no others are."""

        def whole() -> None:
            session.push(STEP)
            # A range ends where the host pops it: its kernels have to be done by then.
            self.executions.execute(timed=plan.repetitions is None, ended=session.pop)

        work = self.executions.work
        passes = _passes(work.progress, number, plan.rounds, session.passes)
        prepared = announced(work, self.executions.timer, passes)
        return session.round([STEP], whole, prepare=prepared)[STEP]

    def _in_phases(
        self,
        session: RangeSession,
        named: Mapping[str, str],
        ranges: Sequence[PhaseRange],
        stage: str,
        counts: _Counts,
        *,
        covered: bool = False,
    ) -> None:
        """The values of the phases, or of all ranges if the step is to be `covered`."""
        work, timer = self.executions.work, self.executions.timer
        marker = partial(PhaseMarker, session, timer, ranges, covered=covered)
        values = counted_in(session, marker, work.phases.heard_by, work, timer, stage)
        counts.executions += session.passes
        for entry, of in values.items():
            counts.phases |= {(entry, name): of[hardware] for name, hardware in named.items()}


def phase_ranges(phases: Sequence[str]) -> tuple[PhaseRange, ...]:
    """A range for each phase of a step, in order.

    CUPTI would merge ranges of one name, so the second "backward" is called "backward#2".
    """
    ranges: list[PhaseRange] = []
    taken = set(phases)
    for phase in phases:
        name, number = phase, 1
        while any(entry.name == name for entry in ranges) or (number > 1 and name in taken):
            number += 1
            name = f"{phase}#{number}"
        ranges.append(PhaseRange(phase, name))
    return tuple(ranges)


def covering(phases: Sequence[PhaseRange]) -> tuple[PhaseRange, ...]:
    """The ranges of a step: its phases, and the parts before, between and after them.

    The other parts belong to the phase STEP, a name that phases cannot have.
    """
    names = [STEP, *(name for entry in phases for name in (entry.phase, STEP))]
    return phase_ranges(names)


def announced(work: Work, timer: CudaTimer, passes: Iterator[object]) -> Callable[[], None]:
    """The preparation of every pass, outside of counting: announcement and reset."""

    def prepared() -> None:
        next(passes, None)
        prepare(work, timer)

    return prepared


class Marker:
    """Divides one execution of a step into ranges, each from one border to the next.

    It waits for the device at a border, because a range ends where the host is. The first problem
    stops the marking and is reported at the end. Raising inside the step could hide the step's own
    exception, or be swallowed by the step. A wrong number of borders is also a problem: a
    MeasurementError with the message `otherwise`.
    """

    def __init__(
        self, session: RangeSession, timer: CudaTimer, names: Sequence[str], otherwise: str
    ) -> None:
        self._session, self._timer = session, timer
        self.names = names
        """The names of the ranges, in order; "" for a range that is not counted."""
        self._otherwise = otherwise
        self._borders = 0
        self._problem: Exception | None = None

    def begin(self) -> None:
        """The execution begins."""
        self._mark("", self.names[0])

    def border(self) -> None:
        """A range ends, and the next one begins."""
        self._borders += 1
        if self._borders < len(self.names):
            self._mark(*self.names[self._borders - 1 : self._borders + 1])

    def finish(self) -> None:
        """The execution has ended. Raises the problem that came up."""
        last = self.names[min(self._borders, len(self.names) - 1)]
        if last:
            self._mark(last, "")
        else:
            self._timer.synchronize()
        if self._borders != len(self.names) - 1:
            self._changed()
        if self._problem is not None:
            raise self._problem

    def _mark(self, ended: str, begun: str) -> None:
        if self._problem is not None or not (ended or begun):
            return
        try:
            self._timer.synchronize()
            if ended:
                self._session.pop()
            if begun:
                self._session.push(begun)
        except Exception as problem:
            self._problem = problem

    def _changed(self) -> None:
        said = self._otherwise.format(self._found())
        self._problem = self._problem or MeasurementError(said)

    def _found(self) -> object:
        """The number of calls found between the ranges."""
        return self._borders // 2


def counted_in(
    session: RangeSession,
    marker: Callable[[], Marker],
    heard: Callable[[Any], AbstractContextManager[None]],
    work: Work,
    timer: CudaTimer,
    stage: str,
) -> Values:
    """All passes over a step in ranges, each divided by a new `marker`: the values of its ranges.

    `heard` reports the borders to a marker, for a block.
    """

    def run() -> None:
        dividing = marker()
        dividing.begin()
        with heard(dividing):
            work.step()
        dividing.finish()

    prepared = announced(work, timer, each(work.progress, f"{stage}, pass", session.passes))
    names = [*filter(None, marker().names)]
    return session.round(names, run, prepare=prepared, undefined=True)


class PhaseMarker(Marker):
    """A phase listener that marks the ranges that are `expected`, as `covering` lists them.

    It marks only those of phases, or all of them if the step is to be `covered`.
    """

    def __init__(
        self,
        session: RangeSession,
        timer: CudaTimer,
        expected: Sequence[PhaseRange],
        *,
        covered: bool = False,
    ) -> None:
        self._expected = [entry.phase for entry in expected[1::2]]
        self._seen: list[str] = []
        super().__init__(
            session,
            timer,
            [entry.name if covered or entry.phase != STEP else "" for entry in expected],
            "the phases of the step change from one execution to the next: "
            f"expected {self._expected}, got {{}}",
        )

    def enter(self, phase: str) -> None:
        """Begins the range of this occurrence."""
        self._seen.append(phase)
        if self._seen != self._expected[: len(self._seen)]:
            self._changed()
        self.border()

    def leave(self, phase: str) -> None:  # noqa: ARG002
        """Ends the range."""
        self.border()

    def _found(self) -> object:
        return self._seen


def _passes(progress: Progress, done: int, rounds: int, passes: int) -> Iterator[None]:
    """The passes of the round after so many that are done, each announced as it begins."""
    for number in range(1, passes + 1):
        # The number of rounds depends on their agreement; it is at least two.
        left = max(min(2, rounds) - done, 1) * passes - number + 1
        place = f"round {done + 1} of at most {rounds}, pass {number} of {passes}"
        progress.begins("counting", place, left)
        yield


def _or_nothing(entry: PhaseRange, value: float) -> float:
    """0 between phases where no kernel ran: there CUPTI may have no number."""
    return value if math.isfinite(value) or entry.phase != STEP else 0.0


def _series(
    metrics: Sequence[Metric], counts: _Counts, ranges: Sequence[PhaseRange]
) -> tuple[Series, tuple[Unsupported, ...]]:
    """The values per phase and metric, and what has no value in some phase."""
    series: Series = {(STEP, metric.name): counts.step[metric.name] for metric in metrics}
    problems: dict[str, list[str]] = {}
    for phase in dict.fromkeys(entry.phase for entry in ranges):
        members = [entry.name for entry in ranges if entry.phase == phase]
        for metric in metrics:
            value = math.fsum(counts.phases[name, metric.name] for name in members)
            if len(members) > 1 and not metric.additive:
                problem = f'phase "{phase}" occurs {len(members)} times, and this metric has no sum'
                problems.setdefault(metric.name, []).append(problem)
            elif math.isfinite(value):
                series[phase, metric.name] = [value]
            else:
                problem = f'nothing that the metric counts ran in phase "{phase}"'
                problems.setdefault(metric.name, []).append(problem)
    return series, tuple(Unsupported(name, "; ".join(told)) for name, told in problems.items())


def _unsupported(metrics: Sequence[Metric], absent: dict[str, str]) -> tuple[Unsupported, ...]:
    return tuple(Unsupported(m.name, absent[m.name]) for m in metrics if m.name in absent)
