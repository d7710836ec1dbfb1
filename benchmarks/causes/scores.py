"""What a judged run says of each cause, and whether it is what was expected.

Everything is read from the JSON report of a replayed run: `said` is the only place that knows how
a report has its headline.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.causes.patches import Expected, causes
from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.model.measurement import STEP, KernelTable, Measurement, Unsupported
from pytest_gpuperf.model.metric import MetricClass
from pytest_gpuperf.model.result import Outcome, Run

Report = Mapping[str, Any]
"""A run's JSON report."""

RESULTS = "results.json"
"""The file of what was scored."""
WORTH_FINDING = 0.003
"""Of the step's time: a cause that costs less, and changes no count, need not be found."""
SAME_COUNT = 1e-4
"""Counts that are closer are the same: bytes of memory are rounded by the allocator."""
TIMES = ("step_time", "wall_time")
"""What a step costs, in ms: a GPU's, or else a CPU's."""
OFF = "switched off"


@dataclass(frozen=True)
class Said:
    """The headline of a failing test."""

    kind: str
    line: str
    function: str
    modules: tuple[str, ...]
    change: float | None
    """Nanoseconds by which the step takes longer; None where it does not say."""


@dataclass(frozen=True)
class Score:
    """What is said of one cause, and which of it is right."""

    name: str
    expected: str
    cost: float | None = None
    """The change of the step's time, as a share of it; None where it was not measured."""
    counts: tuple[str, ...] = ()
    """The metrics that count something, and count another number now."""
    regressed: bool = False
    said: str = ""
    right_place: bool = False
    right_kind: bool = False
    apart: float | None = None
    """Only in the results of earlier versions."""
    in_interval: bool = True
    """The headline's milliseconds are within the interval of the step's change, where there are
    both."""
    error: str = ""
    """Why there is nothing to score."""
    held_out: bool = False
    """Whether no rule was mended with it."""

    @property
    def due(self) -> bool:
        """Whether it has to be found."""
        costs = self.cost is not None and self.cost >= WORTH_FINDING
        return bool(self.error) or costs or bool(self.counts)


def said(blame: Mapping[str, Any]) -> Said | None:
    """The headline of an attribution as the report has it; None where there is none."""
    if "headline" not in blame:
        # Before there were headlines: the first line of code.
        first = next(iter(blame.get("lines", ())), None)
        if first is None:
            return None
        return Said("", first["line"], first["function"], tuple(first["modules"]), None)
    headline = blame["headline"]
    if headline is None:
        return None
    return Said(
        headline["kind"],
        headline["line"],
        headline["function"],
        tuple(headline["modules"]),
        headline["change"],
    )


def scores(report: Report, expected: Iterable[Expected]) -> list[Score]:
    """One for each cause that is expected."""
    return [_score(report, one) for one in expected]


def _score(report: Report, expected: Expected) -> Score:
    lines = {expected.first: None, expected.last: None}
    place = f"{expected.file}:{'-'.join(map(str, lines))}"
    modules = f", {expected.modules}" if expected.modules else ""
    due = f"{' or '.join(expected.kinds)}: {place}{modules}"
    blank = Score(expected.name, due, held_out=expected.held_out)
    verdicts = _of(report, "verdicts", expected.name)
    blames = [entry["blame"] for entry in _of(report, "blames", expected.name)]
    step = {verdict["metric"]: verdict for verdict in verdicts if verdict["phase"] == STEP}
    if not step:
        return replace(blank, error="not measured, or not judged")
    time = next((step[metric] for metric in TIMES if metric in step), None)
    headline = said(blames[0]) if blames else None
    return replace(
        blank,
        cost=time["change"] if time else None,
        counts=tuple(metric for metric, verdict in step.items() if _other_count(metric, verdict)),
        regressed=any(v["outcome"] == Outcome.REGRESSED.value for v in step.values()),
        said=_text(headline),
        right_place=headline is not None and _right_place(headline, expected),
        right_kind=headline is not None and headline.kind in expected.kinds,
        in_interval=headline is None or _in_interval(headline, time),
    )


def _of(report: Report, what: str, name: str) -> list[Mapping[str, Any]]:
    return [entry for entry in report.get(what, ()) if entry["test"].endswith(f"[{name}]")]


def _other_count(name: str, verdict: Mapping[str, Any]) -> bool:
    metric = catalogue().metrics.get(name)
    if metric is None or metric.hardware or metric.metric_class is not MetricClass.DETERMINISTIC:
        return False
    before, after = verdict["baseline"], verdict["measured"]
    return None not in (before, after) and abs(after - before) > SAME_COUNT * abs(before)


def _right_place(headline: Said, expected: Expected) -> bool:
    file, _, number = headline.line.rpartition(":")
    in_file = file == expected.file or file.endswith(f"/{expected.file}")
    in_lines = number.isdigit() and expected.first <= int(number) <= expected.last
    matching = all(re.fullmatch(expected.modules, module) for module in headline.modules)
    named = any(headline.modules) or not expected.modules
    return in_file and in_lines and matching and named


def _in_interval(headline: Said, time: Mapping[str, Any] | None) -> bool:
    if headline.change is None or time is None or None in (time["low"], time["baseline"]):
        return True
    change = headline.change / 1e6 / time["baseline"]
    return bool(time["low"] <= change <= time["high"])


def _text(headline: Said | None) -> str:
    if headline is None:
        return ""
    change = "" if headline.change is None else f"{headline.change / 1e6:+.3g} ms: "
    modules = ", ".join(filter(None, headline.modules[:3]))
    more = f" and {len(headline.modules) - 3} more" if len(headline.modules) > 3 else ""
    kind = f"{headline.kind}: " if headline.kind else ""
    return f"{change}{kind}{headline.line} {headline.function} ({modules or 'no module'}{more})"


def blamed(report: Report, expected: Iterable[Expected]) -> tuple[list[str], int]:
    """Tests of identical code of which something is said or that regressed; and how many there are.

    Those that were not measured are not counted.
    """
    judged = [score for score in scores(report, expected) if not score.error]
    return [score.name for score in judged if score.said or score.regressed], len(judged)


def one_of_each_step(names: Iterable[str]) -> list[str]:
    """Of these causes the first of each step: as it is, a step is the same for all of them."""
    by_step: dict[str, str] = {}
    for name in names:
        by_step.setdefault(causes()[name].step, name)
    return list(by_step.values())


def of_every_cause(run: Run) -> Run:
    """A run of steps as they are, with the measurements of a step for each of its causes.

    Those that a process has of a cause itself stay.
    """
    known = {(measurement.process, _cause(measurement)) for measurement in run.measurements}
    more: list[Measurement] = []
    for measurement in run.measurements:
        measured = causes()[_cause(measurement)]
        for name, cause in causes().items():
            if cause.step == measured.step and (measurement.process, name) not in known:
                known.add((measurement.process, name))
                test = measurement.test.replace(f"[{measured.name}]", f"[{name}]")
                more.append(replace(measurement, test=test))
    return replace(run, measurements=(*run.measurements, *more))


def _cause(measurement: Measurement) -> str:
    return measurement.test.partition("[")[2].removesuffix("]")


def without_counters(run: Run) -> Run:
    """The same run as if the hardware counters had been refused."""
    return replace(run, measurements=tuple(map(_uncounted, run.measurements)))


def _uncounted(measurement: Measurement) -> Measurement:
    counters = {name for name, metric in catalogue().metrics.items() if metric.hardware}
    counted = dict.fromkeys(s.metric for s in measurement.samples if s.metric in counters)
    kernels = measurement.kernels
    return replace(
        measurement,
        samples=tuple(s for s in measurement.samples if s.metric not in counters),
        unsupported=(
            *measurement.unsupported,
            *(Unsupported(metric, OFF) for metric in counted),
        ),
        kernels=kernels and _times_only(kernels),
    )


def _times_only(table: KernelTable) -> KernelTable:
    launches = tuple(replace(launch, values=()) for launch in table.launches)
    return replace(table, metrics=(), launches=launches)


def lines(scored: Sequence[Score]) -> list[str]:
    """What was expected and what was said, a few lines each."""
    shown = []
    for score in scored:
        if score.error:
            shown += [f"{score.name}: {score.error}"]
            continue
        cost = "" if score.cost is None else units.moved(score.cost)
        outcome = "regressed" if score.regressed else "NOT FOUND" if score.due else "too small"
        wrong = [
            what
            for what, right in (
                ("place", score.right_place),
                ("kind", score.right_kind),
                ("milliseconds", score.in_interval),
            )
            if not right
        ]
        counts = ", ".join(score.counts) or "same counts"
        complaint = f"; not right: {', '.join(wrong)}" if wrong else ""
        shown += [
            f"{score.name}: {' '.join(filter(None, (cost, outcome)))} ({counts}){complaint}",
            f"  expected {score.expected}",
            f"  said     {score.said or 'nothing'}",
        ]
    return shown


def summary(scored: Sequence[Score]) -> str:
    """How many are right, in one line, and how many of those that shaped no rule."""
    shaping = [score for score in scored if not score.held_out]
    if len(shaping) < len(scored):
        others = summary([replace(score, held_out=False) for score in scored if score.held_out])
        return "; held out: ".join(filter(None, [summary(shaping) if shaping else "", others]))
    due = [score for score in scored if score.due]

    def of_all(what: str, right: Iterable[bool]) -> str:
        return f"{sum(right)} of {len(scored)} {what}"

    return ", ".join(
        [
            f"{sum(score.regressed for score in due)} of {len(due)} regressed",
            of_all("the right place", (score.right_place for score in scored)),
            of_all("the right kind", (score.right_kind for score in scored)),
            of_all("milliseconds", (score.in_interval and not score.error for score in scored)),
        ]
    )
