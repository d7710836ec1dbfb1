"""Results: what belongs to one measurement, its worst outcome, and the order of all reports."""

from __future__ import annotations

from dataclasses import replace

from pytest_gpuperf.model.measurement import title_of
from pytest_gpuperf.model.result import Expectation, JudgedBy, Outcome
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
