"""Which kernels the operators launch, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_gpuperf.errors import UsageFailure
from suites.convnext_ddpm.kernels import KernelOperators
from suites.convnext_ddpm.kernels.launches import Launch
from suites.convnext_ddpm.operators import Epilogue, FusedBlocks
from tests.convnext import kernel_cases as cases
from tests.convnext.emulation import Recorder

H200 = 132
X, WEIGHT, BIAS = torch.zeros(2, 4, 6, 8), torch.zeros(3, 4, 3, 3), torch.zeros(3)
ADDEND = torch.zeros(2, 3, 6, 8)


def launched(call: str, *arguments: Any, chosen: dict[str, Any], **options: Any) -> list[Launch]:
    """What a call of operators that are composed in this way launches."""
    recorder = Recorder(H200)
    getattr(KernelOperators(recorder, **chosen), call)(*arguments, **options)
    return recorder.launches


def names(launches: list[Launch]) -> list[str]:
    return [launch.kernel.partition("<")[0] for launch in launches]


def test_without_fusion_every_part_is_a_kernel() -> None:
    features, attention = torch.zeros(2, 5), torch.zeros(2, 1, 6, 8)
    for fused, convolution, gate, linear in (
        (True, ["convolution_tiled"], ["gate"], ["linear"]),
        (
            False,
            ["convolution_tiled", "add_bias", "add", "activate"],
            ["sigmoid_of", "gate"],
            ["activate", "linear", "add_bias"],
        ),
    ):
        chosen = {"fused": fused}
        how = {"padding": 1, "addend": ADDEND, "epilogue": Epilogue.GELU}
        calls = launched("convolution", X, WEIGHT, BIAS, chosen=chosen, **how)
        assert names(calls) == convolution
        assert names(launched("gate", X, attention, chosen=chosen)) == gate
        weight = torch.zeros(3, 5)
        calls = launched("linear", features, weight, BIAS, chosen=chosen, gelu_first=True)
        assert names(calls) == linear


def test_norms() -> None:
    large, small = (2, 64, 64, 64), (2, 256, 8, 8)
    for norm, shape, expected in (
        ("naive", large, ["norm_naive"]),
        ("warp_shuffle", large, ["norm_partial", "norm_scale"]),
        ("warp_shuffle", small, ["norm_resident"]),
        ("three_kernel", small, ["norm_partial", "norm_reduce", "norm_scale"]),
    ):
        scale, chosen = torch.zeros(shape[1]), {"norm": norm}
        calls = launched("layer_norm", torch.zeros(shape), scale, scale, 1e-5, chosen=chosen)
        assert names(calls) == expected, (norm, shape)


@pytest.mark.parametrize("columns", [8, 16, 32, 64])
@pytest.mark.parametrize("convolution", ["tiled", "im2col_bf16"])
def test_tiles_are_smaller_where_large_ones_are_too_few(convolution: str, columns: int) -> None:
    """So that every processor has a block: fewer pixels or output channels for each of them."""

    def blocks(images: int) -> int:
        x, weight = torch.zeros(images, 64, columns, columns), torch.zeros(64, 64, 3, 3)
        chosen = {"convolution": convolution}
        (launch,) = launched("convolution", x, weight, None, chosen=chosen, padding=1)
        return launch.grid[0] * launch.grid[1] * launch.grid[2]

    assert blocks(64) >= 0.75 * H200
    assert blocks(1) > blocks(64) / 64


def test_bfloat16_leaves_grouped_and_large_convolutions_to_others() -> None:
    chosen = {"convolution": "im2col_bf16"}
    depthwise = launched(
        *("convolution", X, torch.zeros(4, 1, 7, 7), None), chosen=chosen, padding=3, groups=4
    )
    first = launched("convolution", X, torch.zeros(3, 4, 7, 7), BIAS, chosen=chosen, padding=3)
    assert names(depthwise + first) == ["convolution_grouped", "convolution_tiled"]


def test_bfloat16_says_where_it_cannot_run() -> None:
    with pytest.raises(UsageFailure, match="of sm80 or later; this is sm75"):
        KernelOperators(Recorder(H200, "sm75"), convolution="im2col_bf16")


def test_operators_do_blocks_where_they_were_asked_for() -> None:
    for blocks in (False, True):
        assert isinstance(KernelOperators(Recorder(H200), blocks=blocks), FusedBlocks) is blocks


SEVERAL = ["convolution_grouped", "convolution_tiled", "convolution_tiled"]


def test_a_block_is_one_kernel_where_it_fits() -> None:
    for edge, channels, arch, expected in (
        (8, 256, "sm90", []),
        (16, 128, "sm90", SEVERAL),  # does not fit
        (8, 8, "sm80", []),
        (8, 256, "sm80", SEVERAL),  # does not fit without a cluster
    ):
        recorder = Recorder(H200, arch)
        case = cases.block("", (1, channels, edge, edge), 2 * channels, channels)
        case.call(KernelOperators(recorder, blocks=True), cases.inputs(case))
        called = names(recorder.launches)
        assert (called == ["convnext_block"]) == (not expected), (edge, channels, arch)
        assert [name for name in called if name.startswith("convolution")] == expected


@pytest.mark.parametrize(("largest_work", "kernels"), [(3 * 10**6, 1), (10**6, 5)])
def test_a_block_of_much_work_can_be_left_to_several_kernels(
    largest_work: int, kernels: int
) -> None:
    """Each of eight blocks of threads has 8 x 8 x 9 x 192 x (96 + 96) / 8 multiplications."""
    recorder = Recorder(H200)
    case = cases.block("", (1, 96, 8, 8), 192, 96)
    operators = KernelOperators(recorder, blocks=True, largest_work=largest_work)
    case.call(operators, cases.inputs(case))
    assert len(recorder.launches) == kernels


OTHER_OUT = r"out is to be float32 of shape \(2, 3, 6, 8\) on cpu"


@pytest.mark.parametrize(
    ("x", "out", "said"),
    [
        (X.double(), None, "x is torch.float64"),
        (X.transpose(2, 3), None, "strides"),
        (X.clone().requires_grad_(), None, "no backward, and x requires gradients"),
        (X, torch.zeros(2, 3, 6, 9), OTHER_OUT),
        (X, torch.zeros(2, 3, 8, 6).transpose(2, 3), OTHER_OUT),
        (X, ADDEND.double(), OTHER_OUT),
    ],
)
def test_refuses_what_the_kernels_would_misread(
    x: torch.Tensor, out: torch.Tensor | None, said: str
) -> None:
    with pytest.raises(UsageFailure, match=said):
        launched("convolution", x, WEIGHT, BIAS, chosen={}, padding=1, out=out)


def test_gradients_may_be_switched_off() -> None:
    with torch.no_grad():
        assert launched("upsample", X.clone().requires_grad_(), chosen={})


def test_space_to_depth_needs_even_maps() -> None:
    with pytest.raises(UsageFailure, match="even rows and columns, not 5x8"):
        launched("space_to_depth", torch.zeros(1, 2, 5, 8), chosen={})


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_without_a_gpu_it_is_said() -> None:
    with pytest.raises(UsageFailure, match="they need a GPU, and torch sees none"):
        KernelOperators()
