"""A comparison as text and as Markdown."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_gpuperf.judge.comparison import Comparison
from pytest_gpuperf.model.measurement import KernelTable, Measurement
from pytest_gpuperf.report.comparison_report import markdown, text_lines
from pytest_gpuperf.report.text.table import WIDTH
from tests.comparisons import ALONE, compared
from tests.examples import measurement, processes
from tests.kernel_steps import table, traced
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


# Markdown


@settings(max_examples=40)
@given(st.text(st.characters(codec="utf-8")))
def test_nothing_from_outside_ends_the_block_of_code(outside: str) -> None:
    kernel = replace(table(("k", 1.0)), names=(f"k{outside}",))
    named = replace(measurement(test=f"x.py::{outside}"), kernels=kernel)
    comparison = compared(([named], [replace(A, kernels=table(("add", 2.0)))]))
    heading, empty, first, *inside, last, end = markdown(comparison).split("\n")
    assert (heading, empty, first, last, end) == ("# gpuperf compare", "", "```", "```", "")
    assert inside == [line.replace("`", "'") for line in shown(comparison, width=WIDTH)]
