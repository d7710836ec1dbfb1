"""The target of a session: the device that was asked for, and the collector that counts on it."""

from __future__ import annotations

from pathlib import Path

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.measure.collector import Collector
from pytest_gpuperf.measure.device import nvml
from pytest_gpuperf.measure.instrument import DeviceInstrument, Instrument, RecordedRun
from pytest_gpuperf.measure.ncu.ncu_command import Control
from pytest_gpuperf.measure.replica import WINDOW, Replicas, Task, TaskRunner
from pytest_gpuperf.model.measurement import Device
from pytest_gpuperf.model.settings import Settings

_ON_A_GPU = ("cupti", "ncu")
_INSTEAD_OF_A_GPU = """and no NVIDIA GPU was found here. Without one you can
  measure portable counts:  --gpu-arch cpu (or leave the flag out)
  judge a recorded run:     --gpuperf-replay RUN
`gpuperf doctor` says what was looked for."""


def instrument_for(
    settings: Settings,
    replicas: Replicas,
    *,
    offered: Collector | None = None,
    parent: int | None = None,
    task: Task | None = None,
) -> Instrument:
    """What measures in this process: a recorded run, or a collector on a device.

    `replicas` run a test again in a fresh process, and `task` is what this process does as such;
    `offered` is a collector that a hook brought, beside which no canary is read; `parent` the pid
    of a process that waits for this one and may hold the device too. Raises UsageFailure, see
    `collector_for`.
    """
    if settings.arch != "auto":
        architectures.validate(settings.arch)
    if settings.replay is not None:
        run = RecordedRun(settings.replay)
        check_architecture(settings.arch, run.device, settings.replay)
        return run
    collector = collector_for(settings, replicas, offered)
    if task is None or task.is_replica:
        own = offered is None and collector.device().arch != architectures.CPU
        return DeviceInstrument(
            collector, settings.root, parent, has_canary=own, baselines=settings.baselines
        )
    if task.kind != WINDOW:
        return DeviceInstrument(TaskRunner(task, collector), settings.root, guarded=False)
    from pytest_gpuperf.measure.cupti.cupti_collector import WindowCounter

    return DeviceInstrument(
        WindowCounter(collector.device(), task.name), settings.root, guarded=False
    )


def collector_for(
    settings: Settings, replicas: Replicas, offered: Collector | None = None
) -> Collector:
    """The collector to measure with; `offered` comes from a hook and goes before the built-in ones.

    Raises UsageFailure when the device is not of the architecture that was asked for, or there is
    none.
    """
    if offered is not None:
        check_architecture(settings.arch, offered.device())
        return offered
    if settings.collector in _ON_A_GPU and settings.arch == architectures.CPU:
        raise UsageFailure(
            f"--gpuperf-collector {settings.collector} reads a GPU's counters, and --gpu-arch cpu "
            "asks for counts without one: leave one of them out"
        )
    # A GPU in the machine does not keep anybody from asking for the portable counts.
    on_cpu = settings.arch == architectures.CPU or settings.collector == "cpu"
    gpu = None if on_cpu else nvml.detect_device()
    if gpu is None:
        if settings.arch not in ("auto", architectures.CPU):
            raise UsageFailure(
                f"--gpu-arch {settings.arch} asks for an {settings.arch} GPU, {_INSTEAD_OF_A_GPU}"
            )
        if settings.collector in _ON_A_GPU:
            raise UsageFailure(
                f"--gpuperf-collector {settings.collector} asks for a GPU, {_INSTEAD_OF_A_GPU}"
            )
        address = "" if on_cpu else nvml.silent_gpu()
        if address:
            raise UsageFailure(
                f"there is an NVIDIA GPU in this machine (PCI {address}) and no driver that speaks "
                "of it: `nvidia-smi` says what is wrong. To measure portable counts without it: "
                "--gpu-arch cpu"
            )
        from pytest_gpuperf.measure.cpu.cpu_collector import CpuCollector

        return CpuCollector(settings.root)
    check_architecture(settings.arch, gpu)
    if settings.collector == "ncu":
        from pytest_gpuperf.measure.ncu.ncu_collector import NcuCollector

        control = Control(
            settings.ncu, settings.ncu_replay, settings.ncu_clocks, settings.ncu_caches
        )
        return NcuCollector(gpu, control, replicas)
    from pytest_gpuperf.measure.cupti.cupti_collector import CuptiCollector

    return CuptiCollector(gpu, root=settings.root, replicas=replicas)


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
