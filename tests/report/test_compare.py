"""Two measurements side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuperf.model import KernelTable, Measurement
from pytest_gpuperf.report.compare import lines
from tests.examples import OTHER_H200, measurement
from tests.kernel_steps import NAMING, table, traced

A = measurement({"cycles": [437e6, 438e6, 439e6], "tensor_utilization": [30.0]})
B = measurement(
    {"cycles": [600e6, 601e6, 602e6], "tensor_utilization": [22.0]}, configuration="other"
)
STEP = (("fprop", 900.0), ("add", 300.0), ("wgrad", 2000.0))


def with_kernels(found: Measurement, kernels: KernelTable) -> Measurement:
    return replace(found, kernels=kernels)


def text(a: Measurement, b: Measurement, *, kernels: int = 10, width: int = 80) -> list[str]:
    return [line.text for line in lines(a, b, NAMING, kernels=kernels, width=width)]


def test_metric_by_metric() -> None:
    assert text(A, B) == [
        "a: test_training_step[tf32], tf32, NVIDIA H200 (sm90), 0123456789ab",
        "b: test_training_step[tf32], other, NVIDIA H200 (sm90), 0123456789ab",
        "  metric                     a         b    change",
        "  cycles              438.00 M  601.00 M  +37.21 %",
        "  tensor_utilization   30.00 %   22.00 %  -8.00 pt",
        "no kernels to compare: a and b were measured without them",
    ]


def test_kernel_by_kernel() -> None:
    new = table(("fprop b", 1300.0), *STEP[1:], ("silu", 50.0), idle=10)
    found = text(with_kernels(A, table(*STEP, idle=10)), with_kernels(B, new), width=120)
    assert found[5:] == [
        "kernels and gaps: 3.2100 ms -> 3.6600 ms (+0.45 ms); launches: 1 added, 1 replaced",
        "  kernel            a            b   change  share",
        "  fprop b  0.90000 ms    1.3000 ms  +0.4 ms   89 %  "
        "replaced fprop (another algorithm), 1 launch",
        "  silu              -  0.050000 ms   +50 us   11 %  added (new), 1 launch",
        "  and 3 more: 0 us",
    ]


def test_only_so_many_kernels_and_the_rest_as_a_sum() -> None:
    new = table(("fprop b", 1300.0), *STEP[1:], ("silu", 50.0))
    found = text(with_kernels(A, table(*STEP)), with_kernels(B, new), kernels=1)
    assert found[-1] == "  and 4 more: +50 us"


def test_one_without_kernels() -> None:
    assert text(with_kernels(A, table(*STEP)), B)[-1] == (
        "no kernels to compare: b was measured without them"
    )


def test_equal_measurements() -> None:
    same = with_kernels(A, table(*STEP))
    found = text(same, same)
    assert "  cycles              438.00 M  438.00 M       0 %" in found
    assert "kernels and gaps: 3.2000 ms -> 3.2000 ms (0 us); the same launches" in found
    assert found[-1] == "  and 4 more: 0 us"


def test_metrics_of_one_side_and_phases() -> None:
    phases = measurement({"cycles": [5e6]}, phases={"forward": {"cycles": [2e6]}})
    other = measurement({"cycles": [0.0], "mystery": [3.0]})
    found = text(phases, other)
    assert "  cycles            5.0000 M       0  -100.00 %" in found
    assert any(line.startswith("  cycles (forward)") and line.endswith("-") for line in found)
    assert any(line.startswith("  mystery") for line in found)
    assert any(line.endswith("from 0") for line in text(other, phases))


def test_what_differs_beside_the_numbers_is_said() -> None:
    other = measurement(
        workload={"size": 64}, software={"torch": "2.13.0", "cuda": "13.1"}, device=OTHER_H200
    )
    found = " ".join(text(A, other))
    assert "workload differs: size 128 -> 64" in found
    assert "software differs: torch 2.12.0 -> 2.13.0; cuda unset -> 13.1" in found
    assert "measured on two GPUs" in found
    assert "differ" not in " ".join(text(A, B))


def test_counters_that_did_not_fit_are_mentioned() -> None:
    bad = replace(table(*STEP), mismatch="the step launches its kernels in another order")
    assert text(with_kernels(A, bad), with_kernels(B, table(*STEP)))[-1] == (
        "a has no counters by kernel: the step launches its kernels in another order"
    )


REAL = ("baseline", "tf32", "tf32_channels_last")


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(REAL), st.sampled_from(REAL), st.integers(24, 140))
def test_no_line_is_too_wide(one: str, other: str, width: int) -> None:
    found = text(with_kernels(A, traced(one)), with_kernels(B, traced(other)), width=width)
    assert max(map(len, found)) <= width


@pytest.mark.parametrize("kernels", [0, 3])
def test_a_real_step_against_another(kernels: int) -> None:
    found = text(
        with_kernels(A, traced("tf32")),
        with_kernels(B, traced("tf32_channels_last")),
        kernels=kernels,
        width=200,
    )
    assert sum("launches" in line and line.startswith("  ") for line in found) == kernels
