"""Stopping rules: how many processes and rounds it takes to decide.

One process first, then 3, 5 and 9 in all. Rounds within a process say how sure its own value is;
what differs between processes they do not tell, so there is no need for many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from pytest_gpuperf.judge.tolerance import Tolerance, is_judged, tolerance_for
from pytest_gpuperf.model.metric import Metric
from pytest_gpuperf.model.result import FAULTS, Expectation, Outcome, Verdict

LOOKS = (1, 3, 5, 9)
"""The number of processes at each look."""
LEAST_TO_ALARM = 3
"""A single process is never called a regression: one in fifty is slow as a whole."""
ALARMING = sum(look >= LEAST_TO_ALARM for look in LOOKS)
"""The looks that can alarm, over which the error is split."""

COST_UNSURE = "cost-unsure"
"""The reason code of a count that regressed by little: more processes may show that it costs no
time."""

LEAST_ROUNDS = 2
"""The least number of rounds: one value cannot agree with another."""
AGREEMENT = 0.25
"""Rounds agree that are within this share of the tolerance from their median. Then the median moves
by less than an eighth of the smallest slowdown that a test fails for, whatever rounds follow."""


def enough_rounds(
    rounds: Mapping[str, Sequence[float]],
    metrics: Mapping[str, Metric],
    tolerances: Mapping[str, str],
) -> bool:
    """Whether one process has enough rounds of the whole step; `rounds` has a value per round.

    So it is when more than half of the rounds of each metric that is judged, and at least two,
    agree with their median. `tolerances` are as a test's author wrote them, by metric.
    """
    return all(
        _agree(values, tolerance_for(metrics[name], tolerances.get(name)))
        for name, values in rounds.items()
        if is_judged(metrics[name], tolerances.get(name))
    )


def _agree(values: Sequence[float], tolerance: Tolerance) -> bool:
    middle = median(values)
    reach = AGREEMENT * tolerance.floor * (1.0 if tolerance.points else abs(middle))
    near = sum(abs(value - middle) <= reach for value in values)
    return near >= LEAST_ROUNDS and 2 * near > len(values)


def settled(judged: Iterable[Verdict | Expectation]) -> bool:
    """Whether more processes would change nothing about the test's result.

    It fails, or all is decided that they could decide.
    """
    entries = [(one.outcome, one.reason == COST_UNSURE) for one in judged]
    if any(outcome in FAULTS and not unsure for outcome, unsure in entries):
        return True
    return not any(unsure or outcome is Outcome.INCONCLUSIVE for outcome, unsure in entries)


def next_look(
    judged: Sequence[Verdict | Expectation], processes: int, most: int = LOOKS[-1]
) -> int | None:
    """The number of processes of the next look, after a look at `processes`; None: no next look.

    There is none when the test is settled, or after the last look that needs at most `most`.
    """
    if settled(judged):
        return None
    return next((look for look in LOOKS if processes < look <= most), None)
