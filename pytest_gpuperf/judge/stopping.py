"""The stopping rule: 1 process first, then 3, 5 and 9 in all, until the test is settled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_gpuperf.model.result import Expectation, Outcome, Verdict

LOOKS = (1, 3, 5, 9)
"""How many processes there are at each look."""
LEAST_TO_ALARM = 3
"""A single process is never called a regression: one in fifty is slow as a whole."""
ALARMING = sum(look >= LEAST_TO_ALARM for look in LOOKS)
"""The looks that can alarm, over which the error is split."""


def settled(judged: Iterable[Verdict | Expectation]) -> bool:
    """Whether more processes would change nothing about the test: it fails, or all is decided."""
    outcomes = {entry.outcome for entry in judged}
    failing = {Outcome.REGRESSED, Outcome.BROKEN} & outcomes
    return bool(failing) or Outcome.INCONCLUSIVE not in outcomes


def next_look(
    judged: Sequence[Verdict | Expectation], processes: int, most: int = LOOKS[-1]
) -> int | None:
    """How many processes to look at in all, after a look at `processes`; None: it is over.

    It is over when the test is settled, or after the last look that needs at most `most`.
    """
    if settled(judged):
        return None
    return next((look for look in LOOKS if processes < look <= most), None)
