"""Which measurements have a verdict, what the others lack, and when a session may not be green.

A measurement is judged when at least one of its gated metrics is unchanged, improved, regressed or
inconclusive, and none is left to the machine, but for one that regressed beside it. Limits and
ratios are no verdicts: they say nothing of the baseline.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.model.result import Outcome, Result, Verdict

if TYPE_CHECKING:
    from pytest_gpuperf.model.settings import Settings


class Lack(str, Enum):
    """Why a measurement has no verdict; in the order in which a summary counts them."""

    UNFIT = "unfit"
    """The device was throttled or shared."""
    MACHINE = "machine"
    """It moved, and so did the canary."""
    NO_BASELINE = "no-baseline"
    """Neither the suite's file nor an entry of the test."""
    OTHER_WORKLOAD = "other-workload"
    """The baseline's entry is of another workload."""
    OTHER_COLLECTOR = "other-collector"
    """The baseline's entry was measured by another collector or replay."""
    OTHER_METRICS = "other-metrics"
    """None of its gated metrics is in the baseline."""
    NOT_COLLECTED = "not-collected"
    """None of the gated metrics could be read here."""
    NOT_GATED = "not-gated"
    """What measured it counts no metric that is gated."""
    NOT_ASKED = "not-asked"
    """It was compared with nothing: --gpuperf-no-judge, or a run that was only recorded."""


_JUDGED = (Outcome.UNCHANGED, Outcome.IMPROVED, Outcome.REGRESSED, Outcome.INCONCLUSIVE)
_IN_VAIN = (Lack.MACHINE, Lack.NOT_COLLECTED, Lack.NOT_GATED)
_BY_REASON = {
    "other-workload": Lack.OTHER_WORKLOAD,
    "other-collector": Lack.OTHER_COLLECTOR,
    "no-metric": Lack.OTHER_METRICS,
}
"""Of a missing baseline; the other reasons are that there is none."""


def lack(result: Result) -> Lack | None:
    """What keeps a measurement from being judged; None where it has a verdict."""
    if not result.verdicts:
        return Lack.NOT_ASKED
    by_outcome = {verdict.outcome: verdict for verdict in result.verdicts}
    if Outcome.MACHINE in by_outcome and Outcome.REGRESSED not in by_outcome:
        return Lack.MACHINE
    if any(verdict.outcome in _JUDGED for verdict in result.verdicts):
        return None
    if Outcome.UNFIT in by_outcome:
        return Lack.UNFIT
    if Outcome.NO_BASELINE in by_outcome:
        return _BY_REASON.get(by_outcome[Outcome.NO_BASELINE].reason, Lack.NO_BASELINE)
    return Lack.NOT_COLLECTED if unread(result) else Lack.NOT_GATED


def lacking(results: Iterable[Result]) -> list[tuple[Result, Lack | None]]:
    """Every measurement of these results once, and what it lacks.

    One that was made again, as its test was, is judged where any of its executions was; else it is
    the last of them that counts. Ratios between measurements are none.
    """
    last: dict[tuple[str, str], tuple[Result, Lack | None]] = {}
    for result in results:
        if result.measurements:
            key = (result.test, result.name)
            if key not in last or last[key][1] is not None:
                last[key] = result, lack(result)
    return list(last.values())


def unread(result: Result) -> list[Verdict]:
    """The verdicts that say of a gated metric that it could not be read."""
    metrics = catalogue().metrics
    return [
        verdict
        for verdict in result.verdicts
        if verdict.outcome is Outcome.UNSUPPORTED
        and verdict.metric in metrics
        and metrics[verdict.metric].gated
    ]


def none_judged(results: Iterable[Result], settings: Settings) -> list[tuple[Result, Lack]]:
    """What was measured in vain where nothing of the session was judged, and what it lacks.

    Such a session must not end as one in which all is well. Empty where it was not to judge, or
    where something was judged. What has no baseline is none of them: that is for
    --gpuperf-missing to fail, or to let pass, also where the device was unfit besides.
    """
    every = lacking(results) if settings.judge else []
    if any(lack is None for _, lack in every):
        return []
    return [
        (result, lack)
        for result, lack in every
        if lack in _IN_VAIN
        or (lack is Lack.UNFIT and (settings.missing == "fail" or _has_baseline(result)))
    ]


def _has_baseline(result: Result) -> bool:
    """Whether a measurement on an unfit device could have been compared: the numbers are kept."""
    return any(v.outcome is Outcome.UNFIT and v.baseline is not None for v in result.verdicts)
