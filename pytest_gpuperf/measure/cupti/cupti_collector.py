"""The CUPTI collector: times from unprofiled repetitions, counters from range-profiler sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_gpuperf.catalogue.metric_catalogue import timeline_metrics
from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.measure.collector import Collected, Plan, Work, each, samples_of
from pytest_gpuperf.measure.cupti import driver, launch_ranges, library
from pytest_gpuperf.measure.cupti.counting import (
    CountedStep,
    Counting,
    PhaseRange,
    announced,
    phase_ranges,
)
from pytest_gpuperf.measure.cupti.range_session import RangeSession
from pytest_gpuperf.measure.cupti.sampling import Timelines
from pytest_gpuperf.measure.device.memory import CudaMemory, DeviceMemory
from pytest_gpuperf.measure.execution import (
    CudaClock,
    CudaTimer,
    DeviceClock,
    DeviceTimer,
    Stopwatch,
    garbage_kept,
    prepare,
    times,
    warm_up,
)
from pytest_gpuperf.measure.replica import WINDOW, Replicas, Task
from pytest_gpuperf.measure.trace import activity
from pytest_gpuperf.measure.trace.profile import Trace, events, trace
from pytest_gpuperf.measure.trace.timelines import absent
from pytest_gpuperf.model.measurement import Device, KernelTable, Timeline, Unsupported, Window
from pytest_gpuperf.model.metric import Metric

_MORE_LAUNCHES = 64
"""Room for launches that the trace did not have: they are to be counted, and then reported."""


class CuptiCollector:
    """Counts and times a step on the current CUDA device.

    The order: `plan.warmup` executions, at least one, in which the phases are learnt and the loss
    is looked at; unprofiled repetitions for times and peak memory; rounds of counter passes;
    traces, where metrics from them are asked for. Times and counters are never taken from the same
    execution. Where counters cannot be read, the times are returned all the same and every hardware
    metric is listed as unsupported, with the reason and the remedy.

    `device` is what `arch.detect_device` finds, if not given. `replicas` run a test again in a
    fresh process, which the paper's window takes. The rest is for tests.
    """

    name = "cupti"
    torch_device = "cuda"

    def __init__(
        self,
        device: Device | None = None,
        *,
        replicas: Replicas | None = None,
        timer: DeviceTimer | None = None,
        memory: DeviceMemory | None = None,
        clock: Callable[[], DeviceClock] = CudaClock,
        load_cupti: Callable[[], library.Cupti] = library.load,
        load_driver: Callable[[], driver.Driver] = driver.load,
        traced: activity.Tracing = events,
    ) -> None:
        self._device = device
        self._replicas = replicas
        self._timer = timer or CudaTimer()
        self._memory = memory or CudaMemory()
        self._clock = clock
        self._load_cupti = load_cupti
        self._load_driver = load_driver
        self._traced = traced

    def device(self) -> Device:
        """The GPU that is measured. Raises CountersUnavailable where there is none."""
        if self._device is None:
            from pytest_gpuperf.measure.device import nvml

            self._device = nvml.detect_device()
        if self._device is None:
            raise CountersUnavailable(
                "no NVIDIA GPU was found",
                "Check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or measure with another collector",
            )
        return self._device

    def software(self) -> dict[str, str]:
        """The version of CUPTI, where it is found."""
        try:
            return {"cupti": self._load_cupti().release}
        except CountersUnavailable:
            return {}

    def collect(self, work: Work, plan: Plan) -> Collected:
        """Runs the step as planned; see the class.

        Times are in ms, counters in the unit of their metric. The settings are counts, and seconds
        where they end in `_s`. Raises MeasurementError for phases that change from one execution to
        the next and for counters that CUPTI loses, UnsoundStep for a loss that is no number or not
        reproduced; what the step raises comes out unchanged.
        """
        watch = Stopwatch()
        warmed_up = warm_up(work, plan, self._timer, self._memory)
        warmup_s = watch.lap()
        with garbage_kept():
            series = times(work, plan, self._timer, self._memory)
            times_s = watch.lap()
            counted = self._count(work, plan, phase_ranges(warmed_up.phases))
            counters_s = watch.lap()
            active = activity.measured(work, plan, warmed_up.phases, self._timer, self._traced)
            activity_s = watch.lap()
        traces = {**active.settings, "activity_s": activity_s} if active.settings else {}
        return Collected(
            samples=samples_of({**series, **counted.series, **active.series}),
            unsupported=(*counted.unsupported, *active.unsupported),
            components=active.components,
            settings={
                **warmed_up.settings,
                **counted.settings,
                **traces,
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
                return launch_ranges.uncounted(traced, str(error))

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
                return absent(str(error))

    def window(self, work: Work) -> Window:
        """The paper's window, for the core metrics, counted by a fresh process itself.

        Raises MeasurementError where that process fails, and outside of a pytest session.
        """
        if self._replicas is None:
            raise MeasurementError("a test can be run again by a pytest session only")
        finished = self._replicas.run(Task(work.test, WINDOW, work.name))
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
            len(launch_ranges.range_names(replayed))
            if replayed
            else len(traced.counted) + _MORE_LAUNCHES,
            automatic=not replayed,
            cupti=self._load_cupti(),
            cuda=self._load_driver(),
        ) as session:
            if not session.metrics:
                return launch_ranges.uncounted(traced, "none of the metrics can be counted here")
            chosen = [m for m in metrics if named.get(m.name) in session.metrics]
            passes = each(work.progress, "counting kernels, pass", session.passes)
            reset = announced(work, self._timer, passes)
            if replayed:
                values = launch_ranges.counted_in_graphs(
                    session, work.step, synchronize, replayed, prepare=reset
                )
                return launch_ranges.graph_table(traced, chosen, arch, values)
            return launch_ranges.kernel_table(
                traced, chosen, arch, session.launches(whole, prepare=reset)
            )

    def _count(self, work: Work, plan: Plan, ranges: Sequence[PhaseRange]) -> CountedStep:
        if not plan.metrics or plan.rounds < 1:
            return CountedStep({}, (), {})
        try:
            cupti, cuda = self._load_cupti(), self._load_driver()
            return Counting(self.device().arch, self._timer, cupti, cuda).of(work, plan, ranges)
        except CountersUnavailable as error:
            unsupported = tuple(Unsupported(metric.name, str(error)) for metric in plan.metrics)
            return CountedStep({}, unsupported, {"passes": 0, "counter_passes": 0})
