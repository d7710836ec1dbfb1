"""CUPTI's numbers: versions, enums and result codes, from its headers.

Names are CUPTI's without their prefixes; each class names the header's enum.
"""

from __future__ import annotations

from enum import IntEnum

OLDEST = 24
"""The API version of CUDA 12.6, the first release with the range profiler: since its update 2."""
NEWEST = 130500
"""That of the newest release whose headers `abi` was compared with (`script/cupti-headers`)."""

_RELEASES = {19: "12.0", 20: "12.2", 21: "12.3", 22: "12.4", 23: "12.5", 24: "12.6"}
_RELEASES |= {25: "12.7", 26: "12.8", 27: "12.9", 28: "12.9.1"}


def release(version: int) -> str:
    """The CUDA release of a `cuptiGetVersion` number: 24 is "12.6", 130001 is "13.0.1".

    The list is the comment at CUPTI_API_VERSION in `cupti_version.h`; from CUDA 13.0 on the number
    is made of major, minor and an update that is CUPTI's own.
    """
    if version >= 130000:
        major, minor, update = version // 10000, version // 100 % 100, version % 100
        return f"{major}.{minor}.{update}" if update else f"{major}.{minor}"
    return _RELEASES.get(version, "11 or older" if version < 19 else f"12 (API {version})")


class ProfilerRange(IntEnum):
    """`CUpti_ProfilerRange`: who says where a range begins and ends."""

    AUTO = 1
    USER = 2


class ProfilerReplayMode(IntEnum):
    """`CUpti_ProfilerReplayMode`: who repeats the work when one pass does not suffice."""

    APPLICATION = 1
    KERNEL = 2
    USER = 3


class ProfilerType(IntEnum):
    """`CUpti_ProfilerType`: what a host object prepares its configuration for."""

    RANGE_PROFILER = 0
    PM_SAMPLING = 1


class ProfilerApi(IntEnum):
    """`CUpti_Profiler_API`: what `cuptiProfilerDeviceSupported` is asked about."""

    RANGE_PROFILING = 0
    PM_SAMPLING = 3


class SupportLevel(IntEnum):
    """`CUpti_Profiler_Support_Level`: the answers of `cuptiProfilerDeviceSupported`."""

    UNKNOWN = 0
    UNSUPPORTED = 1
    DISABLED = 2
    SUPPORTED = 3
    LIMITED_SUPPORT = 4
    """Since 13.3: a limited set of metrics."""


class TriggerMode(IntEnum):
    """`CUpti_PmSampling_TriggerMode`: what makes the device take a sample."""

    GPU_SYSCLK_INTERVAL = 0
    """So many cycles of the system clock, which varies."""
    GPU_TIME_INTERVAL = 1
    """So many ns. Not on Turing, nor on GA100."""


class DecodeStopReason(IntEnum):
    """`CUpti_PmSampling_DecodeStopReason`: why a decoding ended."""

    OTHER = 0
    COUNTER_DATA_FULL = 1
    END_OF_RECORDS = 2


class AppendMode(IntEnum):
    """`CUpti_PmSampling_HardwareBuffer_AppendMode`: which samples a full buffer keeps."""

    KEEP_OLDEST = 0
    KEEP_LATEST = 1


class ResultCode(IntEnum):
    """`CUptiResult` of `cupti_result.h`, without its prefix; those that our calls can return."""

    SUCCESS = 0
    ERROR_INVALID_PARAMETER = 1
    ERROR_INVALID_DEVICE = 2
    ERROR_INVALID_CONTEXT = 3
    ERROR_INVALID_OPERATION = 7
    ERROR_OUT_OF_MEMORY = 8
    ERROR_HARDWARE = 9
    ERROR_PARAMETER_SIZE_NOT_SUFFICIENT = 10
    ERROR_API_NOT_IMPLEMENTED = 11
    ERROR_MAX_LIMIT_REACHED = 12
    ERROR_NOT_READY = 13
    ERROR_NOT_COMPATIBLE = 14
    ERROR_NOT_INITIALIZED = 15
    ERROR_INVALID_METRIC_ID = 16
    ERROR_INVALID_METRIC_NAME = 17
    ERROR_QUEUE_EMPTY = 18
    ERROR_INVALID_HANDLE = 19
    ERROR_INVALID_STREAM = 20
    ERROR_INVALID_KIND = 21
    ERROR_DISABLED = 23
    ERROR_INVALID_MODULE = 24
    ERROR_INVALID_METRIC_VALUE = 25
    ERROR_HARDWARE_BUSY = 26
    ERROR_NOT_SUPPORTED = 27
    ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED = 33
    ERROR_INSUFFICIENT_PRIVILEGES = 35
    ERROR_OLD_PROFILER_API_INITIALIZED = 36
    ERROR_LEGACY_PROFILER_NOT_SUPPORTED = 38
    ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = 39
    ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES = 40
    ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED = 41
    ERROR_CMP_DEVICE_NOT_SUPPORTED = 42
    ERROR_MIG_DEVICE_NOT_SUPPORTED = 43
    ERROR_SLI_DEVICE_NOT_SUPPORTED = 44
    ERROR_WSL_DEVICE_NOT_SUPPORTED = 45
    ERROR_INVALID_CHIP_NAME = 46
    ERROR_UNKNOWN = 999


def result_name(code: int) -> str:
    """CUPTI's name of a result code, or the number where this file does not know it."""
    try:
        return f"CUPTI_{ResultCode(code).name}"
    except ValueError:
        return f"CUptiResult {code}"
