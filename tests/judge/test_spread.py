"""Spreads of known designs are recovered, level by level."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.trials import apart, estimates, recommended
from pytest_gpuperf.model.entry import Spread
from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.model.metric import MetricClass
from tests.examples import H200, measurement

METRICS = catalogue().metrics
CYCLE, DETERMINISTIC, RATIO = MetricClass.CYCLE, MetricClass.DETERMINISTIC, MetricClass.RATIO

Design = Sequence[Sequence[int]]
"""Processes per GPU and day."""

Series = Mapping[str, Sequence[float]]


def process(series: Series, name: str, gpu: str = "gpu-0", day: int = 1) -> Measurement:
    """What one process measured on a GPU and a day."""
    made = measurement(series, process=name, device=replace(H200, identity=gpu))
    return replace(
        made, fingerprint=replace(made.fingerprint, measured=f"2026-03-{day:02}T06:00:00Z")
    )


def grouped(*groups: Sequence[Measurement]) -> dict[tuple[str, str], list[Measurement]]:
    return {(f"test_{number}", "step"): list(group) for number, group in enumerate(groups)}


def simulated(
    rng: Random,
    design: Design,
    spread: Spread,
    *,
    metric: str = "cycles",
    rounds: int = 5,
) -> list[Measurement]:
    """Processes of one test whose values vary by these standard deviations."""
    laid = []
    for gpu, days in enumerate(design):
        of_gpu = rng.gauss(0, spread.gpus or 0)
        for day, count in enumerate(days, 1):
            of_day = of_gpu + rng.gauss(0, spread.allocations or 0)
            for number in range(count):
                own = of_day + rng.gauss(0, spread.processes)
                logs = [own + rng.gauss(0, spread.rounds) for _ in range(rounds)]
                percentage = METRICS[metric].percentage
                values = [50 + 100 * v if percentage else 4e8 * math.exp(v) for v in logs]
                name = f"u{gpu}d{day}p{number}"
                laid.append(process({metric: values}, name, f"gpu-{gpu}", day))
    return laid


def spread_of(*groups: Sequence[Measurement], metric_class: MetricClass = CYCLE) -> Spread:
    return estimates(grouped(*groups), METRICS)[metric_class].spread


# The spreads

KNOWN = Spread(rounds=1e-4, processes=1e-3, allocations=2e-3, gpus=5e-3)


@pytest.mark.parametrize("metric", ["cycles", "tensor_utilization", "instructions"])
@pytest.mark.parametrize(
    "design",
    [
        pytest.param([[4] * 3] * 5, id="balanced"),
        pytest.param([[7, 1, 2], [3], [1, 5], [2, 2, 2, 9], [1]], id="unbalanced"),
    ],
)
def test_a_known_nested_design_is_recovered(design: Design, metric: str) -> None:
    """40 tests of 5 GPUs: the standard error of each estimate is below 8 % of it."""
    rng = Random(20260301)
    groups = [simulated(rng, design, KNOWN, metric=metric) for _ in range(40)]
    spread = spread_of(*groups, metric_class=METRICS[metric].metric_class)
    assert spread.rounds == pytest.approx(KNOWN.rounds, rel=0.03)
    # The median of five rounds has a noise of its own, which belongs to the process.
    assert spread.processes == pytest.approx(math.hypot(1e-3, 0.54e-4), rel=0.08)
    assert spread.allocations == pytest.approx(KNOWN.allocations, rel=0.15)
    assert spread.gpus == pytest.approx(KNOWN.gpus, rel=0.2)


def test_days_and_gpus_that_are_alike_are_not_taken_for_different() -> None:
    rng = Random(7)
    quiet = Spread(rounds=3e-4, processes=1e-3, allocations=0.0, gpus=0.0)
    design = [[5, 2, 5], [1, 4], [6]]
    spread = spread_of(*[simulated(rng, design, quiet) for _ in range(60)])
    assert spread.allocations is not None
    assert spread.gpus is not None
    assert spread.allocations < 2.5e-4
    assert spread.gpus < 2.5e-4


def test_the_formulas_by_hand() -> None:
    """Two GPUs; one has two days: 2 processes each, differences of e^0.02 and e^0.04."""

    def at(log: float, name: str, gpu: str, day: int) -> Measurement:
        return process({"cycles": [1e6 * math.exp(log)]}, name, gpu, day)

    spread = spread_of(
        [
            at(0.00, "a", "one", 1),
            at(0.02, "b", "one", 1),
            at(0.10, "c", "one", 2),
            at(0.14, "d", "one", 2),
            at(0.50, "e", "two", 1),
        ]
    )
    between_processes = (0.02**2 / 2 + 0.04**2 / 2) / 2
    between_days = 0.11**2 / 2 - between_processes / 2
    explained = [between_days / 2 + between_processes * 1 / 4, between_days + between_processes]
    between_gpus = 0.435**2 / 2 - sum(explained) / 2
    assert spread.rounds == 0
    assert spread.processes == pytest.approx(math.sqrt(between_processes))
    assert spread.allocations == pytest.approx(math.sqrt(between_days))
    assert spread.gpus == pytest.approx(math.sqrt(between_gpus))


@pytest.mark.parametrize(
    ("design", "allocations", "gpus"),
    [([[4]], False, False), ([[3, 3]], True, False), ([[3], [3]], False, True)],
    ids=["one allocation", "one GPU", "one day"],
)
def test_a_level_that_was_seen_once_is_not_known(
    design: Design, allocations: bool, gpus: bool
) -> None:
    spread = spread_of(simulated(Random(1), design, KNOWN))
    assert (spread.allocations is not None, spread.gpus is not None) == (allocations, gpus)


@pytest.mark.parametrize("design", [[[1]], [[1, 1, 1]], [[1], [1, 1]]], ids=str)
def test_one_process_per_allocation_tells_nothing_of_processes(design: Design) -> None:
    assert estimates(grouped(simulated(Random(1), design, KNOWN)), METRICS) == {}


def test_a_test_with_one_process_per_allocation_borrows_the_noise_of_its_class() -> None:
    rng = Random(3)
    alone = [simulated(rng, [[1] * 8], KNOWN) for _ in range(40)]
    spread = spread_of(*alone, simulated(rng, [[40]], KNOWN))
    assert spread.allocations == pytest.approx(KNOWN.allocations, rel=0.15)


def test_without_noise_all_spreads_are_zero() -> None:
    series = {"cycles": [437_821_234.0, 437_821_234.0, 437_821_234.0]}
    same = [
        process(series, f"{gpu}{day}{n}", gpu, day)
        for gpu in "ab"
        for day in (1, 2)
        for n in range(7)
    ]
    assert spread_of(same) == Spread(rounds=0.0, processes=0.0, allocations=0.0, gpus=0.0)


def test_the_spread_of_a_percentage_is_in_points_over_a_hundred() -> None:
    values = [process({"tensor_utilization": [v]}, f"p{v}") for v in (49.0, 51.0)]
    spread = spread_of(values, metric_class=RATIO)
    assert spread.processes == pytest.approx(math.sqrt(2) / 100)
    zeros = [process({"tensor_utilization": [v]}, f"p{v}") for v in (0.0, 2.0)]
    assert spread_of(zeros, metric_class=RATIO).processes == pytest.approx(math.sqrt(2) / 100)


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_relative_metric_without_a_logarithm_is_left_out(value: float) -> None:
    both = {"layout_copies": [value, 4.0], "flops": [1e9, 1e9]}
    said = [process(both, "a"), process({"layout_copies": [4.0], "flops": [1.1e9]}, "b")]
    spread = spread_of(said, metric_class=DETERMINISTIC)
    assert spread.processes == pytest.approx(math.log(1.1) / math.sqrt(2))
    only = [process({"layout_copies": [value]}, name) for name in "ab"]
    assert estimates(grouped(only), METRICS) == {}


def pair(**metrics: float) -> list[Measurement]:
    """Two processes that differ in each metric by this factor."""
    return [
        process({name: [1e6] for name in metrics}, "a"),
        process({name: [1e6 * factor] for name, factor in metrics.items()}, "b"),
    ]


@pytest.mark.parametrize(
    ("metrics", "factor"),
    [
        ({"cycles": 1.01, "active_cycles": 1.5}, 1.01),  # gated beside one that is not
        ({"active_cycles": 1.02}, 1.02),
        ({"active_cycles": 1.02, "wall_time": 3.0}, 1.02),
    ],
)
def test_gated_metrics_define_their_class_and_the_cpus_clock_never(
    metrics: dict[str, float], factor: float
) -> None:
    expected = math.log(factor) / math.sqrt(2)
    assert spread_of(pair(**metrics)).processes == pytest.approx(expected)


def test_tests_and_metrics_pool_by_degrees_of_freedom() -> None:
    first = pair(cycles=1.01)
    second = [process({"step_time": [v]}, f"p{i}") for i, v in enumerate([5.0, 5.0, 5.0])]
    spread = spread_of(first, second)
    assert spread.processes == pytest.approx(math.sqrt(math.log(1.01) ** 2 / 2 / 3))


def test_only_the_whole_step_counts() -> None:
    phases = [measurement(phases={"forward": {"cycles": [v]}}, process=str(v)) for v in (1.0, 2.0)]
    assert spread_of(phases).processes == 0


def test_a_class_that_was_not_measured_is_missing() -> None:
    assert list(estimates(grouped(pair(instructions=1.0)), METRICS)) == [DETERMINISTIC]
    assert estimates({}, METRICS) == {}


DESIGN = [[3, 2], [1, 4]]
numbers = st.lists(st.floats(0.5, 2.0), min_size=20, max_size=20)


def laid_out(values: Sequence[float]) -> list[Measurement]:
    """Ten processes of two rounds each, in DESIGN."""
    places = [(u, d) for u, days in enumerate(DESIGN) for d, n in enumerate(days) for _ in range(n)]
    return [
        process({"cycles": values[2 * i : 2 * i + 2]}, f"p{i}", f"gpu-{u}", d + 1)
        for i, (u, d) in enumerate(places)
    ]


def close(one: Spread, other: Spread) -> bool:
    pairs = zip(
        (one.rounds, one.processes, one.allocations or 0, one.gpus or 0),
        (other.rounds, other.processes, other.allocations or 0, other.gpus or 0),
        strict=True,
    )
    # Squares cancel where a spread is floored at zero, so the root of the rounding is left.
    return all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-6) for a, b in pairs)


@settings(max_examples=60)
@given(numbers, st.randoms(use_true_random=False))
def test_the_order_of_processes_and_rounds_does_not_matter(
    values: list[float], rng: Random
) -> None:
    laid = laid_out(values)
    turned = [
        replace(m, samples=tuple(replace(s, values=s.values[::-1]) for s in m.samples))
        for m in rng.sample(laid, len(laid))
    ]
    assert close(spread_of(laid), spread_of(turned))
    assert apart(grouped(laid), METRICS) == apart(grouped(turned), METRICS)


@settings(max_examples=60)
@given(numbers, st.floats(1e-6, 1e9))
def test_the_size_of_the_values_does_not_matter(values: list[float], factor: float) -> None:
    scaled = [value * factor for value in values]
    assert close(spread_of(laid_out(values)), spread_of(laid_out(scaled)))


@settings(max_examples=60)
@given(numbers)
def test_no_spread_is_negative_or_larger_than_what_was_seen(values: list[float]) -> None:
    said = spread_of(laid_out(values))
    for spread in (said.rounds, said.processes, said.allocations, said.gpus):
        assert spread is not None
        assert 0 <= spread <= math.log(4)


# The scales


@pytest.mark.parametrize(
    ("measured", "default", "expected"),
    [(0.0, 1e-3, 1e-4), (5e-5, 1e-3, 1e-4), (2e-4, 1e-3, 2e-4), (3e-3, 1e-3, 3e-3)],
)
def test_a_scale_is_the_measured_spread_but_no_hair_trigger(
    measured: float, default: float, expected: float
) -> None:
    assert recommended(measured, default) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("metric", "default"), [("cycles", 1e-3), ("instructions", 2e-5), ("ipc", 1.5e-3)]
)
def test_a_quiet_class_keeps_a_tenth_of_its_default(metric: str, default: float) -> None:
    (estimate,) = estimates(grouped(pair(**{metric: 1.0})), METRICS).values()
    assert estimate.default == default
    assert estimate.scale == pytest.approx(default / 10)
    assert not estimate.days_dominate


def test_days_dominate_when_they_differ_more_than_processes() -> None:
    values = [(1e6, 1), (1.001e6, 1), (1.1e6, 2), (1.101e6, 2)]
    group = [process({"cycles": [v]}, f"p{v}", day=day) for v, day in values]
    assert estimates(grouped(group), METRICS)[CYCLE].days_dominate
    assert not estimates(grouped(group[:2]), METRICS)[CYCLE].days_dominate


# Processes that stand apart

AROUND = [1.0, 1.0005, 0.9995, 1.001, 0.999, 1.0]


def allocation_of(values: Sequence[float], metric: str = "cycles") -> list[Measurement]:
    return [process({metric: [1e6 * v]}, f"p{i}") for i, v in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (AROUND, set()),
        ([*AROUND, 1.02], {"p6"}),
        ([*AROUND, 1.02, 0.98], {"p6", "p7"}),
        ([1.0, 1.02], set()),  # of two, which one?
        ([1.0, 1.0, 1.0, 1.00002], set()),  # within a tenth of the default: no noise to speak of
        ([1.0, 1.0, 1.0, 1.01], {"p3"}),
    ],
)
def test_processes_beyond_five_robust_deviations_stand_apart(
    values: list[float], expected: set[str]
) -> None:
    assert apart(grouped(allocation_of(values)), METRICS) == expected


def test_a_process_that_stands_apart_in_several_tests_is_one() -> None:
    group = allocation_of([*AROUND, 1.05])
    assert apart(grouped(group, group), METRICS) == {"p6"}


def test_days_that_differ_do_not_stand_apart() -> None:
    groups = [
        process({"cycles": [1e6 * v * (1 + day / 10)]}, f"{day}-{i}", day=day)
        for day in (1, 2, 3)
        for i, v in enumerate(AROUND)
    ]
    assert apart(grouped(groups), METRICS) == frozenset()
