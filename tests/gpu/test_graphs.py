"""CUDA graphs on a real GPU: each is counted as one, and named so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pytest_gpuperf.measure.collector import Phases, Work
from pytest_gpuperf.model.measurement import KernelTable
from tests.gpu.counted import CORE, captured, collector

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
    """The kernel table of `step`, for which the core metrics are asked."""
    return collector().kernels(Work(step, Phases()), CORE)


def test_graphs_and_kernels_beside_them_have_names_and_times() -> None:
    table = kernels(Replaying())
    assert (table.mismatch, table.metrics) == ("", ())
    assert [launch.kind for launch in table.launches] == [
        *("kernel", "graph", "kernel", "kernel", "graph", "kernel")
    ]
    graphs = {table.names[one.name] for one in table.launches if one.kind == "graph"}
    assert graphs == {"CUDA graph of 3 kernels"}
    assert all(launch.duration > 0 for launch in table.launches)


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
