"""Which kernels are blamed, and for what."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.judge.alignment import sequence_of
from pytest_gpuperf.judge.attribution import NEAR_ZERO, attribute
from pytest_gpuperf.model.measurement import KernelTable
from pytest_gpuperf.model.result import (
    Attribution,
    ChangeKind,
    ChangeReason,
    KernelChange,
    Outcome,
    Verdict,
)
from tests.examples import verdict
from tests.judge.losses import step_time
from tests.kernel_steps import (
    NAMING,
    Row,
    Sited,
    counted,
    operators,
    sited,
    table,
    traced,
)
from tests.strategies import few

STEP = (("fprop", 900.0), ("add", 300.0), ("wgrad", 2000.0), ("add", 310.0), ("adam", 500.0))

names = st.sampled_from(["fprop a", "fprop b", "fprop a@8", "wgrad", "add", "add@4", "other"])
rows = st.lists(st.tuples(names, st.floats(1, 1e4)), max_size=12)
tables = st.builds(lambda launches, idle: table(*launches, idle=idle), rows, st.floats(0, 1e4))


def of(measured: KernelTable, baseline: KernelTable) -> Attribution:
    return attribute(measured, baseline, NAMING)


def moved(attribution: Attribution) -> list[KernelChange]:
    """What is blamed."""
    return [entry for entry in attribution.entries if entry.significant]


def only(change: Attribution) -> KernelChange:
    (entry,) = moved(change)
    return entry


# By hand


def test_the_same_step_measured_again_blames_nothing() -> None:
    """By hand, and two of an H200."""
    recorded = ((made, counted("tf32-core")) for made in (counted("tf32-core-1"), traced("tf32")))
    for measured, baseline in ((table(*STEP, idle=50),) * 2, *recorded):
        attribution = of(measured, baseline)
        assert moved(attribution) == []
        assert not attribution.launched.changed


def test_launches_of_one_kernel_count_together() -> None:
    attribution = of(table(*STEP, idle=50), table(*STEP, idle=50))
    assert (attribution.change, attribution.explained) == (0, None)
    entry = next(e for e in attribution.entries if e.short == "add")
    assert (entry.launches_before, entry.launches_after, entry.before) == (2, 2, 610_000)


def test_one_slower_kernel() -> None:
    slower = [*STEP]
    slower[2] = ("wgrad", 2400.0)
    change = of(table(*slower), table(*STEP))
    entry = only(change)
    assert change.entries[0] is entry
    assert (entry.kind, entry.short, entry.family) == (
        ChangeKind.SLOWER,
        "wgrad",
        "convolution-weight-gradient",
    )
    assert entry.change == 400_000
    assert entry.share == pytest.approx(1)
    assert change.explained == pytest.approx(1)
    assert not change.launched.changed


def test_instructions_tell_other_code_from_memory() -> None:
    for instructions, cause in (
        (5e6, ChangeReason.MEMORY),
        (5.01e6, ChangeReason.MEMORY),
        (5.5e6, ChangeReason.CODE),
    ):
        before: Sequence[Row] = (("fprop", 900.0, 3e6), ("add", 300.0, 5e6))
        after: Sequence[Row] = (("fprop", 900.0, 3e6), ("add", 400.0, instructions))
        entry = only(of(table(*after), table(*before)))
        assert entry.cause is cause, instructions
    slow, fast = ("add", 400.0), ("add", 300.0)
    for now, then in ((slow, fast), ((*slow, 5e6), fast), (slow, (*fast, 5e6))):
        assert only(of(table(now), table(then))).cause is ChangeReason.UNKNOWN


def test_another_kernel_in_a_places_stead_replaced_it() -> None:
    for other, cause in (("fprop b", ChangeReason.ALGORITHM), ("fprop@64", ChangeReason.SHAPE)):
        entry = only(change := of(table((other, 700.0), *STEP[1:]), table(*STEP)))
        assert (entry.kind, entry.cause, entry.change) == (ChangeKind.REPLACED, cause, -200_000)
        assert (entry.formerly, entry.short) == ("fprop", other.split("@")[0])
        assert change.launched.changed, (other, cause)
        assert change.launched.replaced == 1, (other, cause)


def test_launches_are_added_or_removed_and_their_kernel_is_new_or_gone() -> None:
    more, silu = table(*STEP, ("add", 305.0)), table(*STEP, ("silu", 305.0))
    for measured, baseline, kind, cause in (
        (more, table(*STEP), ChangeKind.ADDED, ChangeReason.MORE),
        (silu, table(*STEP), ChangeKind.ADDED, ChangeReason.NEW),
        (table(("add", 5.0)), table(), ChangeKind.ADDED, ChangeReason.NEW),
        (table(*STEP), more, ChangeKind.REMOVED, ChangeReason.LESS),
        (table(*STEP), silu, ChangeKind.REMOVED, ChangeReason.GONE),
    ):
        change = of(measured, baseline)
        entry = only(change)
        assert (entry.kind, entry.cause) == (kind, cause)
        added = kind is ChangeKind.ADDED
        assert (change.launched.added, change.launched.removed) == (added, not added)
        assert (entry.launches_before, entry.launches_after) == (not added, added)
        assert entry.change == entry.after - entry.before != 0


def test_a_table_with_other_launches_is_set_against_what_most_have() -> None:
    odd = table(STEP[0], ("silu", 1000.0), *STEP[1:4])
    attribution = attribute([odd, table(*STEP), table(*STEP)], [table(*STEP)], NAMING)
    assert attribution.odd_tables == 1
    assert attribution.change == 0
    assert moved(attribution) == []
    both = attribute([table(*STEP), odd, table(*STEP)], [odd, *[table(*STEP)] * 3, odd], NAMING)
    assert both.odd_tables == 3


def test_times_and_counts_are_means_over_the_tables() -> None:
    tables = [table(("add", 100.0, 5.0)), table(("add", 300.0, 7.0))]
    (launch,) = sequence_of(tables, str, str, str).launches
    assert (launch.duration, launch.counts["instructions"]) == (200_000, 6.0)


# What is said


def test_of_operators_the_line_with_most_other_ones_comes_first() -> None:
    """They take no time. Calls that are as many as before are not other ones."""
    many, none_yet = "a.py:1 f", "b.py:2 g"
    before = operators(*[("mm", many)] * 5, ("add", none_yet))
    after = operators(*[("mm", many)] * 6, ("add", none_yet), *[("mul", none_yet)] * 3)
    assert [line.line for line in of(after, before).lines] == ["b.py:2", "a.py:1"]


def test_calls_of_a_line_are_added_up_and_are_of_the_modules_that_make_them() -> None:
    """Of those that made them, where nobody does any more; what changed most comes first."""
    launched: Sited = ("add", 300.0, "a.py:1 f")
    wait, free, alloc = "cudaStreamSynchronize", "cudaFree", "cudaMalloc"
    after = [(wait, "a.py:5 f one", 3), (wait, "a.py:5 f two", 4), (alloc, "a.py:9 f one", 102)]
    before = [
        (wait, "a.py:5 f one", 1),
        (free, "a.py:7 f three", 3),
        (free, "a.py:7 f four", 2),
        (alloc, "a.py:9 f one", 100),
    ]
    change = of(sited(launched, calls=after), sited(launched, calls=before))
    assert [(c.name, c.line, c.modules, c.before, c.after) for c in change.calls] == [
        (wait, "a.py:5", ("one", "two"), 1, 7),
        (free, "a.py:7", ("three", "four"), 5, 0),
        (alloc, "a.py:9", ("one",), 100, 102),
    ]


# How sure it is


def around(mean: float, difference: float) -> tuple[float, float]:
    """Two times with this mean, the first longer by this difference of their logarithms."""
    factor = math.exp(difference)
    return 2 * mean * factor / (1 + factor), 2 * mean / (1 + factor)


T_OF_20 = 2.0860
"""Student's t with 20 degrees of freedom is further from 0 than this 5 % of the time."""


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize(("part", "significant"), [(0.99, False), (1.01, True)])
@pytest.mark.parametrize(("us", "more"), [(100.0, 0.0), (5.0, 0.05)], ids=["kernel", "gap"])
def test_a_kernel_or_the_gap_is_blamed_beyond_the_noise_of_its_time(
    direction: int, part: float, us: float, more: float, *, significant: bool
) -> None:
    """Of 100 us: 0.8 %, and 6 ns of variance over what it takes on average; of a gap 5 % too."""
    spread = math.hypot(more, 0.008, math.sqrt(6 / (1000 * us)))
    now, then = around(us, direction * part * T_OF_20 * math.sqrt(2) * spread)
    sides = (table(("add", 100.0 if more else one), idle=one if more else 0) for one in (now, then))
    entry = of(*sides).entries[0]
    assert (entry.kind is ChangeKind.GAP) is bool(more)
    assert entry.significant is significant
    waited = ChangeReason.WAITED if direction > 0 else ChangeReason.WAITED_LESS
    assert entry.cause is (waited if more and significant else ChangeReason.UNKNOWN)


@pytest.mark.parametrize(("us", "asked"), [(9.99, False), (10.01, True)])
def test_kernels_that_take_less_than_a_two_thousandth_of_the_step_are_not_asked(
    us: float, *, asked: bool
) -> None:
    """Of the mean of both steps, of 10 and 30 ms; one that takes four times as long."""
    measured = table(("wgrad", 30_000.0 - 1.6 * us), ("add", 1.6 * us))
    baseline = table(("wgrad", 10_000.0 - 0.4 * us), ("add", 0.4 * us))
    entry = next(e for e in of(measured, baseline).entries if e.short == "add")
    assert entry.significant is asked


# What most kernels share


def shares(*kernels: tuple[float, float]) -> float | None:
    """The shift of kernels of so many microseconds before, longer by so many percent."""
    each = [(f"add {index}", us, percent) for index, (us, percent) in enumerate(kernels)]
    return of(
        table(*((name, us * (1 + percent / 100)) for name, us, percent in each)),
        table(*((name, us) for name, us, _ in each)),
    ).shift


def test_the_shift_is_the_median_by_time() -> None:
    """Half of 103 us is reached with the kernel of 1.4 %, the seventh of twelve is of 1.3 %."""
    us = (1, 1, 1, 12, 12, 12, 10, 10, 10, 12, 10, 12)
    percent = (0.9, 0.9, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8)
    assert shares(*zip(us, percent, strict=True)) == pytest.approx(0.014)


@pytest.mark.parametrize(
    ("percent", "shift"),
    [
        ((1.1, 1.1, 2, 2, 3.0, 3.0, 6, 6), 0.02),
        ((1.0, 1.0, 2, 2, 3.1, 3.1, 6, 6), None),
        ((-1.0, -1.0, -2, -2, -3.1, -3.1, -6, -6), None),
        # Of fewer than eight there is none.
        ((1.5,) * 8, 0.015),
        ((1.5,) * 7, None),
    ],
)
def test_kernels_share_a_shift_that_is_no_less_than_what_lies_between_their_quartiles(
    percent: tuple[float, ...], shift: float | None
) -> None:
    found = shares(*((100.0, one) for one in percent))
    assert found == (shift if shift is None else pytest.approx(shift))


def test_a_kernel_that_dominates_does_not_speak_for_all() -> None:
    others = [(f"add {number}", 300.0) for number in range(10)]
    change = of(table(("wgrad", 50_000.0), *others), table(("wgrad", 40_000.0), *others))
    assert only(change).short == "wgrad"
    assert change.shift == 0


# The time of the step, which was judged


MILLISECONDS = verdict("step_time", unit="ms", baseline=20.0, measured=21.0, change=0.05)


@pytest.mark.parametrize(
    ("judged", "low", "high"),
    [
        (replace(MILLISECONDS, low=0.04, high=0.06), 8e5, 1.2e6),
        (replace(MILLISECONDS, low=0.0, high=0.06), 0.0, 1.2e6),
        (replace(MILLISECONDS, measured=19.0, change=-0.05, low=-0.06, high=0.0), -1.2e6, 0.0),
        # Without an interval, or with half of one, all that is known is the change.
        (MILLISECONDS, 1e6, 1e6),
        (replace(MILLISECONDS, low=0.04), 1e6, 1e6),
        (replace(MILLISECONDS, high=0.06), 1e6, 1e6),
        # All of it may be the machine's.
        (replace(MILLISECONDS, outcome=Outcome.MACHINE, low=0.04, high=0.06), 0.0, 1.2e6),
        (replace(MILLISECONDS, outcome=Outcome.MACHINE, low=-0.01, high=0.06), -2e5, 1.2e6),
    ],
)
def test_the_change_of_the_step_is_what_was_judged_in_nanoseconds(
    judged: Verdict, low: float, high: float
) -> None:
    assert judged.measured is not None
    step = attribute(table(*STEP), table(*STEP), NAMING, [judged]).step
    assert step is not None
    assert (step.metric, step.before, step.relative) == ("step_time", 2e7, judged.change)
    assert (step.after, step.change) == (1e6 * judged.measured, 1e6 * (judged.measured - 20))
    assert (step.low, step.high) == pytest.approx((low, high))


@pytest.mark.parametrize(
    "unknown",
    [[], [replace(MILLISECONDS, baseline=None)], [replace(MILLISECONDS, measured=None)]],
    ids=["absent", "without a baseline", "not measured"],
)
def test_without_the_time_of_a_step_the_wall_time_is_what_was_judged(
    unknown: list[Verdict],
) -> None:
    wall = replace(MILLISECONDS, metric="wall_time")
    for judged, metric in (([*unknown, wall], "wall_time"), (unknown, None)):
        step = attribute(table(*STEP), table(*STEP), NAMING, judged).step
        assert (step.metric if step else None) == metric


# The trace against the time of the step, which nobody traced


@pytest.mark.parametrize("idle", [0.0, 6.0, 10.0])
@pytest.mark.parametrize("direction", [1, -1], ids=["slower", "faster"])
@pytest.mark.parametrize(("part", "reliable"), [(0.97, True), (1.03, False)])
def test_a_step_contradicts_a_trace_beyond_the_noise_of_its_launches_and_its_gaps(
    idle: float, direction: int, part: float, *, reliable: bool
) -> None:
    """Of 20 ms the trace says that they are as they were, to within 99.5 % of its noise.

    Launches are off by 0.8 %, gaps of milliseconds by 5 % beside that; and Student's t of the 20
    executions that this is worth is 3.153. Both sides have one trace.
    """
    spread = math.hypot(0.008 * (20 - idle), math.hypot(0.05, 0.008) * idle) / 20
    judged = math.expm1(direction * part * 3.153 * math.sqrt(2) * spread)
    same = table(("wgrad", 1000 * (20 - idle)), idle=1000 * idle)
    assert attribute(same, same, NAMING, [step_time(judged, 0.0)]).reliable is reliable


@pytest.mark.parametrize(
    ("percent", "judged", "reliable"),
    [
        # Of 40 % that the trace says a quarter less, and that a quarter less than was judged.
        *((40, 0.299, False), (40, 0.301, True), (40, 0.532, True), (40, 0.535, False)),
        # One in the other direction is another; less than half a percent of the step is nothing.
        *((40, -0.4, False), (0.48, 0.0, True), (0.52, 0.0, False)),
    ],
)
def test_changes_are_the_same_that_differ_by_a_quarter_of_the_larger_or_by_nearly_nothing(
    percent: float, judged: float, *, reliable: bool
) -> None:
    """Fifty traces are sure of it to within 0.2 %."""
    now, then = (
        replace(table(("wgrad", us)), busy=(1000 * us,) * 50, idles=(0.0,) * 50)
        for us in (20_000 + 200 * percent, 20_000)
    )
    assert attribute(now, then, NAMING, [step_time(judged, 0.0)]).reliable is reliable


# Whatever the tables


places = st.sampled_from(
    ["a.py:1 f", "a.py:2 f net", "a.py:9 g net.0", "b.py:3 h net.0 backward", "b.py:4 h net.1"]
)
changes = st.sampled_from([-0.2, 0.0, 1e-4, 0.3])
sited_rows = st.lists(st.tuples(names, st.floats(1, 1e4), places), min_size=1, max_size=12)
sited_tables = st.builds(lambda rows, idle: sited(*rows, idle=idle), sited_rows, st.floats(0, 1e4))


@few
@given(*[tables | sited_tables] * 2)
def test_nothing_is_lost_and_shares_add_up_to_one_or_there_are_none(
    measured: KernelTable, baseline: KernelTable
) -> None:
    attribution = of(measured, baseline)
    for change in (
        math.fsum(entry.change for entry in attribution.entries),
        attribution.after - attribution.before,
    ):
        tolerance = 1e-9 * (attribution.before + attribution.after)
        assert change == pytest.approx(attribution.change, abs=tolerance)
    assert sum(one.launches_after for one in attribution.entries) == len(measured.launches)
    assert sum(one.launches_before for one in attribution.entries) == len(baseline.launches)
    shares = [e.share for e in attribution.entries if e.share is not None]
    if abs(attribution.change) > NEAR_ZERO * attribution.before:
        assert len(shares) == len(attribution.entries)
        assert math.fsum(shares) == pytest.approx(1, abs=1e-6)
    else:
        assert shares == []


@few
@given(tables | sited_tables, tables, changes)
def test_whatever_changed_a_headline_is_made_or_none(
    measured: KernelTable, baseline: KernelTable, change: float
) -> None:
    """Of any tables: it raises nothing, and its time is the step's."""
    regressed = verdict("step_time", unit="ms", baseline=1.0, measured=1 + change, change=change)
    told = attribute(measured, baseline, NAMING, [regressed]).cause
    assert attribute(measured, measured, NAMING).cause is None
    if change > 0:
        assert told is not None
        assert told.change == pytest.approx(1e6 * change)
