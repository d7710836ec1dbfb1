"""From samples to the points that are kept."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.measure.trace import timelines
from pytest_gpuperf.measure.trace.timelines import TimelineReading
from pytest_gpuperf.model.measurement import Timeline, TimelinePhase
from pytest_gpuperf.storage import run_files
from pytest_gpuperf.storage.run_files import MOST_POINTS

WIDTH = 100.0


def readings(*values: float, begin: float = 0.0, width: float = WIDTH) -> list[TimelineReading]:
    """Samples of one metric, one after the other."""
    return [
        TimelineReading(begin + number * width, begin + (number + 1) * width, (value,))
        for number, value in enumerate(values)
    ]


def made(samples: list[TimelineReading], duration: float) -> Timeline:
    return timelines.of_readings(samples, ["sm_active"], duration)


def test_regular_samples_are_the_points() -> None:
    timeline = made(readings(10, 20, 30), 3 * WIDTH)
    assert timeline.series == {"sm_active": (10, 20, 30)}
    assert (timeline.samples, timeline.sampling_interval, timeline.interval) == (3, WIDTH, WIDTH)
    assert (timeline.begin, timeline.duration) == (0, 3 * WIDTH)


def test_samples_belong_to_the_step_that_has_their_middle() -> None:
    timeline = made(readings(1, 2, 3, 4, 5, 6, begin=-160), 300)
    assert timeline.series == {"sm_active": (3, 4, 5)}
    assert timeline.begin == 40
    timeline = made(readings(1, 2, 3, 4, 5, 6, begin=-140), 300)
    assert timeline.series == {"sm_active": (2, 3, 4)}
    assert timeline.begin == -40


def test_long_series_are_means_over_equal_intervals() -> None:
    for samples, factor in ((4000, 1), (4001, 2), (12_000, 3), (12_001, 4)):
        timeline = made(readings(*(number % 10 for number in range(samples))), samples * WIDTH)
        points = timeline.series["sm_active"]
        assert timeline.interval == factor * WIDTH
        assert len(points) == math.ceil(samples / factor) <= MOST_POINTS
        assert points[0] == pytest.approx(sum(range(factor)) / factor, abs=0.01)
        assert (timeline.samples, timeline.sampling_interval) == (samples, WIDTH)


def test_a_mean_is_weighted_by_time() -> None:
    # Two samples in the time of one, as where a clock that triggers them varies.
    samples = [
        *readings(10, 10),
        TimelineReading(200, 225, (40,)),
        TimelineReading(225, 300, (20,)),
    ]
    assert made([*samples, *readings(10, begin=300)], 400).series["sm_active"] == (10, 10, 25, 10)


def test_a_gap_has_no_value_and_clocks_that_are_a_little_apart_make_no_further_point() -> None:
    apart = [TimelineReading(k * 100.02, (k + 1) * 100.02 - 0.02, (5,)) for k in range(40)]
    assert made(apart, 4001).series["sm_active"] == (5,) * 40
    gap = made([*readings(10, 20), *readings(30, begin=400)], 500)
    assert gap.series["sm_active"] == (10, 20, None, None, 30)


def test_what_is_no_percentage_is_left_out() -> None:
    for wrong in (math.nan, math.inf, -5.0, 1e9):
        timeline = made(readings(10, wrong, 30), 300)
        assert timeline.series["sm_active"] == (10, None, 30)
        assert list(run_files.timeline_problems(timeline)) == []


def test_samples_without_a_time_are_left_out() -> None:
    timeline = made([TimelineReading(50, 50, (99,)), *readings(10, 20)], 200)
    assert timeline.series["sm_active"] == (10, 20)


def test_no_sample_in_the_step_is_said_with_the_times() -> None:
    with pytest.raises(MeasurementError, match=r"none of 2 samples .* from 1.000 to 1.200 ms"):
        made(readings(1, 2, begin=1e6, width=1e5), 5e5)
    with pytest.raises(MeasurementError, match=r"no sample was taken in 0.500 ms"):
        made([], 5e5)


def test_the_interval_is_a_thousandth_of_the_step_within_limits() -> None:
    for milliseconds, microseconds in ((0.1, 20), (20, 20), (50, 50), (100, 100), (1250, 100)):
        assert timelines.interval_for(milliseconds * 1e6) == microseconds * 1000


def test_means_and_idle_time() -> None:
    timeline = made(readings(0, 0.5, 50, 49.5), 4 * WIDTH)
    assert timelines.mean(timeline, "sm_active") == 25
    assert timelines.idle(timeline) == 0.5
    assert timelines.mean(timeline, "tensor_active") is None
    assert timelines.idle(timelines.absent("no permission")) is None


SOUND = replace(
    made(readings(1, 2), 200), phases=(TimelinePhase("forward", 0, 50), TimelinePhase("b", 50, 50))
)


def test_a_sound_timeline_has_no_problems_and_what_cannot_be_is_named() -> None:
    for timeline, *where in (
        (SOUND,),
        (timelines.absent("no permission"),),
        (replace(SOUND, series={"warp_speed": (1.0,)}), "series/warp_speed"),
        (replace(SOUND, series={"sm_active": (1.0,), "tensor_active": ()}), "series/tensor_active"),
        (replace(SOUND, series={"sm_active": (1.0, 1e308)}), "series/sm_active"),
        (replace(SOUND, series={"sm_active": (-1.0, None)}), "series/sm_active"),
        (replace(SOUND, interval=0.0), "interval"),
        (replace(SOUND, duration=-1.0), "duration"),
        (replace(SOUND, phases=(TimelinePhase("forward", 5, 4),)), "phases/0"),
    ):
        assert [entry for entry, _ in run_files.timeline_problems(timeline)] == where
