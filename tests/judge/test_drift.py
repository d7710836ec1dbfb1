"""Creep: what no single acceptance shows is found against the origin, and noise is not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.drift import Drift, Recorded, drifts
from pytest_gpuperf.judge.tolerance import tolerance_for
from pytest_gpuperf.model.metric import Direction, Metric, MetricClass
from tests.judge.test_interval import sum_by_hand
from tests.strategies import few

METRICS = catalogue().metrics
CYCLES = 1e9
FLOOR = tolerance_for(METRICS["cycles"]).floor
ONE, OTHER, THIRD = "gpu-1", "gpu-2", "gpu-3"


def metric(direction: Direction, *, gated: bool = True, percentage: bool = False) -> Metric:
    """A metric of the cycles' class."""
    unit = "%" if percentage else "cycles"
    return Metric(
        name="x",
        unit=unit,
        direction=direction,
        metric_class=MetricClass.CYCLE,
        gated=gated,
        percentage=percentage,
        summary="",
    )


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
        (1 + 0.99 * FLOOR, False),
        (1 + 1.01 * FLOOR, True),
        (1 - 1.01 * FLOOR, False),  # an improvement
    ):
        drift = of(recorded([CYCLES * factor] * 5), recorded([CYCLES] * 5))
        assert drift.drifted is drifted, factor
        assert drift.change == pytest.approx(factor - 1, abs=1e-12), (factor, drifted)
        assert drift.tolerance == pytest.approx(FLOOR), (factor, drifted)


def test_around_what_chance_explains() -> None:
    # A quiet origin has the spread of its class, and the median of the new costs a little.
    costs = {1: 1.0, 3: 1.16, 5: 1.2, 9: 1.22}
    spread = 1e-3 * math.sqrt(20 / 24)
    for case in product(costs, (1, 2), (1 - 1e-6, 1 + 1e-6)):
        processes, family, share = case
        night = 8 / (7 + processes) * costs[processes] ** 2 / processes
        error, degrees = sum_by_hand((spread**2 / 5, 24), (night * spread**2, 7 + processes))
        limit = share * stats.t.isf(1e-3 / family, degrees) * error
        names = ("cycles", "duration")[:family]
        new = Recorded({name: [[CYCLES * math.exp(limit)]] * processes for name in names})
        origin = Recorded({name: [[CYCLES]] * 5 for name in names})
        gated = {name: replace(metric(Direction.LOWER), name=name) for name in names}
        said = drifts(new, origin, gated, dict.fromkeys(names, "0.1%"))
        assert [drift.drifted for drift in said] == [share > 1] * family, case


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
