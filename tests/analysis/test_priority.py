"""Estimated speedups and priority scores: Equations 1 and 2 of the paper."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.analysis import priority
from pytest_gpuperf.analysis.priority import THROUGHPUTS
from pytest_gpuperf.catalogue import kernel_families as naming
from pytest_gpuperf.model.measurement import KernelTable
from tests.analysis.tables import family, hostile, kernels, table
from tests.strategies import few


def test_the_estimated_speedup() -> None:
    for throughputs, expected in (
        ({"sm_throughput": 80.0, "dram_throughput": 20.0}, 0.25),  # 100 / 80 - 1
        ({"sm_throughput": 20.0, "dram_throughput": 62.5}, 0.6),  # 100 / 62.5 - 1
        ({"sm_throughput": 50.0}, 1.0),
        ({"sm_throughput": 3.0}, 1.0),  # 32.3, clamped
        ({"sm_throughput": 0.0}, 1.0),
        ({"sm_throughput": 100.0}, 0.0),
        ({"memory_throughput": 100.4}, 0.0),  # beyond the peak, by rounding
        # L1 reaches 90 % while it is active, and 62.5 % over the whole kernel.
        ({"l1_throughput": 90.0, "memory_throughput": 62.5}, 0.6),
        ({"l1_throughput": 90.0}, None),
        ({}, None),
    ):
        assert priority.estimated_speedup(throughputs) == pytest.approx(expected)


def test_the_bottleneck() -> None:
    for throughputs, expected in (
        ({"sm_throughput": 80.0, "dram_throughput": 20.0}, "sm_throughput"),
        ({"sm_throughput": 20.0, "dram_throughput": 60.0}, "dram_throughput"),
        # The memory's throughput is that of its busiest unit, which has a name.
        ({"l2_throughput": 60.0, "memory_throughput": 60.3}, "l2_throughput"),
        # Or it is L1's, whose own share is of the cycles in which it was active.
        (
            {"sm_throughput": 40.0, "l1_throughput": 75.0, "memory_throughput": 60.0},
            "l1_throughput",
        ),
        ({"sm_throughput": 40.0, "l1_throughput": 75.0}, "sm_throughput"),
        # Or it is that of a unit without a metric.
        (
            {"sm_throughput": 40.0, "l1_throughput": 30.0, "memory_throughput": 60.0},
            "memory_throughput",
        ),
        ({"memory_throughput": 60.0}, "memory_throughput"),
        ({}, None),
    ):
        assert priority.bottleneck(throughputs) == expected, throughputs


def rates(sm: float, dram: float) -> dict[str, float]:
    return {
        "sm_throughput": sm,
        "dram_throughput": dram,
        "l1_throughput": 1.0,
        "l2_throughput": 1.0,
        "memory_throughput": dram,
    }


STEP = table(
    ("conv a", 100.0, rates(80, 10)),  # 100 us x 0.25 = 25
    ("norm", 40.0, rates(10, 62.5)),  # 40 us x 0.6 = 24
    ("conv b", 10.0, rates(40, 10)),  # 10 us x 1 = 10
    ("norm", 30.0, rates(10, 80)),  # 30 us x 0.25 = 7.5
    ("add", 50.0, rates(10, 100)),  # nothing to gain
    ("copy HtoD", 500.0),
)


def test_kernels_are_ranked_by_their_scores() -> None:
    ranked = priority.priorities(STEP, family)
    assert ranked.missing == ()
    assert [(p.name, p.launches, p.score) for p in ranked.kernels] == [
        ("norm", 2, pytest.approx(31_500)),
        ("conv a", 1, pytest.approx(25_000)),
        ("conv b", 1, pytest.approx(10_000)),
        ("add", 1, 0),
    ]
    first = ranked.kernels[0]
    assert (first.family, first.bottleneck, first.nanoseconds) == (
        "norm",
        "dram_throughput",
        70_000,
    )
    assert first.speedup == pytest.approx(0.45)  # 31.5 / 70
    assert first.throughput == pytest.approx(70.0)  # (40 x 62.5 + 30 x 80) / 70
    assert first.share == pytest.approx(31.5 / 66.5)


def test_scores_of_a_family_add_up() -> None:
    ranked = priority.priorities(STEP, family)
    assert [(p.name, p.score) for p in ranked.families] == [
        ("conv", pytest.approx(35_000)),
        ("norm", pytest.approx(31_500)),
        ("add", 0),
    ]
    assert ranked.step is not None
    assert ranked.step.score == pytest.approx(66_500)
    assert ranked.step.share == 1
    assert ranked.step.speedup == pytest.approx(66.5 / 230)
    # conv: 110 us by the SM, norm and add: 120 us by DRAM
    assert ranked.step.bottleneck == "dram_throughput"


def test_throughputs_that_were_not_collected_may_hide_the_bottleneck() -> None:
    ranked = priority.priorities(table(("a", 1.0, {"sm_throughput": 80.0})), family)
    assert ranked.kernels[0].speedup == pytest.approx(0.25)
    assert ranked.missing == (
        "not collected: l1_throughput, l2_throughput, dram_throughput, memory_throughput",
        "memory_throughput was not collected. Another unit may limit a kernel, which then can gain "
        "less than this shows",
    )
    # The memory system's throughput has those of its units.
    values = {"sm_throughput": 10.0, "memory_throughput": 80.0}
    ranked = priority.priorities(table(("a", 1.0, values)), family)
    assert ranked.kernels[0].bottleneck == "memory_throughput"
    assert ranked.missing == ("not collected: l1_throughput, l2_throughput, dram_throughput",)


def test_launches_without_throughputs_are_left_out() -> None:
    ranked = priority.priorities(table(("a", 1.0, rates(80, 10)), ("a", 7.0), ("b", 5.0)), family)
    assert [(p.name, p.launches, p.nanoseconds) for p in ranked.kernels] == [("a", 1, 1_000)]
    assert ranked.missing == ("without 2 of 3 launches, because they have no throughput",)


def test_without_throughputs_nothing_is_ranked() -> None:
    for rows in ((), (("copy HtoD", 5.0),), (("a", 5.0),)):
        ranked = priority.priorities(table(*rows), family)
        assert (ranked.step, ranked.families, ranked.kernels) == (None, (), ()), rows
        assert ranked.missing[0].startswith("not collected: sm_throughput"), rows


def test_launches_of_no_time_have_no_speedup() -> None:
    (ranked,) = priority.priorities(table(("a", 0.0, rates(40, 10))), family).kernels
    assert (ranked.score, ranked.speedup, ranked.share, ranked.throughput) == (0, None, None, None)


percentages = st.floats(0, 110)
MEASURED = {"sm_throughput": 5.0}
measured = st.dictionaries(st.sampled_from(THROUGHPUTS), percentages).map(lambda d: MEASURED | d)
rows = st.lists(
    st.tuples(st.sampled_from(["a 1", "a 2", "b"]), st.floats(1e-3, 1e6), measured), min_size=1
)


@few
@given(rows)
def test_shares_of_scores_add_up(given_rows: list[tuple[str, float, dict[str, float]]]) -> None:
    ranked = priority.priorities(table(*given_rows), family)
    assert ranked.step is not None
    for parts in (ranked.families, ranked.kernels):
        assert math.fsum(p.score for p in parts) == pytest.approx(ranked.step.score)
        assert all(0 <= (p.speedup or 0) <= 1 for p in parts)
        if ranked.step.score:
            assert math.fsum(p.share or 0 for p in parts) == pytest.approx(1)


@few
@given(hostile(THROUGHPUTS))
def test_no_table_is_too_odd(ranked: KernelTable) -> None:
    result = priority.priorities(ranked, family)
    for one in (*result.families, *result.kernels):
        for number in (one.speedup, one.share, one.throughput):
            assert number is None or math.isfinite(number)


# Recorded on an H200


def test_normalization_is_where_a_recorded_step_could_gain() -> None:
    ranked = priority.priorities(kernels(), naming.family)
    assert ranked.step is not None
    assert ranked.step.launches == 1548
    assert ranked.step.nanoseconds / 1e6 == pytest.approx(226.2, abs=0.1)
    assert "RowwiseMomentsCUDAKernel" in ranked.kernels[0].name
    # GroupNorm's moments leave all units idle: 3.6 % of DRAM's peak is their most.
    assert ranked.kernels[0].speedup == 1
    assert ranked.kernels[0].throughput == pytest.approx(3.6, abs=0.1)
    by_family = {p.name: p for p in ranked.families}
    assert by_family["elementwise"].bottleneck == "dram_throughput"
    assert by_family["convolution-forward"].bottleneck == "sm_throughput"
    assert ranked.missing[0] == "not collected: l1_throughput, l2_throughput, memory_throughput"
