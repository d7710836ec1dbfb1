"""The CUPTI collector on a real GPU: what it counts is what ran."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.measure.collector import Collected, Phases, Plan, Work
from pytest_gpuperf.measure.cupti.cupti_collector import CuptiCollector
from pytest_gpuperf.measure.device import guard, nvml
from pytest_gpuperf.model.measurement import STEP

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.gpu

CORE = catalogue().hardware_set("core")
EDGE = 2048


class Products:
    """A step of two phases: a matrix product, then an elementwise operation."""

    def __init__(self) -> None:
        import torch

        self.phases = Phases()
        self.matrix: torch.Tensor = torch.randn(EDGE, EDGE, device="cuda")

    def __call__(self) -> None:
        with self.phases.mark("product"):
            product = self.matrix @ self.matrix
        with self.phases.mark("elementwise"):
            product.relu()


def collect(step: Products, **changes: object) -> Collected:
    """What the collector brings back from `step` with the core metrics."""
    plan = replace(Plan(metrics=CORE, rounds=3), **changes)  # type: ignore[arg-type]
    return CuptiCollector().collect(Work(step, step.phases), plan)


def values(collected: Collected, phase: str, metric: str) -> tuple[float, ...]:
    """The values of one metric over one phase."""
    (sample,) = (s for s in collected.samples if (s.phase, s.metric) == (phase, metric))
    return sample.values


def test_the_device_is_one_that_we_know() -> None:
    device = nvml.detect_device()
    assert device is not None
    assert device.arch in architectures.ARCHITECTURES


def test_the_guard_reads_the_clocks() -> None:
    reading = guard.read()
    assert reading.sm_clock_mhz
    assert reading.memory_clock_mhz


def test_rounds_repeat_and_do_not_accumulate() -> None:
    counted = values(collect(Products()), STEP, "instructions")
    assert len(counted) == 3
    assert max(counted) == pytest.approx(min(counted), rel=1e-4)


def test_the_phases_add_up_to_the_step() -> None:
    collected = collect(Products())
    (step, *_) = values(collected, STEP, "instructions")
    parts = [values(collected, phase, "instructions")[0] for phase in ("product", "elementwise")]
    assert sum(parts) == pytest.approx(step, rel=1e-4)


def test_twice_the_work_is_twice_the_instructions() -> None:
    step = Products()
    once = values(collect(step), "product", "instructions")[0]

    class Twice(Products):
        def __call__(self) -> None:
            with self.phases.mark("product"):
                self.matrix @ self.matrix
                self.matrix @ self.matrix

    twice = values(collect(Twice()), "product", "instructions")[0]
    assert twice == pytest.approx(2 * once, rel=1e-3)


def test_a_metric_that_the_chip_does_not_have_is_named_and_the_others_are_read() -> None:
    unknown = replace(CORE[0], name="unknown", hardware={"default": "sm__no_such_metric.sum"})
    collected = collect(Products(), metrics=(*CORE, unknown))
    assert [entry.metric for entry in collected.unsupported] == ["unknown"]
    assert "sm__no_such_metric.sum" in collected.unsupported[0].reason
    assert values(collected, STEP, "cycles")


def test_a_step_that_raises_leaves_nothing_behind() -> None:
    class Breaks(Products):
        executions = 0

        def __call__(self) -> None:
            self.executions += 1
            if self.executions > 2:  # past the warm-up: in the middle of a counter pass
                raise ArithmeticError("the step's own")
            super().__call__()

    with pytest.raises(ArithmeticError, match="the step's own"):
        collect(Breaks())
    assert values(collect(Products()), STEP, "cycles")


def test_torch_profiler_works_before_and_after() -> None:
    from torch.profiler import ProfilerActivity, profile

    def launches() -> int:
        import torch

        # acc_events keeps torch's warning about cleared events away.
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as trace:
            Products()()
            torch.cuda.synchronize()
        return sum(event.count for event in trace.key_averages())

    before = launches()
    assert values(collect(Products()), STEP, "instructions")
    assert launches() == before


@pytest.mark.parametrize("name", catalogue().counter_sets)
def test_a_set_is_read_whole_but_for_what_the_architecture_lacks(name: str) -> None:
    device = nvml.detect_device()
    assert device is not None
    metrics = catalogue().hardware_set(name)
    collected = collect(Products(), metrics=metrics, rounds=1)
    lacking = {metric.name for metric in metrics if not metric.exists_on(device.arch)}
    assert {entry.metric for entry in collected.unsupported} == lacking
    if name != "core":
        assert 0 < values(collected, STEP, "sm_throughput")[0] <= 100


def test_floating_point_operations_are_those_of_the_product() -> None:
    metrics = catalogue().selected("paper")
    collected = collect(Products(), metrics=metrics, rounds=1)
    counted = {s.metric: s.values[0] for s in collected.samples if s.phase == "product"}
    operations = 2 * counted.get("sass_ffma", 0) + 4 * counted.get("sass_ffma2", 0)
    operations += counted.get("tensor_ops_tf32", 0)
    assert operations == pytest.approx(2 * EDGE**3, rel=0.05)
