"""The choice and evaluation of metrics: CUPTI's host API (`cupti_profiler_host.h`).

For every chip it lists, on any machine, it says whether the chip has a metric, and how many passes
a list of them takes. Releases up to CUDA 13.0 do so without a driver.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress

from pytest_gpuperf.errors import GpuperfError
from pytest_gpuperf.measure.cupti import abi, library
from pytest_gpuperf.model.measurement import Unsupported


class Configuration:
    """A host object for one chip, with metrics added: the configuration image and the evaluator.

    `context` is the CUcontext that must have the counters; without one, all counters of the chip
    are available. Raises CuptiError and CountersUnavailable.
    """

    def __init__(self, cupti: library.Cupti, chip: bytes, context: int | None = None) -> None:
        self._cupti = cupti
        self._chip = chip
        # Host objects may refer to it as long as they live.
        self._availability = None if context is None else self._ask_availability(context)
        self._host: int | None = None
        self.metrics: tuple[str, ...] = ()
        """The metrics that were added."""
        self.refused: tuple[Unsupported, ...] = ()
        """The metrics that the chip lacks, by NVIDIA's names."""
        self.passes = 0
        """Passes that one round takes (cuptiProfilerHostGetNumOfPasses)."""
        self.image: ctypes.Array[ctypes.c_char] = ctypes.create_string_buffer(0)
        """The configuration image for the profiler's SetConfig."""

    def add(self, metrics: Sequence[str]) -> None:
        """Schedules those of `metrics` that the chip has; the others are `refused`."""
        if not metrics:
            return
        try:
            self._schedule(metrics)
            return
        except library.CuptiError:
            # One bad name makes CUPTI refuse the whole list without saying which one it was.
            reasons = {name: self._refusal(name) for name in metrics}
            if not any(reasons.values()):
                raise
        self.close()
        self.metrics, self.passes = (), 0
        supported = [name for name, reason in reasons.items() if not reason]
        if supported:
            self._schedule(supported)
        self.refused = tuple(Unsupported(name, why) for name, why in reasons.items() if why)

    def evaluate(self, data: dict[str, int], index: int) -> dict[str, float]:
        """The metrics of range `index` of a decoded counter data image.

        `data` are the fields pCounterDataImage and counterDataImageSize.
        """
        values = (ctypes.c_double * len(self.metrics))()
        self._cupti.call(
            abi.HostEvaluateToGpuValues,
            pHostObject=self._host,
            **data,
            rangeIndex=index,
            ppMetricNames=strings(self.metrics),
            numMetrics=len(self.metrics),
            pMetricValues=values,
        )
        return dict(zip(self.metrics, values, strict=True))

    def close(self) -> None:
        """Releases the host object. Never raises."""
        if self._host is not None:
            host, self._host = self._host, None
            with suppress(GpuperfError):
                self._cupti.call(abi.HostDeinitialize, pHostObject=host)

    def _ask_availability(self, context: int) -> ctypes.Array[ctypes.c_char]:
        """Once for each context of a process, since it takes 0.1 s on an H200."""
        if known := self._cupti.available.get(context):
            return known
        call = self._cupti.call
        size = call(abi.GetCounterAvailability, ctx=context).counterAvailabilityImageSize
        image = ctypes.create_string_buffer(size)
        call(
            abi.GetCounterAvailability,
            ctx=context,
            counterAvailabilityImageSize=size,
            pCounterAvailabilityImage=ctypes.addressof(image),
        )
        self._cupti.available[context] = image
        return image

    def _schedule(self, metrics: Sequence[str]) -> None:
        """Sets `metrics`, `image` and `passes`, on a new host object."""
        self.close()
        call = self._cupti.call
        available = self._availability and ctypes.addressof(self._availability)
        self._host = call(
            abi.HostInitialize,
            profilerType=abi.RANGE_PROFILER,
            pChipName=self._chip,
            pCounterAvailabilityImage=available,
        ).pHostObject
        call(
            abi.HostConfigAddMetrics,
            pHostObject=self._host,
            ppMetricNames=strings(metrics),
            numMetrics=len(metrics),
        )
        size = call(abi.HostGetConfigImageSize, pHostObject=self._host).configImageSize
        image = ctypes.create_string_buffer(size)
        where = {"configImageSize": size, "pConfigImage": ctypes.addressof(image)}
        call(abi.HostGetConfigImage, pHostObject=self._host, **where)
        self.passes = call(abi.HostGetNumOfPasses, **where).numOfPasses
        self.image, self.metrics = image, tuple(metrics)

    def _refusal(self, metric: str) -> str:
        """Why `metric` alone cannot be collected, or ""."""
        chip = self._chip.decode()
        try:
            self._schedule([metric])
        except library.CuptiError as error:
            if error.result == abi.INVALID_METRIC_NAME:
                return f"{metric} does not exist on {chip}"
            return f"{metric} cannot be collected on {chip}: {error}"
        return ""


def strings(names: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    """`names` as a `const char**`."""
    return (ctypes.c_char_p * len(names))(*[name.encode() for name in names])
