"""The words that all reports use for a run's measurements.

Text, Markdown, HTML and the annotations of GitHub Actions only format them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pytest_gpuperf.baselines.judgement import Unjudged, lacking
from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.catalogue.units import counted
from pytest_gpuperf.errors import printable
from pytest_gpuperf.judge.verdict import NO_WORK, NOT_COMPILED
from pytest_gpuperf.measure.device import guard
from pytest_gpuperf.model.measurement import ELSEWHERE, STEP
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
from pytest_gpuperf.report.text import expectation_lines, step_tables

SAYS = {
    Outcome.REGRESSED: "regressed",
    Outcome.BROKEN: "is outside a limit",
    Outcome.UNFIT: "was not compared",
    Outcome.MACHINE: "was not compared",
    Outcome.UNSUPPORTED: "could not read the counters it needs",
    Outcome.NO_BASELINE: "has no baseline",
    Outcome.INCONCLUSIVE: "is inconclusive",
    Outcome.IMPROVED: "improved",
}
WORDS = {
    Unjudged.UNFIT: "GPU disturbed",
    Unjudged.MACHINE: "machine changed",
    Unjudged.NO_BASELINE: "no baseline",
    Unjudged.OTHER_WORKLOAD: "workload differs",
    Unjudged.OTHER_COLLECTOR: "collector differs",
    Unjudged.OTHER_METRICS: "metrics differ",
    Unjudged.NOT_COLLECTED: "counters unreadable",
    Unjudged.NOT_GATED: "no gated metric",
    Unjudged.TOLERATED: 'tolerance "any"',
    Unjudged.TOO_NOISY: "too noisy",
    Unjudged.NOT_ASKED: "not requested",
}
"""Why a measurement was not compared, in as few words as a table has room for."""
_TOLD = (*FAULTS, *DOUBTS, Outcome.IMPROVED)
"""Outcomes that are named before the tables."""
TIMES = ("step_time", "wall_time", "duration")
"""The time of a step, the best first."""
MAIN = ("step_time", "cycles", "flops", "operators")
"""The metric of a test's row if nothing changed: the first two on a GPU, the others on a CPU."""
_MOVED = (*FAULTS, Outcome.MACHINE, Outcome.INCONCLUSIVE, Outcome.IMPROVED)
"""Outcomes of what may have got worse or better."""
_ANOTHER = "Use a collector with a gated metric, which can fail a test: see `gpuperf metrics`"
REMEDIES = {
    Unjudged.UNFIT: "Measure again when the GPU is cool and idle. `gpuperf doctor` shows its state",
    Unjudged.MACHINE: "Measure again later, or accept runs of both machines: gpuperf "
    "update-baseline RUN RUN --reason TEXT",
    Unjudged.NOT_COLLECTED: "Type `gpuperf doctor` to see what is missing, and how to get it",
    Unjudged.NOT_GATED: _ANOTHER,
    Unjudged.TOLERATED: 'Set a tolerance other than "any" for a gated metric of this test',
    Unjudged.TOO_NOISY: "Measure a longer step, accept a run with more processes, or set a wider "
    "tolerance",
    Unjudged.NOT_ASKED: _ANOTHER,
}
"""The next action for each reason, except a missing baseline."""


def cost(result: Result) -> float | None:
    """The additional time of a step over the baseline's, in ns; None if unknown."""
    step = {verdict.metric: verdict for verdict in result.verdicts if verdict.phase == STEP}
    time = next((step[name] for name in TIMES if name in step), None)
    if time is None or time.baseline is None or time.measured is None:
        return None
    return (time.measured - time.baseline) * (1 if time.unit == "ns" else 1e6)


def worst_first(results: Iterable[Result]) -> list[Result]:
    """Failed results, results in doubt and improved results; then the rest in their order.

    Within an outcome, the largest cost in time comes first; without a time, the largest change.
    Results without a verdict come last.
    """
    return sorted(results, key=_urgency)


def _urgency(result: Result) -> tuple[int, float, float]:
    said = result.said
    rank = WORST_FIRST.index(said[0].outcome) if said else len(WORST_FIRST)
    if rank >= WORST_FIRST.index(Outcome.UNCHANGED):
        return rank, 0.0, 0.0
    sizes = (_size(entry) for entry in said if entry.outcome is said[0].outcome)
    return rank, -(cost(result) or 0.0), -max(sizes, default=0.0)


def measured(result: Result) -> list[Verdict]:
    """What was measured of the whole step, as verdicts that compare nothing."""
    units_of = {name: metric.unit for name, metric in catalogue().metrics.items()}
    about = (result.test, result.name, STEP)
    return [
        Verdict(*about, metric, units_of[metric], Outcome.REPORTED, "", measured=value)
        for metric, value in step_tables.step_values([result.first]).items()
    ]


def main(result: Result) -> Verdict | Expectation | None:
    """The entry that represents a result in one line; None if nothing was said.

    Among the entries of the worst outcome it is the time, else the largest change. If nothing got
    worse or better, it is the time on a GPU, or cycles without a judged time. On a CPU it is then
    the floating-point operations if any, else the operators. The last choice is the first judged
    entry.
    """
    said = [entry for entry in result.said if entry.outcome is result.outcome]
    if result.outcome not in _MOVED:
        known = [e for e in said if e.metric in MAIN and e.measured]
        return min(known, key=_place, default=next(iter(said), None))
    return worst(said) if said else None


def shown(result: Result) -> Verdict | Expectation | None:
    """The main entry of a result; without any, the step's main metric as measured."""
    return main(result) or min(measured(result), key=_place, default=None)


def _place(entry: Verdict | Expectation) -> int:
    return MAIN.index(entry.metric) if entry.metric in MAIN else len(MAIN)


def worst(entries: Sequence[Verdict | Expectation]) -> Verdict | Expectation:
    """The time, among entries of one outcome; else the largest change."""
    return min(entries, key=rank)


def rank(entry: Verdict | Expectation) -> tuple[int, bool, float]:
    """The sort key of entries, worst first: the outcome, then times, then the largest change."""
    return WORST_FIRST.index(entry.outcome), entry.metric not in TIMES, -_size(entry)


def _size(entry: Verdict | Expectation) -> float:
    """The size of the change; a point of a percentage counts as 1 %."""
    if isinstance(entry, Expectation):
        return 0.0
    return abs(entry.change or 0.0) / (100 if entry.points else 1)


def standing(result: Result, outcome: Outcome | None = None) -> str:
    """The state in one line: "test_step[tf32] regressed on NVIDIA H200 (sm90)".

    `outcome` is the outcome to show; by default the worst of all.
    """
    says = SAYS.get(outcome or result.outcome or Outcome.REPORTED, "passed")
    if not result.measurements:
        return printable(f"{result.title} {says}")
    return printable(f"{result.title} {says} on {result.first.fingerprint.device}")


def moves(verdicts: Sequence[Verdict]) -> list[str]:
    """The known changes, as "cycles x4.83" and "step_time x4.63"."""
    known = [v for v in verdicts if v.change is not None or v.baseline == 0]
    return [f"{v.metric} {c}" for v, c in zip(known, units.changes(known), strict=True)]


def headline(run: Run) -> str:
    """The state of a run in one line: "1 regressed, 2 unchanged, 3 incomplete"."""
    results = run.results()
    incomplete = f", {len(run.skipped)} incomplete" if run.skipped else ""
    said = f"{tally(results) or 'nothing was measured'}{incomplete}"
    return "; ".join(filter(None, [str(run.unfinished or ""), other_code(results), said]))


def other_code(results: Iterable[Result]) -> str:
    """The packages that tests measured, but not from the checkout; "" if there are none."""
    settings = (m.fingerprint.settings for result in results for m in result.measurements)
    said = dict.fromkeys(str(one[ELSEWHERE]) for one in settings if ELSEWHERE in one)
    return printable(f"the tests used {', '.join(said)}") if said else ""


def incomplete(run: Run) -> dict[str, list[str]]:
    """The tests that were skipped or failed, by the reason."""
    return gathered((reason, test) for test, reason in run.skipped.items())


def tally(results: Sequence[Result]) -> str:
    """The number of results by outcome, the worst first: "1 regressed, 2 unchanged"."""
    outcomes = [result.outcome for result in results]
    parts = [f"{outcomes.count(o)} {o.value}" for o in WORST_FIRST if o in outcomes]
    parts += [f"{outcomes.count(None)} not compared"] if None in outcomes else []
    return ", ".join(parts)


def reasons(result: Result) -> list[str]:
    """The reasons why a result failed or is in doubt, the worst first, without repetition.

    A reason that differs from the result's outcome names its own.
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
    """The problems of the device that each process found, as "the device was throttled ..."."""
    for measurement in result.measurements:
        conditions = measurement.fingerprint.conditions
        for complaint in guard.complaints(conditions) if conditions else ():
            yield f"the device was {complaint}"


def unsupported(verdicts: Iterable[Verdict]) -> Iterator[str]:
    """The metrics that could not be measured, by reason; the tests of one machine share it."""
    lacking = [v for v in verdicts if v.outcome is Outcome.UNSUPPORTED]
    for reason, metrics in gathered((v.detail, v.metric) for v in lacking).items():
        yield f"gpuperf cannot measure {', '.join(metrics)}: {reason}"


def gathered(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The second text of each pair by the first: all in their order, each once."""
    found: dict[str, dict[str, None]] = {}
    for key, text in pairs:
        found.setdefault(key, {})[text] = None
    return {key: [*texts] for key, texts in found.items()}


def totals(results: Sequence[Result], run: str = "", why: str = "") -> str:
    """The state of a session in one line: "1 regressed, 1 not compared (no baseline); run a.json".

    Zeros are left out. `run` is the run's file, or "". `why` is the reason, if known, why nothing
    was compared.
    """
    every = lacking(results)
    judged = [result for result, lack in every if lack is None]
    parts = [tally(judged)] if judged else []
    ratios = [result for result in results if not result.measurements]
    if broken := sum(ratio.outcome is Outcome.BROKEN for ratio in ratios):
        parts.append(f"{counted(broken, 'expectation')} not met")
    if left := _unjudged(every, why):
        reasons = ", ".join(left) if len(left) > 1 else left[0].partition(" ")[2]
        parts.append(f"{len(every) - len(judged)} not compared ({reasons})")
    elif len(every) > 1:
        parts.append(f"all {len(every)} compared")
    return ", ".join(parts) + (f"; run {run}" if run else "")


def _unjudged(every: Sequence[tuple[Result, Unjudged | None]], why: str) -> list[str]:
    """The number not compared by reason: "1 GPU disturbed: throttled", "2 no baseline"."""
    parts = []
    for lack in Unjudged:
        those = [result for result, its in every if its is lack]
        details = why if lack is Unjudged.NOT_ASKED else ", ".join(disturbances(those))
        parts += [f"{len(those)} {WORDS[lack]}{details and f': {details}'}"] if those else []
    return parts


def none_judged(in_vain: Sequence[tuple[Result, Unjudged]]) -> str:
    """The failure of a session in which nothing was judged: the reasons, and the next action."""
    remedies = dict.fromkeys(REMEDIES[lack] for _, lack in in_vain)
    reasons = ", ".join(_unjudged(in_vain, ""))
    return f"failed: no measurement was compared ({reasons}). {'. '.join(remedies)}"


def disturbances(results: Iterable[Result]) -> list[str]:
    """Why the device was unfit, each in a word: throttled, shared."""
    said = [v for result in results for v in result.verdicts if v.outcome is Outcome.UNFIT]
    complaints = (part.split() for verdict in said for part in verdict.detail.split("; "))
    return list(dict.fromkeys(words[0] for words in complaints if words))
