"""Asks libnvperf_host itself which metrics chips have: it needs no driver in any release.

    echo '{"GH100": ["sm__cycles_elapsed.max", ...], ...}' |
        python tests/measure/cupti/nvperf.py LIBNVPERF_HOST

prints, for every chip that the library lists, which of the metrics it lacks. Structs are those of
`nvperf_host.h` and `nvperf_cuda_host.h`, which have not changed since CUDA 12.6.
"""

from __future__ import annotations

import json
import sys
from ctypes import CDLL, POINTER, addressof, c_char_p, c_size_t, cast, create_string_buffer, sizeof
from typing import Any

REQUEST_SIZE, REQUEST_ROOM = 12, 16
"""Of NVPW_MetricEvalRequest: a size_t, two bytes and two bytes more; and with its padding."""


def call(function: Any, *fields: int) -> tuple[bool, list[int]]:
    """Whether it succeeds with a struct of these fields, and what they are then.

    All are as wide as a pointer. Every struct begins with its size, and a pointer that is null.
    """
    struct = (c_size_t * (2 + len(fields)))(0, 0, *fields)
    struct[0] = sizeof(struct)
    return function(struct) == 0, struct[2:]


def lacking(library: CDLL, chip: str, metrics: list[str]) -> list[str]:
    """Those of `metrics` that `chip` has not."""
    name = create_string_buffer(chip.encode())
    calculate = library.NVPW_CUDA_MetricsEvaluator_CalculateScratchBufferSize
    calculated, (*_, size) = call(calculate, addressof(name), 0, 0)
    scratch, request = create_string_buffer(size), create_string_buffer(REQUEST_ROOM)
    initialize = library.NVPW_CUDA_MetricsEvaluator_Initialize
    made, (*_, evaluator) = call(initialize, addressof(scratch), size, addressof(name), *[0] * 4)
    assert calculated
    assert made

    def has(metric: str) -> bool:
        text = create_string_buffer(metric.encode())
        convert = library.NVPW_MetricsEvaluator_ConvertMetricNameToMetricEvalRequest
        return call(convert, evaluator, addressof(text), addressof(request), REQUEST_SIZE)[0]

    return [metric for metric in metrics if not has(metric)]


def main() -> None:
    """Answers what stdin asks."""
    library = CDLL(sys.argv[1])
    begun, _ = call(library.NVPW_InitializeHost)
    listed, (names, count) = call(library.NVPW_GetSupportedChipNames, 0, 0)
    assert begun
    assert listed
    known = {name.decode() for name in cast(names, POINTER(c_char_p))[:count]}
    asked = json.load(sys.stdin)
    print(json.dumps({chip: lacking(library, chip, asked[chip]) for chip in known & set(asked)}))


if __name__ == "__main__":
    main()
