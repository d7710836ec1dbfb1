"""The `gpuperf` fixture: measures a step, judges it, and fails the test on a regression."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import pytest

from pytest_gpuperf import arch, baselines
from pytest_gpuperf.collect.base import Phases, Plan, Work
from pytest_gpuperf.errors import CountersUnavailable, GpuperfError, UsageFailure
from pytest_gpuperf.judge.verdict import Reference, judge
from pytest_gpuperf.ledger import RECORDABLE, Judged
from pytest_gpuperf.measuring import Instrument, Subject
from pytest_gpuperf.metrics import catalogue
from pytest_gpuperf.model import STEP, Device, Measurement, Outcome, Scalar, Verdict
from pytest_gpuperf.options import Settings, selection
from pytest_gpuperf.report import messages


@dataclass
class Records:
    """What one test measured, until its report takes it along."""

    judged: list[Judged] = field(default_factory=list)
    _sent: int = 0

    def unsent(self) -> list[Judged]:
        """What was measured since the last call."""
        new = self.judged[self._sent :]
        self._sent = len(self.judged)
        return new


@dataclass(frozen=True)
class TestTraits:
    """What a test's place and markers say about its measurements."""

    __test__ = False

    nodeid: str
    suite: str
    configuration: str = ""
    metrics: str | None = None
    tolerance: Mapping[str, str] = field(default_factory=dict)
    rounds: int | None = None


class GpuPerf:
    """What a test sees as `gpuperf`."""

    def __init__(
        self,
        config: pytest.Config,
        settings: Settings,
        instrument: Instrument,
        traits: TestTraits,
        records: Records,
    ) -> None:
        self._settings = settings
        self._instrument = instrument
        self._traits = traits
        self._records = records
        self._config = config
        self._phases = Phases()

    @property
    def device(self) -> Device:
        """The device that is measured, or that the replayed run was measured on."""
        return self._instrument.device

    @property
    def torch_device(self) -> str:
        """Where the step's tensors belong: "cuda" or "cpu"."""
        return self._instrument.torch_device

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Marks a part of the step: `with gpuperf.phase("backward"): ...`.

        Free when nothing is measured. Phases follow each other; one inside another raises
        MeasurementError while measuring.
        """
        return self._phases.mark(name)

    def measure(
        self,
        step: Callable[[], object],
        *,
        reset: Callable[[], object] | None = None,
        name: str = STEP,
        workload: Mapping[str, Scalar] | None = None,
    ) -> Measurement:
        """Measures `step`, compares it with its baseline, and fails the test if it got worse.

        `reset` puts the step's state back before every execution and is not measured. `name` tells
        several measurements of one test apart. `workload` says what was run (sizes, data): a
        baseline of another workload is not compared with.

        Returns the measurement. Fails the test (pytest.fail) on a regression, and on an
        inconclusive verdict, a missing baseline or missing counters as the settings say.
        """
        traits = self._traits
        if any((name == other.measurements[0].name) for other in self._records.judged):
            raise UsageFailure(
                f'{traits.nodeid} measures "{name}" twice: give each measurement of a test a name '
                "of its own, gpuperf.measure(step, name=...)"
            )
        subject = Subject(
            test=traits.nodeid,
            name=name,
            suite=traits.suite,
            configuration=traits.configuration,
            workload=dict(workload or {}),
            metric_set=traits.metrics or self._settings.metrics,
        )
        plan = Plan(
            metrics=catalogue().hardware_set(subject.metric_set),
            rounds=traits.rounds or self._settings.rounds,
        )
        work = Work(step, self._phases, reset) if reset else Work(step, self._phases)
        try:
            measurements = self._instrument.measure(subject, work, plan)
        except CountersUnavailable as error:
            pytest.fail(f"gpuperf: {error}", pytrace=False)
        verdicts = self._judge(measurements) if self._settings.judge else ()
        self._records.judged.append(Judged(measurements, verdicts))
        self._config.hook.pytest_gpuperf_judged(
            config=self._config, measurement=measurements[-1], verdicts=verdicts
        )
        failing = [verdict for verdict in verdicts if fails(verdict, self._settings)]
        if failing:
            pytest.fail(
                messages.failure(measurements[-1], verdicts, failing, self._command()),
                pytrace=False,
            )
        return measurements[-1]

    def _judge(self, measurements: tuple[Measurement, ...]) -> tuple[Verdict, ...]:
        first = measurements[0]
        file = baselines.path_for(self._settings.baselines, self.device, first.suite)
        known = baselines.load_for(self._settings.baselines, self.device, first.suite)
        return judge(
            measurements,
            find_reference(known, first, messages.short(file, self._settings.root)),
            catalogue().metrics,
            self._traits.tolerance,
        )

    def _command(self) -> str:
        return shlex.join(selection(self._config.invocation_params.args))


def find_reference(
    known: baselines.BaselineFile | None, measurement: Measurement, file: str
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
    return Reference(entry.samples, units=entry.units)


def fails(verdict: Verdict, settings: Settings) -> bool:
    """Whether a verdict fails its test under these settings."""
    return (
        verdict.outcome is Outcome.REGRESSED
        or (verdict.outcome is Outcome.INCONCLUSIVE and settings.inconclusive == "fail")
        or (verdict.outcome is Outcome.NO_BASELINE and settings.missing == "fail")
        # What is there is not replaced without being asked: recording would not help this one.
        or (
            verdict.outcome is Outcome.NO_BASELINE
            and settings.missing == "record"
            and verdict.reason not in RECORDABLE
        )
        or (verdict.outcome is Outcome.UNSUPPORTED and settings.require_counters)
    )


def traits_of(item: pytest.Item) -> TestTraits:
    """Reads a test's place and markers. Raises UsageFailure for a marker that makes no sense.

    The suite is the folder that holds the test's file; in the root directory, the file itself.
    """
    folder = item.path.parent
    suite = item.path.stem if folder == item.config.rootpath else folder.name
    configuration = ""
    try:
        for pattern in (p for marker in item.iter_markers("gpu_arch") for p in _names(marker)):
            arch.matches(pattern, arch.CPU)
    except UsageFailure as error:
        raise UsageFailure(f"{item.nodeid}: @pytest.mark.gpu_arch: {error}") from None
    for marker in item.iter_markers("optimization"):
        if len(marker.args) != 1 or not isinstance(marker.args[0], str) or marker.kwargs:
            raise UsageFailure(
                f"{item.nodeid}: the marker optimization takes one name, "
                'for example @pytest.mark.optimization("tf32")'
            )
        configuration = configuration or marker.args[0]
    options: dict[str, object] = {}
    for marker in reversed(list(item.iter_markers("gpuperf"))):
        if marker.args:
            raise UsageFailure(
                f"{item.nodeid}: the marker gpuperf takes keywords only, not {marker.args[0]!r}"
            )
        options.update(marker.kwargs)
    try:
        return TestTraits(item.nodeid, suite, configuration, **_checked(options))  # type: ignore[arg-type]
    except GpuperfError as error:
        raise UsageFailure(f"{item.nodeid}: @pytest.mark.gpuperf: {error}") from None


def _names(marker: pytest.Mark) -> tuple[str, ...]:
    if not marker.args or marker.kwargs or not all(isinstance(a, str) for a in marker.args):
        raise UsageFailure('architectures are needed, for example ("sm80", "sm90") or ("sm80+")')
    return marker.args


def _checked(options: Mapping[str, object]) -> dict[str, object]:
    from pytest_gpuperf.judge.tolerance import parse

    known = ("metrics", "tolerance", "rounds")
    for key in options:
        if key not in known:
            raise UsageFailure(f'no keyword "{key}"; known are {", ".join(known)}')
    metric_set = options.get("metrics")
    if metric_set is not None and metric_set not in tuple(catalogue().sets):
        sets = ", ".join(catalogue().sets)
        raise UsageFailure(f"metrics={metric_set!r}: no such set; known are {sets}")
    rounds = options.get("rounds")
    if rounds is not None and (type(rounds) is not int or rounds < 1):
        raise UsageFailure(f"rounds={rounds!r}: a whole number from 1 on is needed")
    tolerance = options.get("tolerance", {})
    if not isinstance(tolerance, Mapping):
        raise UsageFailure(f'tolerance={tolerance!r}: write a mapping, {{"cycles": "1%"}}')
    for name, written in tolerance.items():
        if name not in catalogue().metrics:
            raise UsageFailure(f'tolerance for "{name}": no such metric (docs/metrics.md)')
        parse(written, catalogue().metrics[name])
    return dict(options)


def elsewhere(item: pytest.Item, device: Device) -> str:
    """Why `item` cannot run on `device`, by its markers; "" when it can."""
    if item.get_closest_marker("gpu") and device.arch == arch.CPU:
        return "needs a GPU; there is none here, or --gpu-arch cpu was asked for"
    for marker in item.iter_markers("gpu_arch"):
        if not any(arch.matches(pattern, device.arch) for pattern in marker.args):
            return f"only on {', '.join(marker.args)}; this device is {device.arch}"
    return ""


def check_baselines(settings: Settings, device: Device, suites: Iterable[str]) -> None:
    """Reads the baselines of `suites`, so that a bad file stops everything before the first test.

    Raises BadFile.
    """
    if settings.judge:
        for suite in sorted(suites):
            baselines.load_for(settings.baselines, device, suite)
