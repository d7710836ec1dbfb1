"""Which metrics to collect and how to evaluate them: CUPTI's host API (`cupti_profiler_host.h`)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pytest_gpuperf.collect.cupti import abi, library
from pytest_gpuperf.collect.cupti.codes import ProfilerApi, ProfilerType, Result, SupportLevel
from pytest_gpuperf.errors import GpuperfError
from pytest_gpuperf.model import Unsupported


def strings(names: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    """`names` as a `const char**`."""
    return (ctypes.c_char_p * len(names))(*[name.encode() for name in names])


def obstacles(cupti: library.Cupti, device: int) -> str:
    """What cuptiProfilerDeviceSupported has against profiling `device`, as text; "" if nothing."""
    try:
        answer = cupti.call(abi.DeviceSupported, cuDevice=device, api=ProfilerApi.RANGE_PROFILING)
    except GpuperfError:
        return ""
    against = (SupportLevel.UNSUPPORTED, SupportLevel.DISABLED)
    features = [name for name in answer.field_names(cupti.version) if name in _FEATURES]
    levels = [(_FEATURES[name], getattr(answer, name)) for name in features]
    return ", ".join(
        f"{feature} is {SupportLevel(level).name.lower()}"
        for feature, level in levels
        if level in against
    )


_FEATURES = {
    "architecture": "the architecture",
    "sli": "SLI",
    "vGpu": "the virtual GPU",
    "confidentialCompute": "confidential computing",
    "cmp": "the mining processor (CMP)",
    "wsl": "Windows Subsystem for Linux",
    "sku": "the product",
}


class Configuration:
    """A host object for one chip, with metrics added: the configuration image and the evaluator.

    `context` is the CUcontext that is asked which counters are available; without one, all that
    the chip has are. Raises CuptiError and CountersUnavailable.
    """

    def __init__(self, cupti: library.Cupti, chip: bytes, context: int | None) -> None:
        self._cupti = cupti
        self._chip = chip
        # Host objects may refer to it as long as they live.
        self._availability = None if context is None else self._ask_availability(context)
        self._host: int | None = None
        self.metrics: tuple[str, ...] = ()
        """The metrics that were added."""
        self.passes = 0
        """Passes that one round takes (cuptiProfilerHostGetNumOfPasses)."""
        self.image: ctypes.Array[ctypes.c_char] = ctypes.create_string_buffer(0)
        """The configuration image for cuptiRangeProfilerSetConfig."""

    def add(self, metrics: Sequence[str]) -> tuple[Unsupported, ...]:
        """Schedules those of `metrics` that the chip has, and returns the others."""
        if not metrics:
            return ()
        try:
            self._schedule(metrics)
        except library.CuptiError as refusal:
            # One bad name makes CUPTI refuse the whole list without saying which one it was.
            unsupported = self._refused(metrics)
            names = {entry.metric for entry in unsupported}
            supported = [name for name in metrics if name not in names]
            if not unsupported:
                raise refusal from None
            if supported:
                self._schedule(supported)
            return unsupported
        return ()

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
        ask: dict[str, Any] = {"ctx": context}
        size = self._cupti.call(abi.GetCounterAvailability, **ask).counterAvailabilityImageSize
        image = ctypes.create_string_buffer(size)
        self._cupti.call(
            abi.GetCounterAvailability,
            **ask,
            counterAvailabilityImageSize=size,
            pCounterAvailabilityImage=ctypes.addressof(image),
        )
        return image

    def _schedule(self, metrics: Sequence[str]) -> None:
        """Sets `metrics`, `image` and `passes`, on a new host object."""
        self.close()
        call = self._cupti.call
        available = self._availability and ctypes.addressof(self._availability)
        self._host = call(
            abi.HostInitialize,
            profilerType=ProfilerType.RANGE_PROFILER,
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

    def _refused(self, metrics: Sequence[str]) -> tuple[Unsupported, ...]:
        refusals = ((name, self._refusal(name)) for name in metrics)
        found = tuple(Unsupported(name, reason) for name, reason in refusals if reason)
        self.close()
        self.metrics, self.passes = (), 0
        return found

    def _refusal(self, metric: str) -> str:
        """Why `metric` alone cannot be collected, or ""."""
        chip = self._chip.decode()
        try:
            self._schedule([metric])
        except library.CuptiError as error:
            if error.result == Result.ERROR_INVALID_METRIC_NAME:
                return f"{metric} does not exist on {chip}"
            return f"{metric} cannot be collected on {chip}: {error}"
        return ""
