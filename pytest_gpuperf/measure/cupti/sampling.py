"""PM sampling: the device itself reads its counters at a fixed interval while a step runs.

The counters belong to the whole device, and what fits into one pass is all that can be sampled.
CUPTI converts the samples' times to its own clock, that of `Cupti.timestamp`; the timeline of a
step is one execution of it by the device's clock, with the samples placed in it.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pytest_gpuperf.errors import CountersUnavailable, GpuperfError, MeasurementError
from pytest_gpuperf.measure.collector import Work
from pytest_gpuperf.measure.cupti import abi, library
from pytest_gpuperf.measure.cupti.abi import (
    AppendMode,
    DecodeStopReason,
    ProfilerApi,
    ProfilerType,
    ResultCode,
    TriggerMode,
)
from pytest_gpuperf.measure.cupti.configuration import Configuration, strings
from pytest_gpuperf.measure.cupti.range_session import Profiling, zeroes
from pytest_gpuperf.measure.device import driver
from pytest_gpuperf.measure.execution import CudaClock, CudaTimer, prepare
from pytest_gpuperf.measure.trace import timelines
from pytest_gpuperf.model.measurement import Timeline, TimelinePhase, Unsupported
from pytest_gpuperf.model.metric import Metric

_BUFFER = 512 * 2**20
"""Bytes for the samples that are not decoded yet: cupti-python's default. A sample of a timeline's
metrics takes 11 kB on GH100 and 12 kB on GB100, as libnvperf_host estimates: at 10 kHz, there is
room for more than 4 s."""
_MEMORY = 4 * 2**30
"""Bytes for decoded samples, at most. Each has all counters of all SMs: 72 kB on an H200, and so
1 GB for a step of 1.4 s at 10 kHz."""
_MARGIN = 2
"""Intervals that are sampled before and after: a sample is only there when its interval is over."""
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


class SamplesLost(MeasurementError):
    """There was no room for all samples: they were taken too often for so long."""


@dataclass(frozen=True)
class PmSample:
    """Values from one time to another, on CUPTI's clock and in its unit."""

    begin: int
    end: int
    values: tuple[float, ...]
    """In the order of the sampler's metrics."""


class Sampler(Profiling):
    """A context manager: opening enables PM sampling on the current device, closing disables it.

    `metrics` are NVIDIA's names, the more important ones first: what does not fit into one pass
    with those before it is left out, and is in `unsupported` with what the chip does not have.
    `interval` is the time between samples in ns; Turing and GA100 can only wait for so many cycles
    of a clock of about 1 GHz, and their interval differs from it. There is room for `most` samples:
    decoding takes them out of the hardware's buffer, and drops those that have no room.

    Opening raises CountersUnavailable, and SamplesLost where so many need too much memory. If no
    metric can be sampled it opens with no `metrics`, and `sample` must not be called.
    """

    _what = "PM sampling"
    _remedy = "Everything else is measured without it; `gpuperf doctor` shows the versions"
    _api = ProfilerApi.PM_SAMPLING

    def __init__(
        self,
        metrics: Sequence[str],
        interval: int,
        most: int,
        *,
        cupti: library.Cupti | None = None,
        cuda: driver.Driver | None = None,
    ) -> None:
        super().__init__(cupti, cuda)
        self._wanted = tuple(dict.fromkeys(metrics))
        self._interval = interval
        self._most = most
        self._sampling: int | None = None
        self._data: dict[str, int] = {}
        self._memory: ctypes.Array[ctypes.c_char] | None = None

    def sample(self, run: Callable[[], object]) -> list[PmSample]:
        """The samples taken while `run` ran, and shortly before and after; once per sampler.

        They are decoded afterwards, for `run` to have the processor to itself.

        `run` has to wait for the device. What it raises comes out unchanged. Raises SamplesLost.
        """
        if self._sampling is None:
            raise MeasurementError("the sampler is not open, or has no metric to sample")
        self._cupti.call(abi.Start, pPmSamplingObject=self._sampling)
        try:
            self._wait()
            run()
            self._wait()
        except BaseException:
            with suppress(GpuperfError):
                self._stop()
            raise
        self._stop()
        return list(self._decoded())

    def _open(self) -> None:
        # Before sampling is enabled: counters that are in use count as not available.
        self._configuration = Configuration(
            self._cupti, self.chip.encode(), ProfilerType.PM_SAMPLING, deviceIndex=self._device
        )
        self._schedule(self._configuration)
        if self.metrics:
            self._enable(self._configuration)

    def _disable(self) -> None:
        if self._sampling is not None:
            sampling, self._sampling = self._sampling, None
            with suppress(GpuperfError):
                self._cupti.call(abi.Disable, pPmSamplingObject=sampling)

    def _schedule(self, configuration: Configuration) -> None:
        """Leaves out what does not fit into one pass, from the last metric on."""
        self.unsupported = configuration.add(self._wanted)
        while configuration.passes > 1:
            *kept, last = configuration.metrics
            reason = f"{last} cannot be sampled together with {', '.join(kept) or 'anything'}"
            self.unsupported += (Unsupported(last, f"{reason} on {self.chip}"),)
            if not kept:
                return
            configuration.add(kept)
        self.metrics = configuration.metrics

    def _enable(self, configuration: Configuration) -> None:
        call = self._cupti.call
        self._sampling = call(abi.Enable, deviceIndex=self._device).pPmSamplingObject
        by_cycles = self.chip.startswith("TU") or self.chip == "GA100"
        call(
            abi.SetConfig,
            pPmSamplingObject=self._sampling,
            configSize=len(configuration.image),
            pConfig=ctypes.addressof(configuration.image),
            hardwareBufferSize=_BUFFER,
            samplingInterval=self._interval,
            triggerMode=TriggerMode.GPU_SYSCLK_INTERVAL
            if by_cycles
            else TriggerMode.GPU_TIME_INTERVAL,
            hwBufferAppendMode=AppendMode.KEEP_OLDEST,
        )
        size = call(
            abi.GetCounterDataSize,
            pPmSamplingObject=self._sampling,
            pMetricNames=strings(self.metrics),
            numMetrics=len(self.metrics),
            maxSamples=self._most,
        ).counterDataSize
        if size > _MEMORY:
            raise self._lost(f"{self._most} of them need {size >> 20} MiB of {_MEMORY >> 20} MiB")
        self._memory = zeroes(size)
        address = ctypes.addressof(self._memory)
        call(
            abi.CounterDataImageInitialize,
            pPmSamplingObject=self._sampling,
            counterDataSize=size,
            pCounterData=address,
        )
        self._data = {"pCounterDataImage": address, "counterDataImageSize": size}

    def _wait(self) -> None:
        time.sleep(_MARGIN * self._interval / 1e9)

    def _stop(self) -> None:
        self._cupti.call(abi.Stop, pPmSamplingObject=self._sampling)

    def _decoded(self) -> Iterator[PmSample]:
        """All samples in the hardware's buffer."""
        configuration = self._configuration
        assert configuration is not None
        self._decode()
        completed = self._cupti.call(abi.GetCounterDataInfo, **self._data).numCompletedSamples
        for index in range(completed):
            info = self._cupti.call(
                abi.CounterDataGetSampleInfo,
                pPmSamplingObject=self._sampling,
                **self._data,
                sampleIndex=index,
            )
            values = configuration.evaluate(self._data, index)
            yield PmSample(info.startTimestamp, info.endTimestamp, tuple(values.values()))

    def _decode(self) -> None:
        full = f"the device's buffer of {_BUFFER >> 20} MiB was full before the step had ended"
        call = self._cupti.call
        try:
            decoded = call(abi.DecodeData, pPmSamplingObject=self._sampling, **self._data)
        except library.CuptiError as error:
            if error.result == ResultCode.ERROR_OUT_OF_MEMORY:
                raise self._lost(full) from error
            raise
        if decoded.overflow:
            raise self._lost(full)
        # What has no room is not there to be decoded later: an H200's second decoding finds nothing
        # (CUPTI 13.0). Other reasons are seen too, with good samples (pytorch/kineto#1532).
        if decoded.decodeStopReason == DecodeStopReason.COUNTER_DATA_FULL:
            raise self._lost(f"there were more than {self._most} of them")

    def _lost(self, why: str) -> SamplesLost:
        return SamplesLost(f"samples every {self._interval / 1e3:g} us are too many: {why}")


@dataclass(frozen=True)
class Timelines:
    """Samples steps on the current device of architecture `arch`."""

    arch: str
    timer: CudaTimer
    clock: Callable[[], CudaClock]
    cupti: library.Cupti
    cuda: driver.Driver

    def of(self, work: Work, metrics: Sequence[Metric]) -> Timeline:
        """Executes the step by itself, to know how long it takes, and again while it is sampled.

        Raises CountersUnavailable and MeasurementError, and what the step raises.
        """
        prepare(work, self.timer)
        milliseconds, _ = self.timer.timed(work.step)
        duration = milliseconds * 1e6
        interval = timelines.interval_for(duration)
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
        named = {hardware: m.name for m in metrics if (hardware := m.hardware_name(self.arch))}
        absent = tuple(
            Unsupported(metric.name, f"cannot be sampled on {self.arch}")
            for metric in metrics
            if not metric.hardware_name(self.arch)
        )
        with Sampler(tuple(named), interval, most, cupti=self.cupti, cuda=self.cuda) as sampler:
            refused = (Unsupported(named[u.metric], u.reason) for u in sampler.unsupported)
            absent = (*absent, *refused)
            if not sampler.metrics:
                reasons = "; ".join(dict.fromkeys(entry.reason for entry in absent))
                raise CountersUnavailable(f"nothing can be sampled: {reasons}", _REMEDY)
            prepare(work, self.timer)
            execution = _Execution(work, self.clock(), self.timer, self.cupti)
            samples = sampler.sample(execution.run)
            collected = [named[hardware] for hardware in sampler.metrics]
        duration, phases, on_device = execution.times()
        readings = [
            timelines.TimelineReading(on_device(s.begin), on_device(s.end), s.values)
            for s in samples
        ]
        return timelines.of_readings(readings, collected, duration, phases, absent)


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
        self, work: Work, clock: CudaClock, timer: CudaTimer, cupti: library.Cupti
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
        anchors = []
        for _ in range(_TRIES):
            earlier = self._cupti.timestamp()
            mark = self._mark()
            self._timer.synchronize()
            later = self._cupti.timestamp()
            anchors.append(_Anchor(mark, (earlier + later) // 2, later - earlier))
        return min(anchors, key=lambda anchor: anchor.width)
