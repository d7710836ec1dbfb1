"""The rule: from the numbers of a measurement and its baseline to one verdict per metric.

regressed: worse than the floor, in every process where there are only three, and further from zero
than chance explains. improved: the mirror image. unchanged: within the floor, and no loss beyond
the equivalence bound in the whole interval. Anything else is inconclusive, and asks for another
look (`interval.py`). docs/verdict.md has the formulas and how often they are right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from pytest_gpuperf.judge import machine
from pytest_gpuperf.judge.interval import (
    Difference,
    centre,
    difference,
    pair_changes,
    paired_difference,
    quantile,
)
from pytest_gpuperf.judge.noise import (
    OUTLIER_SPREADS,
    BaselineGpus,
    Rounds,
    Scale,
    alike_on,
    scales,
    scales_of,
)
from pytest_gpuperf.judge.stopping import ALARMING, LEAST_TO_ALARM, NOISY_BASELINE
from pytest_gpuperf.judge.tolerance import Tolerance, is_judged, of_pairs, tolerance_for
from pytest_gpuperf.model.entry import Calibration, CanarySeries
from pytest_gpuperf.model.measurement import STEP, Measurement
from pytest_gpuperf.model.metric import Direction, Metric, MetricClass
from pytest_gpuperf.model.result import Outcome, Verdict

ALARM_RATE = 1e-3
"""False alarms per judged measurement, over all its gated metrics and all looks: 99.9 % sure."""
SURER = 0.6
"""The share of its interval that a change among processes of one clock is told with, at most, where
these are taken in place of all: by chance alone one of two intervals is always the narrower."""
MISS_RATE = 0.01
"""A slowdown of the size that is called detectable is missed this often."""
EXACT_SHARE = 2
"""The most shares of the error that exact counts have together."""
ALL_AGREE = 4
"""Up to so many processes, each of them has to be beyond the floor: a median of three is no
protection against two slow ones."""

ABSENT = "absent"
"""The reason code of a metric that the catalogue does not know of the architecture: it is nobody's
fault."""
TOO_FEW = "too-few-processes"
"""The reason code of a change that several processes have to show."""
UNSURE = "beyond-floor-unsure"
"""The reason code of a change beyond the floor that may be chance."""
TOO_NOISY = "too-noisy"
"""The reason code of a change within the floor whose interval is not within the bound."""
TOLERATED = "any-tolerated"
"""The reason code of a gated metric that somebody wants to be reported only."""
NEW_METRIC = "new-metric"
"""The reason code of a gated metric that the baseline lacks, though it has others."""
NO_WORK = "no-work"
"""The reason code of what improved in a step that does nothing any more."""
NOT_COMPILED = "not-compiled"
"""The reason code of a step without any of the compiled graphs that the baseline's had."""
COMPILED = "compiled_graphs"
WORK = ("launches", "operators")
"""What a step does, by metric: without any of it the others say nothing."""
OTHER_GPU = (
    "the baseline has no process on this very GPU, and GPUs of one name differ: the tolerance is "
    "wider by that"
)
"""The detail of a verdict that was reached between GPUs."""
KNOWN_KIND = (
    "the baseline has no process on this very GPU, and is compared with what the canary says to "
    "expect of it"
)
"""The same where the canary's readings were surer than the mean over GPUs."""

_Values = TypeVar("_Values")
_Differences = Mapping[str, Difference]
Samples = Mapping[str, Mapping[str, Rounds]]
"""Values per phase, metric, process and round."""


@dataclass(frozen=True)
class Reference:
    """What a measurement is compared with: a baseline's samples, or why there is none."""

    samples: Samples | None
    missing: str = ""
    """The reason code when there are no samples: `no-file`, `no-entry`, `other-workload`."""
    detail: str = ""
    gpus: tuple[str, ...] = ()
    """The GPU of each process of the samples; empty when that was not kept."""
    days: tuple[str, ...] = ()
    """The day of each process of the samples; empty when that was not kept."""
    calibration: Calibration | None = None
    """What is known of this suite's noise on this device."""
    canary: CanarySeries | None = None
    """What the canary read beside each process of the samples."""
    paired: bool = False
    """Each process of the samples has a partner of the same place among those that are judged,
    which was measured next to it."""


def judge(
    measurements: Sequence[Measurement],
    reference: Reference,
    metrics: Mapping[str, Metric],
    tolerances: Mapping[str, str],
) -> tuple[Verdict, ...]:
    """One verdict per phase and metric of a measurement, in the order of its samples.

    `measurements` are of the same test, one per process; one look, at as many as there are. Only
    gated metrics of the whole step may fail a test, unless any change of them is tolerated; the
    rest is `reported`. A gated metric that the baseline has and the measurement has not is
    `unsupported`. One that the baseline lacks, beside others that it has, is `reported` with the
    reason "new-metric": it came with a newer release of ours, and nobody's baselines are void for
    that. `tolerances` are those that somebody wrote, by metric.
    """
    first = measurements[0]
    processes = len({measurement.process for measurement in measurements})
    measured = samples_by_phase(measurements)
    judged = {
        name: metrics[name]
        for name in measured.get(STEP, {})
        if is_judged(metrics[name], tolerances.get(name))
    }
    family = _family([*judged.values()])
    known = reference.samples or {}
    comparable = not judged.keys().isdisjoint(known.get(STEP, {}))
    gpus = _gpus(measurements, reference)
    alike = _at_this_clock(gpus, measurements, reference)
    verdicts: list[Verdict] = []
    at_clock: set[str] = set()
    for phase, series in measured.items():
        allowed = {
            name: tolerance_for(metrics[name], tolerances.get(name), reference.calibration)
            for name in series
        }
        compared = {name: known[phase][name] for name in series if name in known.get(phase, {})}
        if reference.paired:
            allowed = {name: of_pairs(tolerance) for name, tolerance in allowed.items()}
        looking = partial(_looks, series, compared, allowed, metrics, reference)
        whole = phase == STEP
        clocks = _at_one_clock(series, compared, allowed, measurements, reference) if whole else {}
        looks, supposed = _by_clocks(looking, gpus, alike if whole else None, clocks)
        at_clock |= {name for name, look in looks.items() if look.at_one_clock}
        for name, rounds in series.items():
            metric = metrics[name]
            gated = whole and name in judged
            reason = TOLERATED if whole and metric.gated else "not-gated"
            said: dict[str, Any] = {"outcome": Outcome.REPORTED, "reason": reason}
            if name in looks:
                look = looks[name]
                if gated:
                    deciding = partial(decide, metric.direction)
                    decided = deciding(look.difference, allowed[name], family)
                    if decided[0] is Outcome.INCONCLUSIVE and name in supposed:
                        # What is only supposed may show that nothing changed, and nothing else;
                        # nor that of another metric, which shares the scale.
                        other = deciding(supposed[name].difference, allowed[name], family)
                        if other[0] is Outcome.UNCHANGED:
                            decided, look = other, supposed[name]
                    said["outcome"], said["reason"] = decided
                said |= _compared(look, allowed[name], family)
            else:
                said["measured"] = centre(rounds)
                detail = f"the baseline has no {name} for this test"
                if gated and comparable:
                    said["reason"] = NEW_METRIC
                    said["detail"] = f"{detail}: accept a run that has it"
                elif gated:
                    said["outcome"] = Outcome.NO_BASELINE
                    said["reason"] = reference.missing or "no-metric"
                    said["detail"] = reference.detail or detail
            verdicts.append(
                Verdict(
                    test=first.test,
                    name=first.name,
                    phase=phase,
                    metric=name,
                    unit=metric.unit,
                    points=metric.percentage,
                    processes=processes,
                    **said,
                )
            )
    canary = machine.moved(measurements, reference.canary, reference.gpus)
    unmet = gpus is not None and not gpus.known
    plain = _of_a_step(verdicts)
    told = machine.told_apart(
        plain,
        measurements,
        metrics,
        canary,
        unmet=unmet,
        known_gpus=len(set(reference.gpus)),
        at_one_clock=at_clock,
    )
    # What is surely no loss passes, whatever the machine did besides.
    kept = [
        before
        if before.outcome is Outcome.INCONCLUSIVE and excludes_loss(before, metrics[before.metric])
        else now
        for before, now in zip(plain, told, strict=True)
    ]
    weighed = tuple(_weighed(kept, metrics))
    return (*weighed, *_unsupported(first, measured, known, metrics))


def _family(gated: Sequence[Metric]) -> int:
    """Among how many the error is shared: exact counts are two, however many of them there are.

    Chance does not move a count that is the same in every execution, and a dozen of them must not
    blunt the judgement of times.
    """
    exact = [metric.metric_class is MetricClass.DETERMINISTIC for metric in gated]
    return exact.count(False) + min(exact.count(True), EXACT_SHARE)


def _of_a_step(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The same verdicts, where the step does anything at all any more, and as before.

    One that launches nothing, or calls no operator, where the baseline's did, is not fast: it does
    not do its work. One without compiled graphs where the baseline's had some has lost
    torch.compile; fewer of them are a gain.
    """
    idle = next((v for v in verdicts if v.metric in WORK and v.phase == STEP and _ended(v)), None)
    if idle is None:
        return [_compiled(verdict) for verdict in verdicts]
    detail = (
        f"the step has no {idle.metric} any more: is it still the step that was to be measured?"
    )
    return [
        replace(verdict, outcome=Outcome.INCONCLUSIVE, reason=NO_WORK, detail=detail)
        if verdict.outcome is Outcome.IMPROVED
        else verdict
        for verdict in verdicts
    ]


def _compiled(verdict: Verdict) -> Verdict:
    improved = verdict.outcome is Outcome.IMPROVED
    if not (improved and verdict.metric == COMPILED and _ended(verdict)):
        return verdict
    detail = "the step runs without torch.compile: is that intended?"
    return replace(verdict, outcome=Outcome.REGRESSED, reason=NOT_COMPILED, detail=detail)


def _ended(verdict: Verdict) -> bool:
    return verdict.measured == 0 and bool(verdict.baseline)


def _weighed(verdicts: Sequence[Verdict], metrics: Mapping[str, Metric]) -> Iterator[Verdict]:
    """The same verdicts, where what the step lost is outweighed by the time that it gained."""
    gained = _gained_time(verdicts, metrics)
    for verdict in verdicts:
        lost = verdict.outcome is Outcome.REGRESSED and not verdict.points
        if lost and gained and _most_lost(verdict, metrics) < gained:
            yield replace(
                verdict,
                outcome=Outcome.OUTWEIGHED,
                reason="faster",
                detail=f"the step got faster by more, by {100 * gained:.3g} % at least",
            )
        else:
            yield verdict


def _gained_time(verdicts: Sequence[Verdict], metrics: Mapping[str, Metric]) -> float:
    """The share that each gated cycle or time of the step fell by at least; 0 where one did not.

    Nor where any change of one is tolerated: what a step gained is not known by its kernels alone.
    """
    times = [
        verdict
        for verdict in verdicts
        if verdict.phase == STEP
        and metrics[verdict.metric].gated
        and metrics[verdict.metric].metric_class is MetricClass.CYCLE
        and verdict.baseline is not None
    ]
    if not times or any(verdict.outcome is not Outcome.IMPROVED for verdict in times):
        return 0.0
    return min(-(verdict.high or 0.0) for verdict in times)


def _most_lost(verdict: Verdict, metrics: Mapping[str, Metric]) -> float:
    higher = metrics[verdict.metric].direction is Direction.HIGHER
    end = verdict.low if higher else verdict.high
    return math.inf if end is None else abs(end)


def decide(
    direction: Direction, look: Difference, tolerance: Tolerance, family: int
) -> tuple[Outcome, str]:
    """The verdict on one difference, with its reason code; `family` metrics share the error."""
    worse = -look.change if direction is Direction.HIGHER else look.change
    beyond = Outcome.REGRESSED if worse > 0 else Outcome.IMPROVED
    if look.baseline == 0 and look.measured == 0:
        return Outcome.UNCHANGED, "both-zero"
    if look.from_zero:
        if look.processes < LEAST_TO_ALARM:
            return Outcome.INCONCLUSIVE, TOO_FEW
        if not _all_beyond(look, 0.0):
            return Outcome.INCONCLUSIVE, UNSURE
        if tolerance.counted and _seen_before(look):
            return Outcome.INCONCLUSIVE, "seen-in-baseline"
        return beyond, "from-zero"
    floor = look.floor(tolerance)
    outside = abs(worse) > floor
    if outside and look.processes < LEAST_TO_ALARM:
        return Outcome.INCONCLUSIVE, TOO_FEW
    if outside and _all_beyond(look, floor):
        chance = _alarm_quantile(family, look.degrees_of_freedom) * look.standard_error
        if abs(worse) > chance:
            if tolerance.counted and _seen_before(look):
                return Outcome.INCONCLUSIVE, "seen-in-baseline"
            return beyond, "beyond-floor"
    most_lost = (abs(worse) if tolerance.two_sided else worse) + look.margin
    if not outside and most_lost < look.equivalence(tolerance):
        return Outcome.UNCHANGED, "within-tolerance"
    if outside:
        return Outcome.INCONCLUSIVE, UNSURE
    best = 0.0 if tolerance.two_sided else min(worse, 0.0)
    within_reach = best + look.least_margin < look.equivalence(tolerance)
    return Outcome.INCONCLUSIVE, TOO_NOISY if within_reach else NOISY_BASELINE


def excludes_loss(verdict: Verdict, metric: Metric) -> bool:
    """Whether noise hides at most a gain: the whole interval is short of a loss that counts.

    `unchanged` allows its interval the equivalence bound; this is the floor, which is narrower.
    """
    higher = metric.direction is Direction.HIGHER
    end = verdict.low if higher else verdict.high
    # Whatever else leaves it inconclusive is not noise.
    noise = (UNSURE, TOO_NOISY, NOISY_BASELINE)
    if verdict.reason not in noise or end is None or verdict.tolerance is None:
        return False
    return (-end if higher else end) < verdict.tolerance


def withheld(verdicts: Sequence[Verdict], complaints: Sequence[str]) -> tuple[Verdict, ...]:
    """The same verdicts where the device was unfit: `complaints` take the place of outcomes."""
    judged = (Outcome.REPORTED, Outcome.UNSUPPORTED)
    return tuple(
        verdict
        if verdict.outcome in judged
        else replace(
            verdict, outcome=Outcome.UNFIT, reason="device-unfit", detail="; ".join(complaints)
        )
        for verdict in verdicts
    )


def minimum_detectable_effect(look: Difference, tolerance: Tolerance, family: int) -> float:
    """The smallest slowdown that the looks find 99 times in 100, on the judged scale.

    The larger of two conditions: that each of three processes is beyond the floor, delta0 + q se_1,
    and their median beyond chance, (t + q) se_3; q is the quantile of a third of the misses.
    """
    # Each of the first three processes has to be beyond the floor.
    miss = quantile(MISS_RATE / LEAST_TO_ALARM, look.degrees_of_freedom)
    alarm = _alarm_quantile(family, look.degrees_of_freedom)
    return max(
        look.floor(tolerance) + miss * look.error_of(1),
        (alarm + miss) * look.error_of(LEAST_TO_ALARM),
    )


def _all_beyond(look: Difference, floor: float) -> bool:
    """Whether the processes agree, where they are too few for their median to be robust."""
    if look.processes > ALL_AGREE:
        return True
    sign = 1 if look.change > 0 else -1
    return all(sign * change > floor for change in look.changes)


def _seen_before(look: Difference) -> bool:
    """Whether a process that was set aside as an outlier had the value that is now called new.

    Then identical code has two values, of which the baseline happened to see one nearly always.
    """
    reach = OUTLIER_SPREADS * look.spread
    return any(abs(look.change - seen) <= reach for seen in look.set_aside)


def paired(
    pairs: Sequence[tuple[Measurement, Measurement]],
) -> tuple[tuple[Measurement, ...], Reference]:
    """What is judged, and against what, of pairs (old, new) of processes measured in turn.

    A metric that a process of the old side lacks is none of that side's.
    """
    old = samples_by_phase([before for before, _ in pairs])
    whole = {
        phase: {name: rounds for name, rounds in series.items() if len(rounds) == len(pairs)}
        for phase, series in old.items()
    }
    return tuple(after for _, after in pairs), Reference(whole, paired=True)


def _at_one_clock(
    series: Mapping[str, Rounds],
    compared: Mapping[str, Rounds],
    allowed: Mapping[str, Tolerance],
    measurements: Sequence[Measurement],
    reference: Reference,
) -> dict[str, machine.AtOneClock]:
    """The times of kernels at one clock: learnt of the baseline, or supposed.

    What was measured in turn with its partner had its clock.
    """
    if reference.paired:
        return {}
    found = {}
    for name in machine.OF_KERNELS:
        if name in compared:
            measuring = [
                one
                for one in measurements
                if any(s.metric == name and s.phase == STEP for s in one.samples)
            ]
            made = machine.at_one_clock(
                series[name],
                compared[name],
                measuring,
                reference.canary,
                reference.gpus,
                reference.days,
                noise=allowed[name].scale,
            )
            if made is not None:
                found[name] = made
    return found


def _of_measured(look: Difference, measured: float, error: float) -> Difference:
    """The same change of what was measured, so that the baseline is what it would be there."""
    factor = measured / look.measured
    return replace(
        look,
        baseline=factor * look.baseline,
        measured=measured,
        reference_error=math.hypot(look.reference_error, error),
    )


def _looks(
    series: Mapping[str, Rounds],
    compared: Mapping[str, Rounds],
    allowed: Mapping[str, Tolerance],
    metrics: Mapping[str, Metric],
    reference: Reference,
    gpus: BaselineGpus | None,
    clocks: Mapping[str, machine.AtOneClock],
) -> dict[str, Difference]:
    """The differences of those metrics of one phase that have something to be compared with.

    Those of times of kernels at these clocks.
    """
    if not reference.paired:
        before = {**compared, **{name: clock.baseline for name, clock in clocks.items()}}
        now = {**series, **{name: clock.measured for name, clock in clocks.items()}}
        spreads = _scales(before, allowed, metrics, partial(scales, gpus=gpus))
        looks = {
            name: difference(now[name], rounds, allowed[name], gpus, spreads[name])
            for name, rounds in before.items()
        }
        for name, clock in clocks.items():
            looks[name] = _of_measured(looks[name], centre(series[name]), clock.error)
        return looks
    whole = {name: old for name, old in compared.items() if len(old) == len(series[name])}
    changes = {name: pair_changes(series[name], old, allowed[name]) for name, old in whole.items()}
    spreads = _scales(changes, allowed, metrics, partial(scales_of, gpus=None))
    return {
        name: paired_difference(series[name], old, allowed[name], spreads[name])
        for name, old in whole.items()
    }


def _scales(
    compared: Mapping[str, _Values],
    allowed: Mapping[str, Tolerance],
    metrics: Mapping[str, Metric],
    scales_among: Callable[[Mapping[str, _Values], Mapping[str, Tolerance]], dict[str, Scale]],
) -> dict[str, Scale]:
    """The scales of these metrics: the gated ones of a class share theirs.

    Others only borrow: a noisy clock on the CPU must not blunt a counter, and neither must the time
    of a step that waits for its host, for which somebody wrote a tolerance.
    """
    groups: dict[object, dict[str, _Values]] = {}
    for name, rounds in compared.items():
        metric = metrics[name]
        sharing = metric.gated and not allowed[name].written
        # Points and shares are different numbers, so they do not share.
        group = (metric.metric_class, metric.percentage) if sharing else name
        groups.setdefault(group, {})[name] = rounds
    by_metric: dict[str, Scale] = {}
    for members in groups.values():
        by_metric |= scales_among(members, allowed)
    return by_metric


def _gpus(measurements: Sequence[Measurement], reference: Reference) -> BaselineGpus | None:
    if not reference.gpus:
        return None
    devices = [measurement.fingerprint.device for measurement in measurements]
    kinds, kind = machine.kinds(measurements, reference.canary)
    return BaselineGpus(
        reference.gpus,
        frozenset(device.identity for device in devices),
        reference.days,
        kinds,
        kind,
        alike_on(devices[0].slug),
    )


@dataclass(frozen=True)
class _Look:
    """The difference of one metric, and at which clocks it was taken."""

    difference: Difference
    clock: machine.AtOneClock | None = None
    """To which the times of both sides were brought; None where as measured."""
    near: bool = False
    """Of processes of one clock alone."""

    @property
    def at_one_clock(self) -> bool:
        return self.near or self.clock is not None


def _by_clocks(
    looking: Callable[[BaselineGpus | None, Mapping[str, machine.AtOneClock]], _Differences],
    gpus: BaselineGpus | None,
    alike: BaselineGpus | None,
    clocks: Mapping[str, machine.AtOneClock],
) -> tuple[dict[str, _Look], dict[str, _Look]]:
    """The looks at metrics of the step, and those further ones for which a clock is supposed.

    What is learnt of a clock counts, and processes of one clock where they are surer.
    """
    learnt = {name: clock for name, clock in clocks.items() if clock.elasticity.is_learnt}
    looks = {name: _Look(one, learnt.get(name)) for name, one in looking(gpus, learnt).items()}
    further = looking(gpus, clocks) if clocks.keys() - learnt.keys() else {}
    supposed = {
        name: _Look(further[name], clock) for name, clock in clocks.items() if name not in learnt
    }
    for name, one in (looking(alike, {}) if alike else {}).items():
        # Of a noisy metric few processes of the same clock say less than all do.
        if one.margin < SURER * looks[name].difference.margin:
            looks[name] = _Look(one, near=True)
    return looks, supposed


def _at_this_clock(
    gpus: BaselineGpus | None, measurements: Sequence[Measurement], reference: Reference
) -> BaselineGpus | None:
    """The same as if each clock made a GPU another; None where the baseline has not enough."""
    known = reference.canary, reference.gpus, reference.days
    found = machine.by_clock(measurements, *known)
    return replace(gpus, baseline=found[0], measured=found[1]) if gpus and found else None


def samples_by_phase(
    measurements: Sequence[Measurement],
) -> dict[str, dict[str, list[list[float]]]]:
    """The values of several processes' measurements: phase, metric, process, round.

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


def _alarm_quantile(family: int, degrees_of_freedom: int) -> float:
    return quantile(ALARM_RATE / (ALARMING * max(family, 1)), degrees_of_freedom)


def _compared(taken: _Look, tolerance: Tolerance, family: int) -> dict[str, Any]:
    """The numbers of a verdict."""
    look, clock = taken.difference, taken.clock
    between = KNOWN_KIND if look.by_kind else OTHER_GPU if look.widening else ""
    at_clock = str(clock) if clock is not None and clock.is_noteworthy else ""
    if look.from_zero:
        return {"baseline": 0.0, "measured": look.measured, "tolerance": tolerance.floor}
    return {
        "baseline": look.baseline,
        "measured": look.measured,
        "change": look.shown(look.change),
        "low": look.shown(look.change - look.margin),
        "high": look.shown(look.change + look.margin),
        "tolerance": look.shown(look.floor(tolerance)),
        "detail": "; ".join(filter(None, [between, at_clock])),
        "minimum_detectable_effect": look.shown(minimum_detectable_effect(look, tolerance, family)),
    }


def _unsupported(
    first: Measurement, measured: Samples, known: Samples, metrics: Mapping[str, Metric]
) -> tuple[Verdict, ...]:
    present = measured.get(STEP, {})
    reasons = {entry.metric: entry.reason for entry in first.unsupported}
    arch = first.fingerprint.device.arch
    absent = {name for name in reasons if not metrics[name].exists_on(arch)}
    lost = dict.fromkeys(known.get(STEP, {}), "the baseline has it, this measurement does not")
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
