"""The spread between processes: shared by a class, robust against a few odd processes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.interval import difference
from pytest_gpuperf.judge.noise import (
    ALIKE,
    GPUS_PRIOR_WEIGHT,
    SLOPES,
    WILD_SPREADS,
    BaselineGpus,
    Kind,
    ProcessPlace,
    Scale,
    alike_on,
    judged_unit,
    on_judged_scale,
    places_of,
    prediction,
    scales,
)
from pytest_gpuperf.judge.tolerance import tolerance_for
from tests.strategies import few

CYCLES = tolerance_for(catalogue().metrics["cycles"])
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


def scaled(rounds: Sequence[Sequence[float]]) -> list[float]:
    """The logarithms of processes of one round."""
    return [math.log(value) for (value,) in rounds]


def alone(rounds: Sequence[Sequence[float]], gpus: BaselineGpus | None = None) -> Scale:
    """The scale of a metric that is the only one of its class."""
    return scales({"": scaled(rounds)}, {"": CYCLES}, gpus)[""]


def on_gpus(where: Sequence[str], *measured: str, days: Sequence[str] = ()) -> BaselineGpus:
    """Where the baseline's processes ran, and the GPUs of the new ones."""
    return BaselineGpus(places_of(where, days), frozenset(measured))


def together(baselines: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Scale]:
    """The scales of cycle-like metrics that share theirs."""
    on_scale = {name: scaled(rounds) for name, rounds in baselines.items()}
    return scales(on_scale, dict.fromkeys(baselines, CYCLES), None)


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
        unit = judged_unit(values, tolerance)
        assert on_judged_scale(values, unit) == pytest.approx(expected)
    # Of values beside them one without a logarithm is enough.
    assert judged_unit([2.0, 4.0], CYCLES, beside=[0.0]) == 3.0


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


# GPUs


def test_gpus_that_are_apart_do_not_make_a_metric_noisy() -> None:
    logs = [0.0, 1e-3, 2e-3, 0.03, 0.031]
    scale = alone(processes_at(*logs), on_gpus((ONE, ONE, ONE, OTHER, OTHER), ONE))
    squares = 2 * 1e-3**2 + 2 * 0.5e-3**2
    assert scale.degrees_of_freedom == 20 + 3
    assert scale.spread == pytest.approx(math.sqrt((20 * S0**2 + squares) / 23))


@few
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=6), st.floats(1e-4, 1e-1))
def test_the_error_between_gpus_pools_what_is_assumed_with_what_was_seen(
    means: list[float], scale: float
) -> None:
    count = len(means)
    mean = sum(means) / count
    seen = sum((value - mean) ** 2 for value in means)
    variance = (GPUS_PRIOR_WEIGHT * scale**2 + seen) / (GPUS_PRIOR_WEIGHT + count - 1)
    said = on_gpus([str(gpu) for gpu in range(count)], "another").predicted(means, scale)
    assert said.error == pytest.approx(math.sqrt(variance * (1 + 1 / count)))
    assert said.value == pytest.approx(mean)
    assert (said.shares, said.degrees_of_freedom) == ((1 / count,) * count, 19 + count)


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


# Kinds of GPUs

SCALE = 1e-2
"""Of cycles, between GPUs."""
SHORT, LONG = (15.16, 14.41), (15.18, 14.44)
"""Two kinds: the second takes 2 % longer for its DRAM, and 3 % for its L2."""


def of_kinds(*kinds: Kind | None, new: Kind | None) -> BaselineGpus:
    """A process on each of so many GPUs, and a new GPU."""
    places = tuple(ProcessPlace(f"gpu-{number}", kind=kind) for number, kind in enumerate(kinds))
    return BaselineGpus(places, frozenset({"new"}), new)


def test_a_kind_that_nobody_has_met_is_as_uncertain_as_gpus_of_one_name_are() -> None:
    means = [3.0, 3.001, 2.999]
    plain = of_kinds(SHORT, SHORT, SHORT, new=None).predicted(means, SCALE)
    assert not plain.by_kind
    assert of_kinds(None, None, None, new=SHORT).predicted(means, SCALE) == plain
    foreign = (SHORT[0] + 0.1, SHORT[1])
    assert of_kinds(SHORT, SHORT, SHORT, new=foreign).predicted(means, SCALE) == plain


def test_where_some_have_no_kind_the_others_say_it() -> None:
    said = of_kinds(None, SHORT, None, LONG, new=SHORT).predicted([9.0, 3.0, 9.0, 3.02], SCALE)
    assert said.value == pytest.approx(3.0, abs=1e-3)
    assert (said.shares[0], said.shares[2]) == (0, 0)
    assert said.degrees_of_freedom == GPUS_PRIOR_WEIGHT + 2 - 1
    assert sum(said.shares) == pytest.approx(1)


kinds = st.tuples(st.floats(15.1, 15.2), st.floats(14.4, 14.5))
gpus_met = st.lists(st.tuples(kinds, st.floats(-0.05, 0.05)), min_size=1, max_size=8)


@few
@given(gpus_met, kinds, st.floats(1e-4, 1e-1), st.floats(-20, 20))
def test_a_prediction_moves_with_all_means_and_is_never_surer_than_likeness(
    met: list[tuple[Kind, float]], kind: Kind, scale: float, shift: float
) -> None:
    means = [mean for _, mean in met]
    said = prediction(means, [where for where, _ in met], kind, scale, ALIKE)
    moved = prediction([m + shift for m in means], [k for k, _ in met], kind, scale, ALIKE)
    assert moved.value == pytest.approx(said.value + shift, abs=1e-8)
    assert moved.error == pytest.approx(said.error, rel=1e-6)
    assert sum(said.shares) == pytest.approx(1)
    assert math.fsum(share * mean for share, mean in zip(said.shares, means, strict=True)) == (
        pytest.approx(said.value, abs=1e-8)
    )
    least = math.sqrt(GPUS_PRIOR_WEIGHT / (GPUS_PRIOR_WEIGHT + len(met) - 1))
    assert said.error >= ALIKE * scale * least * math.sqrt(1 + 1 / len(met)) * (1 - 1e-9)


@pytest.mark.parametrize("kind", [15.15, 15.16, 15.18])
def test_the_regression_on_one_reading_by_hand(kind: float) -> None:
    """Two GPUs each of two kinds, on which the second reading is the same."""
    means = [3.0, 3.001, 3.02, 3.022]
    met = [15.16, 15.16, 15.18, 15.18]
    said = prediction(means, [(of_one, 14.41) for of_one in met], (kind, 14.41), SCALE, ALIKE)
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


@pytest.mark.parametrize(
    ("slug", "gpus", "wider"),
    [("nvidia-h200", 1, 0.0015), ("nvidia-h100-pcie", 1, 0.0265), ("nvidia-h100-pcie", 4, 0.018)],
)
def test_the_tolerance_of_a_gpu_that_nobody_has_met_is_wider_by_what_such_gpus_are_apart(
    slug: str, gpus: int, wider: float
) -> None:
    places = tuple(ProcessPlace(f"{number % gpus}", kind=SHORT) for number in range(3 * gpus))
    known = BaselineGpus(places, frozenset({"another"}), SHORT, alike_on(slug))
    tolerance = tolerance_for(catalogue().metrics["kernel_time"])
    look = difference([[1.0]], [[1.0]] * 3 * gpus, tolerance, known)
    assert look.widening == pytest.approx(wider, abs=5e-4)
