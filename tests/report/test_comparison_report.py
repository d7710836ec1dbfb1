"""A comparison as text and as Markdown."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_gpuperf.judge.comparison import Comparison
from pytest_gpuperf.model.measurement import KernelTable, Measurement
from pytest_gpuperf.report.comparison_report import markdown, text_lines
from tests.comparisons import ALONE, compared
from tests.examples import A100, H200, OTHER_H200, measurement, processes
from tests.kernel_steps import counted, table, traced

A = measurement({"cycles": [437e6, 438e6, 439e6], "tensor_utilization": [30.0]})
B = measurement({"cycles": [600e6, 601e6, 602e6], "tensor_utilization": [22.0]})
STEP = (("fprop", 900.0), ("add", 300.0), ("wgrad", 2000.0))
THREE = processes("cycles", [[437.8e6], [438e6], [438.2e6]])
FIVE = processes("cycles", [[441.6e6], [441.8e6], [442e6], [442.2e6], [442.4e6]])


def with_kernels(said: Measurement, kernels: KernelTable) -> Measurement:
    return replace(said, kernels=kernels)


def shown(comparison: Comparison, *, kernels: int = 10, width: int = 80) -> list[str]:
    return [line.text for line in text_lines(comparison, kernels=kernels, width=width)]


def text(a: Measurement, b: Measurement, *, kernels: int = 10, width: int = 80) -> list[str]:
    return shown(compared(([a], [b])), kernels=kernels, width=width)


def test_metric_by_metric() -> None:
    assert text(A, B) == [
        "a: old.json, NVIDIA H200 (sm90), 0123456789ab",
        "b: new.json, NVIDIA H200 (sm90), 0123456789ab",
        "no kernels to compare: a and b were measured without them",
        "",
        "test_training_step[tf32] (1 process each)",
        "  metric                     a         b    change",
        "  cycles              438.00 M  601.00 M  +37.21 %",
        "  tensor_utilization   30.00 %   22.00 %  -8.00 pt",
    ]


def test_processes_of_both_sides_and_how_sure_the_change_is() -> None:
    said = shown(compared((THREE, FIVE)), kernels=0)
    assert said[3:] == [
        "test_training_step[tf32] (3 and 5 processes)",
        "  metric         a         b   change   99.5 % interval",
        "  cycles  438.00 M  442.00 M  +0.91 %  +0.67 to +1.15 %",
    ]


def test_an_interval_is_left_out_where_it_does_not_fit_or_there_is_none() -> None:
    comparison = compared((THREE, FIVE))
    assert "99.5" not in " ".join(shown(compared((THREE, FIVE[:2]))))
    assert "  cycles  438.00 M  442.00 M  +0.91 %" in shown(comparison, width=45)
    assert shown(comparison, kernels=0, width=30)[-3:] == [
        "    a 438.00 M, b 442.00 M,",
        "    change +0.91 %, 99.5 %",
        "    interval +0.67 to +1.15 %",
    ]


def test_an_interval_has_one_unit_however_small_it_is() -> None:
    for value, says in (
        (0.99999e9, "-0.001 %  -0.01 to +0.004 %"),
        (1.00003e9, "+0.003 %  -0.002 to +0.01 %"),
        (2e9, "      x2         x2 to x2"),
    ):
        old, new = (processes("instructions", [[one]] * 3) for one in (1e9, value))
        assert shown(compared((old, new)), kernels=0)[-1].endswith(says)


def test_phases_stand_under_their_names() -> None:
    one = measurement({"cycles": [5e6]}, phases={"forward": {"cycles": [2e6]}})
    other = measurement({"cycles": [0.0]}, phases={"backward": {"cycles": [3e6]}})
    assert text(one, other, kernels=0)[4:] == [
        "  metric           a         b     change",
        "  cycles    5.0000 M         0  -100.00 %",
        "  forward",
        "    cycles  2.0000 M         -          -",
        "  backward",
        "    cycles         -  3.0000 M          -",
    ]
    assert any(line.endswith("from 0") for line in text(other, one))
    assert text(one, other, kernels=0, width=35)[-6:] == [
        "  forward:",
        "    cycles:",
        "      a 2.0000 M",
        "  backward:",
        "    cycles:",
        "      b 3.0000 M",
    ]


def test_the_title_has_what_the_sides_differ_by() -> None:
    other, sampling = measurement(configuration="other"), measurement(name="sampling")
    bf16 = measurement(test="x.py::test_a[bf16]", configuration="bf16")
    for a, b, title in (
        (measurement(), bf16, "test_training_step[tf32] -> test_a[bf16]"),
        (other, A, "test_training_step[tf32], configuration other -> test_training_step[tf32]"),
        (sampling, sampling, "test_training_step[tf32], sampling"),
    ):
        assert f"{title} (1 process each)" in text(a, b, width=200)


def test_what_all_pairs_share_is_said_once_and_the_rest_with_its_pair() -> None:
    other = measurement(software={"torch": "2.13.0"})
    smaller = replace(other, workload={"size": 64})
    said = shown(compared(([A], [other]), ([A], [smaller])))
    assert said[2:4] == [
        "software differs: torch 2.12.0 -> 2.13.0",
        "no kernels to compare: a and b were measured without them",
    ]
    assert said.count(said[2]) == 1
    assert said.index("workload differs: size 128 -> 64") > said.index("")


def test_devices_that_differ_are_said() -> None:
    here, there = (replace(gpu, arch="cpu", name="portable") for gpu in (H200, OTHER_H200))
    for a, b, note in (
        (H200, OTHER_H200, "measured on other GPUs of one name: cycles differ by some per cent"),
        (A100, H200, "a is of NVIDIA A100-SXM4-40GB (sm80), b of NVIDIA H200 (sm90): what changes"),
        (here, there, "measured on two machines: times are their own, counts are the same every"),
    ):
        sides = (replace(A, fingerprint=replace(A.fingerprint, device=gpu)) for gpu in (a, b))
        assert note in " ".join(text(*sides, width=200))


def test_measurements_without_a_partner_are_listed() -> None:
    comparison = compared(([A], [B]), only_a=[ALONE], only_b=[replace(ALONE, name="one")])
    assert shown(comparison)[-5:] == [
        "only in a:",
        "  suites/meddpm/test_sampling.py::test_sampling_step (3 processes)",
        "",
        "only in b:",
        "  suites/meddpm/test_sampling.py::test_sampling_step, one (3 processes)",
    ]


# Kernels


def test_kernel_by_kernel() -> None:
    new = table(("fprop b", 1300.0), *STEP[1:], ("silu", 50.0), idle=10)
    said = text(with_kernels(A, table(*STEP, idle=10)), with_kernels(B, new), width=120)
    assert said[7:] == [
        "kernels and gaps: 3.2100 ms -> 3.6600 ms (+0.45 ms); launches: 1 added, 1 replaced",
        "  kernel            a            b   change  share",
        "  fprop b  0.90000 ms    1.3000 ms  +0.4 ms   89 %  "
        "replaced fprop (another algorithm), 1 launch",
        "  silu              -  0.050000 ms   +50 us   11 %  added (new), 1 launch",
        "  and 3 more: 0 us",
    ]


def test_the_times_of_a_gap_are_told_once() -> None:
    a, b = (with_kernels(A, table(*STEP, idle=idle)) for idle in (10, 500))
    assert "  gaps between kernels  0.010000 ms  0.50000 ms  +0.49 ms  100 %  (the GPU waited)" in (
        text(a, b, width=120)
    )


def test_only_so_many_kernels_and_the_rest_as_a_sum() -> None:
    new = table(("fprop b", 1300.0), *STEP[1:], ("silu", 50.0))
    one = with_kernels(A, table(*STEP))
    assert text(one, with_kernels(B, new), kernels=1)[-1] == "  and 4 more: +50 us"
    assert "kernels" not in " ".join(text(one, one, kernels=0) + text(A, B, kernels=0))
    assert "no kernels to compare: b was measured without them" in text(one, B)


def test_kernels_of_several_processes() -> None:
    old = [with_kernels(one, table(*STEP)) for one in THREE]
    slower = table(("fprop", 990.0), *STEP[1:])
    new = [*(with_kernels(one, slower) for one in FIVE[:4]), FIVE[4]]
    said = shown(compared((old, new)), width=120)
    assert (
        "kernels and gaps: 3.2000 ms -> 3.2900 ms (+90 us, means of 3 and 4 executions); "
        "the same launches" in said
    )
    assert said[-1] == "kernels of b are of 4 of 5 processes"


def test_equal_measurements() -> None:
    same = with_kernels(A, table(*STEP))
    said = text(same, same)
    assert "  cycles              438.00 M  438.00 M       0 %" in said
    assert "kernels and gaps: 3.2000 ms -> 3.2000 ms (0 us); the same launches" in said
    assert said[-1] == "  and 4 more: 0 us"


def test_counters_that_did_not_fit_are_mentioned() -> None:
    bad = replace(table(*STEP), mismatch="the step launches its kernels in another order")
    assert text(with_kernels(A, bad), with_kernels(B, table(*STEP)))[-1] == (
        "a has no counters by kernel: the step launches its kernels in another order"
    )


def test_what_most_kernels_did_is_said() -> None:
    old, new = counted("tf32-core"), counted("tf32-core-1")
    slower = replace(
        new, launches=tuple(replace(one, duration=1.03 * one.duration) for one in new.launches)
    )
    said = text(with_kernels(A, old), with_kernels(B, slower))
    assert any(line.startswith("most kernels moved by about +") for line in said)


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


def unescaped(text: str) -> str:
    """What a reader of the rendered text sees."""
    return re.sub(r"\\([\\`*_\[\]<>|#&~$])", r"\1", text)


PHASED = measurement({"cycles": [437e6]}, phases={"forward": {"cycles": [2e6]}})
SLOWER = measurement({"cycles": [600e6]}, phases={"forward": {"cycles": [2e6]}})
TWO = (("fprop", 900.0), ("add", 300.0))


def test_tables_of_metrics_and_kernels() -> None:
    old = replace(PHASED, kernels=table(*TWO))
    new = replace(SLOWER, kernels=table(("fprop", 900.0), ("add", 500.0), ("silu", 50.0)))
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


def test_a_table_has_what_there_is_of_intervals_and_kernels() -> None:
    lines = markdown(compared((THREE, THREE))).splitlines()
    assert "| metric | a | b | change | 99.5 % interval |" in lines
    assert "| cycles | 438.00 M | 438.00 M | 0 % | -0.27 to +0.27 % |" in lines
    one = with_kernels(A, table(*STEP))
    assert "kernel" not in markdown(compared(([one], [one]), ([A], [B])), kernels=0)
    lines = markdown(compared(([one], [B]))).splitlines()
    assert "- no kernels to compare: b was measured without them" in lines


@settings(max_examples=40)
@given(st.text(st.characters(codec="utf-8")))
def test_nothing_from_outside_changes_the_layout(outside: str) -> None:
    kernel = replace(table(("k", 1.0)), names=(f"k{outside}",))
    named = replace(PHASED, test=f"x.py::{outside}", kernels=kernel)
    other = replace(SLOWER, test=f"x.py::{outside}", kernels=table(("add", 2.0)))
    plain = markdown(compared(([replace(PHASED, kernels=named.kernels)], [other])))
    lines = markdown(compared(([named], [other]))).splitlines()
    assert len(lines) == len(plain.splitlines())
    rows = [line for line in lines if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {5, 7}
