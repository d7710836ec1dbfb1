"""CUDA graphs on a real GPU: each is counted as one, and named so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pytest_gpuperf.measure.collector import Phases, Plan, Work
from pytest_gpuperf.measure.cupti.cupti_collector import CuptiCollector
from pytest_gpuperf.model.measurement import KernelTable, Launch
from tests.gpu.counted import CORE, captured, collect, medians

pytestmark = pytest.mark.gpu

EDGE = 1024


class Replaying:
    """A step that replays one graph twice, between eager kernels.

    One kernel before; then the graph of three; two kernels; the graph again; one kernel after.
    """

    def __init__(self) -> None:
        self.matrix: torch.Tensor = torch.randn(EDGE, EDGE, device="cuda")
        self.graph = captured(self.inside)

    def inside(self) -> None:
        for _ in range(3):
            self.matrix.relu_()

    def __call__(self) -> None:
        self.matrix.abs_()
        self.graph.replay()
        self.matrix.neg_()
        self.matrix.exp_()
        self.graph.replay()
        self.matrix.abs_()


def kernels(step: Callable[[], object]) -> KernelTable:
    """The kernel table of `step` with the core metrics."""
    return CuptiCollector().kernels(Work(step, Phases()), CORE)


def count(table: KernelTable, launch: Launch, metric: str) -> float:
    """The value of a launch that has one."""
    value = launch.values[table.metrics.index(metric)]
    assert value is not None
    return value


def test_graphs_and_lone_kernels_are_counted() -> None:
    replay, step = torch.cuda.CUDAGraph.replay, Replaying()
    table = kernels(step)
    assert table.mismatch == ""
    assert [launch.kind for launch in table.launches] == [
        *("kernel", "graph", "kernel", "kernel", "graph", "kernel")
    ]
    first, graph, *between, again, last = table.launches
    assert table.names[graph.name] == table.names[again.name] == "CUDA graph of 3 kernels"
    assert all(count(table, one, "cycles") > 0 for one in (first, graph, again, last))
    assert all(set(one.values) == {None} for one in between)
    # A graph executes the instructions of its kernels, every time.
    inside = medians(collect(step.inside, Plan(metrics=CORE, rounds=1)))["instructions"]
    executed = [count(table, one, "instructions") for one in (first, graph, again, last)]
    assert executed[1:3] == pytest.approx([inside, inside], rel=1e-3)
    assert executed[3] == pytest.approx(executed[0], rel=1e-3)
    # And torch replays it as before.
    assert torch.cuda.CUDAGraph.replay is replay
    step.graph.replay()
    torch.cuda.synchronize()


@pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
def test_the_graphs_of_a_compiled_step() -> None:
    pytest.importorskip("triton")
    model = torch.nn.Sequential(torch.nn.Linear(EDGE, EDGE), torch.nn.ReLU()).cuda()
    compiled = torch.compile(model, mode="reduce-overhead")
    inputs = torch.randn(EDGE, EDGE, device="cuda")

    def step() -> None:
        with torch.no_grad():
            compiled(inputs)

    for _ in range(3):
        step()
    table = kernels(step)
    assert table.mismatch == ""
    assert [launch.kind for launch in table.launches].count("graph") == 1
