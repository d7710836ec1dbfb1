"""The order of all reports."""

from __future__ import annotations

import random

from pytest_gpuperf.model.result import WORST_FIRST, Outcome, Result
from pytest_gpuperf.report.view import worst_first
from tests.examples import measurement, result, verdict


def test_every_outcome_has_its_place() -> None:
    assert sorted(WORST_FIRST) == sorted(Outcome)
    every = [result(measurement(), verdict(outcome=outcome)) for outcome in WORST_FIRST]
    every.append(result(measurement()))
    for seed in range(5):
        assert worst_first(random.Random(seed).sample(every, len(every))) == every, seed


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
