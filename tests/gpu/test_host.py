"""What the host does, on a real GPU: waits, copies, allocations and graphs, and their lines."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import CountersUnavailable
from pytest_gpuperf.measure.collector import Phases, Plan, Work
from pytest_gpuperf.measure.cupti import library
from pytest_gpuperf.measure.trace import compiled_kernels
from pytest_gpuperf.model.measurement import KernelTable
from tests import ROOT
from tests.gpu.counted import collect, collector, medians, series

pytestmark = pytest.mark.gpu

CORE = catalogue().selected("core")
PLAN = Plan(
    metrics=tuple(metric for metric in CORE if not metric.traced),
    rounds=1,
    activity=tuple(metric for metric in CORE if metric.traced),
)
EDGE = 512


def counted_in(step: Callable[[], object]) -> dict[str, float]:
    """What a measurement of the step brings: medians."""
    return medians(collect(step, PLAN))


def matrix() -> torch.Tensor:
    return torch.rand(EDGE, EDGE, device="cuda")


def test_waits_are_counted_by_the_call_that_waits() -> None:
    cuda: Any = torch.cuda
    x, pageable = matrix(), torch.rand(EDGE)

    def step() -> None:
        (x @ x).sum().item()
        pageable.cuda()
        event = cuda.Event()
        event.record()
        event.synchronize()
        cuda.synchronize()

    counted = counted_in(step)
    assert counted["stream_synchronizations"] == 2
    assert counted["event_synchronizations"] == 1
    assert counted["device_synchronizations"] == 1
    assert counted["copies"] == 2
    assert counted["copy_bytes_h2d_pageable"] == 4 * EDGE
    assert counted["recompilations"] == counted["compiled_graphs"] == 0


def test_a_step_that_only_launches_waits_for_nothing_and_asks_for_no_memory() -> None:
    x = matrix()

    def step() -> None:
        for _ in range(20):
            x.relu()

    counted = counted_in(step)
    waits = [value for name, value in counted.items() if name.endswith("synchronizations")]
    assert (counted["launches"], waits, counted["driver_allocations"]) == (20, [0, 0, 0], 0)


def test_memory_that_the_cache_lacks_is_asked_of_the_driver() -> None:
    def step() -> None:
        torch.cuda.empty_cache()
        torch.empty(2**26, device="cuda")

    assert counted_in(step)["driver_allocations"] == 1


@pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
def test_graphs_breaks_and_recompilations_of_torch_compile() -> None:
    x = matrix()

    def broken(y: torch.Tensor) -> torch.Tensor:
        z = y.sin() * 2
        torch._dynamo.graph_break()
        return (z + 1).relu()

    compiled = torch.compile(broken)
    counted = counted_in(lambda: compiled(x))
    assert (counted["compiled_graphs"], counted["graph_breaks"]) == (2, 1)
    assert counted["recompilations"] == 0


def test_without_the_right_to_read_counters_times_and_the_host_are_measured_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused() -> library.Cupti:
        raise CountersUnavailable("the driver lets administrators only", "Ask yours")

    monkeypatch.setattr(library, "load", refused)
    x = matrix()
    collected = collect(lambda: x.relu(), PLAN)
    traced = series(collected)
    assert {*traced["launches"]} == {1.0}  # a short step is traced up to nine times
    assert min(traced["kernel_time"]) > 0
    assert {u.metric for u in collected.unsupported} == {metric.name for metric in PLAN.metrics}


def table_of(step: Callable[[], object]) -> KernelTable:
    return collector().kernels(Work(step, Phases()), PLAN.metrics)


def line_of(function: Callable[..., object], text: str) -> str:
    lines, first = inspect.getsourcelines(function)
    number = next(number for number, line in enumerate(lines, first) if text in line)
    return f"{Path(__file__).relative_to(ROOT).as_posix()}:{number}"


def test_waits_and_gaps_have_the_line_that_makes_them() -> None:
    x = matrix()

    def step() -> None:
        y = x.relu()
        y.sum().item()
        torch.cuda.synchronize()
        sum(range(2_000_000))
        y.relu()

    table = table_of(step)
    assert (len(table.busy), len(table.idles), table.mismatch) == (3, 3, "")
    waits = {(call.name, table.sites[call.site].line): call.count for call in table.calls}
    assert waits == {
        ("cudaStreamSynchronize", line_of(step, ".item()")): 1,
        ("cudaDeviceSynchronize", line_of(step, "cuda.synchronize")): 1,
    }
    longest = max(table.idle_at, key=lambda part: part.idle)
    assert table.sites[longest.site].line == line_of(step, "range(2_000_000)")
    # It took several milliseconds, and a kernel takes some 10 us.
    assert longest.idle > 0.5 * table.idle


@pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
def test_a_compiled_step_is_compiled_still_after_its_lines_were_looked_for() -> None:
    x = matrix()
    compiled = torch.compile(lambda y: (y.sin() * 2 + 1).relu())
    compiled(x)  # its compilation launches what it chooses among
    before = [launch.kind for launch in table_of(lambda: compiled(x)).launches]
    counted = counted_in(lambda: compiled(x))
    assert (counted["launches"], counted["compiled_graphs"]) == (len(before), 1)


@pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
def test_kernels_that_torch_compile_made_have_their_line() -> None:
    def net(y: torch.Tensor) -> torch.Tensor:
        return (y.sin() + 1).relu()

    compiled_kernels.note()
    x, compiled = matrix(), torch.compile(net)
    compiled(x)
    table = table_of(lambda: compiled(x))
    lines = {
        table.sites[number].line
        for launch, number in zip(table.launches, table.site_of, strict=True)
        if table.names[launch.name].startswith("triton")
    }
    assert lines == {line_of(net, "y.sin()")}
