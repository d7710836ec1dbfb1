"""The order of every report: what failed first, then what is in doubt, then what improved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.model.result import Outcome, Verdict

FAULTS = (Outcome.REGRESSED, Outcome.BROKEN)
"""What fails a test under all settings."""
DOUBTS = (Outcome.UNFIT, Outcome.NO_BASELINE, Outcome.INCONCLUSIVE)
"""What fails a test, or does not, as the settings say: somebody has to look at it."""
WORST_FIRST = (
    *FAULTS,
    *DOUBTS,
    Outcome.IMPROVED,
    Outcome.KERNELS_CHANGED,
    Outcome.UNCHANGED,
    Outcome.HOLDS,
    Outcome.UNSUPPORTED,
    Outcome.REPORTED,
)
"""All outcomes, the worst first."""
_CALM = (Outcome.UNCHANGED, Outcome.REPORTED, Outcome.UNSUPPORTED)
_SIZED = WORST_FIRST[: WORST_FIRST.index(Outcome.UNCHANGED)]
"""Outcomes of which the larger change comes first."""

Judgement = tuple[Sequence[Measurement], Sequence[Verdict]]
"""A measurement, an entry per process, and what the judge said of it."""


def rank(outcome: Outcome | None) -> int:
    """Where `outcome` stands in the order, from 0 on; what was not judged comes last."""
    return len(WORST_FIRST) if outcome is None else WORST_FIRST.index(outcome)


def worst(outcomes: Iterable[Outcome]) -> Outcome | None:
    """The worst of these outcomes; None where there is none."""
    return min(outcomes, key=rank, default=None)


def worst_first(judged: Sequence[Judgement]) -> list[Judgement]:
    """What failed, then what improved, each by how much; then the rest, in the order it came."""
    return sorted(judged, key=lambda entry: _key(entry[1]))


def calm(judgement: Judgement) -> bool:
    """Whether there is nothing to be said of it but that it is unchanged."""
    measurements, verdicts = judgement
    outcomes = {verdict.outcome for verdict in verdicts}
    if any(measurement.window for measurement in measurements):
        return False
    return Outcome.UNCHANGED in outcomes and outcomes <= set(_CALM)


def _key(verdicts: Sequence[Verdict]) -> tuple[int, float]:
    found = worst(verdict.outcome for verdict in verdicts)
    if found not in _SIZED:
        return len(_SIZED), 0.0
    return rank(found), -max(_size(verdict) for verdict in verdicts if verdict.outcome is found)


def _size(verdict: Verdict) -> float:
    """How large the change is, as a part of what was: a point of a percentage counts as 1 %."""
    change = abs(verdict.change or 0.0)
    return change / 100 if verdict.points else change
