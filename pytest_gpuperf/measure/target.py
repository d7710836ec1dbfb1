"""What this invocation measures: the device, and the collector that counts on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.measure.collector import Collector
from pytest_gpuperf.measure.device import nvml
from pytest_gpuperf.measure.instrument import Instrument, RecordedRun
from pytest_gpuperf.measure.ncu.ncu_command import Control
from pytest_gpuperf.measure.replica import WINDOW, Rerun, Task, no_rerun
from pytest_gpuperf.model.measurement import Device

_ON_A_GPU = ("cupti", "ncu")


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
    offered: Collector | None = None,
    parent: int | None = None,
    *,
    rerun: Rerun = no_rerun,
    task: Task | None = None,
) -> Instrument:
    """What measures in this process: a recorded run, or a collector on a device.

    `offered` is a collector that a hook brought; `parent` the pid of a process that waits for this
    one and may hold the device too; `rerun` runs a test again in a fresh process; `task` is what
    such a process does in place of measuring. Raises UsageFailure, see `collector_for`.
    """
    if wanted.arch != "auto":
        architectures.validate(wanted.arch)
    if wanted.replay is not None:
        run = RecordedRun(wanted.replay)
        check_architecture(wanted.arch, run.device, wanted.replay)
        return Instrument(run, root)
    collector = collector_for(wanted, offered, rerun=rerun)
    if task is not None:
        return Instrument(_sent(task, collector), root, parent, guarded=False)
    return Instrument(collector, root, parent)


def _sent(task: Task, collector: Collector) -> Collector:
    """What is in the collector's place in a process with an errand."""
    if task.kind == WINDOW:
        from pytest_gpuperf.measure.cupti.window_counter import WindowCounter

        return WindowCounter(collector.device(), task.name)
    from pytest_gpuperf.measure.ncu.profiled_step import CudaMarks
    from pytest_gpuperf.measure.replica import Runner

    return Runner(task, collector, CudaMarks())


def collector_for(
    wanted: Wanted, offered: Collector | None = None, *, rerun: Rerun = no_rerun
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
    if gpu is None and (
        wanted.collector in _ON_A_GPU or wanted.arch not in ("auto", architectures.CPU)
    ):
        asked = (
            f"--gpu-arch {wanted.arch} asks for an {wanted.arch} GPU"
            if wanted.arch != "auto"
            else f"--gpuperf-collector {wanted.collector} asks for a GPU"
        )
        raise UsageFailure(f"{asked}, {_NO_GPU}")
    if gpu is None:
        check_architecture(wanted.arch, nvml.portable_device())
        from pytest_gpuperf.measure.cpu.cpu_collector import CpuCollector

        return CpuCollector()
    check_architecture(wanted.arch, gpu)
    if wanted.collector == "ncu":
        from pytest_gpuperf.measure.ncu.ncu_collector import NcuCollector

        return NcuCollector(gpu, wanted.ncu, rerun)
    from pytest_gpuperf.measure.cupti.cupti_collector import CuptiCollector

    return CuptiCollector(gpu, rerun=rerun)


def check_architecture(wanted: str, device: Device, replay: Path | None = None) -> None:
    """Raises UsageFailure, naming both, when `device` is not of the architecture `wanted`."""
    if wanted in ("auto", device.arch):
        return
    if replay is not None:
        raise UsageFailure(
            f"--gpu-arch {wanted} asks for {wanted} baselines, but the run {replay} was measured "
            f"on {_named(device)}. Use --gpu-arch {device.arch}, or leave the flag out"
        )
    raise UsageFailure(
        f"--gpu-arch {wanted} asks for {wanted} baselines, but this device is {_named(device)}. "
        f"Numbers of one architecture say nothing about another. Use --gpu-arch {device.arch} (or "
        f"auto) here, or judge a run recorded on {wanted} with --gpuperf-replay RUN"
    )


def _named(device: Device) -> str:
    if device.arch == architectures.CPU:
        return "a CPU (cpu)"
    return f"{device.name} ({device.arch})"


_NO_GPU = """and no NVIDIA GPU was found here. Without one you can
  measure portable counts:  --gpu-arch cpu (or leave the flag out)
  judge a recorded run:     --gpuperf-replay RUN
`gpuperf doctor` says what was looked for."""
