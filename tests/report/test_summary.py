"""The terminal summary: rows, notes, the next command, and never a line that is too wide."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.model.result import Outcome, Result, Verdict
from pytest_gpuperf.report.text import table
from pytest_gpuperf.report.text.next_command import CommandContext
from pytest_gpuperf.report.text.step_tables import configurations
from pytest_gpuperf.report.text.summary import summary
from pytest_gpuperf.report.text.table import Line
from tests import ROOT
from tests.examples import TEST, measurement, recorded_run, result, verdict
from tests.report.golden import SCENARIOS, SESSION, configured

REGRESSED = result(measurement(), verdict())
ALL = [one for results in SCENARIOS.values() for one in results]


def texts(lines: Sequence[Line]) -> list[str]:
    """The lines without their tone."""
    return [line.text for line in lines]


def rows(*judged: Result, width: int = 100) -> list[list[str]]:
    """The cells of the table, without its heading."""
    lines = texts(summary(judged, width, SESSION))
    after = next(n for n, line in enumerate(lines, 1) if line.startswith("test "))
    return [re.split(r"  +", line) for line in lines[after : after + len(judged)]]


def named(test: str, *verdicts: Verdict, **more: Any) -> Result:
    """A measurement of the test of this name, of three processes."""
    made = [measurement(test=f"a.py::{test}", process=f"p{n}", **more) for n in range(3)]
    return result(made, *verdicts)


def test_what_a_failing_tests_message_has_said_is_not_said_again() -> None:
    """What to do is said once, if not by the message; each test has a row all the same."""
    calm = named("test_calm", verdict(outcome=Outcome.UNCHANGED, change=0.0))
    lost = named("test_b", verdict())
    alone = texts(summary([lost, calm], 100, SESSION, told=[lost]))
    assert [line.split()[0] for line in alone[1:]] == ["test", "test_b", "test_calm"]
    of_two = [lost, named("test_c", verdict())]
    several = texts(summary([*of_two, calm], 100, SESSION, told=of_two))
    assert several[-2:] == [
        "measure the worst again: pytest --gpu-arch sm90 a.py::test_b",
        'accept an intended change: gpuperf update-baseline --reason "..."',
    ]
    verbose = texts(summary([lost, calm], 100, SESSION, told=[lost], verbose=True))
    assert verbose[0] == "test_b on NVIDIA H200 (sm90, 3 processes)"


def test_a_row_is_of_the_time_or_of_the_count_that_costs_most_unless_something_moved() -> None:
    flops, operators, copies, cycles, time = (
        verdict(metric, Outcome.UNCHANGED, change=0.0)
        for metric in ("flops", "operators", "copies", "cycles", "step_time")
    )
    lost = verdict("saved_bytes", change=0.84, unit="bytes")
    for verdicts, metric, word in (
        ([cycles, time], "step_time", "unchanged"),
        ([cycles, copies], "cycles", "unchanged"),
        ([copies, operators, flops], "flops", "unchanged"),
        ([copies, operators, replace(flops, measured=0.0)], "operators", "unchanged"),
        ([copies], "copies", "unchanged"),
        ([copies, flops, replace(lost, change=0.1, metric="peak_memory"), lost],
         "saved_bytes", "regressed"),
        ([time, replace(cycles, outcome=Outcome.INCONCLUSIVE)], "cycles", "inconclusive"),
        ([replace(flops, outcome=Outcome.NO_BASELINE)], "flops", "no baseline"),
        ([replace(time, outcome=Outcome.UNFIT)], "step_time", "GPU disturbed"),
        ([replace(time, outcome=Outcome.MACHINE)], "step_time", "machine changed"),
        ([], "cycles", "not requested"),
    ):  # fmt: skip
        ((_, metric_cell, *_, word_cell),) = rows(named("test_a", *verdicts))
        assert (metric_cell, word_cell) == (metric, word), verdicts


def test_failed_tests_come_first_and_names_are_cut_before_their_parameters() -> None:
    calm = verdict(outcome=Outcome.UNCHANGED, change=0.0)
    long = f"test_{'x' * 60}[tf32_channels_last]"
    judged = [named(long, calm), named("test_b", verdict(change=0.1)), named("test_c", verdict())]
    assert [row[0] for row in rows(*judged, width=200)] == ["test_b", "test_c", long]
    assert re.fullmatch(r"test_x+\.\.\.x*\[tf32_channels_last\]", rows(*judged)[2][0])
    for width in (20, 40, 60):
        assert rows(*judged, width=width)[0][-1] == "regressed"


# Many metrics

PAPER = [metric.name for metric in catalogue().hardware_set("paper")]


def test_configurations_show_the_gated_metrics() -> None:
    values = dict.fromkeys(PAPER, 1.0)
    judged = [configured("baseline", **values), configured("tf32", **values)]
    assert [text.split()[0] for text in texts(configurations(judged, 100))[1:]] == [
        name for name in PAPER if catalogue().metrics[name].gated
    ]
    ungated = [configured("baseline", ipc=1.0), configured("tf32", ipc=2.0)]
    assert [text.split()[0] for text in texts(configurations(ungated, 100))[1:]] == ["ipc"]


# Widths

_FOLDER = ROOT / "docs" / "runs"
RUNS = [_FOLDER / name for name in ("cpu-meddpm.json", "h200-convnext.json.xz", "h200-meddpm.json")]
names = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=250),
    st.sampled_from([TEST, f"{'x' * 300}.py::test_{'y' * 300}", "many words " * 30]),
)


def too_wide(lines: Sequence[Line], width: int) -> list[str]:
    """Those that are, but for commands: these are one line each, to be pasted."""
    return [
        line.text for line in lines if len(line.text) > width and not table.is_command(line.text)
    ]


@given(st.integers(20, 200), st.lists(st.sampled_from(ALL), max_size=4), names, names)
def test_no_line_is_too_wide(width: int, judged: list[Result], name: str, command: str) -> None:
    named = result(measurement(test=name, name=name, configuration=name), verdict(detail=name))
    lines = summary([*judged, named], width, CommandContext(command), notes=[name])
    assert too_wide(lines, width) == []
    assert all("\n" not in line.text for line in lines)


def test_no_committed_run_is_too_wide() -> None:
    for file in RUNS:
        run = recorded_run(file)
        for width in (40, 57, 80, 132):
            lines = summary(run.results() * 6, width, CommandContext(run.command))
            assert too_wide(lines, width) == [], file


# The configurations side by side


SIDE_BY_SIDE = SCENARIOS["configurations"]


def test_one_configuration_or_another_test_is_no_comparison() -> None:
    other = result(measurement(test="x.py::test_sampling[tf32]"))
    unnamed = result(measurement(configuration=""))
    for judged in (SIDE_BY_SIDE[:1], [], [REGRESSED, unnamed], [SIDE_BY_SIDE[0], other]):
        assert configurations(judged, 100) == []


@given(st.integers(20, 200))
def test_the_configurations_fit_or_are_left_out(width: int) -> None:
    assert all(len(line.text) <= width for line in configurations(SIDE_BY_SIDE, width))
    small = [configured("a", flops=5.0), configured("b", flops=5.0)]
    assert all(len(line.text) <= width for line in configurations(small, width))
