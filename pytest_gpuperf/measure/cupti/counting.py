"""Counters of a whole step and of its phases, from range-profiler sessions.

What the hardware counts is counted in rounds: all passes over the step as one range, and all passes
again with a user range per phase. What CUPTI counts by instrumenting kernels
(`Metric.instrumented`) is exact and slow (on an H200, 50 times the time of a TF32 training step):
it is counted in one execution, in ranges that leave nothing out, and the step's value is the sum of
theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.measure.collector import Plan, Progress, Work, each
from pytest_gpuperf.measure.cupti import driver, library
from pytest_gpuperf.measure.cupti.range_session import RangeSession, Values
from pytest_gpuperf.measure.execution import CudaTimer, Series, Stopwatch, prepare
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


@dataclass(frozen=True)
class _Round:
    """The values of the step as one range, and of its phases' ranges, by range name."""

    step: Values
    phases: Values


@dataclass(frozen=True)
class _Rounds:
    """What came of the rounds of some metrics."""

    rounds: tuple[_Round, ...] = ()
    refused: tuple[Unsupported, ...] = ()
    """Under NVIDIA's names."""
    passes: int = 0
    """Of one round, over the step."""
    executions: int = 0
    reopened: int = 0
    chip: str = ""
    phases_s: float = 0.0
    """Seconds of the executions in phases."""


@dataclass(frozen=True)
class Counting:
    """Counts steps on the current device of architecture `arch`."""

    arch: str
    timer: CudaTimer
    cupti: library.Cupti
    cuda: driver.Driver

    def of(self, work: Work, plan: Plan, ranges: Sequence[PhaseRange]) -> CountedStep:
        """The counters of `plan.metrics` over the step and over `ranges`, its phases.

        Raises CountersUnavailable and MeasurementError, and what the step raises.
        """
        named = {m.name: hw for m in plan.metrics if (hw := m.hardware_name(self.arch))}
        absent = {
            m.name: f"does not exist on {self.arch}" for m in plan.metrics if m.name not in named
        }
        if not named:
            return CountedStep({}, _unsupported(plan.metrics, absent), {"passes": 0})
        existing = [metric for metric in plan.metrics if metric.name in named]
        instrumented = [m for m in existing if m.additive and m.instrumented(self.arch)]
        watch = Stopwatch()
        counted = self._rounds(
            work, plan.rounds, [m for m in existing if m not in instrumented], ranges
        )
        watch.lap()
        once = self._instrumented(work, instrumented, ranges)
        instrumented_s = watch.lap()
        refused = {u.metric: u.reason for u in (*counted.refused, *once.refused)}
        absent |= {name: refused[hw] for name, hw in named.items() if hw in refused}
        rounds = {m.name: (once if m in instrumented else counted).rounds for m in existing}
        metrics = [metric for metric in existing if metric.name not in absent]
        series, problems = _series(metrics, named, rounds, ranges)
        settings: dict[str, Scalar] = {
            "chip": counted.chip or once.chip,
            "passes": counted.passes + once.passes,
            "counter_passes": counted.executions + once.executions,
            "ranges": 1 + len(ranges),
            "reopened": counted.reopened,
            "phases_s": counted.phases_s,
        }
        if instrumented:
            settings["instrumented_s"] = instrumented_s
        return CountedStep(series, _unsupported(plan.metrics, absent) + problems, settings)

    def _rounds(
        self, work: Work, count: int, metrics: Sequence[Metric], ranges: Sequence[PhaseRange]
    ) -> _Rounds:
        """All passes over the step and all passes over its phases, so many times."""
        if not metrics:
            return _Rounds()
        rounds: list[_Round] = []
        phases_s = 0.0
        watch = Stopwatch()
        with self._session(metrics, max(1, len(ranges))) as session:
            passes = session.passes * (2 if ranges else 1)
            for number in range(count if session.metrics else 0):
                prepared = announced(
                    work, self.timer, _passes(work.progress, number, count, passes)
                )
                step = self._step_round(work, session, prepared)
                watch.lap()
                phases = self._phase_round(work, session, ranges, prepared) if ranges else {}
                phases_s += watch.lap()
                rounds.append(_Round(step, phases))
        return _Rounds(
            tuple(rounds),
            session.unsupported,
            session.passes,
            passes * len(rounds),
            session.reopened,
            session.chip,
            phases_s,
        )

    def _instrumented(
        self, work: Work, metrics: Sequence[Metric], ranges: Sequence[PhaseRange]
    ) -> _Rounds:
        """One execution (where one pass is enough) in ranges that cover the step."""
        if not metrics:
            return _Rounds()
        covered = covering(ranges)
        with self._session(metrics, len(covered)) as session:
            if not session.metrics:
                return _Rounds(refused=session.unsupported, chip=session.chip)
            passes = each(work.progress, "counting in instrumented kernels, pass", session.passes)
            prepared = announced(work, self.timer, passes)
            phases = self._phase_round(work, session, covered, prepared, covering=True)
        step = {
            hardware: math.fsum(
                _or_nothing(entry, phases[entry.name][hardware]) for entry in covered
            )
            for hardware in session.metrics
        }
        return _Rounds(
            (_Round({STEP: step}, phases),),
            session.unsupported,
            session.passes,
            session.passes,
            chip=session.chip,
        )

    def _session(self, metrics: Sequence[Metric], most: int) -> RangeSession:
        names = [hardware for m in metrics if (hardware := m.hardware_name(self.arch))]
        return RangeSession(names, most, cupti=self.cupti, cuda=self.cuda)

    def _step_round(
        self, work: Work, session: RangeSession, prepared: Callable[[], None]
    ) -> Values:
        def whole() -> None:
            session.push(STEP)
            work.step()
            # A range ends where the host pops it: its kernels have to be done by then.
            self.timer.synchronize()
            session.pop()

        return session.round([STEP], whole, prepare=prepared)

    def _phase_round(
        self,
        work: Work,
        session: RangeSession,
        ranges: Sequence[PhaseRange],
        prepared: Callable[[], None],
        *,
        covering: bool = False,
    ) -> Values:
        def in_phases() -> None:
            marker = RangeMarker(session, self.timer.synchronize, ranges, covering=covering)
            marker.begin()
            with work.phases.heard_by(marker):
                work.step()
            self.timer.synchronize()
            marker.finish()

        names = [entry.name for entry in ranges]
        return session.round(names, in_phases, prepare=prepared, undefined=True)


def phase_ranges(phases: Sequence[str]) -> tuple[PhaseRange, ...]:
    """A range for each phase of a step, in order.

    Ranges of one name would be one range to CUPTI: the second "backward" is called "backward#2".
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
    """Ranges of which a step consists: its phases, and what is before, between and after them.

    Those others are of the phase STEP, which no phase can be named.
    """
    names = [STEP, *(name for entry in phases for name in (entry.phase, STEP))]
    return phase_ranges(names)


def announced(work: Work, timer: CudaTimer, passes: Iterator[None]) -> Callable[[], None]:
    """What comes before every pass, outside of counting: it is announced, and reset."""

    def prepared() -> None:
        next(passes, None)
        prepare(work, timer)

    return prepared


class Marker:
    """Marks ranges in one execution of a step, each when the device has done what came before.

    A range ends where the host is. The first problem is kept until the end and ends the marking:
    raising inside the step would hide an exception of the step's own, or be swallowed by the step.
    """

    def __init__(self, session: RangeSession, synchronize: Callable[[], None]) -> None:
        self._session = session
        self._synchronize = synchronize
        self._problem: Exception | None = None

    def _marked(self, mark: Callable[[], None]) -> None:
        if self._problem is not None:
            return
        try:
            self._synchronize()
            mark()
        except Exception as problem:
            self._problem = problem


class RangeMarker(Marker):
    """A phase listener that turns one execution's phases into the ranges expected of it.

    `covering` says that `expected` are the ranges of the function of that name: there is always one
    open, from `begin` to `finish`.
    """

    def __init__(
        self,
        session: RangeSession,
        synchronize: Callable[[], None],
        expected: Sequence[PhaseRange],
        *,
        covering: bool = False,
    ) -> None:
        super().__init__(session, synchronize)
        self._expected = [entry for entry in expected if entry.phase != STEP or not covering]
        self._others = [entry for entry in expected if entry.phase == STEP] if covering else []
        self._seen: list[str] = []

    def begin(self) -> None:
        """The execution begins."""
        if self._others:
            self._marked(lambda: self._session.push(self._others[0].name))

    def enter(self, phase: str) -> None:
        """Begins the range of this occurrence."""
        position = len(self._seen)
        self._seen.append(phase)
        if position < len(self._expected) and self._expected[position].phase == phase:
            self._marked(lambda: self._push(self._expected[position].name))
        elif self._problem is None:
            self._problem = self._changed()

    def leave(self, phase: str) -> None:  # noqa: ARG002
        """Ends the range."""
        self._marked(self._pop)

    def finish(self) -> None:
        """Raises the problem that came up, or MeasurementError for phases that are missing."""
        if self._problem is None and len(self._seen) < len(self._expected):
            self._problem = self._changed()
        if self._others:
            self._marked(self._session.pop)
        if self._problem is not None:
            raise self._problem

    def _push(self, name: str) -> None:
        if self._others:
            self._session.pop()
        self._session.push(name)

    def _pop(self) -> None:
        self._session.pop()
        if self._others:
            self._session.push(self._others[len(self._seen)].name)

    def _changed(self) -> MeasurementError:
        expected = [entry.phase for entry in self._expected]
        return MeasurementError(
            "the phases of the step change from one execution to the next: "
            f"expected {expected}, got {self._seen}"
        )


def _passes(progress: Progress, done: int, rounds: int, passes: int) -> Iterator[None]:
    """The passes of the round after so many that are done, each announced as it begins."""
    for number in range(1, passes + 1):
        place = f"round {done + 1} of {rounds}, pass {number} of {passes}"
        progress.begins("counting", place, (rounds - done) * passes - number + 1)
        yield


def _or_nothing(entry: PhaseRange, value: float) -> float:
    """0 between phases where no kernel ran: there CUPTI may have no number."""
    return value if math.isfinite(value) or entry.phase != STEP else 0.0


def _series(
    metrics: Sequence[Metric],
    named: dict[str, str],
    rounds: dict[str, tuple[_Round, ...]],
    ranges: Sequence[PhaseRange],
) -> tuple[Series, tuple[Unsupported, ...]]:
    """The values per phase and metric, and what has no value in some phase."""
    series: Series = {}
    for metric in metrics:
        hardware = named[metric.name]
        series[STEP, metric.name] = [one.step[STEP][hardware] for one in rounds[metric.name]]
    problems: dict[str, list[str]] = {}
    for phase in dict.fromkeys(entry.phase for entry in ranges):
        members = [entry.name for entry in ranges if entry.phase == phase]
        for metric in metrics:
            hardware = named[metric.name]
            if len(members) > 1 and not metric.additive:
                problem = f'phase "{phase}" occurs {len(members)} times and the metric does not add'
                problems.setdefault(metric.name, []).append(problem)
                continue
            values = [
                math.fsum(one.phases[name][hardware] for name in members)
                for one in rounds[metric.name]
            ]
            if all(map(math.isfinite, values)):
                series[phase, metric.name] = values
            else:
                problem = f'phase "{phase}" has no value: nothing ran there that the metric counts'
                problems.setdefault(metric.name, []).append(problem)
    return series, tuple(Unsupported(name, "; ".join(told)) for name, told in problems.items())


def _unsupported(metrics: Sequence[Metric], absent: dict[str, str]) -> tuple[Unsupported, ...]:
    return tuple(Unsupported(m.name, absent[m.name]) for m in metrics if m.name in absent)
