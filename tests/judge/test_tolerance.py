"""Tolerances: the classes' defaults, and what a marker may write."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.judge.tolerance import (
    ANY,
    is_judged,
    parse,
    tolerance_for,
)
from pytest_gpuperf.model.entry import Calibration, Spread
from pytest_gpuperf.model.metric import Metric, MetricClass

CYCLES = catalogue().metrics["cycles"]
INSTRUCTIONS = catalogue().metrics["instructions"]
PEAK_MEMORY = catalogue().metrics["peak_memory"]
IPC = catalogue().metrics["ipc"]
HIT_RATE = catalogue().metrics["l2_hit_rate"]


def calibrated(
    metric_class: MetricClass,
    processes: float,
    allocations: float | None = None,
    gpus: float | None = None,
) -> Calibration:
    """A calibration that knows one class."""
    spread = Spread(1e-4, processes, allocations, gpus)
    return Calibration("2026-03-01", 20, 4, 2, 60, 0, {metric_class.value: spread})


def test_each_class_has_the_scales_of_the_statistics_and_memory_a_floor_of_its_own() -> None:
    for metric, floor, equivalence, scale, points in (
        (INSTRUCTIONS, 0.0001, 0.0005, 2e-5, False),
        (CYCLES, 0.005, 0.01, 1e-3, False),
        # 4 MiB of 18 GiB are seen exactly, and matter to nobody.
        (PEAK_MEMORY, 0.005, 0.025, 2e-5, False),
        (IPC, 0.0075, 0.015, 1.5e-3, False),
        (HIT_RATE, 0.75, 1.5, 0.15, True),
    ):
        tolerance = tolerance_for(metric)
        assert (tolerance.floor, tolerance.equivalence, tolerance.scale) == pytest.approx(
            (floor, equivalence, scale), rel=1e-12
        )
        assert tolerance.points is points, (metric, floor)


def test_a_share_is_a_fraction_and_points_are_points() -> None:
    for metric, written, number in (
        (CYCLES, "1%", 0.01),
        (CYCLES, "0.25%", 0.0025),
        (CYCLES, " 2 % ", 0.02),
        (CYCLES, "150%", 1.5),
        (HIT_RATE, "2pt", 2.0),
        (HIT_RATE, "0.5 pt", 0.5),
    ):
        assert parse(written, metric) == pytest.approx(number), (metric, written)


def test_a_written_tolerance_moves_floor_and_equivalence_together() -> None:
    assert tolerance_for(PEAK_MEMORY, "0.01%").floor == pytest.approx(0.0001)
    tolerance = tolerance_for(CYCLES, "2%")
    assert (tolerance.floor, tolerance.equivalence) == pytest.approx((0.02, 0.04))
    assert tolerance.scale == tolerance_for(CYCLES).scale


@pytest.mark.parametrize(
    ("metric", "written", "judged"),
    [(CYCLES, None, True), (CYCLES, "300%", True), (CYCLES, ANY, False), (IPC, None, False)],
)
def test_of_which_any_change_is_tolerated_is_not_judged(
    metric: Metric, written: str | None, judged: bool
) -> None:
    assert is_judged(metric, written) is judged


def test_of_which_any_change_is_tolerated_has_the_scales_of_its_class_for_what_is_shown() -> None:
    assert parse(ANY, CYCLES) == float("inf")
    assert tolerance_for(CYCLES, ANY) == replace(tolerance_for(CYCLES), written=True)


def test_what_is_no_tolerance_and_the_wrong_kind_are_refused_with_what_to_write() -> None:
    for written in (
        *("", "%", "1", "1 percent", "-1%", "+1%", "0%", "0.0%", ".5%", "1.%", "1,5%", "2pt"),
        *("1%%", "one%", "nan%", "inf%", "Any", "any%", "9" * 400 + "%", "1%\n1%"),
    ):
        with pytest.raises(UsageFailure, match=r'for cycles is not valid.*"1%", .* in cycles'):
            tolerance_for(CYCLES, written)
    with pytest.raises(UsageFailure, match=r'for l2_hit_rate is not valid.*"2pt"'):
        tolerance_for(HIT_RATE, "2%")


# What a calibration changes


def test_a_calibration_replaces_the_scale() -> None:
    for measured, scale in (
        (3e-3, 3e-3),
        (1e-3, 1e-3),
        (4e-4, 4e-4),
        (1.001e-4, 1.001e-4),
        # Luck is no precision: a tenth of the class's at least.
        (1e-4, 1e-4),
        (0.999e-4, 1e-4),
        (0.0, 1e-4),
    ):
        tolerance = tolerance_for(CYCLES, None, calibrated(MetricClass.CYCLE, measured))
        assert tolerance.scale == pytest.approx(scale, rel=1e-12), (measured, scale)
        default = tolerance_for(CYCLES)
        assert replace(tolerance, scale=default.scale) == default, (measured, scale)


def test_a_calibration_only_raises_the_spread_between_gpus_and_knows_that_between_days() -> None:
    for measured, between in ((None, 1e-2), (0.0, 1e-2), (9e-3, 1e-2), (1e-2, 1e-2), (3e-2, 3e-2)):
        calibration = calibrated(MetricClass.CYCLE, 1e-3, gpus=measured)
        assert tolerance_for(CYCLES, None, calibration).between_gpus == between
    # Counts do not begin to depend on the GPU.
    calibration = calibrated(MetricClass.DETERMINISTIC, 2e-5, gpus=0.5)
    assert tolerance_for(INSTRUCTIONS, None, calibration).between_gpus == 0
    for measured, between in ((None, 5e-4), (0.0, 0.0), (2e-3, 2e-3)):
        calibration = calibrated(MetricClass.CYCLE, 1e-3, allocations=measured)
        assert tolerance_for(CYCLES, None, calibration).between_days == between
    assert tolerance_for(CYCLES).between_days == 5e-4
    assert tolerance_for(INSTRUCTIONS).between_days == 0
