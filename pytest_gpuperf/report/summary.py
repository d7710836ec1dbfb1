"""The terminal summary: one row per test and metric, what was odd, and what to type next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_gpuperf import guard
from pytest_gpuperf.judge.verdict import OTHER_GPU, Reference, judge
from pytest_gpuperf.model import STEP, Expectation, Measurement, Outcome, Run, Verdict
from pytest_gpuperf.report import expectations, messages, table, timeline, window
from pytest_gpuperf.report.configurations import configurations
from pytest_gpuperf.report.line import Line

_TONES = {
    Outcome.REGRESSED: "bad",
    Outcome.NO_BASELINE: "doubtful",
    Outcome.INCONCLUSIVE: "doubtful",
    Outcome.UNSUPPORTED: "doubtful",
    Outcome.KERNELS_CHANGED: "doubtful",
    Outcome.IMPROVED: "good",
}


def summary(
    judged: Sequence[tuple[Sequence[Measurement], Sequence[Verdict]]],
    width: int,
    command: str,
    run: str,
    expected: Sequence[Expectation] = (),
) -> list[Line]:
    """The summary of a run as lines of at most `width` characters.

    `judged` is what each measurement was and what the judge said of it (nothing, when it was not
    asked); `command` what pytest was started with; `run` where the run was saved, or ""; `expected`
    what tests expect of the numbers beside their baselines.
    """
    found: list[Line] = []
    for measurements, verdicts in judged:
        found += _measurement(measurements, verdicts, width)
    found += expectations.lines(expected, width)
    found += _looks(judged, width)
    found += _notes(judged, width)
    if run:
        found += [Line(text) for text in table.wrapped([f"run saved: {run}"], width, "")]
    found += _next(judged, width, command)
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
    return configurations(judged, width) + summary(judged, width, run.command, "", run.expectations)


def _measurement(
    measurements: Sequence[Measurement], verdicts: Sequence[Verdict], width: int
) -> Iterator[Line]:
    first = measurements[0]
    device = first.fingerprint.device
    several = f", {len(measurements)} processes" if len(measurements) > 1 else ""
    title = f"{messages.subject(first)} on {device.name} ({device.arch}{several})"
    for text in table.wrapped([title], width, ""):
        yield Line(text, "heading")
    rows = [
        verdict
        for verdict in verdicts
        if verdict.phase == STEP and verdict.outcome is not Outcome.UNSUPPORTED
    ]
    if not rows:
        from pytest_gpuperf.metrics import catalogue

        unjudged = judge([first], Reference(None), catalogue().metrics, {})
        rows = [
            replace(verdict, outcome=Outcome.REPORTED)
            for verdict in unjudged
            if verdict.phase == STEP
        ]
    heading, blocks = table.fitted([table.cells(verdict) for verdict in rows], width)
    yield from map(Line, heading)
    for block, verdict in zip(blocks, rows, strict=True):
        yield from (Line(text, _TONES.get(verdict.outcome, "")) for text in block)
    if first.window:
        yield from map(Line, table.wrapped([window.line(first)], width, "  "))
    if first.timeline and not first.timeline.obstacle:
        yield from map(Line, table.wrapped([timeline.line(first)], width, "  "))


def _looks(
    judged: Sequence[tuple[Sequence[Measurement], Sequence[Verdict]]], width: int
) -> Iterator[Line]:
    """How many processes it took, where it took more than one."""
    several: dict[int, list[str]] = {}
    for measurements, verdicts in judged:
        count = max((verdict.processes for verdict in verdicts), default=1)
        if count > 1:
            subject = messages.subject(measurements[0]).removesuffix(",")
            several.setdefault(count, []).append(subject)
    if several:
        took = [f"{count} for {', '.join(several[count])}" for count in sorted(several)]
        others = len(judged) - sum(map(len, several.values()))
        took += [f"1 for {others} other{'s' if others > 1 else ''}"] if others else []
        text = f"processes: {'; '.join(took)}"
        yield from (Line(line) for line in table.wrapped([text], width, ""))


def _notes(
    judged: Sequence[tuple[Sequence[Measurement], Sequence[Verdict]]], width: int
) -> Iterator[Line]:
    for measurements, _ in judged:
        for measurement in measurements:
            conditions = measurement.fingerprint.conditions
            for complaint in guard.complaints(conditions) if conditions else ():
                text = f"note: {messages.subject(measurement)} was measured {complaint}"
                yield from (Line(line, "doubtful") for line in table.wrapped([text], width, ""))
    for measurements, verdicts in judged:
        for verdict in verdicts:
            if verdict.outcome is Outcome.KERNELS_CHANGED:
                subject = messages.subject(measurements[0]).removesuffix(",")
                text = f"note: kernels of {subject}: {verdict.detail}"
                yield from (Line(line, "doubtful") for line in table.wrapped([text], width, ""))
    # One machine has one reason for all of its tests.
    obstacles = dict.fromkeys(
        timeline.line(measurement)
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


def _next(
    judged: Sequence[tuple[Sequence[Measurement], Sequence[Verdict]]], width: int, command: str
) -> Iterator[Line]:
    outcomes = [verdict.outcome for _, verdicts in judged for verdict in verdicts]
    wanted: list[str] = []
    if Outcome.NO_BASELINE in outcomes:
        wanted = ["to make a baseline on this device:"]
        wanted += ["  " + line for line in messages.make_baseline(command)]
    elif Outcome.REGRESSED in outcomes:
        wanted = ['to accept what is intended:  gpuperf update-baseline --reason "..."']
    elif Outcome.IMPROVED in outcomes:
        better = {
            (verdict.test, verdict.name)
            for _, verdicts in judged
            for verdict in verdicts
            if verdict.outcome is Outcome.IMPROVED
        }
        wanted = [
            f"{len(better)} improved; accept, so that a later loss shows:  "
            'gpuperf update-baseline --reason "..."'
        ]
    for text in wanted:
        yield from map(Line, _command_lines(text, width))


def _command_lines(text: str, width: int) -> list[str]:
    """A line with a command in it; too long for `width`, it goes on after a backslash."""
    if len(text) <= width or not text.startswith("  "):
        return table.wrapped([text], width, "")
    return [
        line + (" \\" if more else "")
        for line, more in _with_more(table.wrapped([text.strip()], width - 2, "  "))
    ]


def _with_more(lines: Sequence[str]) -> Iterator[tuple[str, bool]]:
    for position, line in enumerate(lines, 1):
        yield line, position < len(lines)
