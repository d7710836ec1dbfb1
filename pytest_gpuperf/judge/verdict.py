"""The rule: from the numbers of a measurement and its baseline to one verdict per metric.

regressed: worse than the tolerance, in every process where there are only three, and further from
zero than chance explains. improved: the mirror image. unchanged: within the tolerance, and no loss
beyond the equivalence bound in the whole interval. Anything else is inconclusive, and asks for
another look (`interval.py`). docs/verdict.md has the rule, docs/evidence.md how often it is right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from pytest_gpuperf.judge.interval import (
    Difference,
    centre,
    difference,
    medians,
    pair_changes,
    paired_difference,
)
from pytest_gpuperf.judge.machine import KERNEL_TIME, confounded, kinds, machine_state
from pytest_gpuperf.judge.noise import (
    FITTED_ON,
    BaselineGpus,
    ProcessPlace,
    Rounds,
    Scale,
    judged_unit,
    on_judged_scale,
    places_of,
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

    @property
    def places(self) -> tuple[ProcessPlace, ...]:
        """The place of each process of the samples; empty if the GPUs were not kept."""
        return places_of(self.gpus, self.days)


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
    measured = samples_by_phase(measurements)
    gate = _gate(measured.get(STEP, {}), reference, metrics, tolerances)
    gpus = _gpus(measurements, reference)
    machine = machine_state(
        measurements,
        reference.canary,
        reference.gpus,
        is_unseen=gpus is not None and not gpus.known,
    )
    verdicts: list[Verdict] = []
    for phase, series in measured.items():
        samples = _phase_samples(phase, series, reference, metrics, tolerances)
        looks = samples.differences(gpus)
        if machine and phase == STEP and KERNEL_TIME in looks and not reference.paired:
            look = looks[KERNEL_TIME]
            looks[KERNEL_TIME] = replace(look, shared=total([look.shared, machine.clock_error]))
        for name in series:
            reported = _reported(measurements, phase, metrics[name])
            if name in looks:
                verdicts.append(_decided(reported, looks[name], gate))
            else:
                verdicts.append(_uncompared(reported, series[name], gate, reference))

    left = _left(verdicts)
    verdicts = [_working(verdict, left) for verdict in verdicts]
    if machine:
        verdicts = [
            # What is surely no loss passes in any case.
            verdict
            if verdict.outcome is Outcome.INCONCLUSIVE
            and excludes_loss(verdict, metrics[verdict.metric])
            else confounded(verdict, metrics[verdict.metric], machine)
            for verdict in verdicts
        ]
    gated = [v for v in verdicts if v.phase == STEP and metrics[v.metric].gated]
    times = [v for v in gated if metrics[v.metric].metric_class is MetricClass.CYCLE]
    verdicts = [_weighed(verdict, metrics[verdict.metric], times) for verdict in verdicts]
    return (*verdicts, *_unsupported(measurements[0], measured, reference.samples or {}, metrics))


@dataclass(frozen=True)
class _Gate:
    """The metrics that may fail a measurement."""

    metrics: Mapping[str, Metric]
    rate: float
    """The share of a night's error that one gated metric has at one look."""
    tests: int
    """The number of measurements that share the night's error."""
    is_comparable: bool
    """Whether the baseline has any of the gated metrics."""
    exact: frozenset[str] = frozenset()
    """The counts that one process decides: see `_exact`."""

    def has(self, verdict: Verdict) -> bool:
        """Whether the metric of this verdict may fail the measurement."""
        return verdict.phase == STEP and verdict.metric in self.metrics


def _gate(
    step: Mapping[str, Rounds],
    reference: Reference,
    metrics: Mapping[str, Metric],
    tolerances: Mapping[str, str],
) -> _Gate:
    judged = {n: metrics[n] for n in step if is_judged(metrics[n], tolerances.get(n))}
    known = (reference.samples or {}).get(STEP, {})
    family = max(_family([*judged.values()]), 1)
    rate = ALARM_RATE / (ALARMING * family)
    exact = _exact(step, known, judged)
    return _Gate(judged, rate, reference.tests, not judged.keys().isdisjoint(known), exact)


def _exact(
    step: Mapping[str, Rounds], known: Mapping[str, Rounds], judged: Mapping[str, Metric]
) -> frozenset[str]:
    """The counts that were the same in several processes, and in every round of the new processes.

    A further process would only say the same integer again. Hardware counters are not exact, and
    a process can lose torch.compile by itself. Where a time is judged too, as on a GPU, the test is
    not decided before that is.
    """
    both = [metric for name, metric in judged.items() if name in step and name in known]
    if any(metric.metric_class is not MetricClass.DETERMINISTIC for metric in both):
        return frozenset()
    return frozenset(
        metric.name
        for metric in both
        if not (metric.hardware or metric.name in ON_PURPOSE)
        and len(known[metric.name]) >= LEAST_TO_ALARM
        and all(len({*chain.from_iterable(side[metric.name])}) == 1 for side in (step, known))
    )


def _family(gated: Sequence[Metric]) -> int:
    """The number of metrics that share the error: exact counts are two, however many exist.

    Chance does not move a count that is the same in every execution, and a dozen of them must not
    blunt the judgement of times.
    """
    exact = [metric.metric_class is MetricClass.DETERMINISTIC for metric in gated]
    return exact.count(False) + min(exact.count(True), EXACT_SHARE)


def _reported(measurements: Sequence[Measurement], phase: str, metric: Metric) -> Verdict:
    """The verdict on a metric that is not judged, before it is compared."""
    first = measurements[0]
    return Verdict(
        test=first.test,
        name=first.name,
        phase=phase,
        metric=metric.name,
        unit=metric.unit,
        points=metric.percentage,
        processes=len({measurement.process for measurement in measurements}),
        outcome=Outcome.REPORTED,
        reason=TOLERATED if phase == STEP and metric.gated else "not-gated",
    )


def _decided(verdict: Verdict, look: Difference, gate: _Gate) -> Verdict:
    """The verdict with the numbers of its difference, and with the outcome that they decide."""
    if not gate.has(verdict):
        return _with_numbers(verdict, look, gate)
    direction = gate.metrics[verdict.metric].direction
    least = 1 if verdict.metric in gate.exact else LEAST_TO_ALARM
    outcome, reason = decide(direction, look, gate.rate, gate.tests, least)
    return _with_numbers(replace(verdict, outcome=outcome, reason=reason), look, gate)


def _with_numbers(verdict: Verdict, look: Difference, gate: _Gate) -> Verdict:
    if look.from_zero:
        floor = look.tolerance.floor
        return replace(verdict, baseline=0.0, measured=look.measured, tolerance=floor)
    between = OTHER_GPU if look.is_unseen else ""
    day = ONE_DAY if look.of_one_day else ""
    detectable = minimum_detectable_effect(look, gate.rate, gate.tests)
    return replace(
        verdict,
        baseline=look.baseline,
        measured=look.measured,
        change=look.shown(look.change),
        low=look.shown(look.change - look.margin),
        high=look.shown(look.change + look.margin),
        tolerance=look.shown(look.floor),
        detail="; ".join(filter(None, [between, day])),
        minimum_detectable_effect=look.shown(detectable),
    )


def _uncompared(verdict: Verdict, rounds: Rounds, gate: _Gate, reference: Reference) -> Verdict:
    """The verdict on a metric that the baseline lacks."""
    verdict = replace(verdict, measured=centre(rounds))
    detail = f"the baseline has no {verdict.metric} for this test"
    if not gate.has(verdict):
        return verdict
    if gate.is_comparable:
        return replace(verdict, reason=NEW_METRIC, detail=f"{detail}: accept a run with it")
    return replace(
        verdict,
        outcome=Outcome.NO_BASELINE,
        reason=reference.missing or "no-metric",
        detail=reference.detail or detail,
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


@dataclass(frozen=True)
class _PhaseSamples:
    """The values of one phase, by metric, of the new processes and the baseline's."""

    measured: Mapping[str, Rounds]
    baseline: Mapping[str, Rounds]
    """The baseline's values of the metrics that both have."""
    tolerances: Mapping[str, Tolerance]
    metrics: Mapping[str, Metric]
    paired: bool

    def differences(self, gpus: BaselineGpus | None) -> dict[str, Difference]:
        """The differences of the metrics that both have."""
        now, before, allowed = self.measured, self.baseline, self.tolerances
        if self.paired:
            before = {n: old for n, old in before.items() if len(old) == len(now[n])}
            changes = {n: pair_changes(now[n], old, allowed[n]) for n, old in before.items()}
            pairs = self._scales(changes, None)
            return {
                name: paired_difference(now[name], old, allowed[name], pairs[name])
                for name, old in before.items()
            }
        values = {}
        for name, rounds in before.items():
            series = medians(rounds)
            values[name] = on_judged_scale(series, judged_unit(series, allowed[name]))
        spreads = self._scales(values, gpus)
        return {
            name: difference(now[name], rounds, allowed[name], gpus, spreads[name])
            for name, rounds in before.items()
        }

    def _scales(
        self, compared: Mapping[str, Sequence[float]], gpus: BaselineGpus | None
    ) -> dict[str, Scale]:
        """The scales of these metrics: the gated metrics of a class share theirs.

        Others only borrow: a noisy clock on the CPU must not blunt a counter, and neither must the
        time of a step that waits for its host, whose tolerance was written for it.
        """
        groups: dict[object, dict[str, Sequence[float]]] = {}
        for name, values in compared.items():
            metric = self.metrics[name]
            sharing = metric.gated and not self.tolerances[name].written
            # Points and shares are different numbers, so they do not share.
            group = (metric.metric_class, metric.percentage) if sharing else name
            groups.setdefault(group, {})[name] = values
        by_metric: dict[str, Scale] = {}
        for members in groups.values():
            by_metric |= scales(members, self.tolerances, gpus)
        return by_metric


def _phase_samples(
    phase: str,
    series: Mapping[str, Rounds],
    reference: Reference,
    metrics: Mapping[str, Metric],
    tolerances: Mapping[str, str],
) -> _PhaseSamples:
    known = (reference.samples or {}).get(phase, {})
    allowed = {
        name: tolerance_for(metrics[name], tolerances.get(name), reference.calibration)
        for name in series
    }
    if reference.paired:
        allowed = {name: of_pairs(tolerance) for name, tolerance in allowed.items()}
    both = {name: known[name] for name in series if name in known}
    return _PhaseSamples(series, both, allowed, metrics, reference.paired)


def _gpus(measurements: Sequence[Measurement], reference: Reference) -> BaselineGpus | None:
    if not reference.gpus:
        return None
    devices = [measurement.fingerprint.device for measurement in measurements]
    known, kind = kinds(measurements, reference.canary) if reference.canary else ((), None)
    places = reference.places
    if known:
        places = tuple(replace(one, kind=of) for one, of in zip(places, known, strict=True))
    measured = frozenset(device.identity for device in devices)
    days = {measurement.fingerprint.measured[:10] for measurement in measurements}
    day = days.pop() if len(days) == 1 else ""
    new = {one.process: one.fingerprint.device.identity for one in measurements}
    fitted = kind if devices[0].slug == FITTED_ON else None
    return BaselineGpus(places, measured, fitted, day, tuple(new.values()))


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


def _unsupported(
    first: Measurement, measured: Samples, known: Samples, metrics: Mapping[str, Metric]
) -> tuple[Verdict, ...]:
    present = measured.get(STEP, {})
    reasons = {entry.metric: entry.reason for entry in first.unsupported}
    arch = first.fingerprint.device.arch
    absent = {name for name in reasons if not metrics[name].exists_on(arch)}
    lost = dict.fromkeys(known.get(STEP, {}), "the baseline has this metric, this run has not")
    return tuple(
        Verdict(
            test=first.test,
            name=first.name,
            phase=STEP,
            metric=name,
            unit=metrics[name].unit,
            outcome=Outcome.UNSUPPORTED,
            reason=ABSENT if name in absent else "not-collected",
            detail=detail,
        )
        for name, detail in {**lost, **reasons}.items()
        if name not in present and (name in reasons or metrics[name].gated)
    )
