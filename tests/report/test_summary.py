"""The terminal summary: rows, notes, the next command, and never a line that is too wide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.model.measurement import Conditions, Reading
from pytest_gpuperf.model.result import Outcome, Result
from pytest_gpuperf.report.text.next_command import CommandContext
from pytest_gpuperf.report.text.step_tables import MANY_METRICS, configurations
from pytest_gpuperf.report.text.summary import summary
from pytest_gpuperf.report.text.table import Line
from tests import ROOT
from tests.examples import A100, TEST, kernels_changed, measurement, recorded_run, result, verdict

COMMAND = "--gpu-arch sm90 suites/meddpm"
SESSION = CommandContext(COMMAND)

REGRESSED = result(measurement(), verdict())
IMPROVED = result(measurement(), verdict(outcome=Outcome.IMPROVED, measured=430e6, change=-0.016))
MISSING = result(
    measurement(),
    verdict(
        outcome=Outcome.NO_BASELINE,
        reason="no-file",
        baseline=None,
        change=None,
        tolerance=None,
        detail="baselines/sm90/nvidia-h200/meddpm.yaml does not exist",
    ),
)
UNSUPPORTED = result(
    measurement({"step_time": [232.0]}),
    verdict("step_time", Outcome.UNCHANGED, unit="ms", baseline=232.0, measured=232.1, change=4e-4),
    *(
        verdict(
            metric, Outcome.UNSUPPORTED, baseline=None, measured=None, change=None, tolerance=None,
            detail="CUPTI may not read counters here",
        )
        for metric in ("cycles", "instructions")
    ),
)  # fmt: skip
BEFORE = Reading(sm_clock_mhz=1980)
AFTER = Reading(
    sm_clock_mhz=1410, throttle_reasons=("software power cap",), other_processes=(4711,)
)
THROTTLED = result(
    measurement(conditions=Conditions(BEFORE, AFTER)), verdict(outcome=Outcome.UNCHANGED)
)
SEVERAL = result(
    [measurement(process=f"p{number}") for number in range(3)],
    replace(verdict(outcome=Outcome.UNCHANGED), processes=3),
)
CHANGED = result(
    [measurement(process=f"p{number}", name="sampling") for number in range(3)],
    kernels_changed("12 added, 3 removed, 4 replaced"),
    replace(verdict(outcome=Outcome.UNCHANGED), processes=3),
)
ALL = (REGRESSED, IMPROVED, MISSING, UNSUPPORTED, THROTTLED, SEVERAL, CHANGED)
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


# Rows


def test_one_heading_per_measurement_and_one_row_per_metric() -> None:
    lines = summary([REGRESSED], 100, SESSION)
    assert lines[0] == Line("test_training_step[tf32] on NVIDIA H200 (sm90)", "heading")
    assert lines[1].text.split() == [
        *("metric", "baseline", "measured", "change", "tolerance", "MDE", "verdict")
    ]
    assert lines[2] == Line(
        "  cycles  437.00 M  448.00 M  +2.52 %      0.5 %    -  regressed", "bad"
    )


def test_a_verdict_has_its_tone_in_both_layouts() -> None:
    tones = {
        Outcome.REGRESSED: "bad",
        Outcome.IMPROVED: "good",
        Outcome.UNCHANGED: "",
        Outcome.INCONCLUSIVE: "doubtful",
        Outcome.NO_BASELINE: "doubtful",
        Outcome.REPORTED: "",
    }
    for width, (outcome, tone) in product((100, 60, 58, 56, 40, 20), tones.items()):
        rows = [verdict(outcome=outcome), verdict("instructions", Outcome.UNCHANGED)]
        lines = summary([result(measurement(), *rows)], width, CommandContext())
        first = [line.text.split()[:1] for line in lines]
        start, end = (
            next(n for n, word in enumerate(first) if word[0].startswith(metric))
            for metric in ("cycles", "instructions")
        )
        assert {line.tone for line in lines[start:end]} == {tone}, (width, outcome)


def test_a_heading_says_which_measurement_on_which_device_in_how_many_processes() -> None:
    both = [measurement(process="p1"), measurement(process="p2")]
    sampling = measurement(name="sampling")
    for judged, says in (
        (result(sampling, verdict(name="sampling")), ", sampling on NVIDIA H200 (sm90)"),
        (result(both, verdict()), " on NVIDIA H200 (sm90, 2 processes)"),
        (result(measurement(device=A100), verdict()), " on NVIDIA A100-SXM4-40GB (sm80)"),
        # Also where nothing was measured.
        (result(measurement({})), " on NVIDIA H200 (sm90)"),
    ):
        assert shown(judged).splitlines()[0] == f"test_training_step[tf32]{says}"


def test_phases_have_no_row() -> None:
    rows = [verdict(), verdict("duration", phase="forward")]
    assert "duration" not in shown(result(measurement(), *rows))


def test_what_was_not_judged_is_shown_with_its_values() -> None:
    page = measurement({"cycles": [437e6], "ipc": [2.5]}, phases={"forward": {"cycles": [1.0]}})
    rows = texts(summary([result(page)], 100, SESSION))[2:]
    assert [row.split() for row in rows] == [
        ["cycles", "-", "437.00", "M", "-", "-", "-", "reported"],
        ["ipc", "-", "2.5000", "-", "-", "-", "reported"],
    ]


# Looks


def looked_at(test: str, processes: int, name: str = "step") -> Result:
    """What a test of this name was after looks at so many processes."""
    rows = [verdict(metric, Outcome.UNCHANGED) for metric in ("cycles", "instructions")]
    return result(
        [measurement(test=f"a.py::{test}", name=name, process=f"p{n}") for n in range(processes)],
        *[replace(row, processes=processes) for row in rows],
    )


def test_where_a_test_took_more_than_one_process_its_line_says_so() -> None:
    few = [looked_at(f"test_{n}", 1) for n in range(4)]
    for judged, says in (
        (looked_at("test_x", 3), "test_x (3 processes): "),
        (looked_at("test_x", 3, name="first"), "test_x, first (3 processes): "),
        (looked_at("test_x", 1), "test_x: "),
    ):
        lines = shown(*few, judged).splitlines()
        assert lines[-1].startswith(f"  {says}")
    assert shown(looked_at("test_x", 9)).startswith("test_x on NVIDIA H200 (sm90, 9 processes)")


# Names


def test_where_tests_of_two_files_have_one_name_the_file_is_said() -> None:
    for tests in (
        {"a.py::test_x": "test_x", "b.py::test_y": "test_y"},
        {"a.py::test_x": "a.py::test_x", "b.py::test_x": "b.py::test_x", "b.py::test_y": "test_y"},
        {"s/a/t.py::C::test_x": "a/t.py::C::test_x", "s/b/t.py::C::test_x": "b/t.py::C::test_x"},
        {"t.py::A::test_x": "t.py::A::test_x", "t.py::B::test_x": "t.py::B::test_x"},
        {
            "x/t.py::test_x[a/b]": "x/t.py::test_x[a/b]",
            "y/t.py::test_x[a/b]": "y/t.py::test_x[a/b]",
        },
    ):
        judged = [result(measurement(test=test), verdict()) for test in tests]
        headings = [line.text for line in summary(judged, 100, SESSION) if line.tone == "heading"]
        assert [heading.split(" on ")[0] for heading in headings] == [*tests.values()]


def test_so_it_is_in_notes_and_in_the_lines_of_what_is_unchanged() -> None:
    disturbed = Conditions(BEFORE, AFTER)
    tests = [measurement(test=f"{file}.py::test_x", conditions=disturbed) for file in "abcde"]
    calm = verdict(outcome=Outcome.UNCHANGED, change=0.0)
    pages = [result(measured, calm) for measured in tests]
    text = shown(*pages)
    assert "  a.py::test_x: cycles 0 %" in text
    assert "note: e.py::test_x: the device was shared with" in text


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


def test_quietly_only_what_is_not_well_is_said_in_a_line_each() -> None:
    well = [looked_at("test_calm", 1), SEVERAL]
    assert summary(well, 100, SESSION, "run.json", verbosity=-1) == []
    lines = summary([*well, REGRESSED, IMPROVED], 100, SESSION, "run.json", verbosity=-1)
    assert lines[:2] == [
        Line("test_training_step[tf32] regressed on NVIDIA H200 (sm90): cycles +2.52 %", "bad"),
        Line("test_training_step[tf32] improved on NVIDIA H200 (sm90): cycles -1.60 %", "good"),
    ]
    assert texts(lines[2:]) == [
        *AGAIN,
        "to accept what is intended:",
        '  gpuperf update-baseline --reason "..."',
    ]


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


def test_unchanged_is_followed_by_what_would_be_found_where_that_is_far_off() -> None:
    blunt = verdict(
        outcome=Outcome.UNCHANGED, tolerance=0.084, change=0.03, minimum_detectable_effect=0.45
    )
    page = result(measurement(), blunt)
    assert shown(page).endswith("unchanged (MDE 45 %)")
    assert "unchanged (MDE 45 %)" in shown(page, width=40)
    few = [looked_at(f"test_{n}", 1) for n in range(4)]
    assert "  test_training_step[tf32]: cycles +3.00 % (MDE 45 %)" in shown(page, *few)


# Notes


def test_what_is_unsupported_is_named_once_for_each_reason() -> None:
    other = result(measurement(), verdict("ipc", Outcome.UNSUPPORTED, detail="not on sm70"))
    lines = shown(UNSUPPORTED, UNSUPPORTED, UNSUPPORTED, other).splitlines()
    assert [line for line in lines if "unsupported: " in line] == [
        "unsupported: cycles, instructions: CUPTI may not read counters here",
        "unsupported: ipc: not on sm70",
    ]


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


def test_what_would_not_be_found_is_noted() -> None:
    wide = result(
        measurement(), verdict(tolerance=1.0), verdict("step_time", tolerance=10.0), verdict("ipc")
    )
    other = result(measurement(name="b"), verdict(tolerance=3.0, name="b"))
    new = [verdict(name, Outcome.REPORTED, reason="new-metric") for name in ("copies", "launches")]
    just_below = result(measurement(name="c"), verdict(tolerance=0.99), *new)
    reported = result(measurement(name="d"), verdict("ipc", Outcome.REPORTED, tolerance=5.0))
    tolerated = result(
        measurement(name="e"),
        *(
            verdict(name, Outcome.REPORTED, reason="any-tolerated")
            for name in ("cycles", "launches")
        ),
    )
    lines = shown(wide, other, just_below, reported, tolerated).splitlines()
    assert [line for line in lines if line.startswith("note: ")] == [
        "note: nothing is said of copies, launches: the baseline has no such samples yet. Accept a "
        "run that",
        "note: cycles, step_time may double in 2 measurements: so wide is the tolerance",
        "note: cycles, launches not judged in 1 measurement: any change is tolerated",
    ]


def test_what_was_zero_and_is_zero_takes_no_room_but_where_all_is_asked_for() -> None:
    zero = verdict("copies", Outcome.UNCHANGED, baseline=0.0, measured=0.0, reason="both-zero")
    more = verdict("launches", Outcome.REGRESSED, baseline=0.0, measured=3.0, reason="from-zero")
    unknown = verdict("collectives", Outcome.REPORTED, baseline=None, measured=0.0)
    judged = result(measurement(), zero, more, unknown)
    for verbosity in (0, 1):
        lines = summary([judged], 200, SESSION, verbosity=verbosity)
        text = "\n".join(line.text for line in lines)
        assert "launches" in text
        assert ("copies" in text) == ("collectives" in text) == (verbosity > 0)


def test_a_measurement_that_was_throttled_or_shared_is_named() -> None:
    lines = summary([THROTTLED], 200, SESSION)
    assert [line for line in lines if line.text.startswith("note")] == [
        Line(
            "note: test_training_step[tf32]: the device was throttled at the end: software power "
            "cap (SM clock 1980 -> 1410 MHz)",
            "doubtful",
        ),
        Line(
            "note: test_training_step[tf32]: the device was shared with 1 other process (pid 4711)",
            "doubtful",
        ),
    ]


# What to type next


def test_it_ends_with_the_next_command() -> None:
    lines = texts(summary([REGRESSED, IMPROVED], 100, SESSION, "run.json", notes=["note: this"]))
    assert lines[-6:] == [
        "run saved: run.json",
        "note: this",
        *AGAIN,
        "to accept what is intended:",
        '  gpuperf update-baseline --reason "..."',
    ]


def test_when_all_is_well_nothing_is_asked() -> None:
    text = shown(result(measurement(), verdict(outcome=Outcome.UNCHANGED)))
    assert "gpuperf " not in text
    assert "run saved" not in text


# Other kernels


def test_other_kernels_come_first_and_are_counted_below() -> None:
    lines = summary([CHANGED], 100, SESSION)
    assert [line.text for line in lines[2:]] == [
        "  kernels      1647      1649        -          -    -  kernels-changed",
        "  cycles   437.00 M  448.00 M  +2.52 %      0.5 %    -  unchanged",
        "note: kernels of test_training_step[tf32], sampling: 12 added, 3 removed, 4 replaced",
    ]
    assert [line.tone for line in lines[2:]] == ["doubtful", "", "doubtful"]


def test_other_kernels_read_well_at_any_width() -> None:
    for width, expected in (
        (80, ["  kernels      1647      1649        -          -    -  kernels-changed"]),
        (50, ["  kernels: kernels-changed", "    1647 -> 1649"]),
    ):
        text = texts(summary([CHANGED], width, SESSION))
        start = text.index(expected[0])
        assert text[start : start + len(expected)] == expected, width


# The order


def named(name: str, outcome: Outcome, change: float = 0.02, **changes: object) -> Result:
    """A test of this name with one verdict beside an unchanged one."""
    page = verdict(outcome=outcome, change=change)
    calm = verdict("instructions", Outcome.UNCHANGED, change=1e-5)
    return result(measurement(test=f"a.py::{name}", **changes), calm, page)  # type: ignore[arg-type]


def test_what_failed_comes_first_then_what_improved_then_the_rest() -> None:
    judged = [
        named("test_same", Outcome.UNCHANGED),
        named("test_reported", Outcome.REPORTED),
        named("test_better", Outcome.IMPROVED, -0.1),
        named("test_much_better", Outcome.IMPROVED, -0.5),
        named("test_other_kernels", Outcome.KERNELS_CHANGED),
        named("test_unfit", Outcome.UNFIT),
        named("test_undecided", Outcome.INCONCLUSIVE),
        named("test_new", Outcome.NO_BASELINE),
        named("test_slower", Outcome.REGRESSED, 0.1),
        named("test_much_slower", Outcome.REGRESSED, 4.0),
        named("test_lower", Outcome.REGRESSED, -0.3),
    ]
    lines = summary(judged, 100, SESSION, verbosity=1)
    headings = [line.text for line in lines if line.tone == "heading"]
    assert [heading.split()[0] for heading in headings] == [
        *("test_much_slower", "test_lower", "test_slower"),
        *("test_unfit", "test_new", "test_undecided"),
        *("test_much_better", "test_better"),
        *("test_other_kernels", "test_same", "test_reported"),
    ]


def test_a_point_of_a_percentage_is_a_hundredth() -> None:
    points = named("test_points", Outcome.REGRESSED, -3.0)
    points = replace(points, verdicts=tuple(replace(v, points=True) for v in points.verdicts))
    text = shown(points, named("test_slower", Outcome.REGRESSED, 0.1))
    assert text.startswith("test_slower on")


# Many


MANY = [named(f"test_{n:02d}", Outcome.UNCHANGED, n / 1e4) for n in range(20)]
SLOWER = named("test_slower", Outcome.REGRESSED)


def test_of_many_those_that_are_unchanged_have_a_line_each() -> None:
    lines = texts(summary([*MANY, SLOWER], 100, SESSION))
    assert lines[0] == "test_slower on NVIDIA H200 (sm90)"
    assert lines[4] == "20 unchanged on NVIDIA H200 (sm90); -v shows all their metrics"
    assert lines[5:7] == [
        "  test_00: instructions +0.001 %, cycles 0 %",
        "  test_01: instructions +0.001 %, cycles +0.01 %",
    ]
    assert len(lines) == 4 + 1 + 20 + 2 + 2


def test_of_few_and_where_asked_all_have_their_tables() -> None:
    for count, verbosity in ((4, 0), (5, 1)):
        judged = [*MANY, SLOWER][-count:]
        lines = summary(judged, 100, SESSION, verbosity=verbosity)
        assert len([line for line in lines if line.tone == "heading"]) == count, verbosity


def test_devices_are_told_apart() -> None:
    other = [named(f"test_{n}", Outcome.UNCHANGED, device=A100) for n in range(2)]
    text = shown(*MANY, *other)
    assert "20 unchanged on NVIDIA H200 (sm90)" in text
    assert "2 unchanged on NVIDIA A100-SXM4-40GB (sm80)" in text


def test_what_did_not_decide_keeps_its_table() -> None:
    reported = named("test_reported", Outcome.REPORTED)
    text = shown(*MANY, replace(reported, verdicts=reported.verdicts[1:]))
    assert "test_reported on NVIDIA H200 (sm90)" in text


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
TIMES = ["step_time", "wall_time"]
ESSENTIAL = ["cycles", "active_cycles", "instructions", "ipc", "duration", *TIMES]


def of_metrics(names: Sequence[str], *, judged: bool = True, **outcomes: Outcome) -> Result:
    """A measurement of these metrics; those in `outcomes` have that verdict, others are reported.

    Not `judged`: without a verdict.
    """
    rows = [verdict(name, outcomes.get(name, Outcome.REPORTED)) for name in names]
    return result(measurement({name: [1.0] for name in names}), *(rows if judged else []))


def metrics_of(lines: Sequence[Line]) -> list[str]:
    """The metrics that have a row in a table of seven columns."""
    return [line.text.split()[0] for line in lines if line.text.startswith("  ")][1:]


def test_of_many_metrics_those_that_decide_have_a_row() -> None:
    for judged in (True, False):
        lines = summary([of_metrics([*PAPER, *TIMES], judged=judged)], 100, SESSION)
        *rows, more = metrics_of(lines)
        assert rows == ESSENTIAL, judged
        assert lines[-1].text == f"  {more} more: see -v, the run's file or --gpuperf-report"
        assert int(more) == len(PAPER) + len(TIMES) - len(ESSENTIAL), judged


def test_where_asked_and_of_few_metrics_all_have_a_row() -> None:
    reference = [metric.name for metric in catalogue().hardware_set("reference")]
    for names, verbosity in (
        ([*PAPER, *TIMES], 1),
        ([*reference, *TIMES], 0),
        (PAPER[:MANY_METRICS], 0),
    ):
        lines = summary([of_metrics(names)], 100, SESSION, verbosity=verbosity)
        assert metrics_of(lines) == names, verbosity


def test_a_verdict_is_never_left_out() -> None:
    judged = of_metrics(PAPER, pipe_lsu=Outcome.INCONCLUSIVE, sass_misc=Outcome.UNCHANGED)
    *rows, _ = metrics_of(summary([judged], 100, SESSION))
    assert {"pipe_lsu", "sass_misc"} < set(rows)
    assert "pipe_tex" not in rows


def test_how_many_are_left_out_is_said_at_any_width() -> None:
    for width in (20, 50, 80):
        lines = texts(summary([of_metrics(PAPER)], width, SESSION))
        assert all(len(line) <= width for line in lines), width
        said = " ".join(" ".join(lines).split())
        assert said.endswith("more: see -v, the run's file or --gpuperf-report"), width


def test_of_many_metrics_configurations_show_those_that_decide() -> None:
    values = dict.fromkeys(PAPER, 1.0)
    judged = [configured("baseline", **values), configured("tf32", **values)]
    _, _, *rows, more = texts(configurations(judged, 100))
    assert [row.split()[0] for row in rows] == ESSENTIAL[:-2]
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


@given(st.integers(20, 200))
def test_every_number_of_a_failure_is_there_at_any_width(width: int) -> None:
    text = " ".join(shown(*ALL, width=width).split())
    for number in ("437.00 M", "448.00 M", "+2.52 %", "0.5 %", "regressed", "no-baseline"):
        assert number in text


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


def test_one_configuration_or_another_test_is_no_comparison() -> None:
    other = result(measurement(test="suites/x.py::test_sampling[tf32]"))
    unnamed = result(measurement(configuration=""))
    for judged in (SIDE_BY_SIDE[:1], [], [REGRESSED, unnamed], [SIDE_BY_SIDE[0], other]):
        assert configurations(judged, 100) == []


@given(st.integers(20, 200))
def test_the_configurations_fit_or_are_left_out(width: int) -> None:
    assert all(len(line.text) <= width for line in configurations(SIDE_BY_SIDE, width))
    small = [configured("a", flops=5.0), configured("b", flops=5.0)]
    assert all(len(line.text) <= width for line in configurations(small, width))


def test_the_configuration_named_baseline_comes_first_whoever_was_measured_first() -> None:
    _, heading, *_ = configurations(SIDE_BY_SIDE[::-1], 100)
    assert heading.text.split() == ["baseline", "channels_last", "tf32"]
