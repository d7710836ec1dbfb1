"""The spread between processes: shared by a class, robust against a few odd processes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations, permutations, product
from statistics import fmean, median

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.interval import difference
from pytest_gpuperf.judge.noise import (
    ALIKE,
    ALIKE_ELSEWHERE,
    GPUS_PRIOR_WEIGHT,
    SLOPES,
    WILD_SPREADS,
    BaselineGpus,
    Kind,
    Prediction,
    Scale,
    alike_on,
    error_between,
    on_judged_scale,
    prediction,
    scales,
)
from pytest_gpuperf.judge.tolerance import Tolerance, tolerance_for
from pytest_gpuperf.judge.verdict import decide
from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.model.result import Outcome
from pytest_gpuperf.storage import run_files
from tests import ROOT
from tests.strategies import few

CYCLES = tolerance_for(catalogue().metrics["cycles"])
INSTRUCTIONS = tolerance_for(catalogue().metrics["instructions"])
HIT_RATE = tolerance_for(catalogue().metrics["l2_hit_rate"])
S0 = 1e-3
"""Of CYCLES."""

ONE, OTHER, THIRD = "gpu-1", "gpu-2", "gpu-3"


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


def test_logarithms_where_there_are_any() -> None:
    for values, tolerance, expected in (
        ([1.0, math.e], CYCLES, [0.0, 1.0]),
        ([40.0, 60.0], HIT_RATE, [40.0, 60.0]),
        ([0.0, 60.0], HIT_RATE, [0.0, 60.0]),
        ([0.0, 20.0], CYCLES, [0.0, 2.0]),
        ([-10.0, -30.0], CYCLES, [-0.5, -1.5]),
        ([0.0, 0.0], CYCLES, [0.0, 0.0]),
        ([-1.0, 1.0], CYCLES, [-1.0, 1.0]),
    ):
        assert on_judged_scale(values, tolerance) == pytest.approx(expected)


# One metric alone


@few
@given(st.lists(st.floats(-0.02, 0.02), min_size=1, max_size=10))
@example([0.0])
@example([0.0] * 10)
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


def test_the_class_counts_for_little_beyond_twice_its_spread() -> None:
    for share, weight in ((0.0, 20), (1.0, 20), (2 - 1e-6, 20), (2 + 1e-6, 2), (4.0, 2)):
        # Four values at -a, -a, a, a have the standard deviation 2 a / sqrt(3).
        a = share * S0 * math.sqrt(3) / 2
        scale = alone(processes_at(-a, -a, a, a))
        assert scale.degrees_of_freedom == weight + 3
        pooled = math.sqrt((weight * S0**2 + 4 * a**2) / (weight + 3))
        assert scale.spread == pytest.approx(max(pooled, share * S0))


def test_rounds_do_not_count_only_their_median() -> None:
    assert alone([[1e6, 1e6, 9e6], [1e6]]) == alone([[1e6], [1e6]])


# Outliers


def test_up_to_two_beyond_five_spreads_are_set_aside_unless_they_agree() -> None:
    inside, outside = 5 * S0 - 1e-9, 5 * S0 + 1e-9
    cases: tuple[tuple[list[float], set[int]], ...] = (
        ([0, 0, 0, 0, S0], set()),
        ([0, 0, 0, 0, inside], set()),
        ([0, 0, 0, 0, -inside], set()),
        ([0, 0, 0, 0, outside], {4}),
        ([0, 0, 0, 0, -outside], {4}),
        # Two that have nothing in common.
        ([0.02, 0, 0, 0, -0.02], {0, 4}),
        ([0, 0.01, 0, 0.03, 0], {1, 3}),
        # Two that agree to within five spreads are a second mode.
        ([0, 0, 0, 0.02, 0.02], set()),
        ([0, 0, 0, 0.02, 0.02 + inside], set()),
        ([0, 0, 0, 0.02, 0.02 + outside], {3, 4}),
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
    )
    for logs, aside in cases:
        assert alone(processes_at(*logs)).set_aside == aside, logs


def test_a_noisy_class_reaches_further() -> None:
    """An outlier among quiet processes is none among noisy ones: by the median of the MADs."""
    odd = processes_at(0, 0, 0, 0, 0.02)
    noisy = processes_at(-0.006, -0.003, 0, 0.003, 0.006)
    assert together({"odd": odd})["odd"].set_aside == {4}
    # Of each, the median distance from the median: 0, 0.003, 0.003.
    beside = together({"odd": odd, "a": noisy, "b": noisy})
    assert 5 * 1.4826 * 0.003 > 0.02
    assert beside["odd"].set_aside == frozenset()


def test_outliers_are_sought_per_gpu_and_the_most_of_them_over_all() -> None:
    odd = [0, 0, 0, 0.02, 0.03, 0.03]
    cases: tuple[tuple[list[float], int, set[int]], ...] = (
        (odd, 4, {3}),
        # The same values: no process is odd among two.
        (odd, 3, set()),
        ([0, 0, 0, 0, 0.02, 0, 0, 0, 0, 0.05], 5, {4, 9}),
        ([0, 0, 0, -0.02, 0.02, 0, 0, 0, 0, 0.05], 5, set()),
    )
    for logs, ours, aside in cases:
        where = (ONE,) * ours + (OTHER,) * (len(logs) - ours)
        gpus = BaselineGpus(where, frozenset({ONE}))
        assert alone(processes_at(*logs), CYCLES, gpus).set_aside == aside


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


UNITS = (ONE, OTHER, ONE)


def test_values_and_positions_are_grouped_by_gpu() -> None:
    gpus = BaselineGpus(UNITS, frozenset({OTHER, THIRD}))
    assert gpus.groups([1.0, 2.0, 3.0]) == [[1.0, 3.0], [2.0]]
    assert gpus.groups([1.0, 2.0, 3.0], comparable=True) == [[2.0]]
    assert (gpus.positions(), gpus.positions(comparable=True)) == ([[0, 2], [1]], [[1]])
    for measured, known in (({ONE}, True), ({ONE, OTHER}, True), ({ONE, THIRD}, False)):
        assert BaselineGpus(UNITS, frozenset(measured)).known is known


def test_an_allocation_is_a_gpu_on_a_day() -> None:
    cases: tuple[tuple[str, str, set[str], int], ...] = (
        ("aa", "mm", {"a"}, 1),
        ("aa", "mt", {"a"}, 2),
        ("aab", "mmt", {"a"}, 1),
        ("aab", "mtt", {"a", "b"}, 3),
        ("ab", "mm", {"a", "b"}, 2),
        # On a GPU that the baseline lacks, all are compared with.
        ("aab", "mtt", {"c"}, 3),
        ("ab", "", {"a"}, 1),
        ("ab", "", {"c"}, 2),
    )
    for where, days, measured, allocations in cases:
        gpus = BaselineGpus(tuple(where), frozenset(measured), tuple(days))
        assert gpus.allocations == allocations, (where, days, measured)


def test_processes_are_left_out_with_their_days() -> None:
    gpus = BaselineGpus(UNITS, frozenset({ONE}), ("mon", "tue", "wed"))
    assert gpus.without(frozenset()) == gpus
    rest = BaselineGpus((OTHER, ONE), frozenset({ONE}), ("tue", "wed"))
    assert gpus.without(frozenset({0})) == rest
    assert replace(gpus, days=()).without(frozenset({0})) == replace(rest, days=())


@few
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=6), st.floats(1e-4, 1e-1))
def test_the_error_between_gpus_pools_what_is_assumed_with_what_was_seen(
    means: list[float], scale: float
) -> None:
    count = len(means)
    mean = sum(means) / count
    seen = sum((value - mean) ** 2 for value in means)
    variance = (GPUS_PRIOR_WEIGHT * scale**2 + seen) / (GPUS_PRIOR_WEIGHT + count - 1)
    assert error_between(means, scale) == pytest.approx(math.sqrt(variance * (1 + 1 / count)))


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
# One of a pair does not vouch for itself.
@example([[0.0] * 5, [-0.005, -0.005, 0.0, 0.005, 0.005]])
# Quiet metrics do not lower the scale of the class.
@example([[0.0] * 5, [0.0] * 5, [0.0] * 5])
# A metric with two modes keeps its own spread.
@example([[-1e-3, -1e-3, 0.0, 1e-3, 1e-3]] * 2 + [[0.0, 0.0, 0.0, 0.02, 0.02]])
# Where all are that noisy, it is the nature of the class.
@example([[-5e-3, -5e-3, 0.0, 5e-3, 5e-3]] * 3)
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


def of_spread(spread: float) -> list[list[float]]:
    """Five processes of which none is an outlier, with this standard deviation."""
    return processes_at(-spread, -spread, 0, spread, spread)


def test_a_metric_of_four_times_the_typical_spread_does_not_blunt_the_others() -> None:
    """Typical is the median of the class, but no less than what is assumed of it."""
    for typical, times in product((0.0, 0.5, 1.0, 2.0, 3.0), (3.0, 4 - 1e-6, 4 + 1e-6)):
        limit = max(typical, 1.0) * S0
        usual, wild = of_spread(typical * S0), of_spread(times * limit)
        scale = together({"a": usual, "b": usual, "wild": wild})
        without = together({"a": usual, "b": usual})
        if times < 4:
            shared = math.sqrt(((typical * S0) ** 2 + (times * limit) ** 2) / 2)
            values = [math.log(value) for (value,) in usual]
            assert scale["a"].spread == pytest.approx(spread_by_hand(values, max(S0, shared))[0])
            assert scale["a"].spread > 1.5 * without["a"].spread
        else:
            assert (scale["a"], scale["b"]) == (without["a"], without["b"])


def test_a_metric_of_one_process_says_nothing_of_what_is_typical() -> None:
    """Else two of them would make any spread wild."""
    noisy = of_spread(5 * S0)
    scale = together({"a": noisy, "b": noisy, **dict.fromkeys("cdefg", processes_at(0))})
    assert scale["a"].degrees_of_freedom == 20 + 4
    assert scale["c"].spread == pytest.approx(5 * S0)


def test_a_metric_with_one_process_borrows_all_of_its_scale() -> None:
    noisy = processes_at(-3e-3, -3e-3, 3e-3, 3e-3)
    scale = together({"one": processes_at(0), "noisy": noisy})
    assert scale["one"].spread == pytest.approx(math.sqrt(4 * 9e-6 / 3))
    assert scale["one"].degrees_of_freedom == 20
    assert scale["noisy"] == alone(noisy)


def test_no_metrics_have_no_scales() -> None:
    assert scales({}, {}, None) == {}


# Kinds of GPUs

SCALE = 1e-2
"""Of cycles, between GPUs."""
SHORT, LONG = (15.16, 14.41), (15.18, 14.44)
"""Two kinds: the second takes 2 % longer for its DRAM, and 3 % for its L2."""


def of_kinds(*kinds: Kind | None, new: Kind | None) -> BaselineGpus:
    """A process on each of so many GPUs, and a new GPU."""
    where = tuple(f"gpu-{number}" for number in range(len(kinds)))
    return BaselineGpus(where, frozenset({"new"}), kinds=kinds, kind=new)


def test_of_gpus_like_it_the_mean_is_expected_and_a_small_difference() -> None:
    own = ALIKE * SCALE
    for count in (1, 2, 5):
        said = of_kinds(*[SHORT] * count, new=SHORT).predicted([3.0] * count, SCALE)
        assert said.value == pytest.approx(3.0)
        assert said.shares == pytest.approx([1 / count] * count)
        pooled = own * math.sqrt(GPUS_PRIOR_WEIGHT / (GPUS_PRIOR_WEIGHT + count - 1))
        assert said.error == pytest.approx(pooled * math.sqrt(1 + 1 / count))


def test_of_a_kind_that_is_known_the_other_kind_says_little() -> None:
    """However far apart the two are: that is what tells them apart."""
    means = [3.0, 3.0, 3.0, 3.02, 3.02]
    for kind, expected in ((SHORT, 3.0), (LONG, 3.02)):
        said = of_kinds(SHORT, SHORT, SHORT, LONG, LONG, new=kind).predicted(means, SCALE)
        assert said.value == pytest.approx(expected, abs=5e-4)
        assert said.error < 0.4 * error_between(means, SCALE)


def test_a_kind_that_nobody_has_met_is_as_uncertain_as_gpus_of_one_name_are() -> None:
    means = [3.0, 3.001, 2.999]
    plain = of_kinds(SHORT, SHORT, SHORT, new=None).predicted(means, SCALE)
    assert plain == Prediction(fmean(means), error_between(means, SCALE), (1 / 3,) * 3, 22)
    assert of_kinds(None, None, None, new=SHORT).predicted(means, SCALE) == plain
    assert (
        BaselineGpus(("a", "b", "c"), frozenset("d"), kind=SHORT).predicted(means, SCALE) == plain
    )
    foreign = (SHORT[0] + 0.1, SHORT[1])
    assert of_kinds(SHORT, SHORT, SHORT, new=foreign).predicted(means, SCALE) == plain


def test_where_some_have_no_kind_the_others_say_it() -> None:
    said = of_kinds(None, SHORT, None, LONG, new=SHORT).predicted([9.0, 3.0, 9.0, 3.02], SCALE)
    assert said.value == pytest.approx(3.0, abs=1e-3)
    assert (said.shares[0], said.shares[2]) == (0, 0)
    assert said.degrees_of_freedom == GPUS_PRIOR_WEIGHT + 2 - 1
    assert sum(said.shares) == pytest.approx(1)


def test_a_gpu_s_kind_is_that_of_all_its_processes() -> None:
    middle = tuple((one + other) / 2 for one, other in zip(SHORT, LONG, strict=True))
    several = BaselineGpus((ONE, ONE, OTHER), frozenset({THIRD}), (), (SHORT, LONG, None), middle)
    alone = BaselineGpus((ONE, OTHER), frozenset({THIRD}), (), (middle, None), middle)
    assert several.predicted([2.0, 4.0, 9.0], SCALE) == alone.predicted([3.0, 9.0], SCALE)
    assert several.without(frozenset({0})).kinds == (LONG, None)


kinds = st.tuples(st.floats(15.1, 15.2), st.floats(14.4, 14.5))
gpus_met = st.lists(st.tuples(kinds, st.floats(-0.05, 0.05)), min_size=1, max_size=8)


@few
@given(gpus_met, kinds, st.floats(1e-4, 1e-1), st.floats(-20, 20))
def test_a_prediction_moves_with_all_means_and_is_never_surer_than_likeness(
    met: list[tuple[Kind, float]], kind: Kind, scale: float, shift: float
) -> None:
    means = [mean for _, mean in met]
    said = prediction(means, [where for where, _ in met], kind, scale)
    moved = prediction([m + shift for m in means], [where for where, _ in met], kind, scale)
    assert moved.value == pytest.approx(said.value + shift, abs=1e-8)
    assert moved.error == pytest.approx(said.error, rel=1e-6)
    assert sum(said.shares) == pytest.approx(1)
    assert math.fsum(share * mean for share, mean in zip(said.shares, means, strict=True)) == (
        pytest.approx(said.value, abs=1e-8)
    )
    least = math.sqrt(GPUS_PRIOR_WEIGHT / (GPUS_PRIOR_WEIGHT + len(met) - 1))
    assert said.error >= ALIKE * scale * least * math.sqrt(1 + 1 / len(met)) * (1 - 1e-9)


def test_one_gpu_of_another_kind_is_as_uncertain_as_the_slopes() -> None:
    said = prediction([3.0], [SHORT], LONG, SCALE)
    apart = [SCALE * slope * (b - a) for slope, a, b in zip(SLOPES, SHORT, LONG, strict=True)]
    assert said.value == pytest.approx(3.0)
    variance = 2 * (ALIKE * SCALE) ** 2 + sum(one**2 for one in apart)
    assert said.error == pytest.approx(math.sqrt(variance))


@pytest.mark.parametrize("kind", [15.15, 15.16, 15.18])
def test_the_regression_on_one_reading_by_hand(kind: float) -> None:
    """Two GPUs each of two kinds, on which the second reading is the same."""
    means = [3.0, 3.001, 3.02, 3.022]
    met = [15.16, 15.16, 15.18, 15.18]
    said = prediction(means, [(of_one, 14.41) for of_one in met], (kind, 14.41), SCALE)
    # In standard deviations of the slope, which is shrunk by the likeness of GPUs of one kind.
    xs = [SCALE * SLOPES[0] * (of_one - 15.17) for of_one in met]
    new, mean, own = SCALE * SLOPES[0] * (kind - 15.17), fmean(means), ALIKE * SCALE
    squares = sum(x * x for x in xs) + own**2
    slope = sum(x * y for x, y in zip(xs, means, strict=True)) / squares
    assert said.value == pytest.approx(mean + slope * new, rel=1e-9)
    left = sum((y - mean - slope * x) ** 2 for x, y in zip(xs, means, strict=True))
    seen = left + own**2 * slope**2
    pooled = (GPUS_PRIOR_WEIGHT * own**2 + seen) / (GPUS_PRIOR_WEIGHT + 3)
    assert said.error == pytest.approx(math.sqrt(pooled * (1 + 1 / 4 + new**2 / squares)))
    assert said.shares == pytest.approx([1 / 4 + new * x / squares for x in xs])


@cache
def kernel_times_on_h100s() -> tuple[tuple[str, dict[str, list[Sequence[float]]]], ...]:
    """Of 25 steps in six sessions on two H100s each of two hosts: configuration, and rounds by GPU.

    Of Med-DDPM's no configuration.
    """
    steps: dict[str, dict[str, list[Sequence[float]]]] = {}
    for file in sorted((ROOT / "tests" / "data" / "h100-unmet").iterdir()):
        for one in run_files.load(file).measurements:
            gpu = one.fingerprint.device.identity
            (values,) = (s.values for s in one.samples if (s.phase, s.metric) == KERNEL_TIME)
            steps.setdefault(one.test, {}).setdefault(gpu, []).append(values)
    return tuple(
        ("" if "meddpm" in test else test.partition("[")[2][:-1], by_gpu)
        for test, by_gpu in steps.items()
    )


KERNEL_TIME = (STEP, "kernel_time")
BY_CUDNN = {"baseline", "tf32", "compile", "preallocated", "naive", "naive_norm"}
"""ConvNeXt's configurations whose convolutions are not its own kernels."""


def test_what_h100s_that_read_alike_are_apart_is_between_convolutions_and_others() -> None:
    apart: dict[bool, list[float]] = {True: [], False: []}
    for configuration, by_gpu in kernel_times_on_h100s():
        means = [fmean(math.log(median(one)) for one in processes) for processes in by_gpu.values()]
        apart[configuration in BY_CUDNN] += [a - b for a, b in combinations(means, 2)]
    assert max(map(abs, apart[True])) == pytest.approx(0.026, abs=5e-4)
    of_one = {cudnn: math.sqrt(fmean(d * d for d in pairs) / 2) for cudnn, pairs in apart.items()}
    assert of_one[True] == pytest.approx(0.0097, abs=1e-4)
    assert of_one[False] == pytest.approx(0.0032, abs=1e-4)
    scale = tolerance_for(catalogue().metrics["kernel_time"]).between_gpus
    assert of_one[False] < ALIKE_ELSEWHERE * scale < of_one[True]


@pytest.mark.parametrize(
    ("slug", "gpus", "wider"),
    [("nvidia-h200", 1, 0.0015), ("nvidia-h100-pcie", 1, 0.0265), ("nvidia-h100-pcie", 4, 0.018)],
)
def test_the_tolerance_of_a_gpu_that_nobody_has_met_is_wider_by_what_such_gpus_are_apart(
    slug: str, gpus: int, wider: float
) -> None:
    known = BaselineGpus(
        tuple(f"{number % gpus}" for number in range(3 * gpus)),
        frozenset({"another"}),
        kinds=(SHORT,) * 3 * gpus,
        kind=SHORT,
        alike=alike_on(slug),
    )
    tolerance = tolerance_for(catalogue().metrics["kernel_time"])
    look = difference([[1.0]], [[1.0]] * 3 * gpus, tolerance, known)
    assert look.widening == pytest.approx(wider, abs=5e-4)


@pytest.mark.parametrize(("slug", "alarms"), [("nvidia-h200", 11), ("nvidia-h100-80gb-hbm3", 0)])
def test_identical_code_is_no_regression_on_an_h100_that_is_unlike_the_baselines(
    slug: str, alarms: int
) -> None:
    """Kernels' times of 25 steps, each on three of four H100s, of each pair either by the other's.

    As if their canaries read alike: they are not as much alike as H200s are that read so.
    """
    metric = catalogue().metrics["kernel_time"]
    tolerance = tolerance_for(metric)
    said = Counter[Outcome]()
    for _, by_gpu in kernel_times_on_h100s():
        for (gpu, before), (other, now) in permutations(by_gpu.items(), 2):
            gpus = BaselineGpus(
                (gpu,) * len(before),
                frozenset({other}),
                kinds=(SHORT,) * len(before),
                kind=SHORT,
                alike=alike_on(slug),
            )
            three = [[median(median(rounds) for rounds in now)]] * 3
            look = difference(three, before, tolerance, gpus)
            said[decide(metric.direction, look, tolerance, 4)[0]] += 1
    assert said[Outcome.REGRESSED] == alarms
    assert said.total() == 146
