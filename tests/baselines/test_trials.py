"""Spreads of known designs are recovered; every held-out process is one A/A trial."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest

from pytest_gpuperf.baselines.calibration import (
    BASELINE,
    alarms_at_most,
    allocation,
    spreads,
    trials,
)
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
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


def rounded(spread: float) -> object:
    """What equals this, but for the digits that no spread has."""
    return pytest.approx(spread, rel=1e-3)


def spread_of(*groups: Sequence[Measurement], metric_class: MetricClass = CYCLE) -> Spread:
    return spreads(grouped(*groups))[metric_class]


# The spreads

KNOWN = Spread(rounds=1e-4, processes=1e-3, allocations=2e-3, gpus=5e-3)


def test_a_known_nested_design_is_recovered() -> None:
    """40 tests of 5 GPUs: the standard error of each estimate is below 8 % of it."""
    unbalanced = [[7, 1, 2], [3], [1, 5], [2, 2, 2, 9], [1]]
    for design, metric in (
        ([[4] * 3] * 5, "cycles"),
        (unbalanced, "cycles"),
        (unbalanced, "tensor_utilization"),
        (unbalanced, "instructions"),
    ):
        rng = Random(20260301)
        groups = [simulated(rng, design, KNOWN, metric=metric) for _ in range(40)]
        spread = spread_of(*groups, metric_class=METRICS[metric].metric_class)
        assert spread.rounds == pytest.approx(KNOWN.rounds, rel=0.03), (design, metric)
        # The median of five rounds has a noise of its own, which belongs to the process.
        assert spread.processes == pytest.approx(math.hypot(1e-3, 0.54e-4), rel=0.08)
        assert spread.allocations == pytest.approx(KNOWN.allocations, rel=0.15)
        assert spread.gpus == pytest.approx(KNOWN.gpus, rel=0.2)


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
    assert spread.processes == rounded(math.sqrt(between_processes))
    assert spread.allocations == rounded(math.sqrt(between_days))
    assert spread.gpus == rounded(math.sqrt(between_gpus))


def test_a_level_that_was_seen_once_is_not_known() -> None:
    for design, allocations, gpus in (
        ([[4]], False, False),
        ([[3, 3]], True, False),
        ([[3], [3]], False, True),
    ):
        spread = spread_of(simulated(Random(1), design, KNOWN))
        assert (spread.allocations is not None, spread.gpus is not None) == (allocations, gpus)


def pair(**metrics: float) -> list[Measurement]:
    """Two processes that differ in each metric by this factor."""
    return [
        process({name: [1e6] for name in metrics}, "a"),
        process({name: [1e6 * factor] for name, factor in metrics.items()}, "b"),
    ]


def test_gated_metrics_define_their_class_and_the_cpus_clock_never() -> None:
    for metrics, factor in (
        ({"cycles": 1.01, "active_cycles": 1.5}, 1.01),  # gated beside one that is not
        ({"active_cycles": 1.02}, 1.02),
        ({"active_cycles": 1.02, "wall_time": 3.0}, 1.02),
    ):
        expected = math.log(factor) / math.sqrt(2)
        assert spread_of(pair(**metrics)).processes == rounded(expected), (metrics, factor)


def test_what_a_test_has_a_tolerance_of_its_own_for_is_of_another_kind() -> None:
    """Cycles of a step that waits for its host say nothing of the kernels beside them."""
    measured = pair(cycles=1.5, kernel_time=1.002)
    waiting = [replace(one, tolerance={"cycles": "300%"}) for one in measured]
    assert spread_of(measured).processes > 0.1
    assert spread_of(waiting).processes == rounded(math.log(1.002) / math.sqrt(2))


# Trials


@pytest.mark.parametrize(
    ("design", "looks", "spanned"),
    [
        ([[5]], [], 0),
        ([[6]], [1] * 6, 1),
        ([[8]], [3] * 8, 1),  # the judge may look again, at what the baseline has not
        ([[4], [2]], [1] * 6, 2),
        ([[10, 10]], [10] * 20, 1),  # another day
        ([[2] * 3] * 2, [2] * 12, 5),
    ],
)
def test_every_process_is_judged_by_five_others_from_as_many_allocations_as_there_are(
    design: Design, looks: list[int], spanned: int
) -> None:
    processes = simulated(Random(0), design, Spread(0, 0, 0, 0), rounds=1)
    made = list(trials(processes))
    assert [len(queue) for _, queue in made] == looks
    assert sorted(queue[0].process for _, queue in made) == sorted(
        one.process for one in processes[: len(looks)]
    )
    for baseline, queue in made:
        assert len(baseline) == BASELINE
        assert {*map(allocation, queue)} == {allocation(queue[0])}
        assert not {m.process for m in baseline} & {m.process for m in queue}
        assert len({*map(allocation, baseline)}) == spanned
        apart = allocation(queue[0]) not in {*map(allocation, baseline)}
        assert apart is (len(processes) - len(queue) > BASELINE)


def test_at_the_bound_so_few_alarms_have_a_chance_of_one_in_twenty() -> None:
    for alarms, count in ((0, 1), (0, 6), (0, 2000), (1, 20), (3, 76), (19, 20)):
        rate = alarms_at_most(alarms, count)
        chances = (
            math.comb(count, seen) * rate**seen * (1 - rate) ** (count - seen)
            for seen in range(alarms + 1)
        )
        assert sum(chances) == pytest.approx(0.05), (alarms, count)
    # If all trials alarm, any rate is possible.
    assert alarms_at_most(4, 4) == 1


def test_a_relative_metric_without_a_logarithm_is_left_out() -> None:
    for value in (0.0, -1.0):
        both = {"layout_copies": [value, 4.0], "flops": [1e9, 1e9]}
        said = [process(both, "a"), process({"layout_copies": [4.0], "flops": [1.1e9]}, "b")]
        spread = spread_of(said, metric_class=DETERMINISTIC)
        assert spread.processes == rounded(math.log(1.1) / math.sqrt(2)), value
        only = [process({"layout_copies": [value]}, name) for name in "ab"]
        assert spreads(grouped(only)) == {}, value
