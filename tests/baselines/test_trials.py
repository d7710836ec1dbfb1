"""Spreads of known designs are recovered; every held-out process is one A/A trial."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

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
CYCLE, DETERMINISTIC = MetricClass.CYCLE, MetricClass.DETERMINISTIC

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


def laid_out(design: Design) -> list[Measurement]:
    """Processes of one test on these GPUs and days, which differ by 0.01 % and more."""
    return [
        process(
            {"cycles": [4e8 + 4e4 * number * (gpu + day)]}, f"{gpu}-{day}-{number}", str(gpu), day
        )
        for gpu, days in enumerate(design)
        for day, count in enumerate(days, 1)
        for number in range(count)
    ]


def rounded(spread: float) -> object:
    """What equals this, but for the digits that no spread has."""
    return pytest.approx(spread, rel=1e-3)


def spread_of(*groups: Sequence[Measurement], metric_class: MetricClass = CYCLE) -> Spread:
    return spreads(grouped(*groups))[metric_class]


# The spreads


@pytest.mark.parametrize("metric", ["cycles", "instructions", "tensor_utilization"])
def test_the_formulas_by_hand(metric: str) -> None:
    """Two GPUs; one has two days: 2 processes each, 0.02 and 0.04 apart; rounds are 0.002 apart."""

    def at(log: float, name: str, gpu: str, day: int) -> Measurement:
        both = (log - 0.001, log + 0.001)
        values = [50 + 100 * v if METRICS[metric].percentage else 1e6 * math.exp(v) for v in both]
        return process({metric: values}, name, gpu, day)

    measured = [
        at(0.00, "a", "one", 1),
        at(0.02, "b", "one", 1),
        at(0.10, "c", "one", 2),
        at(0.14, "d", "one", 2),
        at(0.50, "e", "two", 1),
    ]
    between_processes = (0.02**2 / 2 + 0.04**2 / 2) / 2
    between_days = 0.11**2 / 2 - between_processes / 2
    explained = [between_days / 2 + between_processes * 1 / 4, between_days + between_processes]
    between_gpus = 0.435**2 / 2 - sum(explained) / 2
    # Of two tests alike it is the same, and neither order nor size matters.
    for groups in ([measured], [measured[::-1], measured]):
        spread = spread_of(*groups, metric_class=METRICS[metric].metric_class)
        assert spread.rounds == rounded(0.002 / math.sqrt(2))
        assert spread.processes == rounded(math.sqrt(between_processes))
        assert spread.allocations == rounded(math.sqrt(between_days))
        assert spread.gpus == rounded(math.sqrt(between_gpus))


def test_a_level_that_was_seen_once_is_not_known() -> None:
    for design, allocations, gpus in (
        ([[4]], False, False),
        ([[3, 3]], True, False),
        ([[3], [3]], False, True),
    ):
        spread = spread_of(laid_out(design))
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
    processes = laid_out(design)
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
