"""Judging what a test measured, with more processes where one does not settle it.

Between the fixture, which speaks pytest, and the judge, which sees numbers only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_gpuperf.baselines.reference import Folders, find_reference
from pytest_gpuperf.catalogue.metric_catalogue import ALWAYS, catalogue
from pytest_gpuperf.errors import GpuperfError, MeasurementError, UsageFailure
from pytest_gpuperf.judge import expectation
from pytest_gpuperf.judge.stopping import next_look
from pytest_gpuperf.judge.verdict import ABSENT, judge, withheld
from pytest_gpuperf.measure.device import guard
from pytest_gpuperf.model.measurement import STEP, Device, Measurement
from pytest_gpuperf.model.metric import Metric
from pytest_gpuperf.model.result import Expectation, Outcome, Verdict
from pytest_gpuperf.plugin.session import RECORDABLE, Judged
from pytest_gpuperf.storage import baseline_files, files

if TYPE_CHECKING:
    from pytest_gpuperf.measure.replica import Repeats
    from pytest_gpuperf.model.settings import Settings
    from pytest_gpuperf.plugin.markers import TestTraits


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
        comparison: Ratio,
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
        known = baseline_files.load_for(self._settings.baselines, self._device, suite)
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
        comparison: Ratio,
        over: Processes,
        under: Processes,
        bounds: tuple[float | None, float | None],
    ) -> Expectation:
        known = baseline_files.load_for(self._settings.baselines, self._device, comparison.suite)
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
    file = baseline_files.path_for(folders.baselines, device, first.suite)
    known = baseline_files.load_for(folders.baselines, device, first.suite)
    verdicts = judge(
        measurements,
        find_reference(known, first, files.short(file, folders.root)),
        catalogue().metrics,
        {**(known.tolerance if known else {}), **tolerance},
    )
    complaints = _complaints(measurements)
    return withheld(verdicts, complaints) if complaints else verdicts


def _complaints(measurements: Sequence[Measurement]) -> list[str]:
    """Why the device was not fit to be measured, each reason once."""
    conditions = [m.fingerprint.conditions for m in measurements]
    return list(dict.fromkeys(c for found in conditions if found for c in guard.unfit(found)))


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


# What this process has measured in this session, for tests that compare measurements.

Processes = tuple[Measurement, ...]
"""One measurement, once per process that made it."""


class NotMeasured(GpuperfError):
    """A measurement that is to be compared was not made in this process, or lacks the metric."""


@dataclass(frozen=True)
class Ratio:
    """Two measurements that a test compares, by name or by configuration."""

    test: str
    """The node id of the test that compares."""
    suite: str
    device: Device
    numerator: str
    denominator: str

    @property
    def subject(self) -> str:
        """The ratio, for reports: "tf32 / baseline"."""
        return f"{self.numerator} / {self.denominator}"


class Measured:
    """The session's measurements in this process, the latest where a test was run again."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Processes] = {}

    def add(self, measurements: Processes) -> None:
        """Takes a measurement, once per process that made it."""
        self._found[measurements[0].test, measurements[0].name] = measurements

    def pair(self, comparison: Ratio) -> tuple[Processes, Processes]:
        """The measurements of numerator and denominator.

        Each is the test's own measurement of that name, or else the one of that configuration in
        the suite. Where several tests of the suite measure both configurations, it takes two of one
        test. Raises NotMeasured, and UsageFailure where several are meant.
        """
        over = self._candidates(comparison, comparison.numerator)
        under = self._candidates(comparison, comparison.denominator)
        pairs = [(one, other) for one in over for other in under]
        if len(pairs) > 1:
            pairs = [pair for pair in pairs if _place(pair[0]) == _place(pair[1])]
        if len(pairs) != 1:
            found = ", ".join(dict.fromkeys(entry[0].test for entry in (*over, *under)))
            raise UsageFailure(
                f'{comparison.test}: which "{comparison.numerator}" and '
                f'"{comparison.denominator}" are compared? There are {found}. Measure both in one '
                "test, gpuperf.measure(step, name=...), and compare them there"
            )
        return pairs[0]

    def _candidates(self, comparison: Ratio, wanted: str) -> list[Processes]:
        own = self._found.get((comparison.test, wanted))
        if own is not None:
            return [own]
        found = [
            measurements
            for measurements in self._found.values()
            if measurements[0].configuration == wanted
            and measurements[0].suite == comparison.suite
            and _kind(measurements[0].fingerprint.device) == _kind(comparison.device)
        ]
        if not found:
            raise NotMeasured(
                f'"{wanted}" was not measured in this process: its test was not selected, was '
                "skipped, failed before it measured, or runs later or in another worker of "
                "pytest-xdist (-n0 keeps all tests in one process)"
            )
        return found


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
            said = f"--gpuperf-metrics {sets[0]} has it"
        said = said or f"what measures {measurement.fingerprint.device.name} does not count it"
        return f"{metric} was not collected for {name}: {said}"
    return ""


def _place(measurements: Processes) -> tuple[str, str]:
    """A measurement's test without its parameters, and its name there."""
    return measurements[0].test.partition("[")[0], measurements[0].name


def _kind(device: Device) -> tuple[str, str]:
    """What is compared with each other: GPUs of one name, not only the very same."""
    return device.arch, device.slug
