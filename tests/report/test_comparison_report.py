"""A comparison as text."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_gpuperf.judge.comparison import Comparison
from pytest_gpuperf.model.measurement import KernelTable, Measurement
from pytest_gpuperf.report.comparison_report import text_lines
from tests.comparisons import ALONE, compared
from tests.examples import processes
from tests.kernel_steps import traced
from tests.report.golden import FIVE, THREE, A, B


def with_kernels(said: Measurement, kernels: KernelTable) -> Measurement:
    return replace(said, kernels=kernels)


def shown(comparison: Comparison, *, kernels: int = 10, width: int = 80) -> list[str]:
    return [line.text for line in text_lines(comparison, kernels=kernels, width=width)]


def test_an_interval_has_one_unit_however_small_it_is() -> None:
    for value, says in (
        (0.99999e9, "-0.001 %  -0.01 to +0.004 %"),
        (1.00003e9, "+0.003 %  -0.002 to +0.01 %"),
        (2e9, "      x2         x2 to x2"),
    ):
        old, new = (processes("instructions", [[one]] * 3) for one in (1e9, value))
        assert shown(compared((old, new)), kernels=0)[-1].endswith(says)


# Width


REAL = ("baseline", "tf32", "tf32_channels_last")


@settings(max_examples=8)
@given(st.sampled_from(REAL), st.sampled_from(REAL), st.integers(24, 140))
@example("baseline", "tf32", 39)  # a line begins with "::cnn::"
def test_no_line_is_too_wide(one: str, other: str, width: int) -> None:
    old = [with_kernels(measured, traced(one)) for measured in THREE]
    new = [with_kernels(measured, traced(other)) for measured in FIVE]
    said = shown(compared((old, new), ([A], [B]), only_b=[ALONE]), width=width)
    assert max(map(len, said)) <= width
