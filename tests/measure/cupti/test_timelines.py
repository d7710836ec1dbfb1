"""A step's timeline: samples, phases and how their clocks are joined, over the scripted CUPTI."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuperf.catalogue.metric_catalogue import timeline_metrics
from pytest_gpuperf.measure.collector import Phases, TimelineCollector, Work
from pytest_gpuperf.measure.cupti.codes import ResultCode
from pytest_gpuperf.measure.cupti.cupti_collector import CuptiCollector
from pytest_gpuperf.model.measurement import Device, Timeline
from tests.examples import H200
from tests.measure.cupti.conftest import compiled
from tests.measure.cupti.fake import Fake, FakeClock, FakeTimer

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

    @property
    def work(self) -> Work:
        return Work(self, self.phases, lambda: self.fake.note("reset"))


def collector(fake: Fake, device: Device = H200) -> CuptiCollector:
    return CuptiCollector(
        device,
        timer=FakeTimer(fake),
        clock=lambda: FakeClock(fake),
        load_cupti=lambda: fake.cupti,
        load_driver=lambda: fake.cuda,
    )


def test_the_collector_can_make_one(fake: Fake) -> None:
    assert isinstance(collector(fake), TimelineCollector)


def test_phases_and_samples_are_on_one_clock(fake: Fake) -> None:
    for ticks in (
        1000,
        2800,
    ):
        fake.reset()
        fake.set("ticks", ticks)
        step = Step(fake)
        found = collector(fake).timeline(step.work)
        assert found.obstacle == ""
        assert found.unsupported == ()
        assert found.duration == pytest.approx(4.1e6)
        assert [phase.name for phase in found.phases] == ["forward", "backward", "optimizer"]
        assert [phase.begin for phase in found.phases] == pytest.approx([0.2e6, 1.4e6, 3.6e6])
        assert [phase.end for phase in found.phases] == pytest.approx([1.2e6, 3.4e6, 4.1e6])
        # A thousandth of a step of 5 ms (FakeTimer) is shorter than the shortest interval.
        assert found.sampling_interval == pytest.approx(20_000, rel=2e-3)
        assert found.samples == pytest.approx(4.1e6 / 20_000, abs=1)
        assert within(found, "forward", "sm_active") == pytest.approx(80, abs=0.5)
        assert within(found, "backward", "sm_active") == pytest.approx(40, abs=0.5)
        assert within(found, "backward", "tensor_active") == pytest.approx(20, abs=0.5)
        assert within(found, "optimizer", "sm_active") == 0
        assert step.executed == 2  # once by itself, once sampled
        assert fake.alive == 0


def within(found: Timeline, phase: str, metric: str) -> float:
    """The mean of the points that are wholly inside a phase."""
    (at,) = (entry for entry in found.phases if entry.name == phase)
    values = [
        value
        for number, value in enumerate(found.series[metric])
        if at.begin <= found.begin + number * found.interval
        and found.begin + (number + 1) * found.interval <= at.end
        and value is not None
    ]
    return sum(values) / len(values)


def test_every_metric_has_a_series_of_the_same_length(fake: Fake) -> None:
    found = collector(fake).timeline(Step(fake).work)
    assert set(found.series) == {metric.name for metric in timeline_metrics()}
    assert {len(values) for values in found.series.values()} == {found.samples}


def test_a_phase_that_comes_twice_is_there_twice(fake: Fake) -> None:
    step = Step(fake, ("forward", 1, 50), ("forward", 2, 50))
    found = collector(fake).timeline(step.work)
    assert [phase.name for phase in found.phases] == ["forward", "forward"]
    assert found.phases[0].end <= found.phases[1].begin


def test_a_step_without_phases_has_none(fake: Fake) -> None:
    found = collector(fake).timeline(Work(lambda: fake.elapse(3, 50), Phases()))
    assert found.phases == ()
    assert found.duration == pytest.approx(3e6)


def test_a_full_buffer_has_the_step_sampled_again_less_often(fake: Fake) -> None:
    fake.set("buffer", 120)
    step = Step(fake)
    found = collector(fake).timeline(step.work)
    assert found.obstacle == ""
    assert found.sampling_interval == pytest.approx(40_000, rel=2e-3)
    assert step.executed == 3


def test_a_buffer_that_stays_too_small_is_the_obstacle(fake: Fake) -> None:
    fake.set("buffer", 2)
    step = Step(fake)
    found = collector(fake).timeline(step.work)
    assert "every 80 us" in found.obstacle
    assert found.series == {}
    assert step.executed == 4
    assert fake.alive == 0


def test_a_step_that_takes_twice_as_long_as_expected_is_sampled_less_often(fake: Fake) -> None:
    # FakeTimer says 5 ms: there is room for 475 samples, and 10 ms have 500.
    step = Step(fake, ("forward", 9.8, 50))
    found = collector(fake).timeline(step.work)
    assert found.obstacle == ""
    assert found.sampling_interval == pytest.approx(40_000, rel=2e-3)
    assert step.executed == 3


def test_metrics_that_cannot_be_sampled_are_named_as_ours(fake: Fake) -> None:
    fake.set("room", 3)
    found = collector(fake).timeline(Step(fake).work)
    assert [entry.metric for entry in found.unsupported] == ["fma_active"]
    assert set(found.series) == {"sm_active", "tensor_active", "dram_active"}


def _lacking(fake: Fake) -> None:
    fake.fail("cuptiPmSamplingEnable", ResultCode.ERROR_INSUFFICIENT_PRIVILEGES)


def _misplaced(fake: Fake) -> None:
    fake.set("ticks", 0)


def test_what_stands_in_the_way_is_said_and_nothing_raised(fake: Fake) -> None:
    for spoil, said in (
        (_lacking, "may not read the GPU's performance counters"),
        (_misplaced, "samples cannot be placed in it"),
    ):
        fake.reset()
        spoil(fake)
        found = collector(fake).timeline(Step(fake).work)
        assert said in found.obstacle
        assert (found.series, found.samples) == ({}, 0)
        assert fake.alive == 0


def test_an_architecture_that_cannot_be_sampled_is_named(fake: Fake) -> None:
    found = collector(fake, Device("sm70", "Tesla V100", "tesla-v100")).timeline(Step(fake).work)
    assert "cannot be sampled on sm70" in found.obstacle
    assert "PmSamplingEnable" not in fake.log


def test_a_cupti_without_pm_sampling_is_the_obstacle(tmp_path: Path) -> None:
    other = Fake(compiled(tmp_path, "-DWITHOUT_SAMPLING"))
    found = collector(other).timeline(Step(other).work)
    assert "has no cuptiPmSampling" in found.obstacle


def test_what_the_step_raises_comes_out(fake: Fake) -> None:
    executed = []

    def step() -> None:
        executed.append(1)
        if len(executed) == 2:
            raise ArithmeticError("the step's own")

    with pytest.raises(ArithmeticError, match="the step's own"):
        collector(fake).timeline(Work(step, Phases()))
    assert fake.alive == 0
