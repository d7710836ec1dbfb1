"""The terminal summary: rows, notes, the next command, and never a line that is too wide."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.model import Conditions, Measurement, Outcome, Reading, Verdict
from pytest_gpuperf.report.configurations import configurations
from pytest_gpuperf.report.line import Line
from pytest_gpuperf.report.summary import summary
from tests.examples import A100, TEST, kernels_changed, measurement, verdict

COMMAND = "--gpu-arch sm90 suites/meddpm"
Judged = tuple[Sequence[Measurement], Sequence[Verdict]]

REGRESSED: Judged = ([measurement()], [verdict()])
IMPROVED: Judged = (
    [measurement()],
    [verdict(outcome=Outcome.IMPROVED, measured=430e6, change=-0.016)],
)
MISSING: Judged = (
    [measurement()],
    [
        verdict(
            outcome=Outcome.NO_BASELINE,
            reason="no-file",
            baseline=None,
            change=None,
            tolerance=None,
            detail="baselines/sm90/nvidia-h200/meddpm.yaml does not exist",
        )
    ],
)
UNSUPPORTED: Judged = (
    [measurement({"step_time": [232.0]})],
    [
        verdict(
            "step_time", Outcome.UNCHANGED, unit="ms", baseline=232.0, measured=232.1, change=4e-4
        ),
        *(
            verdict(
                metric, Outcome.UNSUPPORTED, baseline=None, measured=None, change=None,
                tolerance=None, detail="CUPTI may not read counters here",
            )
            for metric in ("cycles", "instructions")
        ),
    ],
)  # fmt: skip
THROTTLED: Judged = (
    [
        measurement(
            conditions=Conditions(
                Reading(sm_clock_mhz=1980),
                Reading(
                    sm_clock_mhz=1410,
                    throttle_reasons=("software power cap",),
                    other_processes=(4711,),
                ),
            )
        )
    ],
    [verdict(outcome=Outcome.UNCHANGED)],
)
SEVERAL: Judged = (
    [measurement(process=f"p{number}") for number in range(3)],
    [replace(verdict(outcome=Outcome.UNCHANGED), processes=3)],
)
CHANGED: Judged = (
    [measurement(process=f"p{number}", name="sampling") for number in range(3)],
    [
        kernels_changed("12 added, 3 removed, 4 replaced"),
        replace(verdict(outcome=Outcome.UNCHANGED), processes=3),
    ],
)
ALL = (REGRESSED, IMPROVED, MISSING, UNSUPPORTED, THROTTLED, SEVERAL, CHANGED)


def texts(lines: Sequence[Line]) -> list[str]:
    """The lines without their tone."""
    return [line.text for line in lines]


def shown(*judged: Judged, width: int = 100, run: str = "") -> str:
    """The summary as one text."""
    return "\n".join(texts(summary(judged, width, COMMAND, run)))


# Rows


def test_one_heading_per_measurement_and_one_row_per_metric() -> None:
    lines = summary([REGRESSED], 100, COMMAND, "")
    assert lines[0] == Line("test_training_step[tf32] on NVIDIA H200 (sm90)", "heading")
    assert lines[1].text.split() == [
        *("metric", "baseline", "measured", "change", "tolerance", "detects", "verdict")
    ]
    assert lines[2] == Line(
        "  cycles  437.00 M  448.00 M  +2.52 %      0.5 %        -  regressed", "bad"
    )


@pytest.mark.parametrize("width", [100, 60, 58, 56, 40, 20])
@pytest.mark.parametrize(
    ("outcome", "tone"),
    [
        (Outcome.REGRESSED, "bad"),
        (Outcome.IMPROVED, "good"),
        (Outcome.UNCHANGED, ""),
        (Outcome.INCONCLUSIVE, "doubtful"),
        (Outcome.NO_BASELINE, "doubtful"),
        (Outcome.REPORTED, ""),
    ],
)
def test_a_verdict_has_its_tone_in_both_layouts(width: int, outcome: Outcome, tone: str) -> None:
    rows = [verdict(outcome=outcome), verdict("instructions", Outcome.UNCHANGED)]
    lines = summary([([measurement()], rows)], width, "", "")
    start = next(i for i, line in enumerate(lines) if line.text.lstrip().startswith("cycles"))
    end = next(i for i, line in enumerate(lines) if line.text.lstrip().startswith("instructions"))
    assert {line.tone for line in lines[start:end]} == {tone}


def test_phases_have_no_row() -> None:
    rows = [verdict(), verdict("duration", phase="forward")]
    assert "duration" not in shown(([measurement()], rows))


def test_a_measurement_of_its_own_name_says_it() -> None:
    judged = ([measurement(name="sampling")], [verdict(name="sampling")])
    assert shown(judged).startswith("test_training_step[tf32], sampling, on NVIDIA H200 (sm90)")


def test_several_processes_are_counted() -> None:
    both = [measurement(process="p1"), measurement(process="p2")]
    assert shown((both, [verdict()])).startswith(
        "test_training_step[tf32] on NVIDIA H200 (sm90, 2 processes)"
    )


def test_what_was_not_judged_is_shown_with_its_values() -> None:
    found = measurement({"cycles": [437e6], "ipc": [2.5]}, phases={"forward": {"cycles": [1.0]}})
    rows = texts(summary([([found], [])], 100, COMMAND, ""))[2:]
    assert [row.split() for row in rows] == [
        ["cycles", "-", "437.00", "M", "-", "-", "-", "reported"],
        ["ipc", "-", "2.5000", "-", "-", "-", "reported"],
    ]


def test_a_measurement_without_any_value_has_its_heading() -> None:
    assert shown(([measurement({})], [])).startswith("test_training_step[tf32] on")


# Looks


def looked_at(test: str, processes: int, name: str = "step") -> Judged:
    """What a test of this name was after looks at so many processes."""
    rows = [verdict(metric, Outcome.UNCHANGED) for metric in ("cycles", "instructions")]
    return (
        [measurement(test=f"a.py::{test}", name=name, process=f"p{n}") for n in range(processes)],
        [replace(row, processes=processes) for row in rows],
    )


@pytest.mark.parametrize(
    ("judged", "says"),
    [
        ([looked_at("test_x", 3)], "3 for test_x"),
        (
            [looked_at(name, 1) for name in ("test_a", "test_b", "test_c")]
            + [looked_at("test_x", 3)],
            "3 for test_x; 1 for 3 others",
        ),
        (
            [looked_at("test_a", 9), looked_at("test_b", 1), looked_at("test_c", 5)],
            "5 for test_c; 9 for test_a; 1 for 1 other",
        ),
        (
            [looked_at("test_x", 3, name="first"), looked_at("test_x", 1, name="second")],
            "3 for test_x, first; 1 for 1 other",
        ),
    ],
)
def test_tests_that_took_more_than_one_process_are_named(judged: list[Judged], says: str) -> None:
    found = [
        line for line in shown(*judged, width=200).splitlines() if line.startswith("processes")
    ]
    assert found == [f"processes: {says}"]


def test_when_the_first_process_settles_all_none_is_counted() -> None:
    assert "processes:" not in shown(looked_at("test_a", 1), looked_at("test_b", 1))
    assert "processes:" not in shown(([measurement(), measurement(process="p2")], []))


def test_tests_of_one_name_count_apart() -> None:
    text = shown(looked_at("test_x", 3), looked_at("test_x", 3), looked_at("test_y", 1))
    assert "processes: 3 for test_x, test_x; 1 for 1 other" in text


# Notes


def test_what_is_unsupported_is_named_once_with_its_reason() -> None:
    text = shown(UNSUPPORTED, UNSUPPORTED, UNSUPPORTED)
    assert text.count("CUPTI may not read counters here") == 1
    assert "unsupported: cycles, instructions: CUPTI may not read counters here" in text
    assert text.count("step_time") == 3


def test_other_reasons_have_lines_of_their_own() -> None:
    other = ([measurement()], [verdict("ipc", Outcome.UNSUPPORTED, detail="not on sm70")])
    text = shown(UNSUPPORTED, other)
    assert "unsupported: ipc: not on sm70" in text
    assert text.count("unsupported: ") == 2


def test_a_measurement_that_was_throttled_or_shared_is_named() -> None:
    lines = summary([THROTTLED], 200, COMMAND, "")
    assert [line for line in lines if line.text.startswith("note")] == [
        Line(
            "note: test_training_step[tf32] was measured throttled after: software power cap "
            "(SM clock 1980 -> 1410 MHz)",
            "doubtful",
        ),
        Line(
            "note: test_training_step[tf32] was measured shared with 1 other process (pid 4711)",
            "doubtful",
        ),
    ]


def test_the_run_file_is_named() -> None:
    assert "run saved: .gpuperf/runs/x.json" in shown(REGRESSED, run=".gpuperf/runs/x.json")
    assert "run saved" not in shown(REGRESSED)


# What to type next


def test_without_a_baseline_the_two_commands_that_make_one() -> None:
    assert shown(MISSING).endswith(
        "to make a baseline on this device:\n"
        "  gpuperf record --processes 5 -- --gpu-arch sm90 suites/meddpm\n"
        '  gpuperf update-baseline --reason "first baseline"'
    )


def test_a_missing_baseline_comes_before_accepting() -> None:
    text = shown(REGRESSED, MISSING, IMPROVED)
    assert "gpuperf record" in text
    assert "to accept" not in text


def test_a_regression_says_how_to_accept_what_is_intended() -> None:
    assert shown(REGRESSED, IMPROVED).endswith(
        'to accept what is intended:  gpuperf update-baseline --reason "..."'
    )


def test_an_improvement_asks_to_be_accepted() -> None:
    twice = (IMPROVED[0], [*IMPROVED[1], verdict("instructions", Outcome.IMPROVED)])
    assert shown(twice).endswith(
        '1 improved; accept, so that a later loss shows:  gpuperf update-baseline --reason "..."'
    )


def test_when_all_is_well_nothing_is_asked() -> None:
    assert "gpuperf " not in shown(([measurement()], [verdict(outcome=Outcome.UNCHANGED)]))


def test_a_command_that_does_not_fit_goes_on_after_a_backslash() -> None:
    lines = texts(summary([MISSING], 40, COMMAND, ""))
    start = lines.index("to make a baseline on this device:") + 1
    text = "\n".join(lines[start:])
    first, second = re.sub(r" \\\n +", " ", text).splitlines()
    assert first.strip() == f"gpuperf record --processes 5 -- {COMMAND}"
    assert second.strip() == 'gpuperf update-baseline --reason "first baseline"'


def test_other_kernels_come_first_and_are_counted_below() -> None:
    lines = summary([CHANGED], 100, COMMAND, "")
    assert [line.text for line in lines[2:]] == [
        "  kernels      1647      1649        -          -        -  kernels-changed",
        "  cycles   437.00 M  448.00 M  +2.52 %      0.5 %        -  unchanged",
        "processes: 3 for test_training_step[tf32], sampling",
        "note: kernels of test_training_step[tf32], sampling: 12 added, 3 removed, 4 replaced",
    ]
    assert [line.tone for line in lines[2:]] == ["doubtful", "", "", "doubtful"]


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (80, ["  kernels      1647      1649        -          -        -  kernels-changed"]),
        (50, ["  kernels: kernels-changed", "    1647 -> 1649"]),
    ],
)
def test_other_kernels_read_well_at_any_width(width: int, expected: list[str]) -> None:
    text = texts(summary([CHANGED], width, COMMAND, ""))
    start = text.index(expected[0])
    assert text[start : start + len(expected)] == expected


# Widths

names = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=250),
    st.sampled_from([TEST, f"{'x' * 300}.py::test_{'y' * 300}", "many words " * 30]),
)


@given(st.integers(20, 200), st.lists(st.sampled_from(ALL), max_size=4), names, names)
def test_no_line_is_too_wide(width: int, judged: list[Judged], name: str, command: str) -> None:
    named = ([measurement(test=name, name=name, configuration=name)], [verdict(detail=name)])
    lines = summary([*judged, named], width, command, name)
    assert all(len(line.text) <= width for line in lines)
    assert all("\n" not in line.text for line in lines)


@given(st.integers(20, 200))
def test_every_number_of_a_failure_is_there_at_any_width(width: int) -> None:
    text = " ".join(shown(*ALL, width=width).split())
    for number in ("437.00 M", "448.00 M", "+2.52 %", "0.5 %", "regressed", "no-baseline"):
        assert number in text


# The configurations side by side


def configured(name: str, **series: float) -> Judged:
    """A measurement of one configuration of one test."""
    values = {metric: [value] for metric, value in series.items()}
    test = f"suites/x.py::test_step[{name}]"
    return [measurement(values, test=test, configuration=name)], []


SIDE_BY_SIDE = [
    configured("baseline", cycles=400e6, tensor_utilization=10.0, operators=0.0),
    configured("tf32", cycles=200e6, tensor_utilization=50.0, operators=7.0),
    configured("channels_last", cycles=2000e6),
]


def test_configurations_are_shown_relative_to_the_first() -> None:
    lines = configurations(SIDE_BY_SIDE, 100)
    assert lines[0] == Line("configurations, relative to the first", "heading")
    assert texts(lines[1:]) == [
        "                    baseline     tf32  channels_last",
        "cycles              400.00 M     x0.5             x5",
        "tensor_utilization   10.00 %  50.00 %              -",
        "operators                  0        7              -",
    ]


def test_one_configuration_is_no_comparison() -> None:
    assert configurations(SIDE_BY_SIDE[:1], 100) == []
    assert configurations([], 100) == []
    assert configurations([REGRESSED, ([measurement(configuration="")], [])], 100) == []


def test_different_tests_are_not_put_side_by_side() -> None:
    other: Judged = [measurement(test="suites/x.py::test_sampling[tf32]")], []
    assert configurations([SIDE_BY_SIDE[0], other], 100) == []


@given(st.integers(20, 200))
def test_the_configurations_fit_or_are_left_out(width: int) -> None:
    assert all(len(line.text) <= width for line in configurations(SIDE_BY_SIDE, width))
    small = [configured("a", flops=5.0), configured("b", flops=5.0)]
    assert all(len(line.text) <= width for line in configurations(small, width))


def test_another_device_is_named() -> None:
    assert "on NVIDIA A100-SXM4-40GB (sm80)" in shown(([measurement(device=A100)], [verdict()]))


def test_the_configuration_named_baseline_comes_first_whoever_was_measured_first() -> None:
    _, heading, *_ = configurations(SIDE_BY_SIDE[::-1], 100)
    assert heading.text.split() == ["baseline", "channels_last", "tf32"]
