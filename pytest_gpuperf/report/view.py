"""What every report says of a run's measurements, in one set of words.

Text, Markdown, HTML and the annotations of GitHub Actions only write it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pytest_gpuperf.baselines.judgement import Unjudged, lacking
from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.units import counted
from pytest_gpuperf.errors import printable
from pytest_gpuperf.judge.verdict import NO_WORK, NOT_COMPILED
from pytest_gpuperf.measure.device import guard
from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.model.result import (
    DOUBTS,
    FAULTS,
    WORST_FIRST,
    Expectation,
    Outcome,
    Result,
    Run,
    Verdict,
)
from pytest_gpuperf.report.text import expectation_lines

SAYS = {
    Outcome.REGRESSED: "regressed",
    Outcome.BROKEN: "is beyond a limit",
    Outcome.UNFIT: "was not judged",
    Outcome.MACHINE: "was not judged",
    Outcome.UNSUPPORTED: "could not read the counters it needs",
    Outcome.NO_BASELINE: "has no baseline",
    Outcome.INCONCLUSIVE: "is inconclusive",
    Outcome.IMPROVED: "improved",
}
_WORDS = {
    Unjudged.UNFIT: "unfit",
    Unjudged.MACHINE: "on a machine that is not what it was",
    Unjudged.NO_BASELINE: "without a baseline",
    Unjudged.OTHER_WORKLOAD: "with a baseline of another workload",
    Unjudged.OTHER_COLLECTOR: "with a baseline of another collector",
    Unjudged.OTHER_METRICS: "with a baseline of other metrics",
    Unjudged.NOT_COLLECTED: "whose gated metrics were not collected",
    Unjudged.NOT_GATED: "without a gated metric",
    Unjudged.TOLERATED: "of which any change is tolerated",
    Unjudged.TOO_NOISY: "too noisy to be judged",
    Unjudged.NOT_ASKED: "compared with nothing",
}
_TOLD = (*FAULTS, *DOUBTS, Outcome.IMPROVED)
"""Outcomes that are named before the tables."""
TIMES = ("step_time", "wall_time", "duration")
"""The time of a step, the best first."""
_ANOTHER = "Use a collector that counts a metric that is gated: `gpuperf metrics` marks them"
REMEDIES = {
    Unjudged.UNFIT: "Measure again when the GPU is cool and nothing else uses it (`gpuperf doctor` "
    "says who does)",
    Unjudged.MACHINE: "Measure again when the canary is back, or accept a run of this machine "
    "beside the others",
    Unjudged.NOT_COLLECTED: "`gpuperf doctor` says what is missing and what to do about it",
    Unjudged.NOT_GATED: _ANOTHER,
    Unjudged.TOLERATED: 'Give a gated metric of it another tolerance than "any"',
    Unjudged.TOO_NOISY: "Measure a longer step, accept a run of more processes beside the others, "
    "or write a tolerance that its noise allows",
    Unjudged.NOT_ASKED: _ANOTHER,
}
"""Of what is not for want of a baseline."""


def cost(result: Result) -> float | None:
    """How much longer a step takes than the baseline's, in ns; None where that is unknown."""
    step = {verdict.metric: verdict for verdict in result.verdicts if verdict.phase == STEP}
    time = next((step[name] for name in TIMES if name in step), None)
    if time is None or time.baseline is None or time.measured is None:
        return None
    return (time.measured - time.baseline) * (1 if time.unit == "ns" else 1e6)


def worst_first(results: Iterable[Result]) -> list[Result]:
    """What failed, what is in doubt and what improved; then the rest, as it came.

    Of one outcome what costs most time comes first; without a time, what changed most. What was not
    judged comes last.
    """
    return sorted(results, key=_urgency)


def _urgency(result: Result) -> tuple[int, float, float]:
    said = result.said
    rank = WORST_FIRST.index(said[0].outcome) if said else len(WORST_FIRST)
    if rank >= WORST_FIRST.index(Outcome.UNCHANGED):
        return rank, 0.0, 0.0
    sizes = (
        # A point of a percentage counts as 1 %.
        abs(entry.change or 0.0) / (100 if entry.points else 1)
        for entry in said
        if isinstance(entry, Verdict) and entry.outcome is said[0].outcome
    )
    return rank, -(cost(result) or 0.0), -max(sizes, default=0.0)


def standing(result: Result, outcome: Outcome | None = None) -> str:
    """How it stands in one line: "test_step[tf32] regressed on NVIDIA H200 (sm90)".

    `outcome` is what it says; by default the worst of all.
    """
    says = SAYS.get(outcome or result.outcome or Outcome.REPORTED, "passed")
    if not result.measurements:
        return printable(f"{result.title} {says}")
    device = result.first.fingerprint.device
    return printable(f"{result.title} {says} on {device.name} ({device.arch})")


def moves(verdicts: Sequence[Verdict]) -> list[str]:
    """Their changes, as "cycles x4.83" and "step_time x4.63"; of those that are known."""
    known = [v for v in verdicts if v.change is not None or v.baseline == 0]
    return [f"{v.metric} {c}" for v, c in zip(known, units.changes(known), strict=True)]


def headline(run: Run) -> str:
    """How the run went in one line: "1 regressed, 2 unchanged, 3 incomplete"."""
    ended = f"{run.unfinished}; " if run.unfinished else ""
    incomplete = f", {len(run.skipped)} incomplete" if run.skipped else ""
    return f"{ended}{tally(run.results()) or 'nothing was measured'}{incomplete}"


def tally(results: Sequence[Result]) -> str:
    """How many stand how, the worst first: "1 regressed, 2 unchanged"."""
    outcomes = [result.outcome for result in results]
    parts = [f"{outcomes.count(o)} {o.value}" for o in WORST_FIRST if o in outcomes]
    parts += [f"{outcomes.count(None)} not judged"] if None in outcomes else []
    return ", ".join(parts)


def reasons(result: Result) -> list[str]:
    """What of it is not as one would have it, the worst first, each thing once.

    What is something else than the measurement as a whole says so itself.
    """
    told = [entry for entry in result.said if entry.outcome in _TOLD]
    return list(dict.fromkeys(_reason(entry, result.outcome) for entry in told))


def _reason(entry: Verdict | Expectation, of_all: Outcome | None) -> str:
    if isinstance(entry, Expectation):
        return expectation_lines.line(entry)
    if entry.detail and (entry.change is None or entry.reason in (NO_WORK, NOT_COMPILED)):
        return entry.detail
    is_other = entry.outcome is not of_all and entry.change is not None
    text = f"{entry.outcome.value}: " if is_other else ""
    text += f"{entry.metric} {units.change(entry)}"
    known = [units.value(value, entry.unit) for value in (entry.baseline, entry.measured)]
    text += f" ({' -> '.join(known)}"
    if entry.tolerance is not None:
        text += f", tolerance {units.tolerance(entry)}"
    if entry.outcome is Outcome.INCONCLUSIVE and entry.low is not None and entry.high is not None:
        low, high = units.interval(entry.low, entry.high, points=entry.points)
        text += f", somewhere between {low} and {high}"
    return text + ")"


def complaints(result: Result) -> Iterator[str]:
    """What each process found wrong with the device, as "the device was throttled ..."."""
    for measurement in result.measurements:
        conditions = measurement.fingerprint.conditions
        for complaint in guard.complaints(conditions) if conditions else ():
            yield f"the device was {complaint}"


def unsupported(verdicts: Iterable[Verdict]) -> Iterator[str]:
    """Which metrics could not be measured: one machine has one reason for all of its tests."""
    by_reason: dict[str, dict[str, None]] = {}
    for verdict in verdicts:
        if verdict.outcome is Outcome.UNSUPPORTED:
            by_reason.setdefault(verdict.detail, {})[verdict.metric] = None
    for reason, metrics in by_reason.items():
        yield f"unsupported: {', '.join(metrics)}: {reason}"


def coverage(results: Iterable[Result], why: str = "") -> str:
    """How many of how many measurements were judged, and what the others lack.

    "judged: 34 of 36 measurements; 1 unfit (throttled), 1 without a baseline". `why` says for what
    reason nothing was to be judged, where that is known. "" without a measurement.
    """
    every = lacking(results)
    if not every:
        return ""
    judged = sum(lack is None for _, lack in every)
    if judged == len(every):
        return f"judged: all {judged} measurements" if judged > 1 else "judged: the one measurement"
    parts = []
    for lack in Unjudged:
        those = [result for result, its in every if its is lack]
        if those:
            reason = why if lack is Unjudged.NOT_ASKED else ", ".join(disturbances(those))
            parts.append(f"{len(those)} {_WORDS[lack]}" + (f" ({reason})" if reason else ""))
    of = counted(len(every), "measurement")
    return f"judged: {judged or 'none'} of {of}; {', '.join(parts)}"


def none_judged(in_vain: Sequence[tuple[Result, Unjudged]]) -> str:
    """Why a session fails of which nothing was judged, by what it lacks, and what to do."""
    every: dict[Unjudged, list[Result]] = {}
    for result, lack in in_vain:
        every.setdefault(lack, []).append(result)
    why = [_in_vain(lack, every[lack]) for lack in Unjudged if lack in every]
    remedies = dict.fromkeys(REMEDIES[lack] for lack in Unjudged if lack in every)
    return (
        f"nothing was judged, which fails the session: {', '.join(why)}, and no other has a "
        f"verdict. {'. '.join(remedies)}"
    )


def _in_vain(lack: Unjudged, results: Sequence[Result]) -> str:
    what = counted(len(results), "measurement")
    if lack is Unjudged.UNFIT:
        return f"the GPU was {' and '.join(disturbances(results))} in {what}"
    if lack is Unjudged.NOT_COLLECTED:
        return f"no gated metric could be read in {what}"
    return f"{what} {_WORDS[lack]}"


def disturbances(results: Iterable[Result]) -> list[str]:
    """What made the device unfit, each in a word: throttled, shared."""
    details = [
        verdict.detail
        for result in results
        for verdict in result.verdicts
        if verdict.outcome is Outcome.UNFIT
    ]
    complaints = (part.split() for detail in details for part in detail.split("; "))
    return list(dict.fromkeys(words[0] for words in complaints if words))
