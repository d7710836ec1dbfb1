"""What a trace says of torch.compile, as torch itself leaves it there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest
import torch

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.measure.collector import Phases, Plan, Work
from pytest_gpuperf.measure.cpu.cpu_collector import CpuCollector
from pytest_gpuperf.measure.trace.host_calls import Compilations, _compilations, counted, plain
from pytest_gpuperf.measure.trace.profile import Trace


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


def test_nothing_is_compiled_by_default() -> None:
    assert counts(lambda: whole(torch.ones(4))) == (0, 0, 0)


@pytest.mark.parametrize(("function", "expected"), [(whole, (1, 0, 0)), (broken, (2, 1, 0))])
def test_a_break_makes_two_graphs_of_one(
    function: Callable[[torch.Tensor], torch.Tensor], expected: tuple[float, float, float]
) -> None:
    compiled = torch.compile(function, backend="eager")
    assert counts(lambda: compiled(torch.ones(4))) == expected


def test_what_is_compiled_in_every_execution_is_told() -> None:
    def step() -> torch.Tensor:
        torch._dynamo.reset()
        return torch.compile(whole, backend="eager")(torch.ones(4))

    assert counts(step) == (1, 0, 1)


def test_an_execution_in_which_nothing_is_compiled_has_none() -> None:
    assert set(Compilations().counted(Trace(())).values()) == {0.0}


def test_calls_are_counted_whatever_the_version_of_the_api() -> None:
    assert plain("cudaMallocHost_v3020") == "cudaMallocHost"
    made = counted(["cudaMallocHost", "cudaMalloc", "cuStreamSynchronize"])
    assert (made["driver_allocations"], made["stream_synchronizations"]) == (2, 1)
    assert made["device_synchronizations"] == 0


def test_a_number_that_changes_is_compiled_before_anything_is_timed() -> None:
    """Dynamo takes a float for a constant until it changes."""
    compiled = torch.compile(lambda x, rate: x * rate, backend="eager")
    for dynamic, compiling in ((None, None), (False, "8 of 9")):
        torch._dynamo.reset()
        lengths = count(10)
        resized = torch.compile(lambda x: x * 2, backend="eager", dynamic=dynamic)
        graphs: list[float] = []

        def step(numbers: Iterator[int] = lengths) -> None:
            number = next(numbers)
            compiled(torch.ones(4), 1.0 / number)
            resized(torch.ones(number))  # noqa: B023
            graphs.append(_compilations())  # noqa: B023

        collected = CpuCollector().collect(Work(step, Phases()), Plan((), rounds=1, repetitions=1))
        assert (collected.settings or {}).get("compiling") == compiling
        assert graphs[-1] == graphs[-2] == graphs[-3]
