"""The verdict on one difference, and on all metrics of a measurement."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from statistics import median

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.interval import Difference
from pytest_gpuperf.judge.noise import NOTHING, Variance
from pytest_gpuperf.judge.tolerance import Tolerance, tolerance_for
from pytest_gpuperf.judge.verdict import (
    ABSENT,
    ON_PURPOSE,
    Reference,
    decide,
    judge,
    samples_by_phase,
    withheld,
)
from pytest_gpuperf.model.measurement import STEP, Measurement
from pytest_gpuperf.model.metric import Direction, Metric, MetricClass
from pytest_gpuperf.model.result import Outcome, Verdict
from tests.examples import H200, TEST, measurement, processes
from tests.judge.test_interval import MEDIAN_COST, one_each, sum_by_hand
from tests.strategies import few

METRICS = catalogue().metrics
CYCLES, INSTRUCTIONS = METRICS["cycles"], METRICS["instructions"]
LOWER, HIGHER = Direction.LOWER, Direction.HIGHER
REGRESSED, IMPROVED = Outcome.REGRESSED, Outcome.IMPROVED
UNCHANGED, INCONCLUSIVE = Outcome.UNCHANGED, Outcome.INCONCLUSIVE
OUTWEIGHED = Outcome.OUTWEIGHED
WITHIN = (UNCHANGED, "within-tolerance")
TOO_FEW, UNSURE = (INCONCLUSIVE, "too-few-processes"), (INCONCLUSIVE, "beyond-floor-unsure")
TOO_NOISY, NOISY_METRIC = (INCONCLUSIVE, "too-noisy"), (Outcome.REPORTED, "too-noisy")
RATE = 1e-4

UTILIZATION = replace(METRICS["tensor_utilization"], gated=True)
"""A percentage that is better when higher. The catalogue gates none so far."""

CLASSES_AND_DIRECTIONS = tuple(product(MetricClass, (LOWER, HIGHER)))


def look_at(
    tolerance: Tolerance,
    *changes: float,
    error: float = 0.0,
    reference: float = 0.0,
    points: bool = False,
) -> Difference:
    """Processes that changed by this, from a baseline: standard errors of theirs, and of its."""
    count = len(changes)
    of_one = error**2 * count / MEDIAN_COST.get(count, 1.2533141373155) ** 2
    return Difference(
        tolerance=tolerance,
        baseline=100.0,
        measured=100.0 + median(changes),
        changes=changes,
        spread=Variance(0.0, 24),
        tonight=Variance(of_one, 24),
        reference=Variance(reference**2, 24),
        shared=NOTHING,
        logarithmic=not points,
    )


@cache
def t_upper_quantile(tail: float, degrees: int) -> float:
    """Student's t that is exceeded with probability `tail`."""
    return float(stats.t.isf(tail, degrees))


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


def said_of(
    old: Mapping[str, float | Sequence[float]],
    new: Mapping[str, float | Sequence[float]],
    tolerances: Mapping[str, str] | None = None,
    *,
    known: int = 5,
    looked: int = 3,
    tests: int = 1,
) -> dict[str, Verdict]:
    """By metric, what is said of equal processes against `known` equal ones: a value or rounds."""
    before, after = (
        [
            measurement(
                {name: [one] if isinstance(one, (int, float)) else one for name, one in of.items()},
                process=f"p{number}",
            )
            for number in range(count)
        ]
        for of, count in ((old, known), (new, looked))
    )
    verdicts = judge(
        after, Reference(samples_by_phase(before), tests=tests), METRICS, tolerances or {}
    )
    return {verdict.metric: verdict for verdict in verdicts}


def again(value: float, processes: int = 3) -> list[list[float]]:
    """Processes that all measured this."""
    return one_each(*[value] * processes)


def toleration(metric_class: MetricClass, *, points: bool = False) -> Tolerance:
    """The tolerance of a class."""
    return tolerance_for(replace(CYCLES, metric_class=metric_class, percentage=points))


def worse(direction: Direction, change: float) -> float:
    """A change of this size in the bad direction."""
    return -change if direction is HIGHER else change


# The floor (delta0): below it nothing is reported, beyond it not by one process alone


FLOOR = math.log1p(0.005)
JUST, NOT_QUITE = FLOOR * (1 + 1e-9), FLOOR * (1 - 1e-9)
BEYOND = (REGRESSED, "beyond-floor")
BETTER = {BEYOND: (IMPROVED, "beyond-floor")}


def test_three_and_four_have_to_agree_and_of_five_and_more_the_median() -> None:
    for changes, expected in (
        # Three or four have to agree, each of them.
        ((JUST, JUST, JUST), BEYOND),
        ((JUST, 1.5 * FLOOR, 9.0), BEYOND),
        ((NOT_QUITE, 1.5 * FLOOR, 1.5 * FLOOR), UNSURE),
        ((FLOOR, 1.5 * FLOOR, 1.5 * FLOOR), UNSURE),
        ((NOT_QUITE, 9.0, 9.0), UNSURE),
        ((-9.0, 9.0, 9.0), UNSURE),
        ((0.0, 0.0, 9.0), WITHIN),
        ((JUST, JUST, JUST, JUST), BEYOND),
        ((NOT_QUITE, 9.0, 9.0, 9.0), UNSURE),
        # Of five and more, the median.
        ((0.0, 0.0, JUST, JUST, JUST), BEYOND),
        ((-9.0, -9.0, JUST, JUST, JUST), BEYOND),
        ((0.0, 0.0, NOT_QUITE, 9.0, 9.0), WITHIN),
        ((0.0,) * 4 + (JUST,) * 5, BEYOND),
        ((0.0,) * 5 + (9.0,) * 4, WITHIN),
    ):
        for direction, sign, both in product((LOWER, HIGHER), (1, -1), (False, True)):
            tolerance = replace(toleration(MetricClass.CYCLE), two_sided=both)
            look = look_at(tolerance, *(worse(direction, sign * change) for change in changes))
            called = expected if sign > 0 else BETTER.get(expected, expected)
            # A gain that is not sure is worth no further process, unless gains are asked for.
            if (called, sign, both) == (UNSURE, -1, False):
                called = WITHIN
            assert decide(direction, look, RATE) == called, (changes, direction, sign)


# The equivalence bound (delta1): unchanged has to be shown


@pytest.mark.parametrize("two_sided", [True, False])
def test_around_the_equivalence_bound(two_sided: bool) -> None:
    """Of a loss; of a gain where it is asked for: else it has that much more room on its side."""
    for case in product(CLASSES_AND_DIRECTIONS, (1, -1), (1, 3, 9), (1 - 1e-6, 1 + 1e-6, 10.0)):
        (metric_class, direction), sign, processes, room = case
        tolerance = replace(toleration(metric_class), two_sided=two_sided)
        change = 0.5 * math.log1p(tolerance.floor)
        lost = change if two_sided else sign * change
        left = math.log1p(tolerance.equivalence) - lost
        error = room * left / t_upper_quantile(0.0025, 24)
        look = look_at(tolerance, *[worse(direction, sign * change)] * processes, error=error)
        assert decide(direction, look, RATE) == (WITHIN if room < 1 else TOO_NOISY), case


# What can be held: no tolerance is narrower, and none that is too wide is judged


@pytest.mark.parametrize("points", [False, True])
def test_what_the_baseline_cannot_tell_is_tolerated_up_to_a_tenth(points: bool) -> None:
    """Quiet processes are then decided about; of more than 10 % a change is only reported."""
    for (metric_class, direction), share, sign in product(
        CLASSES_AND_DIRECTIONS, (1e-3, 0.5, 1 - 1e-6, 1 + 1e-6, 3), (1, -1)
    ):
        case = metric_class, direction, share, sign
        tolerance = toleration(metric_class, points=points)
        asked = tolerance.floor if points else math.log1p(tolerance.floor)
        limit = 10.0 if points else math.log(1.1)
        held = max(asked, share * limit)
        error = share * limit / t_upper_quantile(0.0005, 24)

        chance = t_upper_quantile(1e-5 / 4, 24) * error
        within = NOISY_METRIC if share > 1 else WITHIN
        sure = BEYOND if sign > 0 else BETTER[BEYOND]
        cases = [(0.0, 1, within), (0.0, 3, within), (0.999 * held, 3, within)]
        # Beyond it, and by more than chance.
        cases.append((1.001 * max(held, chance), 3, sure))
        if chance > 1.1 * held:
            cases.append(((held + chance) / 2, 3, UNSURE if sign > 0 else within))
        for change, count, expected in cases:
            changes = [worse(direction, sign * change)] * count
            look = look_at(tolerance, *changes, reference=error, points=points)
            assert look.floor == pytest.approx(held)
            assert decide(direction, look, 1e-5) == expected, (case, change, count)


def test_what_somebody_tolerates_is_judged_however_much_that_is() -> None:
    tolerance = tolerance_for(CYCLES, "30%")
    for reference, expected in ((0.05, WITHIN), (0.1, NOISY_METRIC)):
        look = look_at(tolerance, 0.0, 0.0, 0.0, reference=reference)
        assert decide(LOWER, look, RATE) == expected


# The same from values

HELD = math.expm1(stats.t.isf(0.0005, 24) * 1e-3 * math.sqrt(20 / 24 / 5))
"""By five equal processes of cycles."""
# Against five equal processes of a million, or of 50 %.
FLOORS: tuple[tuple[Metric, str | None, float, Outcome, tuple[float, ...]], ...] = (
    (CYCLES, None, 0.005, UNCHANGED, (1_000_000, 1_004_900, 995_100)),
    (CYCLES, None, 0.005, REGRESSED, (1_005_100, 1_010_000, 5_000_000)),
    (CYCLES, None, 0.005, IMPROVED, (994_900, 200_000)),
    # A percentage moves in points, and this one is better when higher.
    (UTILIZATION, None, 0.75, UNCHANGED, (50.0, 49.3, 50.7)),
    (UTILIZATION, None, 0.75, REGRESSED, (49.2, 0.0)),
    (UTILIZATION, None, 0.75, IMPROVED, (50.8, 100.0)),
    (CYCLES, "2%", 0.02, UNCHANGED, (1_019_000,)),
    (CYCLES, "2%", 0.02, REGRESSED, (1_021_000,)),
    # Tighter than the noise of the class can show.
    (CYCLES, "0.1%", HELD, UNCHANGED, (1_000_000, 1_000_500)),
    (CYCLES, "0.1%", HELD, INCONCLUSIVE, (1_001_500, 1_002_000)),
    (CYCLES, "0.1%", HELD, REGRESSED, (1_010_000,)),
)


def test_each_class_and_each_written_tolerance_has_its_floor() -> None:
    for metric, written, floor, outcome, values in FLOORS:
        old = 50.0 if metric.percentage else 1_000_000.0
        for measured in values:
            case = (metric.name, written, measured)
            verdict = verdict_of(again(measured), again(old, 5), metric, written)
            assert verdict.outcome is outcome, case
            assert verdict.tolerance == pytest.approx(floor)
            assert verdict.points is metric.percentage
            change = measured - old if metric.percentage else measured / old - 1
            assert verdict.change == pytest.approx(change)
            one = verdict_of(again(measured, 1), again(old, 5), metric, written)
            if outcome is not INCONCLUSIVE and floor != HELD:
                expected = WITHIN if outcome is UNCHANGED else TOO_FEW
                assert (one.outcome, one.reason) == expected, case


# Zeros and negative values


def test_zeros_and_negative_values() -> None:
    zero, from_zero = (UNCHANGED, "both-zero"), (REGRESSED, "from-zero")
    better = (IMPROVED, "beyond-floor")
    for new, old, metric, expected in (
        (0, 0, CYCLES, zero),
        (0, 0, UTILIZATION, zero),
        (1, 0, CYCLES, from_zero),
        (1e-9, 0, CYCLES, from_zero),
        (-1, 0, CYCLES, (IMPROVED, "from-zero")),
        (0, 5, CYCLES, better),
        (5, 0, UTILIZATION, better),
        (0.5, 0, UTILIZATION, WITHIN),
        (0, 5, UTILIZATION, BEYOND),
        (-10, -10, CYCLES, WITHIN),
        (-9, -10, CYCLES, BEYOND),
        (-11, -10, CYCLES, better),
    ):
        case = (new, old, metric.name)
        verdict = verdict_of(again(new), again(old, 5), metric)
        assert (verdict.outcome, verdict.reason) == expected, case
        assert (verdict.baseline, verdict.measured) == (old, new), case
        one = verdict_of(again(new, 1), again(old, 5), metric)
        first = expected if expected[0] is UNCHANGED else TOO_FEW
        assert (one.outcome, one.reason) == first, case
        if old == 0 and metric is CYCLES:
            # There is no ratio to give.
            assert (one.change, one.low, one.high) == (None, None, None)
            assert (one.tolerance, one.minimum_detectable_effect) == (0.005, None)


def test_from_zero_the_processes_have_to_agree() -> None:
    zero, from_zero = (UNCHANGED, "both-zero"), (REGRESSED, "from-zero")
    cases: tuple[tuple[list[float], list[float], tuple[Outcome, str]], ...] = (
        ([7, 7], [0] * 5, TOO_FEW),
        ([7, 7, 7], [0] * 5, from_zero),
        ([0, 7, 7], [0] * 5, UNSURE),
        ([0, 0, 7], [0] * 5, zero),
        ([0, 0, 7, 7, 7], [0] * 5, from_zero),
        ([0, 0, 0, 7, 7], [0] * 5, zero),
        # Two modes, of which one may be seen once only.
        ([39] * 3, [0, 0, 0, 0, 39], NOISY_METRIC),
        ([0] * 3, [0, 0, 0, 39, 39], NOISY_METRIC),
        ([1001] * 3, [1000, 1000, 1000, 1000, 1001], WITHIN),
        ([1002] * 3, [1000, 1000, 1000, 1000, 1001], BEYOND),
    )
    for new, old, expected in cases:
        verdict = verdict_of(one_each(*new), one_each(*old), INSTRUCTIONS)
        assert (verdict.outcome, verdict.reason) == expected, (new, old)


COUNTS = {"operators": [6.0, 6.0], "saved_bytes": [100.0, 100.0]}


@pytest.mark.parametrize(
    ("known", "counts", "now", "expected"),
    [
        (5, COUNTS, {"operators": [7.0, 7.0]}, BEYOND),
        (3, COUNTS, {"saved_bytes": [184.0, 184.0]}, BEYOND),
        (5, COUNTS, {"operators": [5.0, 5.0]}, (IMPROVED, "beyond-floor")),
        # Two processes do not say that all have the same; nor do rounds that differ.
        (2, COUNTS, {"operators": [7.0, 7.0]}, TOO_FEW),
        (5, COUNTS, {"operators": [7.0, 8.0]}, TOO_FEW),
        (5, {"operators": [6.0, 6.5]}, {"operators": [8.0, 8.0]}, TOO_FEW),
        # Hardware counts are not exact, and a time wants its own processes.
        (5, {"instructions": [100.0]}, {"instructions": [107.0]}, TOO_FEW),
        (5, {**COUNTS, "step_time": [5.0]}, {"operators": [7.0, 7.0]}, TOO_FEW),
        (5, {"graph_breaks": [0.0, 0.0]}, {"graph_breaks": [1.0, 1.0]}, TOO_FEW),
    ],
)
def test_one_process_decides_exact_counts_where_no_time_is_judged(
    known: int,
    counts: dict[str, list[float]],
    now: dict[str, list[float]],
    expected: tuple[Outcome, str],
) -> None:
    said = said_of(counts, {**counts, **now}, known=known, looked=1)
    (name,) = now
    assert (said[name].outcome, said[name].reason) == expected


# Properties


@few
@given(
    st.lists(st.floats(-0.008, 0.008), min_size=1, max_size=9),
    st.lists(st.floats(-0.002, 0.002), min_size=1, max_size=9),
)
@example([0.0051], [0.0, 0.0, 0.0])
@example([0.006, 0.006, 0.006], [0.0, 0.0, 0.0, 0.0, 0.0])
@example([0.0], [0.0])
def test_unchanged_is_only_said_within_the_tolerance_and_where_no_loss_reaches_the_bound(
    new: list[float], old: list[float]
) -> None:
    points = (one_each(*(50 + 150 * value for value in side)) for side in (new, old))
    logs = (one_each(*(1e6 * math.exp(value) for value in side)) for side in (new, old))
    for metric, (measured, known) in ((CYCLES, logs), (UTILIZATION, points)):
        verdict, asked = verdict_of(measured, known, metric), tolerance_for(metric)
        low, change, high = verdict.low, verdict.change, verdict.high
        assert low is not None
        assert change is not None
        assert high is not None
        assert low <= change <= high
        assert (verdict.tolerance or 0.0) >= asked.floor * (1 - 1e-9)
        if verdict.outcome is UNCHANGED:
            higher, held = metric.direction is HIGHER, verdict.tolerance or 0.0
            # The bound is the asked one, or as much again as what the baseline cannot tell.
            twice = 2 * held if metric.percentage else math.expm1(2 * math.log1p(held))
            assert (-low if higher else high) < max(asked.equivalence, twice)
            assert (-change if higher else change) <= held * (1 + 1e-9)


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


@pytest.mark.parametrize(
    ("graphs", "processes", "operators", "expected"),
    [
        ((1.0, 0.0), 3, 6.0, ("regressed", "not-compiled")),
        ((2.0, 0.0), 5, 6.0, ("regressed", "not-compiled")),
        ((2.0, 1.0), 3, 6.0, ("improved", "beyond-floor")),
        ((0.0, 0.0), 3, 6.0, ("unchanged", "both-zero")),
        ((0.0, 1.0), 3, 6.0, ("regressed", "from-zero")),
        # One process may have missed it; and a step that does nothing has lost more.
        ((1.0, 0.0), 1, 6.0, ("inconclusive", "too-few-processes")),
        ((1.0, 0.0), 3, 0.0, ("inconclusive", "no-work")),
    ],
)
def test_a_step_that_lost_torch_compile_regressed(
    graphs: tuple[float, float],
    processes: int,
    operators: float,
    expected: tuple[str, str],
) -> None:
    """And one with fewer graphs improved."""
    before, now = graphs
    said = said_of(
        {"compiled_graphs": before, "graph_breaks": 1.0, "operators": 6.0},
        {"compiled_graphs": now, "graph_breaks": 0.0, "operators": operators},
        looked=processes,
    )
    graph = said["compiled_graphs"]
    assert (graph.outcome.value, graph.reason) == expected
    # Its breaks are gone with it, or without it.
    assert said["graph_breaks"].reason != "not-compiled"


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({"launches": 90, "instructions": 1e6}, {"launches": 0, "instructions": 1e6}, "no-work"),
        # Done elsewhere: all of it fell.
        ({"operators": 60, "flops": 1e6}, {"operators": 3, "flops": 5e4}, "no-work"),
        ({"operators": 60, "flops": 0}, {"operators": 5, "flops": 0}, "no-work"),
        ({"launches": 90, "instructions": 1e6}, {"launches": 8, "instructions": 9e4}, "no-work"),
        ({"operators": 60, "flops": 1e6}, {"operators": 7, "flops": 5e4}, "beyond-floor"),
        # One operator in place of a loop; a cache; a CUDA graph, with and without counters.
        ({"operators": 60, "flops": 1e6}, {"operators": 3, "flops": 1e6}, "beyond-floor"),
        ({"operators": 60, "flops": 1e6}, {"operators": 59, "flops": 1e4}, "beyond-floor"),
        (
            {"launches": 90, "instructions": 1e6},
            {"launches": 1, "instructions": 9e5},
            "beyond-floor",
        ),
        ({"launches": 90}, {"launches": 1}, "beyond-floor"),
    ],
)
def test_a_step_that_does_nearly_nothing_any_more_fails_until_that_is_accepted(
    before: dict[str, float], now: dict[str, float], expected: str
) -> None:
    """What it does less of regressed; what is better for it is in doubt."""
    said = said_of({**before, "peak_memory": 5e6}, {**now, "peak_memory": 1e6})
    fell = [v for v in said.values() if v.baseline and (v.measured or 0) < v.baseline]
    work = {v.outcome for v in fell if v.metric != "peak_memory"}
    memory = {v.outcome for v in fell if v.metric == "peak_memory"}
    assert {v.reason for v in fell} == {expected}
    if expected == "no-work":
        assert (work, memory) == ({Outcome.REGRESSED}, {INCONCLUSIVE})
    else:
        assert work | memory == {Outcome.IMPROVED}


def quiet_error(count: int, cost: float) -> tuple[float, float]:
    """Of equal processes of cycles against five equal ones: the error and its degrees."""
    variance, degrees = 20 * 1e-6 / 24, 24
    of_night = variance * 8 / (8 + count - 1)
    return sum_by_hand((variance / 5, degrees), (cost**2 / count * of_night, 8 + count - 1))


@pytest.mark.parametrize("tests", [1, 40])
def test_the_more_is_gated_the_surer_a_regression_has_to_be(tests: int) -> None:
    """By its share of the error: a fourth of 1e-3 a night, over tests, looks and metrics.

    Exact counts, which chance does not move, are two of these at most.
    """
    gated = [name for name, metric in METRICS.items() if metric.gated]
    assert len(gated) > 5
    error, degrees = quiet_error(3, 1.16)

    def cycles_among(names: Sequence[str], worse: float) -> Outcome:
        new = dict.fromkeys(names, 1e6) | {"cycles": 1e6 * math.exp(worse)}
        said = said_of(dict.fromkeys(gated, 1e6), new, {"cycles": "0.2%"}, tests=tests)
        return said["cycles"].outcome

    for names in (["cycles"], gated[:3], gated):
        exact = [METRICS[n].metric_class is MetricClass.DETERMINISTIC for n in {*names, "cycles"}]
        family = exact.count(False) + min(exact.count(True), 2)
        limit = t_upper_quantile(1e-3 / 4 / (3 * family * tests), degrees) * error
        assert cycles_among(names, limit * (1 + 1e-6)) is REGRESSED
        assert cycles_among(names, limit * (1 - 1e-6)) is INCONCLUSIVE


# What the metrics of a class learn from each other


NOISY = [[1e6 * math.exp(value)] for value in (-3e-3, -3e-3, 3e-3, 3e-3, 0.0)]
OTHER_CYCLES = replace(CYCLES, name="other")


def test_nothing_else_blunts_it() -> None:
    """Neither what is not gated, nor what is known to vary otherwise, nor another class."""
    for metric, other, written in (
        (CYCLES, replace(OTHER_CYCLES, gated=False), {}),
        (replace(CYCLES, gated=False), replace(OTHER_CYCLES, gated=False), {}),
        # A step's time, say, of one that waits for its host: somebody wrote a tolerance.
        (CYCLES, OTHER_CYCLES, {"other": "100%"}),
        (CYCLES, replace(OTHER_CYCLES, metric_class=MetricClass.RATIO), {}),
    ):
        metrics = {"cycles": metric, "other": other}
        known = Reference({STEP: {"cycles": again(50.0, 5), "other": NOISY}})
        new = measurement({"cycles": [50.0], "other": [1e6]})
        quiet, noisy = judge([new], known, metrics, written)
        alone = verdict_of(again(50.0, 1), again(50.0, 5), metric)
        assert (quiet.low, quiet.high) == (alone.low, alone.high)
        assert (noisy.high or 0.0) > (quiet.high or 0.0)


# Weighing what got worse against the time that was gained


def weighed(changed: Mapping[str, float], tolerances: Mapping[str, str] | None = None) -> Verdict:
    """The verdict on the last of these metrics, which changed by these shares."""
    new = {metric: 1e6 * (1 + by) for metric, by in changed.items()}
    return [*said_of(dict.fromkeys(changed, 1e6), new, tolerances).values()][-1]


@pytest.mark.parametrize(
    ("metric", "change", "cycles", "step_time", "expected"),
    [
        ("peak_memory", 0.01, -0.06, -0.06, "faster"),
        ("peak_memory", 0.05, -0.06, -0.06, "faster"),
        ("peak_memory", 0.08, -0.06, -0.06, "beyond-floor"),
        # What is surely gained has to be more than what may have been lost.
        ("peak_memory", 0.0595, -0.06, -0.06, "beyond-floor"),
        *(("peak_memory", 0.01, *times, "beyond-floor") for times in (
            (-0.06, 0.0), (0.0, 0.0), (-0.06, 0.06), (-0.004, -0.004))),
        # What is no loss is none that would have to be outweighed.
        ("peak_memory", 0.004, -0.06, -0.06, "within-tolerance"),
        ("peak_memory", 0.004, 0.0, 0.0, "within-tolerance"),
        # A count has no cost of its own: by whatever share it grew.
        ("instructions", 3.0, -0.06, -0.06, "faster"),
        ("recompilations", 0.08, -0.06, -0.06, "faster"),
        ("instructions", 0.01, -0.06, 0.0, "beyond-floor"),
        ("instructions", 0.01, -0.004, -0.004, "beyond-floor"),
        # By less than half a percent where no time grew by 0.3 %: 99 % sure.
        ("instructions", 0.004, 0.0, 0.0, "costs-nothing"),
        ("instructions", 0.004, 7e-4, -0.06, "costs-nothing"),
        ("instructions", 0.0049, 0.0, 0.0, "costs-nothing"),
        ("instructions", 0.0051, 0.0, 0.0, "beyond-floor"),
        ("instructions", 0.004, 1.5e-3, 0.0, "cost-unsure"),
        ("instructions", 0.004, 0.0, 1.5e-3, "cost-unsure"),
        ("instructions", 0.004, 0.0, 3.5e-3, "beyond-floor"),
        ("instructions", 0.004, 0.0, 0.06, "beyond-floor"),
        ("peak_memory", 0.006, 0.0, 0.0, "beyond-floor"),
        *((name, 0.004, 0.0, 0.0, "beyond-floor") for name in ON_PURPOSE),
    ],
)  # fmt: skip
def test_what_grew_is_weighed_against_the_time_of_the_step(
    metric: str, change: float, cycles: float, step_time: float, expected: str
) -> None:
    said = weighed({"cycles": cycles, "step_time": step_time, metric: change})
    assert said.reason == expected
    assert (said.outcome is OUTWEIGHED) is (expected in ("faster", "costs-nothing"))
    assert (said.outcome is REGRESSED) is (expected in ("beyond-floor", "cost-unsure"))


def test_where_no_time_is_judged_nobody_knows_what_a_count_costs() -> None:
    for others, tolerances, expected in (
        ({"cycles": 0.0}, {}, OUTWEIGHED),
        ({}, {}, REGRESSED),
        ({"cycles": 0.0}, {"cycles": "any"}, REGRESSED),
        ({"cycles": 0.0, "step_time": 0.0}, {"step_time": "any"}, REGRESSED),
    ):
        said = weighed({**others, "instructions": 0.004}, tolerances)
        assert said.outcome is expected, (others, tolerances)
    # From nothing it grew by no share: then only a faster step says that it costs nothing.
    for change, expected in ((0.0, REGRESSED), (-0.06, OUTWEIGHED)):
        copies = said_of(
            {"cycles": 1e6, "layout_copies": 0.0},
            {"cycles": 1e6 * (1 + change), "layout_copies": 2.0},
        )["layout_copies"]
        assert copies.outcome is expected


def test_where_the_device_was_unfit_nothing_is_said_but_what_needs_no_device() -> None:
    reported, missing, slower = (
        Verdict(TEST, STEP, STEP, name, "", outcome, "why")
        for name, outcome in (
            ("ipc", Outcome.REPORTED),
            ("l2_hit_rate", Outcome.UNSUPPORTED),
            ("cycles", REGRESSED),
        )
    )
    assert withheld((reported, missing, slower), ("throttled", "shared")) == (
        reported,
        missing,
        replace(slower, outcome=Outcome.UNFIT, reason="device-unfit", detail="throttled; shared"),
    )


# What is judged at all


def judged(
    taken: Measurement, samples: Mapping[str, Mapping[str, Sequence[Sequence[float]]]] | None
) -> dict[tuple[str, str], Verdict]:
    """The verdicts by phase and metric."""
    verdicts = judge([taken], Reference(samples), METRICS, {})
    return {(verdict.phase, verdict.metric): verdict for verdict in verdicts}


def test_of_which_any_change_is_tolerated_is_reported_and_has_no_share_in_the_error() -> None:
    """Neither where it moved nor where the baseline has none."""
    known = {"cycles": 1e9, "step_time": 1.0}
    tolerated = {"cycles": "any", "launches": "any"}
    said = said_of(known, {"cycles": 2e9, "step_time": 1.0, "launches": 9.0}, tolerated)
    for metric in ("cycles", "launches"):
        assert (said[metric].outcome, said[metric].reason) == (Outcome.REPORTED, "any-tolerated")
    assert said["cycles"].change == pytest.approx(1.0)
    alone = {"step_time": 1.0}
    assert said["step_time"] == said_of(alone, alone)["step_time"]


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


def test_without_a_baseline_gated_metrics_say_why_there_is_none() -> None:
    said = measurement({"cycles": [100.0], "ipc": [2.0]}, phases={"forward": {"cycles": [50.0]}})
    known = Reference(None, missing="other-workload", detail="size 128, here 64")
    verdicts = judge([said], known, METRICS, {})
    assert [(v.phase, v.metric, v.outcome) for v in verdicts] == [
        (STEP, "cycles", Outcome.NO_BASELINE),
        (STEP, "ipc", Outcome.REPORTED),
        ("forward", "cycles", Outcome.REPORTED),
    ]
    assert (verdicts[0].reason, verdicts[0].detail) == ("other-workload", "size 128, here 64")
    assert (verdicts[0].measured, verdicts[0].baseline, verdicts[0].change) == (100.0, None, None)


def test_a_gated_metric_that_only_the_baseline_has_is_unsupported() -> None:
    known = {STEP: {name: one_each(100.0) for name in ("cycles", "instructions", "ipc")}}
    verdicts = judged(measurement({"instructions": [100.0]}), known)
    assert list(verdicts) == [(STEP, "instructions"), (STEP, "cycles")]
    lost = verdicts[STEP, "cycles"]
    assert (lost.outcome, lost.reason) == (Outcome.UNSUPPORTED, "not-collected")
    assert lost.detail == "the baseline has this metric, this run has not"


def test_what_the_architecture_lacks_is_told_from_what_could_not_be_read() -> None:
    for metric, arch, reason in (
        ("pipe_fp16", "sm90", ABSENT),
        ("pipe_fp16", "sm80", "not-collected"),
        ("tensor_ops_tf32", "sm70", ABSENT),
        ("cycles", "cpu", "not-collected"),
        ("step_time", "sm90", "not-collected"),
    ):
        device = replace(H200, arch=arch)
        taken = measurement({"instructions": [1.0]}, unsupported={metric: "no"}, device=device)
        verdict = judged(taken, None)[STEP, metric]
        assert (verdict.outcome, verdict.reason) == (Outcome.UNSUPPORTED, reason)
