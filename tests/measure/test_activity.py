"""What a trace says of each kernel, copy and fill, and the arithmetic of what ran when."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.measure.trace import host_calls
from pytest_gpuperf.measure.trace.activity import (
    COMPONENT,
    checked,
    common,
    launched_in,
    length,
    union,
    values_of_part,
    values_of_step,
)
from pytest_gpuperf.measure.trace.profile import (
    KERNEL,
    Activity,
    Event,
    Ranges,
    Spans,
    Trace,
    trace,
)
from tests.measure.traces import call, component, copy, fill, kernel, launched

TO_DEVICE, TO_HOST = "HtoD (Pinned -> Device)", "DtoH (Device -> Pinned)"


# What ran


def test_the_name_of_a_copy_has_its_direction_and_the_memory_of_the_host() -> None:
    for name, direction, memory in (
        (TO_DEVICE, "h2d", "pinned"),
        ("HtoD (Pageable -> Device)", "h2d", "pageable"),
        (TO_HOST, "d2h", "pinned"),
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
        (copied,) = Trace([copy(0, 1, name, 4096)]).activities
        assert (copied.way, copied.size) == ((direction, memory), 4096), name


def launches(*traced: Event) -> tuple[float, float]:
    """How often kernels or graphs were launched, and how often graphs."""
    values = values_of_part(Trace(traced).activities)
    return values["launches"], values["graph_launches"]


def test_a_graph_is_one_launch_and_its_kernels_are_there_by_themselves() -> None:
    for name in ("cudaGraphLaunch", "cudaGraphLaunch_v10000", "cuGraphLaunch"):
        graph = [call(0, 1, name), kernel(10, 2, 1), copy(13, 1, "DtoD", 8, 1), kernel(15, 2, 1)]
        again = [call(50, 2, name), kernel(60, 2, 2), kernel(65, 2, 2)]
        assert launches(*graph, *launched(30, 2, 3), *again) == (3, 2)
    # Also where the call was not traced.
    assert launches(kernel(10, 2, 1), fill(13, 1, 1), kernel(15, 2, 1), kernel(20, 2, 2)) == (2, 1)


# Components


def in_components(traced: Sequence[Event]) -> list[str]:
    made = Trace(traced)
    ranges = Ranges(made.ranges(COMPONENT))
    found = [ranges.at(one.launched) for one in made.activities]
    assert {*launched_in(made, COMPONENT)} == {*found}
    return found


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


def test_what_a_graph_or_backward_s_own_thread_launches_is_the_open_component_s() -> None:
    graph = [call(5, 1, "cudaGraphLaunch"), kernel(20, 2, 1), kernel(25, 2, 1)]
    other = {**component(0, 50, ""), "name": "Optimizer.step#Adam.step"}
    for traced, found in (
        ([component(0, 50, "backward"), call(20, 1, thread=99), kernel(70, 5, 1)], ["backward"]),
        ([component(0, 9, "sampling"), *graph], ["sampling", "sampling"]),
        # No component is known without the call that launched, nor of other ranges.
        ([component(0, 50, "conv"), kernel(20, 5, 1)], [""]),
        ([other, *launched(20, 5, 1, at=10)], [""]),
    ):
        assert in_components(traced) == found


def test_what_torch_exports_on_a_cpu_can_be_read_whatever_a_component_is_called() -> None:
    import torch

    outer, inner = "outer", 'a "name"\n of \\ µ'
    listener = Spans(COMPONENT)

    def step() -> None:
        listener.enter(outer)
        torch.ones(8).relu_()
        listener.enter(inner)
        torch.ones(8).neg_()
        listener.leave(inner)
        listener.leave(outer)

    traced = trace(step, lambda: None, host=True, spans=listener).events
    # What a GPU would add: a call inside each operator, and its kernel.
    beginnings = {e["name"]: float(e["ts"]) for e in traced if e.get("cat") == "cpu_op"}
    after = max(beginnings.values()) + 1e4
    made = [*traced]
    for number, name in enumerate(("aten::relu_", "aten::neg_")):
        made += launched(after + 10 * number, 1, number, at=beginnings[name])
    assert in_components(made) == [listener.numbers[outer], listener.numbers[inner]]
    assert listener.names == [outer, inner]


def test_components_are_named_once_in_the_order_of_their_appearance_or_refused() -> None:
    for heard, names in (([], ()), ([[]], ()), ([["b", "a", "b"], ["a", "b"]], ("b", "a"))):
        assert checked(heard, ()) == names
    for heard, phases, message in (
        ([["a", "b"], ["b", "a", "c"]], [], r"first \['a', 'b'\], then \['b', 'a', 'c'\]"),
        ([["a"], []], [], r"first \['a'\], then \[\]"),
        ([["a", "forward"]], ["forward"], '"forward" is both a phase and a component'),
    ):
        with pytest.raises(MeasurementError, match=message):
            checked(heard, phases)


# Metrics


def of(*traced: Event) -> dict[str, float]:
    """The metrics of a step, in the trace's order; times in us."""
    metrics = catalogue().metrics
    values = values_of_step(Trace(traced).activities)
    return {n: v / 1e3 if metrics[n].unit == "ns" else v for n, v in values.items()}


def shows(traced: Sequence[Event], **expected: float) -> None:
    """These are the values of some of the step's metrics."""
    values = of(*traced)
    assert {name: values[name] for name in expected} == pytest.approx(expected)


def test_the_metrics_are_those_of_the_set_and_a_part_has_some_of_them() -> None:
    values = of(kernel(0, 1), kernel(2, 1), copy(4, 1, "DtoD", 8))
    of_calls = {*host_calls.counted(())} | {*host_calls.Compilations().counted(Trace(()))}
    assert {*values, *of_calls} == set(catalogue().sets["activity"])
    assert set(values_of_part(())) < set(values)


def test_a_collective_is_no_time_of_kernels_since_it_waits_for_others() -> None:
    """It runs from 5 to 45 beside a kernel, and alone."""
    collective = kernel(5, 40, 2, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)")
    of_part = values_of_part(
        Trace([*launched(0, 10, 1), collective, *launched(60, 10, 3)]).activities
    )
    assert of_part["kernel_time"] == 20e3
    assert of_part["collectives"] == 1
    assert of_part["launches"] == 3


def test_kernels_one_after_the_other() -> None:
    # 10 us, gap of 2, 5 us, gap of 8, 5 us: 20 us of 30.
    kernels = [*launched(0, 10, 1), *launched(12, 5, 2), *launched(25, 5, 3)]
    shows(kernels, kernel_time=20, gpu_span=30, gpu_idle=100 / 3, launches=3, graph_launches=0)
    shows(kernels, launch_gaps=10, launch_gap_median=5)


def test_a_copy_or_a_fill_in_a_gap_of_the_kernels_is_no_idleness() -> None:
    kernels = [kernel(0, 10), kernel(20, 10)]
    copied = [*kernels, copy(10, 6, TO_DEVICE, 64)]
    shows(copied, launch_gaps=10, gpu_idle=100 * 4 / 30, copy_overlap=0)
    # A fill is neither a copy nor a kernel.
    shows([*kernels, fill(10, 10)], gpu_idle=0, kernel_time=20, copies=0, launches=2)


def test_overlap_is_the_share_of_the_copies_time_in_which_a_kernel_runs() -> None:
    # Copies run in [0, 10) and, two at once, in [20, 40); kernels in [5, 25) and [35, 36).
    copies = [copy(0, 10, TO_DEVICE, 1), copy(20, 20, TO_DEVICE, 1), copy(20, 10, TO_HOST, 1)]
    shows(
        [*copies, kernel(5, 20), kernel(35, 1)],
        copy_overlap=100 * (5 + 5 + 1) / 30,
        copy_time_h2d=30,
        copy_time_d2h=10,
        copy_time_d2d=0,
    )


def test_where_there_is_nothing_to_divide_there_is_no_share() -> None:
    assert not {"copy_overlap", "launch_gaps", "launch_gap_median"} & set(of(kernel(0, 5)))
    shows([], kernel_time=0, launches=0, gpu_span=0)
    assert not {"gpu_idle", "copy_overlap"} & set(of())


SPANS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20)).map(
        lambda entry: Activity(KERNEL, "k", float(entry[0]), float(entry[1]))
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=50)  # of a machine that others use
@given(SPANS, SPANS)
def test_unions_are_what_counting_every_moment_finds(
    some: list[Activity], others: list[Activity]
) -> None:
    def covered(spans: list[Activity]) -> set[int]:
        return {moment for entry in spans for moment in range(int(entry.begin), int(entry.end))}

    assert length(union(some)) == len(covered(some))
    assert length(common(union(some), union(others))) == len(covered(some) & covered(others))
    assert length(union([*some, *others])) == len(covered(some) | covered(others))
    if some:
        span = set(range(int(min(e.begin for e in some)), int(max(e.end for e in some))))
        assert values_of_step(some).get("launch_gaps", 0) == len(span - covered(some))
