"""When to look again, and when a test is settled."""

from __future__ import annotations

from dataclasses import replace

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.stopping import (
    COST_UNSURE,
    enough_rounds,
    next_look,
    settled,
)
from pytest_gpuperf.model.result import Expectation, Outcome, Verdict
from tests.examples import verdict

FAILING = (Outcome.REGRESSED, Outcome.BROKEN)
OPEN = Outcome.INCONCLUSIVE
DECIDED = tuple(outcome for outcome in Outcome if outcome not in (*FAILING, OPEN))


def verdicts(*outcomes: Outcome) -> list[Verdict | Expectation]:
    """One verdict per outcome."""
    return [verdict(outcome=outcome) for outcome in outcomes]


def expectation(outcome: Outcome) -> Expectation:
    """An expectation that ended so."""
    return Expectation("t", "duration", "", "a / b", 2.0, None, outcome, "within")


def test_a_test_is_settled_when_all_is_decided_or_one_fails() -> None:
    for outcome in DECIDED:
        assert settled(verdicts(outcome)), outcome
        assert settled([expectation(outcome)]), outcome
        assert not settled(verdicts(outcome, OPEN)), outcome
    for outcome in FAILING:
        assert settled(verdicts(outcome)), outcome
        assert settled(verdicts(OPEN, outcome, OPEN)), outcome
    assert not settled(verdicts(OPEN))
    assert settled([])
    # Verdicts and expectations are settled together.
    assert not settled([*verdicts(Outcome.UNCHANGED), expectation(OPEN)])
    assert not settled([*verdicts(OPEN), expectation(Outcome.HOLDS)])
    assert settled([*verdicts(OPEN), expectation(Outcome.BROKEN)])
    assert settled([*verdicts(Outcome.REGRESSED), expectation(OPEN)])
    # Of a count that grew by little further processes may say that it costs nothing.
    small = replace(verdict(outcome=Outcome.REGRESSED), reason=COST_UNSURE)
    assert not settled([small, *verdicts(Outcome.UNCHANGED)])
    assert settled([small, *verdicts(Outcome.REGRESSED)])


def test_the_next_look_is_the_next_larger_one_that_there_may_be() -> None:
    after = {1: 3, 2: 3, 3: 5, 4: 5, 5: 9, 6: 9, 8: 9, 9: None, 10: None, 20: None}
    assert {count: next_look(verdicts(OPEN), count) for count in after} == after
    with_at_most = {0: None, 1: None, 2: None, 3: 3, 4: 3, 5: 3, 9: 3, 100: 3}
    assert {most: next_look(verdicts(OPEN), 1, most) for most in with_at_most} == with_at_most


KNOWN = catalogue().metrics
TENSOR = KNOWN["tensor_utilization"]
METRICS = {**KNOWN, TENSOR.name: replace(TENSOR, gated=True)}


def test_rounds_are_enough_when_most_of_them_agree() -> None:
    cases: tuple[tuple[str, str, tuple[float, ...], bool], ...] = (
        ("cycles", "", (1e9,), False),  # one value agrees with nothing
        ("cycles", "", (1e9, 1.0024e9), True),  # each 0.12 % from the middle
        ("cycles", "", (1e9, 1.0026e9), False),  # more than a quarter of the tolerance, 0.5 %
        ("cycles", "", (1e9, 1.03e9, 1.001e9), True),  # two of three agree
        ("cycles", "", (1e9, 1.03e9, 1.001e9, 1.02e9), False),  # half is not most
        ("cycles", "15%", (1e9, 1.07e9), True),  # of a tolerance that somebody wrote
        ("instructions", "", (1_000_000, 1_000_049), True),
        ("instructions", "", (1_000_000, 1_000_051), False),
        ("tensor_utilization", "", (50.0, 50.37), True),  # points of a percentage
        ("tensor_utilization", "", (50.0, 50.38), False),
        ("layout_copies", "", (0, 0), True),
        ("ipc", "", (1.0, 2.0), True),  # not gated: nobody waits for it
        ("cycles", "any", (1e9, 2e9), True),
        ("cycles", "", (90.0, 100.0, 100.0, 120.0), False),
        ("cycles", "", (90.0, 100.0, 100.0), True),
    )
    for metric, written, values, enough in cases:
        tolerances = {metric: written} if written else {}
        assert enough_rounds({metric: values}, METRICS, tolerances) is enough, (metric, values)


def test_every_gated_metric_has_to_agree() -> None:
    agreeing, apart = {"cycles": (1e9, 1e9)}, {"step_time": (1.0, 2.0)}
    assert enough_rounds(agreeing, METRICS, {})
    assert not enough_rounds({**agreeing, **apart}, METRICS, {})
    assert enough_rounds({}, METRICS, {})
