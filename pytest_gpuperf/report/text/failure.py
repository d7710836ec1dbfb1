"""The message of a failing test, and how a result stands in one line."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pytest_gpuperf.baselines.judgement import NOT_AGAIN
from pytest_gpuperf.catalogue import units
from pytest_gpuperf.errors import printable
from pytest_gpuperf.judge.stopping import LEAST_TO_ALARM
from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.model.result import (
    FAULTS,
    WORST_FIRST,
    Expectation,
    Outcome,
    Result,
    Verdict,
)
from pytest_gpuperf.report.text import expectation_lines, kernel_lines, table
from pytest_gpuperf.report.text.next_command import CommandContext
from pytest_gpuperf.report.text.progress import counted

_LEAST_PART = 0.05
"""The part of the largest change of a phase below which another's is not said."""
_BRIEFLY = 5
"""Lines of kernels where the whole report follows later."""
_WIDTH = 96
"""The width of a message in a test's report, which pytest indents and JUnit keeps."""
_SAYS = {
    Outcome.REGRESSED: "regressed",
    Outcome.BROKEN: "is beyond a limit",
    Outcome.UNFIT: "was not judged",
    Outcome.MACHINE: "was not judged",
    Outcome.UNSUPPORTED: "could not read the counters it needs",
    Outcome.NO_BASELINE: "has no baseline",
    Outcome.INCONCLUSIVE: "is inconclusive",
    Outcome.IMPROVED: "improved",
}


def failure(
    result: Result, failing: Sequence[Verdict | Expectation], context: CommandContext
) -> str:
    """Why a test failed: configuration, device, the failing rows, and what to do next.

    Kernels that changed come first: they explain the rest. `failing` is what of the result fails
    the test; `context` what the commands depend on that make or accept a baseline.
    """
    worst = _decisive({entry.outcome for entry in failing})
    parts = [f"gpuperf: {headline(result, worst)}"]
    if result.first.configuration:
        parts.append(f"configuration: {printable(result.first.configuration)}")
    verdicts = [entry for entry in failing if isinstance(entry, Verdict)]
    rows = [v for v in result.verdicts if v.outcome is Outcome.KERNELS_CHANGED] + verdicts
    if rows:
        parts += table.lines([table.cells(verdict) for verdict in rows], _WIDTH)
        parts += _intervals(verdicts)
    for entry in failing:
        if isinstance(entry, Expectation):
            parts += expectation_lines.failing(entry)
    parts += dict.fromkeys(f"  {v.detail}" for v in rows if v.detail)
    parts += [f"  {note}" for note in result.notes]
    if worst is Outcome.REGRESSED:
        parts += _phases(result.verdicts, verdicts)
    if result.attribution:
        parts += kernel_lines.lines(result.attribution, _WIDTH)
    if worst is Outcome.REGRESSED:
        parts.append(f"If the change is intended: {context.accept()}")
    if worst is Outcome.NO_BASELINE:
        parts.append("Make a baseline on this device:")
        parts += ["  " + line for line in context.record([result.test])]
    if worst is Outcome.INCONCLUSIVE:
        parts.append(_undecided(failing))
    if worst is Outcome.UNSUPPORTED:
        parts.append("`gpuperf doctor` says what is missing and what to do about it")
    return "\n".join(parts)


def brief(result: Result, width: int) -> list[str]:
    """A regression in a few lines: what got worse, and the kernels that most of it comes from.

    For whoever waits for a session to end, whose report has it all. Empty without a regression.
    """
    regressed = [v for v in result.verdicts if v.outcome is Outcome.REGRESSED]
    if not regressed:
        return []
    moved = ", ".join(f"{v.metric} {units.change(v)}" for v in regressed)
    said = table.wrapped([f"{headline(result, Outcome.REGRESSED)}: {moved}"], width, "")
    if result.attribution:
        said += [line[:width] for line in kernel_lines.lines(result.attribution, width, _BRIEFLY)]
    return said


def headline(result: Result, outcome: Outcome | None = None) -> str:
    """How it stands in one line: "test_step[tf32] regressed on NVIDIA H200 (sm90)".

    `outcome` is what it says; by default the worst of all.
    """
    says = _SAYS.get(outcome or result.outcome or Outcome.REPORTED, "passed")
    if not result.measurements:
        return printable(f"{result.title} {says}")
    device = result.first.fingerprint.device
    return printable(f"{result.title} {says} on {device.name} ({device.arch})")


def _decisive(outcomes: Collection[Outcome]) -> Outcome:
    """What the message is about; that counters are missing comes before what else is in doubt."""
    worst = min(outcomes, key=WORST_FIRST.index)
    lacking = Outcome.UNSUPPORTED in outcomes and worst not in FAULTS
    return Outcome.UNSUPPORTED if lacking else worst


def _intervals(failing: Sequence[Verdict]) -> list[str]:
    """How sure the changes are: their intervals, and on how many processes they rest."""
    known = [
        f"{v.metric} {units.moved(v.low, points=v.points)} to "
        f"{units.moved(v.high, points=v.points)}"
        for v in failing
        if v.low is not None and v.high is not None
    ]
    processes = counted(max((v.processes for v in failing), default=1), "process")
    return [f"  99.5 % interval, {processes}: {', '.join(known)}"] if known else []


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
    moved = [
        f"{verdict.phase} {units.change(verdict)}"
        for verdict, change in changes.items()
        if abs(change) >= least
    ]
    return [f"  {metric} by phase: {', '.join(moved)}"] if moved else []
