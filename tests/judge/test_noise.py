"""The spread between processes: shared by a class, robust against a few odd processes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.noise import (
    ALIKE,
    ALIKE_WEIGHT,
    PRIOR_WEIGHT,
    SLOPES,
    BaselineGpus,
    Kind,
    Scale,
    Variance,
    judged_unit,
    on_judged_scale,
    prediction,
    scales,
    tonight,
    total,
)
from pytest_gpuperf.judge.tolerance import tolerance_for
from tests.strategies import few

CYCLES = tolerance_for(catalogue().metrics["cycles"])
HIT_RATE = tolerance_for(catalogue().metrics["l2_hit_rate"])
S0 = 1e-3
"""Of CYCLES."""

ONE, OTHER = "gpu-1", "gpu-2"


def processes_at(*logarithms: float) -> list[list[float]]:
    """Processes of one round, this far apart on the judged scale of a relative metric."""
    return [[1e6 * math.exp(value)] for value in logarithms]


def pooled_by_hand(square: float, weight: float, values: Sequence[float]) -> tuple[float, float]:
    """A variance that is assumed, pooled with what values show of it; its degrees of freedom."""
    count = len(values)
    seen = sum((value - sum(values) / count) ** 2 for value in values) if count else 0.0
    own, known = seen / max(count - 1, 1), weight + max(count - 1, 0)
    if own > 4 * square:
        return own, count
    return max((weight * square + seen) / known, own), known


def set_aside_by_hand(values: Sequence[float], scale: float, weight: float = 20) -> list[int]:
    """The outliers of one group on the judged scale, rule by rule."""
    count = len(values)
    middle = sorted(values)[count // 2]
    far = sorted(range(count), key=lambda i: -abs(values[i] - middle))
    for most in (2, 1):
        odd, rest = far[:most], [values[i] for i in far[most:]]
        if len(rest) < 4:
            continue
        square, degrees = pooled_by_hand(scale**2, weight, rest)
        reach = stats.t.isf(1e-4, degrees) * math.sqrt(square * (1 + 1 / len(rest)))
        beyond = all(abs(values[i] - sum(rest) / len(rest)) > reach for i in odd)
        if beyond and (most == 1 or abs(values[odd[0]] - values[odd[1]]) > reach):
            return odd
    return []


def spread_by_hand(values: Sequence[float], scale: float) -> tuple[float, float]:
    """The s of a metric that is alone in its class, without outliers; its degrees of freedom."""
    square, degrees = pooled_by_hand(scale**2, 20, values)
    return math.sqrt(square), degrees


def scaled(rounds: Sequence[Sequence[float]]) -> list[float]:
    """The logarithms of processes of one round."""
    return [math.log(value) for (value,) in rounds]


def alone(rounds: Sequence[Sequence[float]], gpus: BaselineGpus | None = None) -> Scale:
    """The scale of a metric that is the only one of its class."""
    return scales({"": scaled(rounds)}, {"": CYCLES}, gpus)[""]


def on_gpus(where: Sequence[str], *measured: str, days: Sequence[str] = ()) -> BaselineGpus:
    """Where the baseline's processes ran, and the GPUs of the new ones."""
    return BaselineGpus(tuple(where), tuple(days), measured)


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


def test_variances_add_up_and_the_least_known_says_how_well_the_sum_is() -> None:
    """By Welch and Satterthwaite; what is surely none adds no doubt."""
    one, other = Variance(4e-6, 8), Variance(1e-6, 20)
    both = total([one, Variance(0.0, 1), other])
    assert both.square == pytest.approx(5e-6)
    assert both.degrees == pytest.approx(25 / (16 / 8 + 1 / 20))
    assert total([one]) == one
    assert total([]).reach(1e-4) == 0
    assert one.times(1 / 4).root == pytest.approx(1e-3)
    assert one.reach(0.0025) == pytest.approx(stats.t.isf(0.0025, 8) * 2e-3)


# Outliers


def test_up_to_two_that_chance_takes_no_further_are_set_aside_unless_they_agree() -> None:
    # Four that are alike are known by 23 degrees of freedom.
    alike = S0 * math.sqrt(20 / 23 * (1 + 1 / 4)) * stats.t.isf(1e-4, 23)
    inside, outside = alike * (1 - 1e-6), alike * (1 + 1e-6)
    cases: tuple[tuple[list[float], set[int]], ...] = (
        ([0, 0, 0, 0, S0], set()),
        ([0, 0, 0, 0, inside], set()),
        ([0, 0, 0, 0, -inside], set()),
        ([0, 0, 0, 0, outside], {4}),
        ([0, 0, 0, 0, -outside], {4}),
        # Where the others differ by more themselves, it is not that odd.
        ([-5 * S0, 5 * S0, 0, 0, 2 * outside], set()),
        # Two that have nothing in common.
        ([0.02, 0, 0, 0, 0, -0.02], {0, 5}),
        ([0, 0.01, 0, 0.03, 0, 0], {1, 3}),
        # Two that agree as well as the others do are a second mode.
        ([0, 0, 0, 0, 0.02, 0.02], set()),
        ([0, 0, 0, 0, 0.02, 0.02 + S0], set()),
        ([0, 0, 0, 0, 0.02, 0.03], {4, 5}),
        ([0] * 8 + [0.02, 0.02], set()),
        # Three are no outliers.
        ([0] * 20 + [0.02, 0.02, 0.02], set()),
        # Four processes have to be left: of five that are noisy three agree by chance.
        ([0.02], set()),
        ([0, 0, 0, 0.02], set()),
        ([0, 0, 0, 0.02, -0.02], set()),
    )
    for logs, aside in cases:
        assert alone(processes_at(*logs)).set_aside == aside, logs


# Tonight


def test_what_the_gpus_of_a_night_differ_by_is_no_noise_of_it() -> None:
    where = on_gpus((ONE,), ONE, OTHER, ONE)
    changes = [0.0, 0.03, 2e-3]
    seen = tonight(changes, Variance(S0**2, 24), where)
    assert (seen.square, seen.degrees) == pytest.approx((2e-6, 9))
    assert tonight(changes, Variance(S0**2, 24), None).root > 0.015


# GPUs


def test_gpus_that_are_apart_do_not_make_a_metric_noisy() -> None:
    logs = [0.0, 1e-3, 2e-3, 0.03, 0.031]
    scale = alone(processes_at(*logs), on_gpus((ONE, ONE, ONE, OTHER, OTHER), ONE))
    squares = 2 * 1e-3**2 + 2 * 0.5e-3**2
    by_hand = (20 * S0**2 + squares) / 23, 20 + 3
    assert (scale.variance.square, scale.variance.degrees) == pytest.approx(by_hand)


@few
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=6), st.floats(1e-4, 1e-1))
def test_the_error_between_gpus_pools_what_is_assumed_with_what_was_seen(
    means: list[float], scale: float
) -> None:
    count = len(means)
    mean = sum(means) / count
    seen = sum((value - mean) ** 2 for value in means)
    variance = (PRIOR_WEIGHT * scale**2 + seen) / (PRIOR_WEIGHT + count - 1)
    said = on_gpus([str(gpu) for gpu in range(count)], "another").predicted(means, scale)
    assert said.error.square == pytest.approx(variance * (1 + 1 / count))
    assert said.value == pytest.approx(mean)
    assert (said.shares, said.error.degrees) == ((1 / count,) * count, 19 + count)


# The class

QUIET, NOISY = [0.0] * 5, [-5e-3, -5e-3, 0.0, 5e-3, 5e-3]
TWO_MODES = [0.0, 0.0, 0.0, 0.06, 0.06]
NOISE = 4 * 5e-3**2 / 4


@pytest.mark.parametrize(
    ("others", "own", "shared"),
    [
        # One of a pair does not vouch for itself, and where all are noisy it is the class's nature.
        ([NOISY], QUIET, S0**2),
        ([NOISY, NOISY], QUIET, NOISE),
        ([NOISY, NOISY], NOISY, NOISE),
        ([NOISY, QUIET, NOISY], NOISY, NOISE / 2),
        # Quiet metrics do not lower the scale, and one of two modes is typical of no class.
        ([QUIET, QUIET], QUIET, S0**2),
        ([NOISY, NOISY, TWO_MODES], QUIET, NOISE),
        ([NOISY, NOISY], TWO_MODES, NOISE),
    ],
)
def test_a_metric_borrows_the_spread_of_the_others(
    others: list[list[float]], own: list[float], shared: float
) -> None:
    """The same processes say it of all: the noisier they are, the less is known beside them."""
    series = [*others, own]
    *_, said = together({str(n): processes_at(*logs) for n, logs in enumerate(series)}).values()
    square, degrees = pooled_by_hand(shared, max(20 * S0**2 / shared, 2), own)
    assert (said.variance.square, said.variance.degrees) == pytest.approx((square, degrees))


def test_a_process_that_is_slow_in_most_metrics_is_set_aside() -> None:
    slow = [0.0, 0.0, 0.0, 0.0, 0.02]
    for series, aside in (([slow, slow, QUIET], 2), ([slow, QUIET, QUIET], 0)):
        said = together({str(n): processes_at(*logs) for n, logs in enumerate(series)})
        assert [one.set_aside for one in said.values()] == [{4}] * aside + [set()] * (3 - aside)


# Kinds of GPUs

SCALE = 1e-2
"""Of cycles, between GPUs."""
SHORT = (15.16, 14.41)


def of_kinds(*kinds: Kind | None, new: Kind | None) -> BaselineGpus:
    """A process on each of so many GPUs, and a new GPU."""
    gpus = tuple(f"gpu-{number}" for number in range(len(kinds)))
    return BaselineGpus(gpus, (), ("new",), kinds=kinds, kind=new)


def test_a_kind_that_nobody_has_met_is_as_uncertain_as_gpus_of_one_name_are() -> None:
    means = [3.0, 3.001, 2.999]
    plain = of_kinds(SHORT, SHORT, SHORT, new=None).predicted(means, SCALE)
    assert of_kinds(SHORT, None, SHORT, new=SHORT).predicted(means, SCALE) == plain
    foreign = (SHORT[0] + 0.1, SHORT[1])
    assert of_kinds(SHORT, SHORT, SHORT, new=foreign).predicted(means, SCALE) == plain


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
    pooled = (ALIKE_WEIGHT * own**2 + seen) / (ALIKE_WEIGHT + 3)
    assert said.error.square == pytest.approx(pooled * (1 + 1 / 4 + new**2 / squares))
    assert said.shares == pytest.approx([1 / 4 + new * x / squares for x in xs])
