"""The table of components: the longest first, on any width, and nothing as if it were 0.

And what is said of a timeline, and of the paper's window.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_gpuperf.catalogue.metric_catalogue import timeline_metrics
from pytest_gpuperf.measure.trace import timelines
from pytest_gpuperf.model.measurement import (
    STEP,
    Measurement,
    Sample,
    Timeline,
    Unsupported,
    Window,
)
from pytest_gpuperf.model.result import Outcome
from pytest_gpuperf.report.markdown import markdown
from pytest_gpuperf.report.text import step_tables
from pytest_gpuperf.report.text.next_command import CommandContext
from pytest_gpuperf.report.text.step_tables import NAMES, sampling, timeline_line, window_line
from pytest_gpuperf.report.text.summary import summary
from pytest_gpuperf.report.text.table import Line
from tests.examples import H200, measurement, result, run, verdict
from tests.kernel_steps import table

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


# Timelines and windows

SAMPLED = Timeline(
    samples=2300,
    sampling_interval=1e5,
    interval=1e5,
    begin=0.0,
    duration=230e6,
    series={
        "sm_active": (100.0, 0.0, 99.0, 100.0),
        "tensor_active": (50.0, 0.0, 42.0, None),
        "dram_active": (20.0, 0.0, 40.0, 36.0),
        "fma_active": (9.0, 0.0, 9.0, 9.0),
    },
    phases=(),
)


def having(shown: Timeline | None, step_time: float = 231.0) -> Measurement:
    """A measurement with this timeline."""
    return replace(measurement({"cycles": [437e6], "step_time": [step_time]}), timeline=shown)


def test_one_sentence_says_what_matters() -> None:
    assert timeline_line(having(SAMPLED)) == (
        "timeline: 2,300 samples of 100 us; tensor pipe 31 %, FMA pipe 7 %, DRAM 24 %, SMs 75 % "
        "on average; idle 25 % of the time"
    )


def test_means_are_said_to_be_means_and_long_ones_in_milliseconds() -> None:
    of_four, long = replace(SAMPLED, samples=12_500, interval=4e5), replace(SAMPLED, interval=1.5e6)
    assert "12,500 samples of 100 us (kept as means of 400 us);" in timeline_line(having(of_four))
    assert sampling(long, 6e6) == (
        "2,300 samples of 100 us (kept as means of 1.5 ms, drawn as means of 6 ms)"
    )
    assert sampling(SAMPLED, 3e5) == "2,300 samples of 100 us (drawn as means of 300 us)"


def test_every_metric_of_a_timeline_has_a_name_to_speak_of() -> None:
    assert set(NAMES) == {metric.name for metric in timeline_metrics()}


def test_a_step_that_took_another_time_is_said_to() -> None:
    slow = "; the step took 230.00 ms while it was sampled (+15.00 %)"
    for step_time, said in ((225.0, ""), (200.0, slow), (0.0, "")):
        line = timeline_line(having(SAMPLED, step_time))
        assert line.endswith("idle 25 % of the time" + said)


def test_what_could_not_be_sampled_is_named() -> None:
    series = {"sm_active": SAMPLED.series["sm_active"]}
    lacking = (Unsupported("fma_active", "it does not fit"),)
    shown = timeline_line(having(replace(SAMPLED, series=series, unsupported=lacking)))
    assert "; SMs 75 % on average; " in shown
    assert shown.endswith("; fma_active: it does not fit")


def test_the_window_is_said_with_its_share_of_the_step() -> None:
    launched = table(("fprop", 1.0), ("add", 1.0), ("fprop", 1.0))
    window = Window(
        collector="ncu",
        skipped=10,
        counted=3,
        samples=(Sample("step", "cycles", (1e6,)), Sample("step", "ipc", (2.0,))),
        kernels=launched,
    )
    of_step = replace(measurement({"cycles": [4e6]}), window=window)
    assert window_line(of_step) == (
        "paper window, launches 11 to 13 of a process (ncu): cycles 1.0000 M, 25 % of the step's; "
        "its launches: 2 convolution-forward, 1 other"
    )
    unknown = replace(window, kernels=replace(launched, mismatch="another order"))
    assert window_line(replace(measurement({"ipc": [1.0]}), window=unknown)).endswith(
        "(ncu): cycles 1.0000 M"
    )
    assert window_line(having(None)) == ""
    assert timeline_line(having(None)) == ""


def test_summary_and_markdown_have_it_and_an_obstacle_once_for_all_tests() -> None:
    for width in (50, 80):
        lines = summary([result(having(SAMPLED))], width, CommandContext())
        assert max(len(line.text) for line in lines) <= width
        text = " ".join(" ".join(line.text for line in lines).split())
        assert timeline_line(having(SAMPLED)) in text
    assert "timeline: 2,300 samples of 100 us; tensor pipe 31 %" in markdown(run([having(SAMPLED)]))
    absent = having(timelines.absent("<b>no</b>. Ask for it"))
    others = [result(absent), result(replace(absent, test="other"))]
    said = [shown for shown in summary(others, 80, CommandContext()) if "timeline" in shown.text]
    assert said == [Line("timeline: not sampled: <b>no</b>. Ask for it", "doubtful")]
    assert r"not sampled: \<b\>no" in markdown(run([absent]))
