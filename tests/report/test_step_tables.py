"""The table of components: the longest first, on any width, and nothing as if it were 0.

And what is said of the paper's window.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_gpuperf.model.measurement import (
    STEP,
    Measurement,
    Sample,
    Window,
)
from pytest_gpuperf.model.result import Outcome
from pytest_gpuperf.report.markdown import markdown
from pytest_gpuperf.report.text import step_tables
from pytest_gpuperf.report.text.next_command import CommandContext
from pytest_gpuperf.report.text.step_tables import window_line
from pytest_gpuperf.report.text.summary import summary
from tests.examples import H200, measurement, run, verdict

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


def copies(time: float) -> dict[str, list[float]]:
    return {"copy_time_h2d": [time] * 3, "copy_time_d2h": [0.0] * 3}


def shown(*measurements: Measurement, width: int = 80, **verdicts: Any) -> list[str]:
    told = list(verdicts.get("verdicts", ()))
    return [line.text for line in step_tables.component_lines(measurements, told, width)]


def test_the_longest_is_the_first_and_what_is_outside_the_last() -> None:
    assert shown(measured()) == [
        "  component   kernel_time   share  launches",
        "  conv2d        5.0000 ms  62.5 %        40",
        "  layer_norm    2.0000 ms  25.0 %        60",
        "  extract               -       -         0",
        "  (outside)     1.0000 ms  12.5 %        10",
    ]


def test_copies_have_a_column_where_there_are_any() -> None:
    parts = {name: {**part, **copies(0.0)} for name, part in PARTS.items()}
    assert "copies" not in shown(measured(parts))[0]
    parts["extract"] |= copies(3e6)
    table = shown(measured(parts))
    assert table[0].split() == ["component", "kernel_time", "share", "launches", "copies"]
    # Something was launched in it after all: a copy.
    assert table[3].split() == ["extract", "0", "ms", "0.0", "%", "0", "3.0000", "ms"]


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


def test_on_the_cpu_the_host_s_time_is_shown() -> None:
    parts: dict[str, Rounds] = {"gelu": {"wall_time": [2.0]}, "conv2d": {"wall_time": [6.0]}}
    whole = replace(measurement({"wall_time": [10.0]}, phases=parts), components=tuple(parts))
    assert shown(whole) == [
        "  component  wall_time   share",
        "  conv2d     6.0000 ms  60.0 %",
        "  gelu       2.0000 ms  20.0 %",
        "  (outside)  2.0000 ms  20.0 %",
    ]


def test_a_name_that_cannot_be_printed_stands_in_its_line() -> None:
    odd: dict[str, Rounds] = {"conv\n2d": PARTS["conv2d"]}
    assert any(line.startswith("  conv\\x0a2d ") for line in shown(measured(odd)))


def test_against_a_baseline_the_change_of_each_is_shown() -> None:
    moved = replace(
        verdict("kernel_time", Outcome.REPORTED, unit="ns", change=0.25), phase="conv2d"
    )
    other = replace(moved, phase=STEP, change=0.5)
    table = shown(measured(), verdicts=[other, moved])
    assert table[0].endswith("change")
    assert table[1].endswith("+25.00 %")
    assert table[2].endswith("-")


def test_with_graphs_it_says_whose_their_kernels_are() -> None:
    for graphs, said in ((1, "1 of the launches is a CUDA graph: "), (2, "2 of the launches are ")):
        listed = step_tables.component_table([measured(graph_launches=[graphs])])
        assert listed is not None
        assert [note.startswith(said) for note in listed.notes] == [True]


def test_it_fits_any_width() -> None:
    parts = {name: {**part, **copies(2e6)} for name, part in PARTS.items()}
    for width in (30, 50, 80, 120):
        lines = shown(measured(parts, graph_launches=[4]), width=width)
        assert max(map(len, lines)) <= width


def test_the_summary_and_the_markdown_report_have_it() -> None:
    page = run([measured()])
    text = "\n".join(line.text for line in summary(page.results(), 80, CommandContext()))
    assert "  conv2d        5.0000 ms  62.5 %        40" in text
    assert "| conv2d | 5.0000 ms | 62.5 % | 40 |" in markdown(page)
    assert H200.name in text


# Windows


def test_the_window_is_said_with_its_share_of_the_step() -> None:
    window = Window(
        collector="ncu",
        skipped=10,
        counted=3,
        samples=(Sample("step", "cycles", (1e6,)), Sample("step", "ipc", (2.0,))),
    )
    of_step = replace(measurement({"cycles": [4e6]}), window=window)
    assert window_line(of_step) == (
        "paper window, launches 11 to 13 of a process (ncu): cycles 1.0000 M, 25 % of the step's"
    )
    assert window_line(measurement()) == ""
