"""An exported trace as the entries of a step: kernels, copies, fills, and graphs as one each."""

from __future__ import annotations

import sys

import pytest

from pytest_gpuperf.measure.trace.profile import OPERATOR, Trace, trace
from tests.measure.traces import call, fill, kernel, launched


def entries(made: Trace) -> list[tuple[str, str, float, float, float | None]]:
    return [(e.name, e.kind, e.begin, e.duration, e.launched) for e in made.entries]


def test_kernels_copies_and_fills_are_in_the_order_of_their_start() -> None:
    """Times are in nanoseconds since the first of them, when the host launched it as well."""
    operator = {**call(0, 9), "cat": "cpu_op"}
    kernels = [kernel(20, 5, 2, name="k2"), kernel(10, 5, 1, name="k1")]
    made = Trace([call(1, 1), *kernels, fill(16, 1), operator])
    assert entries(made) == [
        ("k1", "kernel", 0, 5000, -9000),
        ("Memset (Device)", "fill", 6000, 1000, None),
        ("k2", "kernel", 10_000, 5000, None),
    ]
    assert (made.entries[0].grid, made.entries[0].block) == ((1, 1, 1), (32, 1, 1))
    assert (made.counted, made.idle) == ((0, 2), 1000 + 3000)


def test_what_a_graph_launches_is_one_entry_that_was_launched_once() -> None:
    driver = {**call(15, 2, "cuLaunchKernel"), "cat": "cuda_driver"}
    kernels = [kernel(30, 1, 1), kernel(40, 1, 1), kernel(20, 1, 2, name="a"), kernel(50, 1, 3)]
    made = Trace([call(10, 1, "cudaGraphLaunch"), driver, *kernels])
    assert entries(made) == [
        ("a", "kernel", 0, 1000, -5000),
        ("CUDA graph of 2 kernels", "graph", 10_000, 11_000, -10_000),
        ("k", "kernel", 30_000, 1000, None),
    ]
    assert made.counted == (0, 1, 2)
    assert made.idle == 9000 + 9000  # what is between its kernels is not idle


def test_kernels_that_run_at_once_are_no_idle_time_and_nothing_has_none() -> None:
    assert Trace([kernel(0, 10), kernel(2, 3), kernel(12, 1)]).idle == 2000
    made = Trace([{"ph": "M", "name": "process_name", "args": {}}])
    assert (made.entries, made.counted, made.idle) == ((), (), 0.0)


def test_a_trace_begins_without_torchs_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """To import it takes 3 s, which every process that measures would pay."""
    import torch

    monkeypatch.delattr(torch, "_inductor", raising=False)
    monkeypatch.setitem(sys.modules, "torch._inductor", None)  # to import it fails
    made = trace(torch.rand(3).relu, lambda: None, host=True)
    assert "aten::relu" in {one.name for one in made.ranges("", OPERATOR)}


def test_entries_follow_the_launches_where_another_stream_begins_later() -> None:
    """A collective that waits for its stream; the kernel that was launched after it runs first."""
    events = [*launched(10, 2, 1), *launched(20, 2, 2), *launched(30, 9, 3, at=12)]
    made = Trace(events)
    assert [entry.duration for entry in made.entries] == [2000, 9000, 2000]
    # A launch of which nobody knows when it was: nothing is better than what ran when.
    unknown = Trace([*events, kernel(40, 1, 4)])
    assert [entry.duration for entry in unknown.entries] == [2000, 2000, 9000, 1000]
