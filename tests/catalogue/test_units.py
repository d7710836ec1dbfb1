"""Numbers as people read them."""

from __future__ import annotations

import math
import re

from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.model.measurement import Scalar
from pytest_gpuperf.model.result import Outcome
from tests.examples import verdict


def test_a_value_has_five_digits_and_the_prefix_of_its_unit() -> None:
    for number, unit, text in (
        (None, "cycles", "-"),
        (437_821_234.0, "cycles", "437.82 M"),
        (43_782_123_456.0, "cycles", "43.782 G"),
        (4.4e12, "FLOP", "4.4000 TFLOP"),
        (123_456.0, "instructions", "123.46 k"),
        (123_456.0, "thread instructions", "123.46 k"),
        (99_999.0, "calls", "99999"),
        (1312.0, "calls", "1312"),
        (0.0, "copies", "0"),
        (12.5, "copies", "12.5"),
        (3.0, "allocations", "3"),
        (1.0, "breaks", "1"),
        (2.0, "compilations", "2"),
        (4.0, "graphs", "4"),
        (232_412_345.0, "ns", "232.41 ms"),
        (232.412345, "ms", "232.41 ms"),
        (0.0, "ms", "0 ms"),
        (0.012345678, "ms", "0.012346 ms"),
        (1e-9, "ms", "1.0000e-09 ms"),
        (1_073_741_824.0, "bytes", "1.0000 GiB"),
        (160_905_736.0, "bytes", "153.45 MiB"),
        (4096.0, "bytes", "4096 B"),
        (0.0, "bytes", "0 B"),
        (93.456, "%", "93.46 %"),
        (0.0, "%", "0.00 %"),
        (2.123456, "instructions/cycle", "2.1235"),
        (0.0, "warps/issue", "0"),
        (-2.5, "warps/cycle", "-2.5000"),
        (-437_821_234.0, "cycles", "-437.82 M"),
    ):
        assert units.value(number, unit) == text, (number, unit)


@given(
    st.floats(-1e18, 1e18),
    st.sampled_from(["cycles", "FLOP", "bytes", "ns", "ms", "%", "instructions/cycle"]),
)
def test_every_value_is_one_short_word_and_its_unit(number: float, unit: str) -> None:
    text = units.value(number, unit)
    limit = 26 if unit == "%" else 18
    assert len(text) <= limit
    assert re.fullmatch(r"-?[\d.]+(e[+-]\d+)?( [a-zA-Z%]+)?", text)


def test_a_relative_change() -> None:
    for change, text in (
        (0.0, "0 %"),
        (-0.0, "0 %"),
        (0.0031, "+0.31 %"),
        (-0.0214, "-2.14 %"),
        (0.999, "+99.90 %"),
        (1.0, "x2"),
        (4.4, "x5.4"),
        (1233.0, "x1.23e+03"),
        (-0.5, "-50.00 %"),
        (-1.0, "-100.00 %"),
        (5e-5, "+0.01 %"),
        (4.9e-5, "+0.005 %"),
        (-3e-5, "-0.003 %"),
        (-3e-6, "-0.000 %"),
        (2.28e-9, "+0.000 %"),
        # The rounding of a logarithm, on identical values.
        (3.55e-15, "0 %"),
        (-3.55e-15, "0 %"),
    ):
        assert units.change(verdict(change=change)) == text, change


def test_changes_that_stand_together_have_one_form() -> None:
    """Percent, or factors where one of them is a doubling; a table never has both."""
    for changes, texts in (
        ([0.99, -0.823, 0.0, 3e-6], ["+99.00 %", "-82.30 %", "0 %", "+0.000 %"]),
        ([3.83, -0.823, 0.0, 0.0011, 3e-6], ["x4.83", "x0.177", "x1", "x1.0011", "x1.000003"]),
        ([1.0, -0.05, 0.5, None], ["x2", "x0.95", "x1.5", "-"]),
    ):
        assert units.changes([verdict(change=change, baseline=None) for change in changes]) == texts


def test_points_are_points_whatever_stands_beside_them() -> None:
    beside = [verdict(change=55.0, points=True), verdict(change=0.02)]
    assert units.changes(beside) == ["+55.00 pt", "+2.00 %"]
    assert units.changes([beside[0], verdict(change=3.0)]) == ["+55.00 pt", "x4"]


def test_an_interval_has_one_form() -> None:
    assert units.interval(0.98, 1.02) == ("x1.98", "x2.02")
    assert units.interval(-2e-6, 0.0001) == ("-0.000 %", "+0.01 %")
    assert units.interval(0.5, 1.5, points=True) == ("+0.50 pt", "+1.50 pt")


def test_unchanged_says_how_little_it_has_seen_where_that_is_far_from_the_tolerance() -> None:
    """As between GPUs that differ: tolerance 8.4 %, and no loss below 45 % would be found."""
    for outcome, tolerance, least, word in (
        (Outcome.UNCHANGED, 0.005, 0.0098, "unchanged"),
        (Outcome.UNCHANGED, 0.084, 0.25, "unchanged"),
        (Outcome.UNCHANGED, 0.084, 0.252, "unchanged (MDE 25 %)"),
        (Outcome.UNCHANGED, 0.084, 0.45, "unchanged (MDE 45 %)"),
        (Outcome.UNCHANGED, 0.084, None, "unchanged"),
        (Outcome.UNCHANGED, None, 0.45, "unchanged"),
        (Outcome.INCONCLUSIVE, 0.084, 0.45, "inconclusive"),
    ):
        said = verdict(outcome=outcome, tolerance=tolerance, minimum_detectable_effect=least)
        assert units.outcome(said) == word, (tolerance, least)


def test_a_change_of_a_percentage_is_in_points_and_there_may_be_none() -> None:
    for changes, text in (
        *(
            ({"change": 0.0, "points": True}, "+0.00 pt"),
            ({"change": -2.14, "points": True}, "-2.14 pt"),
        ),
        ({"change": -1e-9, "points": True}, "+0.00 pt"),
        *(({"change": None, "baseline": None}, "-"), ({"change": None, "baseline": 0.0}, "from 0")),
        ({"change": None, "baseline": 0.0, "measured": 0.0}, "-"),
        ({"change": None, "baseline": 0.0, "measured": None}, "-"),
    ):
        assert units.change(verdict(**changes)) == text, changes


def test_a_tolerance_is_in_the_unit_of_its_change_and_what_would_be_found_has_two_digits() -> None:
    for number, points, tolerance, found in (
        (None, False, "-", "-"),
        (0.0075, False, "0.75 %", "0.75 %"),
        (0.7 / 100, False, "0.7 %", "0.7 %"),
        (math.expm1(math.log1p(0.005)), False, "0.5 %", "0.5 %"),
        (0.996, False, "99.6 %", "100 %"),
        (123.45, False, "12300 %", "12000 %"),
        (0.75, True, "0.75 pt", "0.75 pt"),
    ):
        shown = verdict(tolerance=number, minimum_detectable_effect=number, points=points)
        assert units.tolerance(shown) == tolerance, number
        assert units.minimum_detectable_effect(shown) == found, number


def test_where_two_workloads_differ() -> None:
    old: dict[str, Scalar] = {"size": 128, "batch": 1, "data": "mni"}
    new: dict[str, Scalar] = {"size": 64, "batch": 1, "seed": 3}
    assert units.differences(old, new) == (
        "size 128, here 64; data mni, here unset; seed unset, here 3"
    )
    assert units.differences(old, dict(old)) == ""


def test_a_duration_has_the_unit_that_people_use() -> None:
    seconds = (0.4, 61, 99.4, 99.6, 120, 596, 598, 99 * 60, 100 * 60, 7200, 1000 * 3600)
    assert " ".join(units.duration(number).replace(" ", "") for number in seconds) == (
        "0s 61s 99s 1.7min 2min 9.9min 10min 99min 1.7h 2h 1000h"
    )


def test_what_is_counted_is_in_the_plural() -> None:
    said = [units.counted(*many) for many in ((0, "run"), (1, "run"), (2, "process"))]
    assert said == ["0 runs", "1 run", "2 processes"]
