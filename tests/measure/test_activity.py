"""The arithmetic of what ran when: unions, overlaps, gaps, sizes."""

from __future__ import annotations

import json
import lzma

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.measure.trace.activity import (
    Activity,
    activities,
    common,
    length,
    union,
    values_of_part,
    values_of_step,
)
from pytest_gpuperf.measure.trace.profile import Event
from tests import ROOT
from tests.measure.traces import call, copy, fill, kernel, launched

H200 = ROOT / "tests" / "data" / "h200-kernels"


def of(*traced: Event) -> dict[str, float]:
    """The metrics of a step, in the trace's order; times in us."""
    metrics = catalogue().metrics
    found = values_of_step(activities(traced))
    return {n: v / 1e3 if metrics[n].unit == "ns" else v for n, v in found.items()}


def test_the_metrics_are_those_of_the_set_and_a_part_has_some_of_them() -> None:
    found = of(kernel(0, 1), kernel(2, 1), copy(4, 1, "DtoD", 8))
    assert set(found) == set(catalogue().sets["activity"])
    assert set(values_of_part(())) < set(found)


def test_kernels_one_after_the_other() -> None:
    # 10 us, gap of 2, 5 us, gap of 8, 5 us: 20 us of 30.
    found = of(*launched(0, 10, 1), *launched(12, 5, 2), *launched(25, 5, 3))
    assert found["kernel_time"] == 20
    assert found["gpu_span"] == 30
    assert found["gpu_idle"] == pytest.approx(100 / 3)
    assert found["launch_gaps"] == 10
    assert found["launch_gap_median"] == 5
    assert (found["launches"], found["graph_launches"]) == (3, 0)


def test_kernels_of_several_streams_are_counted_once() -> None:
    # [0, 10) and [4, 8) inside it, [6, 16) across its end; [20, 25) alone.
    found = of(
        kernel(0, 10, 1), kernel(4, 4, 2, stream=8), kernel(6, 10, 3, stream=9), kernel(20, 5, 4)
    )
    assert found["kernel_time"] == 21
    assert found["launch_gaps"] == 4
    assert found["launch_gap_median"] == 0
    assert found["gpu_idle"] == pytest.approx(100 * 4 / 25)


def test_a_copy_in_a_gap_of_the_kernels_is_no_idleness() -> None:
    found = of(kernel(0, 10), copy(10, 6, "HtoD (Pinned -> Device)", 64), kernel(20, 10))
    assert found["launch_gaps"] == 10
    assert found["gpu_idle"] == pytest.approx(100 * 4 / 30)
    assert found["copy_overlap"] == 0


def test_a_fill_is_neither_a_copy_nor_a_kernel_but_it_is_no_idleness() -> None:
    found = of(kernel(0, 10), fill(10, 10), kernel(20, 10))
    assert found["gpu_idle"] == 0
    assert found["kernel_time"] == 20
    assert found["copies"] == 0
    assert found["launches"] == 2


def test_overlap_is_the_share_of_the_copies_time_in_which_a_kernel_runs() -> None:
    # Copies run in [0, 10) and, two at once, in [20, 40); kernels in [5, 25) and [35, 36).
    found = of(
        copy(0, 10, "HtoD (Pinned -> Device)", 1),
        copy(20, 20, "HtoD (Pinned -> Device)", 1),
        copy(20, 10, "DtoH (Device -> Pinned)", 1),
        kernel(5, 20),
        kernel(35, 1),
    )
    assert found["copy_overlap"] == pytest.approx(100 * (5 + 5 + 1) / 30)
    assert found["copy_time_h2d"] == 30
    assert found["copy_time_d2h"] == 10
    assert found["copy_time_d2d"] == 0


def test_bytes_by_direction_and_memory_of_the_host() -> None:
    found = of(
        copy(0, 1, "HtoD (Pinned -> Device)", 1),
        copy(1, 1, "HtoD (Pinned -> Device)", 10),
        copy(2, 1, "HtoD (Pageable -> Device)", 100),
        copy(3, 1, "DtoH (Device -> Pinned)", 1000),
        copy(4, 1, "DtoH (Device -> Pageable)", 10_000),
        copy(5, 1, "DtoD (Device -> Device)", 100_000),
        copy(6, 1, "HtoH (Pinned -> Pinned)", 1_000_000),
    )
    assert {n: v for n, v in found.items() if "bytes" in n} == {
        "copy_bytes_h2d_pinned": 11,
        "copy_bytes_h2d_pageable": 100,
        "copy_bytes_d2h_pinned": 1000,
        "copy_bytes_d2h_pageable": 10_000,
        "copy_bytes_d2d": 100_000,
    }
    assert found["copies"] == 6


def test_the_gaps_within_a_graph_are_gaps() -> None:
    graph = [call(0, 1, "cudaGraphLaunch"), kernel(10, 4, 1), kernel(15, 4, 1), kernel(20, 4, 1)]
    found = of(*graph)
    assert (found["launches"], found["graph_launches"]) == (1, 1)
    assert (found["launch_gaps"], found["launch_gap_median"]) == (2, 1)
    assert found["kernel_time"] == 12


def test_where_there_is_nothing_to_divide_there_is_no_share() -> None:
    assert not {"copy_overlap", "launch_gaps", "launch_gap_median"} & set(of(kernel(0, 5)))
    nothing = of()
    assert nothing["kernel_time"] == nothing["launches"] == nothing["gpu_span"] == 0
    assert not {"gpu_idle", "copy_overlap"} & set(nothing)


SPANS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20)).map(
        lambda entry: Activity("kernel", entry[0], entry[0] + entry[1])
    ),
    max_size=12,
)


@settings(deadline=None)  # of a machine that others use
@given(SPANS, SPANS)
def test_unions_are_what_counting_every_moment_finds(
    some: list[Activity], others: list[Activity]
) -> None:
    def covered(found: list[Activity]) -> set[int]:
        return {moment for entry in found for moment in range(int(entry.begin), int(entry.end))}

    assert length(union(some)) == len(covered(some))
    assert length(common(union(some), union(others))) == len(covered(some) & covered(others))
    assert length(union([*some, *others])) == len(covered(some) | covered(others))
    if some:
        span = set(range(int(min(e.begin for e in some)), int(max(e.end for e in some))))
        assert values_of_step(some).get("launch_gaps", 0) == len(span - covered(some))


def recorded(name: str) -> tuple[Activity, ...]:
    """What was traced on an H200: one step, with its launches' correlation ids."""
    content = json.loads(lzma.decompress((H200 / f"{name}.json.xz").read_bytes()))
    rows = [dict(zip(content["columns"], row, strict=True)) for row in content["launches"]]
    kinds = {"kernel": "kernel", "copy": "gpu_memcpy", "fill": "gpu_memset"}
    return activities(
        [
            {
                "cat": kinds[row["kind"]],
                "name": content["names"][row["name"]],
                "ts": row["start_us"],
                "dur": row["duration_us"],
                "args": {"correlation": row["correlation"]},
            }
            for row in rows
        ]
    )


def test_a_recorded_graph_is_one_launch_whose_kernels_follow_each_other_at_once() -> None:
    found = values_of_step(recorded("graph"))
    # Four kernels and a fill, of which the last kernel was launched by itself.
    assert (found["launches"], found["graph_launches"]) == (2, 1)
    assert found["gpu_idle"] < 0.2
    assert found["kernel_time"] == pytest.approx(2_786_581)


def test_a_recorded_step_of_small_kernels_waits_for_its_host() -> None:
    found = values_of_step(recorded("compiled-mlp"))
    assert (found["launches"], found["graph_launches"], found["copies"]) == (20, 0, 1)
    assert 60 < found["gpu_idle"] < 80
    assert found["launch_gap_median"] < found["launch_gaps"] / 19


@pytest.mark.parametrize("name", ["baseline", "tf32", "tf32_channels_last", "bf16"])
def test_a_recorded_training_step_keeps_the_gpu_busy(name: str) -> None:
    step = recorded(name)
    found = values_of_step(step)
    assert found["launches"] == sum(entry.kind == "kernel" for entry in step) > 1000
    assert found["copies"] == sum(entry.kind == "copy" for entry in step)
    assert found["copy_time_d2d"] > 0 == found["copy_time_h2d"]
    # One stream: kernels hardly overlap, and take as long as they take by themselves.
    alone = sum(entry.end - entry.begin for entry in step if entry.kind == "kernel")
    assert 0.998 * alone < found["kernel_time"] <= alone
    assert found["kernel_time"] + found["launch_gaps"] == pytest.approx(found["gpu_span"], rel=1e-3)
    assert found["gpu_idle"] < 5
    assert 500 < found["launch_gap_median"] < 3000
