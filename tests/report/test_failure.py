"""What a failing test says."""

from __future__ import annotations

from dataclasses import replace

from pytest_gpuperf.baselines.judgement import Unjudged
from pytest_gpuperf.judge.attribution import attribute
from pytest_gpuperf.model.result import Outcome, Upgrade
from pytest_gpuperf.report.text import failure, table
from pytest_gpuperf.report.text.next_command import CommandContext
from pytest_gpuperf.report.view import totals
from tests.examples import measurement, result, verdict
from tests.kernel_steps import NAMING, operators
from tests.kernel_steps import table as kernels
from tests.report.golden import SESSION

NO_BASELINE = verdict(outcome=Outcome.NO_BASELINE, change=None, detail="x.yaml does not exist")
TWICE = ("mm", "model.py:3 Net.attend layers.0")


def test_a_terminal_has_no_line_that_is_too_wide_but_for_commands() -> None:
    said = attribute(kernels(("conv" * 20, 900.0)), kernels(("conv", 300.0)), NAMING)
    row = replace(verdict(detail="what is odd, " * 20), low=0.02, high=0.03)
    made = [measurement(process=f"p{number}") for number in range(3)]
    page = result(made, row, attribution=said, notes=("a note " * 30,))
    for width in (40, 80, 200):
        lines = failure.failure(page, [row], SESSION, width).splitlines()
        wide = [line for line in lines if len(line) > width and not table.is_command(line)]
        assert wide == [], width
        assert any('gpuperf update-baseline --reason "..."' in line for line in lines)


def test_what_several_tests_fail_for_is_software_before_a_line_of_code() -> None:
    line = attribute(operators(TWICE, TWICE), operators(TWICE), NAMING)
    other = replace(line, upgrades=(Upgrade("torch", "2", "3", 0, 0),))
    noted = ("versions changed: torch 2 -> 3",)
    for judged, key in (
        (result(measurement(), verdict(), attribution=line), "model.py:3"),
        (result(measurement(), verdict(), attribution=other), "versions changed: torch 2 -> 3"),
        (result(measurement(), verdict(), notes=noted), "versions changed: torch 2 -> 3"),
        (result(measurement(), verdict()), ""),
        # What did not fail has no cause.
        (result(measurement(), verdict(outcome=Outcome.UNCHANGED), attribution=line), ""),
    ):
        assert failure.cause(judged) == key
    missing = failure.cause(result(measurement(), NO_BASELINE))
    assert missing == failure.cause(result(measurement(test="a.py::test_b"), NO_BASELINE))
    assert failure.again(result(measurement(), verdict()), [verdict()], "test_a[1]", 22) == [
        "gpuperf: cycles +2....",
        "same c...st_a[1] above",
    ]


def test_it_says_why_nothing_was_to_be_judged() -> None:
    none = [result(measurement()), result(measurement(name="b"))]
    why = "--gpuperf-no-judge"
    assert f"not requested: {why}" in totals(none, why=why)


def test_of_a_replayed_run_a_baseline_is_made_by_accepting_it() -> None:
    context = CommandContext("suites/meddpm", run="run.json", replayed=True)
    text = failure.unjudged(result(measurement(), NO_BASELINE), Unjudged.NO_BASELINE, context)
    assert text.endswith('  gpuperf update-baseline run.json --reason "first baseline"')
