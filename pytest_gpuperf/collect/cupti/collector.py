"""The CUPTI collector: times from unprofiled repetitions, counters from range-profiler sessions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pytest_gpuperf import timeline
from pytest_gpuperf.collect.base import Collected, Plan, Progress, Work, each, samples_of
from pytest_gpuperf.collect.cupti import driver, graphs, kernels, library
from pytest_gpuperf.collect.cupti.ranges import PhaseRange, RangeMarker, phase_ranges
from pytest_gpuperf.collect.cupti.session import RangeSession, Values
from pytest_gpuperf.collect.cupti.timelines import Timelines
from pytest_gpuperf.collect.cupti.timing import CudaClock, CudaTimer, DeviceClock, DeviceTimer
from pytest_gpuperf.collect.errand import WINDOW, Errand, Rerun, no_rerun
from pytest_gpuperf.collect.execution import (
    Series,
    Stopwatch,
    garbage_kept,
    prepare,
    times,
    warm_up,
)
from pytest_gpuperf.collect.trace import Trace, trace
from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.metrics import timeline_metrics
from pytest_gpuperf.model import (
    STEP,
    Device,
    KernelTable,
    Metric,
    Scalar,
    Timeline,
    Unsupported,
    Window,
)

_MORE_LAUNCHES = 64
"""Room for launches that the trace did not have: they are to be counted, and then reported."""


class CuptiCollector:
    """Counts and times a step on the current CUDA device.

    The order: `plan.warmup` executions, at least one, in which the phases are learnt; unprofiled
    repetitions for the times; rounds of counter passes. Times and counters are never taken from
    the same execution. Where counters cannot be read, the times are returned all the same and every
    hardware metric is listed as unsupported, with the reason and the remedy.

    `device` is what `arch.detect_device` finds, if not given. `rerun` runs a test again in a fresh
    process, which the paper's window takes. The rest is for tests.
    """

    name = "cupti"
    torch_device = "cuda"

    def __init__(
        self,
        device: Device | None = None,
        *,
        rerun: Rerun = no_rerun,
        timer: DeviceTimer | None = None,
        clock: Callable[[], DeviceClock] = CudaClock,
        load_cupti: Callable[[], library.Cupti] = library.load,
        load_driver: Callable[[], driver.Driver] = driver.load,
    ) -> None:
        self._device = device
        self._rerun = rerun
        self._timer = timer or CudaTimer()
        self._clock = clock
        self._load_cupti = load_cupti
        self._load_driver = load_driver

    def device(self) -> Device:
        """The GPU that is measured. Raises CountersUnavailable where there is none."""
        if self._device is None:
            from pytest_gpuperf import arch

            self._device = arch.detect_device()
        if self._device is None:
            raise CountersUnavailable(
                "no NVIDIA GPU was found",
                "Check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or measure with another collector",
            )
        return self._device

    def software(self) -> dict[str, str]:
        """The versions of the driver and of CUPTI, as far as they can be found."""
        from pytest_gpuperf import nvml

        with nvml.session() as session:
            version = session.text("nvmlSystemGetDriverVersion") if session else ""
        found = {"driver": version} if version else {}
        try:
            return {**found, "cupti": self._load_cupti().release}
        except CountersUnavailable:
            return found

    def collect(self, work: Work, plan: Plan) -> Collected:
        """Runs the step as planned; see the class.

        Times are in ms, counters in the unit of their metric. The settings are counts, and seconds
        where they end in `_s`. Raises MeasurementError for phases that change from one execution to
        the next and for counters that CUPTI loses; what the step raises comes out unchanged.
        """
        watch = Stopwatch()
        phases = warm_up(work, plan, self._timer)
        warmup_s = watch.lap()
        with garbage_kept():
            series = times(work, plan, self._timer)
            times_s = watch.lap()
            counted = self._count(work, plan, phase_ranges(phases))
            counters_s = watch.lap()
        return Collected(
            samples=samples_of({**series, **counted.series}),
            unsupported=counted.unsupported,
            settings={
                **counted.settings,
                "rounds": plan.rounds,
                "repetitions": plan.repetitions,
                "warmup": max(plan.warmup, 1),
                "warmup_s": warmup_s,
                "times_s": times_s,
                "counters_s": counters_s,
                "cost_s": watch.total(),
            },
        )

    def kernels(self, work: Work, metrics: Sequence[Metric]) -> KernelTable:
        """What the step launches, with the counters of every launch.

        Of a step that launches CUDA graphs, with those of every graph (`graphs.py`). Runs the step
        once in a trace and once per pass. Where counters cannot be read, the table has names and
        times, and `mismatch` the reason. Raises what the step raises.
        """
        work.progress.begins("tracing kernels")
        prepare(work, self._timer)
        with garbage_kept():
            traced = trace(work.step, self._timer.synchronize)
            try:
                return self._counted(work, metrics, traced)
            except (CountersUnavailable, MeasurementError) as error:
                return kernels.uncounted(traced, str(error))

    def timeline(self, work: Work) -> Timeline:
        """What the device did over one execution of the step, and why not if that is unknown.

        Executes the step twice, and more often where samples are lost. Raises what it raises.
        """
        with garbage_kept():
            try:
                timelines = Timelines(
                    self.device().arch,
                    self._timer,
                    self._clock,
                    self._load_cupti(),
                    self._load_driver(),
                )
                return timelines.of(work, timeline_metrics())
            except (CountersUnavailable, MeasurementError) as error:
                return timeline.absent(str(error))

    def window(self, work: Work) -> Window:
        """The paper's window, for the core metrics, counted by a fresh process itself.

        Raises MeasurementError where that process fails.
        """
        finished = self._rerun(work.test, Errand(WINDOW, work.name))
        counted = finished.measurement(work.test, work.name)
        if counted is None or counted.window is None:
            raise MeasurementError(
                "the process that was to count the paper's window ended with pytest's exit code "
                f"{finished.code}:\n{finished.last_lines()}"
            )
        return counted.window

    def _counted(self, work: Work, metrics: Sequence[Metric], traced: Trace) -> KernelTable:
        arch = self.device().arch
        named = {m.name: hardware for m in metrics if (hardware := m.hardware_name(arch))}
        replayed = len(traced.graphs)
        synchronize = self._timer.synchronize

        def whole() -> None:
            work.step()
            synchronize()

        with RangeSession(
            tuple(named.values()),
            len(graphs.range_names(replayed)) if replayed else len(traced.counted) + _MORE_LAUNCHES,
            automatic=not replayed,
            cupti=self._load_cupti(),
            cuda=self._load_driver(),
        ) as session:
            if not session.metrics:
                return kernels.uncounted(traced, "none of the metrics can be counted here")
            chosen = [m for m in metrics if named.get(m.name) in session.metrics]
            passes = each(work.progress, "counting kernels, pass", session.passes)
            reset = self._preparation(work, passes)
            if replayed:
                values = graphs.counted(session, work.step, synchronize, replayed, prepare=reset)
                return graphs.table(traced, chosen, arch, values)
            return kernels.table(traced, chosen, arch, session.launches(whole, prepare=reset))

    def _count(self, work: Work, plan: Plan, ranges: Sequence[PhaseRange]) -> _Counted:
        if not plan.metrics or plan.rounds < 1:
            return _Counted({}, (), {})
        try:
            return self._count_available(work, plan, ranges)
        except CountersUnavailable as error:
            unsupported = tuple(Unsupported(metric.name, str(error)) for metric in plan.metrics)
            return _Counted({}, unsupported, {"passes": 0, "counter_passes": 0})

    def _count_available(self, work: Work, plan: Plan, ranges: Sequence[PhaseRange]) -> _Counted:
        arch = self.device().arch
        named = {m.name: hardware for m in plan.metrics if (hardware := m.hardware_name(arch))}
        absent = {m.name: f"does not exist on {arch}" for m in plan.metrics if m.name not in named}
        if not named:
            return _Counted({}, _unsupported(plan.metrics, absent), {"passes": 0})
        rounds: list[tuple[Values, Values]] = []
        phases_s = 0.0
        watch = Stopwatch()
        with RangeSession(
            tuple(named.values()),
            max(1, len(ranges)),
            cupti=self._load_cupti(),
            cuda=self._load_driver(),
        ) as session:
            refused = {entry.metric: entry.reason for entry in session.unsupported}
            absent |= {name: refused[hw] for name, hw in named.items() if hw in refused}
            passes = session.passes * (2 if ranges else 1)
            for number in range(plan.rounds if session.metrics else 0):
                prepared = self._preparation(
                    work, _passes(work.progress, number, plan.rounds, passes)
                )
                step = self._step_round(work, session, prepared)
                watch.lap()
                rounds.append(
                    (step, self._phase_round(work, session, ranges, prepared) if ranges else {})
                )
                phases_s += watch.lap()
        metrics = [metric for metric in plan.metrics if metric.name not in absent]
        series, problems = _series(metrics, named, rounds, ranges)
        settings: dict[str, Scalar] = {
            "chip": session.chip,
            "passes": session.passes,
            "counter_passes": passes * len(rounds),
            "ranges": 1 + len(ranges),
            "reopened": session.reopened,
            "phases_s": phases_s,
        }
        return _Counted(series, _unsupported(plan.metrics, absent) + problems, settings)

    def _preparation(self, work: Work, passes: Iterator[None]) -> Callable[[], None]:
        """What comes before every pass, outside of counting: it is announced, and reset."""

        def prepared() -> None:
            next(passes, None)
            prepare(work, self._timer)

        return prepared

    def _step_round(
        self, work: Work, session: RangeSession, prepared: Callable[[], None]
    ) -> Values:
        def whole() -> None:
            session.push(STEP)
            work.step()
            # A range ends where the host pops it: its kernels have to be done by then.
            self._timer.synchronize()
            session.pop()

        return session.round([STEP], whole, prepare=prepared)

    def _phase_round(
        self,
        work: Work,
        session: RangeSession,
        ranges: Sequence[PhaseRange],
        prepared: Callable[[], None],
    ) -> Values:
        def in_phases() -> None:
            marker = RangeMarker(session, self._timer.synchronize, ranges)
            with work.phases.heard_by(marker):
                work.step()
            self._timer.synchronize()
            marker.finish()

        names = [entry.name for entry in ranges]
        return session.round(names, in_phases, prepare=prepared, undefined=True)


@dataclass(frozen=True)
class _Counted:
    series: Series
    unsupported: tuple[Unsupported, ...]
    settings: dict[str, Scalar]


def _passes(progress: Progress, done: int, rounds: int, passes: int) -> Iterator[None]:
    """The passes of the round after so many that are done, each announced as it begins."""
    for number in range(1, passes + 1):
        place = f"round {done + 1} of {rounds}, pass {number} of {passes}"
        progress.begins("counting", place, (rounds - done) * passes - number + 1)
        yield


def _series(
    metrics: Sequence[Metric],
    named: dict[str, str],
    rounds: Sequence[tuple[Values, Values]],
    ranges: Sequence[PhaseRange],
) -> tuple[Series, tuple[Unsupported, ...]]:
    """The values per phase and metric, and what has no value in some phase."""
    series: Series = {}
    for metric in metrics:
        hardware = named[metric.name]
        series[STEP, metric.name] = [step[STEP][hardware] for step, _ in rounds]
    problems: dict[str, list[str]] = {}
    for phase in dict.fromkeys(entry.phase for entry in ranges):
        members = [entry.name for entry in ranges if entry.phase == phase]
        for metric in metrics:
            hardware = named[metric.name]
            if len(members) > 1 and not metric.additive:
                problem = f'phase "{phase}" occurs {len(members)} times and the metric does not add'
                problems.setdefault(metric.name, []).append(problem)
                continue
            values = [math.fsum(parts[name][hardware] for name in members) for _, parts in rounds]
            if all(map(math.isfinite, values)):
                series[phase, metric.name] = values
            else:
                problem = f'phase "{phase}" has no value: nothing ran there that the metric counts'
                problems.setdefault(metric.name, []).append(problem)
    return series, tuple(Unsupported(name, "; ".join(told)) for name, told in problems.items())


def _unsupported(metrics: Sequence[Metric], absent: dict[str, str]) -> tuple[Unsupported, ...]:
    return tuple(Unsupported(m.name, absent[m.name]) for m in metrics if m.name in absent)
