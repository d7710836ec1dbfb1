"""The summary as Markdown, for pull requests and job summaries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.model.measurement import STEP, Measurement
from pytest_gpuperf.model.result import Attribution, Expectation, Outcome, Run, Verdict
from pytest_gpuperf.report import order
from pytest_gpuperf.report.text import (
    expectation_lines,
    failure,
    protocol_lines,
    step_tables,
    table,
)
from pytest_gpuperf.report.text import kernel_lines as kernels
from pytest_gpuperf.report.text.next_command import CommandContext

_WIDTH = 96
"""Of the kernels' lines, which are not wrapped by who shows them."""
_LISTED = 20
"""So many are named before the tables, the worst of them; all of them have tables."""
_RESERVE = 200
"""Bytes for what is said of tables that are left out."""


def markdown(run: Run, limit: int | None = None) -> str:
    """The verdicts of `run`: what failed, the worst first, then a table per measurement.

    Tables of what passed are folded. Everything from outside is escaped. Of at most `limit` bytes
    in UTF-8, where that is given: the last tables are then left out, and it says how many. Returns
    "" where not even the verdicts fit.
    """
    found = standings(run)
    head = "\n".join([*_head(found, run), ""])
    # A ratio has no table of its own: all that was expected is one.
    seen = (*order.FAULTS, *order.DOUBTS)
    shown = [s for s in found if s.outcome in seen and s.measurements]
    folded = [s for s in found if s.outcome not in seen and s.measurements]
    expected = ["\n".join(_expected(run.expectations))] if run.expectations else []
    failed = any(e.outcome is not Outcome.HOLDS for e in run.expectations)
    above = ["\n".join(_section(s, run)) for s in shown] + (expected if failed else [])
    below = ["\n".join(_section(s, run)) for s in folded] + ([] if failed else expected)
    if limit is None:
        return head + "".join(above) + _folded(folded, below)
    room = limit - _size(head) - _size(_folded(folded, [""])) - _RESERVE
    if room < 0:
        return ""
    fitting = _fitting([*above, *below], room)
    text = head + "".join(above[:fitting]) + _folded(folded, below[: max(0, fitting - len(above))])
    missing = len(above) + len(below) - fitting
    return text + (_left_out(missing, limit) if missing else "")


def _head(found: Sequence[Standing], run: Run) -> Iterator[str]:
    """How many stand how, what failed, what to do next, and what was run."""
    yield f"# gpuperf: {standings_counted(found) or 'nothing was measured'}"
    yield ""
    told = [standing for standing in found if standing.telling]
    for standing in told[:_LISTED]:
        said = "; ".join(map(cell, standing_reasons(standing)))
        yield f"- **{cell(standing_title(standing)).strip()}**: {said}"
    if len(told) > _LISTED:
        yield f"- and {len(told) - _LISTED} more"
    if told:
        yield ""
    outcomes = {entry.outcome for standing in found for entry in standing.telling}
    if Outcome.REGRESSED in outcomes:
        yield from ('If that is intended: `gpuperf update-baseline --reason "..."`', "")
    elif Outcome.NO_BASELINE in outcomes:
        first, second = CommandContext(command=run.command).record()
        yield from (f"To make a baseline: `{code(first)}`, then `{second}`", "")
    elif Outcome.IMPROVED in outcomes:
        accept = '`gpuperf update-baseline --reason "..."`'
        yield from (f"Accept what improved, so that a later loss shows: {accept}", "")
    yield from (f"Run of {cell(run.created)}: `{code(run.command)}`", "")


def _section(standing: Standing, run: Run) -> Iterator[str]:
    """The table of one measurement, and its kernels."""
    first = standing.measurements[0]
    device = first.fingerprint.device
    name = "" if standing.name == STEP else f", {cell(standing.name)}"
    yield from (f"### {cell(standing.test)}{name}", "")
    yield from (f"On {cell(device.name)} ({cell(device.arch)})", "")
    yield "| " + " | ".join(table.HEADINGS) + " |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | --- |"
    yield from [_row(verdict) for verdict in standing.verdicts] or ["| not judged | | | | | | |"]
    yield ""
    yield from _components(standing, run)
    if first.window:
        yield from (cell(protocol_lines.window_line(first)), "")
    if first.timeline:
        yield from (cell(protocol_lines.timeline_line(first)), "")
    yield from _kernels(standing.verdicts, standing.blame)
    yield ""


def _components(standing: Standing, run: Run) -> Iterator[str]:
    """What each component took, the longest first."""
    if not standing.measurements[0].components:
        return
    key = (standing.test, standing.name)
    verdicts = [verdict for verdict in run.verdicts if (verdict.test, verdict.name) == key]
    found = step_tables.component_table(standing.measurements, verdicts)
    if found is None:
        return
    headings, rows = step_tables.component_cells(found)
    yield row(headings)
    yield "| --- |" + " ---: |" * (len(headings) - 1)
    yield from map(row, rows)
    yield from ("", *(part for note in found.notes for part in (cell(note), "")))


def _expected(found: Sequence[Expectation]) -> Iterator[str]:
    yield from ("### Expected", "")
    yield "| metric | of | expected | measured | outcome |"
    yield "| --- | --- | --- | ---: | --- |"
    yield from (row(expectation_lines.row(expectation)) for expectation in found)
    yield from ("", "")


def _folded(found: Sequence[Standing], sections: Sequence[str]) -> str:
    """Sections that are shown when one asks for them; nothing where there are none."""
    if not sections:
        return ""
    # No text from outside: Markdown's escapes do not count in this line of HTML.
    title = standings_counted(found) or "expected"
    # The empty lines: what is between them is read as Markdown.
    body = "".join(sections)
    return f"<details>\n<summary>{title}</summary>\n\n{body}</details>\n\n"


def _fitting(sections: Sequence[str], room: int) -> int:
    """How many sections fit into so many bytes, from the first on."""
    for number, section in enumerate(sections):
        room -= _size(section)
        if room < 0:
            return number
    return len(sections)


def _left_out(count: int, limit: int) -> str:
    tables = f"{count} table{'s' if count != 1 else ''}"
    return f"{tables} left out, to stay below {limit:,} bytes; the run's file has everything.\n"


def _size(text: str) -> int:
    return len(text.encode())


def _kernels(rows: Iterable[Verdict], blame: Attribution | None) -> Iterator[str]:
    """How the kernels changed, and which of them the change in time comes from."""
    for verdict in rows:
        if verdict.outcome is Outcome.KERNELS_CHANGED:
            yield from (f"Kernels: {cell(verdict.detail)}", "")
    if blame:
        yield from ("```", *map(code, kernels.lines(blame, _WIDTH)), "```", "")


def _row(verdict: Verdict) -> str:
    return row(table.cells(verdict))


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
    return " ".join(text.splitlines())


# How each measurement of a run stands, the worst first: what a report of failures begins with.

_CHANGED = (*order.FAULTS, *order.DOUBTS, Outcome.IMPROVED)


@dataclass(frozen=True)
class Standing:
    """One measurement, its processes together, or a ratio of two, and what was said of it."""

    test: str
    name: str
    """The measurement's name within its test; of a ratio, what is expected something of."""
    measurements: tuple[Measurement, ...]
    """One per process; none for a ratio."""
    verdicts: tuple[Verdict, ...]
    """Of the whole step."""
    expectations: tuple[Expectation, ...] = ()
    """Its limits, or the ratio."""
    blame: Attribution | None = None

    @property
    def outcome(self) -> Outcome | None:
        """The worst of all that was said; None where nothing was judged.

        Kernels that changed explain an outcome, and are none of their own.
        """
        said: Sequence[Verdict | Expectation] = (*self.verdicts, *self.expectations)
        outcomes = [entry.outcome for entry in said]
        return order.worst(o for o in outcomes if o is not Outcome.KERNELS_CHANGED)

    @property
    def telling(self) -> tuple[Verdict | Expectation, ...]:
        """Verdicts and expectations that are not as one would have them, the worst first."""
        said: list[Verdict | Expectation] = [*self.verdicts, *self.expectations]
        found = [entry for entry in said if entry.outcome in _CHANGED]
        return tuple(sorted(found, key=lambda entry: order.rank(entry.outcome)))


def standings(run: Run) -> list[Standing]:
    """Every measurement and every ratio of `run`, the worst first, and else in the run's order."""
    measured: dict[tuple[str, str], list[Measurement]] = {}
    for measurement in run.measurements:
        measured.setdefault((measurement.test, measurement.name), []).append(measurement)
    verdicts: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in run.verdicts:
        if verdict.phase == STEP:
            verdicts.setdefault((verdict.test, verdict.name), []).append(verdict)
    limits: dict[tuple[str, str], list[Expectation]] = {}
    ratios = []
    for expectation in run.expectations:
        key = (expectation.test, expectation.subject)
        if expectation.unit and key in measured:
            limits.setdefault(key, []).append(expectation)
        else:
            ratios.append(expectation)
    blames = {(entry.test, entry.name): entry.attribution for entry in run.attributions}
    found = [
        Standing(
            *key,
            tuple(measurements),
            tuple(verdicts.get(key, ())),
            tuple(limits.get(key, ())),
            blames.get(key),
        )
        for key, measurements in measured.items()
    ]
    found += [Standing(entry.test, entry.subject, (), (), (entry,)) for entry in ratios]
    return sorted(found, key=lambda standing: order.rank(standing.outcome))


def standings_counted(found: Sequence[Standing]) -> str:
    """How many stand how, the worst first: "1 regressed, 2 unchanged"."""
    outcomes = [standing.outcome for standing in found]
    parts = [f"{outcomes.count(o)} {o.value}" for o in order.WORST_FIRST if o in outcomes]
    parts += [f"{outcomes.count(None)} not judged"] if None in outcomes else []
    return ", ".join(parts)


def standing_title(standing: Standing) -> str:
    """How it stands in one line: "test_step[tf32] regressed on NVIDIA H200 (sm90)"."""
    says = failure.SAYS.get(standing.outcome or Outcome.REPORTED, "passed")
    if not standing.measurements:
        return f"{standing.name} in {standing.test} {says}"
    device = standing.measurements[0].fingerprint.device
    return f"{failure.subject(standing.measurements[0])} {says} on {device.name} ({device.arch})"


def standing_reasons(standing: Standing) -> list[str]:
    """What of it is not as one would have it, the worst first, each thing once."""
    return list(dict.fromkeys(_reason(entry) for entry in standing.telling))


def _reason(entry: Verdict | Expectation) -> str:
    if isinstance(entry, Expectation):
        return expectation_lines.line(entry)
    if entry.change is None and entry.detail:
        return entry.detail
    text = f"{entry.metric} {units.change(entry)}"
    known = [units.value(value, entry.unit) for value in (entry.baseline, entry.measured)]
    text += f" ({' -> '.join(known)}"
    if entry.tolerance is not None:
        text += f", tolerance {units.tolerance(entry)}"
    if entry.outcome is Outcome.INCONCLUSIVE and entry.low is not None and entry.high is not None:
        low, high = (units.moved(end, points=entry.points) for end in (entry.low, entry.high))
        text += f", somewhere between {low} and {high}"
    return text + ")"
