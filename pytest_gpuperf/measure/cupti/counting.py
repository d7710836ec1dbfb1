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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property

from pytest_gpuperf.measure.collector import (
    Collected,
    Plan,
    Work,
    check_alike,
    each,
    samples_of,
)
from pytest_gpuperf.measure.cupti.range_session import RangeSession
from pytest_gpuperf.measure.execution import CudaTimer, Executions, Series, prepare
from pytest_gpuperf.model.measurement import STEP, Scalar, Unsupported
from pytest_gpuperf.model.metric import Metric


@dataclass(frozen=True)
class PhaseRange:
    """One occurrence of a phase, or a part of the step between two, and the name of its range."""

    phase: str
    """STEP, a name that phases cannot have, for what is between them."""
    name: str


@dataclass
class Counting:
    """Counts executions of one step, once, on the current device of architecture `arch`."""

    arch: str
    executions: Executions
    step: dict[str, list[float]] = field(default_factory=dict)
    """The values of the step as one range, by metric and per round."""
    parts: dict[tuple[str, str], float] = field(default_factory=dict)
    """The values of its ranges, by range name and metric, each counted once."""
    absent: dict[str, str] = field(default_factory=dict)
    """Why a metric is not among them."""
    rounds: int = 0
    passes: int = 0
    """The passes of one round over the step."""
    counted: int = 0
    """Executions in all passes."""
    chip: str = ""

    def of(self, plan: Plan) -> Collected:
        """The counters of `plan.metrics` over the step and over its phases.

        No more rounds than are enough. Raises CountersUnavailable and MeasurementError, and what
        the step raises.
        """
        existing = [m for m in plan.metrics if m.hardware_name(self.arch)]
        self.absent = {
            m.name: f"does not exist on {self.arch}" for m in plan.metrics if m not in existing
        }
        instrumented = [m for m in existing if m.additive and m.instrumented(self.arch)]
        self._rounds(plan, [m for m in existing if m not in instrumented])
        self._instrumented(instrumented)
        settings: dict[str, Scalar] = {
            "chip": self.chip,
            "passes": self.passes,
            "rounds": self.rounds,
            "counter_passes": self.counted,
            "ranges": 1 + len(self.executions.phases),
        }
        series = self._series([m for m in existing if m.name in self.step])
        named = (metric.name for metric in plan.metrics)
        absent = [Unsupported(name, self.absent[name]) for name in named if name in self.absent]
        return Collected(samples_of(series), tuple(absent), settings)

    @cached_property
    def _ranges(self) -> tuple[PhaseRange, ...]:
        return ranges_of(self.executions.phases)

    def _rounds(self, plan: Plan, metrics: Sequence[Metric]) -> None:
        """All passes over the step until the plan is satisfied, then all over its phases once."""
        phases = self._ranges[1::2]
        with self._session(metrics, max(1, len(phases))) as (session, named):
            for number in range(plan.rounds if named else 0):
                values = self._step_round(session, number, plan)
                self.rounds, self.counted = number + 1, self.counted + session.passes
                for name, hardware in named.items():
                    self.step.setdefault(name, []).append(values[hardware])
                timed = {metric: v for (_, metric), v in self.executions.series.items()}
                defined = {n: v for n, v in self.step.items() if all(map(math.isfinite, v))}
                if plan.enough({**defined, **timed}):
                    break
            if named and phases:
                self._in_ranges(session, named, phases, "counting phases")

    def _instrumented(self, metrics: Sequence[Metric]) -> None:
        """Runs one execution (if one pass is enough) in ranges that cover the step."""
        stage = "counting in instrumented kernels"
        with self._session(metrics, len(self._ranges)) as (session, named):
            if named:
                self._in_ranges(session, named, self._ranges, stage)
        for name in named:
            parts = ((entry, self.parts[entry.name, name]) for entry in self._ranges)
            # Between phases where no kernel ran CUPTI may have no number.
            ran = (v for entry, v in parts if entry.phase != STEP or math.isfinite(v))
            self.step[name] = [math.fsum(ran)]

    @contextmanager
    def _session(
        self, metrics: Sequence[Metric], most: int
    ) -> Iterator[tuple[RangeSession, dict[str, str]]]:
        """Opens a session for `most` ranges; yields it with NVIDIA's names of its metrics.

        Without metrics it is not opened.
        """
        named = {m.name: m.hardware_name(self.arch) or "" for m in metrics}
        session = RangeSession([*named.values()], most)
        with session if named else nullcontext():
            refused = {entry.metric: entry.reason for entry in session.unsupported}
            self.absent |= {n: refused[hw] for n, hw in named.items() if hw in refused}
            self.chip, self.passes = session.chip or self.chip, self.passes + session.passes
            yield session, {name: hw for name, hw in named.items() if hw in session.metrics}

    def _step_round(self, session: RangeSession, number: int, plan: Plan) -> dict[str, float]:
        """The values of round `number`, from 0 on; its executions are timed, if no others are."""

        def whole() -> None:
            session.push(STEP)
            # A range ends where the host pops it: its kernels have to be done by then.
            self.executions.execute(timed=plan.repetitions is None, ended=session.pop)

        work = self.executions.work
        stage = f"counting round {number + 1} of at most {plan.rounds}, pass"
        passes = each(work.progress, stage, session.passes)
        prepared = announced(work, self.executions.timer, passes)
        return session.round([STEP], whole, prepare=prepared)[STEP]

    def _in_ranges(
        self,
        session: RangeSession,
        named: Mapping[str, str],
        counted: Sequence[PhaseRange],
        stage: str,
    ) -> None:
        """The values of those ranges of the step that are to be `counted`."""
        work, timer = self.executions.work, self.executions.timer

        def run() -> None:
            Marker(session, timer, self._ranges, counted).divide(work)

        prepared = announced(work, timer, each(work.progress, f"{stage}, pass", session.passes))
        values = session.round([entry.name for entry in counted], run, prepare=prepared)
        self.counted += session.passes
        for entry, of in values.items():
            self.parts |= {(entry, name): of[hardware] for name, hardware in named.items()}

    def _series(self, metrics: Sequence[Metric]) -> Series:
        """The values per phase and metric; what has no value in some phase is `absent` there."""
        series: Series = {}
        problems: dict[str, list[str]] = {}
        for phase in dict.fromkeys((STEP, *self.executions.phases)):
            for metric in metrics:
                values = self._values(metric, phase)
                if isinstance(values, str):
                    problems.setdefault(metric.name, []).append(values)
                else:
                    series[phase, metric.name] = values
        self.absent |= {name: "; ".join(told) for name, told in problems.items()}
        return series

    def _values(self, metric: Metric, phase: str) -> list[float] | str:
        """A value of the step per round, or one of a phase; or why there is none."""
        members = [entry.name for entry in self._ranges if entry.phase == phase]
        where = "the step" if phase == STEP else f'phase "{phase}"'
        if phase == STEP:
            values = self.step[metric.name]
        elif len(members) > 1 and not metric.additive:
            return f"{where} occurs {len(members)} times, and this metric has no sum"
        else:
            values = [math.fsum(self.parts[name, metric.name] for name in members)]
        if all(map(math.isfinite, values)):
            return values
        return f"nothing that the metric counts ran in {where}"


def ranges_of(phases: Sequence[str]) -> tuple[PhaseRange, ...]:
    """The ranges of a step in order: the parts before, between and after its phases, and these.

    Every second one is a phase. CUPTI would merge ranges of one name, so the second "backward" is
    called "backward#2".
    """
    ranges: list[PhaseRange] = []
    taken, numbers = {*phases}, Counter[str]()
    for phase in [STEP, *(name for occurrence in phases for name in (occurrence, STEP))]:
        numbers[phase] += 1
        while numbers[phase] > 1 and f"{phase}#{numbers[phase]}" in taken:
            numbers[phase] += 1
        name = f"{phase}#{numbers[phase]}" if numbers[phase] > 1 else phase
        ranges.append(PhaseRange(phase, name))
    return tuple(ranges)


def announced(work: Work, timer: CudaTimer, passes: Iterator[object]) -> Callable[[], None]:
    """The preparation of every pass, outside of counting: announcement and reset."""

    def prepared() -> None:
        next(passes, None)
        prepare(work, timer)

    return prepared


class Marker:
    """A listener that divides one execution of a step into `ranges`, as `ranges_of` lists them.

    It marks those that are to be `counted`. It waits for the device at a border, because a range
    ends where the host is. The first problem stops the marking and is reported at the end. Raising
    inside the step could hide the step's own exception, or be swallowed by the step.
    """

    def __init__(
        self,
        session: RangeSession,
        timer: CudaTimer,
        ranges: Sequence[PhaseRange],
        counted: Sequence[PhaseRange],
    ) -> None:
        self._session, self._timer = session, timer
        marked = {*counted}
        self._names = [entry.name if entry in marked else "" for entry in ranges]
        """The names of the ranges, in order; "" for a range that is not counted."""
        self._expected = [entry.phase for entry in ranges[1::2]]
        self._heard: list[str] = []
        self._borders = 0
        self._problem: Exception | None = None

    def divide(self, work: Work) -> None:
        """Executes the step. Raises the problem that came up, and MeasurementError for other
        phases than `ranges` has.
        """
        self._mark("", self._names[0])
        with work.phases.heard_by(self):
            work.step()
        last = self._names[min(self._borders, len(self._names) - 1)]
        if last:
            self._mark(last, "")
        else:
            self._timer.synchronize()
        if self._problem is not None:
            raise self._problem
        check_alike("phases", self._expected, self._heard)

    def enter(self, phase: str) -> None:
        """Begins the range of this occurrence."""
        self._heard.append(phase)
        self._border()

    def leave(self, phase: str) -> None:  # noqa: ARG002
        """Ends the range."""
        self._border()

    def _border(self) -> None:
        """A range ends, and the next one begins."""
        self._borders += 1
        if self._borders < len(self._names):
            self._mark(*self._names[self._borders - 1 : self._borders + 1])

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
