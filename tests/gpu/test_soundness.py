"""Peak memory, and memory that runs out, on a real GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pytest_gpuperf.errors import UnsoundStep
from pytest_gpuperf.measure.collector import Plan
from pytest_gpuperf.measure.device.memory import suffices
from tests.gpu.counted import CORE, captured, collect, series

pytestmark = pytest.mark.gpu

PLAN = Plan(metrics=CORE, rounds=2)
BLOCK = 64 * 2**20


def peak(step: Callable[[], object]) -> tuple[float, ...]:
    """The peak memory of each execution of `step`."""
    return series(collect(step, PLAN))["peak_memory"]


def test_the_peak_is_what_the_step_adds_to_what_is_there() -> None:
    kept = torch.zeros(BLOCK, dtype=torch.uint8, device="cuda")

    def step() -> None:
        first = torch.zeros_like(kept)
        second = first + kept
        del first
        second.add_(kept)

    assert peak(step) == (2 * BLOCK, 2 * BLOCK)


def test_a_graphs_pool_is_part_of_the_peak() -> None:
    kept = torch.zeros(BLOCK // 4, device="cuda")  # a sum of integers would first make wider ones

    def work() -> torch.Tensor:
        return (kept + 1).sum()

    peaks = peak(captured(work).replay)
    assert min(peaks) >= BLOCK
    assert max(peaks) < 1.5 * BLOCK


def test_the_graph_of_an_earlier_step_is_not_part_of_the_peak() -> None:
    """Though it is in a cycle, and a matrix product in it has made cuBLAS take a workspace."""

    class Earlier:
        def __init__(self) -> None:
            self.factor = torch.ones(1024, 1024, device="cuda")
            self.graph = torch.cuda.CUDAGraph()
            self.itself = self
            self.factor @ self.factor  # cuBLAS cannot be initialized while capturing
            with torch.cuda.graph(self.graph):
                self.result = self.factor @ self.factor + torch.zeros(BLOCK // 4, device="cuda")[0]

    Earlier().graph.replay()
    kept = torch.zeros(BLOCK // 4, device="cuda")
    assert peak(lambda: kept + 1) == (BLOCK, BLOCK)


def test_running_out_while_counting_leaves_the_device_as_it_was() -> None:
    executions = 0

    def step() -> torch.Tensor:
        nonlocal executions
        executions += 1
        work = torch.zeros(BLOCK, dtype=torch.uint8, device="cuda")
        if executions > PLAN.warmup:  # in a pass of the first round
            free, _ = torch.cuda.mem_get_info()
            work = torch.empty(2 * free, dtype=torch.uint8, device="cuda")
        return work

    before = torch.cuda.memory_allocated()
    with pytest.raises(UnsoundStep, match=r"ran out of memory: .*Tried to allocate"):
        with suffices():
            collect(step, PLAN)
    assert torch.cuda.memory_allocated() == before
    assert collect(lambda: torch.ones(8, device="cuda"), PLAN).unsupported == ()
