"""The first judge: one look at the processes at hand, one verdict per metric.

regressed: worse than the floor, and further from zero than chance explains.
improved: the mirror image. unchanged: the whole interval lies within the equivalence bound and the
change itself below the floor. Anything else is inconclusive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_gpuperf.judge.interval import (
    UNCHANGED_RATE,
    Difference,
    Rounds,
    centre,
    difference,
    quantile,
)
from pytest_gpuperf.judge.tolerance import Tolerance, tolerance_for
from pytest_gpuperf.judge.units import Units
from pytest_gpuperf.model import STEP, Direction, Measurement, Metric, Outcome, Verdict

ALARM_RATE = 1e-3
"""False alarms per judged measurement, over all its gated metrics and all looks: 99.9 % sure."""
LOOKS = 3
"""The looks that the error is split over; one is taken here (docs/statistics.md)."""

OTHER_GPU = (
    "the baseline has no process on this very GPU, and GPUs of one name differ: the tolerance is "
    "wider by that"
)
"""The detail of a verdict that was reached between GPUs."""

Samples = Mapping[str, Mapping[str, Rounds]]
"""Values per phase, metric, process and round."""


@dataclass(frozen=True)
class Reference:
    """What a measurement is compared with: a baseline's samples, or why there is none."""

    samples: Samples | None
    missing: str = ""
    """The reason code when there are no samples: `no-file`, `no-entry`, `other-workload`."""
    detail: str = ""
    units: tuple[str, ...] = ()
    """The GPU of each process of the samples; empty when that was not kept."""


def judge(
    measurements: Sequence[Measurement],
    reference: Reference,
    metrics: Mapping[str, Metric],
    tolerances: Mapping[str, str],
) -> tuple[Verdict, ...]:
    """One verdict per phase and metric of a measurement, in the order of its samples.

    `measurements` are of the same test, one per process. Only gated metrics of the whole step may
    fail a test; the rest is `reported`. A gated metric that the baseline has and the measurement
    has not is `unsupported`.
    """
    first = measurements[0]
    measured = samples_by_phase(measurements)
    family = sum(metrics[name].gated for name in measured.get(STEP, {}))
    known = reference.samples or {}
    units = _units(measurements, reference)
    verdicts: list[Verdict] = []
    for phase, series in measured.items():
        for name, rounds in series.items():
            metric = metrics[name]
            gated = metric.gated and phase == STEP
            tolerance = tolerance_for(metric, tolerances.get(name))
            verdict = Verdict(
                test=first.test,
                name=first.name,
                phase=phase,
                metric=name,
                unit=metric.unit,
                outcome=Outcome.REPORTED,
                reason="not-gated",
                measured=centre(rounds),
                points=tolerance.points,
            )
            baseline = known.get(phase, {}).get(name)
            if baseline is not None:
                look = difference(rounds, baseline, tolerance, units)
                verdict = _compared(verdict, look, tolerance, family)
                if gated:
                    outcome, reason = decide(metric.direction, look, tolerance, family)
                    verdict = replace(verdict, outcome=outcome, reason=reason)
            elif gated:
                verdict = replace(
                    verdict,
                    outcome=Outcome.NO_BASELINE,
                    reason=reference.missing or "no-metric",
                    detail=reference.detail or f"the baseline has no {name} for this test",
                )
            verdicts.append(verdict)
    return (*verdicts, *_unsupported(first, measured, known, metrics))


def decide(
    direction: Direction, look: Difference, tolerance: Tolerance, family: int
) -> tuple[Outcome, str]:
    """The verdict on one difference, with its reason code; `family` metrics share the error."""
    worse = -look.change if direction is Direction.HIGHER else look.change
    beyond = Outcome.REGRESSED if worse > 0 else Outcome.IMPROVED
    if look.baseline == 0 and look.measured == 0:
        return Outcome.UNCHANGED, "both-zero"
    if look.from_zero:
        return beyond, "from-zero"
    degrees = look.degrees_of_freedom
    if abs(worse) > look.floor(tolerance):
        if abs(worse) > _alarm_quantile(family, degrees) * look.standard_error:
            return beyond, "beyond-floor"
        return Outcome.INCONCLUSIVE, "beyond-floor-unsure"
    margin = quantile(UNCHANGED_RATE, degrees) * look.standard_error
    if abs(worse) + margin < look.equivalence(tolerance):
        return Outcome.UNCHANGED, "within-tolerance"
    return Outcome.INCONCLUSIVE, "too-noisy"


def _units(measurements: Sequence[Measurement], reference: Reference) -> Units | None:
    if not reference.units:
        return None
    measured = {measurement.fingerprint.device.identity for measurement in measurements}
    return Units(reference.units, frozenset(measured))


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
    return quantile(ALARM_RATE / (LOOKS * max(family, 1)), degrees_of_freedom)


def _compared(verdict: Verdict, look: Difference, tolerance: Tolerance, family: int) -> Verdict:
    if look.from_zero:
        return replace(
            verdict, baseline=0.0, measured=look.measured, tolerance=tolerance.floor, change=None
        )
    margin = look.standard_error * _alarm_quantile(family, look.degrees_of_freedom)
    return replace(
        verdict,
        baseline=look.baseline,
        measured=look.measured,
        change=look.shown(look.change),
        low=look.shown(look.change - margin),
        high=look.shown(look.change + margin),
        tolerance=look.shown(look.floor(tolerance)),
        detail=OTHER_GPU if look.widening else "",
    )


def _unsupported(
    first: Measurement, measured: Samples, known: Samples, metrics: Mapping[str, Metric]
) -> tuple[Verdict, ...]:
    present = measured.get(STEP, {})
    reasons = {entry.metric: entry.reason for entry in first.unsupported}
    lost = dict.fromkeys(known.get(STEP, {}), "the baseline has it, this measurement does not")
    return tuple(
        Verdict(
            test=first.test,
            name=first.name,
            phase=STEP,
            metric=name,
            unit=metrics[name].unit,
            outcome=Outcome.UNSUPPORTED,
            reason="not-collected",
            detail=detail,
        )
        for name, detail in {**lost, **reasons}.items()
        if name not in present and (name in reasons or metrics[name].gated)
    )
