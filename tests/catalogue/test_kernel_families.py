"""Families and short names of kernels, on names that were recorded and on any string."""

import json
import lzma
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.catalogue.kernel_families import FAMILIES, LONGEST, family, short_name
from tests import ROOT

DATA = ROOT / "tests" / "data"
PUBLIC: list[dict[str, str]] = json.loads((DATA / "kernel-names.json").read_text("utf-8"))
STEPS: dict[str, dict[str, Any]] = {
    path.name.partition(".")[0]: json.loads(lzma.decompress(path.read_bytes()))
    for path in sorted((DATA / "h200-kernels").glob("*.json.xz"))
}
RECORDED = sorted({name for step in STEPS.values() for name in step["names"]})
NAMES = RECORDED + [entry["name"] for entry in PUBLIC]

# Pieces that the rules and the parser look at, in any order.
PIECES = st.sampled_from([
    "void ", "at::native::", "<", ">", "(", ")", "{", "lambda(float)", ", ", "_ZN", "64", "1_",
    "sm90_xmma_", "wgrad_", "elementwise_kernel", "_copy_kernel", "unrolled_", "triton_poi_fused_",
    "t_", "Functor", "OpaqueType<4u>", "Kernel2", "(anonymous namespace)::", "conv_depthwise",
    "Compute", "\n", "é",
])  # fmt: skip
ODD_NAMES = st.one_of(
    st.text(max_size=300),
    st.lists(PIECES, max_size=40).map("".join),
    st.tuples(st.sampled_from(NAMES), st.integers(0, 3000)).map(lambda cut: cut[0][: cut[1]]),
)


def time_by(step: str, key: Callable[[str], str | None]) -> dict[str | None, float]:
    """The share of each key in a recorded step's time on the GPU, in percent."""
    content = STEPS[step]
    keys = [key(name) for name in content["names"]]
    total: Counter[str | None] = Counter()
    for launch in content["launches"]:
        fields = dict(zip(content["columns"], launch, strict=True))
        total[keys[fields["name"]]] += fields["duration_us"]
    return {name: 100 * value / total.total() for name, value in total.items()}


def test_names_seen_in_public() -> None:
    wrong = [entry for entry in PUBLIC if family(entry["name"]) != entry["family"]]
    assert wrong == []


def test_nearly_all_time_of_a_recorded_step_has_a_family() -> None:
    for step in STEPS:
        assert time_by(step, family).get("other", 0) <= 1, step


# What a direction, a library or an operation is called inside a name, whatever else it says.
def test_recorded_names_go_by_what_they_call_themselves() -> None:
    for token, expected in (
        (r"_xmma_fprop|implicit_gemm::fprop|implicit_convolveNd", "convolution-forward"),
        (r"_xmma_dgrad|implicit_gemm::dgrad|dgrad_.*engine", "convolution-data-gradient"),
        (r"wgrad", "convolution-weight-gradient"),
        (r"_xmma_gemm|nvjet|cutlass_\d+|gemv|splitKreduce", "gemm"),
        (r"sdpa|cudnn::fusion", "attention"),
        (
            r"RowwiseMoments|GroupNorm|_layer_norm|GammaBeta|FusedParams|InternalGrad",
            "normalization",
        ),
        (r"nchwToNhwc|nhwcTo|nhwcAdd|tensorTransform|CatArray", "layout"),
        (r"::reduce_kernel|[sS]oft[mM]ax|fused_sum", "reduction"),
        (r"upsample", "resampling"),
        (r"multi_tensor_apply", "optimizer"),
        (
            r"silu|FillFunctor|distribution_|MulFunctor|CUDAFunctor|addcdiv|clamp_scalar",
            "elementwise",
        ),
        (r"^Mem(cpy|set) ", "copy"),
    ):
        named = [name for name in RECORDED if re.search(token, name)]
        assert named, (token, expected)
        assert {family(name) for name in named} == {expected}, (token, expected)


def test_a_contiguous_cast_is_no_layout_copy() -> None:
    copies = {name: family(name) for name in RECORDED if "_copy_kernel_cuda" in name}
    assert {
        re.sub(r"^void at::native::|<.*", "", name): named for name, named in copies.items()
    } == {
        "elementwise_kernel": "layout",
        "unrolled_elementwise_kernel": "elementwise",
        "vectorized_elementwise_kernel": "elementwise",
    }


def test_short_names_are_for_people() -> None:
    for piece, expected in (
        ("launch_clamp_scalar", "vectorized_elementwise clamp_scalar f32"),
        (
            "vectorized_elementwise_kernel<4, at::native::BUnary",
            "vectorized_elementwise BUnary Mul f32",
        ),
        (
            "reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::Mean",
            "reduce 512x1 Mean f32",
        ),
        ("FusedAdamMathFunctor", "multi_tensor_apply FusedAdamMath f32"),
        ("CatArrayBatchedCopy_vectorized", "CatArrayBatchedCopy_vectorized 4B u32 2 128"),
        (
            "sm90_xmma_dgrad_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize256x128x32_"
            "warpgroupsize2x1x1_g1_execute_segment_k_on",
            "sm90_xmma_dgrad tf32 256x128x32 segk",
        ),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nt_n", "sm80_xmma_gemm f32 nt 32x32x8"),
        (
            "cutlass_80_simt_sgemm_256x128_8x4_nt_align1",
            "cutlass_80_simt_sgemm_256x128_8x4_nt_align1",
        ),
        ("false, true, true, false, 7", "gemvx i32x2 f32x4 F Tx2 F 7 F"),
        ("normal_and_transform", "distribution normal f32"),
        ("Memcpy DtoD", "Memcpy DtoD (Device -> Device)"),
    ):
        assert [short_name(name) for name in RECORDED if piece in name] == [expected], piece


def test_the_kernels_of_a_recorded_step_have_different_short_names() -> None:
    for step, content in STEPS.items():
        names = Counter(short_name(name) for name in content["names"])
        assert [name for name, count in names.items() if count > 1] == [], step


@given(ODD_NAMES)
def test_any_string_has_a_family_and_a_printable_short_name(name: str) -> None:
    assert family(name) in FAMILIES
    short = short_name(name)
    assert 0 < len(short) <= LONGEST
    assert short.isprintable()


def test_repeated_beginnings_of_patterns_end() -> None:
    for name in ("void at::native::unrolled_elementwise_kernel<", "conv_depthwise", "triton_"):
        for tail in ("_copy_kernel", "conv_depthwise", "t_", "1_", "_fused_"):
            assert family(name + tail * 100_000) in FAMILIES, name
