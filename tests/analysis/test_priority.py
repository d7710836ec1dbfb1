"""Estimated speedups and priority scores: Equations 1 and 2 of the paper."""

from __future__ import annotations

import pytest

from pytest_gpuperf.analysis import priority
from pytest_gpuperf.analysis.priority import THROUGHPUTS
from pytest_gpuperf.catalogue import kernel_families as naming
from tests.analysis.tables import family, kernels, table


@pytest.mark.parametrize(
    ("throughputs", "speedup", "bottleneck"),
    [
        ({"sm_throughput": 80.0, "dram_throughput": 20.0}, 0.25, "sm_throughput"),  # 100 / 80 - 1
        ({"sm_throughput": 20.0, "dram_throughput": 62.5}, 0.6, "dram_throughput"),
        ({"sm_throughput": 50.0}, 1.0, "sm_throughput"),
        ({"sm_throughput": 3.0}, 1.0, "sm_throughput"),  # 32.3, clamped
        ({"sm_throughput": 0.0}, 1.0, "sm_throughput"),
        ({"sm_throughput": 100.0}, 0.0, "sm_throughput"),
        # Beyond the peak, by rounding; of a unit without a metric.
        ({"memory_throughput": 100.4}, 0.0, "memory_throughput"),
        # L1 reaches 90 % while it is active, and 62.5 % over the whole kernel.
        ({"l1_throughput": 90.0, "memory_throughput": 62.5}, 0.6, "l1_throughput"),
        ({"sm_throughput": 40.0, "l1_throughput": 75.0}, 1.0, "sm_throughput"),
        # The memory's throughput is that of its busiest unit, which has a name.
        ({"l2_throughput": 62.5, "memory_throughput": 62.5}, 0.6, "l2_throughput"),
        # Or it is that of a unit without a metric.
        ({"l1_throughput": 30.0, "memory_throughput": 62.5}, 0.6, "memory_throughput"),
    ],
)
def test_the_estimated_speedup_and_the_bottleneck(
    throughputs: dict[str, float], speedup: float, bottleneck: str
) -> None:
    highest = priority.observed(throughputs)
    assert highest is not None
    assert priority.estimated_speedup(highest) == pytest.approx(speedup)
    assert priority.bottleneck(throughputs, highest) == bottleneck


def rates(sm: float, dram: float) -> dict[str, float]:
    others = {"l1_throughput": 1.0, "l2_throughput": 1.0, "memory_throughput": dram}
    return {"sm_throughput": sm, "dram_throughput": dram, **others}


def test_families_are_ranked_by_the_scores_of_their_launches() -> None:
    ranked = priority.priorities(
        table(
            ("conv a", 100.0, rates(80, 10)),  # 100 us x 0.25 = 25
            ("norm", 40.0, rates(10, 62.5)),  # 40 us x 0.6 = 24
            ("conv b", 10.0, rates(40, 10)),  # 10 us x 1 = 10
            ("norm", 30.0, rates(10, 80)),  # 30 us x 0.25 = 7.5
            ("add", 50.0, rates(10, 100)),  # nothing to gain
            ("copy HtoD", 500.0),
        ),
        family,
    )
    assert ranked.missing == ()
    assert [(p.family, p.launches, p.score, p.bottleneck) for p in ranked.families] == [
        ("conv", 2, pytest.approx(35_000), "sm_throughput"),
        ("norm", 2, pytest.approx(31_500), "dram_throughput"),
        ("add", 1, 0, "dram_throughput"),
    ]
    norm = ranked.families[1]
    assert norm.speedup == pytest.approx(0.45)  # 31.5 / 70
    assert norm.throughput == pytest.approx(70.0)  # (40 x 62.5 + 30 x 80) / 70
    assert norm.share == pytest.approx(31.5 / 66.5)


@pytest.mark.parametrize(
    ("rows", "ranked", "missing"),
    [
        (
            [("a", 1.0, {"sm_throughput": 10.0, "memory_throughput": 80.0})],
            1,
            ("not collected: l1_throughput, l2_throughput, dram_throughput",),
        ),
        (
            [("a", 1.0, rates(80, 10)), ("a", 7.0), ("b", 5.0)],
            1,
            ("without 2 of 3 launches, because they have no throughput",),
        ),
        *(([*rows], 0, (f"not collected: {', '.join(THROUGHPUTS)}",)) for rows in ((), [("a", 5)])),
    ],
)
def test_what_was_not_collected_is_said_and_launches_without_it_are_left_out(
    rows: list[tuple[str, float]], ranked: int, missing: tuple[str, ...]
) -> None:
    made = priority.priorities(table(*rows), family)
    assert sum(one.launches for one in made.families) == ranked
    assert made.missing == missing


def test_launches_of_no_time_have_no_speedup() -> None:
    (ranked,) = priority.priorities(table(("a", 0.0, rates(40, 10))), family).families
    assert (ranked.score, ranked.speedup, ranked.share, ranked.throughput) == (0, None, None, None)


def test_a_recorded_step() -> None:
    ranked = priority.priorities(kernels(), naming.family)
    assert sum(one.launches for one in ranked.families) == 1548
    by_family = {one.family: one for one in ranked.families}
    assert by_family["elementwise"].bottleneck == "dram_throughput"
    assert by_family["convolution-forward"].bottleneck == "sm_throughput"
    assert ranked.missing[0] == "not collected: l1_throughput, l2_throughput, memory_throughput"
