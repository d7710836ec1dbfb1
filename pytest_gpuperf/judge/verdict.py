"""The rule: from the numbers of a measurement and its baseline to one verdict per metric.

regressed: worse than the tolerance, in every process where there are only three, and further from
zero than chance explains. improved: the mirror image. unchanged: within the tolerance, and no loss
beyond the equivalence bound in the whole interval. Anything else is inconclusive, and asks for
another look (`interval.py`). docs/verdict.md has the rule, docs/evidence.md how often it is right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from pytest_gpuperf.judge.interval import (
    Difference,
    centre,
    difference,
    judged_values,
    pair_changes,
    paired_difference,
)
from pytest_gpuperf.judge.machine import KERNEL_TIME, MachineState, confounded, kinds
from pytest_gpuperf.judge.noise import (
    ALIKE,
    ALIKE_ELSEWHERE,
    FITTED_ON,
    BaselineGpus,
    Kind,
    Rounds,
    Scale,
    quantile,
    scales,
    total,
)
from pytest_gpuperf.judge.stopping import ALARMING, COST_UNSURE, LEAST_TO_ALARM
from pytest_gpuperf.judge.tolerance import Tolerance, is_judged, of_pairs, tolerance_for
from pytest_gpuperf.model.entry import Calibration, CanarySeries
from pytest_gpuperf.model.measurement import STEP, Measurement
from pytest_gpuperf.model.metric import Direction, Metric, MetricClass
from pytest_gpuperf.model.result import Outcome, Verdict

ALARM_RATE = 1e-3
"""False alarms a night, over all measurements of the suite, their gated metrics and looks."""
MISS_RATE = 0.01
"""The rate at which a slowdown of the size that is called detectable is missed."""
EXACT_SHARE = 2
"""The largest number of shares of the error that exact counts have together."""
ALL_AGREE = 4
"""Up to so many processes, each of them has to be beyond the floor: a median of three is no
protection against two slow ones."""

ABSENT = "absent"
"""The reason code of a metric that the catalogue does not know of the architecture, which is
no fault of the test."""
TOO_FEW = "too-few-processes"
"""The reason code of a change that several processes have to show."""
UNSURE = "beyond-floor-unsure"
"""The reason code of a change beyond the floor that may be chance."""
TOO_NOISY = "too-noisy"
"""The reason code of a change within the floor whose interval is not within the bound, and of a
metric that is only reported, as its baseline can hold no tolerance that says much."""
MOST_WIDENED = 0.1
"""The tolerance above which, if no wider one was asked for, a metric whose noise needs it is
only reported. What is surely worse still fails."""
TOLERATED = "any-tolerated"
"""The reason code of a gated metric that is reported only, as any change is tolerated."""
COSTS_NOTHING = "costs-nothing"
"""The reason code of a count that grew a little while no time of the step did."""
NEW_METRIC = "new-metric"
"""The reason code of a gated metric that the baseline lacks, though it has others."""
NO_WORK = "no-work"
"""The reason code of what improved in a step that does nearly nothing any more."""
NOT_COMPILED = "not-compiled"
"""The reason code of a step without any of the compiled graphs that the baseline's had."""
COMPILED = "compiled_graphs"
WORK = ("launches", "operators")
"""The metrics of the step's work: without any work the other metrics say nothing."""
_AMOUNTS = ("flops", "instructions")
"""The metrics of the amount of work: fused loops and kernels do as much by less of WORK."""
_REST = 0.1
"""The share of work at or below which the rest of a step is done elsewhere now, or not at all."""
MOST_FREE, LEAST_COST = 0.005, 0.003
"""A count that grew by less than the first fails nothing where all gated times surely grew by less
than the second."""
COST_SURE = 0.8
"""The width of an interval that a loss exceeds in 1 % of cases, as a share of the one that is
printed, of 0.25 %: by Student's t, of 8 to 30 degrees of freedom."""
ON_PURPOSE = (
    *("stream_synchronizations", "event_synchronizations", "device_synchronizations"),
    *("driver_allocations", "graph_breaks", "recompilations", COMPILED),
)
"""Counts that are worth a failure whatever the time says: what they cost moves with the machine."""
OTHER_GPU = "no baseline run used this GPU: its value is predicted from other GPUs"
"""The detail of a verdict that was reached between GPUs."""
ONE_DAY = "all baseline runs are from one other day"
"""The detail of a verdict on another day than all processes of the baseline have."""

Samples = Mapping[str, Mapping[str, Rounds]]
"""Values per phase, metric, process and round."""


@dataclass(frozen=True)
class Reference:
    """The samples of a baseline to compare a measurement with, or the reason why there are none."""

    samples: Samples | None
    missing: str = ""
    """The reason code when there are no samples: `no-file`, `no-entry`, `other-workload`."""
    detail: str = ""
    gpus: tuple[str, ...] = ()
    """The GPU of each process of the samples; empty when that was not kept."""
    days: tuple[str, ...] = ()
    """The day of each process of the samples; empty when that was not kept."""
    calibration: Calibration | None = None
    """The calibration of this suite's noise on this device; None if there is none."""
    canary: CanarySeries | None = None
    """The canary's readings beside each process of the samples."""
    tests: int = 1
    """The number of measurements that share the error of a night."""
    paired: bool = False
    """Each process of the samples has a partner of the same place among those that are judged,
    which was measured next to it."""


def judge(
    measurements: Sequence[Measurement],
    reference: Reference,
    metrics: Mapping[str, Metric],
    tolerances: Mapping[str, str],
) -> tuple[Verdict, ...]:
    """A verdict per phase and metric of a measurement, in the order of its samples.

    `measurements` are of the same test, one per process; one look, at as many as there are. Only
    gated metrics of the whole step may fail a test, unless any change of them is tolerated; the
    rest is `reported`. A gated metric that the baseline has and the measurement has not is
    `unsupported`. One that the baseline lacks, beside others that it has, is `reported` with the
    reason "new-metric": it came with a newer release of ours, and no baseline is void for that.
    `tolerances` are those that were written, by metric.

    Each metric is compared and decided by itself. Corrections follow, in this order: a step that
    does nothing any more is not fast, and one that lost torch.compile got worse; what the machine
    explains is not the code's; a count that costs no time fails nothing.
    """
    case = _Case(measurements, reference, metrics, tolerances)
    verdicts = [verdict for phase in case.measured for verdict in case.verdicts(phase)]
    left = _left(verdicts)
    verdicts = [_working(verdict, left) for verdict in verdicts]
    if case.machine.is_known:
        verdicts = [
            # What is surely no loss passes in any case.
            verdict
            if verdict.outcome is Outcome.INCONCLUSIVE
            and excludes_loss(verdict, metrics[verdict.metric])
            else confounded(verdict, metrics[verdict.metric], case.machine)
            for verdict in verdicts
        ]
    gated = [v for v in verdicts if v.phase == STEP and metrics[v.metric].gated]
    times = [v for v in gated if metrics[v.metric].metric_class is MetricClass.CYCLE]
    verdicts = [_weighed(verdict, metrics[verdict.metric], times) for verdict in verdicts]
    return (*verdicts, *case.unsupported())


@dataclass(frozen=True)
class _Case:
    """One look at a test: the arguments of `judge`, and what follows from them."""

    measurements: Sequence[Measurement]
    reference: Reference
    metrics: Mapping[str, Metric]
    tolerances: Mapping[str, str]

    @cached_property
    def measured(self) -> Samples:
        """The values of the new processes."""
        return samples_by_phase(self.measurements)

    def _known(self, phase: str) -> Mapping[str, Rounds]:
        """The baseline's values of a phase."""
        return (self.reference.samples or {}).get(phase, {})

    @cached_property
    def judged(self) -> Mapping[str, Metric]:
        """The metrics that may fail the measurement."""
        step = self.measured.get(STEP, {})
        return {
            name: self.metrics[name]
            for name in step
            if is_judged(self.metrics[name], self.tolerances.get(name))
        }

    @cached_property
    def rate(self) -> float:
        """The share of a night's error that one gated metric has at one look.

        Exact counts are two metrics, however many exist: chance does not move a count that is the
        same in every execution, and a dozen of them must not blunt the judgement of times.
        """
        exact = [one.metric_class is MetricClass.DETERMINISTIC for one in self.judged.values()]
        family = exact.count(False) + min(exact.count(True), EXACT_SHARE)
        return ALARM_RATE / (ALARMING * max(family, 1))

    @cached_property
    def exact(self) -> frozenset[str]:
        """The counts that were the same in several processes, and in all rounds of the new ones.

        One process decides them: a further one would only say the same integer again. Hardware
        counters are not exact, and a process can lose torch.compile by itself. Where a time is
        judged too, as on a GPU, the test is not decided before that is.
        """
        step, known = self.measured.get(STEP, {}), self._known(STEP)
        both = [metric for name, metric in self.judged.items() if name in known]
        if any(metric.metric_class is not MetricClass.DETERMINISTIC for metric in both):
            return frozenset()
        return frozenset(
            metric.name
            for metric in both
            if not (metric.hardware or metric.name in ON_PURPOSE)
            and len(known[metric.name]) >= LEAST_TO_ALARM
            and all(len({*chain.from_iterable(side[metric.name])}) == 1 for side in (step, known))
        )

    @cached_property
    def gpus(self) -> BaselineGpus | None:
        """The GPUs of the baseline and of the new processes; None if they were not kept."""
        reference, prints = self.reference, [one.fingerprint for one in self.measurements]
        if not reference.gpus:
            return None
        known: tuple[Kind | None, ...] = ()
        kind = None
        if reference.canary:
            known, kind = kinds(self.measurements, reference.canary)
        days = {one.measured[:10] for one in prints}
        day = days.pop() if len(days) == 1 else ""
        by_process = {one.process: one.fingerprint.device.identity for one in self.measurements}
        new = tuple(by_process.values())
        alike = ALIKE if prints[0].device.slug == FITTED_ON else ALIKE_ELSEWHERE
        return BaselineGpus(reference.gpus, reference.days, new, day, known, kind, alike)

    @cached_property
    def machine(self) -> MachineState:
        """The state of the machine that was measured on."""
        is_unseen = self.gpus is not None and not self.gpus.known
        known, gpus = self.reference.canary, self.reference.gpus
        return MachineState(self.measurements, known, gpus, is_unseen)

    def verdicts(self, phase: str) -> Iterator[Verdict]:
        """The verdicts on the metrics of a phase, each by itself."""
        first, looks = self.measurements[0], self._differences(phase)
        for name, rounds in self.measured[phase].items():
            outcome, reason, detail = self._outcome(phase, name, looks.get(name))
            verdict = Verdict(
                test=first.test,
                name=first.name,
                phase=phase,
                metric=name,
                unit=self.metrics[name].unit,
                points=self.metrics[name].percentage,
                processes=len({measurement.process for measurement in self.measurements}),
                outcome=outcome,
                reason=reason,
                detail=detail,
                measured=centre(rounds),
            )
            yield self._with_numbers(verdict, looks[name]) if name in looks else verdict

    def _outcome(self, phase: str, name: str, look: Difference | None) -> tuple[Outcome, str, str]:
        """The outcome of a metric, its reason code and detail; `look` is None without a value."""
        metric = self.metrics[name]
        if phase != STEP or name not in self.judged:
            is_tolerated = phase == STEP and metric.gated
            return Outcome.REPORTED, TOLERATED if is_tolerated else "not-gated", ""
        if look:
            least = 1 if name in self.exact else LEAST_TO_ALARM
            return *decide(metric.direction, look, self.rate, self.reference.tests, least), ""
        detail = f"the baseline has no {name} for this test"
        if not self.judged.keys().isdisjoint(self._known(STEP)):
            return Outcome.REPORTED, NEW_METRIC, f"{detail}: accept a run with it"
        missing = self.reference.missing or "no-metric"
        return Outcome.NO_BASELINE, missing, self.reference.detail or detail

    def _with_numbers(self, verdict: Verdict, look: Difference) -> Verdict:
        if look.from_zero:
            return replace(verdict, baseline=0.0, tolerance=look.tolerance.floor)
        between = OTHER_GPU if look.is_unseen else ""
        day = ONE_DAY if look.of_one_day else ""
        detectable = minimum_detectable_effect(look, self.rate, self.reference.tests)
        return replace(
            verdict,
            baseline=look.baseline,
            change=look.shown(look.change),
            low=look.shown(look.change - look.margin),
            high=look.shown(look.change + look.margin),
            tolerance=look.shown(look.floor),
            detail="; ".join(filter(None, [between, day])),
            minimum_detectable_effect=look.shown(detectable),
        )

    def _differences(self, phase: str) -> dict[str, Difference]:
        """The differences of the metrics of a phase that both sides have."""
        now, known, paired = self.measured[phase], self._known(phase), self.reference.paired
        both = {name: known[name] for name in now if name in known}
        if paired:
            both = {name: old for name, old in both.items() if len(old) == len(now[name])}
        allowed = {name: self._tolerance(name) for name in both}
        if paired:
            changes = {n: pair_changes(now[n], old, allowed[n]) for n, old in both.items()}
            scale = self._scales(changes, allowed)
            return {
                n: paired_difference(now[n], old, allowed[n], scale[n]) for n, old in both.items()
            }
        values = {n: judged_values(old, allowed[n]) for n, old in both.items()}
        scale = self._scales(values, allowed)
        looks = {
            n: difference(now[n], old, allowed[n], self.gpus, scale[n]) for n, old in both.items()
        }
        if self.machine.is_known and phase == STEP and KERNEL_TIME in looks:
            shared = total([looks[KERNEL_TIME].shared, self.machine.clock_error])
            looks[KERNEL_TIME] = replace(looks[KERNEL_TIME], shared=shared)
        return looks

    def _tolerance(self, name: str) -> Tolerance:
        written, calibration = self.tolerances.get(name), self.reference.calibration
        tolerance = tolerance_for(self.metrics[name], written, calibration)
        return of_pairs(tolerance) if self.reference.paired else tolerance

    def _scales(
        self, compared: Mapping[str, Sequence[float]], allowed: Mapping[str, Tolerance]
    ) -> dict[str, Scale]:
        """The scales of these metrics: the gated metrics of a class share theirs.

        Others only borrow: a noisy clock on the CPU must not blunt a counter, and neither must the
        time of a step that waits for its host, whose tolerance was written for it.
        """
        groups: dict[object, dict[str, Sequence[float]]] = {}
        for name, values in compared.items():
            metric = self.metrics[name]
            sharing = metric.gated and not allowed[name].written
            # Points and shares are different numbers, so they do not share.
            group = (metric.metric_class, metric.percentage) if sharing else name
            groups.setdefault(group, {})[name] = values
        by_metric: dict[str, Scale] = {}
        for members in groups.values():
            by_metric |= scales(members, allowed, self.gpus)
        return by_metric

    def unsupported(self) -> Iterator[Verdict]:
        """The verdicts on metrics that are not measured, and were asked for or are expected."""
        first = self.measurements[0]
        reasons = {entry.metric: entry.reason for entry in first.unsupported}
        lost = dict.fromkeys(self._known(STEP), "the baseline has this metric, this run has not")
        for name, detail in {**lost, **reasons}.items():
            metric = self.metrics[name]
            if name in self.measured.get(STEP, {}) or not (name in reasons or metric.gated):
                continue
            exists = name not in reasons or metric.exists_on(first.fingerprint.device.arch)
            yield Verdict(
                test=first.test,
                name=first.name,
                phase=STEP,
                metric=name,
                unit=metric.unit,
                outcome=Outcome.UNSUPPORTED,
                reason="not-collected" if exists else ABSENT,
                detail=detail,
            )


def _left(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """The shares that are left of the step's work, by metric; empty if enough work is left."""
    shares = {
        v.metric: (v.measured or 0.0) / v.baseline
        for v in verdicts
        if v.metric in (*WORK, *_AMOUNTS) and v.phase == STEP and v.baseline
    }
    ended = {name: share for name, share in shares.items() if name in WORK and not share}
    # Launches alone fall by a CUDA graph.
    nearly = shares.keys() > {"launches"} or "operators" in shares
    return ended or (shares if nearly and max(shares.values()) <= _REST else {})


def _working(verdict: Verdict, left: Mapping[str, float]) -> Verdict:
    """The verdict; a step that does nearly no work any more fails until that is accepted.

    So does a step without compiled graphs if the baseline had some: it lost torch.compile. Fewer
    graphs are a gain.
    """
    if verdict.outcome is not Outcome.IMPROVED:
        return verdict
    if not left:
        if verdict.metric != COMPILED or verdict.measured:
            return verdict
        detail = "the step no longer uses torch.compile: is that intended?"
        return replace(verdict, outcome=Outcome.REGRESSED, reason=NOT_COMPILED, detail=detail)
    work, share = next(iter(left.items()))
    if share:
        detail = f"the step has {100 * share:.2g} % of its former {work}: is that intended?"
    else:
        detail = f"the step has no {work} any more: is that intended?"
    outcome = Outcome.REGRESSED if verdict.metric in left else Outcome.INCONCLUSIVE
    return replace(verdict, outcome=outcome, reason=NO_WORK, detail=detail)


def _weighed(verdict: Verdict, metric: Metric, times: Sequence[Verdict]) -> Verdict:
    """The verdict; a count fails nothing if the gated `times` say that it costs nothing.

    Where all of them improved, and where it grew by little and all of them surely by less than
    LEAST_COST. Memory is a resource of its own: it is outweighed only by a gain that is larger.
    Where any change of a time is tolerated, the cost of the step is unknown.
    """
    compared = [time for time in times if time.baseline is not None]
    if verdict.outcome is not Outcome.REGRESSED or verdict.points or not compared:
        return verdict
    lost, gained = _most_lost(verdict, metric), min(-(time.high or 0.0) for time in compared)
    is_memory = metric.practical_floor is not None
    is_count = metric.metric_class is MetricClass.DETERMINISTIC and not is_memory
    if verdict.reason in (NO_WORK, NOT_COMPILED) or not (is_count or is_memory):
        return verdict
    if all(time.outcome is Outcome.IMPROVED for time in compared) and (is_count or lost < gained):
        detail = f"the step got faster by at least {100 * gained:.3g} %"
        return replace(verdict, outcome=Outcome.OUTWEIGHED, reason="faster", detail=detail)
    if not is_count or verdict.metric in ON_PURPOSE or lost >= MOST_FREE:
        return verdict
    if max(map(_cost, compared)) < LEAST_COST:
        detail = f"this costs less than {100 * LEAST_COST:.2g} % of the step's time"
        return replace(verdict, outcome=Outcome.OUTWEIGHED, reason=COSTS_NOTHING, detail=detail)
    may_be_free = all(_cost(one) < math.inf and (one.change or 0) < LEAST_COST for one in compared)
    return replace(verdict, reason=COST_UNSURE) if may_be_free else verdict


def _cost(time: Verdict) -> float:
    """The loss of the step by this time, at most, 99 % sure; unknown if the time is not judged."""
    judged = time.outcome in (Outcome.UNCHANGED, Outcome.INCONCLUSIVE, Outcome.IMPROVED)
    if time.high is None or time.change is None or not judged:
        return math.inf
    return time.change + COST_SURE * (time.high - time.change)


def _most_lost(verdict: Verdict, metric: Metric) -> float:
    """The worst end of the interval; a loss is above 0."""
    higher = metric.direction is Direction.HIGHER
    end = verdict.low if higher else verdict.high
    return math.inf if end is None else -end if higher else end


def decide(
    direction: Direction,
    look: Difference,
    rate: float,
    tests: int = 1,
    least: int = LEAST_TO_ALARM,
) -> tuple[Outcome, str]:
    """The verdict on one difference, with its reason code.

    By chance any of so many `tests` is alarmed at in this share of nights. A change needs `least`
    processes that show it.
    """
    worse = -look.change if direction is Direction.HIGHER else look.change
    if look.baseline == 0 and look.measured == 0:
        return Outcome.UNCHANGED, "both-zero"
    floor = 0.0 if look.from_zero else look.floor
    outside = look.from_zero or abs(worse) > floor
    if outside and look.processes < least:
        return Outcome.INCONCLUSIVE, TOO_FEW
    two_sided = look.tolerance.two_sided
    beyond_chance = look.from_zero or abs(worse) > look.chance(rate, tests)
    if outside and beyond_chance and _all_beyond(look, floor):
        beyond = Outcome.REGRESSED if worse > 0 else Outcome.IMPROVED
        return beyond, "from-zero" if look.from_zero else "beyond-floor"
    if outside and (worse > 0 or two_sided):
        return Outcome.INCONCLUSIVE, UNSURE
    if look.widened > MOST_WIDENED:
        return Outcome.REPORTED, TOO_NOISY
    # Whether it is a small gain is worth no further process.
    lost = abs(worse) if two_sided else worse
    if lost + look.margin < look.equivalence:
        return Outcome.UNCHANGED, "within-tolerance"
    return Outcome.INCONCLUSIVE, TOO_NOISY


def excludes_loss(verdict: Verdict, metric: Metric) -> bool:
    """Whether noise hides at most a gain: the whole interval is short of a loss that counts.

    `unchanged` allows its interval the equivalence bound; this is the floor, which is narrower.
    """
    # Whatever else leaves it inconclusive is not noise.
    is_noise = verdict.reason in (UNSURE, TOO_NOISY)
    return is_noise and _most_lost(verdict, metric) < (verdict.tolerance or 0.0)


def withheld(verdicts: Sequence[Verdict], complaints: Sequence[str]) -> tuple[Verdict, ...]:
    """The verdicts for an unfit device: `complaints` take the place of outcomes."""
    judged = (Outcome.REPORTED, Outcome.UNSUPPORTED)
    return tuple(
        verdict
        if verdict.outcome in judged
        else replace(
            verdict, outcome=Outcome.UNFIT, reason="device-unfit", detail="; ".join(complaints)
        )
        for verdict in verdicts
    )


def minimum_detectable_effect(look: Difference, rate: float, tests: int = 1) -> float:
    """The smallest slowdown that the looks find 99 times in 100, on the judged scale.

    The larger of two conditions: that each of three processes is beyond the tolerance, delta0 +
    q se_1, and their median beyond chance, t se_3 + q se_3; q is the quantile of a third of the
    misses, by the baseline's own noise.
    """
    miss = quantile(MISS_RATE / LEAST_TO_ALARM, look.spread.degrees)
    one, three = map(look.like_the_baselines, (1, LEAST_TO_ALARM))
    alarm = three.chance(rate, tests)
    return max(look.floor + miss * one.error.root, alarm + miss * three.error.root)


def _all_beyond(look: Difference, floor: float) -> bool:
    """Whether all processes agree, if they are too few for their median to be robust."""
    if look.processes > ALL_AGREE:
        return True
    sign = 1 if look.change > 0 else -1
    return all(sign * change > floor for change in look.changes)


def paired(
    pairs: Sequence[tuple[Measurement, Measurement]],
) -> tuple[tuple[Measurement, ...], Reference]:
    """The new measurements, and the old ones as reference, of pairs (old, new) made in turn.

    A metric that a process of the old side lacks is left out.
    """
    old = samples_by_phase([before for before, _ in pairs])
    whole = {
        phase: {name: rounds for name, rounds in series.items() if len(rounds) == len(pairs)}
        for phase, series in old.items()
    }
    return tuple(after for _, after in pairs), Reference(whole, paired=True)


def samples_by_phase(
    measurements: Sequence[Measurement],
) -> dict[str, dict[str, list[list[float]]]]:
    """The values of several processes' measurements, by phase, metric, process and round.

    What one process measured twice is one process with more rounds.
    """
    gathered: dict[str, dict[str, dict[str, list[float]]]] = {}
    for measurement in measurements:
        for sample in measurement.samples:
            series = gathered.setdefault(sample.phase, {}).setdefault(sample.metric, {})
            series.setdefault(measurement.process, []).extend(sample.values)
    return {
        phase: {metric: list(processes.values()) for metric, processes in series.items()}
        for phase, series in gathered.items()
    }
