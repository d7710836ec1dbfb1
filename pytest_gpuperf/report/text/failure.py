"""The message of a failing test. Its first sentence says how much slower, where, and why."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pytest_gpuperf.baselines.judgement import NOT_AGAIN, OTHER_ALGORITHM, Unjudged, unread
from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import printable
from pytest_gpuperf.judge.stopping import LEAST_TO_ALARM
from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.model.metric import MetricClass
from pytest_gpuperf.model.result import (
    FAULTS,
    WORST_FIRST,
    CauseKind,
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
_REMEDIES = {
    Unjudged.NO_BASELINE: "Make a baseline on this device:",
    Unjudged.OTHER_WORKLOAD: "Run the baseline's workload, or make a baseline of this one:",
    Unjudged.OTHER_COLLECTOR: "Use the baseline's --gpuperf-collector, or make a baseline:",
    Unjudged.OTHER_METRICS: "Measure the baseline's metrics, or make a baseline of these:",
}
"""The next action if no baseline applies."""


def failure(
    result: Result,
    failing: Sequence[Verdict | Expectation],
    context: CommandContext,
    width: int = table.WIDTH,
) -> str:
    """The message of a failed test: a sentence, changed software versions, the failing rows, the
    lines of code and kernels, and the next command.

    A short summary shows only the sentence, under the test's name. `failing` are the verdicts that
    fail the test; `context` is the start of the commands that make or accept a baseline. Lines have
    at most `width` characters, except commands.
    """
    worst = _decisive({entry.outcome for entry in failing})
    verdicts = [entry for entry in failing if isinstance(entry, Verdict)]
    parts = [f"gpuperf: {sentence(result, failing)}"]
    versions, notes = _versions(result)
    parts += [versions] if versions.removeprefix(kernel_lines.VERSIONS) not in parts[0] else []
    if result.first.configuration not in result.test:
        parts.append(f"configuration: {printable(result.first.configuration)}")
    if rows := [v for v in verdicts if v.outcome in (Outcome.REGRESSED, Outcome.INCONCLUSIVE)]:
        parts += [line.text for line in table.verdict_lines(rows, width)]
        parts += _intervals(rows)
    lead = view.worst([entry for entry in failing if entry.outcome is worst])
    for entry in failing:
        if isinstance(entry, Expectation):
            parts += expectation_lines.failing(entry, told=entry is lead)
    details = [*(verdict.detail for verdict in verdicts), *notes]
    parts += dict.fromkeys(f"  {said}" for said in details if said and said not in parts[0])
    if worst is Outcome.REGRESSED:
        parts += _phases(result.verdicts, verdicts)
    if result.attribution:
        parts += kernel_lines.lines(result.attribution, width, told=True)
    if worst in (Outcome.REGRESSED, Outcome.NO_BASELINE):
        parts += next_command.lines([result], context.of(result.test), width)
    if worst is Outcome.INCONCLUSIVE:
        parts.append(_undecided(failing))
    if worst is Outcome.UNSUPPORTED:
        parts.append(view.REMEDIES[Unjudged.NOT_COLLECTED])
    return "\n".join(line for part in parts for line in table.within(part, width))


def sentence(
    result: Result, failing: Sequence[Verdict | Expectation], *, where: bool = True
) -> str:
    """How much slower a test is, on which device, and why; or another reason for its failure.

    "step_time x4.61 on NVIDIA H200 (sm90): model.py:3 Net.attend runs in float32; was tf32".
    Without `where`, the device is left out.
    """
    outcome = _decisive({entry.outcome for entry in failing})
    those = [entry for entry in failing if entry.outcome is outcome]
    metrics = ", ".join(dict.fromkeys(entry.metric for entry in those))
    details = "; ".join(dict.fromkeys(entry.detail for entry in those if entry.detail))
    worst = view.worst(those)
    if outcome is Outcome.NO_BASELINE:
        said, why = "no baseline", details
    elif outcome is Outcome.UNSUPPORTED:
        said, why = f"cannot read {metrics}", details
    elif isinstance(worst, Expectation):
        said, why = expectation_lines.against(worst)
    else:
        said = f"{worst.metric} {units.change(worst)}"
        said += f" (and {units.counted(len(those) - 1, 'more metric')})" if len(those) > 1 else ""
        why = _blamed(result) if outcome is Outcome.REGRESSED else ""
    said += " is inconclusive" if outcome is Outcome.INCONCLUSIVE else ""
    on = f" on {result.first.fingerprint.device}" if where else ""
    named = f"{result.name}: " if result.name != STEP else ""
    return printable(f"{named}{said}{on}{why and f': {why}'}")


def cause(result: Result) -> str:
    """What a failed test shares with others of one cause; "" if there is none.

    It is a changed software version, which is suspected before any line of code; else the line; or
    the missing baseline.
    """
    if result.outcome is Outcome.NO_BASELINE:
        return sentence(result, [e for e in result.said if e.outcome is result.outcome])
    if result.outcome is not Outcome.REGRESSED:
        return ""
    found = result.attribution.cause if result.attribution else None
    return _versions(result)[0] or (found.line if found else "")


def again(
    result: Result, failing: Sequence[Verdict | Expectation], first: str, width: int
) -> list[str]:
    """Two lines instead of the message of a test, if another test has told the same cause."""
    said = f"gpuperf: {sentence(result, failing, where=False)}"
    said = said if len(said) <= width else f"{said[: max(width - 3, 0)]}..."
    return [said, table.shortened(f"same cause as {first} above", width)]


def _blamed(result: Result) -> str:
    """The cause of a slower step in a sentence, without the time; "" if unknown.

    If the line only reflects a library's new version, the library comes first. A note that no
    kernel stands out belongs to the kernels.
    """
    found = result.attribution
    if not found or (found.cause and found.cause.kind is CauseKind.UNKNOWN and found.before):
        return ""
    said = kernel_lines.blamed(found)
    library = f"{_versions(result)[0].removeprefix(kernel_lines.VERSIONS)}, "
    return library + said if said.startswith(kernel_lines.CALLED) else said


def _versions(result: Result) -> tuple[str, list[str]]:
    """The software whose version differs from the baseline's, or ""; and all other notes."""
    noted = [note for note in result.notes if note.startswith(kernel_lines.VERSIONS)]
    said = kernel_lines.versions(result.attribution) if result.attribution else ""
    return said or "".join(noted[:1]), [note for note in result.notes if note not in noted]


def _decisive(outcomes: Collection[Outcome]) -> Outcome:
    """The outcome of the message; missing counters come before other doubts."""
    worst = min(outcomes, key=WORST_FIRST.index)
    lacking = Outcome.UNSUPPORTED in outcomes and worst not in FAULTS
    return Outcome.UNSUPPORTED if lacking else worst


def _intervals(failing: Sequence[Verdict]) -> list[str]:
    """The confidence of the changes of times, and the number of processes behind it."""
    known, metrics = [], catalogue().metrics
    for v in failing:
        exact = metrics[v.metric].metric_class is MetricClass.DETERMINISTIC
        if v.low is not None and v.high is not None and v.low != v.high and not exact:
            low, high = units.interval(v.low, v.high, points=v.points)
            known.append(f"{v.metric} {low} to {high}")
    processes = units.counted(max(v.processes for v in failing), "process")
    return [f"  99.5 % interval, {processes}: {', '.join(known)}"] if known else []


def _undecided(failing: Sequence[Verdict | Expectation]) -> str:
    """The next action after an inconclusive verdict."""
    if any(v.reason == NOT_AGAIN for v in failing):
        return (
            "A fresh process had to confirm this change, but failed, as shown above. Correct that "
            "failure and run the test again. --gpuperf-inconclusive warn does not help here"
        )
    if all(v.reason == "too-few-processes" for v in failing if v.outcome is Outcome.INCONCLUSIVE):
        return (
            f"One process in fifty is slow by chance: a verdict needs {LEAST_TO_ALARM} processes. "
            "Pass a larger --gpuperf-processes, or type gpuperf record --processes 3 -- ..."
        )
    if any(v.reason == OTHER_ALGORITHM for v in failing):
        return (
            "Fix the choice of kernels (torch.backends.cudnn.benchmark = False, or one "
            "configuration of a Triton kernel), or record a baseline with more processes"
        )
    return (
        "The noise hides whether the change is within tolerance. Measure again, or let the test "
        "pass with --gpuperf-inconclusive warn"
    )


def _phases(verdicts: Sequence[Verdict], failing: Sequence[Verdict]) -> list[str]:
    """The phases of the step in which the first regressed metric changed most.

    Phases with a small part of the change are left out: short ones are noisy.
    """
    metric = next((v.metric for v in failing if v.outcome is Outcome.REGRESSED), None)
    changes = {
        v: v.measured - v.baseline
        for v in verdicts
        if (v.metric == metric and v.phase != STEP)
        and (v.baseline is not None and v.measured is not None)
    }
    least = _LEAST_PART * max(map(abs, changes.values()), default=0.0)
    shown = [verdict for verdict, change in changes.items() if abs(change) >= least]
    pairs = zip(shown, units.changes(shown), strict=True)
    said = ", ".join(f"{verdict.phase} {change}" for verdict, change in pairs)
    return [f"  {metric} by phase: {said}"] if said else []


def machine(result: Result) -> str:
    """The metrics left to the machine, their changes, and the canary's readings."""
    left = [verdict for verdict in result.verdicts if verdict.outcome is Outcome.MACHINE]
    changes = ", ".join(f"{v.metric} {units.change(v)}" for v in left)
    return f"not compared, as the machine changed: {changes}; {left[0].detail}"


def unjudged(result: Result, lack: Unjudged, context: CommandContext) -> str:
    """Why a test fails under --gpuperf-require-judged: the reasons, and the remedy."""
    said = f"{view.standing(result, Outcome.UNFIT)}: {view.WORDS[lack]}"
    parts = [f"gpuperf: {said}. --gpuperf-require-judged fails such tests"]
    outcomes = (Outcome.UNFIT, Outcome.MACHINE, Outcome.NO_BASELINE)
    those = [v for v in result.verdicts if v.outcome in outcomes or v in unread(result)]
    for detail, metrics in view.gathered((v.detail, v.metric) for v in those).items():
        of = f"{', '.join(metrics)}: " if lack is Unjudged.NOT_COLLECTED else ""
        parts.append(f"  {of}{detail}")
    parts += [f"  {note}" for note in result.notes]
    if lack not in _REMEDIES:
        return "\n".join([*parts, view.REMEDIES[lack]])
    commands = [context.accept("first baseline")] if context.replayed else context.record()
    return "\n".join([*parts, _REMEDIES[lack], *(f"  {command}" for command in commands)])
