"""What is said of a timeline, and of the paper's window."""

from __future__ import annotations

from dataclasses import replace

from pytest_gpuperf.catalogue.metric_catalogue import timeline_metrics
from pytest_gpuperf.measure.trace import timelines
from pytest_gpuperf.model.measurement import Measurement, Sample, Timeline, Unsupported, Window
from pytest_gpuperf.report.markdown import markdown
from pytest_gpuperf.report.text.next_command import CommandContext
from pytest_gpuperf.report.text.protocol_lines import NAMES, sampling, timeline_line, window_line
from pytest_gpuperf.report.text.summary import summary
from pytest_gpuperf.report.text.table import Line
from tests.examples import measurement, result, run
from tests.kernel_steps import table

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
