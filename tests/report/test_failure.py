"""What a failing test says."""

from __future__ import annotations

from dataclasses import replace

from pytest_gpuperf.baselines.judgement import Unjudged
from pytest_gpuperf.judge.attribution import attribute
from pytest_gpuperf.model.result import Outcome
from pytest_gpuperf.report.text import failure
from pytest_gpuperf.report.text.next_command import CommandContext
from pytest_gpuperf.report.view import coverage
from tests.examples import measurement, result, verdict
from tests.kernel_steps import NAMING, table
from tests.report.golden import SESSION

NO_BASELINE = verdict(
    outcome=Outcome.NO_BASELINE,
    baseline=None,
    change=None,
    tolerance=None,
    detail="baselines/sm90/nvidia-h200/meddpm.yaml does not exist",
)
UNSUPPORTED = verdict(
    "ipc",
    Outcome.UNSUPPORTED,
    baseline=None,
    measured=None,
    change=None,
    tolerance=None,
    detail="CUPTI may not read counters here",
)
INCONCLUSIVE = verdict("instructions", Outcome.INCONCLUSIVE, change=0.004)


def test_a_terminal_has_no_line_that_is_too_wide_but_for_commands() -> None:
    said = attribute(table(("conv" * 20, 900.0)), table(("conv", 300.0)), NAMING)
    row = replace(verdict(detail="what is odd, " * 20), low=0.02, high=0.03)
    page = result(measurement(), row, attribution=said, notes=("a note " * 30,))
    for width in (40, 80, 200):
        lines = failure.failure(page, [row], SESSION, width).splitlines()
        wide = [line for line in lines if len(line) > width]
        assert [line for line in wide if not line.startswith("  pytest ")] == [], width
        assert '  gpuperf update-baseline --reason "..."' in lines


def test_of_several_the_worst_is_the_headline_and_all_are_listed() -> None:
    for failing, says in (
        ([INCONCLUSIVE, verdict()], "regressed"),
        ([INCONCLUSIVE, UNSUPPORTED, NO_BASELINE], "could not read"),
        ([INCONCLUSIVE, NO_BASELINE], "no baseline on"),
    ):
        text = failure.failure(result(measurement(), *failing), failing, SESSION)
        assert says in text.splitlines()[0], failing
        for said in failing:
            assert any(
                line.split()[0] == said.metric and line.endswith(said.outcome.value)
                for line in text.splitlines()
            )


def test_it_says_why_nothing_was_to_be_judged() -> None:
    none = [result(measurement()), result(measurement(name="b"))]
    assert coverage(none, "--gpuperf-no-judge").endswith(
        "compared with nothing (--gpuperf-no-judge)"
    )


def test_of_a_replayed_run_a_baseline_is_made_by_accepting_it() -> None:
    context = CommandContext("suites/meddpm", run="run.json", replayed=True)
    text = failure.unjudged(result(measurement(), NO_BASELINE), Unjudged.NO_BASELINE, context)
    assert text.endswith('  gpuperf update-baseline run.json --reason "first baseline"')


def test_nothing_is_said_in_brief_where_all_is_well() -> None:
    for calm in (Outcome.UNCHANGED, Outcome.REPORTED):
        assert failure.brief(result(measurement(), verdict(outcome=calm)), 80) == []
    assert all(len(line) <= 40 for line in failure.brief(result(measurement(), verdict()), 40))
