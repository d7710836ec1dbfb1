"""The ncu collector: counters from a fresh process of the test under Nsight Compute.

Times and traces come from unprofiled repetitions in this process. For counters the test runs again
in a child of ncu, which profiles one execution of the step: the part between cudaProfilerStart and
cudaProfilerStop.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_gpuperf.catalogue.metric_catalogue import WARPS_ACTIVE, catalogue
from pytest_gpuperf.errors import CountersUnavailable, MeasurementError, UsageFailure
from pytest_gpuperf.measure import replica
from pytest_gpuperf.measure.collector import Collected, Plan, Work
from pytest_gpuperf.measure.execution import Executions
from pytest_gpuperf.measure.gpu_collector import GpuCollector
from pytest_gpuperf.measure.ncu import ncu_command, profiled_step
from pytest_gpuperf.measure.ncu.profiled_step import ProfiledStep, Report
from pytest_gpuperf.measure.replica import Replicas, Task
from pytest_gpuperf.model.measurement import Device, KernelTable, Unsupported
from pytest_gpuperf.model.metric import Metric


class NcuCollector(GpuCollector):
    """Counts a step on `device` with the ncu `program`, by default the installed one.

    `replicas` run the test again under a command; `replay` is how ncu repeats the step. Counters
    cover one execution, whatever the plan's rounds: ncu takes minutes and CUPTI seconds. Under
    kernel replay they are sums over kernels that ran one at a time; a range is counted as a whole.
    """

    name = "ncu"
    times_counted = False

    def __init__(
        self,
        device: Device,
        program: Path | None,
        replicas: Replicas,
        replay: str = ncu_command.RANGE,
    ) -> None:
        super().__init__(device, replay=replay, rounds=1)
        self._program = program
        self._replicas = replicas
        self._replay = replay
        self._kernels: dict[tuple[str, str], KernelTable] = {}

    def software(self) -> dict[str, str]:
        """The version of ncu, where it is found."""
        program = self._program or ncu_command.find()
        version = ncu_command.version(program) if program else ""
        return {"ncu": version} if version else {}

    def _count(self, executions: Executions, plan: Plan) -> Collected:
        profiled = self._profile(executions.work, plan.metrics, self._replay)
        return Collected(profiled.samples, profiled.unsupported)

    def kernels(self, work: Work, metrics: Sequence[Metric]) -> KernelTable:
        """The launches of the step, with counters for each, by kernel replay.

        Launches that `collect` has already counted this way are not counted again.
        """
        known = self._kernels.get((work.test, work.name))
        if known is None:
            try:
                known = self._profile(work, metrics, ncu_command.KERNEL).kernels
            except (CountersUnavailable, MeasurementError) as error:
                return KernelTable((), (), (), 0.0, mismatch=str(error))
        return known or KernelTable((), (), (), 0.0, mismatch="ncu's report has no durations")

    def _profile(self, work: Work, metrics: Sequence[Metric], replay: str) -> ProfiledStep:
        """The counts of one execution under ncu. Raises CountersUnavailable or MeasurementError."""
        executable = ncu_command.program(self._program)
        with tempfile.TemporaryDirectory(prefix="gpuperf-ncu-") as folder:
            file = Path(folder) / "step.ncu-rep"
            command = ncu_command.of_step(executable, replay, self._hardware(metrics), file)
            task = Task(work.test, replica.PROFILED, work.name)
            # ncu keeps a lock file in the temporary folder, which another user may own.
            finished = self._replicas.run(task, under=command, environment={"TMPDIR": folder})
            if not file.exists():
                raise ncu_command.failure(finished.output, finished.code)
            if finished.measurement(work.test, work.name) is None:
                raise MeasurementError(
                    f"the test {work.test} failed under ncu before gpuperf measured it:\n"
                    f"{finished.last_lines()}"
                )
            try:
                report = profiled_step.read(file, executable)
                step = profiled_step.step_of(report)
            except UsageFailure as error:
                said = ncu_command.recognized(finished.output)
                raise said or MeasurementError(str(error)) from error
        if step.kernels is not None:
            self._kernels[work.test, work.name] = step.kernels
        return replace(
            step,
            samples=tuple(s for s in step.samples if s.metric in {m.name for m in metrics}),
            unsupported=self._unsupported(metrics, report, step),
        )

    def _unsupported(
        self, metrics: Sequence[Metric], report: Report, step: ProfiledStep
    ) -> tuple[Unsupported, ...]:
        """Those of the metrics that the step has no value of."""
        refused = {entry.metric: entry.reason for entry in step.unsupported}
        arch = self._device.arch
        for metric in metrics:
            if metric.hardware_name(arch) is None:
                refused[metric.name] = f"does not exist on {arch}"
            elif metric.name not in report.metrics:
                refused[metric.name] = f"ncu has no {metric.hardware_name(arch)} on this GPU"
        return tuple(Unsupported(m.name, refused[m.name]) for m in metrics if m.name in refused)

    def _hardware(self, metrics: Sequence[Metric]) -> list[str]:
        """NVIDIA's names of the metrics, and of what rates over several kernels are made of."""
        wanted = [*metrics, *catalogue().hardware_set("core")]
        names = [metric.hardware_name(self._device.arch) for metric in wanted]
        return list(dict.fromkeys([*filter(None, names), WARPS_ACTIVE]))
