"""The summary as Markdown, for pull requests and job summaries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.units import counted
from pytest_gpuperf.errors import printable
from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.model.result import (
    DOUBTS,
    FAULTS,
    Attribution,
    Expectation,
    Outcome,
    Result,
    Run,
)
from pytest_gpuperf.report import view
from pytest_gpuperf.report.text import (
    expectation_lines,
    kernel_lines,
    step_tables,
    table,
)
from pytest_gpuperf.report.text.next_command import (
    CommandContext,
    alone,
    of_run,
    typed,
    wanted,
)

if TYPE_CHECKING:
    from pytest_gpuperf.history.nights import History

_LISTED = 20
"""So many are named before the tables, the worst of them; all of them have tables."""
_RESERVE = 200
"""Bytes for what is said of tables that are left out."""
_EVENTS = 5
"""Nights that something got worse on."""
_FILES = 5
"""Files that are named of those that are partial, and of those that were left out."""
_NIGHTS = ("test", "device", "last 30 days", "now", "last change")
_SEEN = (*FAULTS, *DOUBTS)
"""Outcomes whose tables are not folded."""


def markdown(run: Run, limit: int | None = None, context: CommandContext | None = None) -> str:
    """The verdicts of `run`: what failed, the worst first, then a table per measurement.

    Tables of what passed are folded. Everything from outside is escaped. Of at most `limit` bytes
    in UTF-8, where that is given: the last tables are then left out, and it says how many. Returns
    "" where not even the verdicts fit. `context` is what commands depend on; None of a run of which
    nothing else is known.
    """
    results = view.worst_first(run.results())
    head = "\n".join([*_head(results, run, context or of_run(run, "")), ""])
    # A ratio has no table of its own: all that was expected is one.
    measured = [result for result in results if result.measurements]
    folded = [result for result in measured if result.outcome not in _SEEN]
    above = ["\n".join(_section(r)) for r in measured if r.outcome in _SEEN]
    below = ["\n".join(_section(result)) for result in folded]
    if run.expectations:
        failed = any(e.outcome is not Outcome.HOLDS for e in run.expectations)
        (above if failed else below).append("\n".join(_expected(run.expectations)))
    if limit is None:
        return head + "".join(above) + _folded(folded, below)
    room = limit - _size(head) - _size(_folded(folded, [""])) - _RESERVE
    if room < 0:
        return ""
    fitting = table.fitting(list(map(_size, [*above, *below])), room)
    text = head + "".join(above[:fitting]) + _folded(folded, below[: max(0, fitting - len(above))])
    missing = counted(len(above) + len(below) - fitting, "table")
    if fitting == len(above) + len(below):
        return text
    said = f"{missing} left out, to stay below {limit:,} bytes; the run's file has everything."
    return f"{text}{said}\n"


def nights(past: History) -> str:
    """What got worse in the last 30 days, since when, what differs, and what to type next.

    Then what differs since the night before, and a sparkline per test.
    """
    from pytest_gpuperf.report.text.night_lines import night_view, sparkline

    told = night_view(past)
    lines = [f"## {told.heading}", ""]
    lines += [f"- {cell(said)}" for said in (*told.partial[:_FILES], *told.left_out[:_FILES])]
    for event in told.worse[:_EVENTS]:
        lines += [f"- **{cell(f'{event.day}, {event.where}')}**: {event.what}"]
        lines += [f"  - {cell(said)}" for said in event.said]
        lines += [f"  - `{code(command)}`" for command in event.commands]
        lines += [f"  - [what changed in the code](<{event.compared}>)"] if event.compared else []
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


def _head(results: Sequence[Result], run: Run, context: CommandContext) -> Iterator[str]:
    """How many stand how, what is incomplete, what failed, what to do next, what was run, and how
    much was judged.
    """
    yield from (f"# gpuperf: {view.headline(run)}", "")
    for why, tests in [*run.incomplete().items()][:_LISTED]:
        more = f" and {len(tests) - _LISTED} more" if len(tests) > _LISTED else ""
        yield f"- incomplete, **{cell(why).strip()}**: {cell(', '.join(tests[:_LISTED]))}{more}"
    yield from [""] if run.skipped else []
    told = [result for result in results if view.reasons(result)]
    typed_again = []
    for result in told[:_LISTED]:
        said = "; ".join(map(cell, view.reasons(result)))
        yield f"- **{cell(view.standing(result)).strip()}**: {said}"
        if result.attribution and (cause := kernel_lines.sentence(result.attribution)):
            yield f"  {cell(cause)}"
        if result.outcome in FAULTS and (again := alone(context.command, [result.test])):
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
    judged = view.totals(results)
    if judged:
        yield from (cell(judged), "")


def _section(result: Result) -> Iterator[str]:
    """The table of one measurement, and its kernels."""
    first = result.first
    device = first.fingerprint.device
    name = "" if result.name == STEP else f", {cell(result.name)}"
    yield from (f"### {cell(result.test)}{name}", "")
    yield from (f"On {cell(device.name)} ({cell(device.arch)})", "")
    yield "| " + " | ".join(table.HEADINGS) + " |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | --- |"
    step = [v for v in result.verdicts if v.phase == STEP and not table.is_zero(v)]
    yield from map(row, table.verdict_rows(step)) if step else ["| not judged | | | | | | |"]
    yield ""
    yield from _components(result)
    if first.window:
        yield from (cell(step_tables.window_line(first)), "")
    for verdict in step:
        if verdict.outcome is Outcome.KERNELS_CHANGED:
            yield from (f"Kernels: {cell(verdict.detail)}", "")
    if result.attribution:
        yield from _blamed(result.attribution)
    yield ""


def _blamed(attribution: Attribution) -> Iterator[str]:
    """What the change comes from: a sentence, lines and kernels, and the modules that changed."""
    cause = kernel_lines.sentence(attribution)
    if cause:
        yield from (f"**{cell(cause).strip()}**", "")
    said = kernel_lines.lines(attribution, table.WIDTH, told=True)
    if said:
        yield from ("```", *map(code, said), "```", "")
    modules = kernel_lines.changed_modules(attribution)
    if modules:
        timed = not attribution.of_operators
        what = "launches" if timed else "operators"
        yield row(["module", what, *(["before", "after", "change"] if timed else [])])
        yield "| --- |" + " ---: |" * (4 if timed else 1)
        for one in modules:
            name = one.module or "(no module)"
            times = (units.value(one.before, "ns"), units.value(one.after, "ns"))
            counts = f"{one.launches_before:,} -> {one.launches_after:,}"
            yield row(
                [name, counts, *([*times, kernel_lines.duration(one.change)] if timed else [])]
            )
        yield ""


def _components(result: Result) -> Iterator[str]:
    """What each component took, the longest first."""
    if not result.first.components:
        return
    components = step_tables.component_table(result.measurements, result.verdicts)
    if components is None:
        return
    headings, rows = step_tables.component_cells(components)
    yield row(headings)
    yield "| --- |" + " ---: |" * (len(headings) - 1)
    yield from map(row, rows)
    yield from ("", *(part for note in components.notes for part in (cell(note), "")))


def _expected(expectations: Sequence[Expectation]) -> Iterator[str]:
    yield from ("### Expected", "")
    yield "| metric | of | expected | measured | outcome |"
    yield "| --- | --- | --- | ---: | --- |"
    yield from (row(expectation_lines.row(expectation)) for expectation in expectations)
    yield from ("", "")


def _folded(results: Sequence[Result], sections: Sequence[str]) -> str:
    """Sections that are shown when one asks for them; nothing where there are none."""
    if not sections:
        return ""
    # No text from outside: Markdown's escapes do not count in this line of HTML.
    title = view.tally(results) or "expected"
    # The empty lines: what is between them is read as Markdown.
    body = "".join(sections)
    return f"<details>\n<summary>{title}</summary>\n\n{body}</details>\n\n"


def _size(text: str) -> int:
    return len(text.encode())


def row(cells: Iterable[str]) -> str:
    """A row of a table, its cells escaped."""
    return "| " + " | ".join(map(cell, cells)) + " |"


def cell(text: str) -> str:
    """`text` as it stands, in one line: nothing in it is Markdown."""
    return re.sub(r"([\\`*_\[\]<>|#&~$])", r"\\\1", _one_line(text))


def code(text: str) -> str:
    """`text` in one line, to stand between backticks."""
    return _one_line(text).replace("`", "'")


def _one_line(text: str) -> str:
    return printable(" ".join(text.splitlines()))
