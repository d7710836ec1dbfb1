"""The order in which measurements are reported: what failed first, then what improved."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.model import Measurement, Outcome, Verdict

_RANKS = (
    Outcome.REGRESSED,
    Outcome.NO_BASELINE,
    Outcome.INCONCLUSIVE,
    Outcome.UNFIT,
    Outcome.IMPROVED,
    Outcome.KERNELS_CHANGED,
)
_CALM = (Outcome.UNCHANGED, Outcome.REPORTED, Outcome.UNSUPPORTED)

Judgement = tuple[Sequence[Measurement], Sequence[Verdict]]
"""A measurement, an entry per process, and what the judge said of it."""


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
    for rank, outcome in enumerate(_RANKS):
        concerned = [verdict for verdict in verdicts if verdict.outcome is outcome]
        if concerned:
            return rank, -max(map(_size, concerned))
    return len(_RANKS), 0.0


def _size(verdict: Verdict) -> float:
    """How large the change is, as a part of what was: a point of a percentage counts as 1 %."""
    change = abs(verdict.change or 0.0)
    return change / 100 if verdict.points else change
