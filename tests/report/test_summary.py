"""The terminal summary: rows, notes, the next command, and never a line that is too wide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.model.result import Outcome, Result
from pytest_gpuperf.report.text.next_command import CommandContext
from pytest_gpuperf.report.text.step_tables import configurations
from pytest_gpuperf.report.text.summary import summary
from pytest_gpuperf.report.text.table import Line
from tests import ROOT
from tests.examples import TEST, measurement, recorded_run, result, verdict
from tests.report.golden import SCENARIOS, SESSION

REGRESSED = result(measurement(), verdict())
ALL = [one for results in SCENARIOS.values() for one in results]
IMPROVED, MISSING = SCENARIOS["improved"][0], SCENARIOS["no baseline"][0]
AGAIN = (
    "to measure it again by itself:",
    "  pytest --gpu-arch sm90 'suites/meddpm/test_training.py::test_training_step[tf32]'",
)


def texts(lines: Sequence[Line]) -> list[str]:
    """The lines without their tone."""
    return [line.text for line in lines]


def shown(*judged: Result, width: int = 100, run: str = "") -> str:
    """The summary as one text."""
    return "\n".join(texts(summary(judged, width, SESSION, run)))


def looked_at(test: str, processes: int, name: str = "step") -> Result:
    """What a test of this name was after looks at so many processes."""
    rows = [verdict(metric, Outcome.UNCHANGED) for metric in ("cycles", "instructions")]
    return result(
        [measurement(test=f"a.py::{test}", name=name, process=f"p{n}") for n in range(processes)],
        *[replace(row, processes=processes) for row in rows],
    )


# What was said already


def test_what_a_failing_tests_message_has_said_is_not_said_again() -> None:
    """But where more of it was asked for; and what to do is said once, if not by the message."""
    calm = looked_at("test_calm", 1)
    alone = summary([REGRESSED, calm], 100, SESSION, told=[REGRESSED])
    assert not any("test_training_step" in line.text or "update-" in line.text for line in alone)
    of_two = [REGRESSED, result(measurement(test="a.py::test_b"), verdict(test="a.py::test_b"))]
    several = texts(summary([*of_two, calm], 100, SESSION, told=of_two))
    assert several[-2:] == [
        "to accept what is intended:",
        '  gpuperf update-baseline --reason "..."',
    ]
    assert not any("regressed" in text for text in several)
    line = texts(summary([REGRESSED], 100, SESSION, told=[REGRESSED], in_a_line=True))
    assert line == [*AGAIN, *several[-2:]]
    more = texts(summary([REGRESSED, calm], 100, SESSION, told=[REGRESSED], verbosity=1))
    assert more[0] == "test_training_step[tf32] on NVIDIA H200 (sm90)"


def test_quietly_the_first_say_of_all_that_they_have_no_baseline() -> None:
    def lacking(count: int) -> list[str]:
        results = [
            result(measurement(test=f"a.py::test_{number}"), *MISSING.verdicts)
            for number in range(count)
        ]
        return texts(summary([*results, IMPROVED], 100, SESSION, verbosity=-1))

    assert [text.split(" has no baseline")[0] for text in lacking(4)[:5]] == [
        *(f"test_{number}" for number in range(4)),
        "test_training_step[tf32] improved on NVIDIA H200 (sm90): cycles -1.60 %",
    ]
    for count, more in ((5, 1), (34, 30)):
        said = lacking(count)
        assert said[3].startswith("test_3 has no baseline on")
        assert said[4] == f"and neither have {more} more"
        assert said[5].startswith("test_training_step[tf32] improved")


# Notes


def test_without_counters_it_is_said_what_decides_and_what_is_lost() -> None:
    detected: dict[str, Any] = {"minimum_detectable_effect": 0.012, "outcome": Outcome.UNCHANGED}
    times = [verdict(name, **detected) for name in ("step_time", "kernel_time")]
    lost = verdict("cycles", Outcome.UNSUPPORTED, detail="not permitted")
    waits = verdict("stream_synchronizations", Outcome.UNCHANGED, change=0.0)
    for verdicts, said in (
        ([lost, *times, waits], "step_time, kernel_time and what the host does decide; slowdowns "),
        ([lost, times[0]], "step_time decides; slowdowns of +1.20 % are found 99 times in 100"),
        ([*times, waits], ""),
        ([replace(lost, reason="absent"), *times], ""),
        ([lost, waits], ""),
        # Where others were read, what was not is something else.
        ([lost, verdict("instructions", Outcome.UNCHANGED, change=0.0), *times], ""),
    ):
        text = " ".join(shown(result(measurement(), *verdicts)).split())
        assert said in text
        assert ("What is lost: smaller slowdowns" in text) == bool(said)


# Many


MANY = [looked_at(f"test_{n:02d}", 1) for n in range(20)]


def test_a_line_holds_as_much_as_fits() -> None:
    for width, says in (
        (70, "  test_training_step[tf32_channels_last]: cycles +0.10 %, ipc 0 %"),
        (60, "  test_training_step[tf32_channels_last]: cycles +0.10 %"),
        (50, "  test_trai...[tf32_channels_last]: cycles +0.10 %"),
        (30, "  test_tra...32_channels_last]"),
    ):
        name = "test_training_step[tf32_channels_last]"
        rows = [verdict("cycles", Outcome.UNCHANGED, change=1e-3)]
        rows += [verdict("ipc", Outcome.UNCHANGED, change=0.0)]
        judged = [*MANY, result(measurement(test=f"a.py::{name}"), *rows)]
        assert says in texts(summary(judged, width, SESSION)), width


# Many metrics

PAPER = [metric.name for metric in catalogue().hardware_set("paper")]
ESSENTIAL = ["cycles", "active_cycles", "instructions", "ipc", "duration"]


def test_of_many_metrics_configurations_show_those_that_decide() -> None:
    values = dict.fromkeys(PAPER, 1.0)
    judged = [configured("baseline", **values), configured("tf32", **values)]
    _, _, *rows, more = texts(configurations(judged, 100))
    assert [row.split()[0] for row in rows] == ESSENTIAL
    assert more.endswith(" more: see -v, the run's file or --gpuperf-report")
    _, _, *rows = texts(configurations(judged, 100, verbose=True))
    assert [row.split()[0] for row in rows] == PAPER


# Widths

_FOLDER = ROOT / "docs" / "runs"
RUNS = sorted([*_FOLDER.glob("h200-*"), *_FOLDER.glob("cpu-*")])
names = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=250),
    st.sampled_from([TEST, f"{'x' * 300}.py::test_{'y' * 300}", "many words " * 30]),
)


def too_wide(lines: Sequence[Line], width: int) -> list[str]:
    """Those that are, but for commands: these are one line each, to be pasted."""
    return [
        line.text
        for line in lines
        if len(line.text) > width and not line.text.startswith(("  gpuperf ", "  pytest "))
    ]


@given(st.integers(20, 200), st.lists(st.sampled_from(ALL), max_size=4), names, names)
def test_no_line_is_too_wide(width: int, judged: list[Result], name: str, command: str) -> None:
    named = result(measurement(test=name, name=name, configuration=name), verdict(detail=name))
    lines = summary([*judged, named], width, CommandContext(command), name)
    assert too_wide(lines, width) == []
    assert all("\n" not in line.text for line in lines)


def test_no_committed_run_is_too_wide() -> None:
    """Also with names that are as long as some are, and with many tests."""
    for file in RUNS:
        run = recorded_run(file)
        for width in (40, 57, 80, 132):
            lines = summary(run.results(), width, CommandContext(run.command))
            assert too_wide(lines, width) == [], file
        longer = [
            replace(
                r, measurements=tuple(replace(m, test=long, name="its own") for m in r.measurements)
            )
            for r in run.results()
            for long in [r.test.replace("[", f"[{'a-long-name-' * 20}")]
        ]
        session = CommandContext("a name " * 40, run="/a/folder/" * 20, compared=("a" * 90, "b"))
        for width in (40, 100, 200):
            lines = summary(longer * (1 if width == 100 else 6), width, session, "run.json")
            assert too_wide(lines, width) == [], file


# The configurations side by side


def configured(name: str, **series: float) -> Result:
    """A measurement of one configuration of one test."""
    values = {metric: [value] for metric, value in series.items()}
    test = f"suites/x.py::test_step[{name}]"
    return result(measurement(values, test=test, configuration=name))


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
