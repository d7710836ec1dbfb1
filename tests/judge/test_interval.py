"""The difference between processes and its standard error, against a second computation of both."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.interval import (
    centre,
    difference,
    error_of_median,
    quantile,
)
from pytest_gpuperf.judge.tolerance import tolerance_for
from tests.judge.test_noise import ONE, OTHER, on_gpus, set_aside_by_hand, spread_by_hand
from tests.strategies import few

CYCLES = tolerance_for(catalogue().metrics["cycles"])
HIT_RATE = tolerance_for(catalogue().metrics["l2_hit_rate"])
INSTRUCTIONS = tolerance_for(catalogue().metrics["instructions"])

positive = st.floats(1e-3, 1e15)
MEDIAN_COST = {1: 1.0, 2: 1.0, 3: 1.16, 5: 1.20, 9: 1.22}
rounds_of = st.lists(st.lists(positive, min_size=1, max_size=5), min_size=1, max_size=9)


def one_each(*values: float) -> list[list[float]]:
    """Processes of one round."""
    return [[value] for value in values]


QUIET = one_each(*[100.0] * 5)


# The centre


def test_the_centre_is_the_median_of_the_processes_medians() -> None:
    assert centre([[3.0]]) == 3.0
    assert centre([[1.0, 2.0, 9.0]]) == 2.0
    assert centre([[1.0, 2.0]]) == 1.5
    assert centre([[1.0, 1.0, 50.0], [2.0], [3.0, 3.0]]) == 2.0


# The change and its standard error


@few
@given(rounds_of, rounds_of)
@example([[100.0]], [[100.0]])
@example([[101.0, 99.0]], one_each(100.0, 100.1, 99.9, 100.0, 103.0))
@example([[101.0, 99.0]], one_each(100.0, 100.3, 99.7, 100.0, 100.4))
@example([[100.0] * 50], one_each(100.0, 100.1, 99.9, 100.0, 103.0, 90.0))
@example([[100.0]], one_each(100.0, 100.0, 100.0, 103.0, 103.0))
def test_relative_metrics_are_compared_by_their_logarithms(
    new: list[list[float]], old: list[list[float]]
) -> None:
    look = difference(new, old, CYCLES)
    every = [math.log(median(process)) for process in old]
    aside = set_aside_by_hand(every, CYCLES.scale)
    logs = [value for position, value in enumerate(every) if position not in aside]
    spread, degrees = spread_by_hand(logs, CYCLES.scale)
    cost = MEDIAN_COST.get(len(new), 1.2533141373155)
    mean = sum(logs) / len(logs)
    assert look.logarithmic
    assert look.processes == len(new)
    assert look.changes == pytest.approx(
        [math.log(median(process)) - mean for process in new], abs=1e-9
    )
    assert look.change == pytest.approx(median(look.changes))
    assert look.set_aside == pytest.approx([every[place] - mean for place in aside], abs=1e-9)
    assert look.baseline == pytest.approx(math.exp(mean))
    assert look.measured == pytest.approx(centre(new))
    assert look.degrees_of_freedom == degrees
    assert look.standard_error == pytest.approx(
        spread * math.sqrt(1 / len(logs) + cost**2 / len(new)), rel=1e-6
    )
    assert look.margin == pytest.approx(quantile(0.0025, degrees) * look.standard_error)


@few
@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=9),
    st.lists(st.floats(0, 100), min_size=1, max_size=9),
)
@example([50.0], [50.0, 50.1, 49.9, 50.0, 60.0])
def test_percentages_are_compared_in_points(new: list[float], old: list[float]) -> None:
    look = difference(one_each(*new), one_each(*old), HIT_RATE)
    aside = set_aside_by_hand(old, HIT_RATE.scale)
    kept = [value for position, value in enumerate(old) if position not in aside]
    spread, _ = spread_by_hand(kept, HIT_RATE.scale)
    middle = sum(kept) / len(kept)
    assert not look.logarithmic
    assert look.spread == pytest.approx(spread)
    assert look.change == pytest.approx(median(new) - middle, abs=1e-9)
    assert look.set_aside == pytest.approx([old[place] - middle for place in aside], abs=1e-9)
    assert look.shown(look.change) == look.change


def test_a_median_is_less_sure_than_a_mean() -> None:
    looks = {new: difference(one_each(*[100.0] * new), QUIET, CYCLES) for new in range(1, 10)}
    for new, look in looks.items():
        cost = MEDIAN_COST.get(new, 1.2533141373155)
        assert error_of_median(2e-3, new) == pytest.approx(2e-3 * cost / math.sqrt(new))
        by_hand = look.spread * math.sqrt(1 / 5 + cost**2 / new)
        assert look.standard_error == pytest.approx(by_hand)
        assert [look.error_of(other) for other in looks] == pytest.approx(
            [other.standard_error for other in looks.values()]
        )


# Days


@pytest.mark.parametrize(
    ("where", "days", "measured", "count"),
    [
        ("gggg", "mmmm", "g", 1),
        ("gggg", "mmtt", "g", 2),
        ("gggg", "mtwt", "g", 3),
        ("gggg", "", "g", 1),
        # An allocation is a GPU on a day.
        ("ghgh", "mmmm", "gh", 2),
        ("gggh", "mttm", "gh", 3),
        ("gggh", "mmmt", "g", 1),
    ],
)
def test_more_processes_do_not_help_against_a_day_that_they_share(
    where: str, days: str, measured: str, count: int
) -> None:
    between = 4e-3
    tolerance, gpus = replace(CYCLES, between_days=between), on_gpus(where, *measured, days=days)
    for new in (1, 3, 9):
        values = one_each(*[100.0] * new), one_each(*[100.0] * 4)
        with_days = difference(*values, tolerance, gpus)
        without = difference(*values, CYCLES, gpus)
        assert with_days.standard_error**2 - without.standard_error**2 == pytest.approx(
            between**2 * (1 + 1 / count)
        )


def test_without_gpus_a_baseline_is_of_one_day() -> None:
    tolerance = replace(CYCLES, between_days=4e-3)
    look = difference([[100.0]], one_each(*[100.0] * 5), tolerance)
    assert look.reference_error**2 == pytest.approx(look.spread**2 / 5 + 2 * 4e-3**2)


# GPUs


def test_counts_that_do_not_depend_on_the_gpu_are_compared_with_all() -> None:
    gpus = on_gpus((ONE, ONE, OTHER, OTHER), "another")
    look = difference([[1e6]], [[1e6]] * 4, INSTRUCTIONS, gpus)
    assert (look.change, look.widening) == (0.0, 0.0)


def test_an_outlier_is_left_out_with_its_gpu_and_day() -> None:
    """Whatever else is on file of it: positions stay aligned."""
    baseline = one_each(1.2e6, 1e6, 1.02e6, 1e6, 1.02e6, 1e6)
    gpus = on_gpus((ONE, ONE, OTHER, ONE, OTHER, ONE), ONE, days="abcdef")
    look = difference([[1e6]], baseline, CYCLES, gpus)
    rest = on_gpus((ONE, OTHER, ONE, OTHER, ONE), ONE, days="bcdef")
    assert look.set_aside == pytest.approx([math.log(1.2)])
    assert replace(look, set_aside=()) == difference([[1e6]], baseline[1:], CYCLES, rest)
    assert look.change == pytest.approx(0, abs=1e-12)


# Zeros and negative values, which have no logarithm


def test_without_a_logarithm_the_change_is_a_plain_share() -> None:
    for new, old, change, aside in (
        (0.0, [10.0, 10.0], -1.0, []),
        (15.0, [0.0, 20.0], 0.5, []),
        (-5.0, [-10.0, -10.0], 0.5, []),
        (-15.0, [-10.0, -10.0], -0.5, []),
        (-10.0, [10.0], -2.0, []),
        # One such value forbids them also where it is set aside.
        (110.0, [100.0] * 4 + [0.0], 0.1, [-1.0]),
        (110.0, [100.0] * 4 + [-50.0], 0.1, [-1.5]),
    ):
        look = difference([[new]], one_each(*old), CYCLES)
        assert not look.logarithmic
        assert look.change == pytest.approx(change)
        assert look.set_aside == pytest.approx(aside)
        assert look.shown(look.change) == look.change
        assert look.floor == CYCLES.floor


# What people read


def test_a_ratio_beyond_all_numbers_is_shown_as_a_finite_one() -> None:
    look = difference([[1e300]], one_each(1e-300), CYCLES)
    assert math.isfinite(look.shown(look.change))
    assert look.shown(look.change) > 1e300
