"""The timeline of a step: one execution while the device samples its counters.

Phases are marked by CUDA events, in the order of the device's work. Waiting for the device at
their borders, as counting them by ranges does, would leave it idle there, and idle time is what a
timeline is to show. Events have a clock of their own. It is joined to that of the samples, CUPTI's,
at two moments at which the device does nothing but an event, between two readings of CUPTI's clock:
one before the step and one after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_gpuperf import timeline
from pytest_gpuperf.collect.base import Work
from pytest_gpuperf.collect.cupti import driver, library
from pytest_gpuperf.collect.cupti.sampling import Sampler, SamplesLost
from pytest_gpuperf.collect.cupti.timing import DeviceClock, DeviceTimer
from pytest_gpuperf.collect.execution import prepare
from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.model import Metric, Timeline, TimelinePhase, Unsupported

_LONGER = 4
"""Where samples are lost, the step is sampled again at twice the interval, up to so many times."""
_REMEDY = "Everything else is measured without it"
_ROOM = 1.5
"""Samples that there is room for, of those that the step's duration leads one to expect: it may
take longer while it is sampled, and some chips' interval is only roughly known."""
_AROUND = 100
"""And so many more: for what surrounds the step."""
_TRIES = 5
"""Readings of both clocks, of which the one that took the least time is believed."""


class Timelines:
    """Samples steps on the current device of architecture `arch`."""

    def __init__(
        self,
        arch: str,
        timer: DeviceTimer,
        clock: Callable[[], DeviceClock],
        cupti: library.Cupti,
        cuda: driver.Driver,
    ) -> None:
        self._arch = arch
        self._timer = timer
        self._clock = clock
        self._cupti = cupti
        self._cuda = cuda

    def of(self, work: Work, metrics: Sequence[Metric]) -> Timeline:
        """Executes the step by itself, to know how long it takes, and again while it is sampled.

        Raises CountersUnavailable and MeasurementError, and what the step raises.
        """
        prepare(work, self._timer)
        milliseconds, _ = self._timer.timed(work.step)
        duration = milliseconds * 1e6
        interval = timeline.interval_for(duration)
        longest = _LONGER * interval
        while True:
            most = round(_ROOM * duration / interval) + _AROUND
            try:
                return self._sampled(work, metrics, interval, most)
            except SamplesLost:
                if interval == longest:
                    raise
                interval *= 2

    def _sampled(self, work: Work, metrics: Sequence[Metric], interval: int, most: int) -> Timeline:
        named = {hardware: m.name for m in metrics if (hardware := m.hardware_name(self._arch))}
        absent = tuple(
            Unsupported(metric.name, f"cannot be sampled on {self._arch}")
            for metric in metrics
            if not metric.hardware_name(self._arch)
        )
        with Sampler(tuple(named), interval, most, cupti=self._cupti, cuda=self._cuda) as sampler:
            refused = (Unsupported(named[u.metric], u.reason) for u in sampler.unsupported)
            absent = (*absent, *refused)
            if not sampler.metrics:
                reasons = "; ".join(dict.fromkeys(entry.reason for entry in absent))
                raise CountersUnavailable(f"nothing can be sampled: {reasons}", _REMEDY)
            prepare(work, self._timer)
            execution = _Execution(work, self._clock(), self._timer, self._cupti)
            samples = sampler.sample(execution.run)
            collected = [named[hardware] for hardware in sampler.metrics]
        duration, phases, on_device = execution.times()
        readings = [
            timeline.Reading(on_device(s.begin), on_device(s.end), s.values) for s in samples
        ]
        return timeline.of_readings(readings, collected, duration, phases, absent)


@dataclass(frozen=True)
class _Anchor:
    """A moment by both clocks."""

    mark: int
    """Its number among the marks of the device's clock."""
    timestamp: int
    """On CUPTI's clock. Whole: a float of so many ns since 1970 is off by a hundred of them."""
    width: int
    """How far apart the readings of CUPTI's clock were, between which it was."""


class _Execution:
    """One execution of a step, and when what began and ended. A phase listener."""

    def __init__(
        self, work: Work, clock: DeviceClock, timer: DeviceTimer, cupti: library.Cupti
    ) -> None:
        self._work = work
        self._clock = clock
        self._timer = timer
        self._cupti = cupti
        self._marks = 0
        self._entered = 0
        self._anchors: list[_Anchor] = []
        self._phases: list[tuple[str, int, int]] = []
        self._step = (0, 0)

    def run(self) -> None:
        """Executes the step between two anchors, and waits for it."""
        self._anchors.append(self._anchor())
        begun = self._mark()
        with self._work.phases.heard_by(self):
            self._work.step()
        self._step = (begun, self._mark())
        self._timer.synchronize()
        self._anchors.append(self._anchor())

    def enter(self, phase: str) -> None:  # noqa: ARG002
        """Marks where a phase begins in the device's work."""
        self._entered = self._mark()

    def leave(self, phase: str) -> None:
        """Marks where it ends."""
        self._phases.append((phase, self._entered, self._mark()))

    def times(self) -> tuple[float, tuple[TimelinePhase, ...], Callable[[int], float]]:
        """The step's duration, its phases, and CUPTI's clock -> ns since the step began."""
        moments = self._clock.moments()
        begun, ended = (moments[mark] for mark in self._step)
        phases = tuple(
            TimelinePhase(name, round(moments[first] - begun, 1), round(moments[last] - begun, 1))
            for name, first, last in self._phases
        )
        before, after = self._anchors
        ticks = after.timestamp - before.timestamp
        if ticks <= 0:
            raise MeasurementError(
                f"CUPTI's clock went from {before.timestamp} to {after.timestamp} during "
                "the step: samples cannot be placed in it"
            )
        # CUPTI's unit is not always the ns (see Cupti.timestamp).
        unit = (moments[after.mark] - moments[before.mark]) / ticks
        origin = moments[before.mark] - begun

        def on_device(timestamp: int) -> float:
            return origin + (timestamp - before.timestamp) * unit

        return ended - begun, phases, on_device

    def _mark(self) -> int:
        self._clock.mark()
        self._marks += 1
        return self._marks - 1

    def _anchor(self) -> _Anchor:
        found = []
        for _ in range(_TRIES):
            earlier = self._cupti.timestamp()
            mark = self._mark()
            self._timer.synchronize()
            later = self._cupti.timestamp()
            found.append(_Anchor(mark, (earlier + later) // 2, later - earlier))
        return min(found, key=lambda anchor: anchor.width)
