"""What a trace says of torch.compile, as torch itself leaves it there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.measure.collector import Phases, Plan, Work
from pytest_gpuperf.measure.cpu.cpu_collector import CpuCollector
from pytest_gpuperf.measure.trace.host_calls import Compilations, counted, plain
from pytest_gpuperf.measure.trace.profile import Trace

ONES = torch.ones(4)


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x.sin() * 2
    torch._dynamo.graph_break()
    return (y + 1).relu()


def whole(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 2 + 1).relu()


def counts(step: Callable[[], object]) -> tuple[float, float, float]:
    """Compiled graphs, graph breaks and recompilations of a step, as the collector has them."""
    plan = Plan((), rounds=1, repetitions=1, activity=(catalogue().metrics["compiled_graphs"],))
    work = Work(step, Phases())
    values = {s.metric: s.values for s in CpuCollector().collect(work, plan).samples}
    names = ("compiled_graphs", "graph_breaks", "recompilations")
    graphs, breaks, compilations = (values[name][0] for name in names)
    return graphs, breaks, compilations


@pytest.fixture(autouse=True)
def forgotten() -> None:
    torch._dynamo.reset()


def compiling() -> torch.Tensor:
    torch._dynamo.reset()
    return torch.compile(whole, backend="eager")(ONES)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda: whole(ONES), (0, 0, 0)),
        (partial(torch.compile(whole, backend="eager"), ONES), (1, 0, 0)),
        (partial(torch.compile(broken, backend="eager"), ONES), (2, 1, 0)),
        (compiling, (1, 0, 1)),
    ],
)
def test_graphs_breaks_and_compilations_of_a_step_are_counted(
    step: Callable[[], object], expected: tuple[float, float, float]
) -> None:
    assert counts(step) == expected


def test_an_execution_in_which_nothing_is_compiled_has_none() -> None:
    assert set(Compilations().counted(Trace(())).values()) == {0.0}


def test_calls_are_counted_whatever_the_version_of_the_api() -> None:
    assert plain("cudaMallocHost_v3020") == "cudaMallocHost"
    made = counted(["cudaMallocHost", "cudaMalloc", "cuStreamSynchronize"])
    assert (made["driver_allocations"], made["stream_synchronizations"]) == (2, 1)
    assert made["device_synchronizations"] == 0
