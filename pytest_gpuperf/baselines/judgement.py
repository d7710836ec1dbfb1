"""The judgement of what a test measured, with more processes where one does not settle it.

Between the fixture, which speaks pytest, and the judge, which sees numbers only. Here is also which
measurements have a verdict, what the others lack, and when a session may not be green: one is
judged when at least one of its gated metrics is unchanged, improved, regressed or inconclusive, and
none is left to the machine, but for one that regressed beside it. Limits and ratios are no
verdicts: they say nothing of the baseline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, TypeVar

from pytest_gpuperf.baselines.reference import Baseline, baseline_of, other_work
from pytest_gpuperf.catalogue import kernel_families
from pytest_gpuperf.catalogue.architectures import CPU
from pytest_gpuperf.catalogue.metric_catalogue import ALWAYS, catalogue
from pytest_gpuperf.catalogue.units import counted
from pytest_gpuperf.errors import GpuperfError, MeasurementError, UsageFailure, meant
from pytest_gpuperf.judge import expectation
from pytest_gpuperf.judge.attribution import Naming, attribute
from pytest_gpuperf.judge.expectation import Ratio
from pytest_gpuperf.judge.machine import kind_of
from pytest_gpuperf.judge.stopping import next_look
from pytest_gpuperf.judge.stragglers import stragglers
from pytest_gpuperf.judge.upgrade import upgrades
from pytest_gpuperf.judge.verdict import ABSENT, TOO_FEW, excludes_loss, judge, paired, withheld
from pytest_gpuperf.measure.device import guard
from pytest_gpuperf.model.measurement import COMPILING, STEP, UNSEEN, WALL, KernelTable, Measurement
from pytest_gpuperf.model.result import Attribution, Expectation, Outcome, Result, Verdict
from pytest_gpuperf.storage.files import put_away, taken_out

if TYPE_CHECKING:
    from pytest_gpuperf.measure.ranks import RankLauncher
    from pytest_gpuperf.measure.replica import Replicas
    from pytest_gpuperf.model.settings import Settings

RECORDABLE = ("no-file", "no-entry")
"""Reasons for which `--gpuperf-missing record` makes a baseline: there is none to be replaced."""
OTHER_ALGORITHM = "other-algorithm"
"""The reason code of what is inconclusive where a process chose other kernels for the same work."""
NOT_AGAIN = "not-looked-again"
"""The reason code of what is inconclusive because a fresh process failed."""
KERNELS = "kernels"
"""The metric name in the verdict on kernels; the catalogue does not have this name."""

_TOLD = {
    UNSEEN: "{title}: gpuperf does not count this part of the step: {value}",
    COMPILING: "{title}: torch.compile compiled again in {value} executions before measuring. "
    "TORCH_LOGS=recompiles says what changes. Pass a changing number as a tensor, and use "
    "torch.compile(dynamic=True) for changing sizes. Compile outside of the step",
}
"""The note for each setting that a measurement has only if something must be said of it."""
_MUCH, _LONG_MS = 3.0, 50.0
"""Times as long, and milliseconds longer, as no neighbour makes a CPU's step by itself."""
_OWN_TIME, _COLLECTIVE_TIME = "own_time", "collective_time"
_Said = TypeVar("_Said", Verdict, Expectation)
Processes = tuple[Measurement, ...]
"""One measurement, once per process that made it."""


class Unjudged(str, Enum):
    """Why a measurement has no verdict; in the order in which a summary counts them."""

    UNFIT = "unfit"
    """The device was throttled or shared."""
    MACHINE = "machine"
    """The measurement moved, and so did the canary."""
    NO_BASELINE = "no-baseline"
    """Neither the suite's file nor an entry of the test."""
    OTHER_WORKLOAD = "other-workload"
    """The baseline's entry is of another workload."""
    OTHER_COLLECTOR = "other-collector"
    """The baseline's entry was measured by another collector or replay."""
    OTHER_METRICS = "other-metrics"
    """The baseline has no gated metric of the measurement."""
    NOT_COLLECTED = "not-collected"
    """No gated metric of the measurement could be read."""
    NOT_GATED = "not-gated"
    """The collector of the measurement counts no gated metric."""
    TOLERATED = "any-tolerated"
    """Any change of the measurement's gated metrics is tolerated."""
    TOO_NOISY = "too-noisy"
    """The noise of the measurement's gated metrics allows no tolerance that says much."""
    NOT_ASKED = "not-asked"
    """The measurement was not compared: --gpuperf-no-judge, or a run that was only recorded."""


_JUDGED = (Outcome.UNCHANGED, Outcome.IMPROVED, Outcome.REGRESSED, Outcome.INCONCLUSIVE)
_IN_VAIN = (Unjudged.MACHINE, Unjudged.NOT_COLLECTED, Unjudged.NOT_GATED)
_BY_REASON = {
    "other-workload": Unjudged.OTHER_WORKLOAD,
    "other-collector": Unjudged.OTHER_COLLECTOR,
    "no-metric": Unjudged.OTHER_METRICS,
}
"""The Unjudged value for a reason code of the verdict; other codes mean NO_BASELINE."""


class NotMeasured(GpuperfError):
    """A measurement that is to be compared was not made in this process, or lacks the metric."""


class Judging:
    """Judges the measurements of a session, and keeps them for the ratios between them."""

    def __init__(self, settings: Settings, replicas: Replicas | RankLauncher | None) -> None:
        self._settings = settings
        self._replicas = replicas
        """The source of further processes; None for a recorded run, which cannot be extended."""
        self._kept: dict[tuple[str, str], tuple[str, str, tuple[bytes, ...]]] = {}
        """Configuration, suite, and the measurements put away, by test and name."""

    def baseline(self, measurement: Measurement) -> Baseline:
        """The baseline of a measurement. Raises BadFile for a file that cannot be trusted."""
        return baseline_of(measurement, self._settings.baselines, self._settings.root)

    def settle(
        self,
        first: Processes,
        baseline: Baseline,
        limit: Mapping[str, object],
        meanwhile: Callable[[], object] | None = None,
    ) -> Result:
        """Judges `first`, and more measurements of fresh processes, until the test is settled.

        `limit` is what the test expects besides, by metric as it was written. A process that fails
        ends it; the notes say why.
        `meanwhile` is called, once at most, where a first look says that the test may have got
        worse: the processes that are to confirm it start beside that.
        """
        look = partial(_look, baseline=baseline, limit=limit)
        return _raced(self._settled([first], look, meanwhile), baseline)

    def _settled(
        self,
        sides: list[Processes],
        look: Callable[..., Result],
        meanwhile: Callable[[], object] | None = None,
    ) -> Result:
        """The result of the last look at one measurement, or at both sides of a ratio."""
        result = look(*sides)
        while self._replicas is not None:
            said: list[Verdict | Expectation] = [*result.verdicts, *result.expectations]
            wanted = next_look(said, min(map(len, sides)), self._settings.processes)
            if wanted is None:
                break
            # One process shows a loss for which several processes would be called slower.
            alarming = any(verdict.reason == TOO_FEW for verdict in result.verdicts)
            start = meanwhile if alarming else None
            try:
                for place, (own, *others) in enumerate(sides):
                    if len(others) + 1 < wanted:
                        more = self._replicas.measurements(own.test, own.name, wanted - 1, start)
                        sides[place] = (own, *more)
            except MeasurementError as error:
                return _not_looked_again(result, error)
            result, meanwhile = look(*sides), None
        return result

    def keep(self, measurements: Processes) -> None:
        """Keeps a measurement for ratios; the latest counts if a test was run again."""
        first = measurements[0]
        put = tuple(map(put_away, measurements))
        self._kept[first.test, first.name] = (first.configuration, first.suite, put)

    def expect(self, ratio: Ratio, over: Processes, under: Processes) -> Expectation:
        """Compares two measurements, and more of both until the expectation is settled."""
        calibration = self.baseline(over[0]).suite.calibration

        def look(numerator: Processes, denominator: Processes) -> Result:
            one = expectation.ratio(ratio, numerator, denominator, calibration)
            return Result(ratio.test, ratio.subject, (), expectations=(one,))

        result = self._settled([over, under], look)
        (expected,) = result.expectations
        return replace(expected, detail="; ".join(result.notes) or expected.detail)

    def pair(self, ratio: Ratio) -> tuple[Processes, Processes]:
        """The measurements of numerator and denominator, of those that were kept.

        Each is the test's own measurement of that name, or else the one of that configuration in
        the suite. Where several tests of the suite measure both configurations, it takes two of one
        test. Raises NotMeasured, and UsageFailure where several are meant.
        """
        over = self._candidates(ratio, ratio.numerator)
        under = self._candidates(ratio, ratio.denominator)
        pairs = [(one, other) for one in over for other in under]
        if len(pairs) > 1:
            pairs = [pair for pair in pairs if _place(pair[0]) == _place(pair[1])]
        if len(pairs) != 1:
            tests = ", ".join(dict.fromkeys(entry[0].test for entry in (*over, *under)))
            raise UsageFailure(
                f'{ratio.test}: "{ratio.numerator}" or "{ratio.denominator}" is ambiguous, as '
                f"these tests measure it: {tests}. Measure both in one test, gpuperf.measure(step, "
                "name=...), and compare them there"
            )
        return pairs[0]

    def _candidates(self, ratio: Ratio, wanted: str) -> list[Processes]:
        own = self._kept.get((ratio.test, wanted))
        of_suite = (one for one in self._kept.values() if one[:2] == (wanted, ratio.suite))
        candidates = [own] if own else [*of_suite]
        if not candidates:
            known = {kept for kept, suite, _ in self._kept.values() if suite == ratio.suite}
            known |= {name for test, name in self._kept if test == ratio.test}
            close = meant(wanted, known)
            raise NotMeasured(
                f'"{wanted}" was not measured in this process. Its test was not selected, was '
                "skipped, failed, runs later, or runs in another worker of pytest-xdist (-n0 "
                f"keeps all tests in one process){close and f'.{close}'}"
            )
        return [tuple(taken_out(Measurement, one) for one in put) for _, _, put in candidates]


def verdicts(measurements: Sequence[Measurement], baseline: Baseline) -> tuple[Verdict, ...]:
    """The result of one test's measurements, one per process, against the baseline.

    The test's own tolerances come before the baseline's. Nothing is judged where the device was
    unfit.
    """
    tolerances = {**baseline.suite.tolerance, **measurements[0].tolerance}
    judged = judge(measurements, baseline.reference, catalogue().metrics, tolerances)
    complaints = _complaints(measurements)
    return withheld(judged, complaints) if complaints else judged


def attributed(result: Result, baseline: Baseline) -> Result:
    """The result, with the kernels that caused the change if a process has a kernel table.

    Where other kernels were launched than the baseline's, the verdict that says so comes first. A
    regression of which no kernel can be named gets a note that says why, and what to do. Never
    keeps a verdict from being reached.
    """
    measured = _tables(result.measurements)
    outcomes = {verdict.outcome for verdict in result.verdicts}
    if not outcomes or Outcome.UNFIT in outcomes:
        return result
    entry = baseline.entry
    software = entry.software if entry else {}, result.first.fingerprint.software
    lost = Outcome.REGRESSED in outcomes
    why = ""
    try:
        before = baseline.kernels() if measured else None
        if before is not None:
            return _explained(result, measured, [before], software)
    except UsageFailure as error:
        what = "operator" if measured[0].of_operators else "kernel"
        why = f"no {what} can be blamed: {' '.join(str(error).split())}" if lost else ""
    moved = lost or Outcome.IMPROVED in outcomes
    other = ", ".join(map(str, upgrades(*software))) if moved else ""
    versions = other and f"versions changed: {other}"
    return replace(result, notes=(*result.notes, *filter(None, [versions, why])))


def judged_in_pairs(pairs: Sequence[tuple[Measurement, Measurement]]) -> Result:
    """The result of one test of two revisions, from processes that were measured in turn.

    Each pair is the old revision's measurement and the new one's. Pairs during which the device was
    unfit are left out; where there is no other, nothing is judged. The tolerance is the new
    revision's, and what the change comes from is said where both have kernel tables.
    """
    fit = [pair for pair in pairs if not _complaints(pair)]
    measured, reference = paired(fit or pairs)
    first = measured[0]
    said = judge(measured, reference, catalogue().metrics, first.tolerance)
    if not fit:
        said = withheld(said, _complaints([one for pair in pairs for one in pair]))
    result = Result(first.test, first.name, tuple(measured), said)
    old, new = (_tables([pair[side] for pair in pairs]) for side in (0, 1))
    software = pairs[0][0].fingerprint.software, first.fingerprint.software
    return _explained(result, new, old, software) if fit and old and new else result


def fit_pairs(pairs: Sequence[tuple[Measurement, Measurement]]) -> int:
    """The number of these pairs in which the device was fit to be measured."""
    return sum(not _complaints(pair) for pair in pairs)


def _explained(
    result: Result,
    measured: Sequence[KernelTable],
    before: Sequence[KernelTable],
    software: tuple[Mapping[str, str], Mapping[str, str]],
) -> Result:
    """The result with the origin of the change, by tables and versions of both sides.

    `software` is the software before, and now.
    """
    operators = measured[0].of_operators
    naming = Naming(*kernel_families.NAMING)
    attribution = replace(
        attribute(measured, before, naming, result.verdicts),
        upgrades=upgrades(*software, before, measured),
    )
    notes = result.notes
    regressed = any(verdict.outcome is Outcome.REGRESSED for verdict in result.verdicts)
    lacking = bool(before[0].metrics) and not measured[0].metrics
    if regressed and (lacking or measured[0].mismatch):
        why = measured[0].mismatch and f": {measured[0].mismatch}"
        notes = (*notes, f"no counters of single kernels here{why}")
    if regressed and operators and measured[0].metrics and not before[0].metrics:
        what = "the baseline's operators lack bytes and types, which would show more"
        notes = (*notes, f"{what}: accept a new run of that code")
    return replace(
        result,
        # Their number is a metric of its own.
        verdicts=(*(() if operators else _changed_kernels(result, attribution)), *result.verdicts),
        notes=notes,
        attribution=attribution,
    )


def much_longer(result: Result, baseline: Baseline) -> tuple[str, ...]:
    """A hint that a CPU waits for something where it counts nothing more; no verdict.

    On the processor model of the baseline, and far beyond what other processes make of it.
    """
    entry, here = baseline.entry, result.first.fingerprint.software.get("cpu")
    moved = any(v.outcome in (Outcome.REGRESSED, Outcome.IMPROVED) for v in result.verdicts)
    if entry is None or entry.software.get("cpu") != here or moved:
        return ()
    before = float(entry.settings.get(WALL, math.inf))
    least = min(float(m.fingerprint.settings.get(WALL, 0.0)) for m in result.measurements)
    if least <= max(_MUCH * before, before + _LONG_MS):
        return ()
    return (
        f"{result.title} takes {least:,.0f} ms, before {before:,.0f} ms, with the same counts. No "
        "test fails for times on a CPU, but look for a wait (a sleep, a lock, other processes)",
    )


def notes_on(measurements: Processes) -> Iterator[str]:
    """The notes on a measurement, whether the measurement is judged or not."""
    first = measurements[0]
    if varies := other_work(measurements):
        yield varies
    for setting, said in _TOLD.items():
        if setting in first.fingerprint.settings:
            yield said.format(title=first.title, value=first.fingerprint.settings[setting])
    yield from slower_ranks(first)


def slower_ranks(measurement: Measurement) -> tuple[str, ...]:
    """A note for each rank of a step that works longer than its peers; on GPUs, which are alike."""
    if not measurement.peers:
        return ()
    ranks = []
    for peer in measurement.peers:
        of_step = {s.metric: s.values for s in peer.samples if s.phase == STEP}
        if _OWN_TIME in of_step and peer.device.arch != CPU:
            ranks.append((peer, of_step[_OWN_TIME], of_step.get(_COLLECTIVE_TIME, ())))
    found = stragglers(
        [own for _, own, _ in ranks],
        [kind_of(peer.conditions) for peer, _, _ in ranks],
        [waited for _, _, waited in ranks],
    )
    return tuple(
        f"{ranks[one.rank][0].name} is a straggler: it works {100 * one.slower:.1f} % longer than "
        f"the other ranks ({one.own / 1e6:.6g} ms, they take {one.peers / 1e6:.6g} ms)"
        for one in found
    )


def fails(said: Verdict | Expectation, settings: Settings) -> bool:
    """Whether a verdict, or the result of an expectation, fails its test under these settings."""
    if said.outcome is Outcome.INCONCLUSIVE:
        if isinstance(said, Verdict) and surely_no_loss(said):
            return False
        # Noise may be endured, as the settings say; that nobody could look again may not.
        return settings.inconclusive == "fail" or said.reason == NOT_AGAIN
    if said.outcome is Outcome.NO_BASELINE:
        # What is there is not replaced without being asked: recording would not help this one.
        recorded = settings.missing == "record" and said.reason in RECORDABLE
        return settings.missing != "warn" and not recorded
    if said.outcome is Outcome.UNSUPPORTED:
        return said.reason != ABSENT and settings.require_counters
    return said.outcome in (Outcome.REGRESSED, Outcome.BROKEN)


def surely_no_loss(said: Verdict) -> bool:
    """Whether an inconclusive verdict could at most be a gain, so that no test need fail for it."""
    known = catalogue().metrics.get(said.metric)
    return known is not None and excludes_loss(said, known)


def not_collected(metric: str, sides: Sequence[tuple[str, Measurement]]) -> str:
    """Which of these named measurements lacks `metric`, why, and what would collect it.

    "" when all have it for the whole step.
    """
    for name, measurement in sides:
        if any((s.metric, s.phase) == (metric, STEP) for s in measurement.samples):
            continue
        said = next((u.reason for u in measurement.unsupported if u.metric == metric), "")
        sets = [name for name, metrics in catalogue().sets.items() if metric in metrics]
        asked = str(measurement.fingerprint.settings.get("metrics", "")).split(",")
        if not said and sets and not {ALWAYS, *map(str.strip, asked)} & {metric, *sets}:
            said = f"collect it with --gpuperf-metrics {sets[0]}"
        said = said or f"gpuperf does not count it on {measurement.fingerprint.device.name}"
        return f"{metric} was not collected for {name}: {said}"
    return ""


def unjudged_reason(result: Result) -> Unjudged | None:
    """The reason why a measurement was not judged; None if the measurement has a verdict."""
    if not result.verdicts:
        return Unjudged.NOT_ASKED
    by_outcome = {verdict.outcome: verdict for verdict in result.verdicts}
    if Outcome.MACHINE in by_outcome and Outcome.REGRESSED not in by_outcome:
        return Unjudged.MACHINE
    if any(verdict.outcome in _JUDGED for verdict in result.verdicts):
        return None
    if Outcome.UNFIT in by_outcome:
        return Unjudged.UNFIT
    if Outcome.NO_BASELINE in by_outcome:
        return _BY_REASON.get(by_outcome[Outcome.NO_BASELINE].reason, Unjudged.NO_BASELINE)
    if unread(result):
        return Unjudged.NOT_COLLECTED
    reasons = {verdict.reason for verdict in result.verdicts}
    why = (one for one in (Unjudged.TOO_NOISY, Unjudged.TOLERATED) if one.value in reasons)
    return next(why, Unjudged.NOT_GATED)


def lacking(results: Iterable[Result]) -> list[tuple[Result, Unjudged | None]]:
    """Every measurement of these results once, and the reason why it has no verdict, if any.

    One that was made again, as its test was, is judged where any of its executions was; else it is
    the last of them that counts. Ratios between measurements are none.
    """
    last: dict[tuple[str, str], tuple[Result, Unjudged | None]] = {}
    for result in results:
        if result.measurements:
            key = (result.test, result.name)
            if key not in last or last[key][1] is not None:
                last[key] = result, unjudged_reason(result)
    return list(last.values())


def unread(result: Result) -> list[Verdict]:
    """The verdicts that say of a gated metric that it could not be read."""
    metrics = catalogue().metrics
    return [
        verdict
        for verdict in result.verdicts
        if verdict.outcome is Outcome.UNSUPPORTED
        and verdict.metric in metrics
        and metrics[verdict.metric].gated
    ]


def none_judged(results: Iterable[Result], settings: Settings) -> list[tuple[Result, Unjudged]]:
    """The measurements with reasons, if the session judged nothing of all that it measured.

    Such a session must not end as one in which all is well. Empty where it was not to judge, or
    where something was judged. A measurement without a baseline is left out: that is for
    --gpuperf-missing to fail, or to let pass, also where the device was unfit besides.
    """
    every = lacking(results) if settings.judge else []
    if any(lack is None for _, lack in every):
        return []
    return [
        (result, lack)
        for result, lack in every
        if lack in _IN_VAIN
        or (lack is Unjudged.UNFIT and (settings.missing == "fail" or _has_baseline(result)))
    ]


def _has_baseline(result: Result) -> bool:
    """Whether a measurement on an unfit device could have been compared: the numbers are kept."""
    return any(v.outcome is Outcome.UNFIT and v.baseline is not None for v in result.verdicts)


def _look(measurements: Processes, baseline: Baseline, limit: Mapping[str, object]) -> Result:
    """One look at all of these processes."""
    first = measurements[0]
    said = verdicts(measurements, baseline)
    result = Result(first.test, first.name, measurements, said, judged_by=baseline.judged_by)
    if not limit or _complaints(measurements):
        return result
    metrics, calibration = catalogue().metrics, baseline.suite.calibration
    limits = expectation.limits(measurements, limit, metrics, calibration)
    return replace(result, expectations=limits)


def _complaints(measurements: Sequence[Measurement]) -> list[str]:
    """Why the device was not fit to be measured, each reason once."""
    conditions = [m.fingerprint.conditions for m in measurements]
    conditions += [peer.conditions for m in measurements for peer in m.peers]
    return list(dict.fromkeys(c for seen in conditions if seen for c in guard.unfit(seen)))


def _tables(measurements: Sequence[Measurement]) -> list[KernelTable]:
    """The tables of these processes; tables without counters only if there is no other table."""
    tables = [m.kernels for m in measurements if m.kernels is not None]
    return [table for table in tables if not table.mismatch] or tables


def _changed_kernels(result: Result, attribution: Attribution) -> tuple[Verdict, ...]:
    """The verdict on the sequence of kernels, where it is another than the baseline's."""
    launched = attribution.launched
    if not launched.changed:
        return ()
    others = {how: getattr(launched, how) for how in ("added", "removed", "replaced")}
    counts = {**others, "moved": launched.moved}
    return (
        Verdict(
            test=result.test,
            name=result.name,
            phase=STEP,
            metric=KERNELS,
            unit="launches",
            outcome=Outcome.KERNELS_CHANGED,
            reason="other-kernels" if any(others.values()) else "other-order",
            baseline=float(sum(entry.launches_before for entry in attribution.entries)),
            measured=float(sum(entry.launches_after for entry in attribution.entries)),
            detail=", ".join(f"{count} {what}" for what, count in counts.items() if count)
            + _at_lines(attribution),
        ),
    )


def _at_lines(attribution: Attribution) -> str:
    """Where in the code other kernels come from, as "; at a.py:3 f and 2 other lines"."""
    places = [f"{one.line} {one.function}".strip() for one in attribution.lines if one.kernels]
    places = [place for place in places if place]
    more = f" and {counted(len(places) - 1, 'other line')}" if len(places) > 1 else ""
    return f"; at {places[0]}{more}" if places else ""


def _raced(result: Result, baseline: Baseline) -> Result:
    """The result with the reason, if a process chose another kernel for the same work.

    The baseline's may have, where something is inconclusive and nothing regressed: else the code
    may have changed.
    """
    doubtful = {
        verdict: replace(verdict, reason=OTHER_ALGORITHM)
        for verdict in result.verdicts
        if verdict.outcome is Outcome.INCONCLUSIVE and not surely_no_loss(verdict)
    }
    first, *others = (one.launched for one in result.measurements)
    sides = {f"process {number}": other for number, other in enumerate(others, 2)}
    lost = any(verdict.outcome is Outcome.REGRESSED for verdict in result.verdicts)
    if doubtful and first and not lost:
        sides["the baseline"] = _launched(baseline)
    instead = [f"{who} {how}" for who, one in sides.items() if (how := _instead(first, one))]
    if not instead:
        return result
    said = f"{result.first.title}: {instead[0]}. cudnn.benchmark and autotuning choose by timing"
    verdicts = tuple(doubtful.get(verdict, verdict) for verdict in result.verdicts)
    return replace(result, verdicts=verdicts, notes=(said, *result.notes))


def _instead(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """The kernels launched here instead of those there, for the same work; "" if unknown."""
    short, family = kernel_families.short_name, kernel_families.family
    others = product(sorted({*there} - {*here}), sorted({*here} - {*there}))
    pairs = [(short(one), short(other)) for one, other in others if family(one) == family(other)]
    for ran, other in sorted(pairs, key=lambda pair: pair[0] == pair[1]):
        return f"ran {ran} instead of " + (other if other != ran else "another kernel of that name")
    for name in there:
        if here.get(name, there[name]) != there[name]:
            return f"launched {short(name)} with another block size or another number of times"
    return ""


def _launched(baseline: Baseline) -> Mapping[str, str]:
    """The launches of the baseline's kernel table, named as in a measurement; {} without it."""
    with suppress(UsageFailure):
        if table := baseline.kernels():
            sizes = ((table.names[k.name], k.grid, k.block) for k in table.launches if k.grid)
            return kernel_families.launched(sizes)
    return {}


def _place(measurements: Processes) -> tuple[str, str]:
    """A measurement's test without its parameters, and its name there."""
    return measurements[0].test.partition("[")[0], measurements[0].name


def _not_looked_again(result: Result, error: MeasurementError) -> Result:
    """The result, with `error` as the reason of each undecided verdict: the next look failed."""

    def undecided(said: _Said) -> _Said:
        return replace(said, reason=NOT_AGAIN) if said.outcome is Outcome.INCONCLUSIVE else said

    return replace(
        result,
        verdicts=tuple(map(undecided, result.verdicts)),
        expectations=tuple(map(undecided, result.expectations)),
        notes=(*result.notes, f"the test could not be repeated: {error}"),
    )
