"""The rows of components: the longest first, and nothing as if it were 0."""

from __future__ import annotations

import pytest

from pytest_gpuperf.report.html.components import component_rows, graph_note

TIMES = {"layer_norm": (2e6, 60.0), "conv2d": (5e6, 40.0), "extract": (0.0, 0.0)}
"""Nanoseconds and launches of each component."""


def rows(time: float, launches: float) -> list[tuple[str, float]]:
    """The components of a step with this time and these launches."""
    values = {("step", "kernel_time"): time, ("step", "launches"): launches}
    for name, (own, count) in TIMES.items():
        values |= {(name, "kernel_time"): own, (name, "launches"): count}
    return [(row.name, row.time) for row in component_rows([*TIMES], values)]


@pytest.mark.parametrize(
    ("time", "launches", "outside"),
    [
        (8e6, 110.0, [("(outside)", 1e6)]),
        (7e6, 100.0, []),
        # Of streams that overlap, the components may be longer than the step.
        (6e6, 110.0, [("(outside)", 0.0)]),
    ],
)
def test_what_is_outside_is_never_less_than_nothing(
    time: float, launches: float, outside: list[tuple[str, float]]
) -> None:
    assert rows(time, launches) == [
        *(("conv2d", 5e6), ("layer_norm", 2e6), ("extract", 0.0)),
        *outside,
    ]


def test_without_components_there_are_no_rows() -> None:
    assert component_rows([], {("forward", "kernel_time"): 1.0}) == []
    assert component_rows(["conv2d"], {("conv2d", "wall_time"): 1.0}) == []


def test_with_graphs_it_says_whose_their_kernels_are() -> None:
    said = [graph_note({("step", "graph_launches"): count}) for count in (0.0, 1.0, 2.0)]
    assert [text.partition(":")[0] for text in said] == [
        *("", "1 of the launches is a CUDA graph", "2 of the launches are CUDA graphs"),
    ]
