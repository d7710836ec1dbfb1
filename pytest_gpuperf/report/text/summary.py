"""The terminal summary: one row per test and metric, what was odd, and what to type next.

What failed comes first, the worst of it at the top.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.catalogue.units import counted
from pytest_gpuperf.judge.verdict import (
    ABSENT,
    NEW_METRIC,
    OTHER_GPU,
    TOLERATED,
    TOO_NOISY,
)
from pytest_gpuperf.model.measurement import STEP, Measurement, titles
from pytest_gpuperf.model.metric import MetricClass
from pytest_gpuperf.model.result import Outcome, Result, Verdict
from pytest_gpuperf.report import view
from pytest_gpuperf.report.text import (
    expectation_lines,
    failure,
    next_command,
    step_tables,
    table,
)
from pytest_gpuperf.report.text.next_command import CommandContext
from pytest_gpuperf.report.text.table import Line, shortened, wrapped_lines

MANY = 4
"""With more measurements than this, those that are unchanged have a line each."""
_LEAST_NAME = 20
"""Characters of a test's name that are kept before its numbers."""

_DOUBLED = 1.0
"""A tolerance that lets twice as much pass."""
_UNJUDGED = {
    TOLERATED: "not judged in {}: any change is tolerated",
    TOO_NOISY: "reported and not judged in {}: their noise allows no tolerance below 10 %",
}
"""Why a gated metric is only reported, by reason code."""
_CALM = {Outcome.UNCHANGED, Outcome.REPORTED, Outcome.UNSUPPORTED}
_JUDGED = {Outcome.UNCHANGED, Outcome.IMPROVED, Outcome.REGRESSED, Outcome.INCONCLUSIVE}


def summary(
    results: Sequence[Result],
    width: int,
    context: CommandContext,
    run: str = "",
    *,
    notes: Iterable[str] = (),
    told: Sequence[Result] = (),
    in_a_line: bool = False,
    verbosity: int = 0,
) -> list[Line]:
    """The summary of a run as lines of at most `width` characters.

    `context` is what the commands to type next depend on; `run` where the run was saved, or "";
    `notes` what else is to be said. `told` are those of `results` whose tests have failed with a
    message that says it all, but for what to do next where it was shown `in_a_line`.

    Where there are many measurements, only those of which something is to be said have a table, and
    where there are many metrics, only those that decide have a row, unless `verbosity` is above 0.
    Below, it is only what is not well, in a line each.
    """
    measured = [result for result in results if result.measurements]
    known = {id(result) for result in told}
    names = titles((r.first.test, r.first.name) for r in measured)
    verbose, quiet = verbosity > 0, verbosity < 0
    expected = [entry for r in results if id(r) not in known for entry in r.expectations]
    failed = [e for e in expected if e.outcome in (Outcome.BROKEN, Outcome.INCONCLUSIVE)]
    lines = [] if quiet else step_tables.configurations(measured, width, verbose=verbose)
    lines += expectation_lines.lines(failed, width)
    untold = [r for r in view.worst_first(measured) if verbose or id(r) not in known]
    if quiet:
        lines += _worst(untold, width)
    else:
        calm = [r for r in measured if _calm(r)]
        brief = [] if verbose or len(measured) <= MANY else calm
        short = {id(result) for result in brief}
        for result in untold:
            if id(result) not in short:
                lines += _section(result, _named(result.first, names), width, verbose=verbose)
        lines += _unchanged(brief, names, width)
        lines += expectation_lines.lines([e for e in expected if e not in failed], width)
    for text in dict.fromkeys(_notes(measured, names, known)):
        lines += wrapped_lines(text, width, "doubtful")
    for text in (*([f"run saved: {run}"] if run and not quiet else []), *dict.fromkeys(notes)):
        # A command is pasted whole.
        lines += [Line(text)] if table.is_command(text) else wrapped_lines(text, width)
    commands = next_command.lines(results, context, width, () if in_a_line else told)
    return lines + [Line(text) for text in commands]


def _worst(results: Sequence[Result], width: int) -> Iterator[Line]:
    """Those that are not well, or better, in a line each.

    Where many have no baseline, as all have on another device, the first of them say it of all.
    """
    missing = [result for result in results if result.outcome is Outcome.NO_BASELINE]
    others = {id(result) for result in missing[MANY:]}
    for result in results:
        tone = table.TONES.get(result.outcome or Outcome.REPORTED, "")
        if id(result) not in others:
            yield from (Line(text, tone) for text in failure.brief(result, width))
        elif result is missing[MANY]:
            yield Line(f"and neither have {len(others)} more", tone)


def _calm(result: Result) -> bool:
    """Whether there is nothing to be said of it but that it is unchanged."""
    outcomes = {verdict.outcome for verdict in result.verdicts}
    windowed = any(measurement.window for measurement in result.measurements)
    return not windowed and Outcome.UNCHANGED in outcomes and outcomes <= _CALM


def _section(result: Result, title: str, width: int, *, verbose: bool) -> Iterator[Line]:
    """The table of one measurement."""
    first = result.first
    device = _device(result, _processes(result, ", "))
    yield from wrapped_lines(f"{title} on {device}", width, "heading")
    rows = list(_rows(result))
    brief = step_tables.shown_metrics([cells[0] for cells, _ in rows], verbose=verbose)
    quiet = set() if verbose else {v.metric for v in result.verdicts if table.is_zero(v)}
    reported = Outcome.REPORTED
    shown = [
        (cells, said)
        for cells, said in rows
        if cells[0] not in quiet and (cells[0] in brief or said is not reported)
    ]
    heading, blocks = table.fitted([cells for cells, _ in shown], width)
    yield from map(Line, heading)
    for block, (_, outcome) in zip(blocks, shown, strict=True):
        yield from (Line(text, table.TONES.get(outcome, "")) for text in block)
    yield from wrapped_lines(step_tables.other_metrics(len(rows) - len(shown)), width, indent="  ")
    yield from step_tables.component_lines(result.measurements, result.verdicts, width)
    if first.window:
        yield from wrapped_lines(step_tables.window_line(first), width, indent="  ")


def _rows(result: Result) -> Iterator[tuple[tuple[str, ...], Outcome]]:
    """A row per verdict on the whole step, or per metric where nothing was judged."""
    judged = [
        verdict
        for verdict in result.verdicts
        if verdict.phase == STEP and verdict.outcome is not Outcome.UNSUPPORTED
    ]
    if judged:
        outcomes = (verdict.outcome for verdict in judged)
        yield from zip(table.verdict_rows(judged), outcomes, strict=True)
        return
    for metric, value in step_tables.step_values([result.first]).items():
        shown = units.value(value, catalogue().metrics[metric].unit)
        reported = Outcome.REPORTED
        yield (metric, "-", shown, "-", "-", "-", reported.value), reported


def _unchanged(
    results: Sequence[Result], names: Mapping[tuple[str, str], str], width: int
) -> Iterator[Line]:
    """A line for each, by device: its test, and the changes of what is gated."""
    devices: dict[str, list[str]] = {}
    for result in results:
        known = [
            verdict
            for verdict in result.verdicts
            if verdict.outcome is Outcome.UNCHANGED
            and verdict.change is not None
            # A dozen counts of the host that are exactly what they were are no news.
            and (verdict.change or verdict.metric not in catalogue().sets["host"])
        ]
        pairs = zip(known, units.changes(known), strict=True)
        changes = [f"{v.metric} {change}{_unseen(v)}" for v, change in pairs]
        title = _named(result.first, names) + _processes(result, " (", ")")
        line = _in_one_line(title, changes, width)
        devices.setdefault(_device(result), []).append(line)
    for device, texts in devices.items():
        title = f"{len(texts)} unchanged on {device}; -v shows all their metrics"
        yield from wrapped_lines(title, width, "heading")
        yield from map(Line, texts)


def _unseen(verdict: Verdict) -> str:
    """What stands beside the word where more than it says would pass, as " (MDE 45 %)"."""
    return units.outcome(verdict).removeprefix(verdict.outcome.value)


def _named(measurement: Measurement, names: Mapping[tuple[str, str], str]) -> str:
    return names[measurement.test, measurement.name]


def _processes(result: Result, before: str, after: str = "") -> str:
    """How many processes it took, where it took more than one."""
    count = max(len(result.measurements), *(v.processes for v in result.verdicts), 1)
    return f"{before}{count} processes{after}" if count > 1 else ""


def _in_one_line(title: str, changes: Sequence[str], width: int) -> str:
    """As many of the changes as fit beside the name, which is shortened where even one does not."""
    name = min(len(title), _LEAST_NAME)
    for count in range(len(changes), -1, -1):
        said = f": {', '.join(changes[:count])}" if count else ""
        room = width - len("  ") - len(said)
        if room >= (len(title) if count > 1 else name):
            break
    return f"  {shortened(title, room)}{said}"


def _notes(
    results: Sequence[Result], names: Mapping[tuple[str, str], str], told: Collection[int]
) -> Iterator[str]:
    """What was odd. One machine has one reason for all of its tests: each is to be said once.

    What a failing test's message has said is none of it.
    """
    verdicts = [verdict for result in results for verdict in result.verdicts]
    for result in results:
        title = _named(result.first, names)
        yield from (f"note: {title}: {said}" for said in view.complaints(result))
    for result in results:
        for verdict in result.verdicts if id(result) not in told else ():
            if verdict.outcome is Outcome.KERNELS_CHANGED:
                yield f"note: kernels of {_named(result.first, names)}: {verdict.detail}"
    unseen = dict.fromkeys(
        verdict.metric
        for result in results
        for verdict in (result.verdicts if id(result) not in told else ())
        if verdict.detail.startswith(OTHER_GPU) and verdict.outcome is not Outcome.REPORTED
    )
    if unseen:
        yield f"note: {', '.join(unseen)}: {OTHER_GPU}"
    yield from _blind(verdicts)
    yield from view.unsupported(verdicts)
    yield from _uncounted(verdicts)


def _uncounted(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """What decides where hardware counters could not be read, and what that loses."""
    known = catalogue().metrics
    lost = {
        (v.test, v.name)
        for v in verdicts
        if v.outcome is Outcome.UNSUPPORTED
        and v.reason != ABSENT
        and v.metric in known
        and known[v.metric].gated
        and known[v.metric].hardware
    }
    judged = [v for v in verdicts if v.phase == STEP and v.outcome in _JUDGED and v.metric in known]
    # Where some counters were read, others that were not are something else.
    lost -= {(v.test, v.name) for v in judged if known[v.metric].hardware}
    judged = [v for v in judged if (v.test, v.name) in lost]
    times = [v for v in judged if known[v.metric].metric_class is MetricClass.CYCLE]
    if not times:
        return
    said = list(dict.fromkeys(v.metric for v in times))
    if any(v.metric in catalogue().sets["host"] for v in judged):
        said.append("what the host does")
    least = max((v.minimum_detectable_effect or 0.0 for v in times), default=0.0)
    detected = f"; slowdowns of {units.moved(least)} are found 99 times in 100" if least else ""
    yield (
        f"note: without hardware counters {', '.join(said[:-1])}{' and ' if said[:-1] else ''}"
        f"{said[-1]} decide{'' if len(said) > 1 else 's'}{detected}. What is lost: smaller "
        "slowdowns, and whether a kernel executes other instructions. `gpuperf doctor` says how "
        "to get the counters"
    )


def _blind(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Of which metrics no slowdown would be found, though they are gated."""
    wide: dict[str, dict[str, set[tuple[str, str]]]] = {}
    new = dict.fromkeys(v.metric for v in verdicts if v.reason == NEW_METRIC)
    if new:
        yield (
            f"note: nothing is said of {', '.join(new)}: the baseline has no such samples yet. "
            "Accept a run that has them"
        )
    for verdict in verdicts:
        is_judged = verdict.outcome is not Outcome.REPORTED
        says = "" if is_judged else _UNJUDGED.get(verdict.reason, "")
        if is_judged and (verdict.tolerance or 0) >= _DOUBLED:
            says = "may double in {}: so wide is the tolerance"
        if says:
            of = wide.setdefault(says, {}).setdefault(verdict.metric, set())
            of.add((verdict.test, verdict.name))
    for says, of_metrics in wide.items():
        tests = counted(len(set().union(*of_metrics.values())), "measurement")
        yield f"note: {', '.join(of_metrics)} {says.format(tests)}"


def _device(result: Result, more: str = "") -> str:
    device = result.first.fingerprint.device
    return f"{device.name} ({device.arch}{more})"
