"""The verdict on one difference, and on all metrics of a measurement."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from random import Random
from statistics import median

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.interval import UNCHANGED_RATE, Difference, difference
from pytest_gpuperf.judge.stopping import ALARMING
from pytest_gpuperf.judge.tolerance import Tolerance, tolerance_for
from pytest_gpuperf.judge.verdict import (
    ABSENT,
    ALARM_RATE,
    MISS_RATE,
    OTHER_GPU,
    Reference,
    decide,
    judge,
    minimum_detectable_effect,
    samples_by_phase,
)
from pytest_gpuperf.model.entry import Calibration, Spread
from pytest_gpuperf.model.measurement import STEP, Measurement
from pytest_gpuperf.model.metric import Direction, Metric, MetricClass
from pytest_gpuperf.model.result import Outcome, Verdict
from tests.examples import H200, TEST, measurement, processes
from tests.strategies import few

METRICS = catalogue().metrics
CYCLES, INSTRUCTIONS = METRICS["cycles"], METRICS["instructions"]
LOWER, HIGHER = Direction.LOWER, Direction.HIGHER
REGRESSED, IMPROVED = Outcome.REGRESSED, Outcome.IMPROVED
UNCHANGED, INCONCLUSIVE = Outcome.UNCHANGED, Outcome.INCONCLUSIVE

UTILIZATION = replace(METRICS["tensor_utilization"], gated=True)
"""A percentage that is better when higher. The catalogue gates none so far."""

CLASSES_AND_DIRECTIONS = tuple(product(MetricClass, (LOWER, HIGHER)))

positive = st.floats(1e-2, 1e13)


def one_each(*values: float) -> list[list[float]]:
    """Processes of one round."""
    return [[value] for value in values]


def look_at(*changes: float, error: float = 0.0, points: bool = False) -> Difference:
    """Processes that changed by this, all with this standard error, from five of a baseline."""
    return Difference(
        baseline=100.0,
        measured=100.0 + median(changes),
        changes=changes,
        spread=0.0,
        reference_error=error,
        degrees_of_freedom=24,
        relative=not points,
        logarithmic=not points,
    )


@lru_cache
def t_upper_quantile(tail: float, degrees: int) -> float:
    """Student's t that is exceeded with probability `tail`, from Simpson's rule on its density."""
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2))
    scale /= math.sqrt(degrees * math.pi)

    def exceeded(t: float) -> float:
        steps = 2000
        width = t / steps
        heights = [
            math.pow(1 + (i * width) ** 2 / degrees, -(degrees + 1) / 2) for i in range(steps + 1)
        ]
        area = heights[0] + heights[-1] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2])
        return 0.5 - scale * area * width / 3

    low, high = 0.0, 50.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if exceeded(middle) > tail else (low, middle)
    return low


def verdict_of(
    new: Sequence[Sequence[float]],
    old: Sequence[Sequence[float]],
    metric: Metric = CYCLES,
    written: str | None = None,
) -> Verdict:
    """The verdict on one metric of the whole step."""
    verdicts = judge(
        processes(metric.name, new),
        Reference({STEP: {metric.name: old}}),
        {metric.name: metric},
        {metric.name: written} if written else {},
    )
    assert len(verdicts) == 1
    return verdicts[0]


def outcome_of(
    new: Sequence[Sequence[float]],
    old: Sequence[Sequence[float]],
    metric: Metric = CYCLES,
    written: str | None = None,
) -> Outcome:
    """The outcome of the same."""
    return verdict_of(new, old, metric, written).outcome


def toleration(metric_class: MetricClass, *, points: bool = False) -> Tolerance:
    """The tolerance of a class."""
    return tolerance_for(replace(CYCLES, metric_class=metric_class, percentage=points))


def worse(direction: Direction, change: float) -> float:
    """A change of this size in the bad direction."""
    return -change if direction is HIGHER else change


# The quantile, by another way


@pytest.mark.parametrize(("tail", "degrees"), [(0.0025, 24), (0.0025, 20), (1e-3 / 9, 24)])
def test_the_oracle_for_t_agrees_with_scipy(tail: float, degrees: int) -> None:
    from scipy import stats

    assert t_upper_quantile(tail, degrees) == pytest.approx(stats.t.isf(tail, degrees), rel=1e-6)


# The floor (delta0): below it nothing is reported, beyond it not by one process alone


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 5, 9])
def test_around_the_floor(processes: int) -> None:
    for case in product(CLASSES_AND_DIRECTIONS, (False, True), (0.0, 1 - 1e-9, 1.0, 1 + 1e-9, 9)):
        (metric_class, direction), points, share = case
        tolerance = toleration(metric_class, points=points)
        change = share * (tolerance.floor if points else math.log1p(tolerance.floor))
        for sign, outcome in ((1, REGRESSED), (-1, IMPROVED)):
            look = look_at(*[worse(direction, sign * change)] * processes, points=points)
            if share <= 1:
                expected = (UNCHANGED, "within-tolerance")
            elif processes < 3:
                expected = (INCONCLUSIVE, "too-few-processes")
            else:
                expected = (outcome, "beyond-floor")
            assert decide(direction, look, tolerance, 1) == expected, (case, sign)


@few
@given(st.floats(-2, 2), st.floats(0, 2), st.integers(1, 2), st.integers(1, 20))
def test_up_to_two_processes_never_alarm_and_never_improve(
    change: float, error: float, processes: int, family: int
) -> None:
    look = look_at(*[change] * processes, error=error)
    for direction in (LOWER, HIGHER):
        decision = decide(direction, look, toleration(MetricClass.CYCLE), family)
        assert decision[0] in (UNCHANGED, INCONCLUSIVE)
        assert (decision[1] == "too-few-processes") is (abs(change) > math.log1p(0.005))


FLOOR = math.log1p(0.005)
JUST, NOT_QUITE = FLOOR * (1 + 1e-9), FLOOR * (1 - 1e-9)


@pytest.mark.parametrize(
    ("changes", "beyond", "otherwise"),
    [
        # Three or four have to agree, each of them.
        ((JUST, JUST, JUST), True, None),
        ((JUST, 1.5 * FLOOR, 9.0), True, None),
        ((NOT_QUITE, 1.5 * FLOOR, 1.5 * FLOOR), False, (UNCHANGED, "within-tolerance")),
        ((FLOOR, 1.5 * FLOOR, 1.5 * FLOOR), False, (UNCHANGED, "within-tolerance")),
        ((NOT_QUITE, 9.0, 9.0), False, (INCONCLUSIVE, "beyond-floor-unsure")),
        ((-9.0, 9.0, 9.0), False, (INCONCLUSIVE, "beyond-floor-unsure")),
        ((0.0, 0.0, 9.0), False, (UNCHANGED, "within-tolerance")),
        ((JUST, JUST, JUST, JUST), True, None),
        ((NOT_QUITE, 9.0, 9.0, 9.0), False, (INCONCLUSIVE, "beyond-floor-unsure")),
        # Of five and more, the median.
        ((0.0, 0.0, JUST, JUST, JUST), True, None),
        ((-9.0, -9.0, JUST, JUST, JUST), True, None),
        ((0.0, 0.0, NOT_QUITE, 9.0, 9.0), False, (UNCHANGED, "within-tolerance")),
        ((0.0,) * 4 + (JUST,) * 5, True, None),
        ((0.0,) * 5 + (9.0,) * 4, False, (UNCHANGED, "within-tolerance")),
    ],
)
def test_three_and_four_have_to_agree_and_of_five_and_more_the_median(
    changes: tuple[float, ...], beyond: bool, otherwise: tuple[Outcome, str] | None
) -> None:
    for direction, sign in product((LOWER, HIGHER), (1, -1)):
        look = look_at(*(worse(direction, sign * change) for change in changes))
        called = (REGRESSED if sign > 0 else IMPROVED, "beyond-floor") if beyond else otherwise
        assert decide(direction, look, toleration(MetricClass.CYCLE), 1) == called, direction


# Chance: a change beyond the floor needs to be further from zero than noise explains


def test_around_the_alarm_quantile() -> None:
    for case in product(CLASSES_AND_DIRECTIONS, (3, 5, 9), (1, 16), (1 - 1e-6, 1 + 1e-6)):
        (metric_class, direction), processes, family, share = case
        tolerance = toleration(metric_class)
        change = 6 * math.log1p(tolerance.floor)
        error = change / t_upper_quantile(ALARM_RATE / (3 * family), 24) / share
        for sign, outcome in ((1, REGRESSED), (-1, IMPROVED)):
            look = look_at(*[worse(direction, sign * change)] * processes, error=error)
            sure, unsure = (outcome, "beyond-floor"), (INCONCLUSIVE, "beyond-floor-unsure")
            expected = sure if share > 1 else unsure
            assert decide(direction, look, tolerance, family) == expected, (case, sign)


def test_the_error_rates_are_those_of_the_statistics() -> None:
    assert (ALARM_RATE, ALARMING, UNCHANGED_RATE, MISS_RATE) == (1e-3, 3, 0.0025, 0.01)


# A value that the baseline has seen, in a process that was set aside


def beside_seen(change: float, *seen: float, spread: float = 1e-5) -> Difference:
    """Three processes that changed by this, against a baseline that saw these changes once each."""
    return replace(look_at(*[change] * 3, error=1e-6), spread=spread, set_aside=seen)


COUNTED = tolerance_for(INSTRUCTIONS)
SEEN = (INCONCLUSIVE, "seen-in-baseline")


@pytest.mark.parametrize(
    ("spreads", "seen"),
    [(0.0, True), (5 - 1e-6, True), (5 + 1e-6, False), (50.0, False)],
)
def test_a_count_within_five_spreads_of_one_that_was_set_aside_is_no_news(
    spreads: float, seen: bool
) -> None:
    for direction, sign, side in product((LOWER, HIGHER), (1, -1), (1, -1)):
        change = worse(direction, sign * 1e-3)
        look = beside_seen(change, change + side * spreads * 1e-5)
        news = (REGRESSED if sign > 0 else IMPROVED, "beyond-floor")
        expected = SEEN if seen else news
        assert decide(direction, look, COUNTED, 1) == expected, (direction, sign, side)


@pytest.mark.parametrize("processes", [3, 5, 9])
def test_more_processes_do_not_make_it_news(processes: int) -> None:
    look = replace(beside_seen(1e-3, 1e-3), changes=(1e-3,) * processes)
    assert decide(LOWER, look, COUNTED, 1) == SEEN


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ((), (REGRESSED, "beyond-floor")),
        ((-1e-3,), (REGRESSED, "beyond-floor")),
        ((-1e-3, 5e-3), (REGRESSED, "beyond-floor")),
        ((-1e-3, 1e-3), SEEN),
        ((1e-3, 5e-3), SEEN),
    ],
)
def test_any_process_that_was_set_aside_may_have_been_it(
    seen: tuple[float, ...], expected: tuple[Outcome, str]
) -> None:
    assert decide(LOWER, beside_seen(1e-3, *seen), COUNTED, 1) == expected


def test_only_what_would_be_called_is_called_seen() -> None:
    one = replace(beside_seen(1e-3, 1e-3), changes=(1e-3,))
    assert decide(LOWER, one, COUNTED, 1) == (INCONCLUSIVE, "too-few-processes")
    split = replace(beside_seen(1e-3, 1e-3), changes=(0.0, 1e-3, 1e-3))
    assert decide(LOWER, split, COUNTED, 1) == (INCONCLUSIVE, "beyond-floor-unsure")
    assert decide(LOWER, beside_seen(0.0, 1e-3), COUNTED, 1) == (UNCHANGED, "within-tolerance")


@pytest.mark.parametrize("metric_class", [MetricClass.CYCLE, MetricClass.RATIO])
def test_what_is_noisy_by_nature_has_no_second_value(metric_class: MetricClass) -> None:
    """A slow process of the baseline is one of fifty; three slow ones are not."""
    tolerance = toleration(metric_class)
    assert decide(LOWER, beside_seen(0.02, 0.02), tolerance, 1) == (REGRESSED, "beyond-floor")


@pytest.mark.parametrize(
    ("measured", "metric", "expected", "reason"),
    [
        (1_001_000, INSTRUCTIONS, INCONCLUSIVE, "seen-in-baseline"),
        (1_001_020, INSTRUCTIONS, INCONCLUSIVE, "seen-in-baseline"),
        (1_002_000, INSTRUCTIONS, REGRESSED, "beyond-floor"),
        (999_000, INSTRUCTIONS, IMPROVED, "beyond-floor"),
        (1_000_000, INSTRUCTIONS, UNCHANGED, "within-tolerance"),
        (1_020_000, CYCLES, REGRESSED, "beyond-floor"),
    ],
)
def test_identical_code_that_has_two_counts(
    measured: float, metric: Metric, expected: Outcome, reason: str
) -> None:
    """Of which four processes of the baseline had one, and one the other."""
    odd = 1_020_000 if metric is CYCLES else 1_001_000
    verdict = verdict_of(again(measured), one_each(*[1_000_000] * 4, odd), metric)
    assert (verdict.outcome, verdict.reason) == (expected, reason)
    assert verdict.baseline == pytest.approx(1_000_000)


@pytest.mark.parametrize(
    ("measured", "expected", "reason"),
    [
        (39, INCONCLUSIVE, "seen-in-baseline"),
        (40, REGRESSED, "from-zero"),
        (0, UNCHANGED, "both-zero"),
    ],
)
def test_a_second_count_beside_zero(measured: float, expected: Outcome, reason: str) -> None:
    verdict = verdict_of(again(measured), one_each(0, 0, 0, 0, 39), INSTRUCTIONS)
    assert (verdict.outcome, verdict.reason) == (expected, reason)


# The equivalence bound (delta1): unchanged has to be shown


def test_around_the_equivalence_bound() -> None:
    for case in product(CLASSES_AND_DIRECTIONS, (1, -1), (1, 3, 9), (1 - 1e-6, 1 + 1e-6, 10.0)):
        (metric_class, direction), sign, processes, room = case
        tolerance = toleration(metric_class)
        change = 0.5 * math.log1p(tolerance.floor)
        left = math.log1p(tolerance.equivalence) - change
        look = look_at(
            *[sign * change] * processes, error=room * left / t_upper_quantile(0.0025, 24)
        )
        expected = (UNCHANGED, "within-tolerance") if room < 1 else (INCONCLUSIVE, "too-noisy")
        assert decide(direction, look, tolerance, 1) == expected, case


@pytest.mark.parametrize(
    ("room", "expected", "reason"),
    [(1 - 1e-6, UNCHANGED, "within-tolerance"), (1 + 1e-6, INCONCLUSIVE, "beyond-floor-unsure")],
)
def test_beyond_the_floor_by_chance_can_be_unchanged_from_three_processes_on(
    room: float, expected: Outcome, reason: str
) -> None:
    """Within delta1 all the same; one process is not enough for that."""
    tolerance = toleration(MetricClass.CYCLE)
    change = 1.2 * math.log1p(tolerance.floor)
    error = room * (math.log1p(tolerance.equivalence) - change) / t_upper_quantile(0.0025, 24)
    three = look_at(*[change] * 3, error=error)
    assert decide(LOWER, three, tolerance, 100) == (expected, reason)
    one = look_at(change, error=error)
    assert decide(LOWER, one, tolerance, 100) == (INCONCLUSIVE, "too-few-processes")


# The smallest loss that is found


def test_the_minimum_detectable_effect_is_beyond_both_the_floor_and_chance() -> None:
    miss = t_upper_quantile(0.01 / 3, 24)  # one of three processes may be the one that fails it
    for case in product(MetricClass, (1, 16, 40), (0.0, 1e-5, 1e-3, 1e-2), (0.0, 5e-4)):
        metric_class, family, spread, reference = case
        tolerance = toleration(metric_class)
        look = replace(look_at(0.0, error=reference), spread=spread)
        alarm = t_upper_quantile(1e-3 / (3 * family), 24)
        one = math.sqrt(reference**2 + spread**2)
        three = math.sqrt(reference**2 + 1.16**2 * spread**2 / 3)
        expected = max(math.log1p(tolerance.floor) + miss * one, (alarm + miss) * three)
        # It does not depend on the look, nor on what was measured.
        for asked in (look, replace(look, changes=(0.1,) * 9)):
            effect = minimum_detectable_effect(asked, tolerance, family)
            assert effect == pytest.approx(expected), case


def test_a_verdict_prints_the_minimum_detectable_effect_as_people_read_it() -> None:
    verdict = verdict_of([[1_000_000.0]], one_each(*[1_000_000.0] * 5))
    spread = 1e-3 * math.sqrt(20 / 24)
    miss, alarm = t_upper_quantile(0.01 / 3, 24), t_upper_quantile(1e-3 / 3, 24)
    expected = max(
        math.log(1.005) + miss * spread * math.sqrt(1 / 5 + 1),
        (alarm + miss) * spread * math.sqrt(1 / 5 + 1.16**2 / 3),
    )
    assert verdict.minimum_detectable_effect == pytest.approx(math.exp(expected) - 1)
    points = verdict_of([[50.0]], one_each(*[50.0] * 5), UTILIZATION)
    spread = 0.15 * math.sqrt(20 / 24)
    expected = max(
        0.75 + miss * spread * math.sqrt(1 / 5 + 1),
        (alarm + miss) * spread * math.sqrt(1 / 5 + 1.16**2 / 3),
    )
    assert points.minimum_detectable_effect == pytest.approx(expected)


def test_from_zero_there_is_no_minimum_detectable_effect() -> None:
    assert verdict_of([[0.0]], one_each(0, 0)).minimum_detectable_effect is None


# The same from values


def again(value: float, processes: int = 3) -> list[list[float]]:
    """Processes that all measured this."""
    return one_each(*[value] * processes)


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (1_000_000, UNCHANGED),
        (1_004_900, UNCHANGED),
        (1_005_100, REGRESSED),
        (1_010_000, REGRESSED),
        (5_000_000, REGRESSED),
        (995_100, UNCHANGED),
        (994_900, IMPROVED),
        (200_000, IMPROVED),
    ],
)
def test_cycles_against_a_baseline_without_spread(measured: float, expected: Outcome) -> None:
    for old in (again(1_000_000, baseline) for baseline in (3, 5, 10)):
        assert outcome_of(again(measured), old) is expected
        one = verdict_of(again(measured, 1), old)
        if expected is UNCHANGED:
            assert one.outcome is UNCHANGED
        else:
            assert (one.outcome, one.reason) == (INCONCLUSIVE, "too-few-processes")


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (1_000_090, UNCHANGED),
        (1_000_110, REGRESSED),
        (1_000_500, REGRESSED),
        (999_910, UNCHANGED),
        (999_890, IMPROVED),
    ],
)
def test_deterministic_counts_have_a_hundredth_of_a_percent(
    measured: float, expected: Outcome
) -> None:
    assert outcome_of(again(measured), again(1_000_000, 5), INSTRUCTIONS) is expected


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (50.0, UNCHANGED),
        (49.3, UNCHANGED),
        (49.2, REGRESSED),
        (50.7, UNCHANGED),
        (50.8, IMPROVED),
        (0.0, REGRESSED),
        (100.0, IMPROVED),
    ],
)
def test_a_percentage_moves_in_points_and_higher_is_better(
    measured: float, expected: Outcome
) -> None:
    verdict = verdict_of(again(measured), again(50.0, 5), UTILIZATION)
    assert verdict.outcome is expected
    assert verdict.points
    assert verdict.change == pytest.approx(measured - 50.0)
    assert verdict.tolerance == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("written", "measured", "expected"),
    [
        ("2%", 1_019_000, UNCHANGED),
        ("2%", 1_021_000, REGRESSED),
        ("0.4%", 1_003_000, UNCHANGED),
        ("0.4%", 1_004_500, REGRESSED),
        # Tighter than the noise of the class can show.
        ("0.1%", 1_000_000, INCONCLUSIVE),
        ("0.1%", 1_002_000, INCONCLUSIVE),
        ("0.1%", 1_010_000, REGRESSED),
    ],
)
def test_a_written_tolerance_takes_the_place_of_the_class_s(
    written: str, measured: float, expected: Outcome
) -> None:
    verdict = verdict_of(again(measured), again(1_000_000, 5), written=written)
    assert verdict.outcome is expected
    assert verdict.tolerance == pytest.approx(float(written.rstrip("%")) / 100)


@pytest.mark.parametrize(
    ("measured", "one", "three"),
    [
        (1_000_000, UNCHANGED, UNCHANGED),
        (1_004_900, UNCHANGED, UNCHANGED),
        (1_005_100, INCONCLUSIVE, REGRESSED),
        (1_010_000, INCONCLUSIVE, REGRESSED),
    ],
)
def test_a_baseline_of_one_process_has_the_spread_of_its_class(
    measured: float, one: Outcome, three: Outcome
) -> None:
    assert outcome_of(again(measured, 1), again(1_000_000, 1)) is one
    assert outcome_of(again(measured), again(1_000_000, 1)) is three


def test_one_odd_process_of_the_baseline_is_left_out() -> None:
    odd = one_each(*[1_000_000] * 4, 1_020_000)
    verdict = verdict_of(again(1_012_000), odd)
    assert verdict.outcome is REGRESSED
    assert verdict.baseline == pytest.approx(1_000_000)


def test_two_modes_of_the_baseline_make_a_small_change_unsure() -> None:
    quiet = again(1_000_000, 5)
    noisy = one_each(*[1_000_000] * 3, 1_020_000, 1_020_000)
    assert outcome_of(again(1_012_000), quiet) is REGRESSED
    assert outcome_of(again(1_018_000), noisy) is INCONCLUSIVE
    assert outcome_of(again(1_000_000), noisy) is INCONCLUSIVE
    assert outcome_of(again(1_200_000), noisy) is REGRESSED


def test_a_slow_round_does_not_make_a_slow_process() -> None:
    rounds = [[1_000_000, 1_000_100, 1_500_000, 999_900, 1_000_000]]
    assert outcome_of(rounds, one_each(*[1_000_000] * 5)) is UNCHANGED


def test_a_slow_process_among_several_does_not_make_a_regression() -> None:
    new = one_each(1_000_000, 1_000_100, 1_050_000)
    assert outcome_of(new, one_each(*[1_000_000] * 5)) is UNCHANGED


# Zeros and negative values


@pytest.mark.parametrize(
    ("new", "old", "metric", "expected", "reason"),
    [
        (0, 0, CYCLES, UNCHANGED, "both-zero"),
        (0, 0, UTILIZATION, UNCHANGED, "both-zero"),
        (1, 0, CYCLES, REGRESSED, "from-zero"),
        (1e-9, 0, CYCLES, REGRESSED, "from-zero"),
        (-1, 0, CYCLES, IMPROVED, "from-zero"),
        (0, 5, CYCLES, IMPROVED, "beyond-floor"),
        (5, 0, UTILIZATION, IMPROVED, "beyond-floor"),
        (0.5, 0, UTILIZATION, UNCHANGED, "within-tolerance"),
        (0, 5, UTILIZATION, REGRESSED, "beyond-floor"),
        (-10, -10, CYCLES, UNCHANGED, "within-tolerance"),
        (-9, -10, CYCLES, REGRESSED, "beyond-floor"),
        (-11, -10, CYCLES, IMPROVED, "beyond-floor"),
    ],
)
def test_zeros_and_negative_values(
    new: float, old: float, metric: Metric, expected: Outcome, reason: str
) -> None:
    verdict = verdict_of(again(new), again(old, 5), metric)
    assert (verdict.outcome, verdict.reason) == (expected, reason)
    assert (verdict.baseline, verdict.measured) == (old, new)
    one = verdict_of(again(new, 1), again(old, 5), metric)
    if expected is UNCHANGED:
        assert (one.outcome, one.reason) == (expected, reason)
    else:
        assert (one.outcome, one.reason) == (INCONCLUSIVE, "too-few-processes")


@pytest.mark.parametrize(
    ("new", "expected", "reason"),
    [
        ([0], UNCHANGED, "both-zero"),
        ([7], INCONCLUSIVE, "too-few-processes"),
        ([7, 7], INCONCLUSIVE, "too-few-processes"),
        ([7, 7, 7], REGRESSED, "from-zero"),
        ([0, 7, 7], INCONCLUSIVE, "beyond-floor-unsure"),
        ([0, 0, 7], UNCHANGED, "both-zero"),
        ([0, 0, 7, 7, 7], REGRESSED, "from-zero"),
        ([0, 0, 0, 7, 7], UNCHANGED, "both-zero"),
    ],
)
def test_from_zero_the_processes_have_to_agree_as_well(
    new: list[float], expected: Outcome, reason: str
) -> None:
    verdict = verdict_of(one_each(*new), again(0, 5))
    assert (verdict.outcome, verdict.reason) == (expected, reason)


@pytest.mark.parametrize("measured", [0, 7])
def test_from_zero_no_change_is_given(measured: float) -> None:
    verdict = verdict_of([[measured]], one_each(0, 0), CYCLES)
    assert (verdict.change, verdict.low, verdict.high) == (None, None, None)
    assert verdict.tolerance == 0.005


# Properties


@st.composite
def near(draw: st.DrawFn, count: int = 9) -> tuple[float, list[list[float]]]:
    """A value, and processes whose rounds are within 5 % of it."""
    middle = draw(positive)
    share = st.floats(0.95, 1.05)
    rounds = st.lists(share.map(lambda factor: factor * middle), min_size=1, max_size=3)
    return middle, draw(st.lists(rounds, min_size=1, max_size=count))


def on_a_limit(new: list[list[float]], old: list[list[float]]) -> bool:
    """Whether rounding alone decides: a process is at the floor, or the change at a limit."""
    look, tolerance = difference(new, old, tolerance_for(CYCLES)), tolerance_for(CYCLES)
    if any(math.isclose(abs(c), math.log1p(tolerance.floor), rel_tol=1e-6) for c in look.changes):
        return True
    size = abs(look.change)
    limits = (
        math.log1p(tolerance.floor),
        t_upper_quantile(ALARM_RATE / ALARMING, look.degrees_of_freedom) * look.standard_error,
        math.log1p(tolerance.equivalence) - t_upper_quantile(0.0025, look.degrees_of_freedom)
        * look.standard_error,
    )  # fmt: skip
    return any(math.isclose(size, limit, rel_tol=1e-6, abs_tol=1e-9) for limit in limits)


@few
@given(near(), near(), st.floats(1e-3, 1e3))
def test_the_unit_does_not_matter(
    new: tuple[float, list[list[float]]], old: tuple[float, list[list[float]]], factor: float
) -> None:
    measured = [[value / new[0] * old[0] for value in rounds] for rounds in new[1]]
    assume(not on_a_limit(measured, old[1]))

    def scaled(processes: list[list[float]]) -> list[list[float]]:
        return [[factor * value for value in rounds] for rounds in processes]

    assert outcome_of(scaled(measured), scaled(old[1])) is outcome_of(measured, old[1])


@few
@given(near(), near(), st.randoms(use_true_random=False))
def test_the_order_of_processes_and_rounds_does_not_matter(
    new: tuple[float, list[list[float]]], old: tuple[float, list[list[float]]], random: Random
) -> None:
    def shuffled(processes: list[list[float]]) -> list[list[float]]:
        mixed = [random.sample(rounds, len(rounds)) for rounds in processes]
        return random.sample(mixed, len(mixed))

    assert verdict_of(shuffled(new[1]), shuffled(old[1])) == verdict_of(new[1], old[1])


@few
@given(positive, st.floats(0.9, 1.1), st.sampled_from([1, 3]))
@example(1.0, 1.005, 3)
def test_without_any_spread_swapping_both_sides_swaps_the_verdict(
    value: float, factor: float, count: int
) -> None:
    other = value * factor
    assume(not on_a_limit(again(other, count), again(value, count)))
    mirror = {REGRESSED: IMPROVED, IMPROVED: REGRESSED}
    there = outcome_of(again(other, count), again(value, count))
    back = outcome_of(again(value, count), again(other, count))
    assert back is mirror.get(there, there)


@few
@given(
    st.lists(st.floats(-0.008, 0.008), min_size=1, max_size=9),
    st.lists(st.floats(-0.002, 0.002), min_size=1, max_size=9),
)
@example([0.0051], [0.0, 0.0, 0.0])
@example([0.006, 0.006, 0.006], [0.0, 0.0, 0.0, 0.0, 0.0])
def test_unchanged_is_only_said_within_the_equivalence_bound(
    new: list[float], old: list[float]
) -> None:
    verdict = verdict_of(
        [[1e6 * math.exp(value)] for value in new], [[1e6 * math.exp(value)] for value in old]
    )
    assert verdict.low is not None
    assert verdict.high is not None
    assert verdict.change is not None
    assert verdict.low <= verdict.change <= verdict.high
    if verdict.outcome is UNCHANGED:
        assert verdict.low > -0.01
        assert verdict.high < 0.01
        if len(new) == 1:
            assert abs(math.log1p(verdict.change)) <= math.log1p(0.005) * (1 + 1e-9)


@few
@given(
    st.lists(st.floats(40, 60), min_size=1, max_size=9),
    st.lists(st.floats(49.7, 50.3), min_size=1, max_size=9),
)
@example([50.0], [50.0])
@example([50.8], [50.0] * 5)
def test_unchanged_points_lie_within_the_equivalence_bound(
    new: list[float], old: list[float]
) -> None:
    verdict = verdict_of(one_each(*new), one_each(*old), UTILIZATION)
    assert verdict.low is not None
    assert verdict.high is not None
    if verdict.outcome is UNCHANGED:
        assert verdict.low > -1.5
        assert verdict.high < 1.5
        if len(new) == 1:
            assert abs(verdict.change or 0.0) <= 0.75


RANKS = {IMPROVED: 0, UNCHANGED: 1, INCONCLUSIVE: 1, REGRESSED: 2}


@few
@given(
    near(),
    st.lists(st.tuples(st.floats(0.95, 1.05), st.floats(0.0, 0.1)), min_size=1, max_size=9),
    st.sampled_from([1.0, 10.0]),
)
def test_more_of_what_is_bad_never_gives_a_better_verdict(
    old: tuple[float, list[list[float]]], factors: list[tuple[float, float]], stretch: float
) -> None:
    less = one_each(*(factor * old[0] for factor, _ in factors))
    most = one_each(*((factor + stretch * more) * old[0] for factor, more in factors))
    assert RANKS[outcome_of(less, old[1])] <= RANKS[outcome_of(most, old[1])]


@few
@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=9),
    st.lists(st.floats(0, 100), min_size=1, max_size=9),
)
def test_less_of_what_is_good_never_gives_a_better_verdict(
    pairs: list[tuple[float, float]], old: list[float]
) -> None:
    less = one_each(*(min(pair) for pair in pairs))
    more = one_each(*(max(pair) for pair in pairs))
    baseline = one_each(*old)
    assert (
        RANKS[outcome_of(less, baseline, UTILIZATION)]
        >= RANKS[outcome_of(more, baseline, UTILIZATION)]
    )


@few
@given(
    st.one_of(positive, st.just(0.0), st.integers(1, 2**52).map(float)),
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from([CYCLES, INSTRUCTIONS]),
)
def test_the_same_value_everywhere_is_unchanged(
    value: float, new: int, old: int, metric: Metric
) -> None:
    assert outcome_of(one_each(*[value] * new), one_each(*[value] * old), metric) is UNCHANGED


@few
@given(near())
def test_a_baseline_compared_with_itself_neither_regressed_nor_improved(
    old: tuple[float, list[list[float]]],
) -> None:
    assert outcome_of(old[1], old[1]) in (UNCHANGED, INCONCLUSIVE)


any_counts = st.lists(
    st.lists(st.just(0.0) | st.floats(1e-100, 1e150), min_size=1, max_size=3),
    min_size=1,
    max_size=5,
)


@few
@given(any_counts, any_counts)
@example([[1e300]], [[1e-300], [1e-300]])
def test_whatever_is_counted_gets_a_verdict_of_finite_numbers(
    new: list[list[float]], old: list[list[float]]
) -> None:
    verdict = verdict_of(new, old)
    numbers = (verdict.baseline, verdict.measured, verdict.change, verdict.low, verdict.high)
    assert all(math.isfinite(number) for number in numbers if number is not None)


# The numbers that a verdict carries


@pytest.mark.parametrize(("count", "cost"), [(1, 1.0), (3, 1.16), (5, 1.2), (9, 1.22)])
def test_a_verdict_carries_what_led_to_it(count: int, cost: float) -> None:
    verdict = verdict_of(again(1_010_000.0, count), again(1_000_000.0, 5))
    assert (verdict.test, verdict.name, verdict.phase, verdict.metric) == (
        TEST,
        STEP,
        STEP,
        "cycles",
    )
    assert (verdict.unit, verdict.points, verdict.detail) == ("cycles", False, "")
    assert verdict.processes == count
    assert verdict.baseline == pytest.approx(1_000_000)
    assert verdict.measured == 1_010_000
    assert verdict.change == pytest.approx(0.01)
    assert verdict.tolerance == pytest.approx(0.005)
    error = 1e-3 * math.sqrt(20 / 24) * math.sqrt(1 / 5 + cost**2 / count)
    margin = t_upper_quantile(0.0025, 24) * error
    assert verdict.low == pytest.approx(math.exp(math.log(1.01) - margin) - 1)
    assert verdict.high == pytest.approx(math.exp(math.log(1.01) + margin) - 1)


def test_what_one_process_measured_twice_counts_once() -> None:
    twice = [measurement({"cycles": [100.0]}, process="p1")] * 3
    verdict = judge(twice, Reference({STEP: {"cycles": again(90.0, 5)}}), METRICS, {})[0]
    assert verdict.processes == 1
    assert (verdict.outcome, verdict.reason) == (INCONCLUSIVE, "too-few-processes")


def test_the_more_metrics_are_gated_the_surer_a_regression_has_to_be() -> None:
    """By the quantile of its share of the error: 1e-3 over 3 looks and all gated metrics."""
    gated = [name for name, metric in METRICS.items() if metric.gated]
    assert len(gated) > 5
    baseline = {name: again(1_000_000.0, 5) for name in gated}
    error = 1e-3 * math.sqrt(20 / 24) * math.sqrt(1 / 5 + 1.16**2 / 3)

    def cycles_among(names: Sequence[str], worse: float) -> Outcome:
        values = dict.fromkeys(names, 1e6) | {"cycles": 1e6 * math.exp(worse)}
        new = [
            measurement({name: [value] for name, value in values.items()}, process=f"p{number}")
            for number in range(3)
        ]
        verdicts = judge(new, Reference({STEP: baseline}), METRICS, {"cycles": "0.2%"})
        return next(verdict.outcome for verdict in verdicts if verdict.metric == "cycles")

    for names in (["cycles"], gated[:3], gated):
        family = len({*names, "cycles"})
        limit = t_upper_quantile(1e-3 / (3 * family), 24) * error
        assert cycles_among(names, limit * (1 + 1e-6)) is REGRESSED
        assert cycles_among(names, limit * (1 - 1e-6)) is INCONCLUSIVE


def test_metrics_that_are_not_gated_do_not_count_in_the_family() -> None:
    baseline = {"cycles": one_each(100.0), "ipc": one_each(2.0), "duration": one_each(5.0)}
    alone = judge([measurement({"cycles": [101.0]})], Reference({STEP: baseline}), METRICS, {})
    series = {"cycles": [101.0], "ipc": [2.0], "wall_time": [5.0]}
    beside = judge([measurement(series)], Reference({STEP: baseline}), METRICS, {})
    assert beside[0] == alone[0]


# What the metrics of a class learn from each other


NOISY = [[1e6 * math.exp(value)] for value in (-3e-3, -3e-3, 3e-3, 3e-3, 0.0)]
NOISY_VARIANCE = 4 * 9e-6 / 4


def width_of(verdict: Verdict) -> float:
    """Half of the interval, on the judged scale."""
    assert verdict.low is not None
    assert verdict.high is not None
    if verdict.points:
        return (verdict.high - verdict.low) / 2
    return (math.log1p(verdict.high) - math.log1p(verdict.low)) / 2


def beside(
    metric: Metric, other: Metric, old: Sequence[Sequence[float]], written: str | None = None
) -> tuple[float, float]:
    """Half of the interval of a quiet metric, beside another one with this baseline.

    `written` is the tolerance that a marker has for the other one.
    """
    known = {metric.name: again(50.0, 5), other.name: old}
    metrics = {metric.name: metric, other.name: other}
    new = measurement({metric.name: [50.0], other.name: [median(v for (v,) in old)]})
    tolerances = {other.name: written} if written else {}
    verdicts = judge([new], Reference({STEP: known}), metrics, tolerances)
    return width_of(verdicts[0]), width_of(verdicts[1])


OTHER_CYCLES = replace(CYCLES, name="other")


def half_width(scale: float) -> float:
    """Half of the interval of one process against five equal ones, in a class of this scale."""
    spread = math.sqrt(20 * scale**2 / 24)
    return t_upper_quantile(0.0025, 24) * spread * math.sqrt(1 / 5 + 1)


def test_a_quiet_metric_borrows_the_noise_of_its_class() -> None:
    quiet, _ = beside(CYCLES, OTHER_CYCLES, NOISY)
    assert quiet == pytest.approx(half_width(math.sqrt(NOISY_VARIANCE)))


def test_a_metric_that_is_not_gated_does_not_blunt_a_gated_one() -> None:
    quiet, _ = beside(CYCLES, replace(OTHER_CYCLES, gated=False), NOISY)
    assert quiet == pytest.approx(half_width(1e-3))


def test_metrics_that_are_not_gated_do_not_share_at_all() -> None:
    reported = replace(CYCLES, gated=False), replace(OTHER_CYCLES, gated=False)
    quiet, noisy = beside(*reported, NOISY)
    assert quiet == pytest.approx(half_width(1e-3))
    assert noisy > quiet


def test_a_metric_whose_tolerance_somebody_wrote_does_not_blunt_it_either() -> None:
    """It is known to vary otherwise here: a step's time, of one that waits for its host."""
    quiet, noisy = beside(CYCLES, OTHER_CYCLES, NOISY, "100%")
    assert quiet == pytest.approx(half_width(1e-3))
    assert noisy > quiet


def test_another_class_does_not_blunt_it_either() -> None:
    quiet, _ = beside(CYCLES, replace(OTHER_CYCLES, metric_class=MetricClass.RATIO), NOISY)
    assert quiet == pytest.approx(half_width(1e-3))


def test_points_and_shares_of_one_class_are_apart() -> None:
    """A spread of 0.4 points is no spread of 40 %."""
    shares = replace(METRICS["ipc"], gated=True)
    points = one_each(49.6, 49.6, 50.4, 50.4, 50.0)
    quiet, noisy = beside(shares, UTILIZATION, points)
    assert quiet == pytest.approx(half_width(1.5e-3))
    assert noisy == pytest.approx(
        t_upper_quantile(0.0025, 6) * 0.4 * math.sqrt(1.2) if 0.4 > 2 * 0.15 else half_width(0.15)
    )
    quiet, _ = beside(UTILIZATION, shares, NOISY)
    assert quiet == pytest.approx(half_width(0.15))


# What a calibration changes


def calibrated_width(calibration: Calibration | None, days: Sequence[str] = ()) -> float:
    """Half of the interval of cycles, against five processes on one GPU."""
    new = measurement({"cycles": [1e6]})
    identity = new.fingerprint.device.identity
    known = Reference(
        {STEP: {"cycles": again(1e6, 5)}},
        gpus=(identity,) * 5,
        days=tuple(days),
        calibration=calibration,
    )
    verdict = judge([new], known, METRICS, {})[0]
    assert verdict.detail != OTHER_GPU
    return width_of(verdict)


def calibrated(processes: float, days: float | None = None) -> Calibration:
    """What a campaign found of cycle-like metrics."""
    classes = {"cycle": Spread(1e-4, processes, days, None)}
    return Calibration("2026-03-01", 20, 4, 1, 60, 0, classes)


@pytest.mark.parametrize(
    ("processes", "scale"), [(3e-3, 3e-3), (5e-4, 5e-4), (1e-4, 1e-4), (1e-5, 1e-4)]
)
def test_the_measured_spread_takes_the_place_of_the_assumed_one(
    processes: float, scale: float
) -> None:
    assert calibrated_width(calibrated(processes)) == pytest.approx(half_width(scale))
    assert calibrated_width(None) == pytest.approx(half_width(1e-3))


@pytest.mark.parametrize(
    ("days", "allocations"), [("aaaaa", 1), ("aabbc", 3), ("abcde", 5), ("", 1)]
)
def test_days_are_noise_that_more_processes_do_not_reduce(days: str, allocations: int) -> None:
    spread = 1e-3 * math.sqrt(20 / 24)
    error = math.sqrt(spread**2 * 1.2 + 2e-3**2 * (1 + 1 / allocations))
    width = calibrated_width(calibrated(1e-3, 2e-3), days)
    assert width == pytest.approx(t_upper_quantile(0.0025, 24) * error)


# What is judged at all


def judged(
    taken: Measurement, samples: Mapping[str, Mapping[str, Sequence[Sequence[float]]]] | None
) -> dict[tuple[str, str], Verdict]:
    """The verdicts by phase and metric."""
    verdicts = judge([taken], Reference(samples), METRICS, {})
    return {(verdict.phase, verdict.metric): verdict for verdict in verdicts}


def test_what_is_neither_better_nor_worse_is_never_gated() -> None:
    neutral = [metric for metric in METRICS.values() if metric.direction is Direction.NEUTRAL]
    assert neutral
    assert not any(metric.gated for metric in neutral)


@pytest.mark.parametrize("metric", ["ipc", "active_cycles", "l2_hit_rate", "wall_time"])
def test_what_is_not_gated_is_reported_with_its_change(metric: str) -> None:
    verdicts = judged(measurement({metric: [10.0]}), {STEP: {metric: one_each(50.0, 50.0)}})
    verdict = verdicts[STEP, metric]
    assert (verdict.outcome, verdict.reason) == (Outcome.REPORTED, "not-gated")
    assert verdict.change == pytest.approx(-40.0 if METRICS[metric].percentage else -0.8)


def test_phases_are_reported_and_never_gated() -> None:
    taken = measurement(
        {"cycles": [100.0]}, phases={"forward": {"cycles": [900.0]}, "backward": {"cycles": [1.0]}}
    )
    known = {phase: {"cycles": one_each(100.0)} for phase in (STEP, "forward")}
    verdicts = judged(taken, known)
    assert verdicts[STEP, "cycles"].outcome is UNCHANGED
    assert verdicts["forward", "cycles"].outcome is Outcome.REPORTED
    assert verdicts["forward", "cycles"].change == pytest.approx(8.0)
    assert verdicts["backward", "cycles"].outcome is Outcome.REPORTED
    assert verdicts["backward", "cycles"].baseline is None
    assert list(verdicts) == [(STEP, "cycles"), ("forward", "cycles"), ("backward", "cycles")]


@pytest.mark.parametrize(
    ("missing", "detail"),
    [
        ("no-file", "baselines/sm90/nvidia-h200/meddpm.yaml does not exist"),
        ("no-entry", "it has no entry for this test"),
        ("other-workload", "size 128, here 64"),
    ],
)
def test_without_a_baseline_gated_metrics_say_why_there_is_none(missing: str, detail: str) -> None:
    said = measurement({"cycles": [100.0], "ipc": [2.0]}, phases={"forward": {"cycles": [50.0]}})
    verdicts = judge([said], Reference(None, missing=missing, detail=detail), METRICS, {})
    assert [(v.phase, v.metric, v.outcome) for v in verdicts] == [
        (STEP, "cycles", Outcome.NO_BASELINE),
        (STEP, "ipc", Outcome.REPORTED),
        ("forward", "cycles", Outcome.REPORTED),
    ]
    assert (verdicts[0].reason, verdicts[0].detail) == (missing, detail)
    assert (verdicts[0].measured, verdicts[0].baseline, verdicts[0].change) == (100.0, None, None)


def test_a_metric_that_the_baseline_lacks_beside_others_is_reported() -> None:
    verdict = judged(measurement({"cycles": [100.0], "instructions": [5.0]}),
                   {STEP: {"cycles": one_each(100.0)}})[STEP, "instructions"]  # fmt: skip
    assert (verdict.outcome, verdict.reason) == (Outcome.REPORTED, "new-metric")
    assert "instructions" in verdict.detail


def test_a_measurement_of_which_the_baseline_has_no_gated_metric_has_no_baseline() -> None:
    """Of a baseline without counters, say: nothing would be judged, and the test would pass."""
    verdict = judged(measurement({"cycles": [100.0], "ipc": [2.0]}),
                   {STEP: {"ipc": one_each(2.0)}})[STEP, "cycles"]  # fmt: skip
    assert (verdict.outcome, verdict.reason) == (Outcome.NO_BASELINE, "no-metric")
    assert "cycles" in verdict.detail


def test_a_gated_metric_that_only_the_baseline_has_is_unsupported() -> None:
    known = {STEP: {name: one_each(100.0) for name in ("cycles", "instructions", "ipc")}}
    verdicts = judged(measurement({"instructions": [100.0]}), known)
    assert list(verdicts) == [(STEP, "instructions"), (STEP, "cycles")]
    verdict = verdicts[STEP, "cycles"]
    assert (verdict.outcome, verdict.reason, verdict.measured) == (
        Outcome.UNSUPPORTED,
        "not-collected",
        None,
    )


def test_what_the_collector_could_not_read_is_unsupported_with_its_reason() -> None:
    reason = "CUPTI may not read counters here"
    taken = measurement({"step_time": [232.0]}, unsupported={"cycles": reason, "ipc": reason})
    known = {STEP: {"step_time": one_each(232.0), "cycles": one_each(100.0)}}
    verdicts = judged(taken, known)
    assert verdicts[STEP, "step_time"].outcome is UNCHANGED
    for metric in ("cycles", "ipc"):
        assert verdicts[STEP, metric].outcome is Outcome.UNSUPPORTED
        assert verdicts[STEP, metric].detail == reason


@pytest.mark.parametrize(
    ("metric", "arch", "reason"),
    [
        ("pipe_fp16", "sm90", ABSENT),
        ("pipe_fp16", "sm80", "not-collected"),
        ("tensor_ops_tf32", "sm70", ABSENT),
        ("cycles", "cpu", "not-collected"),
        ("step_time", "sm90", "not-collected"),
    ],
)
def test_what_the_architecture_lacks_is_told_from_what_could_not_be_read(
    metric: str, arch: str, reason: str
) -> None:
    taken = measurement(
        {"instructions": [1.0]}, unsupported={metric: "no"}, device=replace(H200, arch=arch)
    )
    verdict = judged(taken, None)[STEP, metric]
    assert (verdict.outcome, verdict.reason) == (Outcome.UNSUPPORTED, reason)


def test_a_metric_without_a_value_in_one_phase_is_not_unsupported() -> None:
    taken = measurement({"cycles": [100.0]}, unsupported={"cycles": 'phase "x" has no value'})
    assert list(judged(taken, None)) == [(STEP, "cycles")]


def test_two_measurements_of_one_process_are_one_process_with_more_rounds() -> None:
    again = [measurement({"cycles": [1.0, 2.0]}), measurement({"cycles": [3.0]})]
    assert samples_by_phase(again) == {STEP: {"cycles": [[1.0, 2.0, 3.0]]}}
    apart = processes("cycles", [[1.0, 2.0], [3.0]])
    assert samples_by_phase(apart) == {STEP: {"cycles": [[1.0, 2.0], [3.0]]}}
