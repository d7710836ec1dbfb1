"""The paper's window, counted from inside the process that it is about.

`ncu --launch-skip 10 --launch-count 100` numbers the launches from the start of a process. So a
fresh process opens the profiler before the test does anything, and closes it after the first
execution of its step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.measure import paper_window
from pytest_gpuperf.measure.collector import Collected, Plan, Work
from pytest_gpuperf.measure.cupti import driver, launch_ranges, library
from pytest_gpuperf.measure.cupti.range_session import RangeSession
from pytest_gpuperf.measure.execution import CudaTimer, DeviceTimer
from pytest_gpuperf.measure.trace.profile import Trace, Tracer
from pytest_gpuperf.model.measurement import Device, Window
from pytest_gpuperf.model.metric import Metric

_ROOM = 4096
"""Launches that are counted at most. What comes after the window has room as well: nobody says what
CUPTI does to the launches of a pass that it has no room for."""

_WAITING = "WaitNs"
"""CUPTI's own kernel, of 80 us, which it launches before each one that it counts (13.0, H200). The
trace has it, and the counters do not."""


class WindowTracing(Protocol):
    """Notes what is launched, beside the counters (`trace.py`)."""

    def start(self) -> None:
        """From here on."""
        ...

    def stop(self) -> Callable[[], Trace]:
        """Up to here; the result reads what was noted."""
        ...


class WindowCounter:
    """In a collector's place, in a fresh process: counts the first launches of a test.

    `begin` comes before the test's own set-up; `collect` executes the step once, as it comes. A
    trace of the same execution lends the launches their names.
    """

    name = "cupti (window)"
    torch_device = "cuda"

    def __init__(
        self,
        device: Device,
        measurement: str,
        *,
        timer: DeviceTimer | None = None,
        tracer: WindowTracing | None = None,
        load_cupti: Callable[[], library.Cupti] = library.load,
        load_driver: Callable[[], driver.Driver] = driver.load,
    ) -> None:
        self._device = device
        self._measurement = measurement
        self._timer = timer or CudaTimer()
        self._tracer = tracer or Tracer()
        self._tracing = False
        self._load_cupti = load_cupti
        self._load_driver = load_driver
        self._metrics: tuple[Metric, ...] = ()
        self._session: RangeSession | None = None

    def device(self) -> Device:
        """The GPU that is counted on."""
        return self._device

    def software(self) -> dict[str, str]:
        """Nothing: the process that waits says it."""
        return {}

    def begin(self) -> None:
        """Starts to count. Raises CountersUnavailable where that cannot be."""
        # The profiler wants a CUDA context, and waiting makes one without launching anything.
        self._timer.synchronize()
        self._tracer.start()
        self._tracing = True
        core = catalogue().hardware_set("core")
        self._metrics = tuple(m for m in core if m.hardware_name(self._device.arch))
        session = RangeSession(
            tuple(m.hardware_name(self._device.arch) or "" for m in self._metrics),
            _ROOM,
            automatic=True,
            cupti=self._load_cupti(),
            cuda=self._load_driver(),
        )
        try:
            session.__enter__()
        except BaseException:
            self.close()
            raise
        self._session = session
        if not session.metrics:
            self.close()
            reasons = "; ".join(dict.fromkeys(entry.reason for entry in session.unsupported))
            raise CountersUnavailable(f"no counter can be read: {reasons}", "See `gpuperf doctor`")
        try:
            session.begin()
        except BaseException:
            self.close()
            raise

    def collect(self, work: Work, plan: Plan) -> Collected:  # noqa: ARG002 -- once, whatever the plan
        """Executes the step once and brings back the window."""
        if work.name != self._measurement:
            return Collected(())
        if self._session is None:
            raise MeasurementError("the window was not begun before the test")
        try:
            work.step()
            self._timer.synchronize()
            counted = self._session.end()
            self._tracing = False
            traced = self._tracer.stop()
        finally:
            self.close()
        return Collected((), window=self._window(counted, traced()))

    def close(self) -> None:
        """Stops counting, whatever came of it."""
        if self._session is not None:
            self._session.close()
            self._session = None
        if self._tracing:
            self._tracing = False
            self._tracer.stop()

    def _window(self, counted: Sequence[Mapping[str, float]], traced: Trace) -> Window:
        named = {m.hardware_name(self._device.arch): m.name for m in self._metrics}
        launches = [
            {named[hw]: value for hw, value in launch.items() if math.isfinite(value)}
            for launch in counted
        ]
        entries = tuple(entry for entry in traced.entries if entry.name != _WAITING)
        every = launch_ranges.kernel_table(
            Trace(entries), self._metrics, self._device.arch, counted
        )
        return paper_window.window(launches, "cupti", every)
