"""Runs a collector over a step and makes measurements of what it brings back.

Guards the device (one measurement at a time, readings before and after) and adds the fingerprint.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import MeasurementError, UsageFailure
from pytest_gpuperf.measure.collector import (
    Beginning,
    Collected,
    Collector,
    KernelCollector,
    Plan,
    Progress,
    TimelineCollector,
    WindowCollector,
    Work,
)
from pytest_gpuperf.measure.device import fingerprint, guard, memory
from pytest_gpuperf.measure.execution import Stopwatch
from pytest_gpuperf.measure.trace import timelines
from pytest_gpuperf.model.measurement import (
    STEP,
    Conditions,
    Device,
    Fingerprint,
    Measurement,
    Sample,
    Scalar,
    Window,
)
from pytest_gpuperf.storage import files, run_files

PROCESS = uuid.uuid4().hex[:12]
"""This interpreter's id: measurements of one process are not independent of each other."""


WALL_TIME = "wall_time"
_ATTEMPTS = 2
"""On an unfit device it is measured again once: what disturbed may have passed."""


@dataclass(frozen=True)
class Subject:
    """What is measured, beside the step itself."""

    test: str
    name: str
    suite: str
    configuration: str
    workload: Mapping[str, Scalar]
    metric_set: str
    settings: Callable[[], Mapping[str, Scalar]] = dict
    """Asked once it was measured: what the test has to add to the measurement's settings."""


class Instrument:
    """Measures with a collector, or looks measurements up in a recorded run."""

    def __init__(
        self,
        source: Collector | RecordedRun,
        root: Path,
        parent: int | None = None,
        *,
        guarded: bool = True,
    ) -> None:
        self._source = source
        self._root = root
        self._parent = parent
        self._guarded = guarded
        """Not where this process only works for another, which guards the device meanwhile."""

    @property
    def device(self) -> Device:
        """The device that is measured, or that the run was measured on."""
        if isinstance(self._source, RecordedRun):
            return self._source.device
        return self._device

    @property
    def torch_device(self) -> str:
        """Where the step's tensors belong: "cuda" or "cpu"."""
        return "cpu" if isinstance(self._source, RecordedRun) else self._source.torch_device

    def measure(self, subject: Subject, work: Work, plan: Plan) -> tuple[Measurement, ...]:
        """The measurements of `subject`: one, or one per process of a recorded run.

        Raises what the collector raises, UnsoundStep where memory runs out, and UsageFailure for a
        test that the run does not have.
        """
        source = self._source
        if isinstance(source, RecordedRun):
            found = source.measurements(subject.test, subject.name)
            if not found:
                raise UsageFailure(
                    f'{source.file} has no measurement "{subject.name}" of {subject.test}. '
                    "Replay the run that measured it, or leave the test out"
                )
            return found
        return (self._measure(source, subject, work, plan),)

    def with_kernels(self, measurement: Measurement, work: Work, plan: Plan) -> Measurement:
        """The same with every kernel of the step by itself, and the seconds that this took.

        Unchanged where nothing here can tell kernels apart.
        """
        source = self._source
        if isinstance(source, RecordedRun) or not isinstance(source, KernelCollector):
            return measurement
        with self._alone(work.progress), memory.suffices():
            watch = Stopwatch()
            kernels = source.kernels(work, plan.metrics)
            seconds = watch.lap()
        found = measurement.fingerprint
        settings = {**found.settings, "kernels_s": seconds}
        return replace(measurement, kernels=kernels, fingerprint=replace(found, settings=settings))

    def with_timeline(self, measurement: Measurement, work: Work) -> Measurement:
        """The same with a timeline of one more execution, and the seconds that this took.

        Where the collector has none, or the machine forbids it, the timeline says why. Unchanged
        for a recorded run, which has what it has.
        """
        source = self._source
        if isinstance(source, RecordedRun):
            return measurement
        if not isinstance(source, TimelineCollector):
            obstacle = f"the collector {source.name} does not sample: the collector cupti does"
            return replace(measurement, timeline=timelines.absent(obstacle))
        with files.locked(f"device {self.device.identity}"), memory.suffices():
            watch = Stopwatch()
            sampled = source.timeline(work)
            seconds = watch.lap()
        for where, problem in run_files.timeline_problems(sampled):
            # What could not be read back would take the whole run file along.
            sampled = timelines.absent(f"the collector {source.name} brought {where}: {problem}")
        found = measurement.fingerprint
        settings = {**found.settings, "timeline_s": seconds}
        return replace(measurement, timeline=sampled, fingerprint=replace(found, settings=settings))

    def begin(self) -> None:
        """A test begins: for what counts from there on."""
        if isinstance(self._source, Beginning):
            self._source.begin()

    def check_window(self) -> None:
        """Raises UsageFailure where the paper's window cannot be counted."""
        if not isinstance(self._source, (WindowCollector, RecordedRun)):
            raise UsageFailure(
                "--gpuperf-protocol paper-window counts the launches of a GPU, and the collector "
                f"here is {self._source.name}: leave the flag out, or measure on a GPU"
            )

    def window(self, work: Work) -> Window | None:
        """The paper's window; None for a recorded run, which has it where it was counted.

        Raises MeasurementError where the fresh process that it takes fails.
        """
        source = self._source
        if isinstance(source, RecordedRun) or not isinstance(source, WindowCollector):
            return None
        with self._alone(work.progress):
            return source.window(work)

    @contextmanager
    def _alone(self, progress: Progress) -> Iterator[None]:
        """Holds the device: two measurements at once on one GPU would measure each other."""
        name = f"device {self.device.identity}"
        with ExitStack() as held:
            try:
                held.enter_context(files.locked(name, wait=False))
            except files.Locked:
                progress.begins("waiting for another measurement on this device")
                held.enter_context(files.locked(name, tick=progress.goes_on))
            yield

    def _measure(
        self, collector: Collector, subject: Subject, work: Work, plan: Plan
    ) -> Measurement:
        begun = files.utc_now()
        on_gpu = self.device.arch != architectures.CPU
        if on_gpu and self._guarded:
            with self._alone(work.progress):
                for _ in range(_ATTEMPTS):
                    before = guard.read(parent=self._parent)
                    with memory.suffices():
                        collected = collector.collect(work, plan)
                    conditions = Conditions(before, guard.read(parent=self._parent))
                    if not guard.unfit(conditions):
                        break
        else:
            with memory.suffices():
                collected = collector.collect(work, plan)
            conditions = None
        _check(collected, collector.name)
        samples = collected.samples
        if plan.extremes:
            samples = (*samples, *_extremes(samples))
        return Measurement(
            test=subject.test,
            name=subject.name,
            suite=subject.suite,
            process=PROCESS,
            configuration=subject.configuration,
            workload=subject.workload,
            samples=_ordered(samples),
            unsupported=collected.unsupported,
            fingerprint=Fingerprint(
                device=self.device,
                software=self._software,
                settings={
                    "collector": collector.name,
                    "metrics": subject.metric_set,
                    **(collected.settings or {}),
                    **subject.settings(),
                },
                revision=self._revision,
                conditions=conditions,
                measured=begun,
            ),
            window=collected.window,
            components=collected.components,
        )

    @cached_property
    def _device(self) -> Device:
        assert not isinstance(self._source, RecordedRun)
        return self._source.device()

    @cached_property
    def _software(self) -> dict[str, str]:
        assert not isinstance(self._source, RecordedRun)
        return {**fingerprint.software(), **self._source.software()}

    @cached_property
    def _revision(self) -> str:
        return fingerprint.revision(self._root)


def _check(collected: Collected, collector: str) -> None:
    """Raises MeasurementError for what cannot be judged or kept; a hook may bring any collector."""
    known = catalogue().metrics
    seen: set[tuple[str, str]] = set()
    sampled = [sample.metric for sample in collected.samples]
    for name in (*sampled, *(entry.metric for entry in collected.unsupported)):
        if name not in known:
            raise MeasurementError(f'the collector {collector} brought "{name}": no such metric')
    for sample in collected.samples:
        what = f"the collector {collector} brought {{}} {sample.metric} of {sample.phase}"
        if not sample.values:
            raise MeasurementError(what.format("no value for"))
        if not all(map(math.isfinite, sample.values)):
            raise MeasurementError(what.format(f"{list(sample.values)} for"))
        if (sample.phase, sample.metric) in seen:
            raise MeasurementError(what.format("a second sample of"))
        seen.add((sample.phase, sample.metric))


def _extremes(samples: tuple[Sample, ...]) -> Iterator[Sample]:
    """Best, worst and mean of the step's wall times, one value of a process each."""
    for sample in samples:
        if (sample.phase, sample.metric) == (STEP, WALL_TIME):
            for name, of in (("best", min), ("worst", max), ("mean", fmean)):
                yield Sample(STEP, f"{WALL_TIME}_{name}", (float(of(sample.values)),))


def _ordered(samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
    """The whole step first, then the phases as they occurred; metrics as the catalogue has them."""
    phases = [STEP, *dict.fromkeys(sample.phase for sample in samples)]
    names = list(catalogue().metrics)
    return tuple(sorted(samples, key=lambda s: (phases.index(s.phase), names.index(s.metric))))


# A recorded run in place of a device: `--gpuperf-replay RUN`.


class RecordedRun:
    """The measurements of a run file, by test. Raises BadFile or UsageFailure when unreadable."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._measurements = run_files.load(file).measurements
        if not self._measurements:
            raise UsageFailure(
                f"{file}: this run has no measurements, so there is nothing to judge"
            )
        measured_on = (m.fingerprint.device for m in self._measurements)
        devices = dict.fromkeys(f"{device.name} ({device.arch})" for device in measured_on)
        if len(devices) > 1:
            raise UsageFailure(
                f"{file}: this run was measured on {' and on '.join(devices)}. Each has baselines "
                "of its own: replay the runs of one device at a time"
            )

    @property
    def device(self) -> Device:
        """The device the run was measured on."""
        return self._measurements[0].fingerprint.device

    def measurements(self, test: str, name: str) -> tuple[Measurement, ...]:
        """The measurements `name` of `test`, one per process; empty when the run has none."""
        return tuple(
            measurement
            for measurement in self._measurements
            if (measurement.test, measurement.name) == (test, name)
        )
