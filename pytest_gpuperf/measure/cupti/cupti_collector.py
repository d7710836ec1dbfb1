"""The CUPTI collector: times and counters of the same executions, in range-profiler sessions."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.judge.stopping import LEAST_ROUNDS
from pytest_gpuperf.measure.collector import Collected, Plan, Work, each, samples_of
from pytest_gpuperf.measure.cupti import launch_ranges, library
from pytest_gpuperf.measure.cupti.counting import (
    CountedStep,
    Counting,
    PhaseRange,
    announced,
    phase_ranges,
)
from pytest_gpuperf.measure.cupti.range_session import RangeSession
from pytest_gpuperf.measure.device.memory import CudaMemory
from pytest_gpuperf.measure.execution import (
    CudaTimer,
    Executions,
    Series,
    Stopwatch,
    garbage_kept,
    prepare,
)
from pytest_gpuperf.measure.trace import activity, compiled_kernels, profile
from pytest_gpuperf.measure.trace.profile import Trace, is_collective
from pytest_gpuperf.model.measurement import (
    STEP,
    Device,
    KernelTable,
    Unsupported,
)
from pytest_gpuperf.model.metric import Metric

_MORE_LAUNCHES = 64
"""Room for launches that the trace did not have: they are to be counted, and then reported."""


class CuptiCollector:
    """Counts and times a step on the current CUDA device.

    The order: `plan.warmup` executions, at least one, in which the phases are learnt; repetitions,
    if their number is given; rounds of counter passes, otherwise timed too (`counting.py` says
    why), and one over the phases; traces, if metrics from them are requested. If counters cannot be
    read, times are still returned. Every hardware metric is then unsupported, with the reason and
    the remedy.

    `device` is what `nvml.detect_device` finds; files of code are named relative to `root`.
    """

    name = "cupti"
    torch_device = "cuda"

    def __init__(self, device: Device, root: Path) -> None:
        self._device = device
        self._root = root
        self._timer = CudaTimer()
        self._memory = CudaMemory()

    def device(self) -> Device:
        """The GPU that is measured."""
        return self._device

    def software(self) -> dict[str, str]:
        """The version of CUPTI, where it is found."""
        try:
            return {"cupti": library.load().release}
        except CountersUnavailable:
            return {}

    def collect(self, work: Work, plan: Plan) -> Collected:
        """Runs the step as planned; see the class.

        Times are in ms, counters in the unit of their metric. Settings are counts, or seconds if
        they end in `_s`. Raises MeasurementError for phases that change between executions and for
        counters that CUPTI loses. Raises UnsoundStep for a loss that is not a number or not
        reproduced. Exceptions of the step pass unchanged.
        """
        watch = Stopwatch()
        compiled_kernels.note()
        executions = Executions(work, self._timer, self._memory)
        executions.warm_up(plan)
        watch.lap("warmup_s")
        ranges = phase_ranges(executions.phases)
        with garbage_kept():
            if plan.repetitions:
                executions.repeat(plan.repetitions)
            watch.lap("times_s")
            counted = self._count(executions, plan, ranges)
            watch.lap("counters_s")
            if not executions.series:
                executions.repeat(plan.repetitions)
                watch.lap("times_s")
            executions.end_with_all_streams()
            active = activity.measured(executions, plan, alone=not counted.series)
            watch.lap("activity_s" if active.settings else "")
            own: Series = {}
            lacking: tuple[Unsupported, ...] = ()
            if work.together:
                own, lacking = OwnInstructions(self._kernels).of(work)
                watch.lap("own_instructions_s")
        passes = int(counted.settings.get("passes", 0))
        least = executions.warm_ups + (LEAST_ROUNDS + bool(ranges)) * passes
        return Collected(
            samples=(
                *samples_of({**executions.series, **counted.series}),
                *active.samples,
                *samples_of(own),
            ),
            unsupported=(*counted.unsupported, *active.unsupported, *lacking),
            components=active.components,
            collectives=active.collectives,
            launched=active.launched,
            settings={
                **executions.settings(),
                **counted.settings,
                **(active.settings or {}),
                **watch.laps,
                "repetitions": len(executions.series[STEP, "wall_time"]),
                "warmup": executions.warm_ups,
                "cost_s": watch.total(),
                "floor_s": executions.floor_s(least),
            },
        )

    def kernels(self, work: Work, metrics: Sequence[Metric]) -> KernelTable:
        """The launches of the step, with counters for each.

        Runs the step in TRACES traces, once per pass, and twice to find the lines of code. If
        counters are refused, for a rank, and for a step that launches CUDA graphs, the table has
        names and times. Raises what the step raises.
        """
        traced = _traced_as_launched if work.together else profile.trace
        with garbage_kept():
            traces = []
            for _ in each(work.progress, "tracing kernels", activity.TRACES, after=None):
                prepare(work, self._timer)
                traces.append(traced(work.step, self._timer.synchronize))
            try:
                # One that is counted ends before the next begins: collectives of several groups
                # might wait for each other on two ranks.
                if work.together:
                    table = launch_ranges.uncounted(traces[0])
                else:
                    table = self._kernels.of(work, metrics, traces[0])
            except CountersUnavailable:
                table = launch_ranges.uncounted(traces[0])
            except MeasurementError as error:
                table = launch_ranges.uncounted(traces[0], str(error))
            return self._located(launch_ranges.with_times(table, traces), work, traced)

    def _located(self, table: KernelTable, work: Work, traced: activity.Tracing) -> KernelTable:
        """The table with the lines of code; unchanged if they cannot be found.

        Under a dispatch mode torch runs compiled code operator by operator. That may take too much
        memory, and a step may refuse the mode: neither is an error of the step.
        """
        if "torch" not in sys.modules:
            return table
        from pytest_gpuperf.measure.trace.call_sites import (
            FrameFinder,
            with_call_sites,
            with_idle_sites,
        )

        try:
            for add in (with_call_sites, with_idle_sites):
                work.progress.begins("looking for call sites")
                prepare(work, self._timer)
                table = add(table, self._root, work.step, self._timer.synchronize, traced)
            table = compiled_kernels.with_sites(table, FrameFinder(self._root))
        except Exception:
            return table
        return table

    def _count(
        self, executions: Executions, plan: Plan, ranges: Sequence[PhaseRange]
    ) -> CountedStep:
        if not plan.metrics or plan.rounds < 1:
            return CountedStep({}, (), {})
        try:
            return Counting(self.device().arch, executions).of(plan, ranges)
        except CountersUnavailable as error:
            unsupported = tuple(Unsupported(metric.name, str(error)) for metric in plan.metrics)
            return CountedStep({}, unsupported, {"passes": 0, "counter_passes": 0})

    @property
    def _kernels(self) -> KernelCounting:
        return KernelCounting(self.device().arch, self._timer)


@dataclass(frozen=True)
class KernelCounting:
    """Counts every kernel of a step by itself, on the current device of architecture `arch`."""

    arch: str
    timer: CudaTimer

    def of(self, work: Work, metrics: Sequence[Metric], traced: Trace) -> KernelTable:
        """The kernels of a traced step; without counters if it has graphs.

        Raises CountersUnavailable and MeasurementError.
        """
        if traced.has_graphs:
            return launch_ranges.uncounted(traced)
        named = {m.name: hardware for m in metrics if (hardware := m.hardware_name(self.arch))}
        most = len(traced.counted) + _MORE_LAUNCHES
        with RangeSession(tuple(named.values()), most, automatic=True) as session:
            if not session.metrics:
                return launch_ranges.uncounted(traced)
            chosen = [m for m in metrics if named.get(m.name) in session.metrics]

            def whole() -> None:
                work.step()
                self.timer.synchronize()

            passes = each(work.progress, "counting kernels, pass", session.passes)
            prepared = announced(work, self.timer, passes)
            launches = session.launches(whole, prepare=prepared)
            return launch_ranges.kernel_table(traced, chosen, self.arch, launches)


@dataclass(frozen=True)
class OwnInstructions:
    """Counts the instructions that a rank executes by itself, in kernels other than collectives.

    Collectives wait for other ranks in a loop, and the instructions for that vary by chance. The
    code between collectives is counted. If torch.distributed does not begin them one by one, every
    kernel is counted separately, which takes seconds. Both ways execute equally often on all ranks,
    and replay no kernel.
    """

    kernels: KernelCounting

    def of(self, work: Work) -> tuple[Series, tuple[Unsupported, ...]]:
        """A value per execution, or why there is none."""
        name = "own_instructions"
        work.progress.begins("tracing kernels")
        prepare(work, self.kernels.timer)
        with launch_ranges.collectives_begun() as begun:
            traced = profile.trace(work.step, self.kernels.timer.synchronize)
        if traced.has_graphs:
            return {}, (Unsupported(name, "counters cannot separate collectives in a CUDA graph"),)
        # Continue after a failure too: the other ranks execute the step once more.
        own = [self._once(work, traced, begun()) for _ in range(LEAST_ROUNDS)]
        lacking = [Unsupported(name, one) for one in own if isinstance(one, str)]
        counts = [one for one in own if isinstance(one, float)]
        return ({}, (lacking[0],)) if lacking else ({(STEP, name): counts}, ())

    def _once(self, work: Work, traced: Trace, begun: int) -> float | str:
        """The instructions of one execution, or why they are unknown. `begun` is torch's count."""
        collectives = sum(entry.collective for entry in traced.entries)
        try:
            if begun == collectives:
                return self._between(work, collectives)
            return self._one_by_one(work, traced)
        except (CountersUnavailable, MeasurementError) as error:
            return str(error)

    def _between(self, work: Work, collectives: int) -> float:
        """The instructions of all that a step does between so many collectives."""
        hardware = _instructions().hardware_name(self.kernels.arch) or ""
        with RangeSession((hardware,), collectives + 1) as session:
            if session.unsupported:
                raise MeasurementError(session.unsupported[0].reason)
            timer = self.kernels.timer
            stretches = launch_ranges.counted_beside_collectives(session, work, timer, collectives)
        # Where nothing ran there may be no number.
        counts = [values[hardware] for values in stretches.values()]
        return math.fsum(filter(math.isfinite, counts))

    def _one_by_one(self, work: Work, traced: Trace) -> float:
        """The instructions of the kernels of a step that are no collectives by their names."""
        table = self.kernels.of(work, [_instructions()], traced)
        if table.mismatch or not table.metrics:
            raise MeasurementError(table.mismatch or "CUPTI does not collect this counter here")
        return math.fsum(
            launch.values[0] or 0.0
            for launch in table.launches
            if launch.values and not is_collective(table.names[launch.name])
        )


def _traced_as_launched(*step: Any, **more: Any) -> Trace:
    return profile.trace(*step, **more).as_launched()


def _instructions() -> Metric:
    return catalogue().metrics["instructions"]
