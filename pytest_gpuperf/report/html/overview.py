"""The first screen of the page as data: a row per test, worst first, and what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.history.nights import History
from pytest_gpuperf.model.measurement import STEP, titles
from pytest_gpuperf.model.result import (
    WORST_FIRST,
    Expectation,
    Outcome,
    Result,
    Run,
    Verdict,
)
from pytest_gpuperf.report import view
from pytest_gpuperf.report.conclusion import findings
from pytest_gpuperf.report.html.subject import FigureSubject
from pytest_gpuperf.report.text import (
    expectation_lines,
    kernel_lines,
    step_tables,
    table,
)
from pytest_gpuperf.report.text.next_command import CommandContext, of_run, wanted

_UNTOLD = (Outcome.UNSUPPORTED, Outcome.REPORTED)
"""Outcomes without a row on the first screen."""
_CALM = (Outcome.UNCHANGED, Outcome.HOLDS)
"""Outcomes whose rows are folded."""
_TONES = table.TONES | {
    Outcome.UNFIT: "doubtful",
    Outcome.MACHINE: "doubtful",
    Outcome.HOLDS: "good",
    Outcome.UNCHANGED: "good",
}
_NOT_JUDGED = "not compared"
_FEW = 3
"""The most values of a fact, and metrics in a sentence, that are named."""


Cells = Mapping[str, str]
"""A verdict in a table: by its headings, "interval", and "tone" (bad, doubtful, good or "")."""


@dataclass(frozen=True, slots=True)
class TestRow:
    """One measurement: a row of the table, and its details."""

    __test__ = False  # pytest takes it for a class of tests otherwise

    place: int
    """The rank, from 1 on."""
    label: str
    """The test as people call it."""
    result: Result
    decides: Cells
    """The worst verdict; what was measured, if nothing was judged."""
    why: str
    """The cause, or other metrics that got worse or better."""
    told: tuple[Cells, ...]
    """Verdicts that could fail the test, worst first."""
    calm: bool
    """Whether it passed and nothing changed."""
    cause: str
    """Why it got worse, in a sentence; "" if that is unknown."""

    @property
    def test(self) -> str:
        """The test's node id, with the measurement's name unless that is the default."""
        test, name = self.result.test, self.result.name
        return test if name == STEP else f"{test}, {name}"

    @property
    def outcome(self) -> str:
        """The worst outcome in words."""
        outcome = self.result.outcome
        return _NOT_JUDGED if outcome is None or outcome in _UNTOLD else outcome.value

    @property
    def tone(self) -> str:
        """bad, doubtful, good or ""."""
        outcome = self.result.outcome
        return "" if outcome is None or outcome in _UNTOLD else _TONES.get(outcome, "")

    @property
    def device(self) -> str:
        """The device and the number of processes."""
        device, processes = self.result.first.fingerprint.device, len(self.result.measurements)
        counted = f", {processes} processes" if processes > 1 else ""
        return f"{device.name} ({device.arch}{counted})"

    @property
    def details(self) -> tuple[str, ...]:
        """The judge's remarks."""
        details = (v.detail for v in self.result.verdicts if v.outcome not in _UNTOLD)
        return tuple(dict.fromkeys(filter(None, details)))


@dataclass(frozen=True, slots=True)
class Overview:
    """The first screen."""

    headline: str
    """The number of tests per outcome: the title of the page."""
    heading: str
    """The worst test and by how much it changed; the headline if nothing is to be said."""
    leads: tuple[str, ...]
    """Why pytest ended early, code that is not the checkout's, the cause and since when."""
    causes: tuple[tuple[str, str, str], ...]
    """If there are several: each with its tests, since when and whose, and what to type."""
    tone: str
    about: tuple[tuple[str, str], ...]
    """The run, its commit, the baseline, the device."""
    totals: tuple[tuple[int, str, str], ...]
    """Count, outcome and tone."""
    judged: str
    """The number of judged tests, and why the others were not judged; "" if all were."""
    rows: tuple[TestRow, ...]
    expected: tuple[tuple[tuple[str, ...], str, bool], ...]
    """Cells (metric, subject, bounds, measured, outcome), tone, and whether it holds."""
    held: str
    """The number of tests and expectations that hold: "12 unchanged, 3 holds"."""
    notes: tuple[str, ...]
    steps: tuple[tuple[str, Sequence[str]], ...]
    """Next steps, each with its commands."""


def overview(
    run: Run,
    subjects: Sequence[FigureSubject],
    file: str,
    context: CommandContext | None = None,
    past: History | None = None,
) -> Overview:
    """The first screen of a run. `file` is the saved run, or "".

    `context` says how the run was started; None derives it from the run. `past` knows since when
    tests are worse.
    """
    every = view.worst_first(run.results())
    ranked = [one for one in every if one.measurements]
    names = titles((one.test, one.name) for one in ranked)
    rows = [_row(one, at, names[one.test, one.name]) for at, one in enumerate(ranked, 1)]
    expected = sorted(run.expectations, key=lambda entry: WORST_FIRST.index(entry.outcome))
    tones = [row.tone for row in rows]
    tones += [_TONES.get(entry.outcome, "") for entry in expected if entry.outcome not in _CALM]
    tone = next((tone for tone in ("bad", "doubtful", "good") if tone in tones), "")
    judged = view.totals(ranked)
    calm = [row.result for row in rows if row.calm]
    ratios = [one for one in every if not one.measurements and one.outcome in _CALM]
    found = [one for one in findings(run, past) if one.results]
    causes = [(one.title, one.origin, next(one.commands(run), "")) for one in found]
    heading, lead = _worst(every, rows) or (view.headline(run), "")
    if len(causes) > 1:
        heading, lead = view.headline(run), f"{len(causes)} causes, the worst first:"
    origin = found[0].origin if len(found) == 1 else ""
    other = view.other_code(ranked)
    return Overview(
        headline=view.headline(run),
        heading=heading,
        leads=tuple(filter(None, (str(run.unfinished or ""), other, lead, origin))),
        causes=tuple(causes) if len(causes) > 1 else (),
        tone="bad" if run.unfinished or other else tone if rows else "doubtful",
        about=tuple(_about(run, ranked)),
        totals=tuple(_totals(rows, run)),
        judged=judged if _NOT_JUDGED in judged else "",
        rows=tuple(rows),
        expected=tuple(
            (expectation_lines.row(one), _TONES.get(one.outcome, ""), one.outcome in _CALM)
            for one in expected
        ),
        held=view.tally([*calm, *ratios]),
        notes=tuple(dict.fromkeys(_notes(run, subjects))),
        steps=tuple(
            (f"{what[0].upper()}{what[1:]}", commands)
            for what, commands in wanted(every, context or of_run(run, file))
        ),
    )


def _worst(results: Sequence[Result], rows: Sequence[TestRow]) -> tuple[str, str] | None:
    """The worst result with its change, and its cause or what was measured; None if all hold."""
    worst = next((one for one in results if view.reasons(one)), None)
    if worst is None:
        return None
    said, why = view.standing(worst), "; ".join(view.reasons(worst))
    row = next((row for row in rows if row.result is worst), None)
    if row is None:
        return said, why
    cells = row.decides
    word = worst.outcome.value if worst.outcome else ""
    if cells["verdict"] == word and cells["change"] != table.NOTHING:
        said += f": {cells['metric']} {cells['change']}"
    return said, row.cause or why


def _row(result: Result, place: int, label: str) -> TestRow:
    step = [v for v in result.verdicts if v.phase == STEP and v.outcome not in _UNTOLD]
    told = sorted((v for v in step if not table.is_zero(v)), key=view.rank) or step
    main = view.shown(result)
    cause = kernel_lines.sentence(result.attribution) if result.attribution else ""
    own = main.metric if main else ""
    others = [said for said in view.reasons(result) if said.split(" ", 1)[0] != own]
    return TestRow(
        place,
        label,
        result,
        _cells(main),
        cause or "; ".join(others),
        tuple(map(_cells, told)),
        all(outcome in _CALM for outcome in (result.outcome, *(v.outcome for v in told))),
        cause,
    )


def _cells(entry: Verdict | Expectation | None) -> Cells:
    if not isinstance(entry, Verdict):
        cells = dict.fromkeys(table.HEADINGS, table.NOTHING) | {"metric": ""}
        if entry:
            cells |= {"metric": entry.metric, "measured": expectation_lines.value(entry)}
        return cells
    low, high = entry.low, entry.high
    interval = ""
    if low is not None and high is not None and low < high:
        interval = " to ".join(units.interval(low, high, points=entry.points))
    cells = dict(zip(table.HEADINGS, *table.verdict_rows([entry]), strict=True))
    return {**cells, "interval": interval, "tone": _TONES.get(entry.outcome, "")}


def _totals(rows: Sequence[TestRow], run: Run) -> Iterator[tuple[int, str, str]]:
    counts = Counter((row.outcome, row.tone) for row in rows)
    yield from ((count, outcome, tone) for (outcome, tone), count in counts.items())
    if run.skipped:
        yield len(run.skipped), "incomplete", ""


def _about(run: Run, results: Sequence[Result]) -> Iterator[tuple[str, str]]:
    """The run, its commit, its baseline and its device."""
    prints = [m.fingerprint for result in results for m in result.measurements]
    yield "run", run.created.replace("T", " ").replace("Z", " UTC")
    yield "commit", _distinct(one.revision for one in prints)
    entries = [result.judged_by for result in results if result.judged_by]
    if entries:
        dates = sorted({entry.recorded for entry in entries})
        ends = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
        yield "baseline", f"{ends}, {_distinct(entry.revision for entry in entries)}"
    yield "device", _distinct(f"{one.device.name} ({one.device.arch})" for one in prints)


def _distinct(values: Iterable[str]) -> str:
    """The first values, each once; "-" for none."""
    known = list(dict.fromkeys(filter(None, values)))
    return units.few(known, _FEW) if known else table.NOTHING


def _notes(run: Run, subjects: Sequence[FigureSubject]) -> Iterator[str]:
    """Complaints about the device, and metrics that do not exist, as sentences."""
    for subject in subjects:
        yield from (f"{subject.label}: {said}" for said in view.complaints(subject.result))
        windows = [m for m in subject.result.measurements if m.window]
        if windows:
            yield f"{subject.label}: {step_tables.window_line(windows[0])}"
    yield from view.unsupported(run.verdicts)
