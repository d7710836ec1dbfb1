"""What is said of a timeline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpuperf.catalogue.metric_catalogue import timeline_metrics
from pytest_gpuperf.measure.trace import timelines
from pytest_gpuperf.model.measurement import Measurement, Timeline, Unsupported
from pytest_gpuperf.report.markdown import markdown
from pytest_gpuperf.report.text.next_command import CommandContext
from pytest_gpuperf.report.text.protocol_lines import NAMES, sampling, timeline_line
from pytest_gpuperf.report.text.summary import summary
from tests.examples import measurement, run

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


def having(found: Timeline | None, step_time: float = 231.0) -> Measurement:
    """A measurement with this timeline."""
    return replace(measurement({"cycles": [437e6], "step_time": [step_time]}), timeline=found)


def test_one_sentence_says_what_matters() -> None:
    assert timeline_line(having(SAMPLED)) == (
        "timeline: 2,300 samples of 100 us; tensor pipe 31 %, FMA pipe 7 %, DRAM 24 %, SMs 75 % "
        "on average; idle 25 % of the time"
    )


def test_means_are_said_to_be_means() -> None:
    found = replace(SAMPLED, samples=12_500, interval=4e5)
    assert "12,500 samples of 100 us (kept as means of 400 us);" in timeline_line(having(found))


def test_long_times_are_in_milliseconds() -> None:
    found = replace(SAMPLED, interval=1.5e6)
    assert sampling(found, 6e6) == (
        "2,300 samples of 100 us (kept as means of 1.5 ms, drawn as means of 6 ms)"
    )
    assert sampling(SAMPLED, 3e5) == "2,300 samples of 100 us (drawn as means of 300 us)"


def test_every_metric_of_a_timeline_has_a_name_to_speak_of() -> None:
    assert set(NAMES) == {metric.name for metric in timeline_metrics()}


@pytest.mark.parametrize(
    ("step_time", "said"),
    [
        (225.0, ""),
        (200.0, "; the step took 230.00 ms while it was sampled (+15.00 %)"),
        (0.0, ""),
    ],
)
def test_a_step_that_took_another_time_is_said_to(step_time: float, said: str) -> None:
    assert timeline_line(having(SAMPLED, step_time)).endswith("idle 25 % of the time" + said)


def test_what_could_not_be_sampled_is_named() -> None:
    series = {"sm_active": SAMPLED.series["sm_active"]}
    lacking = (Unsupported("fma_active", "it does not fit"),)
    found = timeline_line(having(replace(SAMPLED, series=series, unsupported=lacking)))
    assert "; SMs 75 % on average; " in found
    assert found.endswith("; fma_active: it does not fit")


def test_without_a_timeline_nothing_is_said() -> None:
    assert timeline_line(having(None)) == ""


@pytest.mark.parametrize("width", [50, 80])
def test_it_fits_the_terminal(width: int) -> None:
    lines = [
        found.text for found in summary([([having(SAMPLED)], ())], width, CommandContext(), "")
    ]
    assert max(map(len, lines)) <= width
    assert timeline_line(having(SAMPLED)) in " ".join(" ".join(lines).split())


def test_an_obstacle_is_said_once_for_all_tests() -> None:
    absent = having(timelines.absent("this user may not. Ask for it"))
    lines = summary(
        [([absent], ()), ([replace(absent, test="other")], ())], 80, CommandContext(), ""
    )
    said = [found for found in lines if "timeline" in found.text]
    assert [(found.text, found.tone) for found in said] == [
        ("timeline: not sampled: this user may not. Ask for it", "doubtful")
    ]


def test_the_markdown_report_has_it() -> None:
    assert "timeline: 2,300 samples of 100 us; tensor pipe 31 %" in markdown(run([having(SAMPLED)]))
    absent = having(timelines.absent("<b>no</b>"))
    assert r"not sampled: \<b\>no" in markdown(run([absent]))
