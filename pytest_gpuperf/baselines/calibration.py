"""The calibration of the judge by runs of identical code: what `gpuperf calibrate` says and writes.

Works from saved runs; needs no GPU and runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.judge.stopping import next_look
from pytest_gpuperf.judge.trials import (
    Estimate,
    Look,
    Test,
    Trials,
    allocation,
    apart,
    estimates,
    trials,
)
from pytest_gpuperf.judge.verdict import Reference, judge
from pytest_gpuperf.model.entry import BaselineFile, Calibration, Spread
from pytest_gpuperf.model.measurement import STEP, Device, Measurement
from pytest_gpuperf.model.metric import MetricClass
from pytest_gpuperf.model.result import Outcome, Run
from pytest_gpuperf.storage import baseline_files, files

_SAME_SOFTWARE = ("torch", "cuda", "cudnn")
"""What chooses the kernels: with another version of these the code is not identical."""


@dataclass(frozen=True)
class Finding:
    """What runs of identical code say of one suite on one device."""

    suite: str
    device: Device
    estimates: Mapping[MetricClass, Estimate]
    trials: Trials
    apart: frozenset[str]
    """The processes that stand apart from the others of their allocation."""
    calibration: Calibration
    warnings: tuple[str, ...] = ()


def findings(runs: Sequence[Run], date: str) -> list[Finding]:
    """One finding per suite of these runs, in their order; `date` is the day of the calibration.

    A process that is in several runs counts once. Raises UsageFailure for runs that do not hold
    what an A/A calibration needs: one device, one workload per test, one version of torch, CUDA
    and cuDNN, and two processes.
    """
    # A process that runs past midnight is of one day. Runs of version 0.1 say only when they were
    # saved.
    days: dict[str, str] = {}
    for run in runs:
        for measured in run.measurements:
            day = measured.fingerprint.measured[:10] or run.created[:10]
            days[measured.process] = min(day, days.get(measured.process, day))
    suites: dict[str, dict[tuple[str, str, str], Measurement]] = {}
    for run in runs:
        for measured in run.measurements:
            key = (measured.test, measured.name, measured.process)
            step = _whole_step(measured, days[measured.process])
            suites.setdefault(measured.suite, {}).setdefault(key, step)
    if not suites:
        raise UsageFailure("these runs have no measurements: there is nothing to calibrate by")
    _one_device(step for steps in suites.values() for step in steps.values())
    return [_finding(suite, list(steps.values()), date) for suite, steps in suites.items()]


def write(findings: Sequence[Finding], folder: Path) -> list[Path]:
    """Stores the calibrations in the suites' baseline files and returns those.

    Raises UsageFailure, before anything is written, where a suite has no baseline file on this
    device, and BadFile where it cannot be trusted.
    """
    by_file = {baseline_files.path_for(folder, f.device, f.suite): f for f in findings}
    for file, finding in by_file.items():
        _existing(folder, finding, file)
    for file, finding in by_file.items():
        with files.changing(folder):
            known = _existing(folder, finding, file)
            rounded = replace(known, calibration=_rounded(finding.calibration))
            baseline_files.save(rounded, file)
    return list(by_file)


def _existing(folder: Path, finding: Finding, file: Path) -> BaselineFile:
    files.check_inside(file, folder)
    known = baseline_files.load_for(folder, finding.device, finding.suite)
    if known is None:
        raise UsageFailure(
            f"{file}: no such baseline file, so there is nowhere to write the calibration. Accept "
            'a baseline first: gpuperf update-baseline RUN --reason "first baseline"'
        )
    return known


def _whole_step(measured: Measurement, day: str) -> Measurement:
    """Of its process's day; without phases, which are not gated and take the judge's time."""
    return replace(
        measured,
        samples=tuple(sample for sample in measured.samples if sample.phase == STEP),
        fingerprint=replace(measured.fingerprint, measured=day),
    )


def _finding(suite: str, measurements: Sequence[Measurement], date: str) -> Finding:
    names = {measured.process for measured in measurements}
    if len(names) < 2:
        raise UsageFailure(
            f"{suite}: {len(names)} process in these runs, and a spread between processes needs "
            "2 or more (20 for a sound estimate). Record them on several days or GPUs: "
            "gpuperf record --processes 5 -- ..."
        )
    tests: dict[Test, list[Measurement]] = {}
    for measured in measurements:
        tests.setdefault((measured.test, measured.name), []).append(measured)
    for (test, name), processes in tests.items():
        _one_workload(test, name, processes)
    _one_software(suite, measurements)

    metrics = catalogue().metrics
    by_class = estimates(tests, metrics)
    if not by_class:
        raise UsageFailure(
            f"{suite}: {len(names)} processes, and no two of one test on one GPU on one day with "
            "values above zero: nothing tells the spread between processes from that between "
            "days. Record several per day: gpuperf record --processes 5 -- ..."
        )
    # The trials are judged as later ones will be: with the scales of these runs.
    unproven = Calibration(
        date=date,
        processes=len(names),
        allocations=len({allocation(measured) for measured in measurements}),
        gpus=len({measured.fingerprint.device.identity for measured in measurements}),
        trials=0,
        false_alarms=0,
        classes={kind.value: estimate.spread for kind, estimate in by_class.items()},
    )
    seen = trials(tests, partial(_alarmed, unproven))
    return Finding(
        suite=suite,
        device=measurements[0].fingerprint.device,
        estimates=by_class,
        trials=seen,
        apart=apart(tests, metrics),
        calibration=replace(unproven, trials=seen.count, false_alarms=seen.false_alarms),
        warnings=_warnings(measurements),
    )


def _alarmed(
    calibration: Calibration, baseline: Sequence[Measurement], measured: Sequence[Measurement]
) -> Look:
    """What the judge, so calibrated, says of `measured` had `baseline` been accepted."""
    entry = baseline_files.entry_of(baseline, recorded="")
    known = Reference(
        entry.samples,
        gpus=entry.gpus,
        days=entry.days,
        calibration=calibration,
        canary=entry.canary,
    )
    verdicts = judge(measured, known, catalogue().metrics, measured[0].tolerance)
    outcomes = {verdict.outcome for verdict in verdicts}
    worst = next((o for o in (Outcome.REGRESSED, Outcome.INCONCLUSIVE) if o in outcomes), None)
    return Look(worst or Outcome.UNCHANGED, next_look(verdicts, len(measured)))


def _one_device(measurements: Iterable[Measurement]) -> None:
    devices = {(m.fingerprint.device.name, m.fingerprint.device.arch) for m in measurements}
    if len(devices) > 1:
        listed = " and ".join(f"{name} ({arch})" for name, arch in sorted(devices))
        raise UsageFailure(
            f"these runs are of different devices: {listed}. Calibrate each device by its own runs"
        )


def _one_workload(test: str, name: str, measurements: Sequence[Measurement]) -> None:
    first = measurements[0].workload
    for other in measurements:
        if dict(other.workload) != dict(first):
            raise UsageFailure(
                f'the measurements "{name}" of {test} are of different workloads '
                f"({units.differences(first, other.workload)}). Calibrate by runs of one workload"
            )


def _one_software(suite: str, measurements: Sequence[Measurement]) -> None:
    for name in _SAME_SOFTWARE:
        versions = _distinct(m.fingerprint.software.get(name, "") for m in measurements)
        if len(versions) > 1:
            raise UsageFailure(
                f"{suite}: these runs were measured with {name} {' and '.join(versions)}, so they "
                "are not of identical code. Calibrate by runs of one version"
            )


def _warnings(measurements: Sequence[Measurement]) -> tuple[str, ...]:
    revisions = _distinct(measurement.fingerprint.revision for measurement in measurements)
    if len(revisions) < 2:
        return ()
    return (
        f"{len(revisions)} revisions of the code: {', '.join(revisions)}. What changed between "
        "them counts as noise here; calibrate by runs of one revision",
    )


def _distinct(texts: Iterable[str]) -> list[str]:
    """Those that are known, in their order."""
    return list(dict.fromkeys(text for text in texts if text))


def _rounded(calibration: Calibration) -> Calibration:
    """With four significant digits, which is more than is known: the file is made for review."""

    def rounded(spread: Spread) -> Spread:
        known = {level: value for level, value in asdict(spread).items() if value is not None}
        return replace(spread, **{level: float(f"{value:.4g}") for level, value in known.items()})

    classes = {name: rounded(spread) for name, spread in calibration.classes.items()}
    return replace(calibration, classes=classes)
