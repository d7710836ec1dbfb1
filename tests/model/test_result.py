"""Results: what belongs to one measurement, its worst outcome, and the order of all reports."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pytest_gpuperf.model.measurement import title_of
from pytest_gpuperf.model.result import (
    WORST_FIRST,
    Expectation,
    JudgedBy,
    Outcome,
    Result,
    worst_first,
)
from tests.examples import TEST, measurement, result, run, verdict

LIMIT = Expectation(TEST, "duration", "ns", "step", None, 1e9, Outcome.HOLDS, "within")
RATIO = Expectation(TEST, "cycles", "", "tf32 / baseline", None, 1.0, Outcome.BROKEN, "beyond")


def test_a_measurement_is_called_by_its_test() -> None:
    for test, name, title in (
        ("a/b.py::test_x", "step", "test_x"),
        ("a/b.py::TestClass::test_x[a::b]", "step", "test_x[a::b]"),
        ("a/b.py::test_x", "sampling", "test_x, sampling"),
        ("odd", "step", "odd"),
    ):
        assert title_of(test, name) == title, (test, name)
        assert result(measurement(test=test, name=name)).title == title, (test, name)


def test_a_run_is_made_of_results_and_has_them_again() -> None:
    sampling = measurement(name="sampling")
    made = run(
        [measurement(process="p1"), sampling, measurement(process="p2")],
        [verdict(name="sampling"), verdict(), verdict(phase="forward")],
    )
    made = replace(made, expectations=(RATIO, LIMIT, replace(LIMIT, subject="elsewhere")))
    entry = JudgedBy(TEST, "sampling", "2026-03-01", "0123456789ab")
    made = replace(made, judged_by=(entry,))
    step, other, ratio, elsewhere = made.results()
    assert [m.process for m in step.measurements] == ["p1", "p2"]
    assert (step.expectations, len(step.verdicts)) == ((LIMIT,), 2)
    assert (other.measurements, len(other.verdicts)) == ((sampling,), 1)
    assert (step.judged_by, other.judged_by) == (None, entry)
    assert (ratio.measurements, ratio.expectations) == ((), (RATIO,))
    assert ratio.title == f"tf32 / baseline in {TEST}"
    assert elsewhere.measurements == ()
    again = replace(made, measurements=(), verdicts=(), judged_by=())
    assert again.with_results(made.results()).results() == made.results()


def test_the_worst_that_is_said_of_the_step_is_the_outcome() -> None:
    for outcomes, worst in (
        ([], None),
        ([Outcome.UNCHANGED, Outcome.UNSUPPORTED], Outcome.UNCHANGED),
        ([Outcome.NO_BASELINE, Outcome.UNFIT, Outcome.IMPROVED], Outcome.UNFIT),
        ([Outcome.BROKEN, Outcome.REGRESSED], Outcome.REGRESSED),
        # Kernels that changed explain an outcome, and are none.
        ([Outcome.UNCHANGED, Outcome.KERNELS_CHANGED], Outcome.UNCHANGED),
    ):
        said = [verdict(outcome=outcome) for outcome in outcomes]
        assert result(measurement(), *said).outcome is worst, outcomes
    assert result(measurement(), verdict(phase="forward")).outcome is None
    assert result(measurement(), expectations=(LIMIT,)).outcome is Outcome.HOLDS


def test_every_outcome_has_its_place() -> None:
    assert sorted(WORST_FIRST) == sorted(Outcome)
    every = [result(measurement(), verdict(outcome=outcome)) for outcome in WORST_FIRST]
    every.append(result(measurement()))
    for seed in range(5):
        assert worst_first(random.Random(seed).sample(every, len(every))) == every, seed


def test_what_costs_most_time_comes_first_in_every_report() -> None:
    def slower(baseline: float, share: float) -> Result:
        time = verdict("step_time", unit="ms", change=share, baseline=baseline)
        return result(measurement(), replace(time, measured=baseline * (1 + share)))

    short, long = slower(1.0, 0.2), slower(1000.0, 0.05)
    assert [short.cost, long.cost] == pytest.approx([0.2e6, 50e6])
    assert worst_first([short, long]) == [long, short]


def test_without_a_time_the_larger_change_comes_first_and_calm_ones_as_they_came() -> None:
    def changed(outcome: Outcome, change: float, *, points: bool = False) -> Result:
        same = verdict("instructions", Outcome.UNCHANGED, change=1e-5)
        return result(measurement(), same, verdict(outcome=outcome, change=change, points=points))

    ordered = [
        *(changed(Outcome.REGRESSED, change) for change in (4.0, -0.3, 0.1)),
        # A point of a percentage is a hundredth.
        changed(Outcome.REGRESSED, -3.0, points=True),
        *(changed(Outcome.IMPROVED, change) for change in (-0.5, -0.1)),
    ]
    calm = [changed(Outcome.UNCHANGED, change) for change in (0.001, 0.004, 0.002)]
    assert worst_first([*calm, *ordered[::-1]]) == [*ordered, *calm]
