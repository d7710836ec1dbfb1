"""What is measured here: the device that was asked for, or a sentence that says why not."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.measure import target
from pytest_gpuperf.measure.collector import SILENT, Collector
from pytest_gpuperf.measure.cpu.cpu_collector import CpuCollector
from pytest_gpuperf.measure.cupti.cupti_collector import CuptiCollector, WindowCounter
from pytest_gpuperf.measure.device import nvml
from pytest_gpuperf.measure.instrument import DeviceInstrument, Instrument
from pytest_gpuperf.measure.ncu.ncu_collector import NcuCollector
from pytest_gpuperf.measure.replica import FIRST, WINDOW, Replicas, Task, TaskRunner
from pytest_gpuperf.measure.target import check_architecture
from pytest_gpuperf.model.settings import Settings
from pytest_gpuperf.storage import run_files
from tests.examples import A100, H200, default_settings, measurement, run
from tests.scripted_collector import ScriptedCollector
from tests.scripted_nvml import Gpu, Library

REPLICAS = Replicas((), Path(), 1.0, SILENT)


def wanted(arch: str = "auto", collector: str = "auto", replay: Path | None = None) -> Settings:
    """What the user asked for: `--gpu-arch`, `--gpuperf-collector`, `--gpuperf-replay`."""
    settings = default_settings(Path())
    return replace(settings, arch=arch, collector=collector, replay=replay)


def collector_for(settings: Settings, offered: Collector | None = None) -> Collector:
    return target.collector_for(settings, REPLICAS, offered)


def instrument_for(settings: Settings, offered: Collector | None = None) -> Instrument:
    return target.instrument_for(settings, REPLICAS, offered=offered)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a driver."""
    monkeypatch.setitem(sys.modules, "pynvml", None)


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one H200, as NVML tells it."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", Library([Gpu()]))


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A run that was recorded on an H200."""
    run_files.save(run([measurement(device=H200)]), tmp_path / "run.json")
    return tmp_path / "run.json"


# With a GPU


@pytest.mark.usefixtures("h200")
def test_a_gpu_is_measured_through_cupti_unless_something_else_is_asked_for() -> None:
    for settings in (wanted(), wanted("sm90"), wanted(collector="cupti"), wanted("sm90", "cupti")):
        collector = collector_for(settings)
        assert isinstance(collector, CuptiCollector), settings
        assert (collector.device().arch, collector.device().name) == ("sm90", "NVIDIA H200")
    assert isinstance(collector_for(wanted(collector="ncu")), NcuCollector)
    # A GPU keeps nobody from the portable counts.
    for settings in (wanted("cpu"), wanted(collector="cpu"), wanted("cpu", "cpu")):
        assert isinstance(collector_for(settings), CpuCollector), settings


@pytest.mark.usefixtures("h200")
def test_another_architecture_is_refused_and_both_are_named() -> None:
    with pytest.raises(UsageFailure) as caught:
        collector_for(wanted("sm80", "cupti"))
    message = str(caught.value)
    assert "--gpu-arch sm80 asks for sm80 baselines" in message
    assert "this device is NVIDIA H200 (sm90)" in message
    assert "Use --gpu-arch sm90" in message
    assert "--gpuperf-replay RUN" in message
    with pytest.raises(UsageFailure, match="sm90"):  # the cpu does not stand in for a GPU
        collector_for(wanted("sm90", "cpu"))


@pytest.mark.usefixtures("h200")
def test_a_task_stands_in_the_collectors_place() -> None:
    for task, kind in (
        (None, CuptiCollector),
        (Task("a.py::test"), CuptiCollector),
        (Task("a.py::test", FIRST, "step"), TaskRunner),
        (Task("a.py::test", WINDOW, "step"), WindowCounter),
    ):
        source = target.instrument_for(wanted(), REPLICAS, task=task)
        assert isinstance(source, DeviceInstrument)
        assert isinstance(source._collector, kind), task
        assert source._guarded is (kind is CuptiCollector)


# Without one


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_the_portable_counts_are_taken() -> None:
    for settings in (wanted(), wanted("cpu"), wanted(collector="cpu"), wanted("cpu", "cpu")):
        collector = collector_for(settings)
        assert isinstance(collector, CpuCollector), settings
        assert collector.device().arch == "cpu"


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_it_is_said_what_can_be_done_instead() -> None:
    for settings, asked in (
        (wanted("sm90"), "--gpu-arch sm90 asks for an sm90 GPU"),
        (wanted("sm90", "cupti"), "--gpu-arch sm90 asks for an sm90 GPU"),
        (wanted("auto", "cupti"), "--gpuperf-collector cupti asks for a GPU"),
        (wanted("sm80", "cpu"), "--gpu-arch sm80 asks for an sm80 GPU"),
    ):
        with pytest.raises(UsageFailure) as caught:
            collector_for(settings)
        message = str(caught.value)
        assert message.startswith(f"{asked}, and no NVIDIA GPU was found here")
        for instead in ("--gpu-arch cpu", "--gpuperf-replay RUN", "gpuperf doctor"):
            assert instead in message
    with pytest.raises(UsageFailure, match=r"cupti reads a GPU's counters, and --gpu-arch cpu"):
        collector_for(wanted("cpu", "cupti"))


# A collector that a hook brought


@pytest.mark.usefixtures("no_gpu")
def test_an_offered_collector_goes_first() -> None:
    offered = ScriptedCollector(device=A100)
    for arch in ("auto", "sm80"):
        assert collector_for(wanted(arch), offered) is offered
        assert instrument_for(wanted(arch), offered).device == A100


def test_an_offered_collector_is_of_the_architecture_or_refused() -> None:
    with pytest.raises(UsageFailure, match=r"asks for sm90 baselines, but .*A100.* \(sm80\)"):
        collector_for(wanted("sm90"), ScriptedCollector(device=A100))
    with pytest.raises(UsageFailure, match=r"sm90 baselines, but this device is a CPU \(cpu\)"):
        collector_for(wanted("sm90"), ScriptedCollector(device=nvml.portable_device()))


# A recorded run


@pytest.mark.usefixtures("no_gpu")
def test_a_recorded_run_needs_no_device(recorded: Path) -> None:
    for arch in ("auto", "sm90"):
        instrument = instrument_for(wanted(arch, replay=recorded))
        assert (instrument.device, instrument.torch_device) == (H200, "cpu")


def test_a_run_of_another_architecture_is_refused(recorded: Path) -> None:
    with pytest.raises(UsageFailure) as caught:
        instrument_for(wanted("sm80", replay=recorded))
    message = str(caught.value)
    assert "--gpu-arch sm80 asks for sm80 baselines" in message
    assert f"the run {recorded} was measured on NVIDIA H200 (sm90)" in message
    assert "Use --gpu-arch sm90" in message


# Names


def test_an_architecture_that_does_not_exist_is_refused_first(tmp_path: Path) -> None:
    for name in ("sm91", "SM90", "hopper", ""):
        with pytest.raises(UsageFailure, match=f'unknown architecture "{name}"'):
            instrument_for(wanted(name, replay=tmp_path / "no such run"))


def test_the_right_architecture_passes() -> None:
    for arch in ("auto", "sm90"):
        check_architecture(arch, H200)
