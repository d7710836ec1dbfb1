"""What a trace says of each kernel, copy and fill."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pytest_gpuperf.measure.trace.activity import (
    Activity,
    Annotations,
    activities,
    graphs,
    launches,
)
from pytest_gpuperf.measure.trace.profile import Event, events
from tests.measure.traces import call, component, copy, fill, kernel, launched


def in_components(traced: Sequence[Event]) -> list[str]:
    return [entry.component for entry in activities(traced)]


def test_the_name_of_a_copy_has_its_direction_and_the_memory_of_the_host() -> None:
    for name, direction, memory in (
        ("HtoD (Pinned -> Device)", "h2d", "pinned"),
        ("HtoD (Pageable -> Device)", "h2d", "pageable"),
        ("DtoH (Device -> Pinned)", "d2h", "pinned"),
        ("DtoH (Device -> Pageable)", "d2h", "pageable"),
        ("DtoD (Device -> Device)", "d2d", ""),
        ("PtoP (Device -> Device)", "d2d", ""),
        ("HtoA (Pinned -> Array)", "h2d", "pinned"),
        ("AtoH (Array -> Pageable)", "d2h", "pageable"),
        ("DtoA (Device -> Array)", "d2d", ""),
        # Not pinned as far as anybody says.
        ("HtoD (Managed -> Device)", "h2d", "pageable"),
        ("HtoD (Unknown -> Device)", "h2d", "pageable"),
        ("HtoD", "h2d", "pageable"),
        # No device takes part, or nobody knows.
        ("HtoH (Pinned -> Pinned)", "", ""),
        ("<unknown>", "", ""),
    ):
        (found,) = activities([copy(0, 1, name, 4096)])
        assert (found.direction, found.memory, found.size) == (direction, memory, 4096)


def test_times_are_in_nanoseconds_and_the_order_is_that_of_the_beginnings() -> None:
    found = activities([fill(30, 1.5), kernel(10.25, 4), copy(20, 2, "DtoD", 8)])
    assert found == (
        Activity("kernel", 10250, 14250),
        Activity("copy", 20000, 22000, direction="d2d", size=8),
        Activity("fill", 30000, 31500),
    )


def test_events_of_other_kinds_are_passed_over() -> None:
    metadata = json.loads('[{"ph": "M", "name": "process_name", "ts": 1.0, "args": {}}]')
    instant = json.loads('[{"ph": "i", "s": "g", "name": "Record Window End", "ts": 2.0}]')
    annotation = {**component(0, 9, "a"), "cat": "gpu_user_annotation"}
    assert activities([*metadata, *instant, annotation, call(1, 1)]) == ()


def test_what_is_launched_belongs_to_the_innermost_open_component() -> None:
    # block [0, 100) has conv [10, 40) and norm [50, 90), which has reduction [60, 70).
    marks = [
        component(50, 90, "norm"),
        component(0, 100, "block"),
        component(60, 70, "reduction"),
        component(10, 40, "conv"),
    ]
    moments = {-1: "", 5: "block", 10: "conv", 39: "conv", 45: "block", 55: "norm"}
    moments |= {65: "reduction", 75: "norm", 95: "block", 101: ""}
    traced = list(marks)
    for number, moment in enumerate(moments):
        # It runs much later, when other components are open or none is.
        traced += launched(200 + 10 * number, 5, number, at=moment)
    assert in_components(traced) == list(moments.values())


def test_a_component_may_be_inside_itself_and_come_again() -> None:
    marks = [component(0, 50, "a"), component(10, 20, "a"), component(60, 70, "a")]
    traced = [*marks, *launched(100, 1, 1, at=15), *launched(110, 1, 2, at=30)]
    traced += [*launched(120, 1, 3, at=55), *launched(130, 1, 4, at=65)]
    assert in_components(traced) == ["a", "a", "", "a"]


def test_components_that_begin_together_are_nested_by_their_ends() -> None:
    marks = [component(0, 10, "inner"), component(0, 50, "outer")]
    traced = [*marks, *launched(100, 1, 1, at=5), *launched(110, 1, 2, at=20)]
    assert in_components(traced) == ["inner", "outer"]


def test_backward_s_own_thread_launches_for_the_component_that_waits_for_it() -> None:
    traced = [component(0, 50, "backward"), call(20, 1, thread=99), kernel(70, 5, 1)]
    assert in_components(traced) == ["backward"]


def test_without_the_call_that_launched_it_nobody_knows_the_component() -> None:
    assert in_components([component(0, 50, "conv"), kernel(20, 5, 1)]) == [""]


def test_other_ranges_of_the_program_are_no_components() -> None:
    other = {**component(0, 50, ""), "name": "Optimizer.step#Adam.step"}
    assert in_components([other, *launched(20, 5, 1, at=10)]) == [""]


def test_a_graph_is_one_launch_and_its_kernels_are_there_by_themselves() -> None:
    for name in (
        "cudaGraphLaunch",
        "cudaGraphLaunch_v10000",
        "cuGraphLaunch",
    ):
        graph = [call(0, 1, name), kernel(10, 2, 1), copy(13, 1, "DtoD", 8, 1), kernel(15, 2, 1)]
        again = [call(50, 2, name), kernel(60, 2, 2), kernel(65, 2, 2)]
        found = activities([*graph, *launched(30, 2, 3), *again])
        assert [entry.graph for entry in found] == [1, 1, 1, None, 2, 2]
        assert (launches(found), graphs(found)) == (3, 2)


def test_kernels_of_one_launch_are_a_graph_also_where_the_call_was_not_traced() -> None:
    found = activities([kernel(10, 2, 1), fill(13, 1, 1), kernel(15, 2, 1), kernel(20, 2, 2)])
    assert [entry.graph for entry in found] == [1, 1, 1, None]
    assert (launches(found), graphs(found)) == (2, 1)


def test_a_graph_that_is_launched_in_a_component_belongs_to_it_with_all_its_kernels() -> None:
    graph = [call(5, 1, "cudaGraphLaunch"), kernel(20, 2, 1), kernel(25, 2, 1)]
    assert in_components([component(0, 9, "sampling"), *graph]) == ["sampling", "sampling"]


def test_what_torch_exports_on_a_cpu_can_be_read_whatever_a_component_is_called() -> None:
    import torch

    outer, inner = "outer", 'a "name"\n of \\ µ'
    listener = Annotations()

    def step() -> None:
        listener.enter(outer)
        torch.ones(8).relu_()
        listener.enter(inner)
        torch.ones(8).neg_()
        listener.leave(inner)
        listener.leave(outer)

    traced = events(step, lambda: None, host=True)
    # What a GPU would add: a call inside each operator, and its kernel.
    beginnings = {e["name"]: float(e["ts"]) for e in traced if e.get("cat") == "cpu_op"}
    after = max(beginnings.values()) + 1e4
    made = [*traced]
    for number, name in enumerate(("aten::relu_", "aten::neg_")):
        made += launched(after + 10 * number, 1, number, at=beginnings[name])
    assert in_components(made) == [listener.numbers[outer], listener.numbers[inner]]
    assert listener.names == [outer, inner]
