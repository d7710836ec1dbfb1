"""The protocol of the ICPE '26 paper: 100 kernel launches, after the first 10 of a process.

The paper profiles `ncu --set full --launch-skip 10 --launch-count 100` (section 4). The window's
content depends on the program's first work, such as the conversion of its weights. So a fresh
process counts itself: it opens the profiler before the test does anything, and closes it after the
first execution of the step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing

from pytest_gpuperf.catalogue.metric_catalogue import catalogue, over_launches
from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.measure.collector import Collected, Collector, Plan, Work
from pytest_gpuperf.measure.cupti.range_session import RangeSession
from pytest_gpuperf.measure.execution import CudaTimer
from pytest_gpuperf.measure.replica import Task, TaskRunner
from pytest_gpuperf.model.measurement import PAPER_WINDOW, Sample, Window

_SKIPPED = 10
_ROOM = 4096
"""The most launches that are counted. Launches after the window have room too, because CUPTI does
not document the effect of launches without room."""


class WindowCounter(TaskRunner):
    """A replacement for a collector in a fresh process: counts the first launches of a test.

    `begin` comes before the test's own set-up; `collect` executes the step once, unprepared.
    """

    def __init__(self, task: Task, collector: Collector) -> None:
        super().__init__(task, collector)
        self._timer = CudaTimer()
        self._session: RangeSession | None = None
        arch = self.device().arch
        core = catalogue().hardware_set("core")
        self._metrics = {hw: m for m in core if (hw := m.hardware_name(arch))}

    def begin(self) -> None:
        """Starts to count. Raises CountersUnavailable and MeasurementError."""
        # The profiler wants a CUDA context, and waiting makes one without launching anything.
        self._timer.synchronize()
        with ExitStack() as begun:
            session = RangeSession(tuple(self._metrics), _ROOM, automatic=True)
            begun.enter_context(session)
            session.begin()
            self._session = session
            begun.pop_all()

    def collect(self, work: Work, plan: Plan) -> Collected:  # noqa: ARG002 -- once, whatever the plan
        """Executes the step once and brings back the window.

        Raises MeasurementError where the process launched nothing after the first 10.
        """
        if self._session is None or work.name != self._task.name:
            return Collected(())
        with closing(self._session):
            work.step()
            self._timer.synchronize()
            return Collected((), window=self._window(self._session.end()))

    def _window(self, counted: Sequence[Mapping[str, float]]) -> Window:
        inside = [
            {self._metrics[hw].name: value for hw, value in launch.items() if math.isfinite(value)}
            for launch in counted[_SKIPPED : _SKIPPED + 100]
        ]
        if not inside:
            raise MeasurementError(
                f"the process launched at most {_SKIPPED} kernels, and paper-window skips those"
            )
        totals = {m.name: over_launches(m.name, inside) for m in self._metrics.values()}
        samples = tuple(
            Sample(PAPER_WINDOW, name, (value,))
            for name, value in totals.items()
            if not isinstance(value, str)
        )
        return Window(_SKIPPED, len(inside), "cupti", samples)
