"""CUPTI's C interface as ctypes: versions, enums and the parameter structs in use.

Sources are the headers of CUPTI: `cupti_profiler_target.h`, `cupti_profiler_host.h`,
`cupti_range_profiler.h` and `cupti_target.h`. Every function takes one struct, whose first field
`structSize` tells CUPTI how much of it the caller knows. Structs grow at their end from release to
release, and a library refuses a struct longer than its own. So the size covers the fields of the
version found at run time (`Params.SINCE`).

Names are CUPTI's, without the prefixes of enums, so that they match the headers.
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
    c_void_p,
)
from typing import Any, ClassVar

OLDEST = 24
"""The API version of CUDA 12.6, the first release with the range profiler: since its update 2."""
NEWEST = 130500
"""The newest release whose headers this was compared with (`script/cupti-headers`)."""

_RELEASES = {23: "12.5", 24: "12.6", 25: "12.7", 26: "12.8", 27: "12.9", 28: "12.9.1"}


def release(version: int) -> str:
    """The CUDA release of a `cuptiGetVersion` number: 24 is "12.6", 130001 is "13.0.1".

    The list is the comment at CUPTI_API_VERSION in `cupti_version.h`; from CUDA 13.0 on the number
    is made of major, minor and an update that is CUPTI's own.
    """
    if version >= 130000:
        major, minor, update = version // 10000, version // 100 % 100, version % 100
        return f"{major}.{minor}.{update}" if update else f"{major}.{minor}"
    return _RELEASES.get(version, "12 or older")


AUTO_RANGE, USER_RANGE = 1, 2
"""`CUpti_ProfilerRange`: who says where a range begins and ends, CUPTI or the caller."""
USER_REPLAY = 3
"""A `CUpti_ProfilerReplayMode`: the caller repeats the work if one pass is not enough."""
RANGE_PROFILER = 0
"""A `CUpti_ProfilerType`, for which a host object prepares its configuration."""


SUCCESS, INVALID_PARAMETER, PARAMETER_SIZE_NOT_SUFFICIENT, INVALID_METRIC_NAME = 0, 1, 10, 17
"""Some `CUptiResult` of `cupti_result.h`; `remedies.yaml` has those that a machine is to blame
for."""


class Params(ctypes.Structure):
    """The beginning of every parameter struct; `_params` makes those with fields of their own."""

    SINCE: ClassVar[dict[str, int]] = {}
    """Fields added after the struct's first version -> the first API version whose structSize has
    them.

    A later version than the true one is safe: libraries accept shorter structs."""
    _fields_ = [("structSize", c_size_t), ("pPriv", c_void_p)]

    @classmethod
    def field_names(cls, version: int) -> tuple[str, ...]:
        """The fields that `version` knows, in order."""
        names = ["structSize", "pPriv", *(field[0] for field in cls._fields_)]
        return tuple(name for name in names if cls.SINCE.get(name, 0) <= version)

    @classmethod
    def size(cls, version: int) -> int:
        """The value of `structSize` for a library of API `version`, in bytes."""
        last = getattr(cls, cls.field_names(version)[-1])
        return int(last.offset) + int(last.size)

    @classmethod
    def of(cls, version: int, **values: Any) -> Params:
        """A struct for a library of API `version`; fields that are not named are zero."""
        return cls(structSize=cls.size(version), **values)


FUNCTIONS: dict[type[Params], str] = {}
"""Each struct and the function that takes it. A libcupti must export all of them."""


def _params(name: str, /, **fields: Any) -> type[Params]:
    """CUpti_`name`_Params with fields of these types; a late one has its first version as well."""
    late = {field: kind for field, kind in fields.items() if isinstance(kind, tuple)}
    members = {
        "SINCE": {field: version for field, (version, _) in late.items()},
        "_fields_": [*(fields | {field: kind for field, (_, kind) in late.items()}).items()],
    }
    struct = type(f"CUpti_{name}_Params", (Params,), members)
    FUNCTIONS[struct] = f"cupti{name.replace('_', '')}"
    return struct


# Named as the headers do, without CUpti_ and _Params. Those of the range profiler, and those of the
# host and of the device that it needs.
ProfilerInitialize = _params("Profiler_Initialize")
ProfilerDeInitialize = _params("Profiler_DeInitialize")
DeviceGetChipName = _params("Device_GetChipName", deviceIndex=c_size_t, pChipName=c_char_p)
GetCounterAvailability = _params(
    "Profiler_GetCounterAvailability",
    ctx=c_void_p,
    counterAvailabilityImageSize=c_size_t,
    pCounterAvailabilityImage=c_void_p,
    # 13.1 has the field, but its first STRUCT_SIZE macro does not count it.
    bAllowDeviceLevelCounters=(130101, c_uint8),
)
HostInitialize = _params(
    "Profiler_Host_Initialize",
    profilerType=c_int,
    pChipName=c_char_p,
    pCounterAvailabilityImage=c_void_p,
    pHostObject=c_void_p,
    pSinglePassMetricSetName=(130200, c_char_p),
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
    cacheControlMode=(130400, c_int),
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
