"""The difference between processes and its standard error, against a second computation of both."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from statistics import median

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.interval import (
    UNCHANGED_RATE,
    centre,
    difference,
    error_of_median,
    quantile,
)
from pytest_gpuperf.judge.noise import BaselineGpus, Scale
from pytest_gpuperf.judge.tolerance import tolerance_for
from tests.judge.test_noise import set_aside_by_hand, spread_by_hand
from tests.strategies import few

CYCLES = tolerance_for(catalogue().metrics["cycles"])
HIT_RATE = tolerance_for(catalogue().metrics["l2_hit_rate"])

positive = st.floats(1e-3, 1e15)
MEDIAN_COST = {1: 1.0, 2: 1.0, 3: 1.16, 5: 1.20, 9: 1.22}
rounds_of = st.lists(st.lists(positive, min_size=1, max_size=5), min_size=1, max_size=9)


def one_each(*values: float) -> list[list[float]]:
    """Processes of one round."""
    return [[value] for value in values]


# The centre


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ([[3.0]], 3.0),
        ([[1.0, 2.0, 9.0]], 2.0),
        ([[1.0, 2.0]], 1.5),
        ([[1.0, 1.0, 50.0], [2.0], [3.0, 3.0]], 2.0),
    ],
)
def test_the_centre_is_the_median_of_the_processes_medians(
    rounds: list[list[float]], expected: float
) -> None:
    assert centre(rounds) == expected


def test_rounds_of_one_process_count_as_one_process() -> None:
    many = difference([[100.0] * 50], one_each(100.0, 100.0), CYCLES)
    one = difference([[100.0]], one_each(100.0, 100.0), CYCLES)
    assert many == one


# The change and its standard error


@few
@given(rounds_of, rounds_of)
@example([[100.0]], [[100.0]])
@example([[101.0, 99.0]], one_each(100.0, 100.1, 99.9, 100.0, 103.0))
@example([[101.0, 99.0]], one_each(100.0, 100.3, 99.7, 100.0, 100.4))
def test_relative_metrics_are_compared_by_their_logarithms(
    new: list[list[float]], old: list[list[float]]
) -> None:
    look = difference(new, old, CYCLES)
    logs = [math.log(median(process)) for process in old]
    aside = set_aside_by_hand(logs, CYCLES.scale)
    logs = [value for position, value in enumerate(logs) if position not in aside]
    spread, degrees = spread_by_hand(logs, CYCLES.scale)
    cost = MEDIAN_COST.get(len(new), 1.2533141373155)
    mean = sum(logs) / len(logs)
    assert look.relative
    assert look.logarithmic
    assert look.processes == len(new)
    assert look.changes == pytest.approx(
        [math.log(median(process)) - mean for process in new], abs=1e-9
    )
    assert look.change == pytest.approx(median(look.changes))
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
    assert not look.relative
    assert not look.logarithmic
    aside = set_aside_by_hand(old, HIT_RATE.scale)
    kept = [value for position, value in enumerate(old) if position not in aside]
    assert look.change == pytest.approx(median(new) - sum(kept) / len(kept), abs=1e-9)
    assert look.shown(look.change) == look.change
    cost = MEDIAN_COST.get(len(new), 1.2533141373155)
    spread, _ = spread_by_hand(kept, HIT_RATE.scale)
    assert look.standard_error == pytest.approx(
        spread * math.sqrt(1 / len(kept) + cost**2 / len(new)), rel=1e-6
    )


def test_the_printed_interval_is_that_of_the_equivalence_test() -> None:
    assert UNCHANGED_RATE == 0.0025
    look = difference(one_each(*[100.0] * 3), one_each(*[100.0] * 5), CYCLES)
    # scipy.stats.t.isf(0.0025, 24), from a table.
    assert look.margin == pytest.approx(3.0905 * look.standard_error, rel=1e-4)


@pytest.mark.parametrize(
    ("new", "cost"),
    [(1, 1.0), (2, 1.0), (3, 1.16), (4, 1.25331), (5, 1.2), (7, 1.25331), (9, 1.22)],
)
def test_a_median_is_less_sure_than_a_mean(new: int, cost: float) -> None:
    assert error_of_median(2e-3, new) == pytest.approx(2e-3 * cost / math.sqrt(new), rel=1e-5)
    look = difference(one_each(*[100.0] * new), one_each(*[100.0] * 5), CYCLES)
    by_hand = look.spread * math.sqrt(1 / 5 + cost**2 / new)
    assert look.standard_error == pytest.approx(by_hand, rel=1e-5)
    for other in (1, 3, 9):
        at_that_look = difference(one_each(*[100.0] * other), one_each(*[100.0] * 5), CYCLES)
        assert look.error_of(other) == pytest.approx(at_that_look.standard_error)


def test_the_scale_that_is_given_is_taken() -> None:
    scale = Scale(spread=0.01, degrees_of_freedom=7, set_aside=frozenset({1}))
    look = difference([[100.0]], one_each(100.0, 200.0, 100.0), CYCLES, None, scale)
    assert look.change == pytest.approx(0.0, abs=1e-12)
    assert (look.spread, look.degrees_of_freedom) == (0.01, 7)
    assert look.standard_error == pytest.approx(0.01 * math.sqrt(1 / 2 + 1))


# Days


@pytest.mark.parametrize(
    ("days", "count"),
    [
        (("mon",) * 4, 1),
        (("mon", "mon", "tue", "tue"), 2),
        (("mon", "tue", "wed", "thu"), 4),
        ((), 1),
    ],
)
@pytest.mark.parametrize("new", [1, 3, 9])
def test_more_processes_do_not_help_against_a_day_that_they_share(
    days: tuple[str, ...], count: int, new: int
) -> None:
    between = 4e-3
    tolerance = replace(CYCLES, between_days=between)
    gpus = BaselineGpus(("gpu",) * 4, frozenset({"gpu"}), days)
    values = one_each(*[100.0] * new), one_each(*[100.0] * 4)
    with_days = difference(*values, tolerance, gpus)
    without = difference(*values, CYCLES, gpus)
    assert with_days.standard_error**2 - without.standard_error**2 == pytest.approx(
        between**2 * (1 + 1 / count)
    )
    assert with_days.standard_error > between


def test_without_gpus_a_baseline_is_of_one_day() -> None:
    tolerance = replace(CYCLES, between_days=4e-3)
    look = difference([[100.0]], one_each(*[100.0] * 5), tolerance)
    assert look.reference_error**2 == pytest.approx(look.spread**2 / 5 + 2 * 4e-3**2)


@pytest.mark.parametrize(
    ("values", "pooled"),
    [
        ([100.0] * 5, 1e-3 * math.sqrt(20 / 24)),
        ([100.0], 1e-3),
        ([100.0, 100.0], 1e-3 * math.sqrt(20 / 21)),
    ],
)
def test_without_any_spread_the_scale_of_the_class_remains(
    values: list[float], pooled: float
) -> None:
    look = difference([[100.0]], one_each(*values), CYCLES)
    assert look.standard_error == pytest.approx(pooled * math.sqrt(1 + 1 / len(values)))


def test_one_odd_process_among_five_is_left_out() -> None:
    odd = difference([[100.0]], one_each(100.0, 100.0, 100.0, 100.0, 103.0), CYCLES)
    without = difference([[100.0]], one_each(100.0, 100.0, 100.0, 100.0), CYCLES)
    assert without.set_aside == ()
    assert odd.set_aside == pytest.approx([math.log(1.03)])
    assert replace(odd, set_aside=()) == without


def test_what_is_set_aside_has_its_change_from_the_same_centre() -> None:
    old = one_each(100.0, 100.1, 99.9, 100.0, 103.0, 90.0)
    look = difference([[102.0]], old, CYCLES)
    middle = sum(math.log(value) for value in (100.0, 100.1, 99.9, 100.0)) / 4
    assert look.set_aside == pytest.approx([math.log(103.0) - middle, math.log(90.0) - middle])
    assert look.change == pytest.approx(math.log(102.0) - middle)
    points = difference([[51.0]], one_each(50.0, 50.0, 50.0, 50.0, 58.0), HIT_RATE)
    assert points.set_aside == pytest.approx([8.0])
    assert points.change == pytest.approx(1.0)


@pytest.mark.parametrize(("odd", "change"), [(0.0, -1.0), (-50.0, -1.5)])
def test_a_value_without_a_logarithm_forbids_them_also_where_it_is_set_aside(
    odd: float, change: float
) -> None:
    look = difference([[110.0]], one_each(100.0, 100.0, 100.0, 100.0, odd), CYCLES)
    assert not look.logarithmic
    assert look.baseline == pytest.approx(100.0)
    assert look.change == pytest.approx(0.1)
    assert look.set_aside == pytest.approx([change])


def test_two_modes_raise_the_standard_error_to_what_was_seen() -> None:
    look = difference([[100.0]], one_each(100.0, 100.0, 100.0, 103.0, 103.0), CYCLES)
    logs = [0.0, 0.0, 0.0, math.log(1.03), math.log(1.03)]
    mean = sum(logs) / 5
    seen = math.sqrt(sum((value - mean) ** 2 for value in logs) / 4)
    assert look.standard_error == pytest.approx(seen * math.sqrt(1.2))


@few
@given(rounds_of, rounds_of, st.randoms(use_true_random=False))
def test_the_order_of_processes_and_rounds_does_not_matter(
    new: list[list[float]], old: list[list[float]], random: Random
) -> None:
    def shuffled(rounds: list[list[float]]) -> list[list[float]]:
        mixed = [random.sample(process, len(process)) for process in rounds]
        return random.sample(mixed, len(mixed))

    mixed, look = difference(shuffled(new), shuffled(old), CYCLES), difference(new, old, CYCLES)
    assert sorted(mixed.changes) == sorted(look.changes)
    assert sorted(mixed.set_aside) == sorted(look.set_aside)
    assert replace(mixed, changes=look.changes, set_aside=look.set_aside) == look


@few
@given(rounds_of, positive)
def test_more_processes_never_make_it_less_sure(old: list[list[float]], new: float) -> None:
    errors = [
        difference(one_each(*[new] * count), old, CYCLES).standard_error for count in (1, 3, 5, 9)
    ]
    assert errors == sorted(errors, reverse=True)


# Zeros and negative values, which have no logarithm


@pytest.mark.parametrize(
    ("new", "old", "change"),
    [
        (0.0, [10.0, 10.0], -1.0),
        (15.0, [0.0, 20.0], 0.5),
        (-5.0, [-10.0, -10.0], 0.5),
        (-15.0, [-10.0, -10.0], -0.5),
        (-10.0, [10.0], -2.0),
    ],
)
def test_without_a_logarithm_the_change_is_a_plain_share(
    new: float, old: list[float], change: float
) -> None:
    look = difference([[new]], one_each(*old), CYCLES)
    assert not look.logarithmic
    assert look.relative
    assert look.change == pytest.approx(change)
    assert look.shown(look.change) == look.change
    assert look.judged(0.25) == 0.25


def test_from_a_baseline_of_zero_there_is_no_share() -> None:
    assert difference([[3.0]], one_each(0.0, 0.0), CYCLES).from_zero
    assert not difference([[0.0]], one_each(3.0, 3.0), CYCLES).from_zero
    assert not difference([[3.0]], one_each(0.0, 0.0), HIT_RATE).from_zero


# What people read


@few
@given(st.floats(-0.99, 1e6))
def test_a_change_that_is_shown_can_be_judged_again(shown: float) -> None:
    look = difference([[100.0]], one_each(100.0), CYCLES)
    assert look.shown(look.judged(shown)) == pytest.approx(shown, rel=1e-9, abs=1e-15)


def test_a_ratio_beyond_all_numbers_is_shown_as_a_finite_one() -> None:
    look = difference([[1e300]], one_each(1e-300), CYCLES)
    assert math.isfinite(look.shown(look.change))
    assert look.shown(look.change) > 1e300
