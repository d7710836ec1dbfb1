"""Judging what a test measured, with more processes where one does not settle it.

Between the fixture, which speaks pytest, and the judge, which sees numbers only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from pytest_gpuperf import baseline_file, baselines, guard
from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.judge import expectation
from pytest_gpuperf.judge.looks import next_look
from pytest_gpuperf.judge.verdict import ABSENT, Reference, judge, withheld
from pytest_gpuperf.ledger import RECORDABLE, Judged
from pytest_gpuperf.measured import Comparison, Processes
from pytest_gpuperf.metrics import catalogue
from pytest_gpuperf.model import Device, Expectation, Measurement, Metric, Outcome, Scalar, Verdict
from pytest_gpuperf.report import messages

if TYPE_CHECKING:
    from pytest_gpuperf.options import Settings
    from pytest_gpuperf.repeats import Repeats
    from pytest_gpuperf.traits import TestTraits


class Folders(Protocol):
    """Where baselines are: what of the settings a judgement depends on."""

    @property
    def root(self) -> Path:
        """What paths in messages are relative to."""

    @property
    def baselines(self) -> Path:
        """The folder of the baselines."""


class Judging:
    """Judges the measurements of a session on one device."""

    def __init__(self, settings: Settings, device: Device, repeats: Repeats | None) -> None:
        self._settings = settings
        self._device = device
        self._repeats = repeats
        """Where further processes come from; None for a recorded run, which has what it has."""

    def settle(self, traits: TestTraits, first: Processes) -> Judged:
        """Looks at `first`, and at more of fresh processes until the test is settled.

        A process that fails ends it; the notes say why.
        """
        judged = self._look(traits, first)
        while self._repeats is not None:
            wanted = next_look(
                (*judged.verdicts, *judged.expectations),
                len(judged.measurements),
                self._settings.processes,
            )
            if wanted is None:
                break
            try:
                judged = self._look(traits, self._processes(self._repeats, first, wanted))
            except MeasurementError as error:
                return replace(judged, notes=(*judged.notes, _not_again(error)))
        return judged

    def expect(
        self,
        metric: Metric,
        comparison: Comparison,
        over: Processes,
        under: Processes,
        bounds: tuple[float | None, float | None],
    ) -> Expectation:
        """Compares two measurements, and more of both until it is settled.

        `bounds` are those of the ratio: above the first, below the second.
        """
        found = self._ratio(metric, comparison, over, under, bounds)
        while self._repeats is not None:
            wanted = next_look([found], min(len(over), len(under)), self._settings.processes)
            if wanted is None:
                break
            try:
                over = self._processes(self._repeats, over, wanted)
                under = self._processes(self._repeats, under, wanted)
            except MeasurementError as error:
                return replace(found, detail=_not_again(error))
            found = self._ratio(metric, comparison, over, under, bounds)
        return found

    def _look(self, traits: TestTraits, measurements: Processes) -> Judged:
        """One look at all of these processes."""
        verdicts = against(measurements, self._settings, self._device, traits.tolerance)
        if _complaints(measurements):
            return Judged(measurements, verdicts)
        suite = measurements[0].suite
        known = baselines.load_for(self._settings.baselines, self._device, suite)
        limits = expectation.limits(
            measurements,
            traits.limit,
            catalogue().metrics,
            known.calibration if known else None,
        )
        return Judged(measurements, verdicts, expectations=limits)

    def _ratio(
        self,
        metric: Metric,
        comparison: Comparison,
        over: Processes,
        under: Processes,
        bounds: tuple[float | None, float | None],
    ) -> Expectation:
        known = baselines.load_for(self._settings.baselines, self._device, comparison.suite)
        return expectation.ratio(
            metric,
            over,
            under,
            above=bounds[0],
            below=bounds[1],
            test=comparison.test,
            subject=comparison.subject,
            calibration=known.calibration if known else None,
        )

    @staticmethod
    def _processes(repeats: Repeats, measured: Processes, wanted: int) -> Processes:
        """The session's own measurement, and as many of fresh processes as make `wanted`."""
        if len(measured) >= wanted:
            return measured
        own = measured[0]
        return (own, *repeats.measurements(own.test, own.name, wanted - 1))


def against(
    measurements: Sequence[Measurement],
    folders: Folders,
    device: Device,
    tolerance: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Verdict, ...]:
    """What the judge says of one test's measurements, one per process, by the baseline there is.

    `tolerance` is what the test has beyond the baseline's. Nothing is judged where the device was
    unfit. Raises BadFile for a baseline that cannot be trusted.
    """
    first = measurements[0]
    file = baselines.path_for(folders.baselines, device, first.suite)
    known = baselines.load_for(folders.baselines, device, first.suite)
    verdicts = judge(
        measurements,
        find_reference(known, first, messages.short(file, folders.root)),
        catalogue().metrics,
        {**(known.tolerance if known else {}), **tolerance},
    )
    complaints = _complaints(measurements)
    return withheld(verdicts, complaints) if complaints else verdicts


def _complaints(measurements: Sequence[Measurement]) -> list[str]:
    """Why the device was not fit to be measured, each reason once."""
    conditions = [m.fingerprint.conditions for m in measurements]
    return list(dict.fromkeys(c for found in conditions if found for c in guard.unfit(found)))


def find_reference(
    known: baseline_file.BaselineFile | None, measurement: Measurement, file: str
) -> Reference:
    """What `measurement` is compared with, or the reason why there is nothing."""
    if known is None:
        return Reference(None, missing="no-file", detail=f"{file} does not exist")
    entry = known.tests.get(measurement.test, {}).get(measurement.name)
    if entry is None:
        return Reference(None, missing="no-entry", detail=f"{file} has no entry for this test")
    if dict(entry.workload) != dict(measurement.workload):
        return Reference(
            None,
            missing="other-workload",
            detail=f"the entry in {file} is of another workload: "
            + messages.differences(entry.workload, measurement.workload),
        )
    before, now = _manner(entry.settings), _manner(measurement.fingerprint.settings)
    if before != now and before and now:
        return Reference(
            None,
            missing="other-collector",
            detail=f"the entry in {file} was measured by {before}, this by {now}: they count "
            "different things",
        )
    return Reference(
        entry.samples, units=entry.units, days=entry.days, calibration=known.calibration
    )


def _manner(settings: Mapping[str, Scalar]) -> str:
    """How counters were read, as far as it decides what they mean; "" where nobody says.

    ncu's kernel replay adds up kernels that ran one at a time, a range has the gaps between them.
    """
    replay = "kernel replay" if settings.get("replay") == "kernel" else "range replay"
    collector = str(settings.get("collector", ""))
    return f"{collector}, {replay}" if collector == "ncu" else collector


def fails(verdict: Verdict | Expectation, settings: Settings) -> bool:
    """Whether a verdict, or what came of an expectation, fails its test under these settings."""
    return (
        verdict.outcome in (Outcome.REGRESSED, Outcome.BROKEN)
        or (verdict.outcome is Outcome.INCONCLUSIVE and settings.inconclusive == "fail")
        or (verdict.outcome is Outcome.NO_BASELINE and settings.missing == "fail")
        # What is there is not replaced without being asked: recording would not help this one.
        or (
            verdict.outcome is Outcome.NO_BASELINE
            and settings.missing == "record"
            and verdict.reason not in RECORDABLE
        )
        or (
            verdict.outcome is Outcome.UNSUPPORTED
            and verdict.reason != ABSENT
            and settings.require_counters
        )
    )


def _not_again(error: MeasurementError) -> str:
    return f"not looked at again: {error}"
