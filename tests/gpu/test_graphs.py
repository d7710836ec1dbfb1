"""CUDA graphs on a real GPU: each is counted as one, and named so."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.measure.collector import Phases, Plan, Work
from pytest_gpuperf.measure.cupti.cupti_collector import CuptiCollector
from pytest_gpuperf.model.measurement import KernelTable, Launch

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.gpu

CORE = catalogue().hardware_set("core")
EDGE = 1024


class Replaying:
    """A step that replays one graph twice, between eager kernels.

    One kernel before; then the graph of three; two kernels; the graph again; one kernel after.
    """

    def __init__(self) -> None:
        import torch

        self.matrix: torch.Tensor = torch.randn(EDGE, EDGE, device="cuda")
        self.graph = torch.cuda.CUDAGraph()
        self.inside()  # what is loaded at its first use cannot be captured
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            self.inside()

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
    table = kernels(Replaying())
    assert table.mismatch == ""
    assert [launch.kind for launch in table.launches] == [
        *("kernel", "graph", "kernel", "kernel", "graph", "kernel")
    ]
    first, graph, *between, again, last = table.launches
    assert table.names[graph.name] == table.names[again.name] == "CUDA graph of 3 kernels"
    assert all(count(table, one, "cycles") > 0 for one in (first, graph, again, last))
    assert all(set(one.values) == {None} for one in between)
    assert count(table, again, "instructions") == pytest.approx(
        count(table, graph, "instructions"), rel=1e-3
    )
    assert count(table, last, "instructions") == pytest.approx(
        count(table, first, "instructions"), rel=1e-3
    )


def test_a_graph_executes_the_instructions_of_its_kernels() -> None:
    step = Replaying()
    eager = CuptiCollector().collect(Work(step.inside, Phases()), Plan(metrics=CORE, rounds=1))
    (instructions,) = (s.values[0] for s in eager.samples if s.metric == "instructions")
    table = kernels(step)
    graph = next(launch for launch in table.launches if launch.kind == "graph")
    assert count(table, graph, "instructions") == pytest.approx(instructions, rel=1e-3)


def test_torch_replays_graphs_as_before() -> None:
    import torch

    replay = torch.cuda.CUDAGraph.replay
    step = Replaying()
    kernels(step)
    assert torch.cuda.CUDAGraph.replay is replay
    step.graph.replay()
    torch.cuda.synchronize()


@pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
def test_the_graphs_of_a_compiled_step() -> None:
    import torch

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
