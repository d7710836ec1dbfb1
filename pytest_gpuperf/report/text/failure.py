"""The message of a failing test, how a result stands in one line, and how much was judged."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from pytest_gpuperf.baselines.judgement import NOT_AGAIN, OTHER_ALGORITHM, Unjudged, unread
from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.units import counted
from pytest_gpuperf.errors import printable
from pytest_gpuperf.judge.stopping import LEAST_TO_ALARM
from pytest_gpuperf.judge.verdict import TOLERATED, TOO_NOISY
from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.model.result import (
    FAULTS,
    WORST_FIRST,
    Expectation,
    Outcome,
    Result,
    Verdict,
)
from pytest_gpuperf.report import view
from pytest_gpuperf.report.text import expectation_lines, kernel_lines, next_command, table
from pytest_gpuperf.report.text.next_command import CommandContext

_LEAST_PART = 0.05
"""The part of the largest change of a phase below which another's is not said."""
_MISSING = (
    Unjudged.NO_BASELINE,
    Unjudged.OTHER_WORKLOAD,
    Unjudged.OTHER_COLLECTOR,
    Unjudged.OTHER_METRICS,
)
"""For want of a baseline that applies."""
_BY_OUTCOME = {Unjudged.UNFIT: Outcome.UNFIT, Unjudged.MACHINE: Outcome.MACHINE}


def failure(
    result: Result,
    failing: Sequence[Verdict | Expectation],
    context: CommandContext,
    width: int = table.WIDTH,
) -> str:
    """Why a test failed: configuration, device, the failing rows, and what to do next.

    The first line is all that a short summary shows, under the test's name: it has the changes.
    Kernels that changed come first below: they explain the rest. `failing` is what of the result
    fails the test; `context` what the commands depend on that make or accept a baseline. In lines
    of at most `width` characters, but for commands.
    """
    worst = _decisive({entry.outcome for entry in failing})
    verdicts = [entry for entry in failing if isinstance(entry, Verdict)]
    parts = [f"gpuperf: {_in_short(result, worst, failing)}"]
    if result.first.configuration:
        parts.append(f"configuration: {printable(result.first.configuration)}")
    rows = [v for v in result.verdicts if v.outcome is Outcome.KERNELS_CHANGED] + verdicts
    if any(v.baseline is not None or v.outcome is not Outcome.NO_BASELINE for v in rows):
        parts += table.lines(table.verdict_rows(rows), width)
        parts += _intervals(verdicts)
    for entry in failing:
        if isinstance(entry, Expectation):
            parts += expectation_lines.failing(entry)
    parts += dict.fromkeys(f"  {v.detail}" for v in rows if v.detail)
    parts += [f"  {note}" for note in result.notes]
    if worst is Outcome.REGRESSED:
        parts += _phases(result.verdicts, verdicts)
    if result.attribution:
        parts += kernel_lines.lines(result.attribution, width)
    if worst in (Outcome.REGRESSED, Outcome.NO_BASELINE):
        parts += next_command.lines([result], context.of(result.test), width)
    if worst is Outcome.INCONCLUSIVE:
        parts.append(_undecided(failing))
    if worst is Outcome.UNSUPPORTED:
        parts.append("`gpuperf doctor` says what is missing and what to do about it")
    return "\n".join(line for part in parts for line in table.within(part, width))


def _in_short(result: Result, worst: Outcome, failing: Sequence[Verdict | Expectation]) -> str:
    """Why it failed in a few words: "cycles +2.52 %: regressed on NVIDIA H200 (sm90)"."""
    says = view.SAYS[worst].removeprefix("is ").removeprefix("has ")
    those = [entry for entry in failing if entry.outcome is worst]
    changes = view.moves([entry for entry in those if isinstance(entry, Verdict)])
    limits = map(expectation_lines.in_short, (e for e in those if isinstance(e, Expectation)))
    named = result.name if result.name != STEP else ""
    said = [named, ", ".join(filter(None, [*changes, *limits])), says]
    device = result.first.fingerprint.device
    return printable(f"{': '.join(filter(None, said))} on {device.name} ({device.arch})")


def brief(result: Result, width: int) -> list[str]:
    """What is the worst of a result, in a line that is wrapped; nothing where all is well."""
    worst = result.outcome
    if worst not in view.SAYS:
        return []
    of = [e for e in result.said if isinstance(e, Verdict) and e.outcome is worst]
    changes = ", ".join(view.moves(of))
    return table.wrapped(
        [view.standing(result, worst) + (f": {changes}" if changes else "")], width, ""
    )


def _decisive(outcomes: Collection[Outcome]) -> Outcome:
    """What the message is about; that counters are missing comes before what else is in doubt."""
    worst = min(outcomes, key=WORST_FIRST.index)
    lacking = Outcome.UNSUPPORTED in outcomes and worst not in FAULTS
    return Outcome.UNSUPPORTED if lacking else worst


def _intervals(failing: Sequence[Verdict]) -> list[str]:
    """How sure the changes are: their intervals, and on how many processes they rest."""
    known = []
    for v in failing:
        if v.low is not None and v.high is not None:
            low, high = units.interval(v.low, v.high, points=v.points)
            known += [f"{v.metric} {low} to {high}"] if low != high else []
    processes = counted(max((v.processes for v in failing), default=1), "process")
    if known:
        return [f"  99.5 % interval, {processes}: {', '.join(known)}"]
    return [f"  the same in {processes}"] if any(v.low is not None for v in failing) else []


def _undecided(failing: Sequence[Verdict | Expectation]) -> str:
    """What to do about an inconclusive verdict."""
    if any(v.reason == NOT_AGAIN for v in failing):
        return (
            "A fresh process had to confirm it and could not, as said above: mend that, and run it "
            "again. --gpuperf-inconclusive warn is for noise, not for this"
        )
    if all(v.reason == "too-few-processes" for v in failing if v.outcome is Outcome.INCONCLUSIVE):
        return (
            f"One process in fifty is slow by itself: {LEAST_TO_ALARM} are needed for a verdict. "
            "Allow more by --gpuperf-processes, or record several: gpuperf record --processes 3"
        )
    if any(v.reason == OTHER_ALGORITHM for v in failing):
        return (
            "Fix the choice (torch.backends.cudnn.benchmark = False, one configuration of a Triton "
            "kernel), or record a baseline of more processes, which has each of them"
        )
    return (
        "The noise hides whether the change is within tolerance: measure again, or pass "
        "with a warning by --gpuperf-inconclusive warn"
    )


def _phases(verdicts: Sequence[Verdict], failing: Sequence[Verdict]) -> list[str]:
    """Which phases of the step the first regressed metric changed in.

    Not those whose part in it is small: short phases are noisy, and nobody asks about them.
    """
    metric = next((v.metric for v in failing if v.outcome is Outcome.REGRESSED), None)
    changes = {
        v: v.measured - v.baseline
        for v in verdicts
        if v.metric == metric
        and v.phase != STEP
        and v.baseline is not None
        and v.measured is not None
    }
    least = _LEAST_PART * max(map(abs, changes.values()), default=0.0)
    shown = [verdict for verdict, change in changes.items() if abs(change) >= least]
    pairs = zip(shown, units.changes(shown), strict=True)
    said = ", ".join(f"{verdict.phase} {change}" for verdict, change in pairs)
    return [f"  {metric} by phase: {said}"] if said else []


def machine(result: Result) -> str:
    """Which metrics are left to the machine, by how much, and what the canary read."""
    left = [verdict for verdict in result.verdicts if verdict.outcome is Outcome.MACHINE]
    changes = ", ".join(f"{v.metric} {units.change(v)}" for v in left)
    return f"machine or code? {changes}; {left[0].detail}"


def unjudged(result: Result, lack: Unjudged, context: CommandContext) -> str:
    """Why a test fails under --gpuperf-require-judged: what it lacks, and the remedy."""
    parts = [f"gpuperf: {view.standing(result, Outcome.UNFIT)}, which is required"]
    if result.first.configuration:
        parts.append(f"configuration: {result.first.configuration}")
    parts += [f"  {reason}" for reason in _reasons(result, lack)]
    parts += [f"  {note}" for note in result.notes]
    return "\n".join([*parts, *_remedy(lack, context)])


def _reasons(result: Result, lack: Unjudged) -> Iterator[str]:
    """What the judge says of it, each thing once."""
    if lack is Unjudged.NOT_COLLECTED:
        by_reason: dict[str, list[str]] = {}
        for verdict in unread(result):
            by_reason.setdefault(verdict.detail, []).append(verdict.metric)
        yield from (f"{', '.join(metrics)}: {reason}" for reason, metrics in by_reason.items())
    elif lack in _BY_OUTCOME or lack in _MISSING:
        outcome = _BY_OUTCOME.get(lack, Outcome.NO_BASELINE)
        said = dict.fromkeys(v.detail for v in result.verdicts if v.outcome is outcome)
        yield from (f"the device was {one}" if lack is Unjudged.UNFIT else one for one in said)
    elif lack is Unjudged.TOLERATED:
        metrics = [v.metric for v in result.verdicts if v.reason == TOLERATED]
        yield f"any change is tolerated of {', '.join(metrics)}"
    elif lack is Unjudged.TOO_NOISY:
        metrics = [v.metric for v in result.verdicts if v.reason == TOO_NOISY]
        yield f"noise allows no tolerance below 10 % of {', '.join(metrics)}"
    else:
        collector = result.first.fingerprint.settings.get("collector", "what measured it")
        yield f"{collector} counted no metric that may fail a test"


def _remedy(lack: Unjudged, context: CommandContext) -> list[str]:
    if lack not in _MISSING:
        return [view.REMEDIES[lack]]
    first = {
        Unjudged.OTHER_WORKLOAD: "Run the workload of the baseline, or make one of this workload:",
        Unjudged.OTHER_COLLECTOR: "Measure by --gpuperf-collector as the baseline was, or "
        "make one:",
        Unjudged.OTHER_METRICS: "Measure the metrics of the baseline, or make one of these:",
    }.get(lack, "Make a baseline on this device:")
    commands = [context.accept("first baseline")] if context.replayed else context.record()
    return [first, *(f"  {command}" for command in commands)]
