"""Traces on a real GPU: copies of known sizes, gaps of known lengths, components that add up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import UnsoundStep
from pytest_gpuperf.measure.collector import Collected, Components, Phases, Plan, Work
from pytest_gpuperf.model.measurement import STEP
from tests.gpu.counted import collector, medians

pytestmark = pytest.mark.gpu

ACTIVITY = tuple(catalogue().metrics[name] for name in catalogue().sets["activity"])
MIB = 2**20
EDGE = 2048
LONG = 100_000_000
"""Cycles of a kernel that only waits: about 50 ms."""
MILLISECOND = 1e6
cuda: Any = torch.cuda
"""Parts of it have no types."""


def collected(step: Callable[[], object], components: Components | None = None) -> Collected:
    """What the traces of `step` show; no counter is read."""
    work = Work(step, Phases(), components=components or Components())
    plan = Plan(metrics=(), repetitions=1, warmup=1, activity=ACTIVITY, components=True)
    shown = collector().collect(work, plan)
    assert shown.unsupported == ()
    return shown


def sizes(shown: Collected) -> dict[str, float]:
    """What was copied: the metrics of bytes that are not 0."""
    return {n: v for n, v in medians(shown).items() if n.startswith("copy_bytes") and v}


@pytest.mark.parametrize("memory", ["pinned", "pageable"])
@pytest.mark.parametrize("way", ["h2d", "d2h"])
def test_bytes_of_copies_by_direction_and_memory_of_the_host(way: str, memory: str) -> None:
    here = torch.empty(4 * MIB, dtype=torch.uint8, pin_memory=memory == "pinned")
    there = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
    target, source = (there, here) if way == "h2d" else (here, there)
    shown = collected(lambda: target.copy_(source, non_blocking=memory == "pinned"))
    assert sizes(shown) == {f"copy_bytes_{way}_{memory}": 4 * MIB}
    # Between a GB/s and 200 of them.
    assert 4 * MIB / 200 < medians(shown)[f"copy_time_{way}"] < 4 * MIB
    assert medians(shown)["launches"] == 0


def test_a_copy_on_the_device_is_one_where_the_driver_copies() -> None:
    source, target = (torch.empty(MIB, dtype=torch.uint8, device="cuda") for _ in range(2))
    assert sizes(collected(lambda: target.copy_(source))) == {"copy_bytes_d2d": MIB}


def test_a_copy_beside_a_kernel_overlaps_it_and_one_after_it_does_not() -> None:
    here = torch.empty(64 * MIB, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    side = cuda.Stream()

    def beside() -> None:
        cuda._sleep(LONG)
        with cuda.stream(side):
            there.copy_(here, non_blocking=True)
        side.synchronize()

    def after() -> None:
        cuda._sleep(LONG)
        there.copy_(here, non_blocking=True)

    assert medians(collected(beside))["copy_overlap"] > 90
    assert medians(collected(after))["copy_overlap"] < 1


def test_what_the_host_waits_between_two_kernels_is_idle_time() -> None:
    def step() -> None:
        cuda._sleep(LONG // 10)
        cuda.synchronize()
        time.sleep(0.02)
        cuda._sleep(LONG // 10)

    shown = medians(collected(step))
    assert shown["launches"] == 2
    assert 20 * MILLISECOND < shown["launch_gaps"] < 40 * MILLISECOND
    assert shown["launch_gaps"] == shown["launch_gap_median"]
    assert shown["kernel_time"] + shown["launch_gaps"] == pytest.approx(shown["gpu_span"], rel=1e-3)
    idle = 100 * shown["launch_gaps"] / shown["gpu_span"]
    assert shown["gpu_idle"] == pytest.approx(idle, abs=0.1)


def test_kernels_of_two_streams_count_once() -> None:
    side = cuda.Stream()

    def one() -> None:
        cuda._sleep(LONG)

    def two() -> None:
        side.wait_stream(cuda.current_stream())
        cuda._sleep(LONG)
        with cuda.stream(side):
            cuda._sleep(LONG)
        cuda.current_stream().wait_stream(side)

    alone, both = medians(collected(one)), medians(collected(two))
    assert both["launches"] == 2 * alone["launches"] == 2
    assert both["kernel_time"] == pytest.approx(alone["kernel_time"], rel=0.1)


class Block:
    """A step of two components, one of them with another inside, and something outside of both."""

    def __init__(self) -> None:
        self.components = Components()
        self.matrix: torch.Tensor = torch.randn(EDGE, EDGE, device="cuda")
        self.weight = torch.randn(EDGE, EDGE, device="cuda", requires_grad=True)

    def __call__(self) -> None:
        mark = self.components.mark
        with mark("block"):
            product = self.matrix @ self.matrix
            with mark("gelu"):
                product.relu_().neg_()
            product.abs_()
        with mark("gelu"):
            product.exp_()
        product.neg_()


def test_components_have_what_was_launched_in_them_and_add_up() -> None:
    step = Block()
    shown = collected(step, step.components)
    assert shown.components == ("block", "gelu")
    whole, block, gelu = (medians(shown, part) for part in (STEP, "block", "gelu"))
    assert (whole["launches"], gelu["launches"]) == (block["launches"] + 3 + 1, 3)
    assert block["kernel_time"] > gelu["kernel_time"] > 0
    # neg_ is outside: an elementwise kernel as each of gelu's three.
    outside = whole["kernel_time"] - block["kernel_time"] - gelu["kernel_time"]
    assert 0 < outside < gelu["kernel_time"]


def test_what_backward_launches_belongs_to_the_component_around_it() -> None:
    step = Block()

    def training() -> None:
        with step.components.mark("forward_part"):
            loss = (step.matrix @ step.weight).square().sum()
        with step.components.mark("backward_part"):
            torch.autograd.backward(loss)

    shown = collected(training, step.components)
    whole = medians(shown)
    parts = [medians(shown, part) for part in ("forward_part", "backward_part")]
    assert min(part["launches"] for part in parts) > 0
    assert sum(part["launches"] for part in parts) == whole["launches"]
    assert sum(part["kernel_time"] for part in parts) == pytest.approx(
        whole["kernel_time"], rel=0.1
    )


def test_a_step_that_works_on_another_gpu_is_refused() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    here, there = (torch.ones(2048, 2048, device=f"cuda:{number}") for number in (0, 1))
    for step in (
        lambda: (there @ there).mean(),
        lambda: there.mul_(1.0),  # nothing is allocated
        lambda: ((here @ here).to("cuda:1") @ there).mean(),
    ):
        with pytest.raises(UnsoundStep, match="of the step, but gpuperf reads counters of cuda:0"):
            collected(step)
