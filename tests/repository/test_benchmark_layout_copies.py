"""What counts as a copy from one memory layout to another, on events as torch's profiler has them.

Names of kernels are those that ATen, cuDNN and Inductor give them, cut short.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.layout_copies import layout_copy, load, measured, table
from tests import ROOT

FILE = ROOT / "docs" / "runs" / "meddpm-layout-copies.json"

COPY = (
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<"
    "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}>>(int)"
)
TO_BF16 = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
    "at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}>>(int)"
)
CONTIGUOUS_CAST = (
    "void at::native::vectorized_elementwise_kernel<4, "
    "at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}>(int)"
)
CAT = (
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<"
    "at::native::(anonymous namespace)::OpaqueType<4u>, unsigned int, 5, 64, 64>(int)"
)
TO_NHWC = (
    "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, false, true, "
    "(cudnnKernelDataType_t)0>(float const*, float*)"
)
CONVOLUTION = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16"

VOLUME = [2, 64, 8, 8, 8]
FIRST = [32768, 512, 64, 8, 1]
"""Strides of `VOLUME` with its channels before what is in space, as torch has them by default."""
LAST = [32768, 1, 4096, 512, 64]
"""Its strides in channels_last_3d."""


def copied(*tensors: tuple[Sequence[int], Sequence[int]]) -> dict[str, Any]:
    """Arguments of an operator on tensors of these shapes and strides, and on one scalar."""
    return {
        "Input Dims": [*(list(shape) for shape, _ in tensors), []],
        "Input Strides": [*(list(strides) for _, strides in tensors), []],
    }


# Copies by torch: where they go, and where from.


WIDE_FIRST, WIDE_LAST = [65536, *FIRST[1:]], [65536, 1, 8192, 1024, 128]
"""Strides of `VOLUME` where it is half of the channels of a larger one."""
POINT = [1, 64, 1, 1, 1]


def test_a_copy_between_orders_counts_also_of_a_slice() -> None:
    for to, source in ((LAST, FIRST), (FIRST, LAST), (LAST, WIDE_FIRST)):
        for kernel in (COPY, TO_BF16):
            arguments = copied((VOLUME, to), (VOLUME, source))
            assert layout_copy(kernel, "aten::copy_", arguments) == "torch: 2x64x8x8x8"


@pytest.mark.parametrize(
    ("to", "source"),
    [
        pytest.param((VOLUME, FIRST), (VOLUME, WIDE_FIRST), id="slice of channels"),
        pytest.param((VOLUME, WIDE_FIRST), (VOLUME, FIRST), id="into a slice of channels"),
        pytest.param((VOLUME, LAST), (VOLUME, WIDE_LAST), id="slice of channels last"),
        pytest.param((VOLUME, FIRST), (VOLUME, [65536, 1024, 128, 16, 2]), id="slice of rows"),
        pytest.param(([64, 32], [32, 1]), ([64, 32], [1, 64]), id="no volume"),
        # torch writes the stride of a dimension of one element as it likes: it lies nowhere.
        pytest.param(
            ([1, 64, 8, 8, 8], [32768, 1, 4096, 512, 64]),
            ([1, 64, 8, 8, 8], [1, 1, 4096, 512, 64]),
            id="one image",
        ),
        pytest.param(
            ([2, 1, 8, 8, 8], [512, 512, 64, 8, 1]),
            ([2, 1, 8, 8, 8], [512, 1, 64, 8, 1]),
            id="one channel",
        ),
        pytest.param((POINT, [64, 1, 1, 1, 1]), (POINT, [64, 1, 64, 64, 64]), id="one voxel"),
        # Values that are repeated are not reordered.
        pytest.param((VOLUME, LAST), ([], []), id="number"),
        pytest.param((VOLUME, LAST), ([8, 8], [8, 1]), id="matrix"),
        pytest.param((VOLUME, LAST), ([64, 1, 1, 1], [1, 1, 1, 1]), id="bias"),
        pytest.param((VOLUME, LAST), (POINT, [64, 1, 1, 1, 1]), id="bias of a volume"),
        pytest.param((VOLUME, LAST), (VOLUME, [0, 1, 0, 0, 0]), id="expanded bias"),
        pytest.param((VOLUME, LAST), (VOLUME, [0, 0, 64, 8, 1]), id="expanded volume"),
    ],
)
def test_a_copy_that_reorders_nothing_does_not_count(
    to: tuple[list[int], list[int]], source: tuple[list[int], list[int]]
) -> None:
    assert layout_copy(COPY, "aten::copy_", copied(to, source)) is None


def test_of_a_volume_that_is_repeated_the_rest_can_be_reordered() -> None:
    arguments = copied((VOLUME, LAST), (VOLUME, [0, *FIRST[1:]]))
    assert layout_copy(COPY, "aten::copy_", arguments) == "torch: 2x64x8x8x8"


def test_a_contiguous_cast_does_not_count() -> None:
    # Torch's kernel for tensors that lie alike in memory: it would not run between two orders.
    arguments = copied((VOLUME, LAST), (VOLUME, FIRST))
    assert layout_copy(CONTIGUOUS_CAST, "aten::copy_", arguments) is None


def test_what_joins_volumes_does_not_count() -> None:
    tensors = {
        "Input Dims": [[VOLUME, VOLUME], []],
        "Input Strides": [[LAST, FIRST], []],
    }
    assert layout_copy(CAT, "aten::cat", tensors) is None


# Kernels that say by their names what they do.


def test_a_library_and_inductor_name_what_moves_data() -> None:
    triton = "triton_poi_fused__to_copy"
    alike = copied((VOLUME, LAST), (VOLUME, LAST))
    for kernel, operator, expected in (
        (TO_NHWC, "aten::cudnn_convolution", "nchwToNhwcKernel f32x3 F T 0"),
        (CONVOLUTION, "aten::cudnn_convolution", None),
        (f"{triton}_permute_3", f"{triton}_permute_3", "triton_poi__to_copy_permute_3"),
        ("triton_poi_fused_add_9", "triton_poi_fused_add_9", None),
        # It moves data on the way to something else.
        (f"{triton}_add_4", f"{triton}_add_4", None),
        ("Memcpy DtoD (Device -> Device)", "aten::copy_", None),
    ):
        assert layout_copy(kernel, operator, alike) == expected, kernel
    # Without an operator only a library's name says it: of torch's nobody knows what it copied.
    for kernel in (COPY, CAT, CONVOLUTION, ""):
        assert layout_copy(kernel, "", {}) is None, kernel
    assert layout_copy(TO_NHWC, "", {}) == "nchwToNhwcKernel f32x3 F T 0"


# A trace.


def launched(name: str, microseconds: float, by: int | None = None, cat: str = "kernel") -> Any:
    """A trace event of the device, launched by the operator of that id."""
    made: dict[str, Any] = {"ph": "X", "cat": cat, "name": name, "dur": microseconds}
    return made if by is None else {**made, "args": {"External id": by}}


def operator(name: str, number: int, **arguments: Any) -> Any:
    """A trace event of an operator on the host."""
    known = {"External id": number, **arguments}
    return {"ph": "X", "cat": "cpu_op", "name": name, "dur": 9e6, "args": known}


def test_a_traces_copies_are_added_up_by_what_they_copy() -> None:
    small = [1, 64, 4, 4, 4], [4096, 1, 1024, 256, 64]
    events = [
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
        # The profiler does not say where it was when a kernel was launched before it began.
        launched(COPY, 1000.0),
        launched(TO_NHWC, 250.0, by=99),
        launched(COPY, 2000.0, by=1),
        launched(COPY, 1500.0, by=2),
        launched(COPY, 500.0, by=3),
        launched(CONVOLUTION, 4000.0, by=4),
        launched(TO_NHWC, 750.0, by=4),
        launched("Memcpy HtoD (Pageable -> Device)", 100.0, by=5, cat="gpu_memcpy"),
        launched("Memset (Device)", 50.0, by=4, cat="gpu_memset"),
        # An annotation takes no time of its own.
        launched("ProfilerStep#1", 9e6, by=1, cat="gpu_user_annotation"),
        operator("aten::copy_", 1, **copied((VOLUME, LAST), (VOLUME, FIRST))),
        operator("aten::copy_", 2, **copied((VOLUME, FIRST), (VOLUME, LAST))),
        operator("aten::copy_", 3, **copied(small, ([1, 64, 4, 4, 4], [4096, 64, 16, 4, 1]))),
        operator("aten::cudnn_convolution", 4, **copied((VOLUME, LAST))),
        operator("aten::copy_", 5),
        {"ph": "X", "cat": "cpu_op", "name": "aten::empty", "dur": 1.0},
    ]
    assert measured(events) == {
        "kernels_ms": 10.15,
        "copies": [
            {"what": "torch: 2x64x8x8x8", "launches": 2, "ms": 3.5},
            {"what": "nchwToNhwcKernel f32x3 F T 0", "launches": 2, "ms": 1.0},
            {"what": "torch: 1x64x4x4x4", "launches": 1, "ms": 0.5},
        ],
    }


def test_a_trace_without_kernels_has_no_copies() -> None:
    events = [operator("aten::copy_", 1, **copied((VOLUME, LAST), (VOLUME, FIRST)))]
    assert measured(events) == {"kernels_ms": 0.0, "copies": []}


# The table.


def test_a_row_has_the_sum_its_share_and_the_largest() -> None:
    copies = [
        {"what": "torch: 2x64x8x8x8", "launches": 2, "ms": 3.5},
        {"what": "nchwToNhwcKernel f32x3 F T 0", "launches": 2, "ms": 1.0},
    ]
    counted = {
        "tf32": {"kernels_ms": 36.04, "copies": copies},
        "best": {"kernels_ms": 20.0, "copies": []},
    }
    assert table(counted).splitlines()[2:] == [
        "| `tf32` | 36.0 ms | 4.50 ms | 12.5% | `torch: 2x64x8x8x8`, 3.50 ms |",
        "| `best` | 20.0 ms | 0.00 ms | 0.0% |  |",
    ]
    assert {row.count("|") for row in table(counted).splitlines()} == {6}


def share(configuration: str) -> float:
    """Of the time of a configuration's kernels on an H200: what goes into layout copies."""
    step = load(FILE)[configuration]
    return math.fsum(copy["ms"] for copy in step["copies"]) / float(step["kernels_ms"])


def test_on_an_h200_torchs_own_norm_copies_in_channels_last_and_ours_hardly_at_all() -> None:
    assert share("tf32_channels_last") > 0.2
    for configuration in ("tf32+channels_last+fused_norm", "bf16_fused", "best"):
        assert share(configuration) <= 0.03, configuration
