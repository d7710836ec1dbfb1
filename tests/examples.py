"""Devices, measurements, runs and verdicts to test with; no number here was ever measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pytest_gpuperf.model.measurement import (
    STEP,
    Conditions,
    Device,
    Fingerprint,
    KernelTable,
    Measurement,
    Sample,
    Scalar,
    Unsupported,
)
from pytest_gpuperf.model.result import Attributed, Outcome, Result, Run, Verdict
from pytest_gpuperf.model.settings import Settings
from pytest_gpuperf.report.proof import Firing, Proof, Trial
from pytest_gpuperf.storage import run_files

H200 = Device("sm90", "NVIDIA H200", "nvidia-h200", "aaaa00000001")
OTHER_H200 = Device("sm90", "NVIDIA H200", "nvidia-h200", "bbbb00000002")
A100 = Device("sm80", "NVIDIA A100-SXM4-40GB", "nvidia-a100-sxm4-40gb", "cccc00000003")
TEST = "suites/meddpm/test_training.py::test_training_step[tf32]"

HOSTILE = "x\x1b]0;title\x07\u202e\n::error::WL\r##[error]y"
"""What somebody may call something: a title for the terminal, and commands of CI services."""

Series = Mapping[str, Sequence[float]]


def default_settings(root: Path) -> Settings:
    """The default settings, in this folder; kernels are not counted."""
    return Settings(root, kernels="never", github="never", baselines=root / "baselines")


def samples_of(series: Series, phase: str = STEP) -> tuple[Sample, ...]:
    """Samples of one phase from rounds per metric."""
    return tuple(Sample(phase, metric, tuple(values)) for metric, values in series.items())


def with_factor(one: Measurement, metric: str, factor: float) -> Measurement:
    """The same with so many times the values of a metric, in the step and its phases."""
    samples = tuple(
        replace(sample, values=tuple(factor * value for value in sample.values))
        if sample.metric == metric
        else sample
        for sample in one.samples
    )
    return replace(one, samples=samples)


def measurement(
    series: Series | None = None,
    *,
    test: str = TEST,
    name: str = STEP,
    suite: str = "meddpm",
    process: str = "p1",
    configuration: str = "tf32",
    workload: Mapping[str, Scalar] | None = None,
    phases: Mapping[str, Series] | None = None,
    unsupported: Mapping[str, str] | None = None,
    device: Device = H200,
    software: Mapping[str, str] | None = None,
    settings: Mapping[str, Scalar] | None = None,
    conditions: Conditions | None = None,
    kernels: KernelTable | None = None,
) -> Measurement:
    """A measurement whose whole step has these rounds per metric."""
    samples = samples_of({"cycles": [437_000_000.0]} if series is None else series)
    for phase, inside in (phases or {}).items():
        samples += samples_of(inside, phase)
    return Measurement(
        test=test,
        name=name,
        suite=suite,
        process=process,
        configuration=configuration,
        workload={"size": 128} if workload is None else workload,
        samples=samples,
        unsupported=tuple(Unsupported(*entry) for entry in (unsupported or {}).items()),
        fingerprint=Fingerprint(
            device=device,
            software={"torch": "2.12.0"} if software is None else software,
            settings={"rounds": 5} if settings is None else settings,
            revision="0123456789ab",
            conditions=conditions,
        ),
        kernels=kernels,
    )


def processes(metric: str, rounds: Sequence[Sequence[float]]) -> list[Measurement]:
    """Measurements of one metric, one per process."""
    return [
        measurement({metric: values}, process=f"p{number}")
        for number, values in enumerate(rounds, 1)
    ]


def run(
    measurements: Sequence[Measurement],
    verdicts: Sequence[Verdict] = (),
    attributions: Sequence[Attributed] = (),
) -> Run:
    """A run of these measurements."""
    return Run(
        schema=run_files.SCHEMA,
        created="2026-03-01T12:00:00Z",
        command="suites/meddpm",
        measurements=tuple(measurements),
        verdicts=tuple(verdicts),
        attributions=tuple(attributions),
    )


def trial(slowdown: str = "spin", firing: Firing = Firing.RED, **changes: Any) -> Trial:
    """A slowdown whose line the verdict names, and the answer to it."""
    made = Trial(TEST, STEP, slowdown, 0.01, firing, "cycles +1.02 %", "a.py:7", "a.py:7")
    return replace(made, **changes)


def proof(*trials: Trial, **changes: Any) -> Proof:
    """The result of `gpuperf prove` with these trials, without doubts."""
    made = Proof("2026-03-01T12:00:00Z", H200, trials)
    return replace(made, **changes)


def result(
    measurements: Sequence[Measurement] | Measurement, *verdicts: Verdict, **more: Any
) -> Result:
    """One measurement, of one process or of several, and what is said of it."""
    held = (measurements,) if isinstance(measurements, Measurement) else tuple(measurements)
    return Result(held[0].test, held[0].name, held, verdicts, **more)


_SLOWER = Verdict(
    test=TEST,
    name=STEP,
    phase=STEP,
    metric="cycles",
    unit="cycles",
    outcome=Outcome.REGRESSED,
    reason="beyond-floor",
    baseline=437_000_000.0,
    measured=448_000_000.0,
    change=0.02517,
    points=False,
    tolerance=0.005,
)


def verdict(
    metric: str = "cycles", outcome: Outcome = Outcome.REGRESSED, **changes: Any
) -> Verdict:
    """A verdict; cycles that regressed by 2.5 % unless told otherwise."""
    return replace(_SLOWER, metric=metric, outcome=outcome, **changes)


def kernels_changed(detail: str = "2 added", **changes: Any) -> Verdict:
    """The verdict on kernels of which two were added."""
    said = {"reason": "other-kernels", "unit": "launches", "baseline": 1647.0, "measured": 1649.0}
    none = {"change": None, "tolerance": None}
    return verdict(
        "kernels", Outcome.KERNELS_CHANGED, **{**said, **none, "detail": detail, **changes}
    )


@lru_cache(maxsize=32)
def recorded_run(file: Path) -> Run:
    """A committed run, read once."""
    return run_files.load(file)
