"""PM sampling on a real GPU: what is in the timeline is what ran, when it ran."""

from __future__ import annotations

import time
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf.catalogue.metric_catalogue import catalogue, timeline_metrics
from pytest_gpuperf.measure.collector import Phases, Plan, Work
from pytest_gpuperf.measure.cupti.cupti_collector import CuptiCollector
from pytest_gpuperf.measure.device import nvml
from pytest_gpuperf.measure.trace import timelines
from pytest_gpuperf.model.measurement import Timeline
from tests.measure.traces import points

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.gpu

EDGE = 8192
PRODUCTS, PAUSE_S, COPIES = 150, 0.05, 100
"""Some 240, 50 and 50 ms on an H200."""


class Alternating:
    """A step of matrix products on the tensor cores, a pause, and copies on the device.

    It is so many times as long as others.
    """

    def __init__(self, length: float = 1.0) -> None:
        import torch

        self.length = length
        self.phases = Phases()
        self.matrix: torch.Tensor = torch.randn(EDGE, EDGE, device="cuda", dtype=torch.bfloat16)
        self.source: torch.Tensor = torch.zeros(2**28, device="cuda")
        self.target = torch.empty_like(self.source)

    def __call__(self) -> None:
        import torch

        with self.phases.mark("products"):
            for _ in range(round(self.length * PRODUCTS)):
                self.matrix @ self.matrix
        torch.cuda.synchronize()
        with self.phases.mark("pause"):
            # The device has nothing to do while its host sleeps.
            time.sleep(self.length * PAUSE_S)
        with self.phases.mark("copies"):
            for _ in range(round(self.length * COPIES)):
                # A kernel: a plain copy may be the copy engine's, without any SM.
                torch.add(self.source, 1, out=self.target)


def timeline_of(step: Alternating) -> Timeline:
    """What the collector samples of `step`."""
    timeline = CuptiCollector().timeline(Work(step, step.phases))
    assert timeline.obstacle == ""
    return timeline


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    return timeline_of(Alternating())


def within(timeline: Timeline, phase: str, metric: str) -> list[float]:
    """The points that are wholly inside a phase, without the first and the last of them."""
    inside = points(timeline, phase, metric)
    assert len(inside) > 20
    return inside[1:-1]


def launches(step: Alternating) -> int:
    """How many kernels torch's profiler sees."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    # acc_events keeps torch's warning about cleared events away.
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as trace:
        step()
        torch.cuda.synchronize()
    return sum(event.count for event in trace.key_averages())


def test_every_metric_is_sampled(timeline: Timeline) -> None:
    assert timeline.unsupported == ()
    assert set(timeline.series) == {metric.name for metric in timeline_metrics()}


def covered(timeline: Timeline) -> float:
    """The time of all samples."""
    return timeline.samples * timeline.sampling_interval


def test_samples_cover_the_step(timeline: Timeline) -> None:
    assert covered(timeline) == pytest.approx(timeline.duration, rel=0.1)
    assert all(value is not None for values in timeline.series.values() for value in values)


def near() -> float:
    """How far an interval may be from what was asked for."""
    device = nvml.detect_device()
    assert device is not None
    # Turing and GA100 wait for so many cycles of a clock that varies.
    return 0.5 if device.arch in ("sm75", "sm80") else 0.01


def test_a_long_step_is_sampled_at_10_khz(timeline: Timeline) -> None:
    assert timeline.sampling_interval == pytest.approx(timelines.LONGEST, rel=near())


def test_a_short_step_is_sampled_more_often() -> None:
    timeline = timeline_of(Alternating(length=1 / 25))
    assert timeline.duration < timelines.SHORTEST * 1000
    # Before and after so short a step, the clocks are joined less exactly.
    assert timeline.sampling_interval == pytest.approx(timelines.SHORTEST, rel=near() + 0.02)
    assert covered(timeline) == pytest.approx(timeline.duration, rel=0.1)
    assert fmean(within(timeline, "products", "tensor_active")) > 20


def test_the_step_takes_as_long_as_by_itself(timeline: Timeline) -> None:
    import torch

    step = Alternating()
    step()
    event: Any = torch.cuda.Event
    before, after = event(enable_timing=True), event(enable_timing=True)
    torch.cuda.synchronize()
    before.record()
    step()
    after.record()
    torch.cuda.synchronize()
    assert timeline.duration / 1e6 == pytest.approx(before.elapsed_time(after), rel=0.1)


def test_phases_are_in_order_and_inside_the_step(timeline: Timeline) -> None:
    assert [phase.name for phase in timeline.phases] == ["products", "pause", "copies"]
    moments = [moment for phase in timeline.phases for moment in (phase.begin, phase.end)]
    assert moments == sorted(moments)
    assert moments[0] >= 0
    assert moments[-1] <= timeline.duration


def test_products_are_on_the_tensor_cores_and_copies_are_not(timeline: Timeline) -> None:
    assert fmean(within(timeline, "products", "tensor_active")) > 20
    assert max(within(timeline, "copies", "tensor_active")) < 1
    assert min(within(timeline, "products", "sm_active")) > 50
    assert min(within(timeline, "copies", "sm_active")) > 50


def test_copies_are_limited_by_dram(timeline: Timeline) -> None:
    copies = fmean(within(timeline, "copies", "dram_active"))
    assert copies > 50
    assert copies > 2 * fmean(within(timeline, "products", "dram_active"))


def test_the_pause_is_idle(timeline: Timeline) -> None:
    # Where the clocks were joined wrongly, by more than a sample, this shows it.
    assert max(within(timeline, "pause", "sm_active")) < 1
    assert max(within(timeline, "pause", "tensor_active")) < 1


def test_additions_use_the_fma_pipe(timeline: Timeline) -> None:
    assert fmean(within(timeline, "copies", "fma_active")) > 0
    assert max(within(timeline, "pause", "fma_active")) < 0.1


def test_a_second_timeline_is_like_the_first(timeline: Timeline) -> None:
    again = timeline_of(Alternating())
    first, second = (fmean(within(one, "products", "tensor_active")) for one in (timeline, again))
    assert second == pytest.approx(first, rel=0.1)


def test_after_torch_profiler_the_clocks_are_still_joined_rightly() -> None:
    # It gives CUPTI the CPU's cycle counter for a clock.
    launches(Alternating())
    timeline = timeline_of(Alternating())
    assert fmean(within(timeline, "products", "tensor_active")) > 20
    assert max(within(timeline, "pause", "sm_active")) < 1
    assert timeline.sampling_interval == pytest.approx(timelines.LONGEST, rel=near())


def test_counters_and_torch_profiler_work_after_sampling() -> None:
    step = Alternating()
    step()
    before = launches(step)
    timeline_of(step)
    plan = Plan(metrics=catalogue().hardware_set("core"), rounds=1)
    collected = CuptiCollector().collect(Work(step, step.phases), plan)
    assert collected.unsupported == ()
    assert launches(step) == before


def test_a_step_that_raises_leaves_nothing_behind() -> None:
    step = Alternating()
    executed: list[int] = []

    def breaks() -> None:
        executed.append(1)
        if len(executed) == 2:  # while it is sampled
            raise ArithmeticError("the step's own")
        step()

    with pytest.raises(ArithmeticError, match="the step's own"):
        CuptiCollector().timeline(Work(breaks, step.phases))
    timeline_of(step)
