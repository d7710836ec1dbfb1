"""The spread between processes: shared by a class, robust against a few odd processes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from statistics import median

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.noise import WILD_SPREADS, BaselineGpus, Scale, on_judged_scale, scales
from pytest_gpuperf.judge.tolerance import Tolerance, tolerance_for
from tests.strategies import few

CYCLES = tolerance_for(catalogue().metrics["cycles"])
INSTRUCTIONS = tolerance_for(catalogue().metrics["instructions"])
HIT_RATE = tolerance_for(catalogue().metrics["l2_hit_rate"])
S0 = 1e-3
"""Of CYCLES."""

ONE, OTHER = "gpu-1", "gpu-2"


def processes_at(*logarithms: float) -> list[list[float]]:
    """Processes of one round, this far apart on the judged scale of a relative metric."""
    return [[1e6 * math.exp(value)] for value in logarithms]


def set_aside_by_hand(values: Sequence[float], scale: float) -> list[int]:
    """The outliers of one group on the judged scale, rule by rule."""
    count = len(values)
    if count < 3:
        return []
    middle = median(values)
    reach = 5 * max(scale, 1.4826 * median([abs(value - middle) for value in values]))
    far = [i for i, value in enumerate(values) if abs(value - middle) > reach]
    if len(far) > 2 or count - len(far) < 3:
        return []
    if len(far) == 2 and abs(values[far[0]] - values[far[1]]) <= reach:
        return []
    return far


def spread_by_hand(values: Sequence[float], scale: float) -> tuple[float, int]:
    """The s of a metric that is alone in its class, without outliers; its degrees of freedom."""
    count = len(values)
    mean = sum(values) / count
    sum_of_squares = sum((value - mean) ** 2 for value in values)
    seen = math.sqrt(sum_of_squares / (count - 1)) if count > 1 else 0.0
    weight = 2 if seen > 2 * scale else 20
    pooled = math.sqrt((weight * scale**2 + sum_of_squares) / (weight + count - 1))
    return max(pooled, seen), weight + count - 1


def alone(
    rounds: Sequence[Sequence[float]],
    tolerance: Tolerance = CYCLES,
    gpus: BaselineGpus | None = None,
) -> Scale:
    """The scale of a metric that is the only one of its class."""
    return scales({"": rounds}, {"": tolerance}, gpus)[""]


def together(baselines: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Scale]:
    """The scales of cycle-like metrics that share theirs."""
    return scales(baselines, dict.fromkeys(baselines, CYCLES), None)


# The scale that things are judged on


@pytest.mark.parametrize(
    ("values", "tolerance", "expected"),
    [
        ([1.0, math.e], CYCLES, [0.0, 1.0]),
        ([40.0, 60.0], HIT_RATE, [40.0, 60.0]),
        ([0.0, 60.0], HIT_RATE, [0.0, 60.0]),
        ([0.0, 20.0], CYCLES, [0.0, 2.0]),
        ([-10.0, -30.0], CYCLES, [-0.5, -1.5]),
        ([0.0, 0.0], CYCLES, [0.0, 0.0]),
        ([-1.0, 1.0], CYCLES, [-1.0, 1.0]),
    ],
)
def test_logarithms_where_there_are_any(
    values: list[float], tolerance: Tolerance, expected: list[float]
) -> None:
    assert on_judged_scale(values, tolerance) == pytest.approx(expected)


# One metric alone


@pytest.mark.parametrize(("count", "degrees"), [(1, 20), (2, 21), (3, 22), (5, 24), (10, 29)])
def test_without_any_spread_the_scale_of_the_class_remains(count: int, degrees: int) -> None:
    scale = alone([[1e6]] * count)
    assert scale.degrees_of_freedom == degrees
    assert scale.spread == pytest.approx(S0 * math.sqrt(20 / degrees))
    assert scale.set_aside == frozenset()


@few
@given(st.lists(st.floats(-0.02, 0.02), min_size=1, max_size=10))
@example([0.0, 0.0, 0.0, 0.0, 0.03])
@example([0.0, 0.001, 0.02, -0.02, 0.0])
@example([0.0, 0.0, 0.0, 0.005])
def test_the_spread_pools_what_is_assumed_with_what_was_seen(logs: list[float]) -> None:
    rounds = processes_at(*logs)
    scale = alone(rounds)
    # As the values have them: rounding decides whether 0.005 is beyond five times 0.001.
    logs = [math.log(value) for (value,) in rounds]
    aside = set_aside_by_hand(logs, S0)
    kept = [value for position, value in enumerate(logs) if position not in aside]
    spread, degrees = spread_by_hand(kept, S0)
    assert scale.set_aside == frozenset(aside)
    assert scale.spread == pytest.approx(spread, rel=1e-6)
    assert scale.degrees_of_freedom == degrees


@pytest.mark.parametrize(
    ("share", "weight"), [(0.0, 20), (1.0, 20), (2 - 1e-6, 20), (2 + 1e-6, 2), (4.0, 2)]
)
def test_the_class_counts_for_little_beyond_twice_its_spread(share: float, weight: int) -> None:
    # Four values at -a, -a, a, a have the standard deviation 2 a / sqrt(3).
    a = share * S0 * math.sqrt(3) / 2
    scale = alone(processes_at(-a, -a, a, a))
    assert scale.degrees_of_freedom == weight + 3
    pooled = math.sqrt((weight * S0**2 + 4 * a**2) / (weight + 3))
    assert scale.spread == pytest.approx(max(pooled, share * S0))


@few
@given(st.lists(st.floats(-0.02, 0.02), min_size=1, max_size=10))
def test_the_spread_is_never_below_what_was_seen_nor_far_below_what_is_assumed(
    logs: list[float],
) -> None:
    scale = alone(processes_at(*logs))
    kept = [v for position, v in enumerate(logs) if position not in scale.set_aside]
    mean = sum(kept) / len(kept)
    if len(kept) > 1:
        seen = math.sqrt(sum((value - mean) ** 2 for value in kept) / (len(kept) - 1))
        assert scale.spread >= seen * (1 - 1e-6)
    assert scale.spread >= S0 * math.sqrt(20 / 29) * (1 - 1e-9)


def test_rounds_do_not_count_only_their_median() -> None:
    assert alone([[1e6, 1e6, 9e6], [1e6]]) == alone([[1e6], [1e6]])


# Outliers


@pytest.mark.parametrize(
    ("share", "aside"), [(1.0, set()), (5 - 1e-6, set()), (5 + 1e-6, {4}), (30.0, {4})]
)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_process_beyond_five_spreads_of_the_median_is_set_aside(
    share: float, aside: set[int], sign: int
) -> None:
    assert alone(processes_at(0, 0, 0, 0, sign * share * S0)).set_aside == aside


@pytest.mark.parametrize(
    ("logs", "aside"),
    [
        # One and two that have nothing in common.
        ([0, 0, 0, 0, 0.02], {4}),
        ([0.02, 0, 0, 0, -0.02], {0, 4}),
        ([0, 0.01, 0, 0.03, 0], {1, 3}),
        # Two that agree to within five spreads are a second mode.
        ([0, 0, 0, 0.02, 0.02], set()),
        ([0, 0, 0, 0.02, 0.02 + 5 * S0 - 1e-6], set()),
        ([0, 0, 0, 0.02, 0.02 + 5 * S0 + 1e-6], {3, 4}),
        ([0] * 8 + [0.02, 0.02], set()),
        # Three are no outliers.
        ([0, 0, 0, 0, 0, 0, 0.02, 0.04, 0.06], set()),
        ([0] * 20 + [0.02, 0.04, -0.02], set()),
        # Three processes have to be left.
        ([0.02], set()),
        ([0, 0.02], set()),
        ([0, 0, 0.02], set()),
        ([0, 0, 0, 0.02], {3}),
        ([0, 0, 0.02, -0.02], set()),
    ],
)
def test_up_to_two_are_set_aside_unless_they_agree(logs: list[float], aside: set[int]) -> None:
    assert alone(processes_at(*logs)).set_aside == aside


def test_what_is_set_aside_does_not_count_in_the_spread() -> None:
    with_outlier = alone(processes_at(0, 0, 0, 0, 0.02))
    without = alone(processes_at(0, 0, 0, 0))
    assert (with_outlier.spread, with_outlier.degrees_of_freedom) == pytest.approx(
        (without.spread, without.degrees_of_freedom)
    )


def test_a_noisy_class_reaches_further() -> None:
    """An outlier among quiet processes is none among noisy ones: by the median of the MADs."""
    odd = processes_at(0, 0, 0, 0, 0.02)
    noisy = processes_at(-0.006, -0.003, 0, 0.003, 0.006)
    assert together({"odd": odd})["odd"].set_aside == {4}
    # Of each, the median distance from the median: 0, 0.003, 0.003.
    beside = together({"odd": odd, "a": noisy, "b": noisy})
    assert 5 * 1.4826 * 0.003 > 0.02
    assert beside["odd"].set_aside == frozenset()


@pytest.mark.parametrize(
    ("where", "aside"),
    [
        ((ONE, ONE, ONE, ONE, OTHER, OTHER), {3}),
        # The same values: no process is odd among two.
        ((ONE, ONE, ONE, OTHER, OTHER, OTHER), set()),
    ],
)
def test_outliers_are_sought_per_gpu(where: tuple[str, ...], aside: set[int]) -> None:
    gpus = BaselineGpus(where, frozenset({ONE}))
    logs = [0, 0, 0, 0.02, 0.03, 0.03]
    assert alone(processes_at(*logs), CYCLES, gpus).set_aside == aside


def test_the_most_are_counted_over_all_gpus() -> None:
    gpus = BaselineGpus((ONE,) * 5 + (OTHER,) * 5, frozenset({ONE}))
    two = processes_at(0, 0, 0, 0, 0.02, 0, 0, 0, 0, 0.05)
    three = processes_at(0, 0, 0, -0.02, 0.02, 0, 0, 0, 0, 0.05)
    assert alone(two, CYCLES, gpus).set_aside == {4, 9}
    assert alone(three, CYCLES, gpus).set_aside == frozenset()


# GPUs


def test_gpus_that_are_apart_do_not_make_a_metric_noisy() -> None:
    gpus = BaselineGpus((ONE, ONE, ONE, OTHER, OTHER), frozenset({ONE}))
    logs = [0.0, 1e-3, 2e-3, 0.03, 0.031]
    scale = alone(processes_at(*logs), CYCLES, gpus)
    squares = 2 * 1e-3**2 + 2 * 0.5e-3**2
    assert scale.degrees_of_freedom == 20 + 3
    assert scale.spread == pytest.approx(math.sqrt((20 * S0**2 + squares) / 23))


def test_what_does_not_depend_on_the_gpu_is_one_group() -> None:
    gpus = BaselineGpus((ONE, ONE, OTHER, OTHER), frozenset({ONE}))
    logs = [0.0, 1e-5, 2e-5, 3e-5]
    scale = alone(processes_at(*logs), INSTRUCTIONS, gpus)
    assert scale == alone(processes_at(*logs), INSTRUCTIONS)
    assert scale.degrees_of_freedom == 20 + 3


# The class


@few
@given(
    st.lists(
        st.lists(st.floats(-0.006, 0.006), min_size=5, max_size=5), min_size=1, max_size=6
    )
)  # fmt: skip
@example([[0.0] * 5, [-0.004, -0.004, 0.0, 0.004, 0.004]])
@example([[0.0] * 5, [0.0] * 5, [-0.005, -0.005, 0.0, 0.005, 0.005]])
@example([[0.0] * 5, [0.0, 0.0, 0.0, 0.0, 0.005]])
def test_each_metric_borrows_the_spread_of_the_others(series: list[list[float]]) -> None:
    rounds = {str(i): processes_at(*logs) for i, logs in enumerate(series)}
    said = together(rounds)
    series = [[math.log(value) for (value,) in processes] for processes in rounds.values()]
    middle = [median(logs) for logs in series]
    pairs = zip(series, middle, strict=True)
    robust = median([1.4826 * median([abs(v - m) for v in logs]) for logs, m in pairs])
    kept = [
        [v for i, v in enumerate(logs) if i not in _aside(logs, max(S0, robust))] for logs in series
    ]
    own = [_variance(logs) for logs in kept]
    wild = WILD_SPREADS**2 * max(S0**2, sorted(own)[(len(own) - 1) // 2])
    assume(not any(math.isclose(variance, wild, rel_tol=1e-6) for variance in own))
    for position, scale in enumerate(said.values()):
        others = [v for i, v in enumerate(own) if i != position and v <= wild]
        shared = max(S0**2, sum(others) / len(others) if others else 0.0)
        spread, degrees = spread_by_hand(kept[position], math.sqrt(shared))
        assert scale.spread == pytest.approx(spread, rel=1e-5)
        assert scale.degrees_of_freedom == degrees


def _aside(logs: Sequence[float], reach: float) -> list[int]:
    """Outliers, where the class's robust spread is already known."""
    middle = median(logs)
    far = [i for i, value in enumerate(logs) if abs(value - middle) > 5 * reach]
    agree = len(far) == 2 and abs(logs[far[0]] - logs[far[1]]) <= 5 * reach
    return [] if len(far) > 2 or agree else far


def _variance(logs: Sequence[float]) -> float:
    mean = sum(logs) / len(logs)
    return sum((value - mean) ** 2 for value in logs) / (len(logs) - 1)


def test_quiet_metrics_do_not_lower_the_scale_of_the_class() -> None:
    quiet = processes_at(0, 0, 0, 0, 0)
    assert together({"a": quiet, "b": quiet, "c": quiet})["a"] == alone(quiet)


def of_spread(spread: float) -> list[list[float]]:
    """Five processes of which none is an outlier, with this standard deviation."""
    return processes_at(-spread, -spread, 0, spread, spread)


@pytest.mark.parametrize("typical", [0.0, 0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize(("times", "counts"), [(3.0, True), (4 - 1e-6, True), (4 + 1e-6, False)])
def test_a_metric_of_four_times_the_typical_spread_does_not_blunt_the_others(
    typical: float, times: float, counts: bool
) -> None:
    """Typical is the median of the class, but no less than what is assumed of it."""
    limit = max(typical, 1.0) * S0
    usual, wild = of_spread(typical * S0), of_spread(times * limit)
    scale = together({"a": usual, "b": usual, "wild": wild})
    without = together({"a": usual, "b": usual})
    if counts:
        shared = math.sqrt(((typical * S0) ** 2 + (times * limit) ** 2) / 2)
        values = [math.log(value) for (value,) in usual]
        assert scale["a"].spread == pytest.approx(spread_by_hand(values, max(S0, shared))[0])
        assert scale["a"].spread > 1.5 * without["a"].spread
    else:
        assert (scale["a"], scale["b"]) == (without["a"], without["b"])


def test_a_metric_with_two_modes_keeps_its_own_spread() -> None:
    modes = processes_at(0, 0, 0, 0.02, 0.02)
    scale = together({"a": of_spread(S0), "b": of_spread(S0), "modes": modes})
    own = math.sqrt(5 * 0.02**2 * 0.4 * 0.6 / 4)
    assert scale["modes"].spread == pytest.approx(own)
    assert scale["modes"].degrees_of_freedom == 2 + 4


def test_where_all_are_that_noisy_it_is_the_nature_of_the_class() -> None:
    noisy = of_spread(5 * S0)
    scale = together(dict.fromkeys("abc", noisy))
    assert scale["a"].spread == pytest.approx(5 * S0)
    assert scale["a"].degrees_of_freedom == 20 + 4


def test_a_metric_of_one_process_says_nothing_of_what_is_typical() -> None:
    """Else two of them would make any spread wild."""
    noisy = of_spread(5 * S0)
    scale = together({"a": noisy, "b": noisy, **dict.fromkeys("cdefg", processes_at(0))})
    assert scale["a"].degrees_of_freedom == 20 + 4
    assert scale["c"].spread == pytest.approx(5 * S0)


def test_a_metric_does_not_count_in_its_own_class_s_scale() -> None:
    """Else a noisy metric would look less noisy beside itself."""
    quiet, noisy = processes_at(0, 0, 0, 0), processes_at(-3e-3, -3e-3, 3e-3, 3e-3)
    assert together({"quiet": quiet, "noisy": noisy})["noisy"] == alone(noisy)


def test_a_metric_with_one_process_borrows_all_of_its_scale() -> None:
    noisy = processes_at(-3e-3, -3e-3, 3e-3, 3e-3)
    scale = together({"one": processes_at(0), "noisy": noisy})
    assert scale["one"].spread == pytest.approx(math.sqrt(4 * 9e-6 / 3))
    assert scale["one"].degrees_of_freedom == 20
    assert scale["noisy"] == alone(noisy)


def test_no_metrics_have_no_scales() -> None:
    assert scales({}, {}, None) == {}


# Properties


@few
@given(
    st.lists(st.lists(st.floats(0.9, 1.1), min_size=1, max_size=3), min_size=1, max_size=9),
    st.randoms(use_true_random=False),
)
def test_the_order_of_processes_and_rounds_does_not_matter(
    rounds: list[list[float]], random: Random
) -> None:
    order = random.sample(range(len(rounds)), len(rounds))
    mixed = [random.sample(rounds[p], len(rounds[p])) for p in order]
    scale, shuffled = alone(rounds), alone(mixed)
    assert shuffled.spread == scale.spread
    assert shuffled.degrees_of_freedom == scale.degrees_of_freedom
    assert {order[p] for p in shuffled.set_aside} == scale.set_aside


@few
@given(st.lists(st.floats(0.9, 1.1), min_size=1, max_size=9), st.sampled_from([0.5, 2.0, 1024.0]))
def test_the_unit_does_not_matter(values: list[float], factor: float) -> None:
    there = alone([[value] for value in values])
    here = alone([[factor * value] for value in values])
    assert here.spread == pytest.approx(there.spread, rel=1e-6)
