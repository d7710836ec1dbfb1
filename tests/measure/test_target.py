"""What is measured here: the device that was asked for, or a sentence that says why not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.measure import instrument as target
from pytest_gpuperf.measure.collector import SILENT, Collector
from pytest_gpuperf.measure.cpu.cpu_collector import CpuCollector
from pytest_gpuperf.measure.cupti.cupti_collector import CuptiCollector
from pytest_gpuperf.measure.cupti.paper_window import WindowCounter
from pytest_gpuperf.measure.device import nvml
from pytest_gpuperf.measure.instrument import DeviceInstrument
from pytest_gpuperf.measure.ncu.ncu_collector import NcuCollector
from pytest_gpuperf.measure.replica import PROFILED, WINDOW, Invocation, Replicas, Task, TaskRunner
from pytest_gpuperf.model.settings import Settings
from pytest_gpuperf.storage import run_files
from tests.examples import A100, H200, default_settings, measurement, run
from tests.scripted_collector import ScriptedCollector
from tests.scripted_nvml import Gpu, Install, Library

REPLICAS = Replicas(Invocation((), Path()), 1.0, SILENT)


def wanted(arch: str = "auto", collector: str = "auto", replay: Path | None = None) -> Settings:
    """What the user asked for: `--gpu-arch`, `--gpuperf-collector`, `--gpuperf-replay`."""
    settings = default_settings(Path())
    return replace(settings, arch=arch, collector=collector, replay=replay)


def measures(settings: Settings, kind: type, **more: Any) -> DeviceInstrument:
    """What measures so, with a collector of this kind."""
    source = target.instrument_for(settings, REPLICAS, **more)
    assert isinstance(source, DeviceInstrument)
    assert isinstance(source.collector, kind), settings
    return source


def refuses(settings: Settings, *said: str, offered: Collector | None = None) -> None:
    """Measuring so is a usage error, which says all this."""
    with pytest.raises(UsageFailure) as caught:
        target.instrument_for(settings, REPLICAS, offered=offered)
    for part in said:
        assert part in str(caught.value), settings


@pytest.fixture
def no_gpu(install: Install) -> None:
    """A machine without a driver."""
    install(None)


@pytest.fixture
def h200(install: Install) -> None:
    """A machine with one H200, as NVML tells it."""
    install(Library([Gpu()]))


def pci(folder: Path, monkeypatch: pytest.MonkeyPatch, vendor: str, kind: str) -> None:
    """What Linux says of a device, and of one that it says nothing of."""
    device = folder / "0000:41:00.0"
    device.mkdir()
    (device / "vendor").write_text(vendor, encoding="utf-8")
    (device / "class").write_text(kind, encoding="utf-8")
    (folder / "0000:00:00.0").mkdir()
    monkeypatch.setattr(nvml, "_PCI", folder)


ASKED = "--gpu-arch sm80 asks for sm80 baselines"
PORTABLE = (wanted(collector="cpu"), wanted("cpu"), wanted("cpu", "cpu"))


# With a GPU


@pytest.mark.usefixtures("h200")
def test_a_gpu_is_measured_through_cupti_unless_something_else_is_asked_for() -> None:
    """And a canary is read on GPUs that we measure ourselves."""
    for settings in (wanted(), wanted("sm90"), wanted(collector="cupti"), wanted("sm90", "cupti")):
        source = measures(settings, CuptiCollector)
        assert (source.device.arch, source.device.name) == ("sm90", "NVIDIA H200")
        assert source.has_canary
    assert measures(wanted(collector="ncu"), NcuCollector).has_canary
    # A GPU keeps nobody from the portable counts.
    for settings in PORTABLE:
        assert not measures(settings, CpuCollector).has_canary
    offered = ScriptedCollector()
    assert not measures(wanted(), ScriptedCollector, offered=offered).has_canary


@pytest.mark.usefixtures("h200")
def test_another_architecture_is_refused_and_both_are_named() -> None:
    instead = ("--gpu-arch sm90", "--gpuperf-replay RUN")
    refuses(wanted("sm80", "cupti"), ASKED, "this device is NVIDIA H200 (sm90)", *instead)
    refuses(wanted("sm90", "cpu"), "sm90")  # the cpu does not stand in for a GPU


@pytest.mark.usefixtures("h200")
def test_a_task_stands_in_the_collectors_place() -> None:
    for kind_of_task, kind in ((PROFILED, TaskRunner), (WINDOW, WindowCounter)):
        source = measures(wanted(), kind, task=Task("a.py::test", kind_of_task, "step"))
        assert (source.guarded, source.has_canary) == (False, False)
    replica = measures(wanted(), CuptiCollector, task=Task("a.py::test"))
    assert (replica.guarded, replica.has_canary) == (True, True)


# Without one


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_the_portable_counts_are_taken() -> None:
    for settings in (wanted(), *PORTABLE):
        collector = measures(settings, CpuCollector).collector
        assert collector.device().arch == "cpu"
        assert collector.software()["cpu"]


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_it_is_said_what_can_be_done_instead() -> None:
    for settings, asked in (
        (wanted("sm90"), "--gpu-arch sm90 asks for an sm90 GPU"),
        (wanted("sm90", "cupti"), "--gpu-arch sm90 asks for an sm90 GPU"),
        (wanted("auto", "cupti"), "--gpuperf-collector cupti asks for a GPU"),
        (wanted("sm80", "cpu"), "--gpu-arch sm80 asks for an sm80 GPU"),
    ):
        instead = ("--gpu-arch cpu", "--gpuperf-replay RUN", "gpuperf doctor")
        refuses(settings, f"{asked}, but gpuperf found no NVIDIA GPU here", *instead)
    refuses(wanted("cpu", "cupti"), "cupti needs a GPU, but --gpu-arch cpu")


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("vendor", "kind", "is_gpu"),
    [
        ("0x10de\n", "0x030000\n", True),
        ("0x10de\n", "0x030200\n", True),  # a 3D controller, as of a server
        ("0x10de\n", "0x040300\n", False),  # its sound
        ("0x8086\n", "0x030000\n", False),
    ],
)
def test_a_gpu_without_a_driver_is_no_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendor: str, kind: str, is_gpu: bool
) -> None:
    """Whoever asked for no architecture would get another device's verdict."""
    pci(tmp_path, monkeypatch, vendor, kind)
    if is_gpu:
        refuses(wanted(), "this machine has an NVIDIA GPU (PCI 0000:41:00.0)", "--gpu-arch cpu")
    else:
        measures(wanted(), CpuCollector)
    for settings in PORTABLE:
        measures(settings, CpuCollector)


@pytest.mark.usefixtures("h200")
def test_where_the_driver_speaks_of_gpus_none_visible_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pci(tmp_path, monkeypatch, "0x10de", "0x030200")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    measures(wanted(), CpuCollector)


# A collector that a hook brought


@pytest.mark.usefixtures("no_gpu")
def test_an_offered_collector_goes_first_if_it_is_of_the_architecture() -> None:
    offered = ScriptedCollector(device=A100)
    for arch in ("auto", "sm80"):
        instrument = measures(wanted(arch), ScriptedCollector, offered=offered)
        assert instrument.collector is offered
        assert (instrument.device, instrument.torch_device) == (A100, "cuda")
    refuses(wanted("sm90"), "asks for sm90 baselines, but", "A100", "(sm80)", offered=offered)
    portable = ScriptedCollector(device=nvml.portable_device())
    refuses(wanted("sm90"), "sm90 baselines, but this device is a CPU (cpu)", offered=portable)


# A recorded run


@pytest.mark.usefixtures("no_gpu")
def test_a_recorded_run_needs_no_device_but_its_own_architecture(tmp_path: Path) -> None:
    recorded = tmp_path / "run.json"
    run_files.save(run([measurement(device=H200)]), recorded)
    for arch in ("auto", "sm90"):
        instrument = target.instrument_for(wanted(arch, replay=recorded), REPLICAS)
        assert (instrument.device, instrument.torch_device) == (H200, "cpu")
    measured = f"the run {recorded} was measured on NVIDIA H200 (sm90)"
    refuses(wanted("sm80", replay=recorded), ASKED, measured, "--gpu-arch sm90")


# Names


def test_an_architecture_that_does_not_exist_is_refused_first(tmp_path: Path) -> None:
    for name in ("sm91", "SM90", "hopper", ""):
        refuses(wanted(name, replay=tmp_path / "no run"), f'unknown architecture "{name}"')
