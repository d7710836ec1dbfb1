"""How many measurements were judged and what the others lack: a line, and a test's failure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pytest_gpuperf.baselines.coverage import Lack, lacking, unread
from pytest_gpuperf.catalogue import units
from pytest_gpuperf.model.result import Outcome, Result
from pytest_gpuperf.report.text import failure
from pytest_gpuperf.report.text.next_command import CommandContext
from pytest_gpuperf.report.text.progress import counted

_WORDS = {
    Lack.UNFIT: "unfit",
    Lack.MACHINE: "on a machine that is not what it was",
    Lack.NO_BASELINE: "without a baseline",
    Lack.OTHER_WORKLOAD: "with a baseline of another workload",
    Lack.OTHER_COLLECTOR: "with a baseline of another collector",
    Lack.OTHER_METRICS: "with a baseline of other metrics",
    Lack.NOT_COLLECTED: "whose gated metrics were not collected",
    Lack.NOT_GATED: "without a gated metric",
    Lack.NOT_ASKED: "compared with nothing",
}
_MISSING = (Lack.NO_BASELINE, Lack.OTHER_WORKLOAD, Lack.OTHER_COLLECTOR, Lack.OTHER_METRICS)
"""For want of a baseline that applies."""
_BY_OUTCOME = {Lack.UNFIT: Outcome.UNFIT, Lack.MACHINE: Outcome.MACHINE}
_ANOTHER = "Use a collector that counts a metric that is gated: `gpuperf metrics` marks them"
_REMEDIES = {
    Lack.UNFIT: "Measure again when the GPU is cool and nothing else uses it (`gpuperf doctor` "
    "says who does; pytest-xdist: -n1)",
    Lack.MACHINE: "Measure again when the canary is back, or accept a run of this machine beside "
    "the others",
    Lack.NOT_COLLECTED: "`gpuperf doctor` says what is missing and what to do about it",
    Lack.NOT_GATED: _ANOTHER,
    Lack.NOT_ASKED: _ANOTHER,
}
"""Of what is not for want of a baseline."""


def line(results: Iterable[Result], why: str = "") -> str:
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
    for lack in Lack:
        those = [result for result, its in every if its is lack]
        if those:
            reason = why if lack is Lack.NOT_ASKED else ", ".join(_disturbances(those))
            parts.append(f"{len(those)} {_WORDS[lack]}" + (f" ({reason})" if reason else ""))
    of = counted(len(every), "measurement")
    return f"judged: {judged or 'none'} of {of}; {', '.join(parts)}"


def none_judged(in_vain: Sequence[tuple[Result, Lack]]) -> str:
    """Why a session fails of which nothing was judged, by what it lacks, and what to do."""
    every: dict[Lack, list[Result]] = {}
    for result, lack in in_vain:
        every.setdefault(lack, []).append(result)
    why = [_in_vain(lack, every[lack]) for lack in Lack if lack in every]
    remedies = dict.fromkeys(_REMEDIES[lack] for lack in Lack if lack in every)
    return (
        f"nothing was judged, which fails the session: {', '.join(why)}, and no other has a "
        f"verdict. {'. '.join(remedies)}"
    )


def _in_vain(lack: Lack, results: Sequence[Result]) -> str:
    what = counted(len(results), "measurement")
    if lack is Lack.UNFIT:
        return f"the GPU was {' and '.join(_disturbances(results))} in {what}"
    if lack is Lack.NOT_COLLECTED:
        return f"no gated metric could be read in {what}"
    return f"{what} {_WORDS[lack]}"


def machine(result: Result) -> str:
    """Which metrics are left to the machine, by how much, and what the canary read."""
    left = [verdict for verdict in result.verdicts if verdict.outcome is Outcome.MACHINE]
    changes = ", ".join(f"{v.metric} {units.change(v)}" for v in left)
    return f"machine or code? {changes}; {left[0].detail}"


def unjudged(result: Result, lack: Lack, context: CommandContext) -> str:
    """Why a test fails under --gpuperf-require-judged: what it lacks, and the remedy."""
    parts = [f"gpuperf: {failure.headline(result, Outcome.UNFIT)}, which is required"]
    if result.first.configuration:
        parts.append(f"configuration: {result.first.configuration}")
    parts += [f"  {reason}" for reason in _reasons(result, lack)]
    parts += [f"  {note}" for note in result.notes]
    return "\n".join([*parts, *_remedy(lack, context)])


def _reasons(result: Result, lack: Lack) -> Iterator[str]:
    """What the judge says of it, each thing once."""
    if lack is Lack.NOT_COLLECTED:
        by_reason: dict[str, list[str]] = {}
        for verdict in unread(result):
            by_reason.setdefault(verdict.detail, []).append(verdict.metric)
        yield from (f"{', '.join(metrics)}: {reason}" for reason, metrics in by_reason.items())
    elif lack in _BY_OUTCOME or lack in _MISSING:
        outcome = _BY_OUTCOME.get(lack, Outcome.NO_BASELINE)
        said = dict.fromkeys(v.detail for v in result.verdicts if v.outcome is outcome)
        yield from (f"the device was {one}" if lack is Lack.UNFIT else one for one in said)
    else:
        collector = result.first.fingerprint.settings.get("collector", "what measured it")
        yield f"{collector} counted no metric that may fail a test"


def _remedy(lack: Lack, context: CommandContext) -> list[str]:
    if lack not in _MISSING:
        return [_REMEDIES[lack]]
    first = {
        Lack.OTHER_WORKLOAD: "Run the workload of the baseline, or make one of this workload:",
        Lack.OTHER_COLLECTOR: "Measure by --gpuperf-collector as the baseline was, or make one:",
        Lack.OTHER_METRICS: "Measure the metrics of the baseline, or make one of these:",
    }.get(lack, "Make a baseline on this device:")
    commands = [context.accept("first baseline")] if context.replayed else context.record()
    return [first, *(f"  {command}" for command in commands)]


def _disturbances(results: Iterable[Result]) -> list[str]:
    """What made the device unfit, each in a word: throttled, shared."""
    details = [
        verdict.detail
        for result in results
        for verdict in result.verdicts
        if verdict.outcome is Outcome.UNFIT
    ]
    complaints = (part.split() for detail in details for part in detail.split("; "))
    return list(dict.fromkeys(words[0] for words in complaints if words))
