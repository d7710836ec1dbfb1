"""An instrument: a collector on a guarded device, or a recorded run in its place.

It guards the device (one measurement at a time, readings before and after), and makes measurements
with a fingerprint from the collector's data. This module also chooses a session's instrument: the
requested device, and the collector that counts on it.
"""

from __future__ import annotations

import math
import os
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import MeasurementError, UnsoundStep, UsageFailure
from pytest_gpuperf.judge import machine
from pytest_gpuperf.measure.collector import (
    Collected,
    Collector,
    KernelCollector,
    Plan,
    Progress,
    Work,
)
from pytest_gpuperf.measure.device import canary, fingerprint, guard, memory, nvml
from pytest_gpuperf.measure.execution import Stopwatch
from pytest_gpuperf.measure.replica import RANKS, WINDOW, Replicas, Task, TaskRunner
from pytest_gpuperf.model.measurement import (
    ELSEWHERE,
    PAPER_WINDOW,
    STEP,
    Canary,
    Conditions,
    Device,
    Fingerprint,
    Machine,
    Measurement,
    Peer,
    Reading,
    Sample,
    Scalar,
)
from pytest_gpuperf.model.settings import Settings
from pytest_gpuperf.storage import data_files, files, run_files

PROCESS = uuid.uuid4().hex[:12]
"""This interpreter's id: measurements of one process are not independent."""

PATIENCE = 3600.0
"""Seconds that a measurement waits for others on its device: under Nsight Compute one of them may
take most of an hour."""

STAND_IN = "GPUPERF_STAND_IN"
"""The environment variable with what is held in the device's place, in processes of who holds the
device itself for all of them."""

PROVING = "GPUPERF_SLOWDOWNS"
"""The environment variable of `gpuperf prove`: the number of slowdowns per measurement (0 is all),
and the folder where a session says which they are. Its fresh processes put in the same."""
_WALL_TIME = "wall_time"
_MOMENT_S = 5.0
"""A reading of the canary takes 0.07 s on an H200, and a session has a hundred measurements."""
_ATTEMPTS = 2
"""Attempts on an unfit device, and if the canary moved meanwhile: the disturbance may have
passed."""

_ON_A_GPU = ("cupti", "ncu")
_INSTEAD_OF_A_GPU = """but gpuperf found no NVIDIA GPU here. Without a GPU you can
  measure portable counts:               --gpu-arch cpu (or leave the flag out)
  compare a recorded run with baselines: --gpuperf-replay RUN
`gpuperf doctor` lists what is missing."""


@dataclass(frozen=True)
class Subject:
    """The subject of a measurement, without the step itself."""

    test: str
    name: str
    suite: str
    configuration: str
    workload: Mapping[str, Scalar]
    metric_set: str
    settings: Callable[[], Mapping[str, Scalar]] = dict
    """Asked once it was measured: what the test has to add to the measurement's settings."""
    tolerance: Mapping[str, str] = field(default_factory=dict)
    """The tolerances of its marker, by metric."""

    def unmeasured(self, device: Device) -> Measurement:
        """A measurement without samples: before there are any, or if another one is to be made."""
        return Measurement(
            test=self.test,
            name=self.name,
            suite=self.suite,
            process="",
            configuration=self.configuration,
            workload=self.workload,
            samples=(),
            unsupported=(),
            fingerprint=Fingerprint(device, {}, {}),
        )


class Measurer(ABC):
    """Measures a subject, here or in other processes; by default it adds nothing to that later."""

    @abstractmethod
    def measure(self, subject: Subject, work: Work, plan: Plan) -> tuple[Measurement, ...]:
        """The measurements of `subject`, one per process.

        Raises UnsoundStep, CountersUnavailable and MeasurementError, and UsageFailure if a run file
        has no such measurement.
        """

    def with_kernels(self, measurement: Measurement, work: Work, plan: Plan) -> Measurement:  # noqa: ARG002
        """The measurement with every kernel of the step, if the instrument can separate them.

        Raises what `measure` does.
        """
        return measurement

    def with_window(self, measurement: Measurement, work: Work) -> Measurement:  # noqa: ARG002
        """The measurement with the paper's window, if it is counted. Raises MeasurementError."""
        return measurement


class Instrument(Measurer):
    """The source of a session's measurements: a device, one of several ranks, or a run file."""

    device: Device
    """The device that is measured."""
    torch_device: str
    """The device of the step's tensors: "cuda" or "cpu"."""

    def begin(self) -> None:
        """A test begins: for what counts from there on. Raises CountersUnavailable."""


@dataclass(eq=False)
class DeviceInstrument(Instrument):
    """Measures with a collector."""

    collector: Collector
    root: Path
    parent: int | None = None
    """The process that waits for this one, and may hold the device too."""
    _: KW_ONLY
    guarded: bool = True
    """False in a process that works for another, which guards the device."""
    has_canary: bool = False
    """A GPU's canary is read with each reading of its guard, but not under a profiler."""
    baselines: Path | None = None
    """Their folder, which is not part of the code's revision."""
    siblings: guard.Siblings | None = None
    """The other workers of a session."""
    gpus: Callable[[], Sequence[str]] = tuple
    """The UUIDs that the running test holds."""
    windows: Replicas | None = None
    """They run a test again for the paper's window."""

    def __post_init__(self) -> None:
        self.device = self.collector.device()
        self.torch_device = self.collector.torch_device
        self._machine: Machine | None = None
        self._canary: Canary | None = None
        self._canary_at = -math.inf

    def measure(self, subject: Subject, work: Work, plan: Plan) -> tuple[Measurement, ...]:
        """The measurement of `subject`.

        Raises what the collector raises, MeasurementError for data that cannot be judged, and
        UnsoundStep if memory runs out or torch's profiler records.
        """
        _check_unprofiled()
        begun = files.utc_now()
        collected, conditions = self._collected(work, plan)
        _check(collected, self.collector.name)
        extremes = _extremes(collected.samples) if plan.extremes else ()
        samples = ordered((*collected.samples, *extremes))
        rank = Peer("rank", self.device, samples, conditions, collected.collectives)
        elsewhere = fingerprint.elsewhere(self.root)
        measurement = replace(
            subject.unmeasured(self.device),
            process=PROCESS,
            samples=samples,
            unsupported=collected.unsupported,
            fingerprint=Fingerprint(
                device=self.device,
                # More may have been imported since the measurement before.
                software={**fingerprint.libraries(), **self._software},
                settings={
                    "collector": self.collector.name,
                    "metrics": subject.metric_set,
                    **(collected.settings or {}),
                    **subject.settings(),
                    **({ELSEWHERE: elsewhere} if elsewhere else {}),
                },
                revision="" if elsewhere else self._revision,
                project=fingerprint.project(self.root),
                conditions=conditions,
                measured=begun,
                machine=self._machine,
            ),
            window=collected.window,
            components=collected.components,
            launched=collected.launched,
            tolerance=subject.tolerance,
            peers=(rank,) if work.together else (),
        )
        return (measurement,)

    def with_kernels(self, measurement: Measurement, work: Work, plan: Plan) -> Measurement:
        """The measurement with every kernel of the step, and the seconds that this took.

        Unchanged if the collector cannot separate kernels.
        """
        if not isinstance(self.collector, KernelCollector):
            return measurement
        with self._held(work), memory.suffices():
            watch = Stopwatch()
            kernels = self.collector.kernels(work, plan.metrics)
            watch.lap("kernels_s")
        for where, problem in data_files.problems(kernels):
            brought = f"the collector {self.collector.name} returned an invalid kernel table"
            raise MeasurementError(f"{brought} ({where}: {problem}). Measure again")
        known = measurement.fingerprint
        known = replace(known, settings={**known.settings, **watch.laps})
        return replace(measurement, kernels=kernels, fingerprint=known)

    def with_window(self, measurement: Measurement, work: Work) -> Measurement:
        """The measurement with the paper's window, which a fresh process counts itself.

        Raises MeasurementError if that process fails.
        """
        if self.windows is None:
            return measurement
        with self._alone(work.progress):
            finished = self.windows.run(Task(work.test, WINDOW, work.name))
        counted = finished.measurement(work.test, work.name)
        if counted is None or counted.window is None:
            raise MeasurementError(
                "--gpuperf-protocol paper-window: the process that counts launches ended with "
                f"pytest's exit code {finished.code} and no counts:\n{finished.last_lines()}"
            )
        return replace(measurement, window=counted.window)

    def begin(self) -> None:
        """A test begins: for what counts from there on."""
        if isinstance(self.collector, TaskRunner):
            self.collector.begin()

    def _collected(self, work: Work, plan: Plan) -> tuple[Collected, Conditions | None]:
        """The data of the collector, and the state of a GPU before and after."""
        if self.device.arch == architectures.CPU or not self.guarded:
            with memory.suffices():
                return self.collector.collect(work, plan), None
        with self._held(work):
            if self._machine is None:
                self._machine = fingerprint.machine()
            # All ranks execute equally often, and only one of them may be disturbed.
            for attempt in range(1 if work.together else _ATTEMPTS):
                before = self._reading(anew=attempt > 0)
                with memory.suffices():
                    collected = self.collector.collect(work, plan)
                conditions = Conditions(before, self._reading())
                if not (guard.unfit(conditions) or machine.between(conditions)):
                    break
        return collected, conditions

    def _reading(self, *, anew: bool = True) -> Reading:
        """The state of the GPU, and then its canary, which would affect clocks and power.

        Unless `anew`, a canary read a moment ago, after the previous measurement, is used.
        """
        state = guard.read(parent=self.parent, siblings=self.siblings)
        if not self.has_canary:
            return state
        if anew or time.monotonic() - self._canary_at > _MOMENT_S:
            self._canary = canary.read(self.device.arch)
            self._canary_at = time.monotonic()
        return replace(state, canary=self._canary)

    def _held(self, work: Work) -> AbstractContextManager[None]:
        # Devices without a node of their own share one, as all do under `gpuperf ab`, which holds
        # the GPU for them: ranks would wait for each other there.
        shared = work.together and (STAND_IN in os.environ or self._node == nvml.ANY_NODE)
        return nullcontext() if shared else self._alone(work.progress)

    @contextmanager
    def _alone(self, progress: Progress) -> Iterator[None]:
        """Holds the device, because two measurements at once on one GPU would disturb each other.

        It also holds the test's other GPUs, in an order that all processes share.
        """
        others = () if STAND_IN in os.environ else self.gpus()[1:]
        with ExitStack() as held:
            try:
                for node in sorted({self._node, *map(nvml.node, others)}):
                    self._hold(held, node, progress)
            except (UsageFailure, FileNotFoundError) as error:
                raise MeasurementError(f"the device cannot be locked: {error}") from error
            yield

    @staticmethod
    def _hold(held: ExitStack, node: Path, progress: Progress) -> None:
        try:
            held.enter_context(files.locked(node, patience=0))
        except files.Locked:
            progress.begins("waiting for another process, which measures on this device")
            with progress.aside():
                held.enter_context(files.locked(node, patience=PATIENCE))

    @cached_property
    def _node(self) -> Path:
        held = os.environ.get(STAND_IN)
        return Path(held) if held else nvml.node()

    @cached_property
    def _software(self) -> dict[str, str]:
        of_gpu = self.collector.torch_device != "cpu"
        return {**fingerprint.software(of_gpu=of_gpu), **self.collector.software()}

    @cached_property
    def _revision(self) -> str:
        return fingerprint.revision(self.root, self.baselines)


def _check_unprofiled() -> None:
    """Raises UnsoundStep under torch's profiler: a process has one client of CUPTI."""
    autograd: Any = sys.modules.get("torch.autograd")
    enabled = getattr(autograd, "_profiler_enabled", None)  # it has no public name
    if enabled is not None and enabled():
        raise UnsoundStep(
            "torch.profiler is recording in this process. It would change what gpuperf measures "
            "and lose events itself. Stop the profiler before gpuperf.measure"
        )


class RecordedRun(Instrument):
    """A run file in a device's place: `--gpuperf-replay RUN`.

    Its measurements are as they were recorded. Raises BadFile or UsageFailure when unreadable.
    """

    torch_device = "cpu"

    def __init__(self, file: Path) -> None:
        self._file = file
        self._measurements = run_files.load(file).measurements
        if not self._measurements:
            raise UsageFailure(
                f"the run {file} has no measurements, so gpuperf cannot compare it with baselines"
            )
        devices = dict.fromkeys(str(m.fingerprint.device) for m in self._measurements)
        if len(devices) > 1:
            raise UsageFailure(
                f"the run {file} was measured on {' and on '.join(devices)}, and each device has "
                "its own baselines. Replay a run of one device"
            )
        self.device = self._measurements[0].fingerprint.device

    def measure(self, subject: Subject, *_: object) -> tuple[Measurement, ...]:
        """The measurements of `subject`, one per process. Raises UsageFailure if there are none.

        The step is not run.
        """
        wanted = (subject.test, subject.name)
        recorded = tuple(m for m in self._measurements if (m.test, m.name) == wanted)
        if not recorded:
            raise UsageFailure(
                f'{self._file} has no measurement "{subject.name}" of {subject.test}. '
                "Replay the run that measured it, or deselect the test"
            )
        return recorded


def _check(collected: Collected, collector: str) -> None:
    """Raises MeasurementError for what cannot be judged or kept; a hook may bring any collector.

    That is what a run file would be refused for.
    """
    unreadable = [
        (f"samples/{index}/values", f"{list(sample.values)} for {sample.metric} of {sample.phase}")
        for index, sample in enumerate(collected.samples)
        if not all(map(math.isfinite, sample.values))
    ]
    refused = run_files.sample_problems(collected.samples, collected.unsupported)
    for where, problem in chain(unreadable, refused):
        raise MeasurementError(
            f"the collector {collector} returned an invalid value ({where}: {problem}), so the "
            "test cannot be compared with its baseline. Run `gpuperf doctor`, and measure again"
        )


def _extremes(samples: tuple[Sample, ...]) -> Iterator[Sample]:
    """Best, worst and mean of the step's wall times, one value of a process each."""
    for sample in samples:
        if (sample.phase, sample.metric) == (STEP, _WALL_TIME):
            for name, of in (("best", min), ("worst", max), ("mean", fmean)):
                yield Sample(STEP, f"{_WALL_TIME}_{name}", (float(of(sample.values)),))


def ordered(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """The whole step first, then the phases as they occurred; metrics as the catalogue has them."""
    phases = [STEP, *dict.fromkeys(sample.phase for sample in samples)]
    names = list(catalogue().metrics)
    return tuple(sorted(samples, key=lambda s: (phases.index(s.phase), names.index(s.metric))))


def instrument_for(
    settings: Settings,
    replicas: Replicas,
    *,
    offered: Collector | None = None,
    parent: int | None = None,
    task: Task | None = None,
    siblings: guard.Siblings | None = None,
    gpus: Callable[[], Sequence[str]] = tuple,
) -> Instrument:
    """The instrument of this process: a recorded run, or a collector on a device.

    `replicas` run a test again in a fresh process, and `task` is this process's task as one.
    `offered` is a collector from a hook, which has no canary. `parent` is the pid of a process that
    waits for this one and may hold the device too; `siblings` and `gpus` are those of
    DeviceInstrument. Raises UsageFailure, see `collector_for`.
    """
    if settings.arch != "auto":
        architectures.validate(settings.arch)
    if settings.replay is not None:
        run = RecordedRun(settings.replay)
        check_architecture(settings.arch, run.device, settings.replay)
        return run
    collector = collector_for(settings, replicas, offered)
    if task is None or task.is_replica or task.kind == RANKS:
        own = offered is None and collector.device().arch != architectures.CPU
        if settings.protocol == PAPER_WINDOW and not own:
            raise UsageFailure(
                "--gpuperf-protocol paper-window counts the launches of a GPU, but the collector "
                f"here is {collector.name}. Leave this flag out, or measure on a GPU"
            )
        return DeviceInstrument(
            collector,
            settings.root,
            parent,
            has_canary=own,
            baselines=settings.baselines,
            siblings=siblings,
            gpus=gpus,
            windows=replicas if own else None,
        )
    runner = TaskRunner(task, collector)
    if task.kind == WINDOW:
        from pytest_gpuperf.measure.cupti.paper_window import WindowCounter

        runner = WindowCounter(task, collector)
    return DeviceInstrument(runner, settings.root, guarded=False)


def collector_for(
    settings: Settings, replicas: Replicas, offered: Collector | None = None
) -> Collector:
    """The collector to measure with; `offered` comes from a hook and goes before the built-in ones.

    Raises UsageFailure when no device of the architecture that was asked for is there.
    """
    if offered is not None:
        check_architecture(settings.arch, offered.device())
        return offered
    if settings.collector in _ON_A_GPU and settings.arch == architectures.CPU:
        raise UsageFailure(
            f"--gpuperf-collector {settings.collector} needs a GPU, but --gpu-arch cpu chooses the "
            "CPU. Leave one of the two flags out"
        )
    # Portable counts can also be requested on a machine with a GPU.
    on_cpu = settings.arch == architectures.CPU or settings.collector == "cpu"
    gpu = None if on_cpu else nvml.detect_device()
    if gpu is None:
        if settings.arch not in ("auto", architectures.CPU):
            asked = f"--gpu-arch {settings.arch} asks for an {settings.arch} GPU"
            raise UsageFailure(f"{asked}, {_INSTEAD_OF_A_GPU}")
        if settings.collector in _ON_A_GPU:
            asked = f"--gpuperf-collector {settings.collector} asks for a GPU"
            raise UsageFailure(f"{asked}, {_INSTEAD_OF_A_GPU}")
        address = "" if on_cpu else nvml.silent_gpu()
        if address:
            raise UsageFailure(
                f"this machine has an NVIDIA GPU (PCI {address}), but no driver reports it. Run "
                "`nvidia-smi` to see why, or pass --gpu-arch cpu to count on the CPU"
            )
        from pytest_gpuperf.measure.cpu.cpu_collector import CpuCollector

        return CpuCollector(settings.root)
    check_architecture(settings.arch, gpu)
    if settings.collector == "ncu":
        from pytest_gpuperf.measure.ncu.ncu_collector import NcuCollector

        return NcuCollector(gpu, settings.ncu, replicas, settings.ncu_replay)
    from pytest_gpuperf.measure.cupti.cupti_collector import CuptiCollector

    return CuptiCollector(gpu, settings.root)


def check_architecture(wanted: str, device: Device, replay: Path | None = None) -> None:
    """Raises UsageFailure, naming both, when `device` is not of the architecture `wanted`."""
    if wanted in ("auto", device.arch):
        return
    named = f"{device.name} ({device.arch})" if device.arch != architectures.CPU else "a CPU (cpu)"
    asked = f"--gpu-arch {wanted} asks for {wanted} baselines, but"
    if replay is not None:
        raise UsageFailure(
            f"{asked} the run {replay} was measured on {named}. Use --gpu-arch {device.arch}, or "
            "leave the flag out"
        )
    raise UsageFailure(
        f"{asked} this device is {named}. gpuperf cannot compare two architectures. Pass "
        f"--gpu-arch {device.arch} (or auto), or replay a run from {wanted}: --gpuperf-replay RUN"
    )
