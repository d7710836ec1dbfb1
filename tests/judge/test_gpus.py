"""Which GPU a process ran on: its own kind is compared with, and others widen the tolerance."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.interval import difference
from pytest_gpuperf.judge.noise import GPUS_PRIOR_WEIGHT, BaselineGpus, error_between
from pytest_gpuperf.judge.tolerance import tolerance_for
from pytest_gpuperf.judge.verdict import OTHER_GPU, Reference, decide, judge
from pytest_gpuperf.model.measurement import STEP, Device
from pytest_gpuperf.model.metric import Direction
from pytest_gpuperf.model.result import Outcome, Verdict
from tests.examples import measurement
from tests.strategies import few

CYCLES = tolerance_for(catalogue().metrics["cycles"])
REGRESSED = Outcome.REGRESSED
ONE, OTHER, THIRD = "gpu-1", "gpu-2", "gpu-3"

BASELINE = [[1_000_000.0], [1_000_000.0], [1_020_000.0], [1_020_000.0]]
UNITS = (ONE, ONE, OTHER, OTHER)
"""The second GPU needs 2 % more cycles for the same work."""


def verdict_on(gpu: str, value: float, metric: str = "cycles", processes: int = 3) -> Verdict:
    """The verdict on processes on `gpu`, all of this value."""
    device = Device("sm90", "NVIDIA H200", "nvidia-h200", gpu)
    known = Reference({STEP: {metric: BASELINE}}, gpus=UNITS)
    new = [
        measurement({metric: [value]}, device=device, process=f"p{number}")
        for number in range(processes)
    ]
    (verdicts,) = judge(new, known, catalogue().metrics, {})
    return verdicts


def test_processes_are_known_when_the_baseline_has_all_their_gpus() -> None:
    assert BaselineGpus(UNITS, frozenset({ONE})).known
    assert BaselineGpus(UNITS, frozenset({ONE, OTHER})).known
    assert not BaselineGpus(UNITS, frozenset({ONE, THIRD})).known


def test_values_are_grouped_by_gpu() -> None:
    gpus = BaselineGpus((ONE, OTHER, ONE), frozenset({OTHER, THIRD}))
    assert gpus.groups([1.0, 2.0, 3.0]) == [[1.0, 3.0], [2.0]]
    assert gpus.groups([1.0, 2.0, 3.0], comparable=True) == [[2.0]]


def test_positions_are_grouped_like_values() -> None:
    gpus = BaselineGpus((ONE, OTHER, ONE), frozenset({ONE}))
    assert gpus.positions() == [[0, 2], [1]]
    assert gpus.positions(comparable=True) == [[0, 2]]


@pytest.mark.parametrize(
    ("where", "days", "measured", "allocations"),
    [
        ((ONE, ONE), ("mon", "mon"), {ONE}, 1),
        ((ONE, ONE), ("mon", "tue"), {ONE}, 2),
        ((ONE, ONE, OTHER), ("mon", "mon", "tue"), {ONE}, 1),
        ((ONE, ONE, OTHER), ("mon", "tue", "tue"), {ONE, OTHER}, 3),
        ((ONE, OTHER), ("mon", "mon"), {ONE, OTHER}, 2),
        # On a GPU that the baseline lacks, all are compared with.
        ((ONE, ONE, OTHER), ("mon", "tue", "tue"), {THIRD}, 3),
        ((ONE, OTHER), (), {ONE}, 1),
        ((ONE, OTHER), (), {THIRD}, 2),
    ],
)
def test_an_allocation_is_a_gpu_on_a_day(
    where: tuple[str, ...], days: tuple[str, ...], measured: set[str], allocations: int
) -> None:
    assert BaselineGpus(where, frozenset(measured), days).allocations == allocations


def test_processes_are_left_out_with_their_days() -> None:
    gpus = BaselineGpus((ONE, OTHER, ONE), frozenset({ONE}), ("mon", "tue", "wed"))
    assert gpus.without(frozenset()) == gpus
    assert gpus.without(frozenset({0})) == BaselineGpus(
        (OTHER, ONE), frozenset({ONE}), ("tue", "wed")
    )
    undated = BaselineGpus((ONE, OTHER), frozenset({ONE}))
    assert undated.without(frozenset({1})) == BaselineGpus((ONE,), frozenset({ONE}))


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


@pytest.mark.parametrize(
    ("gpu", "value", "outcome"),
    [
        (ONE, 1_000_000, Outcome.UNCHANGED),
        (ONE, 1_010_000, Outcome.REGRESSED),
        (OTHER, 1_020_000, Outcome.UNCHANGED),
        (OTHER, 1_010_000, Outcome.IMPROVED),
        (OTHER, 1_030_000, Outcome.REGRESSED),
    ],
)
def test_a_process_is_compared_with_those_on_its_own_gpu(
    gpu: str, value: float, outcome: Outcome
) -> None:
    verdict = verdict_on(gpu, value)
    assert verdict.outcome is outcome
    assert verdict.tolerance == pytest.approx(0.005)
    assert verdict.detail == ""


@pytest.mark.parametrize("value", [1_010_000, 990_000])
def test_one_process_on_its_own_gpu_is_looked_at_again(value: float) -> None:
    verdict = verdict_on(ONE, value, processes=1)
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, "too-few-processes")


@pytest.mark.parametrize("value", [990_000, 1_010_000, 1_030_000])
@pytest.mark.parametrize("processes", [1, 3])
def test_on_another_gpu_a_difference_between_gpus_is_no_regression(
    value: float, processes: int
) -> None:
    verdict = verdict_on(THIRD, value, processes=processes)
    assert verdict.outcome is Outcome.UNCHANGED
    assert verdict.detail == OTHER_GPU
    means = [math.log(1_000_000), math.log(1_020_000)]
    # Two GPUs seen beside the 20 degrees of freedom that are assumed; t at 0.0025.
    widening = stats.t.isf(0.0025, 21) * error_between(means, CYCLES.between_gpus)
    assert verdict.tolerance == pytest.approx(math.exp(math.log(1.005) + widening) - 1)


def test_counts_that_do_not_depend_on_the_gpu_are_compared_with_all() -> None:
    look = difference(
        [[1_000_000.0]],
        [[1_000_000.0]] * 4,
        tolerance_for(catalogue().metrics["instructions"]),
        BaselineGpus(UNITS, frozenset({THIRD})),
    )
    assert (look.change, look.widening) == (0.0, 0.0)
    assert verdict_on(THIRD, 1_010_000, "instructions").detail == ""


def test_without_gpus_all_processes_are_of_one_gpu() -> None:
    alone = difference([[1e6]], [[1e6], [1.001e6]], CYCLES)
    same = difference(
        [[1e6]], [[1e6], [1.001e6]], CYCLES, BaselineGpus((ONE, ONE), frozenset({ONE}))
    )
    assert alone == same


@pytest.mark.parametrize(("processes", "outcome"), [(1, Outcome.INCONCLUSIVE), (3, REGRESSED)])
def test_on_another_gpu_a_loss_beyond_all_gpus_is_found(processes: int, outcome: Outcome) -> None:
    assert verdict_on(THIRD, 1_100_000, processes=processes).outcome is outcome


def test_an_outlier_is_left_out_with_its_gpu_and_day() -> None:
    """Whatever else is on file of it: positions stay aligned."""
    baseline = [[1.2e6], [1e6], [1.02e6], [1e6], [1.02e6], [1e6]]
    gpus = BaselineGpus((ONE, ONE, OTHER, ONE, OTHER, ONE), frozenset({ONE}), tuple("abcdef"))
    look = difference([[1e6]], baseline, CYCLES, gpus)
    rest = BaselineGpus((ONE, OTHER, ONE, OTHER, ONE), frozenset({ONE}), tuple("bcdef"))
    without = difference([[1e6]], baseline[1:], CYCLES, rest)
    assert look.set_aside == pytest.approx([math.log(1.2)])
    assert replace(look, set_aside=()) == without
    assert look.change == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("direction", [-1, 1])
def test_on_another_gpu_nothing_within_the_tolerance_stays_undecided(direction: int) -> None:
    """However far the GPUs are apart: 'unchanged' up to the tolerance, no gap below it."""
    for apart in (0.0, 0.01, 0.05):
        baseline = [[1e6], [1e6], [1e6 * (1 + apart)]]
        gpus = BaselineGpus((ONE, ONE, OTHER), frozenset({THIRD}))
        look = difference([[1e6]], baseline, CYCLES, gpus)
        just_inside = look.baseline * math.exp(0.999 * direction * look.floor(CYCLES))
        look = difference([[just_inside]], baseline, CYCLES, gpus)
        assert decide(Direction.LOWER, look, CYCLES, 3)[0] is Outcome.UNCHANGED
