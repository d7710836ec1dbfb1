"""The difference between processes and its standard error, against a second computation of both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from statistics import median

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuperf.judge.interval import centre, difference
from pytest_gpuperf.judge.tolerance import Tolerance, tolerance_for
from pytest_gpuperf.metrics import catalogue

CYCLES = tolerance_for(catalogue().metrics["cycles"])
HIT_RATE = tolerance_for(catalogue().metrics["l2_hit_rate"])

positive = st.floats(1e-3, 1e15)
rounds_of = st.lists(st.lists(positive, min_size=1, max_size=5), min_size=1, max_size=9)


def one_each(*values: float) -> list[list[float]]:
    """Processes of one round."""
    return [[value] for value in values]


def spread_by_hand(values: Sequence[float], tolerance: Tolerance) -> float:
    """The pooled spread s, term by term: prior weight 20, and never below what was seen."""
    count = len(values)
    mean = sum(values) / count
    sum_of_squares = sum((value - mean) ** 2 for value in values)
    pooled = (20 * tolerance.scale**2 + sum_of_squares) / (20 + count - 1)
    seen = sum_of_squares / (count - 1) if count > 1 else 0.0
    return math.sqrt(max(pooled, seen))


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


@given(rounds_of, rounds_of)
@example([[100.0]], [[100.0]])
@example([[101.0, 99.0]], one_each(100.0, 100.1, 99.9, 100.0, 103.0))
def test_relative_metrics_are_compared_by_their_logarithms(
    new: list[list[float]], old: list[list[float]]
) -> None:
    look = difference(new, old, CYCLES)
    logs = [math.log(median(process)) for process in old]
    cost = {1: 1.0, 2: 1.0, 3: 1.16, 5: 1.20, 9: 1.22}.get(len(new), 1.2533141373155)
    mean = sum(logs) / len(logs)
    assert look.relative
    assert look.logarithmic
    assert look.change == pytest.approx(
        median(math.log(median(process)) for process in new) - mean, abs=1e-9
    )
    assert look.baseline == pytest.approx(math.exp(mean))
    assert look.measured == pytest.approx(centre(new))
    assert look.degrees_of_freedom == 19 + len(old)
    assert look.standard_error == pytest.approx(
        spread_by_hand(logs, CYCLES) * math.sqrt(1 / len(old) + cost**2 / len(new)), rel=1e-6
    )


@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=9),
    st.lists(st.floats(0, 100), min_size=1, max_size=9),
)
def test_percentages_are_compared_in_points(new: list[float], old: list[float]) -> None:
    look = difference(one_each(*new), one_each(*old), HIT_RATE)
    assert not look.relative
    assert not look.logarithmic
    assert look.change == pytest.approx(median(new) - sum(old) / len(old), abs=1e-9)
    assert look.shown(look.change) == look.change
    cost = {1: 1.0, 2: 1.0, 3: 1.16, 5: 1.20, 9: 1.22}.get(len(new), 1.2533141373155)
    assert look.standard_error == pytest.approx(
        spread_by_hand(old, HIT_RATE) * math.sqrt(1 / len(old) + cost**2 / len(new)), rel=1e-6
    )


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


def test_one_noisy_process_raises_the_standard_error_to_what_was_seen() -> None:
    look = difference([[100.0]], one_each(100.0, 100.0, 100.0, 100.0, 103.0), CYCLES)
    logs = [0.0, 0.0, 0.0, 0.0, math.log(1.03)]
    mean = sum(logs) / 5
    seen = math.sqrt(sum((value - mean) ** 2 for value in logs) / 4)
    assert look.standard_error == pytest.approx(seen * math.sqrt(1.2))


@given(rounds_of, rounds_of, st.randoms(use_true_random=False))
def test_the_order_of_processes_and_rounds_does_not_matter(
    new: list[list[float]], old: list[list[float]], random: Random
) -> None:
    def shuffled(rounds: list[list[float]]) -> list[list[float]]:
        mixed = [random.sample(process, len(process)) for process in rounds]
        return random.sample(mixed, len(mixed))

    assert difference(shuffled(new), shuffled(old), CYCLES) == difference(new, old, CYCLES)


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


@given(st.floats(-0.99, 1e6))
def test_a_change_that_is_shown_can_be_judged_again(shown: float) -> None:
    look = difference([[100.0]], one_each(100.0), CYCLES)
    assert look.shown(look.judged(shown)) == pytest.approx(shown, rel=1e-9, abs=1e-15)


def test_a_ratio_beyond_all_numbers_is_shown_as_a_finite_one() -> None:
    look = difference([[1e300]], one_each(1e-300), CYCLES)
    assert math.isfinite(look.shown(look.change))
    assert look.shown(look.change) > 1e300
