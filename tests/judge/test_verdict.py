"""The verdict on one difference, and on all metrics of a measurement."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from random import Random

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pytest_gpuperf.judge.interval import UNCHANGED_RATE, Difference, difference
from pytest_gpuperf.judge.tolerance import Tolerance, tolerance_for
from pytest_gpuperf.judge.verdict import (
    ALARM_RATE,
    LOOKS,
    Reference,
    decide,
    judge,
    samples_by_phase,
)
from pytest_gpuperf.metrics import catalogue
from pytest_gpuperf.model import (
    STEP,
    Direction,
    Measurement,
    Metric,
    MetricClass,
    Outcome,
    Verdict,
)
from tests.examples import TEST, measurement, processes

METRICS = catalogue().metrics
CYCLES, INSTRUCTIONS = METRICS["cycles"], METRICS["instructions"]
LOWER, HIGHER = Direction.LOWER, Direction.HIGHER
REGRESSED, IMPROVED = Outcome.REGRESSED, Outcome.IMPROVED
UNCHANGED, INCONCLUSIVE = Outcome.UNCHANGED, Outcome.INCONCLUSIVE

UTILIZATION = replace(METRICS["tensor_utilization"], gated=True)
"""A percentage that is better when higher. The catalogue gates none so far."""

per_class = pytest.mark.parametrize("metric_class", MetricClass)
per_direction = pytest.mark.parametrize("direction", [LOWER, HIGHER])

positive = st.floats(1e-2, 1e13)


def one_each(*values: float) -> list[list[float]]:
    """Processes of one round."""
    return [[value] for value in values]


def look_at(change: float, error: float = 0.0, *, points: bool = False) -> Difference:
    """A difference of this change and standard error, from a baseline of five processes."""
    return Difference(
        baseline=100.0,
        measured=100.0 + change,
        change=change,
        standard_error=error,
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
    found = judge(
        processes(metric.name, new),
        Reference({STEP: {metric.name: old}}),
        {metric.name: metric},
        {metric.name: written} if written else {},
    )
    assert len(found) == 1
    return found[0]


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


# The floor (delta0): below it nothing is reported


@per_class
@per_direction
@pytest.mark.parametrize("points", [False, True])
@pytest.mark.parametrize(
    ("share", "bad", "good"),
    [
        (0.0, UNCHANGED, UNCHANGED),
        (0.5, UNCHANGED, UNCHANGED),
        (1 - 1e-9, UNCHANGED, UNCHANGED),
        (1.0, UNCHANGED, UNCHANGED),
        (1 + 1e-9, REGRESSED, IMPROVED),
        (2.0, REGRESSED, IMPROVED),
        (100.0, REGRESSED, IMPROVED),
    ],
)
def test_around_the_floor(
    metric_class: MetricClass,
    direction: Direction,
    points: bool,
    share: float,
    bad: Outcome,
    good: Outcome,
) -> None:
    tolerance = toleration(metric_class, points=points)
    change = share * (tolerance.floor if points else math.log1p(tolerance.floor))
    for sign, expected in ((1, bad), (-1, good)):
        look = look_at(worse(direction, sign * change), points=points)
        assert decide(direction, look, tolerance, 1)[0] is expected


# Chance: a change beyond the floor needs to be further from zero than noise explains


@per_class
@per_direction
@pytest.mark.parametrize("family", [1, 3, 16])
@pytest.mark.parametrize(
    ("share", "expected", "reason"),
    [
        (1 - 1e-6, INCONCLUSIVE, "beyond-floor-unsure"),
        (1 + 1e-6, REGRESSED, "beyond-floor"),
    ],
)
def test_around_the_alarm_quantile(
    metric_class: MetricClass,
    direction: Direction,
    family: int,
    share: float,
    expected: Outcome,
    reason: str,
) -> None:
    tolerance = toleration(metric_class)
    change = 2 * math.log1p(tolerance.floor)
    quantile = t_upper_quantile(ALARM_RATE / (LOOKS * family), 24)
    look = look_at(worse(direction, change), change / quantile / share)
    assert decide(direction, look, tolerance, family) == (expected, reason)
    better = look_at(worse(direction, -change), change / quantile / share)
    mirrored = IMPROVED if expected is REGRESSED else INCONCLUSIVE
    assert decide(direction, better, tolerance, family) == (mirrored, reason)


def test_the_error_rates_are_those_of_the_statistics() -> None:
    assert (ALARM_RATE, LOOKS, UNCHANGED_RATE) == (1e-3, 3, 0.0025)


# The equivalence bound (delta1): unchanged has to be shown


@per_class
@per_direction
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("room", "expected", "reason"),
    [
        (1 - 1e-6, UNCHANGED, "within-tolerance"),
        (1 + 1e-6, INCONCLUSIVE, "too-noisy"),
        (10.0, INCONCLUSIVE, "too-noisy"),
    ],
)
def test_around_the_equivalence_bound(
    metric_class: MetricClass,
    direction: Direction,
    sign: int,
    room: float,
    expected: Outcome,
    reason: str,
) -> None:
    tolerance = toleration(metric_class)
    change = 0.5 * math.log1p(tolerance.floor)
    left = math.log1p(tolerance.equivalence) - change
    look = look_at(sign * change, room * left / t_upper_quantile(0.0025, 24))
    assert decide(direction, look, tolerance, 1) == (expected, reason)


# The same from values


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
def test_one_process_of_cycles_against_five_without_spread(
    measured: float, expected: Outcome
) -> None:
    assert outcome_of([[measured]], one_each(*[1_000_000] * 5)) is expected


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (1_000_900, UNCHANGED),
        (1_001_100, REGRESSED),
        (999_100, UNCHANGED),
        (998_900, IMPROVED),
    ],
)
def test_deterministic_counts_have_a_tenth_of_a_percent(measured: float, expected: Outcome) -> None:
    assert outcome_of([[measured]], one_each(*[1_000_000] * 5), INSTRUCTIONS) is expected


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
    found = verdict_of([[measured]], one_each(*[50.0] * 5), UTILIZATION)
    assert found.outcome is expected
    assert found.points
    assert found.change == pytest.approx(measured - 50.0)
    assert found.tolerance == pytest.approx(0.75)


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
    found = verdict_of([[measured]], one_each(*[1_000_000] * 5), written=written)
    assert found.outcome is expected
    assert found.tolerance == pytest.approx(float(written.rstrip("%")) / 100)


def test_one_noisy_process_of_the_baseline_makes_a_small_change_unsure() -> None:
    quiet = one_each(*[1_000_000] * 5)
    noisy = one_each(*[1_000_000] * 4, 1_020_000)
    assert outcome_of([[1_012_000]], quiet) is REGRESSED
    assert outcome_of([[1_018_000]], noisy) is INCONCLUSIVE
    assert outcome_of([[1_000_000]], noisy) is INCONCLUSIVE
    assert outcome_of([[1_100_000]], noisy) is REGRESSED


def test_a_slow_round_does_not_make_a_slow_process() -> None:
    rounds = [[1_000_000, 1_000_100, 1_500_000, 999_900, 1_000_000]]
    assert outcome_of(rounds, one_each(*[1_000_000] * 5)) is UNCHANGED


def test_a_slow_process_among_several_does_not_make_a_regression() -> None:
    new = one_each(1_000_000, 1_000_100, 1_050_000)
    assert outcome_of(new, one_each(*[1_000_000] * 5)) is UNCHANGED


def test_a_change_between_the_floor_and_a_single_process_s_certainty_needs_more_processes() -> None:
    old = one_each(*[50.0] * 1)
    assert outcome_of([[49.2]], old, UTILIZATION) is INCONCLUSIVE
    assert outcome_of(one_each(*[49.2] * 5), one_each(*[50.0] * 5), UTILIZATION) is REGRESSED


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
    found = verdict_of([[new]], one_each(*[old] * 5), metric)
    assert (found.outcome, found.reason) == (expected, reason)
    assert (found.baseline, found.measured) == (old, new)


@pytest.mark.parametrize("measured", [0, 7])
def test_from_zero_no_change_is_given(measured: float) -> None:
    found = verdict_of([[measured]], one_each(0, 0), CYCLES)
    assert (found.change, found.low, found.high) == (None, None, None)
    assert found.tolerance == 0.005


# Properties


@st.composite
def near(draw: st.DrawFn, count: int = 9) -> tuple[float, list[list[float]]]:
    """A value, and processes whose rounds are within 5 % of it."""
    middle = draw(positive)
    share = st.floats(0.95, 1.05)
    rounds = st.lists(share.map(lambda factor: factor * middle), min_size=1, max_size=3)
    return middle, draw(st.lists(rounds, min_size=1, max_size=count))


def on_a_limit(new: list[list[float]], old: list[list[float]]) -> bool:
    """Whether rounding alone decides: the change is at the floor, or its error at a quantile."""
    look, tolerance = difference(new, old, tolerance_for(CYCLES)), tolerance_for(CYCLES)
    size = abs(look.change)
    limits = (
        math.log1p(tolerance.floor),
        t_upper_quantile(ALARM_RATE / LOOKS, look.degrees_of_freedom) * look.standard_error,
        math.log1p(tolerance.equivalence) - t_upper_quantile(0.0025, look.degrees_of_freedom)
        * look.standard_error,
    )  # fmt: skip
    return any(math.isclose(size, limit, rel_tol=1e-6, abs_tol=1e-9) for limit in limits)


@given(near(), near(), st.floats(1e-3, 1e3))
def test_the_unit_does_not_matter(
    new: tuple[float, list[list[float]]], old: tuple[float, list[list[float]]], factor: float
) -> None:
    measured = [[value / new[0] * old[0] for value in rounds] for rounds in new[1]]
    assume(not on_a_limit(measured, old[1]))

    def scaled(processes: list[list[float]]) -> list[list[float]]:
        return [[factor * value for value in rounds] for rounds in processes]

    assert outcome_of(scaled(measured), scaled(old[1])) is outcome_of(measured, old[1])


@given(near(), near(), st.randoms(use_true_random=False))
def test_the_order_of_processes_and_rounds_does_not_matter(
    new: tuple[float, list[list[float]]], old: tuple[float, list[list[float]]], random: Random
) -> None:
    def shuffled(processes: list[list[float]]) -> list[list[float]]:
        mixed = [random.sample(rounds, len(rounds)) for rounds in processes]
        return random.sample(mixed, len(mixed))

    assert verdict_of(shuffled(new[1]), shuffled(old[1])) == verdict_of(new[1], old[1])


@given(positive, st.floats(0.9, 1.1))
@example(1.0, 1.005)
def test_with_one_process_each_swapping_them_swaps_the_verdict(value: float, factor: float) -> None:
    other = value * factor
    assume(not on_a_limit([[other]], [[value]]))
    mirror = {REGRESSED: IMPROVED, IMPROVED: REGRESSED}
    there, back = outcome_of([[other]], [[value]]), outcome_of([[value]], [[other]])
    assert back is mirror.get(there, there)


RANKS = {IMPROVED: 0, UNCHANGED: 1, INCONCLUSIVE: 1, REGRESSED: 2}


@given(near(), st.floats(0.0, 2.0), st.floats(0.0, 1.0))
def test_more_of_what_is_bad_never_gives_a_better_verdict(
    old: tuple[float, list[list[float]]], factor: float, more: float
) -> None:
    less, most = factor * old[0], (factor + more) * old[0]
    assert RANKS[outcome_of([[less]], old[1])] <= RANKS[outcome_of([[most]], old[1])]


@given(st.floats(0, 100), st.floats(0, 100), st.lists(st.floats(0, 100), min_size=1, max_size=9))
def test_less_of_what_is_good_never_gives_a_better_verdict(
    one: float, other: float, old: list[float]
) -> None:
    less, more = sorted((one, other))
    baseline = one_each(*old)
    assert (
        RANKS[outcome_of([[less]], baseline, UTILIZATION)]
        >= RANKS[outcome_of([[more]], baseline, UTILIZATION)]
    )


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


@given(any_counts, any_counts)
@example([[1e300]], [[1e-300], [1e-300]])
def test_whatever_is_counted_gets_a_verdict_of_finite_numbers(
    new: list[list[float]], old: list[list[float]]
) -> None:
    found = verdict_of(new, old)
    numbers = (found.baseline, found.measured, found.change, found.low, found.high)
    assert all(math.isfinite(number) for number in numbers if number is not None)


# The numbers that a verdict carries


def test_a_verdict_carries_what_led_to_it() -> None:
    found = verdict_of([[1_010_000.0]], one_each(*[1_000_000.0] * 5))
    assert (found.test, found.name, found.phase, found.metric) == (TEST, STEP, STEP, "cycles")
    assert (found.unit, found.points, found.detail) == ("cycles", False, "")
    assert found.baseline == pytest.approx(1_000_000)
    assert found.measured == 1_010_000
    assert found.change == pytest.approx(0.01)
    assert found.tolerance == pytest.approx(0.005)
    error = 1e-3 * math.sqrt(20 / 24) * math.sqrt(1 + 1 / 5)
    margin = t_upper_quantile(1e-3 / 3, 24) * error
    assert found.low == pytest.approx(math.exp(math.log(1.01) - margin) - 1)
    assert found.high == pytest.approx(math.exp(math.log(1.01) + margin) - 1)


def test_the_more_metrics_are_gated_the_surer_a_regression_has_to_be() -> None:
    gated = [name for name, metric in METRICS.items() if metric.gated]
    assert len(gated) > 5
    baseline = {name: one_each(*[1_000_000.0] * 5) for name in gated}

    def cycles_among(names: Sequence[str]) -> Verdict:
        series = {name: [1_000_000.0] for name in names} | {"cycles": [1_005_050.0]}
        return judge([measurement(series)], Reference({STEP: baseline}), METRICS, {})[0]

    alone, one_of_many = cycles_among(["cycles"]), cycles_among(["cycles", *gated])
    assert one_of_many.low is not None
    assert alone.low is not None
    assert one_of_many.low < alone.low
    assert alone.outcome is REGRESSED


def test_metrics_that_are_not_gated_do_not_count_in_the_family() -> None:
    baseline = {"cycles": one_each(100.0), "ipc": one_each(2.0), "duration": one_each(5.0)}
    alone = judge([measurement({"cycles": [101.0]})], Reference({STEP: baseline}), METRICS, {})
    series = {"cycles": [101.0], "ipc": [2.0], "duration": [5.0]}
    beside = judge([measurement(series)], Reference({STEP: baseline}), METRICS, {})
    assert beside[0] == alone[0]


# What is judged at all


def judged(
    found: Measurement, samples: Mapping[str, Mapping[str, Sequence[Sequence[float]]]] | None
) -> dict[tuple[str, str], Verdict]:
    """The verdicts by phase and metric."""
    verdicts = judge([found], Reference(samples), METRICS, {})
    return {(verdict.phase, verdict.metric): verdict for verdict in verdicts}


@pytest.mark.parametrize("metric", ["ipc", "active_cycles", "l2_hit_rate", "wall_time"])
def test_what_is_not_gated_is_reported_with_its_change(metric: str) -> None:
    verdicts = judged(measurement({metric: [10.0]}), {STEP: {metric: one_each(50.0, 50.0)}})
    found = verdicts[STEP, metric]
    assert (found.outcome, found.reason) == (Outcome.REPORTED, "not-gated")
    assert found.change == pytest.approx(-40.0 if METRICS[metric].percentage else -0.8)


def test_phases_are_reported_and_never_gated() -> None:
    found = measurement(
        {"cycles": [100.0]}, phases={"forward": {"cycles": [900.0]}, "backward": {"cycles": [1.0]}}
    )
    known = {phase: {"cycles": one_each(100.0)} for phase in (STEP, "forward")}
    verdicts = judged(found, known)
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
    found = measurement({"cycles": [100.0], "ipc": [2.0]}, phases={"forward": {"cycles": [50.0]}})
    verdicts = judge([found], Reference(None, missing=missing, detail=detail), METRICS, {})
    assert [(v.phase, v.metric, v.outcome) for v in verdicts] == [
        (STEP, "cycles", Outcome.NO_BASELINE),
        (STEP, "ipc", Outcome.REPORTED),
        ("forward", "cycles", Outcome.REPORTED),
    ]
    assert (verdicts[0].reason, verdicts[0].detail) == (missing, detail)
    assert (verdicts[0].measured, verdicts[0].baseline, verdicts[0].change) == (100.0, None, None)


def test_a_metric_that_the_baseline_lacks_has_no_baseline() -> None:
    found = judged(measurement({"cycles": [100.0], "instructions": [5.0]}),
                   {STEP: {"cycles": one_each(100.0)}})[STEP, "instructions"]  # fmt: skip
    assert (found.outcome, found.reason) == (Outcome.NO_BASELINE, "no-metric")
    assert "instructions" in found.detail


def test_a_gated_metric_that_only_the_baseline_has_is_unsupported() -> None:
    known = {STEP: {name: one_each(100.0) for name in ("cycles", "instructions", "ipc")}}
    verdicts = judged(measurement({"instructions": [100.0]}), known)
    assert list(verdicts) == [(STEP, "instructions"), (STEP, "cycles")]
    found = verdicts[STEP, "cycles"]
    assert (found.outcome, found.reason, found.measured) == (
        Outcome.UNSUPPORTED,
        "not-collected",
        None,
    )


def test_what_the_collector_could_not_read_is_unsupported_with_its_reason() -> None:
    reason = "CUPTI may not read counters here"
    found = measurement({"step_time": [232.0]}, unsupported={"cycles": reason, "ipc": reason})
    known = {STEP: {"step_time": one_each(232.0), "cycles": one_each(100.0)}}
    verdicts = judged(found, known)
    assert verdicts[STEP, "step_time"].outcome is UNCHANGED
    for metric in ("cycles", "ipc"):
        assert verdicts[STEP, metric].outcome is Outcome.UNSUPPORTED
        assert verdicts[STEP, metric].detail == reason


def test_a_metric_without_a_value_in_one_phase_is_not_unsupported() -> None:
    found = measurement({"cycles": [100.0]}, unsupported={"cycles": 'phase "x" has no value'})
    assert list(judged(found, None)) == [(STEP, "cycles")]


def test_two_measurements_of_one_process_are_one_process_with_more_rounds() -> None:
    again = [measurement({"cycles": [1.0, 2.0]}), measurement({"cycles": [3.0]})]
    assert samples_by_phase(again) == {STEP: {"cycles": [[1.0, 2.0, 3.0]]}}
    apart = processes("cycles", [[1.0, 2.0], [3.0]])
    assert samples_by_phase(apart) == {STEP: {"cycles": [[1.0, 2.0], [3.0]]}}


# How often it is right, on noise that is assumed (docs/statistics.md)

NOISE = {"cycles": 7e-4, "instructions": 1e-5, "step_time": 7e-4}
"""Between processes, relative; a round adds half of it."""


@pytest.fixture(scope="module")
def verdicts_on() -> Callable[[float, int], list[dict[str, Outcome]]]:
    """Judges `count` times one process, slower by `change` in cycles and time, against five."""

    def simulate(change: float, count: int) -> list[dict[str, Outcome]]:
        random = np.random.default_rng(20260301)

        def recorded(number: int, shift: float) -> Measurement:
            series = {}
            for metric, sigma in NOISE.items():
                middle = random.normal(0, sigma) + (shift if metric != "instructions" else 0)
                rounds = 4e8 * np.exp(middle + random.normal(0, sigma / 2, 5))
                series[metric] = [float(value) for value in rounds]
            return measurement(series, process=f"p{number}")

        found = []
        for _ in range(count):
            known = samples_by_phase([recorded(number, 0) for number in range(5)])
            verdicts = judge([recorded(9, math.log1p(change))], Reference(known), METRICS, {})
            found.append({verdict.metric: verdict.outcome for verdict in verdicts})
        return found

    return simulate


def test_identical_code_alarms_far_less_than_once_in_a_hundred(
    verdicts_on: Callable[[float, int], list[dict[str, Outcome]]],
) -> None:
    nights = verdicts_on(0.0, 2000)
    assert sum(REGRESSED in night.values() for night in nights) == 0
    assert sum(set(night.values()) == {UNCHANGED} for night in nights) >= 0.98 * len(nights)


def test_one_percent_more_cycles_are_found_nearly_always(
    verdicts_on: Callable[[float, int], list[dict[str, Outcome]]],
) -> None:
    nights = verdicts_on(0.01, 2000)
    assert sum(night["cycles"] is REGRESSED for night in nights) >= 0.99 * len(nights)
    assert all(night["instructions"] is UNCHANGED for night in nights)
