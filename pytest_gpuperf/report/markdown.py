"""The summary as Markdown, for pull requests and job summaries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.errors import printable
from pytest_gpuperf.model.measurement import STEP, titles
from pytest_gpuperf.model.result import DOUBTS, FAULTS, Expectation, Outcome, Result, Run, Verdict
from pytest_gpuperf.report import view
from pytest_gpuperf.report.text import expectation_lines, kernel_lines, table
from pytest_gpuperf.report.text.next_command import CommandContext, alone, of_run, typed, wanted

if TYPE_CHECKING:
    from pytest_gpuperf.history.nights import History
    from pytest_gpuperf.report.conclusion import NightFinding

_LISTED = 20
"""The number of tests that are named before the tables."""
_EVENTS = 5
"""Nights that something got worse on."""
_FILES = 5
"""The most partial files, and files left out, that are named."""
_NIGHTS = ("test", "device", "last 30 days", "now", "last change")
_SEEN = (*FAULTS, *DOUBTS)
"""Outcomes whose tables are not folded."""


def markdown(
    run: Run,
    limit: int | None = None,
    context: CommandContext | None = None,
    found: Sequence[NightFinding] = (),
) -> str:
    """The verdicts of `run`: failures, the worst first, then a table per failed test.

    All passing tests share one folded table. All text from outside is escaped. If the text would be
    longer than `limit` bytes in UTF-8, the folded table is left out, then the others, and a line
    says so. Returns "" if even the first part is too long. `context` says how the run was started;
    None derives it from the run. What was `found` in a night comes first.
    """
    results = view.worst_first(run.results())
    head = "\n".join([*_head(results, run, context or of_run(run, "")), ""])
    if found:
        title, _, rest = head.partition("\n")
        head = "\n".join([title, "", *_causes(found, run), rest])
    seen = [one for one in results if one.outcome in _SEEN and one.measurements]
    above = ["\n".join(_section(result)) for result in seen]
    if failed := [one for one in run.expectations if one.outcome is not Outcome.HOLDS]:
        above.append("\n".join(_expected(failed)))
    parts = [head, "".join(above), _folded([one for one in results if one.outcome not in _SEEN])]
    if limit is None or len("".join(parts).encode()) <= limit:
        return "".join(parts)
    parts[-1] = f"gpuperf left out tables, to stay below {limit:,} bytes. The run file has them.\n"
    fitting = ("".join(kept) for kept in (parts, parts[::2]))
    return next((text for text in fitting if len(text.encode()) <= limit), "")


def nights(past: History) -> str:
    """Changes for the worse in the last 30 days, their suspects and the next commands.

    Then what differs since the night before, and a sparkline per test.
    """
    from pytest_gpuperf.report.text.night_lines import night_view, sparkline

    told = night_view(past)
    lines = [f"## {told.heading}", ""]
    files = (*past.source.partial[:_FILES], *past.source.problems[:_FILES])
    lines += [f"- {cell(said)}" for said in files]
    for event in told.worse[:_EVENTS]:
        lines += [f"- **{cell(f'{event.day}, {event.where}')}**: {event.what}"]
        lines += [f"  - {cell(said)}" for said in (*event.said, *event.suspects)]
        lines += [f"  - `{code(command)}`" for command in event.commands]
    if len(told.worse) > _EVENTS:
        lines += [f"- and {len(told.worse) - _EVENTS} more nights"]
    lines += [f"- {cell(said)}" for said in told.last]
    lines += [f"- creep: {cell(title)}: {cell(said)}" for title, said in told.creeping]
    if told.rows:
        lines += ["", row(_NIGHTS), row(["---"] * len(_NIGHTS))]
    for shown in told.rows[:_LISTED]:
        name = f"{shown.label}: {shown.main.metric.name}"
        changed = f"{shown.change} since {shown.since}" if shown.since else ""
        spark = sparkline(shown.main, told.span)
        lines += [row([name, shown.device, spark, shown.now, changed])]
    if len(told.rows) > _LISTED:
        more = len(told.rows) - _LISTED
        lines += ["", f"and {more} more tests: `gpuperf history --output FILE.html`"]
    return "\n".join([*lines, ""])


def _causes(found: Sequence[NightFinding], run: Run) -> Iterator[str]:
    """The causes of a night, each with since when and whose it is, and what to type."""
    for number, one in enumerate(found[:_EVENTS], 1):
        if len(found) > 1 or len(one.results) > 1:  # else the test says so itself
            yield f"{number}. **{cell(one.title)}**"
        yield from [f"   {cell(one.origin)}"] if one.origin else []
        yield from (f"   `{code(command)}`" for command in one.commands(run))
    if len(found) > _EVENTS:
        yield from ("", f"and {len(found) - _EVENTS} more causes")


def _head(results: Sequence[Result], run: Run, context: CommandContext) -> Iterator[str]:
    """Outcomes, incomplete tests, failures, next steps, the run, and how much was judged."""
    yield from (f"# gpuperf: {view.headline(run)}", "")
    for why, tests in [*view.incomplete(run).items()][:_LISTED]:
        yield f"- incomplete, **{cell(why).strip()}**: {cell(units.few(tests, _LISTED))}"
    yield from [""] if run.skipped else []
    told = [result for result in results if view.reasons(result)]
    typed_again = []
    for result in told[:_LISTED]:
        said = "; ".join(map(cell, view.reasons(result)))
        yield f"- **{cell(view.standing(result)).strip()}**: {said}"
        if result.attribution and (cause := kernel_lines.sentence(result.attribution)):
            yield f"  {cell(cause)}"
        if result.outcome in FAULTS and (again := alone(context.command, result.test)):
            typed_again.append(context.started(again))
            yield f"  `{code(typed_again[-1])}`"
    if len(told) > _LISTED:
        yield f"- and {len(told) - _LISTED} more"
    if told:
        yield ""
    for what, commands in wanted(results, context):
        if not {*commands} <= {*typed_again}:
            in_turn = ", then ".join(f"`{code(command)}`" for command in commands)
            yield from (f"{what[0].upper()}{what[1:]} {in_turn}", "")
    command = f": `{code(typed(run.command))}`" if run.command else ""
    yield from (f"Run of {cell(run.created)}{command}", "")
    if old := dict.fromkeys(one.revision for one in run.judged_by if one.revision):
        yield from (f"Baseline: {cell(units.few([*old], _FILES))}", "")
    judged = view.totals(results)
    if judged:
        yield from (cell(judged), "")


def _section(result: Result) -> Iterator[str]:
    """The table of one measurement, its cause and its kernels."""
    name = "" if result.name == STEP else f", {cell(result.name)}"
    yield from (f"### {cell(result.test)}{name}", "")
    yield from (f"On {cell(str(result.first.fingerprint.device))}", "")
    yield "| " + " | ".join(table.HEADINGS) + " |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | --- |"
    judged = _judged(result)
    yield from map(row, table.verdict_rows(judged))
    yield ""
    for verdict in judged:
        if verdict.outcome is Outcome.KERNELS_CHANGED:
            yield from (f"Kernels: {cell(verdict.detail)}", "")
    if result.attribution:
        cause = kernel_lines.sentence(result.attribution)
        yield from (f"**{cell(cause).strip()}**", "") if cause else ()
        said = kernel_lines.lines(result.attribution, table.WIDTH, told=True)
        yield from ("```", *map(code, said), "```", "") if said else ()
    yield ""


def _expected(expectations: Sequence[Expectation]) -> Iterator[str]:
    yield from ("### Expected", "")
    yield "| metric | of | expected | measured | outcome |"
    yield "| --- | --- | --- | ---: | --- |"
    yield from (row(expectation_lines.row(expectation)) for expectation in expectations)
    yield from ("", "")


def _judged(result: Result) -> list[Verdict]:
    """The verdicts of the whole step that a reader has to know."""
    step = [verdict for verdict in result.verdicts if verdict.phase == STEP]
    return [v for v in step if v.outcome is not Outcome.REPORTED and not table.is_zero(v)]


def _rows(result: Result, title: str) -> Iterator[str]:
    """The rows of a result that holds: its verdicts and expectations."""
    judged = _judged(result)
    yield from (row([title, *cells]) for cells in table.verdict_rows(judged))
    for expectation in result.expectations:
        metric, of, bounds, measured, outcome = expectation_lines.row(expectation)
        yield row([of, metric, bounds, measured, *[table.NOTHING] * 3, outcome])
    if not judged and not result.expectations:
        yield row([title, *[table.NOTHING] * 6, "not compared"])


def _folded(results: Sequence[Result]) -> str:
    """The folded table of the results that hold; nothing if there are none."""
    called = titles((result.test, result.name) for result in results)
    rows = [f"{line}\n" for one in results for line in _rows(one, called[one.test, one.name])]
    if not rows:
        return ""
    # The title is HTML, which ignores Markdown escapes, so it has no text from outside.
    title = view.tally(results)
    headings = f"{row(['test', *table.HEADINGS])}\n| --- | --- |{' ---: |' * 5} --- |\n"
    # Markdown needs the empty lines.
    return f"<details>\n<summary>{title}</summary>\n\n{headings}{''.join(rows)}\n</details>\n\n"


def row(cells: Iterable[str]) -> str:
    """A row of a table, its cells escaped."""
    return "| " + " | ".join(map(cell, cells)) + " |"


def cell(text: str) -> str:
    """`text` in one line, with all Markdown characters escaped."""
    return re.sub(r"([\\`*_\[\]<>|#&~$])", r"\\\1", _one_line(text))


def code(text: str) -> str:
    """`text` in one line, to stand between backticks; a quote in their place could end a word."""
    return _one_line(text).replace("`", r"\x60")


def _one_line(text: str) -> str:
    return printable(" ".join(text.splitlines()))
