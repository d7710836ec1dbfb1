"""What a failing test says, and the commands to type next."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.judge.stopping import LEAST_TO_ALARM
from pytest_gpuperf.model.measurement import STEP, Measurement
from pytest_gpuperf.model.result import Attribution, Expectation, Outcome, Verdict
from pytest_gpuperf.report import order
from pytest_gpuperf.report.text import expectation_lines, table
from pytest_gpuperf.report.text import kernel_lines as kernels
from pytest_gpuperf.report.text.next_command import CommandContext

_LEAST_PART = 0.05
"""The part of the largest change of a phase below which another's is not said."""
_WIDTH = 96
"""The width of a message in a test's report, which pytest indents and JUnit keeps."""


def failure(
    measurement: Measurement,
    verdicts: Sequence[Verdict],
    failing: Sequence[Verdict],
    session: CommandContext,
    notes: Sequence[str] = (),
    limits: Sequence[Expectation] = (),
    blame: Attribution | None = None,
) -> str:
    """Why a test failed: configuration, device, the failing rows, and what to do next.

    Kernels that changed come first: they explain the rest. `session` is what the commands depend on
    that make or accept a baseline; `notes` what went wrong on the way; `limits` those
    that fail the test, too; `blame` the kernels that the change comes from.
    """
    device = measurement.fingerprint.device
    entries: list[Verdict | Expectation] = [*failing, *limits]
    worst = _decisive({entry.outcome for entry in entries})
    parts = [f"gpuperf: {subject(measurement)} {SAYS[worst]} on {device.name} ({device.arch})"]
    if measurement.configuration:
        parts.append(f"configuration: {measurement.configuration}")
    rows = [v for v in verdicts if v.outcome is Outcome.KERNELS_CHANGED] + [*failing]
    if rows:
        parts += table.lines([table.cells(verdict) for verdict in rows], _WIDTH)
        parts += _intervals(failing)
    for limit in limits:
        parts += expectation_lines.failing(limit)
    parts += dict.fromkeys(f"  {v.detail}" for v in rows if v.detail)
    parts += [f"  {note}" for note in notes]
    if worst is Outcome.REGRESSED:
        parts += _phases(verdicts, failing)
    parts += kernels.lines(blame, _WIDTH) if blame else []
    if worst is Outcome.REGRESSED:
        parts.append(f"If the change is intended: {session.accept()}")
    if worst is Outcome.NO_BASELINE:
        parts.append("Make a baseline on this device:")
        parts += ["  " + line for line in session.record()]
    if worst is Outcome.INCONCLUSIVE:
        parts.append(_undecided(entries))
    if worst is Outcome.UNSUPPORTED:
        parts.append("`gpuperf doctor` says what is missing and what to do about it")
    return "\n".join(parts)


def _decisive(outcomes: Collection[Outcome]) -> Outcome:
    """What the message is about; that counters are missing comes before what else is in doubt."""
    worst = min(outcomes, key=order.rank)
    lacking = Outcome.UNSUPPORTED in outcomes and worst not in order.FAULTS
    return Outcome.UNSUPPORTED if lacking else worst


def subject(measurement: Measurement) -> str:
    """A measurement by its test's name, and its own where it has one."""
    return table.subject_of(measurement.test, measurement.name)


def _intervals(failing: Sequence[Verdict]) -> list[str]:
    """How sure the changes are: their intervals, and on how many processes they rest."""
    known = [
        f"{v.metric} {units.moved(v.low, points=v.points)} to "
        f"{units.moved(v.high, points=v.points)}"
        for v in failing
        if v.low is not None and v.high is not None
    ]
    processes = max((v.processes for v in failing), default=1)
    counted = f"{processes} process{'es' if processes > 1 else ''}"
    return [f"  99.5 % interval, {counted}: {', '.join(known)}"] if known else []


def _undecided(failing: Sequence[Verdict | Expectation]) -> str:
    """What to do about an inconclusive verdict."""
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


SAYS = {
    Outcome.REGRESSED: "regressed",
    Outcome.BROKEN: "is beyond a limit",
    Outcome.UNFIT: "was not judged",
    Outcome.UNSUPPORTED: "could not read the counters it needs",
    Outcome.NO_BASELINE: "has no baseline",
    Outcome.INCONCLUSIVE: "is inconclusive",
    Outcome.IMPROVED: "improved",
}
"""What is said of a measurement whose worst outcome this is."""
