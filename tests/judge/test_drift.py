"""Creep: what no single acceptance shows is found against the origin, and noise is not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.judge.drift import Drift, Recorded, drifts
from pytest_gpuperf.judge.tolerance import tolerance_for
from pytest_gpuperf.model.entry import Calibration, Spread
from pytest_gpuperf.model.metric import Direction, Metric, MetricClass
from tests.strategies import few

METRICS = catalogue().metrics
CYCLES = 1e9
FLOOR = tolerance_for(METRICS["cycles"]).floor
ONE, OTHER, THIRD = "gpu-1", "gpu-2", "gpu-3"


def metric(direction: Direction, *, gated: bool = True, percentage: bool = False) -> Metric:
    """A metric of the cycles' class."""
    unit = "%" if percentage else "cycles"
    return Metric("x", unit, direction, MetricClass.CYCLE, gated, False, percentage, "")


def recorded(
    values: Sequence[float], gpus: Sequence[str] = (), name: str = "cycles", days: str = ""
) -> Recorded:
    """One round in each of these processes."""
    return Recorded(
        {name: [[value] for value in values]}, tuple(gpus), (days,) * len(values) if days else ()
    )


def of(new: Recorded, origin: Recorded, tolerances: dict[str, str] | None = None) -> Drift:
    """The drift of the only metric."""
    (drifted,) = drifts(new, origin, METRICS, tolerances or {})
    return drifted


# The limit


def test_worse_than_the_tolerance_is_drift() -> None:
    for factor, drifted in (
        (1.0, False),
        (1 + 0.99 * FLOOR, False),
        (1 + 1.01 * FLOOR, True),
        (2.0, True),
        (1 - 1.01 * FLOOR, False),  # an improvement
        (0.5, False),
    ):
        drift = of(recorded([CYCLES * factor] * 5), recorded([CYCLES] * 5))
        assert drift.drifted is drifted, factor
        assert drift.change == pytest.approx(factor - 1, abs=1e-12), (factor, drifted)
        assert drift.tolerance == pytest.approx(FLOOR), (factor, drifted)


def test_the_tolerance_that_was_written_counts() -> None:
    new, origin = recorded([CYCLES * 1.004] * 5), recorded([CYCLES] * 5)
    for asked, tolerance in (("0.3%", 0.003), ("0.5%", 0.005)):
        drift = of(new, origin, {"cycles": asked})
        assert drift.drifted is (tolerance < 0.004)
        assert drift.tolerance == pytest.approx(tolerance)
    with pytest.raises(UsageFailure, match="tolerance '1' for cycles"):
        of(new, origin, {"cycles": "1"})
    assert drifts(new, origin, METRICS, {"cycles": "any"}) == ()


def test_beyond_the_tolerance_it_has_to_be_surer_than_chance() -> None:
    noisy = [CYCLES * (1 + 0.02 * (place - 2)) for place in range(5)]
    assert not of(recorded([v * 1.01 for v in noisy]), recorded(noisy)).drifted
    assert of(recorded([v * 1.5 for v in noisy]), recorded(noisy)).drifted


def test_the_new_side_is_a_median_and_the_origin_a_mean() -> None:
    # Two of five processes need 2 % more: no drift of the new, and part of the origin's centre.
    some = [CYCLES] * 3 + [CYCLES * 1.02] * 2
    drift = of(recorded(some), recorded([CYCLES] * 5))
    assert drift.change == pytest.approx(0.0, abs=1e-12)
    assert not drift.drifted
    drift = of(recorded([CYCLES] * 5), recorded(some))
    assert drift.change == pytest.approx(math.expm1(-0.4 * math.log(1.02)))


def test_around_what_chance_explains() -> None:
    # A quiet origin has the spread of its class, and the median of the new costs a little.
    costs = {1: 1.0, 3: 1.16, 5: 1.2, 9: 1.22}
    spread = 1e-3 * math.sqrt(20 / 24)
    for case in product(costs, (1, 2), (1 - 1e-6, 1 + 1e-6)):
        processes, family, share = case
        error = spread * math.sqrt(1 / 5 + costs[processes] ** 2 / processes)
        limit = share * stats.t.isf(1e-3 / family, 24) * error
        names = ("cycles", "duration")[:family]
        new = Recorded({name: [[CYCLES * math.exp(limit)]] * processes for name in names})
        origin = Recorded({name: [[CYCLES]] * 5 for name in names})
        gated = {name: replace(metric(Direction.LOWER), name=name) for name in names}
        said = drifts(new, origin, gated, dict.fromkeys(names, "0.1%"))
        assert [drift.drifted for drift in said] == [share > 1] * family, case


def test_a_calibration_sets_the_noise() -> None:
    loud = Calibration("", 20, 4, 2, 0, 0, {"cycle": Spread(0.0, 0.01, None, None)})
    new, origin = recorded([CYCLES * 1.01] * 5), recorded([CYCLES] * 5)
    assert drifts(new, origin, METRICS, {})[0].drifted
    assert not drifts(new, origin, METRICS, {}, loud)[0].drifted


# Which metrics


def test_gated_metrics_count_each_in_its_direction() -> None:
    for direction, gated, factor, drifted in (
        (Direction.LOWER, True, 1.1, [True]),
        (Direction.LOWER, True, 0.9, [False]),
        (Direction.HIGHER, True, 1.1, [False]),
        (Direction.HIGHER, True, 0.9, [True]),
        (Direction.NEUTRAL, True, 1.1, []),
        (Direction.LOWER, False, 1.1, []),
    ):
        said = drifts(
            recorded([factor] * 5, name="x"),
            recorded([1.0] * 5, name="x"),
            {"x": metric(direction, gated=gated)},
            {},
        )
        assert [drift.drifted for drift in said] == drifted, (direction, gated)


def test_percentages_drift_by_points() -> None:
    points = {"x": metric(Direction.HIGHER, percentage=True)}
    new, origin = recorded([38.0] * 5, name="x"), recorded([40.0] * 5, name="x")
    (drifted,) = drifts(new, origin, points, {})
    assert (drifted.points, drifted.drifted) == (True, True)
    assert drifted.change == pytest.approx(-2.0)
    assert drifted.tolerance == pytest.approx(0.5)


def test_only_what_both_have_is_compared_in_the_order_of_the_new() -> None:
    new = Recorded({"instructions": [[1.0]], "cycles": [[1.0]], "step_time": [[1.0]]})
    origin = Recorded({"cycles": [[1.0]], "flops": [[1.0]], "instructions": [[1.0]]})
    drifted = drifts(new, origin, METRICS, {})
    assert [drift.metric for drift in drifted] == ["instructions", "cycles"]
    assert drifts(new, Recorded({}), METRICS, {}) == ()


def test_from_zero_there_is_no_ratio_and_any_is_worse() -> None:
    none = recorded([0.0] * 5, name="layout_copies")
    for new, change, drifted in ((39.0, None, True), (0.0, 0.0, False)):
        drift = of(recorded([new] * 5, name="layout_copies"), none)
        assert (drift.change, drift.drifted) == (change, drifted), new


# GPUs of one name are not alike


def test_each_gpu_is_compared_with_itself() -> None:
    # The second GPU needs 3 % more; neither has changed, but their shares have.
    origin = recorded([CYCLES] * 4 + [CYCLES * 1.03], [ONE] * 4 + [OTHER])
    new = recorded([CYCLES] + [CYCLES * 1.03] * 4, [ONE] + [OTHER] * 4)
    drift = of(new, origin)
    assert drift.change == pytest.approx(0.0, abs=1e-12)
    assert not drift.drifted


def test_a_slowdown_on_each_gpu_is_found_whatever_their_shares() -> None:
    origin = recorded([CYCLES * 1.03, *[CYCLES] * 4], [OTHER, *[ONE] * 4])
    new = recorded([CYCLES * 1.01, *[CYCLES * 1.03 * 1.01] * 4], [ONE, *[OTHER] * 4])
    drift = of(new, origin)
    assert drift.change == pytest.approx(0.01)
    assert drift.drifted


def test_gpus_that_the_origin_lacks_do_not_count_beside_those_it_has() -> None:
    origin = recorded([CYCLES] * 5, [ONE] * 5)
    new = recorded([CYCLES] * 3 + [CYCLES * 1.03] * 2, [ONE] * 3 + [OTHER] * 2)
    assert of(new, origin).change == pytest.approx(0.0, abs=1e-12)


def test_on_gpus_that_the_origin_lacks_the_tolerance_is_wider() -> None:
    origin = recorded([CYCLES] * 5, [ONE] * 5)
    elsewhere = of(recorded([CYCLES * 1.03] * 5, [OTHER] * 5), origin)
    assert not elsewhere.drifted
    assert elsewhere.tolerance > 0.03
    assert of(recorded([CYCLES * 1.3] * 5, [OTHER] * 5), origin).drifted


def test_gpus_that_are_not_known_are_taken_for_one() -> None:
    for ours, theirs in (([], [ONE] * 5), ([ONE] * 5, [])):
        drift = of(recorded([CYCLES * 1.01] * 5, ours), recorded([CYCLES] * 5, theirs))
        assert drift.drifted, (ours, theirs)
        assert drift.tolerance == pytest.approx(FLOOR), (ours, theirs)


def test_counts_do_not_depend_on_the_gpu() -> None:
    origin = recorded([CYCLES] * 5, [ONE] * 5, "instructions")
    assert of(recorded([CYCLES * 1.01] * 5, [OTHER] * 5, "instructions"), origin).drifted


values = st.floats(1e-3, 1e12) | st.just(0.0)


@few
@given(data=st.data())
def test_any_values_on_any_gpus_have_an_answer_that_order_does_not_change(
    data: st.DataObject,
) -> None:
    def side() -> list[tuple[float, str]]:
        gpus = st.sampled_from([ONE, OTHER, THIRD])
        return data.draw(st.lists(st.tuples(values, gpus), min_size=1, max_size=6))

    def made(processes: list[tuple[float, str]]) -> Recorded:
        return recorded([v for v, _ in processes], [u for _, u in processes], days="2026-03-01")

    new, origin = side(), side()
    drift = of(made(new), made(origin))
    assert drift.change is None or math.isfinite(drift.change)
    again = of(made(new[::-1]), made(origin))
    if drift.change is None:
        assert again == drift
    else:
        assert again.change == pytest.approx(drift.change, rel=1e-6, abs=1e-9)


@few
@given(st.lists(st.floats(0.99e9, 1.01e9), min_size=1, max_size=9))
def test_an_entry_has_not_drifted_from_itself(same: list[float]) -> None:
    assert not of(recorded(same), recorded(same)).drifted


# Chains of acceptances

NOISE = 7e-4
"""The spread of cycles between processes on an H200 (docs/verdict.md)."""


def chain(seed: int, creep: float, acceptances: int) -> list[bool]:
    """Whether each of the acceptances after the first has drifted since the first."""
    random = np.random.default_rng(seed)

    def accepted(number: int) -> Recorded:
        noise = random.normal(0.0, NOISE, 5)
        size = CYCLES * (1 + creep) ** number
        return Recorded(
            {
                "cycles": [[size * math.exp(part)] for part in noise],
                "instructions": [[CYCLES]] * 5,
            },
            (ONE,) * 5,
        )

    origin = accepted(0)
    return [
        any(drift.drifted for drift in drifts(accepted(number), origin, METRICS, {}))
        for number in range(1, acceptances + 1)
    ]


def test_a_creep_of_a_tenth_of_a_percent_is_found_within_ten_acceptances() -> None:
    first = [chain(seed, 1e-3, 10).index(True) + 1 for seed in range(100)]
    assert min(first) >= 4  # it is within the tolerance until then
    assert np.mean(first) < 7
    assert max(first) <= 8


def test_without_creep_nothing_drifts() -> None:
    assert not any(any(chain(seed, 0.0, 20)) for seed in range(100, 200))


def test_where_one_gpu_alone_saw_a_zero_all_are_compared_with_all() -> None:
    """Its changes are shares and those of the others logarithms: they have no mean."""
    new, origin = [CYCLES] * 4, [CYCLES, CYCLES, 0.0, CYCLES]
    gpus = ("a", "a", "b", "b")
    assert of(recorded(new, gpus), recorded(origin, gpus)) == of(recorded(new), recorded(origin))
