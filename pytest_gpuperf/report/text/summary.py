"""The terminal summary: one row per test, the notes, and the next commands.

Failures come first, the worst at the top.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pytest_gpuperf.baselines.judgement import unjudged_reason
from pytest_gpuperf.catalogue import architectures, grouped, units
from pytest_gpuperf.errors import printable
from pytest_gpuperf.judge.verdict import NEW_METRIC, OTHER_GPU, TOLERATED, TOO_NOISY
from pytest_gpuperf.model.measurement import STEP, titles
from pytest_gpuperf.model.result import Expectation, Outcome, Result, Verdict
from pytest_gpuperf.report import view
from pytest_gpuperf.report.text import expectation_lines, next_command, step_tables, table
from pytest_gpuperf.report.text.next_command import CommandContext
from pytest_gpuperf.report.text.table import GAP, NOTHING, Line, shortened, wrapped_lines

_HEADINGS = ("test", "metric", "measured", "change", "MDE", "verdict")
_KEPT = ((0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 5), (0, 1, 3, 5), (0, 3, 5), (0, 5))
"""The columns of the table, as many as there is room for."""
_LEAST_NAME = 24
"""Characters of a test's name that are kept before a column goes."""
_NOTED = {
    OTHER_GPU: OTHER_GPU,
    TOLERATED: 'no test fails for {}: the tolerance is "any"',
    TOO_NOISY: "no test fails for {}: the noise allows no tolerance below 10 %",
    NEW_METRIC: "the baseline has no {} yet. Accept a run: gpuperf update-baseline",
}
"""Notes that several tests share, with metrics, by the detail or reason of their verdicts."""
_DOUBTED = (Outcome.MACHINE, Outcome.NO_BASELINE)
"""Outcomes whose reason is noted, unless a failing test has said it."""

Names = Mapping[tuple[str, str], str]
"""The titles of measurements, by test and name."""


def summary(
    results: Sequence[Result],
    width: int,
    context: CommandContext,
    *,
    notes: Iterable[str] = (),
    told: Sequence[Result] = (),
    verbose: bool = False,
) -> list[Line]:
    """The summary of a run as lines of at most `width` characters, except the totals.

    `context` is the start of the next commands; `notes` are added at the end. `told` are the
    `results` whose failure message is already complete. With `verbose`, a table of all metrics
    replaces each measurement's row.
    """
    measured = [result for result in results if result.measurements]
    ranked = view.worst_first(measured)
    names = titles((r.first.test, r.first.name) for r in measured)
    lines: list[Line] = []
    configurations = step_tables.configurations(measured, width)
    for place, those in grouped(ranked, _place).items():
        lines += [] if verbose else wrapped_lines(place, width)
        lines += configurations
        configurations = []
        if verbose:
            lines += (line for r in those for line in _section(r, _named(r, names), width))
        else:
            lines += _rows(those, names, width)
    untold = [result for result in results if all(result is not one for one in told)]
    for claim in (entry for result in untold for entry in result.expectations):
        tone = table.TONES.get(claim.outcome, "")
        lines += wrapped_lines(expectation_lines.line(claim), width, tone)
    for text in dict.fromkeys(_notes(measured, untold, names)):
        lines += wrapped_lines(f"note: {text}", width, "doubtful")
    for text in dict.fromkeys(notes):
        # A command is pasted whole.
        lines += [Line(text)] if table.is_command(text) else wrapped_lines(text, width)
    return lines + [Line(text) for text in next_command.lines(results, context, width, told)]


def _place(result: Result) -> str:
    """The device and what it ran with: "NVIDIA H200 (sm90), driver 580.159.04, torch 2.11.0"."""
    device, software = result.first.fingerprint.device, result.first.fingerprint.software
    known = [str(device), software.get("cpu", "") if device.arch == architectures.CPU else ""]
    known += [f"{name} {software[name]}" for name in ("driver", "torch") if name in software]
    return ", ".join(filter(None, known))


def _rows(results: Sequence[Result], names: Names, width: int) -> Iterator[Line]:
    """The table of one row per test, in the columns that fit; names are shortened to fit, too."""
    entries = [view.shown(result) for result in results]
    moves = [entry for entry in entries if isinstance(entry, Verdict)]
    changes = dict(zip(map(id, moves), units.changes(moves), strict=True))
    rows = [_HEADINGS]
    for entry, result in zip(entries, results, strict=True):
        cells = _cells(entry, result, changes.get(id(entry), NOTHING))
        rows.append((printable(_named(result, names)), *cells))
    sizes = table.column_widths(rows)
    for kept in _KEPT:
        room = width - sum(sizes[i] + len(GAP) for i in kept[1:])
        if room >= min(sizes[0], _LEAST_NAME):
            break
    sizes = {i: sizes[i] for i in kept} | {0: max(min(sizes[0], room), 0)}
    tones = ["heading", *(table.TONES.get(r.outcome or Outcome.REPORTED, "") for r in results)]
    for (name, *others), tone in zip(rows, tones, strict=True):
        row = [shortened(name, sizes[0]), *others]
        yield Line(table.aligned(row, sizes, (0, 1, 5), indent="")[:width], tone)


def _cells(
    entry: Verdict | Expectation | None, result: Result, change: str
) -> tuple[str, str, str, str, str]:
    """The cells of a test's row after its name."""
    lack = unjudged_reason(result)
    word = view.WORDS[lack] if lack else entry.outcome.value if entry else ""
    if isinstance(entry, Verdict):
        least = NOTHING if lack else units.minimum_detectable_effect(entry)
        return entry.metric, units.value(entry.measured, entry.unit), change, least, word
    if entry is not None:
        measured = expectation_lines.value(entry)
        return entry.metric, measured, NOTHING, NOTHING, entry.outcome.value
    return NOTHING, NOTHING, NOTHING, NOTHING, word


def _section(result: Result, title: str, width: int) -> Iterator[Line]:
    """The table of one measurement, with all its metrics."""
    device = result.first.fingerprint.device
    count = max(len(result.measurements), *(v.processes for v in result.verdicts), 1)
    several = f", {count} processes" if count > 1 else ""
    heading = f"{title} on {device.name} ({device.arch}{several})"
    yield from wrapped_lines(heading, width, "heading")
    step = [verdict for verdict in result.verdicts if verdict.phase == STEP]
    judged = [verdict for verdict in step if verdict.outcome is not Outcome.UNSUPPORTED]
    yield from table.verdict_lines(judged or view.measured(result), width)
    yield from wrapped_lines(step_tables.window_line(result.first), width, indent="  ")


def _named(result: Result, names: Names) -> str:
    return names[result.first.test, result.first.name]


def _notes(results: Sequence[Result], untold: Sequence[Result], names: Names) -> Iterator[str]:
    """The notes of the run, each said once, since the tests of one machine share a reason.

    Messages of failing tests are not repeated: verdicts come only from the `untold`.
    """
    disturbed = [(said, _named(r, names)) for r in results for said in view.complaints(r)]
    for said, tests in view.gathered(disturbed).items():
        yield f"{said} in {units.few(tests, 2)}"
    noted: list[tuple[str, str]] = []
    for result in (one for one in untold if one.measurements):
        for verdict in result.verdicts:
            if verdict.outcome is Outcome.KERNELS_CHANGED:
                yield f"kernels of {_named(result, names)}: {verdict.detail}"
            if verdict.outcome in _DOUBTED and verdict.detail:
                yield verdict.detail
            judged = verdict.outcome is not Outcome.REPORTED
            for key, said in _NOTED.items():
                if verdict.detail.startswith(key) if judged else verdict.reason == key:
                    noted.append((said, verdict.metric))
    yield from (said.format(units.few(of, 3)) for said, of in view.gathered(noted).items())
    yield from view.unsupported(verdict for result in results for verdict in result.verdicts)
