"""Which kernels a change comes from, as people read it."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuperf.judge.attribution import attribute
from pytest_gpuperf.model.measurement import KernelTable
from pytest_gpuperf.report.text.kernel_lines import MOST, duration, lines, share
from tests.kernel_steps import NAMING, counted, operators, slowed, table, traced

STEP = (("fprop", 900.0), ("add", 300.0), ("wgrad", 2000.0), ("add", 310.0), ("adam", 500.0))


def text(measured: KernelTable, baseline: KernelTable, width: int = 80) -> list[str]:
    return lines(attribute(measured, baseline, NAMING), width)


def test_a_replaced_kernel_and_one_in_another_shape() -> None:
    for new, says in (
        ("fprop b@8", "fprop b  replaced fprop (another algorithm), 1 launch"),
        ("fprop@8", "fprop  launched in another shape, 1 launch"),
    ):
        assert text(table((new, 1300.0), *STEP[1:]), table(*STEP)) == [
            "kernels: +0.4 ms (+9.98 %) in a step, 100 % of it explained:",
            f"  +0.4 ms  100 %  {says}",
        ]


def test_added_slower_and_a_gap() -> None:
    new = table(*STEP[:4], ("adam", 800.0), ("silu", 100.0), idle=600)
    assert text(new, table(*STEP, idle=100)) == [
        "kernels: +0.9 ms (+21.90 %) in a step, 100 % of it explained:",
        "  +0.5 ms  56 %  gaps between kernels  "
        "0.10000 ms -> 0.60000 ms (the GPU waited)",
        "  +0.3 ms  33 %  adam                  slower +60.00 %, 1 launch",
        "  +0.1 ms  11 %  silu                  added (new), 1 launch",
    ]  # fmt: skip


def test_operators_are_told_by_the_lines_of_code_that_they_come_from() -> None:
    first = [("mm", f"model.py:3 Net.attend layers.{n}") for n in (0, 1)]
    again = [("mm", f"model.py:4 Net.attend layers.{n}") for n in (0, 0, 1, 1)]
    rest = [("relu", "model.py:9 Net.forward layers.0"), ("sum", "train.py:7 step")]
    before = operators(*first, *rest)
    # A line was put in above: what is the same is where it is now.
    assert text(operators(*again, *rest[:1]), before) == [
        "model.py:4 Net.attend calls the same operators twice as often (mm, 2 modules)",
        "  model.py:4 Net.attend (2 modules): mm 2 -> 4",
        "  train.py:7 step: sum 1 -> 0",
    ]
    assert text(operators(*again[:2], *again[3:], *rest), before) == [
        "model.py:4 Net.attend calls the same operators twice as often (mm, layers.0)",
    ]
    assert text(before, before) == []


def test_of_many_lines_and_operators_the_most_changed_are_told() -> None:
    many = [(f"op{n}", "a.py:1 f") for n in range(7)] + [("mm", f"b.py:{n} g") for n in range(9)]
    before = operators(("mm", "b.py:99 f"))
    assert lines(attribute(operators(*many, ("mm", "b.py:99 f")), before, NAMING), 80, most=5) == [
        "b.py:0 g calls 9 more operators (mm); none before",
        "  a.py:1 f: op0 0 -> 1, op1 0 -> 1, op2 0 -> 1, op3 0 -> 1, 3 others",
        "  b.py:0 g: mm 0 -> 1",
        "  b.py:1 g: mm 0 -> 1",
        "  and 7 more lines of code",
    ]


def test_what_does_not_fit_in_a_line_is_told_in_two() -> None:
    new = table(("fprop b", 1300.0), *STEP[1:])
    assert text(new, table(*STEP), 44) == [
        "kernels: +0.4 ms (+9.98 %) in a step, 100 %",
        "of it explained:",
        "  +0.4 ms  100 %  fprop b",
        "      replaced fprop (another algorithm), 1",
        "      launch",
    ]


def test_many_small_ones_of_a_family_are_summed_up() -> None:
    small = [(f"add {number}", 10.0) for number in range(40)]
    new = table(*STEP, *small, ("silu", 900.0))
    assert text(new, table(*STEP))[1:] == [
        "  +0.9 ms  69 %  silu         added (new), 1 launch",
        "  +0.4 ms  31 %  elementwise  added: 40 kernels, 40 launches",
    ]


def test_shapes_of_one_kernel_are_one_line() -> None:
    new = table(*STEP, *((f"add@{blocks}", 100.0) for blocks in range(2, 12)))
    assert text(new, table(*STEP))[1:] == [
        "  +1 ms  100 %  add  added (called more often), 10 launches"
    ]


def test_nothing_stands_out() -> None:
    assert text(table(*STEP), table(*STEP)) == [
        "kernels: 0 us (0 %) in a step; no kernel stands out from the noise"
    ]
    assert len(text(counted("tf32-core-1"), counted("tf32-core"))) == 1


def test_where_changes_cancel_no_share_is_claimed() -> None:
    said = text(table(("add", 1300.0), ("wgrad", 700.0)), table(("add", 1000.0), ("wgrad", 1000.0)))
    assert said == [
        "kernels: 0 us (0 %) in a step; largest changes:",
        "  +0.3 ms  -  add    slower +30.00 %, 1 launch",
        "  -0.3 ms  -  wgrad  faster -30.00 %, 1 launch",
    ]


def test_a_change_of_all_kernels_is_told_apart() -> None:
    one = traced("tf32")
    assert text(slowed(one, range(len(one.launches)), 1.015), one) == [
        "kernels: +3.45 ms (+1.48 %) in a step; no kernel stands out from the noise",
        "  most kernels changed by about +1.50 %: check clocks, power and GPU",
    ]


def test_other_launches_in_some_executions_are_mentioned() -> None:
    odd = table(*STEP, ("silu", 1.0))
    said = lines(attribute([table(*STEP), table(*STEP), odd], table(*STEP), NAMING), 80)
    assert said[-1] == "  1 of 4 executions launched different kernels"


def test_instructions_corroborate() -> None:
    new = table(("add", 400.0, 6e6), ("wgrad", 900.0, 1e6))
    old = table(("add", 300.0, 5e6), ("wgrad", 900.0, 1e6))
    assert text(new, old)[1].endswith("slower +33.33 % (other code), 1 launch")


REAL = ("baseline", "tf32", "tf32_channels_last", "adam-foreach-off", "bf16")


@settings(max_examples=12)
@given(st.sampled_from(REAL), st.sampled_from(REAL), st.integers(20, 140))
def test_at_most_twelve_lines_and_none_too_wide(measured: str, baseline: str, width: int) -> None:
    said = text(traced(measured), traced(baseline), width)
    assert 1 <= len(said) <= MOST
    assert max(map(len, said)) <= width


def test_where_no_kernel_has_room_none_is_called_smaller() -> None:
    said = attribute(traced("tf32"), traced("baseline"), NAMING)
    assert re.fullmatch(r"  in \d+ kernels and gaps: [+-].*", lines(said, 80, most=2)[1])


def test_times_and_shares() -> None:
    times = [0, 12_400_000, -310, -99_000, 1_020_000_000, 0.3]
    assert [*map(duration, times)] == ["0 us", "+12.4 ms", "-0.31 us", "-99 us", "+1020 ms", "0 us"]
    assert [*map(share, [0.614, -0.001, None])] == ["61 %", "0 %", "-"]
