"""The CUPTI collector: times and counters of the same executions, in range-profiler sessions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.measure.collector import Collected, Plan, Work, each
from pytest_gpuperf.measure.cupti import launch_ranges, library
from pytest_gpuperf.measure.cupti.counting import Counting, announced
from pytest_gpuperf.measure.cupti.range_session import RangeSession
from pytest_gpuperf.measure.execution import Executions, garbage_kept, prepare
from pytest_gpuperf.measure.gpu_collector import GpuCollector
from pytest_gpuperf.measure.trace import activity, compiled_kernels, profile
from pytest_gpuperf.measure.trace.profile import Trace
from pytest_gpuperf.model.measurement import Device, KernelTable
from pytest_gpuperf.model.metric import Metric

_MORE_LAUNCHES = 64
"""Room for launches that the trace did not have: they are to be counted, and then reported."""


class CuptiCollector(GpuCollector):
    """Counts a step in range-profiler sessions; `counting.py` says why their executions are timed.

    Files of code are named relative to `root`.
    """

    name = "cupti"
    times_counted = True

    def __init__(self, device: Device, root: Path) -> None:
        super().__init__(device)
        self._root = root

    def software(self) -> dict[str, str]:
        """The version of CUPTI, where it is found."""
        try:
            return {"cupti": library.load().release}
        except CountersUnavailable:
            return {}

    def _count(self, executions: Executions, plan: Plan) -> Collected:
        return Counting(self._device.arch, executions).of(plan)

    def kernels(self, work: Work, metrics: Sequence[Metric]) -> KernelTable:
        """The launches of the step, with counters for each.

        Runs the step in TRACES traces, once per pass, and twice to find the lines of code. If
        counters are refused, for a rank, and for a step that launches CUDA graphs, the table has
        names and times. Raises what the step raises.
        """
        with garbage_kept():
            traces = []
            for _ in each(work.progress, "tracing kernels", activity.TRACES):
                prepare(work, self._timer)
                traces.append(profile.trace(work.step, self._timer.synchronize))
            table = launch_ranges.with_times(self._counted(work, metrics, traces[0]), traces)
            return self._located(table, work)

    def _counted(self, work: Work, metrics: Sequence[Metric], traced: Trace) -> KernelTable:
        """The kernels of a traced step, with counters where they can be had."""
        arch = self._device.arch
        named = {m.name: hardware for m in metrics if (hardware := m.hardware_name(arch))}
        # A kernel that is counted ends before the next begins: collectives of several groups might
        # wait for each other on two ranks.
        graphs = any(entry.kind == profile.GRAPH for entry in traced.entries)
        if graphs or work.together:
            return launch_ranges.uncounted(traced)

        def whole() -> None:
            work.step()
            self._timer.synchronize()

        try:
            most = len(traced.counted) + _MORE_LAUNCHES
            with RangeSession(tuple(named.values()), most, automatic=True) as session:
                chosen = [m for m in metrics if named.get(m.name) in session.metrics]
                if not chosen:
                    return launch_ranges.uncounted(traced)
                passes = each(work.progress, "counting kernels, pass", session.passes)
                prepared = announced(work, self._timer, passes)
                launches = session.launches(whole, prepare=prepared)
            return launch_ranges.kernel_table(traced, chosen, arch, launches)
        except CountersUnavailable:
            return launch_ranges.uncounted(traced)
        except MeasurementError as error:
            return launch_ranges.uncounted(traced, str(error))

    def _located(self, table: KernelTable, work: Work) -> KernelTable:
        """The table with the lines of code; unchanged if they cannot be found.

        Under a dispatch mode torch runs compiled code operator by operator. That may take too much
        memory, and a step may refuse the mode: neither is an error of the step.
        """
        try:
            from pytest_gpuperf.measure.trace.call_sites import (
                FrameFinder,
                with_call_sites,
                with_idle_sites,
            )

            for add in (with_call_sites, with_idle_sites):
                work.progress.begins("looking for call sites")
                prepare(work, self._timer)
                table = add(table, self._root, work.step, self._timer.synchronize)
            table = compiled_kernels.with_sites(table, FrameFinder(self._root))
        except Exception:
            return table
        return table
