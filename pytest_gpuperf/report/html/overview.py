"""The first screen of the page as data: a row per test, worst first, and what to do next."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.model.result import (
    WORST_FIRST,
    Outcome,
    Result,
    Run,
    Verdict,
)
from pytest_gpuperf.report import view
from pytest_gpuperf.report.html.subject import KERNELS, FigureSubject
from pytest_gpuperf.report.text import (
    expectation_lines,
    kernel_lines,
    step_tables,
    table,
)
from pytest_gpuperf.report.text.kernel_lines import ModuleBranch
from pytest_gpuperf.report.text.next_command import CommandContext, of_run, wanted

_UNTOLD = (Outcome.UNSUPPORTED, Outcome.REPORTED)
"""What the first screen has no rows of."""
_CALM = (Outcome.UNCHANGED, Outcome.HOLDS)
"""What is folded."""
_TONES = table.TONES | {
    Outcome.UNFIT: "doubtful",
    Outcome.MACHINE: "doubtful",
    Outcome.HOLDS: "good",
    Outcome.UNCHANGED: "good",
}
_NOT_JUDGED = "not judged"
_INCOMPLETE = "incomplete"
_SOFTWARE = {"driver": "driver", "cuda": "CUDA", "torch": "torch", "cpu": ""}
"""What the first screen names of the software; all of it stands at the end of the page."""
_FEW = 3
"""So many values of a fact, and so many metrics of a sentence, are named."""

STRIP_WIDTH, STRIP_HEIGHT = 120, 16
"""Of the drawing of an interval, in pixels."""
_TOLERANCES = 2.5
"""So many tolerances lie to each side of its middle."""


@dataclass(frozen=True, slots=True)
class Strip:
    """An interval drawn against its tolerance: places in pixels, cut off at the drawing's ends."""

    low: float
    high: float
    at: float
    """Of the change itself."""
    from_: float
    """Where the tolerance begins, and `to` where it ends: the same places in every drawing."""
    to: float
    beyond: int
    """-1 where the change lies to the left of the drawing, 1 to the right of it, else 0."""
    says: str


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """One verdict, as the cells of a table and a drawing."""

    verdict: Verdict | None = None
    """None where nothing was judged."""

    @property
    def cells(self) -> dict[str, str]:
        """Its cells by the headings of a table of verdicts."""
        if self.verdict is None:
            return dict.fromkeys(table.HEADINGS, table.NOTHING) | {"metric": ""}
        return dict(zip(table.HEADINGS, table.cells(self.verdict), strict=True))

    @property
    def tone(self) -> str:
        """bad, doubtful, good or ""."""
        return _TONES.get(self.verdict.outcome, "") if self.verdict else ""

    @property
    def strip(self) -> Strip | None:
        """The drawing of its interval; None where there is none."""
        return _strip(self.verdict) if self.verdict else None


@dataclass(frozen=True, slots=True)
class TestRow:
    """What is said of one measurement: a row of the table, and what stands behind it."""

    __test__ = False  # pytest takes it for a class of tests otherwise

    place: int
    """Its rank, from 1 on."""
    label: str
    """The test as people call it."""
    result: Result
    time: float | None
    """Of a step, in ns."""
    cost: float | None
    """What it takes longer than the baseline's, in ns."""
    decides: VerdictRow
    """The worst of them."""
    besides: str
    """What else was judged, in a few words."""
    told: tuple[VerdictRow, ...]
    """Verdicts that could fail the test, worst first."""
    cause: str
    """What made it worse, in a sentence; "" where nobody knows."""
    tree: ModuleBranch | None
    """What changed by module; None where nobody knows them, or none changed."""

    @property
    def test(self) -> str:
        """Its node id, and the measurement's name where it has one of its own."""
        test, name = self.result.test, self.result.name
        return test if name == STEP else f"{test}, {name}"

    @property
    def series(self) -> tuple[str, str, str, str]:
        """Test, measurement, architecture and device: what histories know it by."""
        device = self.result.first.fingerprint.device
        return self.result.test, self.result.name, device.arch, device.slug

    @property
    def outcome(self) -> str:
        """The worst of what was judged."""
        outcome = self.result.outcome
        return _NOT_JUDGED if outcome is None or outcome in _UNTOLD else outcome.value

    @property
    def tone(self) -> str:
        """How that is meant."""
        outcome = self.result.outcome
        return "" if outcome is None or outcome in _UNTOLD else _TONES.get(outcome, "")

    @property
    def device(self) -> str:
        """What it was measured on, in how many processes."""
        device, processes = self.result.first.fingerprint.device, len(self.result.measurements)
        counted = f", {processes} processes" if processes > 1 else ""
        return f"{device.name} ({device.arch}{counted})"

    @property
    def calm(self) -> bool:
        """Nothing is to be said of it but that it passed."""
        outcomes = [row.verdict.outcome for row in self.told if row.verdict]
        return bool(outcomes) and all(outcome in _CALM for outcome in outcomes)

    @property
    def opened(self) -> list[ModuleBranch]:
        """The way through the tree to what changed most: one sees at once what is inside."""
        way = [self.tree] if self.tree else []
        while way and way[-1].branches:
            way.append(max(way[-1].branches, key=ModuleBranch.size))
        return way

    @property
    def details(self) -> tuple[str, ...]:
        """What the judge says beside the numbers."""
        details = (row.verdict.detail for row in self.told if row.verdict)
        return tuple(dict.fromkeys(filter(None, details)))


@dataclass(frozen=True, slots=True)
class Overview:
    """The first screen."""

    headline: str
    lead: str
    """The worst of it."""
    cause: str
    """Why the worst of it is so bad, in a sentence; "" where nobody knows."""
    tone: str
    about: tuple[tuple[str, str], ...]
    """What the numbers are of: the run, its commit, the baseline, the device."""
    totals: tuple[tuple[int, str, str], ...]
    """How many stand so, and its tone."""
    judged: str
    """How many of how many have a verdict, and what the others lack; "" where none lacks it."""
    rows: tuple[TestRow, ...]
    expected: tuple[tuple[tuple[str, ...], str], ...]
    """Cells (metric, subject, bounds, measured, outcome) and tone."""
    notes: tuple[str, ...]
    steps: tuple[tuple[str, Sequence[str]], ...]
    """What to do next, and the commands that do it."""


def overview(
    run: Run, subjects: Sequence[FigureSubject], file: str, context: CommandContext | None = None
) -> Overview:
    """The first screen of a run. `file` is where it is saved, or "".

    `context` is what commands to type depend on; None where only the run is known.
    """
    titles = Counter(subject.result.title for subject in subjects)
    by_result = {id(subject.result): subject for subject in subjects}
    ranked = [by_result[id(one)] for one in view.worst_first(s.result for s in subjects)]
    rows = [_row(one, at, titles[one.result.title] == 1) for at, one in enumerate(ranked, 1)]
    expected = [
        (expectation_lines.row(entry), _TONES.get(entry.outcome, ""))
        for entry in sorted(run.expectations, key=lambda entry: WORST_FIRST.index(entry.outcome))
    ]
    tones = {row.tone for row in rows} | {tone for _, tone in expected if tone == "bad"}
    tone = next((t for t in ("bad", "doubtful", "good") if t in tones), "")
    measured = [subject.result for subject in subjects]
    judged = view.totals(measured)
    worst = next((r for r in view.worst_first(run.results()) if view.reasons(r)), None)
    return Overview(
        headline=view.headline(run),
        lead=f"{view.standing(worst)}: {'; '.join(view.reasons(worst))}" if worst else "",
        cause=rows[0].cause if rows else "",
        tone="bad" if run.unfinished else tone if rows else "doubtful",
        about=tuple(_about(run, measured)),
        totals=tuple(_totals(rows, run)),
        judged=judged if "not judged" in judged else "",
        rows=tuple(rows),
        expected=tuple(expected),
        notes=tuple(dict.fromkeys(_notes(run, subjects))),
        steps=tuple(_steps(run, context or of_run(run, file), file)),
    )


def _row(subject: FigureSubject, place: int, unique: bool) -> TestRow:
    result = subject.result
    step = [v for v in result.verdicts if v.phase == STEP]
    told = sorted((v for v in step if v.outcome not in _UNTOLD), key=_rank)
    decides = next((v for v in told if v.outcome is not Outcome.KERNELS_CHANGED), None)
    times = ((subject.value(name), catalogue().metrics[name].unit) for name in view.TIMES)
    time, unit = next(((t, unit) for t, unit in times if t is not None), (None, ""))
    blamed = result.attribution
    row = TestRow(
        place,
        result.title,
        result,
        time=None if time is None else time if unit == "ns" else time * 1e6,
        cost=view.cost(result),
        decides=VerdictRow(decides),
        besides=_besides(told, decides),
        told=tuple(map(VerdictRow, told)),
        cause=kernel_lines.sentence(blamed) if blamed else "",
        tree=kernel_lines.module_tree(blamed) if blamed else None,
    )
    return row if unique else replace(row, label=row.test)


def _rank(verdict: Verdict) -> tuple[int, int, float]:
    """The worst first; of what is as bad the time, which all of it is about; then by tolerances."""
    known = verdict.metric in view.TIMES
    furthest = abs(verdict.change or 0.0) / verdict.tolerance if verdict.tolerance else 0.0
    return (
        WORST_FIRST.index(verdict.outcome),
        view.TIMES.index(verdict.metric) if known else len(view.TIMES),
        -furthest,
    )


def _strip(verdict: Verdict) -> Strip | None:
    """The drawing of a change; None without a change or a tolerance."""
    change, tolerance = verdict.change, verdict.tolerance
    if change is None or not tolerance:
        return None
    low = change if verdict.low is None else verdict.low
    high = change if verdict.high is None else verdict.high
    middle, unit = STRIP_WIDTH / 2, (STRIP_WIDTH / 2 - 6) / _TOLERANCES
    furthest = _TOLERANCES * tolerance

    def place(value: float) -> float:
        return round(middle + max(-furthest, min(furthest, value)) / tolerance * unit, 1)

    shown = [units.moved(end, points=verdict.points) for end in (low, high)]
    between = f", between {shown[0]} and {shown[1]}" if low < high else ""
    return Strip(
        low=place(low),
        high=place(high),
        at=place(change),
        from_=place(-tolerance),
        to=place(tolerance),
        beyond=(change > furthest) - (change < -furthest),
        says=f"{units.change(verdict)}{between}, tolerance {units.tolerance(verdict)}",
    )


def _besides(told: Sequence[Verdict], decides: Verdict | None) -> str:
    """What else was judged, by outcome; of what passed how many."""
    said: dict[Outcome, list[Verdict]] = {}
    for verdict in told:
        if verdict.outcome is not Outcome.KERNELS_CHANGED and verdict is not decides:
            said.setdefault(verdict.outcome, []).append(verdict)
    parts = []
    for outcome, some in said.items():
        moves = [] if outcome in _CALM else view.moves(some)
        parts.append(f"{units.few(moves, _FEW) if moves else len(some)} {outcome.value}")
    # Where they come from stands below.
    changed = [v.detail.partition(";")[0] for v in told if v.outcome is Outcome.KERNELS_CHANGED]
    return "; ".join([*parts, *(f"kernels: {detail}" for detail in changed)])


def _totals(rows: Sequence[TestRow], run: Run) -> Iterator[tuple[int, str, str]]:
    counts = Counter((row.outcome, row.tone) for row in rows)
    yield from ((count, outcome, tone) for (outcome, tone), count in counts.items())
    if run.skipped:
        yield len(run.skipped), _INCOMPLETE, ""


def _about(run: Run, results: Sequence[Result]) -> Iterator[tuple[str, str]]:
    """What the numbers are of."""
    prints = [m.fingerprint for result in results for m in result.measurements]
    yield "run", run.created.replace("T", " ").replace("Z", " UTC")
    yield "commit", _distinct(one.revision for one in prints)
    entries = [result.judged_by for result in results if result.judged_by]
    if entries:
        dates = sorted({entry.recorded for entry in entries})
        ends = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
        yield "baseline", f"{ends}, {_distinct(entry.revision for entry in entries)}"
    yield "device", _distinct(f"{one.device.name} ({one.device.arch})" for one in prints)
    for name, called in _SOFTWARE.items():
        values = _distinct(one.software.get(name, "") for one in prints)
        # The name of a CPU is that of the device where there is no other.
        if values != table.NOTHING and (called or all(one.device.arch == "cpu" for one in prints)):
            yield called or "CPU", values


def _distinct(values: Iterable[str]) -> str:
    """What there is, each once, but for many; "-" for nothing."""
    known = list(dict.fromkeys(filter(None, values)))
    return units.few(known, _FEW) if known else table.NOTHING


def _notes(run: Run, subjects: Sequence[FigureSubject]) -> Iterator[str]:
    """What was odd, as sentences."""
    for subject in subjects:
        yield from (f"{subject.label}: {said}" for said in view.complaints(subject.result))
        windows = [m for m in subject.measurements if m.window]
        if windows:
            yield f"{subject.label}: {step_tables.window_line(windows[0])}"
    yield from view.unsupported(run.verdicts)


def _steps(run: Run, context: CommandContext, file: str) -> Iterator[tuple[str, Sequence[str]]]:
    """What to do and the commands for it, the most urgent first."""
    known = {(entry.test, entry.name) for entry in run.attributions}
    unknown = dict.fromkeys(
        v.test
        for v in run.verdicts
        if v.outcome is Outcome.REGRESSED and (v.test, v.name) not in known
    )
    # On a CPU there are none; names of operators come with the regression.
    if unknown and any(m.fingerprint.device.arch != "cpu" for m in run.measurements):
        yield "To find the kernels:", (f"pytest {shlex.join(unknown)} {KERNELS}",)
    for what, commands in wanted(run.results(), context):
        yield f"{what[0].upper()}{what[1:]}", commands
    if run.measurements and not run.verdicts and file:
        command = f"gpuperf report {shlex.quote(file)} --baselines baselines"
        yield "To judge this run against a folder of baselines:", (command,)
