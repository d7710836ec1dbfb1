"""CUPTI's PM sampling interface (`cupti_pmsampling.h`) as ctypes, in the manner of `abi.py`.

Apart from it, since a libcupti may be of use without these functions.
"""

# ruff: noqa: RUF012 -- ctypes wants its lists, and ruff does not see that Params is a Structure

from __future__ import annotations

from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from typing import ClassVar

from pytest_gpuperf.collect.cupti.abi import Params


class GetCounterAvailability(Params):
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


FUNCTIONS: dict[type[Params], str] = {
    GetCounterAvailability: "cuptiPmSamplingGetCounterAvailability",
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
