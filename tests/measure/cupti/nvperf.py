"""Asks libnvperf_host itself which metrics chips have: it needs no driver in any release.

    echo '{"GH100": ["sm__cycles_elapsed.max", ...], ...}' |
        python tests/measure/cupti/nvperf.py LIBNVPERF_HOST

prints, for every chip that the library lists, which of the metrics it lacks. Structs are those of
`nvperf_host.h` and `nvperf_cuda_host.h`, which have not changed since CUDA 12.6.
"""

from __future__ import annotations

import json
import sys
from ctypes import (
    CDLL,
    POINTER,
    Structure,
    addressof,
    byref,
    c_char_p,
    c_size_t,
    c_uint8,
    c_uint16,
    c_void_p,
    create_string_buffer,
    pointer,
    sizeof,
)


class _Initialize(Structure):
    """The beginning of every struct."""

    _fields_ = [("structSize", c_size_t), ("pPriv", c_void_p)]


class _ChipNames(_Initialize):
    _fields_ = [("names", POINTER(c_char_p)), ("count", c_size_t)]


class _Scratch(_Initialize):
    _fields_ = [("chip", c_char_p), ("availability", c_void_p), ("size", c_size_t)]


class _Evaluator(_Initialize):
    _fields_ = [
        ("scratch", c_void_p),
        ("scratchSize", c_size_t),
        ("chip", c_char_p),
        ("availability", c_void_p),
        ("data", c_void_p),
        ("dataSize", c_size_t),
        ("evaluator", c_void_p),
    ]


class _Request(Structure):
    _fields_ = [("index", c_size_t), ("type", c_uint8), ("rollup", c_uint8), ("sub", c_uint16)]


class _Convert(_Initialize):
    _fields_ = [
        ("evaluator", c_void_p),
        ("name", c_char_p),
        ("request", POINTER(_Request)),
        ("requestSize", c_size_t),
    ]


_REQUEST_SIZE = _Request.sub.offset + _Request.sub.size


def lacking(library: CDLL, chip: str, metrics: list[str]) -> list[str]:
    """Those of `metrics` that `chip` has not."""
    scratch = _Scratch(sizeof(_Scratch), None, chip.encode())
    assert library.NVPW_CUDA_MetricsEvaluator_CalculateScratchBufferSize(byref(scratch)) == 0
    buffer = create_string_buffer(scratch.size)
    made = _Evaluator(sizeof(_Evaluator), None, addressof(buffer), scratch.size, chip.encode())
    assert library.NVPW_CUDA_MetricsEvaluator_Initialize(byref(made)) == 0

    def has(name: str) -> bool:
        request = pointer(_Request())
        asked = (sizeof(_Convert), None, made.evaluator, name.encode(), request, _REQUEST_SIZE)
        convert = library.NVPW_MetricsEvaluator_ConvertMetricNameToMetricEvalRequest
        return bool(convert(byref(_Convert(*asked))) == 0)

    return [name for name in metrics if not has(name)]


def main() -> None:
    """Answers what stdin asks."""
    library = CDLL(sys.argv[1])
    assert library.NVPW_InitializeHost(byref(_Initialize(sizeof(_Initialize)))) == 0
    names = _ChipNames(sizeof(_ChipNames))
    assert library.NVPW_GetSupportedChipNames(byref(names)) == 0
    known = {names.names[number].decode() for number in range(names.count)}
    asked = json.load(sys.stdin)
    print(
        json.dumps({chip: lacking(library, chip, asked[chip]) for chip in asked if chip in known})
    )


if __name__ == "__main__":
    main()
