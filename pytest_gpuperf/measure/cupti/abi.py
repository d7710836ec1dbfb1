"""CUPTI's C interface as ctypes: the parameter structs that are used here.

Sources are the headers of CUPTI: `cupti_profiler_target.h`, `cupti_profiler_host.h`,
`cupti_range_profiler.h`, `cupti_target.h` and `cupti_pmsampling.h`. Every function takes one struct
whose first field, `structSize`, tells CUPTI how much of it the caller knows. Structs grow at their
end from release to release, and a library refuses a struct longer than its own: so the size is
that of the fields that existed in the version found at run time (`Params.SINCE`).

The fields have CUPTI's names, so that the headers can be read beside this file.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    c_char_p,
    c_double,
    c_int,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from typing_extensions import Self


class Params(ctypes.Structure):
    """The beginning of every parameter struct; `_params` makes those with fields of their own."""

    C_NAME: ClassVar[str] = ""
    """The struct's name in the headers."""
    SINCE: ClassVar[dict[str, int]] = {}
    """Fields that came after the struct did -> the first API version whose structSize counts them.

    A later version than the true one is the safe side: libraries accept shorter structs.
    """
    _fields_ = [("structSize", c_size_t), ("pPriv", c_void_p)]

    @classmethod
    def field_names(cls, version: int) -> tuple[str, ...]:
        """The fields that `version` knows, in order."""
        own: list[str] = [] if cls is Params else [field[0] for field in cls._fields_]
        names = ["structSize", "pPriv", *own]
        return tuple(name for name in names if cls.SINCE.get(name, 0) <= version)

    @classmethod
    def size(cls, version: int) -> int:
        """What `structSize` has to be for a library of API `version`, in bytes."""
        last = getattr(cls, cls.field_names(version)[-1])
        return int(last.offset) + int(last.size)

    @classmethod
    def of(cls, version: int, **values: Any) -> Self:
        """A struct for a library of API `version`; fields that are not named are zero."""
        return cls(structSize=cls.size(version), **values)


_FUNCTIONS: dict[type[Params], str] = {}


def _params(name: str, /, **fields: Any) -> type[Params]:
    """CUpti_`name`_Params with these fields: a type each, or `_since` a version that type."""
    late = {field: kind for field, kind in fields.items() if isinstance(kind, tuple)}
    members = {
        "C_NAME": f"CUpti_{name}_Params",
        "SINCE": {field: version for field, (version, _) in late.items()},
        "_fields_": [*(fields | {field: kind for field, (_, kind) in late.items()}).items()],
    }
    struct = type(name, (Params,), members)
    _FUNCTIONS[struct] = f"cupti{name.replace('_', '')}"
    return struct


def _since(version: int, kind: Any) -> tuple[int, Any]:
    """The type of a field that `version` of the interface is the first to have."""
    return version, kind


# Named as the headers do, without CUpti_ and _Params. Those of the range profiler first, with those
# of the host and of the device that it needs; those of PM sampling after them.
ProfilerInitialize = _params("Profiler_Initialize")
ProfilerDeInitialize = _params("Profiler_DeInitialize")
DeviceGetChipName = _params("Device_GetChipName", deviceIndex=c_size_t, pChipName=c_char_p)
GetCounterAvailability = _params(
    "Profiler_GetCounterAvailability",
    ctx=c_void_p,
    counterAvailabilityImageSize=c_size_t,
    pCounterAvailabilityImage=c_void_p,
    # 13.1 has the field, but its first STRUCT_SIZE macro does not count it.
    bAllowDeviceLevelCounters=_since(130101, c_uint8),
)
DeviceSupported = _params(
    "Profiler_DeviceSupported",
    cuDevice=c_int,
    isSupported=c_int,
    architecture=c_int,
    sli=c_int,
    vGpu=c_int,
    confidentialCompute=c_int,
    cmp=c_int,
    wsl=c_int,
    api=c_int,
    sku=_since(130100, c_int),
)
HostGetSupportedChips = _params(
    "Profiler_Host_GetSupportedChips", numChips=c_size_t, ppChipNames=POINTER(c_char_p)
)
HostInitialize = _params(
    "Profiler_Host_Initialize",
    profilerType=c_int,
    pChipName=c_char_p,
    pCounterAvailabilityImage=c_void_p,
    pHostObject=c_void_p,
    pSinglePassMetricSetName=_since(130200, c_char_p),
)
HostDeinitialize = _params("Profiler_Host_Deinitialize", pHostObject=c_void_p)
HostConfigAddMetrics = _params(
    "Profiler_Host_ConfigAddMetrics",
    pHostObject=c_void_p,
    ppMetricNames=POINTER(c_char_p),
    numMetrics=c_size_t,
)
HostGetConfigImageSize = _params(
    "Profiler_Host_GetConfigImageSize", pHostObject=c_void_p, configImageSize=c_size_t
)
HostGetConfigImage = _params(
    "Profiler_Host_GetConfigImage",
    pHostObject=c_void_p,
    configImageSize=c_size_t,
    pConfigImage=c_void_p,
)
HostGetNumOfPasses = _params(
    "Profiler_Host_GetNumOfPasses",
    configImageSize=c_size_t,
    pConfigImage=c_void_p,
    numOfPasses=c_size_t,
)
HostEvaluateToGpuValues = _params(
    "Profiler_Host_EvaluateToGpuValues",
    pHostObject=c_void_p,
    pCounterDataImage=c_void_p,
    counterDataImageSize=c_size_t,
    rangeIndex=c_size_t,
    ppMetricNames=POINTER(c_char_p),
    numMetrics=c_size_t,
    pMetricValues=POINTER(c_double),
)
RangeEnable = _params(
    "RangeProfiler_Enable",
    ctx=c_void_p,
    pRangeProfilerObject=c_void_p,
    cacheControlMode=_since(130400, c_int),
)
RangeDisable = _params("RangeProfiler_Disable", pRangeProfilerObject=c_void_p)
RangeGetCounterDataSize = _params(
    "RangeProfiler_GetCounterDataSize",
    pRangeProfilerObject=c_void_p,
    pMetricNames=POINTER(c_char_p),
    numMetrics=c_size_t,
    maxNumOfRanges=c_size_t,
    maxNumRangeTreeNodes=c_uint32,
    counterDataSize=c_size_t,
)
RangeCounterDataImageInitialize = _params(
    "RangeProfiler_CounterDataImage_Initialize",
    pRangeProfilerObject=c_void_p,
    counterDataSize=c_size_t,
    pCounterData=c_void_p,
)
RangeSetConfig = _params(
    "RangeProfiler_SetConfig",
    pRangeProfilerObject=c_void_p,
    configSize=c_size_t,
    pConfig=c_void_p,
    counterDataImageSize=c_size_t,
    pCounterDataImage=c_void_p,
    range=c_int,
    replayMode=c_int,
    maxRangesPerPass=c_size_t,
    numNestingLevels=c_uint16,
    minNestingLevel=c_uint16,
    passIndex=c_size_t,
    targetNestingLevel=c_uint16,
)
RangeStart = _params("RangeProfiler_Start", pRangeProfilerObject=c_void_p)
RangeStop = _params(
    "RangeProfiler_Stop",
    pRangeProfilerObject=c_void_p,
    passIndex=c_size_t,
    targetNestingLevel=c_size_t,
    isAllPassSubmitted=c_uint8,
)
RangePushRange = _params(
    "RangeProfiler_PushRange", pRangeProfilerObject=c_void_p, pRangeName=c_char_p
)
RangePopRange = _params("RangeProfiler_PopRange", pRangeProfilerObject=c_void_p)
RangeDecodeData = _params(
    "RangeProfiler_DecodeData", pRangeProfilerObject=c_void_p, numOfRangeDropped=c_size_t
)
RangeGetCounterDataInfo = _params(
    "RangeProfiler_GetCounterDataInfo",
    pCounterDataImage=c_void_p,
    counterDataImageSize=c_size_t,
    numTotalRanges=c_size_t,
)
RangeCounterDataGetRangeInfo = _params(
    "RangeProfiler_CounterData_GetRangeInfo",
    pCounterDataImage=c_void_p,
    counterDataImageSize=c_size_t,
    rangeIndex=c_size_t,
    rangeDelimiter=c_char_p,
    rangeName=c_char_p,
)
PmGetCounterAvailability = _params(
    "PmSampling_GetCounterAvailability",
    deviceIndex=c_size_t,
    counterAvailabilityImageSize=c_size_t,
    pCounterAvailabilityImage=c_void_p,
)
Enable = _params("PmSampling_Enable", deviceIndex=c_size_t, pPmSamplingObject=c_void_p)
Disable = _params("PmSampling_Disable", pPmSamplingObject=c_void_p)
SetConfig = _params(
    "PmSampling_SetConfig",
    pPmSamplingObject=c_void_p,
    configSize=c_size_t,
    pConfig=c_void_p,
    hardwareBufferSize=c_size_t,
    samplingInterval=c_uint64,
    triggerMode=c_int,
    # 12.6 does not have the field, 12.8 does.
    hwBufferAppendMode=_since(26, c_int),
)
Start = _params("PmSampling_Start", pPmSamplingObject=c_void_p)
Stop = _params("PmSampling_Stop", pPmSamplingObject=c_void_p)
DecodeData = _params(
    "PmSampling_DecodeData",
    pPmSamplingObject=c_void_p,
    pCounterDataImage=c_void_p,
    counterDataImageSize=c_size_t,
    decodeStopReason=c_int,
    overflow=c_uint8,
)
GetCounterDataSize = _params(
    "PmSampling_GetCounterDataSize",
    pPmSamplingObject=c_void_p,
    pMetricNames=POINTER(c_char_p),
    numMetrics=c_size_t,
    maxSamples=c_uint32,
    counterDataSize=c_size_t,
)
CounterDataImageInitialize = _params(
    "PmSampling_CounterDataImage_Initialize",
    pPmSamplingObject=c_void_p,
    counterDataSize=c_size_t,
    pCounterData=c_void_p,
)
GetCounterDataInfo = _params(
    "PmSampling_GetCounterDataInfo",
    pCounterDataImage=c_void_p,
    counterDataImageSize=c_size_t,
    numTotalSamples=c_size_t,
    numPopulatedSamples=c_size_t,
    numCompletedSamples=c_size_t,
)
CounterDataGetSampleInfo = _params(
    "PmSampling_CounterData_GetSampleInfo",
    pPmSamplingObject=c_void_p,
    pCounterDataImage=c_void_p,
    counterDataImageSize=c_size_t,
    sampleIndex=c_size_t,
    startTimestamp=c_uint64,
    endTimestamp=c_uint64,
)

FUNCTIONS = {
    struct: name for struct, name in _FUNCTIONS.items() if not name.startswith("cuptiPmSampling")
}
"""Each struct and the function that takes it: what a libcupti has to export to be used."""
PM_FUNCTIONS = {
    struct: name for struct, name in _FUNCTIONS.items() if name.startswith("cuptiPmSampling")
}
"""The same of what it has to export to sample."""
