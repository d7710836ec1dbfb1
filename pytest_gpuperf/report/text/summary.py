"""The terminal summary: one row per test and metric, what was odd, and what to type next.

What failed comes first, the worst of it at the top.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.judge.verdict import ABSENT, OTHER_GPU, Reference, judge
from pytest_gpuperf.measure.device import guard
from pytest_gpuperf.model.measurement import STEP, Measurement
from pytest_gpuperf.model.result import Expectation, Outcome, Run, Verdict
from pytest_gpuperf.report import order
from pytest_gpuperf.report.order import Judgement
from pytest_gpuperf.report.text import (
    expectation_lines,
    failure,
    next_command,
    protocol_lines,
    step_tables,
    table,
)
from pytest_gpuperf.report.text.next_command import CommandContext
from pytest_gpuperf.report.text.step_tables import configurations
from pytest_gpuperf.report.text.table import Line, shortened

MANY = 20
"""With more measurements than this, those that are unchanged have a line each."""
_LEAST_NAME = 20
"""Characters of a test's name that are kept before its numbers."""

_TONES = {
    Outcome.REGRESSED: "bad",
    Outcome.NO_BASELINE: "doubtful",
    Outcome.INCONCLUSIVE: "doubtful",
    Outcome.UNSUPPORTED: "doubtful",
    Outcome.KERNELS_CHANGED: "doubtful",
    Outcome.IMPROVED: "good",
}


def summary(
    judged: Sequence[Judgement],
    width: int,
    session: CommandContext,
    run: str,
    expected: Sequence[Expectation] = (),
    *,
    notes: Sequence[str] = (),
    verbose: bool = False,
) -> list[Line]:
    """The summary of a run as lines of at most `width` characters.

    `judged` is what each measurement was and what the judge said of it (nothing, when it was not
    asked); `session` what the commands to type next depend on; `run` where the run was saved, or
    ""; `expected` what tests expect of the numbers beside their baselines; `notes` what else is to
    be said. Where there are many measurements, only those of which something is to be said have a
    table, and where there are many metrics, only those that decide have a row, unless `verbose`.
    """
    short = [] if verbose or len(judged) <= MANY else [e for e in judged if order.calm(e)]
    shown = {id(entry) for entry in short}
    failed = [e for e in expected if e.outcome in (Outcome.BROKEN, Outcome.INCONCLUSIVE)]
    found: list[Line] = [*expectation_lines.lines(failed, width)]
    for entry in order.worst_first(judged):
        if id(entry) not in shown:
            found += _measurement(*entry, width, verbose=verbose)
    found += _unchanged(short, width)
    found += expectation_lines.lines([e for e in expected if e not in failed], width)
    found += _looks(judged, width)
    found += _notes(judged, width)
    if run:
        found += [Line(text) for text in table.wrapped([f"run saved: {run}"], width, "")]
    for note in dict.fromkeys(notes):
        found += [Line(text) for text in table.wrapped([note], width, "")]
    found += [Line(text) for text in next_command.lines(judged, expected, session, width)]
    return found


def of_run(run: Run, width: int) -> list[Line]:
    """The summary of a saved run, as it was printed when it was made."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for measurement in run.measurements:
        groups.setdefault((measurement.test, measurement.name), []).append(measurement)
    judged = [
        (group, [v for v in run.verdicts if (v.test, v.name) == key])
        for key, group in groups.items()
    ]
    return configurations(judged, width) + summary(
        judged, width, CommandContext(run.command), "", run.expectations
    )


def _measurement(
    measurements: Sequence[Measurement],
    verdicts: Sequence[Verdict],
    width: int,
    *,
    verbose: bool,
) -> Iterator[Line]:
    first = measurements[0]
    device = first.fingerprint.device
    several = f", {len(measurements)} processes" if len(measurements) > 1 else ""
    title = f"{failure.subject(first)} on {device.name} ({device.arch}{several})"
    for text in table.wrapped([title], width, ""):
        yield Line(text, "heading")
    rows = [
        verdict
        for verdict in verdicts
        if verdict.phase == STEP and verdict.outcome is not Outcome.UNSUPPORTED
    ]
    if not rows:
        from pytest_gpuperf.catalogue.metric_catalogue import catalogue

        unjudged = judge([first], Reference(None), catalogue().metrics, {})
        rows = [
            replace(verdict, outcome=Outcome.REPORTED)
            for verdict in unjudged
            if verdict.phase == STEP and verdict.reason != ABSENT
        ]
    brief = step_tables.shown_metrics([verdict.metric for verdict in rows], verbose=verbose)
    shown = [v for v in rows if v.metric in brief or v.outcome is not Outcome.REPORTED]
    heading, blocks = table.fitted([table.cells(verdict) for verdict in shown], width)
    yield from map(Line, heading)
    for block, verdict in zip(blocks, shown, strict=True):
        yield from (Line(text, _TONES.get(verdict.outcome, "")) for text in block)
    yield from map(
        Line, table.wrapped([step_tables.other_metrics(len(rows) - len(shown))], width, "  ")
    )
    yield from step_tables.component_lines(measurements, verdicts, width)
    if first.window:
        yield from map(Line, table.wrapped([protocol_lines.window_line(first)], width, "  "))
    if first.timeline and not first.timeline.obstacle:
        yield from map(Line, table.wrapped([protocol_lines.timeline_line(first)], width, "  "))


def _unchanged(judged: Sequence[Judgement], width: int) -> Iterator[Line]:
    """A line for each, by device: its test, and the changes of what is gated."""
    devices: dict[str, list[str]] = {}
    for measurements, verdicts in judged:
        device = measurements[0].fingerprint.device
        subject = failure.subject(measurements[0]).removesuffix(",")
        changes = [
            f"{verdict.metric} {units.change(verdict)}"
            for verdict in verdicts
            if verdict.outcome is Outcome.UNCHANGED and verdict.change is not None
        ]
        devices.setdefault(f"{device.name} ({device.arch})", []).append(
            _in_one_line(subject, changes, width)
        )
    for name, texts in devices.items():
        title = f"{len(texts)} unchanged on {name}; -v shows all their metrics"
        yield from (Line(text, "heading") for text in table.wrapped([title], width, ""))
        yield from map(Line, texts)


def _in_one_line(subject: str, changes: Sequence[str], width: int) -> str:
    """As many of the changes as fit beside the name, which is shortened where even one does not."""
    name = min(len(subject), _LEAST_NAME)
    for count in range(len(changes), -1, -1):
        said = f": {', '.join(changes[:count])}" if count else ""
        room = width - len("  ") - len(said)
        if room >= (len(subject) if count > 1 else name):
            break
    return f"  {shortened(subject, room)}{said}"


def _looks(judged: Sequence[Judgement], width: int) -> Iterator[Line]:
    """How many processes it took, where it took more than one."""
    several: dict[int, list[str]] = {}
    for measurements, verdicts in judged:
        count = max((verdict.processes for verdict in verdicts), default=1)
        if count > 1:
            subject = failure.subject(measurements[0]).removesuffix(",")
            several.setdefault(count, []).append(subject)
    if several:
        took = [f"{count} for {', '.join(several[count])}" for count in sorted(several)]
        others = len(judged) - sum(map(len, several.values()))
        took += [f"1 for {others} other{'s' if others > 1 else ''}"] if others else []
        text = f"processes: {'; '.join(took)}"
        yield from (Line(line) for line in table.wrapped([text], width, ""))


def _notes(judged: Sequence[Judgement], width: int) -> Iterator[Line]:
    for measurements, _ in judged:
        for measurement in measurements:
            conditions = measurement.fingerprint.conditions
            for complaint in guard.complaints(conditions) if conditions else ():
                text = f"note: {failure.subject(measurement)} was measured {complaint}"
                yield from (Line(line, "doubtful") for line in table.wrapped([text], width, ""))
    for measurements, verdicts in judged:
        for verdict in verdicts:
            if verdict.outcome is Outcome.KERNELS_CHANGED:
                subject = failure.subject(measurements[0]).removesuffix(",")
                text = f"note: kernels of {subject}: {verdict.detail}"
                yield from (Line(line, "doubtful") for line in table.wrapped([text], width, ""))
    # One machine has one reason for all of its tests.
    obstacles = dict.fromkeys(
        protocol_lines.timeline_line(measurement)
        for measurements, _ in judged
        for measurement in measurements
        if measurement.timeline and measurement.timeline.obstacle
    )
    for text in obstacles:
        yield from (Line(line, "doubtful") for line in table.wrapped([text], width, ""))
    wider = dict.fromkeys(
        verdict.metric
        for _, verdicts in judged
        for verdict in verdicts
        if verdict.detail == OTHER_GPU and verdict.outcome is not Outcome.REPORTED
    )
    if wider:
        text = f"note: {', '.join(wider)}: {OTHER_GPU}"
        yield from (Line(line, "doubtful") for line in table.wrapped([text], width, ""))
    reasons = dict.fromkeys(
        (verdict.detail, verdict.metric)
        for _, verdicts in judged
        for verdict in verdicts
        if verdict.outcome is Outcome.UNSUPPORTED
    )
    by_reason: dict[str, list[str]] = {}
    for reason, metric in reasons:
        by_reason.setdefault(reason, []).append(metric)
    for reason, metrics in by_reason.items():
        text = f"unsupported: {', '.join(metrics)}: {reason}"
        yield from (Line(line, "doubtful") for line in table.wrapped([text], width, ""))
