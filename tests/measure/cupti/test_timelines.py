"""A step's timeline: samples, phases and how their clocks are joined, over the scripted CUPTI."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from pytest_gpuperf.catalogue.metric_catalogue import timeline_metrics
from pytest_gpuperf.measure.collector import Phases, TimelineCollector, Work
from pytest_gpuperf.measure.cupti.abi import ResultCode
from pytest_gpuperf.measure.cupti.cupti_collector import CuptiCollector
from pytest_gpuperf.model.measurement import Device, Timeline
from tests.examples import H200
from tests.measure.cupti.conftest import compiled
from tests.measure.cupti.fake import Fake, FakeClock
from tests.measure.traces import points

PARTS = (("forward", 1.0, 80.0), ("backward", 2.0, 40.0), ("optimizer", 0.5, 0.0))
"""Phases, ms and percent of the device that is active; 0.2 idle ms before each."""


class Step:
    """Lets time pass on the device, in phases."""

    def __init__(self, fake: Fake, *parts: tuple[str, float, float]) -> None:
        self.fake = fake
        self.parts = parts or PARTS
        self.phases = Phases()
        self.executed = 0

    def __call__(self) -> None:
        self.executed += 1
        for name, milliseconds, active in self.parts:
            self.fake.elapse(0.2)
            with self.phases.mark(name):
                self.fake.elapse(milliseconds, active)

    def timeline(self, device: Device = H200) -> Timeline:
        work = Work(self, self.phases, lambda: self.fake.note("reset"))
        return collector(self.fake, device).timeline(work)


def collector(fake: Fake, device: Device = H200) -> CuptiCollector:
    return fake.collector(device, clock=lambda: FakeClock(fake))


def mean(timeline: Timeline, phase: str, metric: str) -> float:
    """Of the points that are wholly inside a phase."""
    return fmean(points(timeline, phase, metric))


def test_the_collector_can_make_one(fake: Fake) -> None:
    assert isinstance(collector(fake), TimelineCollector)


def test_phases_and_samples_are_on_one_clock(fake: Fake) -> None:
    for ticks in (1000, 2800):
        fake.reset()
        fake.set("ticks", ticks)
        step = Step(fake)
        timeline = step.timeline()
        assert (timeline.obstacle, timeline.unsupported) == ("", ())
        assert timeline.duration == pytest.approx(4.1e6)
        assert [phase.name for phase in timeline.phases] == ["forward", "backward", "optimizer"]
        assert [phase.begin for phase in timeline.phases] == pytest.approx([0.2e6, 1.4e6, 3.6e6])
        assert [phase.end for phase in timeline.phases] == pytest.approx([1.2e6, 3.4e6, 4.1e6])
        # A thousandth of a step of 5 ms (FakeTimer) is shorter than the shortest interval.
        assert timeline.sampling_interval == pytest.approx(20_000, rel=2e-3)
        assert timeline.samples == pytest.approx(4.1e6 / 20_000, abs=1)
        assert mean(timeline, "forward", "sm_active") == pytest.approx(80, abs=0.5)
        assert mean(timeline, "backward", "sm_active") == pytest.approx(40, abs=0.5)
        assert mean(timeline, "backward", "tensor_active") == pytest.approx(20, abs=0.5)
        assert mean(timeline, "optimizer", "sm_active") == 0
        assert {len(values) for values in timeline.series.values()} == {timeline.samples}
        assert set(timeline.series) == {metric.name for metric in timeline_metrics()}
        assert step.executed == 2  # once by itself, once sampled


def test_a_phase_may_come_twice_and_a_step_has_none_that_marks_none(fake: Fake) -> None:
    timeline = Step(fake, ("forward", 1, 50), ("forward", 2, 50)).timeline()
    assert [phase.name for phase in timeline.phases] == ["forward", "forward"]
    assert timeline.phases[0].end <= timeline.phases[1].begin
    timeline = collector(fake).timeline(Work(lambda: fake.elapse(3, 50), Phases()))
    assert timeline.phases == ()
    assert timeline.duration == pytest.approx(3e6)


def test_what_does_not_fit_has_the_step_sampled_again_less_often(fake: Fake) -> None:
    # FakeTimer says 5 ms: there is room for 475 samples, and 10 ms have 500.
    for parts, buffer in (((), 120), ((("forward", 9.8, 50.0),), None)):
        fake.reset()
        if buffer:
            fake.set("buffer", buffer)
        step = Step(fake, *parts)
        timeline = step.timeline()
        assert timeline.obstacle == ""
        assert timeline.sampling_interval == pytest.approx(40_000, rel=2e-3)
        assert step.executed == 3
    fake.set("buffer", 2)
    step = Step(fake)
    timeline = step.timeline()
    assert "every 80 us" in timeline.obstacle
    assert timeline.series == {}
    assert step.executed == 4


def test_metrics_that_cannot_be_sampled_are_named_as_ours(fake: Fake) -> None:
    fake.set("room", 3)
    timeline = Step(fake).timeline()
    assert [entry.metric for entry in timeline.unsupported] == ["fma_active"]
    assert set(timeline.series) == {"sm_active", "tensor_active", "dram_active"}


def test_what_stands_in_the_way_is_said_and_nothing_raised(fake: Fake, tmp_path: Path) -> None:
    def obstacle(device: Device = H200, fake: Fake = fake) -> str:
        timeline = Step(fake).timeline(device)
        assert (timeline.series, timeline.samples) == ({}, 0)
        return timeline.obstacle

    assert "cannot be sampled on sm70" in obstacle(Device("sm70", "Tesla V100", "tesla-v100"))
    assert "PmSamplingEnable" not in fake.log
    fake.fail("cuptiPmSamplingEnable", ResultCode.ERROR_INSUFFICIENT_PRIVILEGES)
    assert "may not read the GPU's performance counters" in obstacle()
    fake.reset()
    fake.set("ticks", 0)
    assert "samples cannot be placed in it" in obstacle()
    other = Fake(compiled(tmp_path, "-DWITHOUT_SAMPLING"))
    assert "has no cuptiPmSampling" in obstacle(fake=other)


def test_what_the_step_raises_comes_out(fake: Fake) -> None:
    executed = []

    def step() -> None:
        executed.append(1)
        if len(executed) == 2:
            raise ArithmeticError("the step's own")

    with pytest.raises(ArithmeticError, match="the step's own"):
        collector(fake).timeline(Work(step, Phases()))
