"""PM sampling: the device itself reads its counters at a fixed interval while something runs.

The counters belong to the whole device, and what fits into one pass is all that can be sampled.
CUPTI converts the samples' times to its own clock, that of `Cupti.timestamp`.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pytest_gpuperf.collect.cupti import driver, library
from pytest_gpuperf.collect.cupti import sampling_abi as abi
from pytest_gpuperf.collect.cupti.codes import (
    AppendMode,
    DecodeStopReason,
    ProfilerApi,
    ProfilerType,
    Result,
    TriggerMode,
)
from pytest_gpuperf.collect.cupti.configuration import Configuration, strings
from pytest_gpuperf.collect.cupti.profiling import Profiling, zeroes
from pytest_gpuperf.errors import GpuperfError, MeasurementError
from pytest_gpuperf.model import Unsupported

_BUFFER = 512 * 2**20
"""Bytes for the samples that are not decoded yet: cupti-python's default. A sample of a timeline's
metrics takes 11 kB on GH100 and 12 kB on GB100, as libnvperf_host estimates: at 10 kHz, there is
room for more than 4 s."""
_MEMORY = 4 * 2**30
"""Bytes for decoded samples, at most. Each has all counters of all SMs: 72 kB on an H200, and so
1 GB for a step of 1.4 s at 10 kHz."""
_MARGIN = 2
"""Intervals that are sampled before and after: a sample is only there when its interval is over."""


class SamplesLost(MeasurementError):
    """There was no room for all samples: they were taken too often for so long."""


@dataclass(frozen=True)
class Sample:
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

    def sample(self, run: Callable[[], object]) -> list[Sample]:
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

    def _decoded(self) -> Iterator[Sample]:
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
            yield Sample(info.startTimestamp, info.endTimestamp, tuple(values.values()))

    def _decode(self) -> None:
        full = f"the device's buffer of {_BUFFER >> 20} MiB was full before the step had ended"
        call = self._cupti.call
        try:
            decoded = call(abi.DecodeData, pPmSamplingObject=self._sampling, **self._data)
        except library.CuptiError as error:
            if error.result == Result.ERROR_OUT_OF_MEMORY:
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
