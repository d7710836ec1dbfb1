"""A comparison as Markdown."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.report.comparison_report import markdown
from tests.comparisons import ALONE, compared
from tests.examples import measurement, processes
from tests.kernel_steps import table

A = measurement({"cycles": [437e6]}, phases={"forward": {"cycles": [2e6]}})
B = measurement({"cycles": [600e6]}, phases={"forward": {"cycles": [2e6]}})
STEP = (("fprop", 900.0), ("add", 300.0))


def unescaped(text: str) -> str:
    """What a reader of the rendered text sees."""
    return re.sub(r"\\([\\`*_\[\]<>|#&~$])", r"\1", text)


def test_tables_of_metrics_and_kernels() -> None:
    old = replace(A, kernels=table(*STEP))
    new = replace(B, kernels=table(("fprop", 900.0), ("add", 500.0), ("silu", 50.0)))
    text = markdown(compared(([old], [new]), only_a=[ALONE]), kernels=1)
    assert unescaped(text).splitlines() == [
        "# gpuperf compare",
        "",
        "- a: old.json, NVIDIA H200 (sm90), 0123456789ab",
        "- b: new.json, NVIDIA H200 (sm90), 0123456789ab",
        "",
        "## test_training_step[tf32] (1 process each)",
        "",
        "| metric | a | b | change |",
        "| --- | ---: | ---: | ---: |",
        "| cycles | 437.00 M | 600.00 M | +37.30 % |",
        "| cycles (forward) | 2.0000 M | 2.0000 M | 0 % |",
        "",
        "kernels and gaps: 1.2000 ms -> 1.4500 ms (+0.25 ms); launches: 1 added",
        "",
        "| kernel | a | b | change | share | what happened |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
        "| add | 0.30000 ms | 0.50000 ms | +0.2 ms | 80 % | slower +66.67 %, 1 launch |",
        "",
        "- and 3 more: +50 us",
        "",
        "## Only in a",
        "",
        "- suites/meddpm/test_sampling.py::test_sampling_step (3 processes)",
    ]


def test_intervals_have_a_column_where_there_are_any() -> None:
    three = processes("cycles", [[437.8e6], [438e6], [438.2e6]])
    text = markdown(compared((three, three)))
    assert "| metric | a | b | change | 99.5 % interval |" in text
    assert "| cycles | 438.00 M | 438.00 M | 0 % | -0.27 to +0.27 % |" in text


def test_no_kernels_where_none_are_wanted() -> None:
    one = replace(A, kernels=table(*STEP))
    assert "kernel" not in markdown(compared(([one], [one]), ([A], [B])), kernels=0)
    assert "- no kernels to compare: b was measured without them" in markdown(
        compared(([one], [B]))
    )


@given(st.text(st.characters(codec="utf-8")))
def test_nothing_from_outside_changes_the_layout(outside: str) -> None:
    kernel = replace(table(("k", 1.0)), names=(f"k{outside}",))
    named = replace(A, test=f"x.py::{outside}", kernels=kernel)
    other = replace(B, test=f"x.py::{outside}", kernels=table(("add", 2.0)))
    plain = markdown(compared(([replace(A, kernels=named.kernels)], [other])))
    lines = markdown(compared(([named], [other]))).splitlines()
    assert len(lines) == len(plain.splitlines())
    rows = [line for line in lines if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {5, 7}
