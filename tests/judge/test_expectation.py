"""Limits and ratios: how they are written, the interval, and the outcome around each bound."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import pytest
from scipy import stats

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.judge.expectation import Ratio, check_bounds, limits, ratio
from pytest_gpuperf.judge.tolerance import parse_limit
from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.model.result import Expectation, Outcome
from tests.examples import measurement, processes

METRICS = catalogue().metrics
INCONCLUSIVE, HOLDS, BROKEN = Outcome.INCONCLUSIVE, Outcome.HOLDS, Outcome.BROKEN

T_20 = float(stats.t.isf(0.0025, 20))
"""For one process: the class's scale alone, which counts for 20 degrees of freedom."""


def of(metric: str, *medians: float) -> list[Measurement]:
    """Measurements of one metric, one process per value."""
    return processes(metric, [[value] for value in medians])


def limit(metric: str, written: object, *medians: float) -> Expectation:
    """What comes of one limit."""
    (expectation,) = limits(of(metric, *medians), {metric: written}, METRICS)
    return expectation


def quotient(
    metric: str,
    over: Sequence[float],
    under: Sequence[float],
    above: float | None = None,
    below: float | None = None,
) -> Expectation:
    """What comes of one ratio."""
    asked = Ratio("test", "suite", METRICS[metric], "over", "under", above, below)
    return ratio(asked, of(metric, *over), of(metric, *under))


def test_limits_as_people_write_them() -> None:
    for metric, written, bound in (
        ("duration", "250ms", 250e6),
        ("duration", "1.5 s", 1.5e9),
        ("duration", "80us", 80e3),
        ("duration", "7ns", 7.0),
        ("step_time", "250ms", 250.0),
        ("peak_memory", "6GiB", 6 * 2.0**30),
        ("peak_memory", "6GB", 6e9),
        ("peak_memory", "512KiB", 2.0**19),
        ("dram_bytes", "1TiB", 2.0**40),
        ("saved_bytes", "0B", 0.0),
        ("cycles", "450M", 450e6),
        ("instructions", "1T", 1e12),
        ("operators", "3506", 3506.0),
        ("operators", 3506, 3506.0),
        ("flops", "260 GFLOP", 260e9),
        ("flops", "260G", 260e9),
        ("sm_throughput", "30%", 30.0),
        ("ipc", "1.5", 1.5),
        ("ipc", 1.5, 1.5),
    ):
        assert parse_limit(written, METRICS[metric]) == pytest.approx(bound), (metric, written)


def test_a_limit_that_makes_no_sense_is_refused_with_an_example() -> None:
    for metric, written, example in (
        ("duration", "250", '"250ms"'),
        ("duration", 250, '"250ms"'),
        ("peak_memory", "6", '"6GiB"'),
        ("peak_memory", "6Gib", '"6GiB"'),
        ("cycles", "450ms", '"450M"'),
        ("cycles", "-1", '"450M"'),
        ("cycles", -1, '"450M"'),
        ("cycles", "nan", '"450M"'),
        ("cycles", math.inf, '"450M"'),
        ("cycles", "1e400", '"450M"'),
        ("cycles", True, '"450M"'),
        ("cycles", None, '"450M"'),
        ("cycles", "", '"450M"'),
        ("flops", "1 FLOPS", '"260G"'),
        ("sm_throughput", "30", '"30%"'),
        ("sm_throughput", "30pt", '"30%"'),
        ("ipc", "1.5M", '"1.5"'),
    ):
        with pytest.raises(UsageFailure) as caught:
            parse_limit(written, METRICS[metric])
        text = str(caught.value)
        assert text.startswith(f"limit {written!r} for {metric} is "), (metric, written)
        assert example in text, (metric, written)


# s0 of cycles is 0.1 %: a single process is sure to T_20 * 0.1 % = 0.32 %.
def test_around_an_upper_limit() -> None:
    for share, medians, outcome, reason in (
        (0.9965, 1, HOLDS, "within"),
        (0.9975, 1, INCONCLUSIVE, "unsure"),
        (1.0025, 1, INCONCLUSIVE, "unsure"),
        (1.0035, 1, INCONCLUSIVE, "too-few-processes"),
        (2.0, 3, BROKEN, "beyond"),
        (1.0035, 3, BROKEN, "beyond"),
        (1.001, 3, INCONCLUSIVE, "unsure"),
        (0.9975, 3, HOLDS, "within"),
    ):
        expectation = limit("cycles", "450M", *[share * 450e6] * medians)
        assert (expectation.outcome, expectation.reason) == (outcome, reason), (share, medians)
        assert (expectation.below, expectation.above) == (450e6, None)
        assert (expectation.processes, expectation.unit) == (medians, "cycles")


# s0 of a percentage is 0.15 points: a single process is sure to 0.47 points.
def test_around_a_lower_limit() -> None:
    for value, medians, outcome in (
        (30.5, 1, HOLDS),
        (30.4, 1, INCONCLUSIVE),
        (29.6, 1, INCONCLUSIVE),
        (29.0, 1, INCONCLUSIVE),
        (29.0, 3, BROKEN),
    ):
        expectation = limit("l2_hit_rate", "30%", *[value] * medians)
        assert expectation.outcome is outcome, (value, medians)
        assert (expectation.above, expectation.below) == (30.0, None), (value, medians)


def test_a_count_that_never_varies_is_a_whole_number() -> None:
    for written, value, outcome in (
        ("3506", 3506, HOLDS),
        ("3505", 3506, INCONCLUSIVE),
        ("0", 0, HOLDS),
        ("0", 1, INCONCLUSIVE),
    ):
        expectation = limit("operators", written, value)
        assert (expectation.low, expectation.measured, expectation.high) == (value, value, value)
        assert expectation.outcome is outcome, (written, value)
    assert limit("layout_copies", "0", 1, 1, 1).outcome is BROKEN


def test_a_metric_that_was_not_measured_is_unsupported() -> None:
    measured = measurement({"cycles": [1.0]}, unsupported={"duration": "no such counter"})
    expectation = limits([measured], {"duration": "1s", "l2_hit_rate": "3%"}, METRICS)
    assert [entry.outcome for entry in expectation] == [Outcome.UNSUPPORTED] * 2
    assert {entry.reason for entry in expectation} == {"not-collected"}
    assert expectation[0].detail == "no such counter"
    assert expectation[1].detail == "this metric was not measured"


def test_bounds_that_make_no_sense_are_refused() -> None:
    cases: tuple[tuple[Any, Any, str], ...] = (
        (None, None, "pass a bound"),
        (0.0, None, "above=0.0 must be a ratio above zero"),
        (None, -1.0, "below=-1.0 must be a ratio above zero"),
        (None, math.inf, "below=inf must be a ratio above zero"),
        (math.nan, None, "above=nan must be a ratio above zero"),
        (None, True, "below=True must be a ratio above zero"),
        (None, "0.25", "below='0.25' must be a ratio above zero"),
        (1.0, 1.0, "above=1 must be smaller than below=1"),
        (2.0, 1.0, "above=2 must be smaller than below=1"),
    )
    for above, below, says in cases:
        with pytest.raises(UsageFailure, match=re.escape(says)):
            check_bounds(above, below)


# Both sides have an error of 0.1 %, so the ratio of single processes is sure to 0.45 %.
def test_around_both_bounds_of_a_ratio() -> None:
    for share, count, outcome, reason in (
        (0.9, 1, HOLDS, "within"),
        (0.995, 1, HOLDS, "within"),
        (0.996, 1, INCONCLUSIVE, "unsure"),
        (1.004, 1, INCONCLUSIVE, "unsure"),
        (1.006, 1, INCONCLUSIVE, "too-few-processes"),
        (1.006, 3, BROKEN, "beyond"),
        (0.998, 3, INCONCLUSIVE, "unsure"),
    ):
        under, over = [400e6] * count, [0.25 * share * 400e6] * count
        for expectation in (
            quotient("cycles", over, under, below=0.25),
            quotient("cycles", under, over, above=4.0),
        ):
            assert (expectation.outcome, expectation.reason) == (outcome, reason), (share, count)
    for value, outcome in ((0.9, BROKEN), (0.97, INCONCLUSIVE), (1.0, HOLDS), (1.1, BROKEN)):
        over = [value * 400e6] * 3
        between = quotient("cycles", over, [400e6] * 3, above=0.97, below=1.03)
        assert between.outcome is outcome, value


def test_the_interval_of_a_ratio_by_hand() -> None:
    expectation = quotient("cycles", [100e6], [400e6], below=0.35)
    margin = T_20 * math.hypot(1e-3, 1e-3)
    assert expectation.measured == pytest.approx(0.25)
    assert expectation.low == pytest.approx(0.25 * math.exp(-margin))
    assert expectation.high == pytest.approx(0.25 * math.exp(margin))
    assert expectation.unit == ""


def test_a_ratio_of_percentages_by_hand() -> None:
    # 23.08 - 1.5 * 0.86 = 21.79 points, sure to T_20 * 0.15 * sqrt(1 + 1.5^2) = 0.85
    for over, outcome in ((23.08, HOLDS), (2.15, HOLDS), (2.13, INCONCLUSIVE)):
        expectation = quotient("tensor_utilization", [over], [0.86], above=1.5)
        assert expectation.outcome is outcome, over
        assert expectation.measured == pytest.approx(over / 0.86)
        assert (expectation.low, expectation.high) == (None, None)


def test_a_ratio_beyond_all_numbers_is_not_given() -> None:
    expectation = quotient("tensor_utilization", [100.0] * 3, [5e-324] * 3, above=1.5)
    assert expectation.outcome is HOLDS
    assert (expectation.low, expectation.measured, expectation.high) == (None, None, None)


def test_zeros_need_no_division() -> None:
    expectation = quotient("tensor_utilization", [9.98] * 3, [0.0] * 3, above=1.5)
    assert expectation.outcome is HOLDS
    assert (expectation.measured, expectation.low, expectation.high) == (None, None, None)
    assert quotient("tensor_utilization", [9.98] * 3, [0.0] * 3, below=1.5).outcome is BROKEN
    assert quotient("tensor_utilization", [9.98], [0.0], below=1.5).outcome is INCONCLUSIVE
    # Copies where there were none.
    assert quotient("layout_copies", [39] * 3, [0] * 3, above=2.0).outcome is HOLDS
    expectation = quotient("layout_copies", [0], [39], below=0.5)
    assert expectation.outcome is HOLDS
    assert expectation.measured == 0.0
    for metric in ("layout_copies", "tensor_utilization"):
        expectation = quotient(metric, [0.0] * 3, [0.0] * 3, below=0.5)
        assert (expectation.outcome, expectation.reason) == (Outcome.UNSUPPORTED, "both-zero")
        assert expectation.detail == "both values are 0, so they have no ratio"


def test_a_ratio_of_what_one_side_lacks_is_unsupported() -> None:
    measured = of("cycles", 1.0, 1.0, 1.0)
    for unsupported, detail in (({"cycles": "not permitted"}, "not permitted"), ({}, "")):
        lacking = [
            measurement({"ipc": [1.0]}, unsupported=unsupported, process=process)
            for process in ("p1", "p2")
        ]
        for sides in ((lacking, measured), (measured, lacking)):
            said = ratio(Ratio("t", "s", METRICS["cycles"], "a", "b", below=0.5), *sides)
            assert (said.outcome, said.reason) == (Outcome.UNSUPPORTED, "not-collected")
            assert (said.metric, said.processes, said.detail) == ("cycles", 2, detail)
