"""The target of a session: the device that was asked for, and the collector that counts on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.measure.collector import Collector
from pytest_gpuperf.measure.device import nvml
from pytest_gpuperf.measure.instrument import Instrument, RecordedRun, Source
from pytest_gpuperf.measure.ncu.ncu_command import Control
from pytest_gpuperf.measure.replica import WINDOW, Replicas, Task, TaskRunner
from pytest_gpuperf.model.measurement import Device

_ON_A_GPU = ("cupti", "ncu")
_INSTEAD_OF_A_GPU = """and no NVIDIA GPU was found here. Without one you can
  measure portable counts:  --gpu-arch cpu (or leave the flag out)
  judge a recorded run:     --gpuperf-replay RUN
`gpuperf doctor` says what was looked for."""


@dataclass(frozen=True)
class Wanted:
    """What the user asked for: `--gpu-arch`, `--gpuperf-collector`, `--gpuperf-replay`."""

    arch: str = "auto"
    collector: str = "auto"
    replay: Path | None = None
    ncu: Control = field(default_factory=Control)
    """How ncu is run, where that is the collector."""


def instrument_for(
    wanted: Wanted,
    root: Path,
    replicas: Replicas,
    *,
    offered: Collector | None = None,
    parent: int | None = None,
    task: Task | None = None,
) -> Source:
    """What measures in this process: a recorded run, or a collector on a device.

    `replicas` run a test again in a fresh process, and `task` is what this process does as such;
    `offered` is a collector that a hook brought; `parent` the pid of a process that waits for this
    one and may hold the device too. Raises UsageFailure, see `collector_for`.
    """
    if wanted.arch != "auto":
        architectures.validate(wanted.arch)
    if wanted.replay is not None:
        run = RecordedRun(wanted.replay)
        check_architecture(wanted.arch, run.device, wanted.replay)
        return run
    collector = collector_for(wanted, replicas, offered)
    if task is None or task.is_replica:
        return Instrument(collector, root, parent)
    if task.kind != WINDOW:
        return Instrument(TaskRunner(task, collector), root, guarded=False)
    from pytest_gpuperf.measure.cupti.cupti_collector import WindowCounter

    return Instrument(WindowCounter(collector.device(), task.name), root, guarded=False)


def collector_for(
    wanted: Wanted, replicas: Replicas, offered: Collector | None = None
) -> Collector:
    """The collector to measure with; `offered` comes from a hook and goes before the built-in ones.

    Raises UsageFailure when the device is not of the architecture that was asked for, or there is
    none.
    """
    if offered is not None:
        check_architecture(wanted.arch, offered.device())
        return offered
    if wanted.collector in _ON_A_GPU and wanted.arch == architectures.CPU:
        raise UsageFailure(
            f"--gpuperf-collector {wanted.collector} reads a GPU's counters, and --gpu-arch cpu "
            "asks for counts without one: leave one of them out"
        )
    # A GPU in the machine does not keep anybody from asking for the portable counts.
    on_cpu = wanted.arch == architectures.CPU or wanted.collector == "cpu"
    gpu = None if on_cpu else nvml.detect_device()
    if gpu is None:
        if wanted.arch not in ("auto", architectures.CPU):
            raise UsageFailure(
                f"--gpu-arch {wanted.arch} asks for an {wanted.arch} GPU, {_INSTEAD_OF_A_GPU}"
            )
        if wanted.collector in _ON_A_GPU:
            raise UsageFailure(
                f"--gpuperf-collector {wanted.collector} asks for a GPU, {_INSTEAD_OF_A_GPU}"
            )
        from pytest_gpuperf.measure.cpu.cpu_collector import CpuCollector

        return CpuCollector()
    check_architecture(wanted.arch, gpu)
    if wanted.collector == "ncu":
        from pytest_gpuperf.measure.ncu.ncu_collector import NcuCollector

        return NcuCollector(gpu, wanted.ncu, replicas)
    from pytest_gpuperf.measure.cupti.cupti_collector import CuptiCollector

    return CuptiCollector(gpu, replicas=replicas)


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
        f"{asked} this device is {named}. Numbers of one architecture say nothing about another. "
        f"Use --gpu-arch {device.arch} (or auto) here, or judge a run recorded on {wanted} with "
        "--gpuperf-replay RUN"
    )
