"""The table of components: the longest first, on any width, and nothing as if it were 0.

And what is said of the paper's window.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_gpuperf.model.measurement import (
    Measurement,
)
from pytest_gpuperf.report.text import step_tables
from tests.examples import measurement

Rounds = dict[str, list[float]]

PARTS: dict[str, Rounds] = {
    "layer_norm": {"kernel_time": [2e6, 2e6, 9e6], "launches": [60] * 3},
    "conv2d": {"kernel_time": [5e6] * 3, "launches": [40] * 3},
    "extract": {"kernel_time": [0.0] * 3, "launches": [0] * 3},
}
STEPS: Rounds = {
    "cycles": [1e6],
    "kernel_time": [8e6] * 3,
    "launches": [110] * 3,
    "graph_launches": [0],
}


def measured(parts: dict[str, Rounds] = PARTS, **changes: Any) -> Measurement:
    """A measurement with these components."""
    steps: Rounds = {**STEPS, **changes}
    return replace(measurement(steps, phases=parts), components=tuple(parts))


def shown(*measurements: Measurement, width: int = 80, **verdicts: Any) -> list[str]:
    told = list(verdicts.get("verdicts", ()))
    return [line.text for line in step_tables.component_lines(measurements, told, width)]


def entries(*measurements: Measurement) -> list[tuple[str, float]]:
    listed = step_tables.component_table(measurements)
    assert listed is not None
    return [(entry.name, entry.time) for entry in listed.entries]


def test_what_is_outside_is_never_less_than_nothing() -> None:
    assert len(entries(measured(kernel_time=[7e6], launches=[100]))) == 3
    # Of streams that overlap, the components may be longer than the step.
    assert entries(measured(kernel_time=[6e6]))[-1] == ("(outside)", 0.0)


def test_processes_count_once_each() -> None:
    slow: dict[str, Rounds] = {**PARTS, "conv2d": {"kernel_time": [50e6], "launches": [40]}}
    assert entries(measured(), measured(), measured(slow))[0] == ("conv2d", 5e6)


def test_without_components_there_is_no_table() -> None:
    phases = measurement(phases={"forward": {"kernel_time": [1.0], "cycles": [5.0]}})
    assert shown(measurement()) == shown(phases) == []


def test_with_graphs_it_says_whose_their_kernels_are() -> None:
    for graphs, said in ((1, "1 of the launches is a CUDA graph: "), (2, "2 of the launches are ")):
        listed = step_tables.component_table([measured(graph_launches=[graphs])])
        assert listed is not None
        assert [note.startswith(said) for note in listed.notes] == [True]
