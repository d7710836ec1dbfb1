"""The CUPTI collector on a real GPU: what it counts is what ran."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.measure.collector import Collected, Phases, Plan
from pytest_gpuperf.measure.device import guard, nvml
from pytest_gpuperf.model.measurement import STEP
from tests.gpu.counted import CORE, collect, medians, series

pytestmark = pytest.mark.gpu

EDGE = 2048


class Products:
    """A step of two phases: a matrix product, then an elementwise operation."""

    def __init__(self) -> None:
        self.phases = Phases()
        self.matrix: torch.Tensor = torch.randn(EDGE, EDGE, device="cuda")

    def __call__(self) -> None:
        with self.phases.mark("product"):
            product = self.matrix @ self.matrix
        with self.phases.mark("elementwise"):
            product.relu()


def counted(step: Products, **changes: Any) -> Collected:
    """What the collector brings back from `step`: the core metrics, if nothing else is said."""
    return collect(step, replace(Plan(metrics=CORE, rounds=3), **changes), step.phases)


def instructions(collected: Collected, phase: str = STEP) -> tuple[float, ...]:
    """Of each round."""
    return series(collected, phase)["instructions"]


def test_the_guard_reads_the_clocks() -> None:
    reading = guard.read()
    assert reading.sm_clock_mhz
    assert reading.memory_clock_mhz


def test_rounds_repeat_without_adding_up_and_phases_add_up_to_the_step() -> None:
    collected = counted(Products())
    step = instructions(collected)
    assert len(step) == 3
    assert max(step) == pytest.approx(min(step), rel=1e-4)
    parts = [instructions(collected, phase)[0] for phase in ("product", "elementwise")]
    assert sum(parts) == pytest.approx(step[0], rel=1e-4)


def test_twice_the_work_is_twice_the_instructions() -> None:
    class Twice(Products):
        def __call__(self) -> None:
            with self.phases.mark("product"):
                self.matrix @ self.matrix
                self.matrix @ self.matrix

    once, twice = (instructions(counted(step), "product")[0] for step in (Products(), Twice()))
    assert twice == pytest.approx(2 * once, rel=1e-3)


def test_a_metric_that_the_chip_does_not_have_is_named_and_the_others_are_read() -> None:
    unknown = replace(CORE[0], name="unknown", hardware={"default": "sm__no_such_metric.sum"})
    collected = counted(Products(), metrics=(*CORE, unknown))
    assert [entry.metric for entry in collected.unsupported] == ["unknown"]
    assert "sm__no_such_metric.sum" in collected.unsupported[0].reason
    assert series(collected)["cycles"]


def test_a_step_that_raises_leaves_nothing_behind() -> None:
    class Breaks(Products):
        executions = 0

        def __call__(self) -> None:
            self.executions += 1
            if self.executions > 2:  # past the warm-up: in the middle of a counter pass
                raise ArithmeticError("the step's own")
            super().__call__()

    with pytest.raises(ArithmeticError, match="the step's own"):
        counted(Breaks())
    assert series(counted(Products()))["cycles"]


@pytest.mark.parametrize("name", catalogue().counter_sets)
def test_a_set_is_read_whole_but_for_what_the_architecture_lacks(name: str) -> None:
    device = nvml.detect_device()
    assert device is not None
    metrics = catalogue().hardware_set(name)
    collected = counted(Products(), metrics=metrics, rounds=1)
    lacking = {metric.name for metric in metrics if not metric.exists_on(device.arch)}
    assert {entry.metric for entry in collected.unsupported} == lacking
    if name != "core":
        assert 0 < series(collected)["sm_throughput"][0] <= 100


def test_floating_point_operations_are_those_of_the_product() -> None:
    metrics = catalogue().selected("paper")
    product = medians(counted(Products(), metrics=metrics, rounds=1), "product")
    operations = 2 * product.get("sass_ffma", 0) + 4 * product.get("sass_ffma2", 0)
    operations += product.get("tensor_ops_tf32", 0)
    assert operations == pytest.approx(2 * EDGE**3, rel=0.05)
