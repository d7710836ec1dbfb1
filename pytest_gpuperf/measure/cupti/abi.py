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
from collections.abc import Sequence
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
    """The beginning of every parameter struct; subclasses add their fields."""

    C_NAME: ClassVar[str] = ""
    """The struct's name in the headers."""
    SINCE: ClassVar[dict[str, int]] = {}
    """Fields that came after the struct did -> the first API version whose structSize counts them.

    A later version than the true one is the safe side: libraries accept shorter structs.
    """
    _fields_ = [("structSize", c_size_t), ("pPriv", c_void_p)]

    structSize: int  # noqa: N815
    pPriv: int | None  # noqa: N815

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


class ProfilerInitialize(Params):
    """For cuptiProfilerInitialize."""

    C_NAME = "CUpti_Profiler_Initialize_Params"
    _fields_ = []


class ProfilerDeInitialize(Params):
    """For cuptiProfilerDeInitialize."""

    C_NAME = "CUpti_Profiler_DeInitialize_Params"
    _fields_ = []


class DeviceGetChipName(Params):
    """For cuptiDeviceGetChipName."""

    C_NAME = "CUpti_Device_GetChipName_Params"
    _fields_ = [("deviceIndex", c_size_t), ("pChipName", c_char_p)]

    pChipName: bytes | None  # noqa: N815


class GetCounterAvailability(Params):
    """For cuptiProfilerGetCounterAvailability."""

    C_NAME = "CUpti_Profiler_GetCounterAvailability_Params"
    # 13.1 has the field, but its STRUCT_SIZE macro does not count it yet.
    SINCE: ClassVar[dict[str, int]] = {"bAllowDeviceLevelCounters": 130201}
    _fields_ = [
        ("ctx", c_void_p),
        ("counterAvailabilityImageSize", c_size_t),
        ("pCounterAvailabilityImage", c_void_p),
        ("bAllowDeviceLevelCounters", c_uint8),
    ]

    counterAvailabilityImageSize: int  # noqa: N815


class DeviceSupported(Params):
    """For cuptiProfilerDeviceSupported."""

    C_NAME = "CUpti_Profiler_DeviceSupported_Params"
    SINCE: ClassVar[dict[str, int]] = {"sku": 130100}
    _fields_ = [
        ("cuDevice", c_int),
        ("isSupported", c_int),
        ("architecture", c_int),
        ("sli", c_int),
        ("vGpu", c_int),
        ("confidentialCompute", c_int),
        ("cmp", c_int),
        ("wsl", c_int),
        ("api", c_int),
        ("sku", c_int),
    ]

    isSupported: int  # noqa: N815


class HostGetSupportedChips(Params):
    """For cuptiProfilerHostGetSupportedChips."""

    C_NAME = "CUpti_Profiler_Host_GetSupportedChips_Params"
    _fields_ = [("numChips", c_size_t), ("ppChipNames", POINTER(c_char_p))]

    numChips: int  # noqa: N815
    ppChipNames: Sequence[bytes]  # noqa: N815


class HostInitialize(Params):
    """For cuptiProfilerHostInitialize."""

    C_NAME = "CUpti_Profiler_Host_Initialize_Params"
    SINCE: ClassVar[dict[str, int]] = {"pSinglePassMetricSetName": 130201}
    _fields_ = [
        ("profilerType", c_int),
        ("pChipName", c_char_p),
        ("pCounterAvailabilityImage", c_void_p),
        ("pHostObject", c_void_p),
        ("pSinglePassMetricSetName", c_char_p),
    ]

    pHostObject: int | None  # noqa: N815


class HostDeinitialize(Params):
    """For cuptiProfilerHostDeinitialize."""

    C_NAME = "CUpti_Profiler_Host_Deinitialize_Params"
    _fields_ = [("pHostObject", c_void_p)]


class HostConfigAddMetrics(Params):
    """For cuptiProfilerHostConfigAddMetrics."""

    C_NAME = "CUpti_Profiler_Host_ConfigAddMetrics_Params"
    _fields_ = [
        ("pHostObject", c_void_p),
        ("ppMetricNames", POINTER(c_char_p)),
        ("numMetrics", c_size_t),
    ]


class HostGetConfigImageSize(Params):
    """For cuptiProfilerHostGetConfigImageSize."""

    C_NAME = "CUpti_Profiler_Host_GetConfigImageSize_Params"
    _fields_ = [("pHostObject", c_void_p), ("configImageSize", c_size_t)]

    configImageSize: int  # noqa: N815


class HostGetConfigImage(Params):
    """For cuptiProfilerHostGetConfigImage."""

    C_NAME = "CUpti_Profiler_Host_GetConfigImage_Params"
    _fields_ = [
        ("pHostObject", c_void_p),
        ("configImageSize", c_size_t),
        ("pConfigImage", c_void_p),
    ]


class HostGetNumOfPasses(Params):
    """For cuptiProfilerHostGetNumOfPasses."""

    C_NAME = "CUpti_Profiler_Host_GetNumOfPasses_Params"
    _fields_ = [
        ("configImageSize", c_size_t),
        ("pConfigImage", c_void_p),
        ("numOfPasses", c_size_t),
    ]

    numOfPasses: int  # noqa: N815


class HostEvaluateToGpuValues(Params):
    """For cuptiProfilerHostEvaluateToGpuValues."""

    C_NAME = "CUpti_Profiler_Host_EvaluateToGpuValues_Params"
    _fields_ = [
        ("pHostObject", c_void_p),
        ("pCounterDataImage", c_void_p),
        ("counterDataImageSize", c_size_t),
        ("rangeIndex", c_size_t),
        ("ppMetricNames", POINTER(c_char_p)),
        ("numMetrics", c_size_t),
        ("pMetricValues", POINTER(c_double)),
    ]


class RangeEnable(Params):
    """For cuptiRangeProfilerEnable."""

    C_NAME = "CUpti_RangeProfiler_Enable_Params"
    SINCE: ClassVar[dict[str, int]] = {"cacheControlMode": 130401}
    _fields_ = [
        ("ctx", c_void_p),
        ("pRangeProfilerObject", c_void_p),
        ("cacheControlMode", c_int),
    ]

    pRangeProfilerObject: int | None  # noqa: N815


class RangeDisable(Params):
    """For cuptiRangeProfilerDisable."""

    C_NAME = "CUpti_RangeProfiler_Disable_Params"
    _fields_ = [("pRangeProfilerObject", c_void_p)]


class RangeGetCounterDataSize(Params):
    """For cuptiRangeProfilerGetCounterDataSize."""

    C_NAME = "CUpti_RangeProfiler_GetCounterDataSize_Params"
    _fields_ = [
        ("pRangeProfilerObject", c_void_p),
        ("pMetricNames", POINTER(c_char_p)),
        ("numMetrics", c_size_t),
        ("maxNumOfRanges", c_size_t),
        ("maxNumRangeTreeNodes", c_uint32),
        ("counterDataSize", c_size_t),
    ]

    counterDataSize: int  # noqa: N815


class RangeCounterDataImageInitialize(Params):
    """For cuptiRangeProfilerCounterDataImageInitialize."""

    C_NAME = "CUpti_RangeProfiler_CounterDataImage_Initialize_Params"
    _fields_ = [
        ("pRangeProfilerObject", c_void_p),
        ("counterDataSize", c_size_t),
        ("pCounterData", c_void_p),
    ]


class RangeSetConfig(Params):
    """For cuptiRangeProfilerSetConfig."""

    C_NAME = "CUpti_RangeProfiler_SetConfig_Params"
    _fields_ = [
        ("pRangeProfilerObject", c_void_p),
        ("configSize", c_size_t),
        ("pConfig", c_void_p),
        ("counterDataImageSize", c_size_t),
        ("pCounterDataImage", c_void_p),
        ("range", c_int),
        ("replayMode", c_int),
        ("maxRangesPerPass", c_size_t),
        ("numNestingLevels", c_uint16),
        ("minNestingLevel", c_uint16),
        ("passIndex", c_size_t),
        ("targetNestingLevel", c_uint16),
    ]


class RangeStart(Params):
    """For cuptiRangeProfilerStart."""

    C_NAME = "CUpti_RangeProfiler_Start_Params"
    _fields_ = [("pRangeProfilerObject", c_void_p)]


class RangeStop(Params):
    """For cuptiRangeProfilerStop."""

    C_NAME = "CUpti_RangeProfiler_Stop_Params"
    _fields_ = [
        ("pRangeProfilerObject", c_void_p),
        ("passIndex", c_size_t),
        ("targetNestingLevel", c_size_t),
        ("isAllPassSubmitted", c_uint8),
    ]

    isAllPassSubmitted: int  # noqa: N815


class RangePushRange(Params):
    """For cuptiRangeProfilerPushRange."""

    C_NAME = "CUpti_RangeProfiler_PushRange_Params"
    _fields_ = [("pRangeProfilerObject", c_void_p), ("pRangeName", c_char_p)]


class RangePopRange(Params):
    """For cuptiRangeProfilerPopRange."""

    C_NAME = "CUpti_RangeProfiler_PopRange_Params"
    _fields_ = [("pRangeProfilerObject", c_void_p)]


class RangeDecodeData(Params):
    """For cuptiRangeProfilerDecodeData."""

    C_NAME = "CUpti_RangeProfiler_DecodeData_Params"
    _fields_ = [("pRangeProfilerObject", c_void_p), ("numOfRangeDropped", c_size_t)]

    numOfRangeDropped: int  # noqa: N815


class RangeGetCounterDataInfo(Params):
    """For cuptiRangeProfilerGetCounterDataInfo."""

    C_NAME = "CUpti_RangeProfiler_GetCounterDataInfo_Params"
    _fields_ = [
        ("pCounterDataImage", c_void_p),
        ("counterDataImageSize", c_size_t),
        ("numTotalRanges", c_size_t),
    ]

    numTotalRanges: int  # noqa: N815


class RangeCounterDataGetRangeInfo(Params):
    """For cuptiRangeProfilerCounterDataGetRangeInfo."""

    C_NAME = "CUpti_RangeProfiler_CounterData_GetRangeInfo_Params"
    _fields_ = [
        ("pCounterDataImage", c_void_p),
        ("counterDataImageSize", c_size_t),
        ("rangeIndex", c_size_t),
        ("rangeDelimiter", c_char_p),
        ("rangeName", c_char_p),
    ]

    rangeName: bytes | None  # noqa: N815


FUNCTIONS: dict[type[Params], str] = {
    ProfilerInitialize: "cuptiProfilerInitialize",
    ProfilerDeInitialize: "cuptiProfilerDeInitialize",
    DeviceGetChipName: "cuptiDeviceGetChipName",
    GetCounterAvailability: "cuptiProfilerGetCounterAvailability",
    DeviceSupported: "cuptiProfilerDeviceSupported",
    HostGetSupportedChips: "cuptiProfilerHostGetSupportedChips",
    HostInitialize: "cuptiProfilerHostInitialize",
    HostDeinitialize: "cuptiProfilerHostDeinitialize",
    HostConfigAddMetrics: "cuptiProfilerHostConfigAddMetrics",
    HostGetConfigImageSize: "cuptiProfilerHostGetConfigImageSize",
    HostGetConfigImage: "cuptiProfilerHostGetConfigImage",
    HostGetNumOfPasses: "cuptiProfilerHostGetNumOfPasses",
    HostEvaluateToGpuValues: "cuptiProfilerHostEvaluateToGpuValues",
    RangeEnable: "cuptiRangeProfilerEnable",
    RangeDisable: "cuptiRangeProfilerDisable",
    RangeGetCounterDataSize: "cuptiRangeProfilerGetCounterDataSize",
    RangeCounterDataImageInitialize: "cuptiRangeProfilerCounterDataImageInitialize",
    RangeSetConfig: "cuptiRangeProfilerSetConfig",
    RangeStart: "cuptiRangeProfilerStart",
    RangeStop: "cuptiRangeProfilerStop",
    RangePushRange: "cuptiRangeProfilerPushRange",
    RangePopRange: "cuptiRangeProfilerPopRange",
    RangeDecodeData: "cuptiRangeProfilerDecodeData",
    RangeGetCounterDataInfo: "cuptiRangeProfilerGetCounterDataInfo",
    RangeCounterDataGetRangeInfo: "cuptiRangeProfilerCounterDataGetRangeInfo",
}
"""Each struct and the function that takes it: what a libcupti has to export to be used."""


class PmGetCounterAvailability(Params):
    """For cuptiPmSamplingGetCounterAvailability."""

    C_NAME = "CUpti_PmSampling_GetCounterAvailability_Params"
    _fields_ = [
        ("deviceIndex", c_size_t),
        ("counterAvailabilityImageSize", c_size_t),
        ("pCounterAvailabilityImage", c_void_p),
    ]

    counterAvailabilityImageSize: int  # noqa: N815


class Enable(Params):
    """For cuptiPmSamplingEnable."""

    C_NAME = "CUpti_PmSampling_Enable_Params"
    _fields_ = [
        ("deviceIndex", c_size_t),
        ("pPmSamplingObject", c_void_p),
    ]

    pPmSamplingObject: int | None  # noqa: N815


class Disable(Params):
    """For cuptiPmSamplingDisable."""

    C_NAME = "CUpti_PmSampling_Disable_Params"
    _fields_ = [("pPmSamplingObject", c_void_p)]


class SetConfig(Params):
    """For cuptiPmSamplingSetConfig."""

    C_NAME = "CUpti_PmSampling_SetConfig_Params"
    # 12.6 does not have the field, 12.9.1 does.
    SINCE: ClassVar[dict[str, int]] = {"hwBufferAppendMode": 28}
    _fields_ = [
        ("pPmSamplingObject", c_void_p),
        ("configSize", c_size_t),
        ("pConfig", c_void_p),
        ("hardwareBufferSize", c_size_t),
        ("samplingInterval", c_uint64),
        ("triggerMode", c_int),
        ("hwBufferAppendMode", c_int),
    ]


class Start(Params):
    """For cuptiPmSamplingStart."""

    C_NAME = "CUpti_PmSampling_Start_Params"
    _fields_ = [("pPmSamplingObject", c_void_p)]


class Stop(Params):
    """For cuptiPmSamplingStop."""

    C_NAME = "CUpti_PmSampling_Stop_Params"
    _fields_ = [("pPmSamplingObject", c_void_p)]


class DecodeData(Params):
    """For cuptiPmSamplingDecodeData."""

    C_NAME = "CUpti_PmSampling_DecodeData_Params"
    _fields_ = [
        ("pPmSamplingObject", c_void_p),
        ("pCounterDataImage", c_void_p),
        ("counterDataImageSize", c_size_t),
        ("decodeStopReason", c_int),
        ("overflow", c_uint8),
    ]

    decodeStopReason: int  # noqa: N815
    overflow: int


class GetCounterDataSize(Params):
    """For cuptiPmSamplingGetCounterDataSize."""

    C_NAME = "CUpti_PmSampling_GetCounterDataSize_Params"
    _fields_ = [
        ("pPmSamplingObject", c_void_p),
        ("pMetricNames", POINTER(c_char_p)),
        ("numMetrics", c_size_t),
        ("maxSamples", c_uint32),
        ("counterDataSize", c_size_t),
    ]

    counterDataSize: int  # noqa: N815


class CounterDataImageInitialize(Params):
    """For cuptiPmSamplingCounterDataImageInitialize."""

    C_NAME = "CUpti_PmSampling_CounterDataImage_Initialize_Params"
    _fields_ = [
        ("pPmSamplingObject", c_void_p),
        ("counterDataSize", c_size_t),
        ("pCounterData", c_void_p),
    ]


class GetCounterDataInfo(Params):
    """For cuptiPmSamplingGetCounterDataInfo."""

    C_NAME = "CUpti_PmSampling_GetCounterDataInfo_Params"
    _fields_ = [
        ("pCounterDataImage", c_void_p),
        ("counterDataImageSize", c_size_t),
        ("numTotalSamples", c_size_t),
        ("numPopulatedSamples", c_size_t),
        ("numCompletedSamples", c_size_t),
    ]

    numCompletedSamples: int  # noqa: N815


class CounterDataGetSampleInfo(Params):
    """For cuptiPmSamplingCounterDataGetSampleInfo."""

    C_NAME = "CUpti_PmSampling_CounterData_GetSampleInfo_Params"
    _fields_ = [
        ("pPmSamplingObject", c_void_p),
        ("pCounterDataImage", c_void_p),
        ("counterDataImageSize", c_size_t),
        ("sampleIndex", c_size_t),
        ("startTimestamp", c_uint64),
        ("endTimestamp", c_uint64),
    ]

    startTimestamp: int  # noqa: N815
    endTimestamp: int  # noqa: N815


PM_FUNCTIONS: dict[type[Params], str] = {
    PmGetCounterAvailability: "cuptiPmSamplingGetCounterAvailability",
    Enable: "cuptiPmSamplingEnable",
    Disable: "cuptiPmSamplingDisable",
    SetConfig: "cuptiPmSamplingSetConfig",
    Start: "cuptiPmSamplingStart",
    Stop: "cuptiPmSamplingStop",
    DecodeData: "cuptiPmSamplingDecodeData",
    GetCounterDataSize: "cuptiPmSamplingGetCounterDataSize",
    CounterDataImageInitialize: "cuptiPmSamplingCounterDataImageInitialize",
    GetCounterDataInfo: "cuptiPmSamplingGetCounterDataInfo",
    CounterDataGetSampleInfo: "cuptiPmSamplingCounterDataGetSampleInfo",
}
"""Each struct and the function that takes it: what a libcupti has to export to sample."""
