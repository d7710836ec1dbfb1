"""Measuring with a scripted collector: what is added to its samples, and what is refused."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest

from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.measure.collector import Collected, Phases, Plan, Work
from pytest_gpuperf.measure.device import nvml
from pytest_gpuperf.measure.instrument import PROCESS, Instrument, Subject
from pytest_gpuperf.measure.trace import timelines
from pytest_gpuperf.model.measurement import (
    Conditions,
    Measurement,
    Reading,
    Sample,
    Timeline,
    Unsupported,
)
from pytest_gpuperf.storage import files
from tests.examples import H200, TEST
from tests.heard_progress import Heard
from tests.scripted_collector import ScriptedCollector
from tests.scripted_nvml import Gpu, Library

SUBJECT = Subject(TEST, "step", "meddpm", "tf32", {"size": 128}, "core")
PLAN = Plan(metrics=(), rounds=7)
CYCLES = Sample("step", "cycles", (100.0, 101.0))


def measured(collector: ScriptedCollector, root: Path, **work: Callable[[], object]) -> Measurement:
    """What one measurement of a step brings."""
    step = work.get("step", lambda: None)
    instrument = Instrument(collector, root)
    (found,) = instrument.measure(
        SUBJECT, Work(step, Phases(), work.get("reset", lambda: None)), PLAN
    )
    return found


def test_a_measurement_says_what_was_measured_where_and_how(tmp_path: Path) -> None:
    collector = ScriptedCollector(CYCLES, settings={"passes": 1, "cost_s": 0.5})
    found = measured(collector, tmp_path)
    assert (found.test, found.name, found.suite) == (TEST, "step", "meddpm")
    assert (found.configuration, found.workload) == ("tf32", {"size": 128})
    assert found.samples == (CYCLES,)
    assert found.process == PROCESS
    assert found.fingerprint.device == H200
    assert found.fingerprint.settings == {
        "collector": "scripted",
        "metrics": "core",
        "passes": 1,
        "cost_s": 0.5,
    }
    assert found.fingerprint.revision == ""
    assert {"python", "gpuperf", "torch", "cupti"} <= set(found.fingerprint.software)
    assert collector.plans == [PLAN]


def test_the_step_and_its_reset_are_run_by_the_collector(tmp_path: Path) -> None:
    diary: list[str] = []
    measured(
        ScriptedCollector(CYCLES, during=lambda: diary.append("counted")),
        tmp_path,
        step=lambda: diary.append("step"),
        reset=lambda: diary.append("reset"),
    )
    assert diary == ["reset", "step", "counted"]


def test_the_instrument_says_where_tensors_belong(tmp_path: Path) -> None:
    on_gpu = Instrument(ScriptedCollector(), tmp_path)
    assert (on_gpu.device, on_gpu.torch_device) == (H200, "cuda")
    on_cpu = Instrument(ScriptedCollector(device=nvml.portable_device()), tmp_path)
    assert (on_cpu.device.arch, on_cpu.torch_device) == ("cpu", "cpu")


def test_samples_are_ordered_by_phase_and_by_the_catalogue(tmp_path: Path) -> None:
    given = [("forward", "ipc"), ("step", "ipc"), ("backward", "cycles"), ("forward", "cycles")]
    given += [("step", "cycles"), ("step", "step_time")]
    found = measured(
        ScriptedCollector(*(Sample(phase, metric, (1.0,)) for phase, metric in given)), tmp_path
    )
    assert [(sample.phase, sample.metric) for sample in found.samples] == [
        ("step", "cycles"),
        ("step", "ipc"),
        ("step", "step_time"),
        ("forward", "cycles"),
        ("forward", "ipc"),
        ("backward", "cycles"),
    ]


def test_what_is_unsupported_is_passed_on(tmp_path: Path) -> None:
    unsupported = (Unsupported("ipc", "no counters"),)
    assert measured(ScriptedCollector(unsupported=unsupported), tmp_path).unsupported == unsupported


# What a collector may not bring


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([Sample("step", "cycels", (1.0,))], 'scripted brought "cycels": no such metric'),
        ([Sample("step", "cycles", ())], "brought no value for cycles of step"),
        ([Sample("step", "ipc", (1.0, float("nan")))], r"brought \[1.0, nan\] for ipc of step"),
        ([Sample("x", "ipc", (float("inf"),))], r"brought \[inf\] for ipc of x"),
        ([CYCLES, CYCLES], "brought a second sample of cycles of step"),
    ],
)
def test_what_cannot_be_judged_is_refused(
    tmp_path: Path, samples: list[Sample], message: str
) -> None:
    with pytest.raises(MeasurementError, match=message):
        measured(ScriptedCollector(*samples), tmp_path)


def test_an_unknown_metric_cannot_be_unsupported_either(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="no such metric"):
        measured(ScriptedCollector(unsupported=(Unsupported("x", "why"),)), tmp_path)


def test_what_the_collector_raises_comes_out(tmp_path: Path) -> None:
    def fail() -> None:
        raise CountersUnavailable("No permission", "Ask for it")

    with pytest.raises(CountersUnavailable, match=r"No permission\. Ask for it"):
        measured(ScriptedCollector(during=fail), tmp_path)


# The device around a measurement


def test_on_a_gpu_the_device_is_read_before_and_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(celsius=41, reasons=0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", Library([gpu]))

    def heat() -> None:
        gpu.celsius, gpu.reasons = 83, 0x04

    found = measured(ScriptedCollector(CYCLES, during=heat), tmp_path).fingerprint.conditions
    assert found is not None
    assert (found.before.temperature_celsius, found.before.throttle_reasons) == (41, ())
    assert (found.after.temperature_celsius, found.after.throttle_reasons) == (
        83,
        ("software power cap",),
    )


class Moments(Library):
    """Throttled for these reasons, at one moment after the other."""

    def __init__(self, gpu: Gpu, *bits: int) -> None:
        super().__init__([gpu])
        self._bits = iter(bits)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _: Gpu) -> int:  # noqa: N802
        return next(self._bits)


POWER_CAP, SYNC_BOOST, SLOWDOWN, THERMAL = 0x04, 0x10, 0x08, 0x40


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        # Per attempt before and after: what came first is not kept.
        ((0, 0), ((), ())),
        ((0, SLOWDOWN, 0, 0), ((), ())),
        ((SLOWDOWN, 0, 0, 0), ((), ())),
        ((0, THERMAL, THERMAL, 0), (("hardware thermal slowdown",), ())),
        ((SLOWDOWN, THERMAL, 0, THERMAL), ((), ("hardware thermal slowdown",))),
        # This is how many devices always are.
        ((POWER_CAP, POWER_CAP), (("software power cap",), ("software power cap",))),
        ((0, SYNC_BOOST), ((), ("sync boost",))),
        ((SLOWDOWN, POWER_CAP, POWER_CAP, 0), (("software power cap",), ())),
    ],
)
def test_on_an_unfit_device_it_is_measured_once_more(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bits: tuple[int, ...],
    reasons: tuple[tuple[str, ...], tuple[str, ...]],
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", Moments(Gpu(), *bits))
    steps: list[None] = []
    collector = ScriptedCollector(CYCLES)
    found = measured(collector, tmp_path, step=lambda: steps.append(None))
    assert len(collector.plans) == len(steps) == len(bits) / 2
    conditions = found.fingerprint.conditions
    assert conditions is not None
    assert (conditions.before.throttle_reasons, conditions.after.throttle_reasons) == reasons


class Counting(ScriptedCollector):
    """Counts how often it has measured."""

    def collect(self, work: Work, plan: Plan) -> Collected:
        super().collect(work, plan)
        return Collected((Sample("step", "cycles", (float(len(self.plans)),)),), (), None)


@pytest.mark.parametrize(("bits", "attempt"), [((0, 0), 1.0), ((0, SLOWDOWN, 0, 0), 2.0)])
def test_the_values_are_those_of_the_last_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bits: tuple[int, ...], attempt: float
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", Moments(Gpu(), *bits))
    assert measured(Counting(), tmp_path).samples == (Sample("step", "cycles", (attempt,)),)


@pytest.mark.parametrize(("told", "attempts"), [(True, 1), (False, 2)])
def test_who_waits_for_this_process_does_not_make_the_device_unfit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bool, attempts: int
) -> None:
    parent = os.getppid()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    library = Library([Gpu(processes=[os.getpid(), parent])])
    monkeypatch.setitem(sys.modules, "pynvml", library)
    collector = ScriptedCollector(CYCLES)
    instrument = Instrument(collector, tmp_path, parent=parent if told else None)
    (found,) = instrument.measure(SUBJECT, Work(lambda: None, Phases()), PLAN)
    assert found.fingerprint.conditions is not None
    assert found.fingerprint.conditions.after.other_processes == (() if told else (parent,))
    assert len(collector.plans) == attempts


def test_without_nvml_the_readings_are_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = measured(ScriptedCollector(CYCLES), tmp_path)
    assert found.fingerprint.conditions == Conditions(Reading(), Reading())


def test_on_a_cpu_there_is_no_device_to_read(tmp_path: Path) -> None:
    found = measured(ScriptedCollector(device=nvml.portable_device()), tmp_path)
    assert found.fingerprint.conditions is None


def held(folder: Path) -> list[bool]:
    """Whether each lock below `folder` is held by somebody."""
    found = []
    for file in folder.rglob("*.lock"):
        lock = filelock.FileLock(file)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            found.append(True)
        else:
            lock.release()
            found.append(False)
    return found


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of its own for the locks."""
    folder = tmp_path / "locks"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_gpu_is_locked_while_it_is_measured(tmp_path: Path, locks: Path) -> None:
    during: list[list[bool]] = []
    measured(ScriptedCollector(CYCLES, during=lambda: during.append(held(locks))), tmp_path)
    assert during == [[True]]
    assert True not in held(locks)


def test_a_gpu_is_free_again_after_an_error(tmp_path: Path, locks: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        measured(ScriptedCollector(CYCLES), tmp_path, step=lambda: 1 / 0)
    assert True not in held(locks)


class Sampling(ScriptedCollector):
    """Brings a timeline; notes whether the device is locked meanwhile."""

    def __init__(self, locks: Path, brought: Timeline) -> None:
        super().__init__(CYCLES)
        self._locks = locks
        self._brought = brought
        self.seen: list[list[bool]] = []

    def timeline(self, work: Work) -> Timeline:
        work.step()
        self.seen.append(held(self._locks))
        return self._brought

    def sampled(self, root: Path) -> Timeline | None:
        """The timeline that a measurement gets."""
        work = Work(lambda: None, Phases())
        instrument = Instrument(self, root)
        (found,) = instrument.measure(SUBJECT, work, PLAN)
        return instrument.with_timeline(found, work).timeline


def test_a_gpu_is_locked_while_it_is_sampled(tmp_path: Path, locks: Path) -> None:
    collector = Sampling(locks, timelines.absent("no hardware"))
    assert collector.sampled(tmp_path) == timelines.absent("no hardware")
    assert collector.seen == [[True]]


def test_a_timeline_that_could_not_be_read_back_is_not_kept(tmp_path: Path, locks: Path) -> None:
    wrong = Timeline(1, 1e5, 1e5, 0.0, 1e5, {"warp_speed": (9.0,)}, ())
    found = Sampling(locks, wrong).sampled(tmp_path)
    assert found is not None
    assert found.series == {}
    assert found.obstacle.startswith("the collector scripted brought series/warp_speed: no such")


def test_a_cpu_is_not_locked(tmp_path: Path, locks: Path) -> None:
    during: list[list[bool]] = []
    collector = ScriptedCollector(
        device=nvml.portable_device(), during=lambda: during.append(held(locks))
    )
    measured(collector, tmp_path)
    assert during == [[]]


def test_who_waits_for_the_device_says_so(
    tmp_path: Path, locks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the other one lets go, which here is as soon as it hears of it."""
    monkeypatch.setattr(files, "_TICK", 0.01)
    instrument = Instrument(ScriptedCollector(CYCLES), tmp_path)
    instrument.measure(SUBJECT, Work(lambda: None, Phases()), PLAN)
    (file,) = locks.rglob("*.lock")
    other = filelock.FileLock(file)
    heard = Heard()

    class Leaving(Heard):
        def goes_on(self) -> None:
            super().goes_on()
            other.release()

    with other:
        instrument.measure(
            SUBJECT, Work(lambda: None, Phases(), progress=Leaving(heard.said)), PLAN
        )
    assert heard.said == ["waiting for another measurement on this device", "goes on"]


@pytest.mark.usefixtures("locks")
def test_who_need_not_wait_says_nothing(tmp_path: Path) -> None:
    heard = Heard()
    instrument = Instrument(ScriptedCollector(CYCLES), tmp_path)
    instrument.measure(SUBJECT, Work(lambda: None, Phases(), progress=heard), PLAN)
    assert heard.said == []
