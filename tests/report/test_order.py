"""The order that all reports share: every outcome has its place, and each report keeps to it."""

from __future__ import annotations

import random

import pytest

from pytest_gpuperf.model.result import Outcome, Run
from pytest_gpuperf.report import markdown, order
from pytest_gpuperf.report.html.overview import overview
from pytest_gpuperf.report.html.subject import subjects
from pytest_gpuperf.report.text import summary
from tests.examples import measurement, run, verdict

JUDGED = [
    outcome
    for outcome in order.WORST_FIRST
    # A ratio's outcomes; what explains another; and what the overview does not judge by.
    if outcome not in (Outcome.BROKEN, Outcome.HOLDS, Outcome.KERNELS_CHANGED)
    and outcome not in (Outcome.UNSUPPORTED, Outcome.REPORTED)
]


def shuffled(seed: int) -> Run:
    """A run with a test for each outcome, named for it, in some order."""
    outcomes = random.Random(seed).sample(JUDGED, len(JUDGED))
    return run(
        [measurement(test=f"x.py::{outcome.value}") for outcome in outcomes],
        [verdict(test=f"x.py::{outcome.value}", outcome=outcome) for outcome in outcomes],
    )


def test_every_outcome_has_its_place() -> None:
    assert sorted(order.WORST_FIRST) == sorted(Outcome)


@pytest.mark.parametrize("seed", range(5))
def test_all_reports_have_the_same_order(seed: int) -> None:
    made = shuffled(seed)
    expected = [outcome.value for outcome in JUDGED]
    assert [s.outcome for s in markdown.standings(made)] == expected
    shown = overview(made, subjects(made), "", incomplete=False)
    assert [entry.outcome for entry in shown.judged] == expected
    headings = [line.text for line in summary.of_run(made, 100) if line.tone == "heading"]
    assert [heading.split()[0] for heading in headings] == expected


@pytest.mark.parametrize(
    ("outcomes", "worst"),
    [
        ([], None),
        ([Outcome.UNCHANGED, Outcome.UNSUPPORTED], Outcome.UNCHANGED),
        ([Outcome.NO_BASELINE, Outcome.UNFIT, Outcome.IMPROVED], Outcome.UNFIT),
        ([Outcome.BROKEN, Outcome.REGRESSED], Outcome.REGRESSED),
    ],
)
def test_the_worst_of_several_is_told(outcomes: list[Outcome], worst: Outcome | None) -> None:
    assert order.worst(outcomes) is worst


def test_kernels_that_changed_are_no_outcome_of_a_measurement() -> None:
    made = run(
        [measurement()],
        [verdict(outcome=Outcome.UNCHANGED), verdict(outcome=Outcome.KERNELS_CHANGED)],
    )
    assert [s.outcome for s in markdown.standings(made)] == [Outcome.UNCHANGED]
