"""FLOP, DRAM bytes, and where they stand under the roofs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from pytest_gpuperf.analysis import roofline
from pytest_gpuperf.analysis.roofline import DRAM, OPCODES, TENSOR, published
from pytest_gpuperf.catalogue import architectures
from tests.analysis.tables import family, paper_set, table

PLAIN = {"fp32": 10e12, "fp16": 20e12, "fp64": 5e12, "tensor tf32": 100e12, DRAM: 1e12}
"""10 FLOP of fp32 per byte are the ridge, 100 of tensor tf32."""
NOTHING = {metric: 0.0 for weights in OPCODES.values() for metric in weights}
NO_TENSOR = dict.fromkeys(TENSOR.values(), 0.0)


def counts(dram_bytes: float, **values: float) -> dict[str, float]:
    return {**NOTHING, **NO_TENSOR, "dram_bytes": dram_bytes, **values}


def only(change: roofline.Roofline) -> roofline.Point:
    (point,) = change.kernels
    return point


def test_flop_by_kind() -> None:
    for values, kind, flop in (
        ({"sass_fadd": 5.0, "sass_fmul": 7.0, "sass_ffma": 10.0}, "fp32", 32),  # 5 + 7 + 2 x 10
        ({"sass_dadd": 5.0, "sass_dmul": 7.0, "sass_dfma": 10.0}, "fp64", 32),
        # Each of these works on two halves: 2 x (5 + 7 + 2 x 10)
        ({"sass_hadd": 5.0, "sass_hmul": 7.0, "sass_hfma": 10.0}, "fp16", 64),
        # So do these of Blackwell.
        ({"sass_fadd2": 5.0, "sass_fmul2": 7.0, "sass_ffma2": 10.0}, "fp32", 64),
        ({"tensor_ops_tf32": 4096.0}, "tensor tf32", 4096),
        ({"tensor_ops_bf16": 4096.0}, "tensor bf16", 4096),
    ):
        point = only(
            roofline.roofline(table(("a", 1.0, counts(100, **values))), family, {}, "sm100")
        )
        assert point.flop[kind] == flop, (values, kind)
        assert math.fsum(point.flop.values()) == flop, (values, kind)
        assert point.flop_per_second == pytest.approx(flop / 1e-6)


@pytest.mark.parametrize(
    ("tensor", "plain", "dram_bytes", "roof", "share"),
    [
        # 2e6 FLOP of 1e6 bytes: 2 FLOP per byte, left of the ridge of 10. Attainable is
        # min(10e12, 2 x 1e12) = 2e12, and 2e6 in 4 us are a quarter of that.
        (0.0, 2e6, 1e6, DRAM, 0.25),
        # 600 FLOP per byte, right of tensor tf32's ridge of 100: 60e12 of 100e12.
        (24e7, 0.0, 4e5, "tensor tf32", 0.6),
        # 20e12 of 100e12 on the tensor cores, 4e12 of 10e12 beside them.
        (8e7, 16e6, 4e5, "fp32", 0.4),
    ],
)
def test_the_roof_is_the_one_that_is_nearest(
    tensor: float, plain: float, dram_bytes: float, roof: str, share: float
) -> None:
    values = counts(dram_bytes, tensor_ops_tf32=tensor, sass_fadd=plain)
    point = only(roofline.roofline(table(("gemm", 4.0, values)), family, PLAIN, "sm100"))
    assert point.dram_bytes == dram_bytes
    assert point.flop_per_byte == pytest.approx((tensor + plain) / dram_bytes)
    assert point.flop_per_second == pytest.approx((tensor + plain) / 4e-6)
    assert point.shares["tensor tf32"] == pytest.approx(tensor / 4e8)
    assert point.shares["fp32"] == pytest.approx(plain / 4e7)
    assert point.shares[DRAM] == pytest.approx(dram_bytes / 4e6)
    assert point.roof == roof
    assert point.share_of_roof == pytest.approx(share)


def test_the_step_is_the_sum_of_its_kernels() -> None:
    points = roofline.roofline(
        table(
            ("conv a", 10.0, counts(1e6, tensor_ops_tf32=3e8)),
            ("copy HtoD", 90.0),
            ("conv b", 10.0, counts(1e6, tensor_ops_tf32=1e8)),
            ("norm", 30.0, counts(6e6, sass_ffma=3e6)),
        ),
        family,
        PLAIN,
        "sm100",
    )
    assert [(p.name, p.family, p.nanoseconds) for p in points.kernels] == [
        ("norm", "norm", 30_000),
        ("conv a", "conv", 10_000),
        ("conv b", "conv", 10_000),
    ]
    rates = [p.flop_per_second or 0.0 for p in points.kernels]
    assert rates == pytest.approx([2e11, 3e13, 1e13])
    assert (points.step.name, points.step.nanoseconds) == ("step", 50_000)
    assert points.step.dram_bytes == 8e6
    assert points.step.flop_per_byte == pytest.approx(50.75)
    assert points.missing == ()


# What cannot be counted


def test_tensor_cores_that_cannot_be_counted_are_said() -> None:
    points = roofline.roofline(
        table(
            ("gemm", 1.0, {**NOTHING, "dram_bytes": 100.0, "tensor_utilization": 40.0}),
            ("norm", 1.0, {**NOTHING, "dram_bytes": 100.0, "tensor_utilization": 0.0}),
        ),
        family,
        PLAIN,
        "sm100",
    )
    gemm, norm = points.kernels
    assert (gemm.flop_per_second, gemm.flop_per_byte, gemm.roof) == (None,) * 3
    assert gemm.flop["fp32"] == 0
    assert gemm.shares[DRAM] == pytest.approx(1e-4)  # 100 bytes in 1 us
    assert (norm.flop_per_second, points.step.flop_per_second) == (0, None)
    assert points.missing == (f"not collected: {', '.join(TENSOR.values())}",)


def test_whether_all_tensor_work_was_counted() -> None:
    for values, counted in (
        ({**NO_TENSOR, "tensor_utilization": 60.0}, False),  # of a type without a metric
        ({**NO_TENSOR, "tensor_utilization": 4.3}, True),  # constants loaded by HFMA2.MMA
        ({"tensor_ops_fp16": 5.0, "tensor_utilization": 60.0}, True),
        ({"pipe_tensor": 0.0}, True),
        ({"pipe_tensor": 7.0}, False),
        ({}, False),
    ):
        points = table(("a", 1.0, {**NOTHING, "dram_bytes": 1.0, **values}))
        point = only(roofline.roofline(points, family, {}, "sm100"))
        assert (point.flop_per_second is not None) is counted, values


def test_what_is_not_known_leaves_no_rate_no_share_or_no_roof() -> None:
    opcodes = {"sass_fadd": 5.0, "sass_fmul": 7.0, "sass_ffma": 10.0}
    some = table(("a", 1.0, {**opcodes, **NO_TENSOR, "dram_bytes": 1.0}))
    points = roofline.roofline(some, family, PLAIN, "sm90")
    assert (only(points).flop["fp32"], only(points).flop_per_second) == (32, None)
    assert "fp16" not in only(points).flop
    assert points.missing[0].startswith("not collected: sass_hadd, sass_hmul")
    added = counts(10, sass_fadd=10)
    without_bytes = table(("a", 1.0, added), ("a", 1.0, {**NOTHING, **NO_TENSOR}))
    point = only(roofline.roofline(without_bytes, family, PLAIN, "sm100"))
    assert (point.flop["fp32"], point.dram_bytes, point.flop_per_byte) == (10, None, None)
    assert point.roof is None
    # In no time there is no rate.
    point = only(roofline.roofline(table(("a", 0.0, added)), family, PLAIN, "sm100"))
    assert (point.flop_per_byte, point.flop_per_second) == (1, None)
    assert (point.shares, point.roof) == ({}, None)
    # Work of a kind whose peak is not known.
    of_eight = table(("a", 1.0, counts(10, tensor_ops_fp8=1e6)))
    point = only(roofline.roofline(of_eight, family, PLAIN, "sm100"))
    assert (point.roof, point.share_of_roof) == (None, None)
    # A device that is not known.
    points = roofline.roofline(table(("a", 1.0, added)), family, {}, "sm100")
    assert (only(points).shares, only(points).roof, only(points).flop_per_byte) == ({}, None, 1)
    assert points.missing == (
        "gpuperf does not know the peaks of this device, so there are no shares",
    )
    for rows in ((), (("copy HtoD", 5.0),)):
        points = roofline.roofline(table(*rows), family, PLAIN, "sm100")
        assert (points.kernels, points.step.flop_per_second) == ((), None), rows


# Recorded on an H200, and published


def of_step(values: Mapping[str, float]) -> roofline.Point:
    """A step by what was counted of it as a whole, as if it were one launch."""
    whole = table(("step", 1e3 * values["step_time"], values))
    return roofline.roofline(whole, family, published()["nvidia-h200"], "sm90").step


def test_tf32_does_the_convolutions_arithmetic_on_the_tensor_cores() -> None:
    before, after = (of_step(paper_set()[name]).flop for name in ("baseline", "tf32"))
    assert before.get("tensor tf32", 0) == 0
    assert after["tensor tf32"] == pytest.approx(17.9e12, rel=0.01)
    assert after["fp32"] < 0.02 * before["fp32"]
    assert before["fp32"] == pytest.approx(after["tensor tf32"], rel=0.06)


def test_peaks_are_of_slugs_and_plausible() -> None:
    for slug, peaks in published().items():
        assert slug == architectures.slug(slug)
        assert 5e11 < peaks[DRAM] < 1e13
        assert peaks["fp16"] >= peaks["fp32"] > peaks["fp64"]
        assert set(peaks) <= {*OPCODES, *TENSOR, DRAM}
    assert "nvidia-h200-mig-1g-18gb" not in published()
