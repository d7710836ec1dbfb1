"""What the collectors of a GPU share: times, traces and their order around the counters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from pytest_gpuperf.errors import CountersUnavailable
from pytest_gpuperf.judge.stopping import LEAST_ROUNDS
from pytest_gpuperf.measure.collector import Collected, Plan, Work, samples_of
from pytest_gpuperf.measure.device.memory import CudaMemory
from pytest_gpuperf.measure.execution import CudaTimer, Executions, Stopwatch, garbage_kept
from pytest_gpuperf.measure.trace import activity, compiled_kernels
from pytest_gpuperf.model.measurement import STEP, Device, Scalar, Unsupported


class GpuCollector(ABC):
    """Times and traces a step on the current CUDA device; a subclass counts it.

    The order: `plan.warmup` executions, at least one, in which the phases are learnt; repetitions,
    unless the counted executions are timed; counters; traces, if metrics from them are requested.
    If counters cannot be read, times are still returned. Every hardware metric is then unsupported,
    with the reason and the remedy.

    `device` is what `nvml.detect_device` finds; `settings` belong to every measurement.
    """

    torch_device = "cuda"
    times_counted: ClassVar[bool]
    """Whether counted executions are timed, so that others are needed only where they are planned
    or nothing was counted."""

    def __init__(self, device: Device, **settings: Scalar) -> None:
        self._device = device
        self._settings = settings
        self._timer = CudaTimer()
        self._memory = CudaMemory()

    def device(self) -> Device:
        """The GPU that is measured."""
        return self._device

    def collect(self, work: Work, plan: Plan) -> Collected:
        """Runs the step as planned; see the class.

        Times are in ms, counters in the unit of their metric. Settings are counts, or seconds if
        they end in `_s`. Raises MeasurementError for phases that change between executions and for
        counters that are lost. Raises UnsoundStep for a loss that is not a number or not
        reproduced. Exceptions of the step pass unchanged.
        """
        watch = Stopwatch()
        compiled_kernels.note()
        executions = Executions(work, self._timer, self._memory)
        executions.warm_up(plan)
        watch.lap("warmup_s")
        with garbage_kept():
            if plan.repetitions or not self.times_counted:
                executions.repeat(plan.repetitions)
            watch.lap("times_s")
            counted = self._counters(executions, plan)
            watch.lap("counters_s")
            if not executions.series:
                executions.repeat(plan.repetitions)
                watch.lap("times_s")
            executions.end_with_all_streams()
            active = activity.measured(executions, plan, alone=not counted.samples)
            if active.settings:
                watch.lap("activity_s")
        how = counted.settings or {}
        if self.times_counted:  # what counts elsewhere takes executions of its own
            passes = int(how.get("passes", 0))
            least = executions.warm_ups + (LEAST_ROUNDS + bool(executions.phases)) * passes
            # What so many executions take when nothing is lost between them.
            how = {**how, "floor_s": round(least * executions.wall_ms / 1e3, 3)}
        return Collected(
            samples=(*samples_of(executions.series), *counted.samples, *active.samples),
            unsupported=(*counted.unsupported, *active.unsupported),
            components=active.components,
            collectives=active.collectives,
            launched=active.launched,
            settings={
                **executions.settings(),
                **how,
                **self._settings,
                **(active.settings or {}),
                **watch.laps,
                "repetitions": len(executions.series[STEP, "wall_time"]),
                "warmup": executions.warm_ups,
                "cost_s": watch.total(),
            },
        )

    def _counters(self, executions: Executions, plan: Plan) -> Collected:
        """The counters of `plan.metrics`, or why there are none."""
        if not plan.metrics or plan.rounds < 1:
            return Collected(())
        try:
            return self._count(executions, plan)
        except CountersUnavailable as error:
            unsupported = tuple(Unsupported(metric.name, str(error)) for metric in plan.metrics)
            return Collected((), unsupported, {"passes": 0, "counter_passes": 0})

    @abstractmethod
    def _count(self, executions: Executions, plan: Plan) -> Collected:
        """The counters of `plan.metrics`. Raises CountersUnavailable and MeasurementError."""
