"""An instrument with a scripted collector, or a recorded run: what it adds, and what it refuses."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.errors import BadFile, MeasurementError, UnsoundStep, UsageFailure
from pytest_gpuperf.measure import replica
from pytest_gpuperf.measure.collector import Collected, Phases, Plan, Work
from pytest_gpuperf.measure.device import canary, nvml
from pytest_gpuperf.measure.fresh_process import Finished
from pytest_gpuperf.measure.instrument import (
    PATIENCE,
    PROCESS,
    STAND_IN,
    DeviceInstrument,
    RecordedRun,
    Subject,
)
from pytest_gpuperf.measure.replica import Replicas, Task
from pytest_gpuperf.model.measurement import (
    PAPER_WINDOW,
    Canary,
    Device,
    KernelTable,
    Measurement,
    Sample,
    Scalar,
    Unsupported,
    Window,
)
from pytest_gpuperf.storage import files, run_files
from tests.corruption import refusal
from tests.examples import A100, H200, OTHER_H200, TEST, measurement, run
from tests.heard_progress import Heard
from tests.measure.stand_ins import around
from tests.scripted_collector import ScriptedCollector
from tests.scripted_nvml import Gpu, Install, Library
from tests.waiting import is_held

SUBJECT = Subject(TEST, "step", "meddpm", "tf32", {"size": 128}, "core")
PLAN = Plan(metrics=(), rounds=7)
CYCLES = Sample("step", "cycles", (100.0, 101.0))


def work(step: Callable[[], object] = lambda: None, **others: Any) -> Work:
    return Work(step, Phases(), **others)


def measured(collector: ScriptedCollector, root: Path, **of_work: Any) -> Measurement:
    """What one measurement of a step brings."""
    return once(DeviceInstrument(collector, root), **of_work)


def once(instrument: DeviceInstrument, plan: Plan = PLAN, **of_work: Any) -> Measurement:
    """What one measurement through this instrument brings."""
    (made,) = instrument.measure(SUBJECT, work(**of_work), plan)
    return made


def test_a_measurement_says_what_was_measured_where_and_how(tmp_path: Path) -> None:
    settings: dict[str, Scalar] = {"passes": 1, "cost_s": 0.5}
    collector = ScriptedCollector(
        CYCLES, settings=settings, unsupported=(Unsupported("ipc", "no counters"),)
    )
    diary: list[str] = []
    step, reset = (lambda word=word: diary.append(word) for word in ("step", "reset"))
    made = measured(collector, tmp_path, step=step, reset=reset)
    assert diary == ["reset", "step"]
    assert made.unsupported == (Unsupported("ipc", "no counters"),)
    assert (made.test, made.name, made.suite) == (TEST, "step", "meddpm")
    assert (made.configuration, made.workload) == ("tf32", {"size": 128})
    assert made.samples == (CYCLES,)
    assert made.process == PROCESS
    assert made.fingerprint.device == H200
    assert made.fingerprint.settings == {"collector": "scripted", "metrics": "core", **settings}
    assert made.fingerprint.revision == ""
    assert {"python", "gpuperf", "torch", "cupti"} <= set(made.fingerprint.software)
    assert collector.plans == [PLAN]


def test_samples_are_ordered_by_phase_and_by_the_catalogue(tmp_path: Path) -> None:
    given = [("forward", "ipc"), ("step", "ipc"), ("backward", "cycles"), ("forward", "cycles")]
    given += [("step", "cycles"), ("step", "step_time")]
    samples = [Sample(phase, metric, (1.0,)) for phase, metric in given]
    made = measured(ScriptedCollector(*samples), tmp_path)
    order = [given.index((sample.phase, sample.metric)) for sample in made.samples]
    assert order == [4, 1, 5, 3, 0, 2]


# What a collector may not bring


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (Sample("step", "cycels", (1.0,)), "samples/0/metric: unknown metric cycels"),
        (Sample("step", "ipc", (1.0, nan)), r"samples/0/values: \[1.0, nan\] for ipc of step"),
        (Sample("x", "ipc", (inf,)), r"\[inf\] for ipc of x"),
    ],
)
def test_what_cannot_be_judged_is_refused(tmp_path: Path, sample: Sample, message: str) -> None:
    """So is what a run file would be refused for."""
    with pytest.raises(MeasurementError, match=f"scripted returned an invalid value .*{message}"):
        measured(ScriptedCollector(sample), tmp_path)


def test_under_torchs_profiler_nothing_is_measured(tmp_path: Path) -> None:
    import torch

    collector = ScriptedCollector(CYCLES)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        with pytest.raises(UnsoundStep, match="Stop the profiler before"):
            measured(collector, tmp_path)
    assert measured(collector, tmp_path).samples == (CYCLES,)


# The device around a measurement


@pytest.fixture
def gpu(install: Install) -> Gpu:
    """The only GPU of this machine."""
    gpu = Gpu()
    install(Library([gpu]))
    return gpu


class Moments(Library):
    """Throttled for these reasons, at one moment after the other."""

    def __init__(self, *bits: int) -> None:
        super().__init__([Gpu()])
        self._bits = iter(bits)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _: Gpu) -> int:  # noqa: N802
        return next(self._bits)


POWER_CAP, SLOWDOWN, THERMAL = 0x04, 0x08, 0x40


class Counting(ScriptedCollector):
    """Counts how often it has measured."""

    def collect(self, work: Work, plan: Plan) -> Collected:
        super().collect(work, plan)
        return Collected((Sample("step", "cycles", (float(len(self.plans)),)),))


def test_on_an_unfit_device_it_is_measured_once_more(tmp_path: Path, install: Install) -> None:
    thermal, capped = ("hardware thermal slowdown",), ("software power cap",)
    for bits, before, after in (
        # Per attempt before and after: what came first is not kept.
        ((0, 0), (), ()),
        ((0, SLOWDOWN, 0, 0), (), ()),
        ((SLOWDOWN, 0, 0, 0), (), ()),
        ((0, THERMAL, THERMAL, 0), thermal, ()),
        ((SLOWDOWN, THERMAL, 0, THERMAL), (), thermal),
        # This is how many devices always are.
        ((POWER_CAP, POWER_CAP), capped, capped),
        ((SLOWDOWN, POWER_CAP, POWER_CAP, 0), capped, ()),
    ):
        install(Moments(*bits))
        made = measured(Counting(), tmp_path)
        assert made.samples == (Sample("step", "cycles", (len(bits) / 2,)),), bits
        assert [one.throttle_reasons for one in around(made)] == [before, after], bits


@pytest.mark.parametrize(("told", "attempts"), [(True, 1), (False, 2)])
def test_who_waits_for_this_process_does_not_make_the_device_unfit(
    tmp_path: Path, install: Install, told: bool, attempts: int
) -> None:
    parent = os.getppid()
    install(Library([Gpu(processes=[os.getpid(), parent])]))
    collector = ScriptedCollector(CYCLES)
    made = once(DeviceInstrument(collector, tmp_path, parent=parent if told else None))
    assert around(made)[1].other_processes == (() if told else (parent,))
    assert len(collector.plans) == attempts


def test_the_canary_is_read_after_the_guard_before_and_after_each_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: Gpu
) -> None:
    diary: list[str] = []

    def read(arch: str) -> Canary:
        diary.append(f"canary of {arch} at {gpu.celsius}")
        gpu.celsius = 60  # the guard has been there before
        return Canary("sm90-1", {"host_ms": float(len(diary))})

    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(canary, "read", read)
    collector = ScriptedCollector(CYCLES, during=lambda: diary.append("counted"))
    instrument = DeviceInstrument(collector, tmp_path, has_canary=True)
    made = once(instrument)
    before, after = around(made)
    assert before.canary == Canary("sm90-1", {"host_ms": 1.0})
    assert after.canary == Canary("sm90-1", {"host_ms": 3.0})
    assert (before.temperature_celsius, gpu.celsius) == (41, 60)
    assert made.fingerprint.machine is not None
    assert made.fingerprint.machine.vbios == gpu.vbios
    # What was read after the one measurement was read before the next, where that comes at once.
    assert around(once(instrument))[0].canary == after.canary
    clock[0] += 5.1
    once(instrument)
    warm = "canary of sm90 at 60"
    expected = ["canary of sm90 at 41", "counted", warm, "counted", warm, warm, "counted", warm]
    assert diary == expected
    plain = measured(ScriptedCollector(CYCLES), tmp_path)
    assert plain.fingerprint.machine == made.fingerprint.machine
    assert around(plain)[0].canary is None


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("clocks", "attempts"),
    [
        ([1980, 1960], 1),  # within what it moves by itself
        ([1980, 1400, 1980, 1975], 2),
        ([1980, 1400, 1400, 1980], 2),  # and then it stays at that
    ],
)
def test_where_the_canary_moved_meanwhile_it_is_measured_again_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clocks: list[int], attempts: int
) -> None:
    left = list(clocks)
    monkeypatch.setattr(
        canary, "read", lambda _: Canary("sm90-1", {"sm_clock_mhz": float(left.pop(0))})
    )
    collector = ScriptedCollector(CYCLES)
    made = once(DeviceInstrument(collector, tmp_path, has_canary=True))
    assert len(collector.plans) == attempts
    assert left == []
    assert around(made)[1].canary == Canary("sm90-1", {"sm_clock_mhz": clocks[-1]})


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is held in a device node's place."""
    folder = tmp_path / "node"
    folder.mkdir()
    monkeypatch.setattr(nvml, "node", lambda: folder)
    return folder


def held(root: Path, *places: Path, device: Device = H200, **more: Any) -> list[bool]:
    """Which of these places are held while it is measured. Afterwards none is."""
    during: list[bool] = []
    collector = ScriptedCollector(device=device, during=lambda: during.extend(map(is_held, places)))
    made = once(DeviceInstrument(collector, root, **more))
    assert (made.fingerprint.conditions is not None) is during[0]
    assert not any(map(is_held, places))
    return during


def test_a_gpu_is_held_while_it_is_measured_and_free_after_an_error(
    tmp_path: Path, node: Path
) -> None:
    assert held(tmp_path, node) == [True]
    with pytest.raises(ZeroDivisionError):
        measured(ScriptedCollector(CYCLES), tmp_path, step=lambda: 1 / 0)
    assert not is_held(node)
    assert [*node.iterdir()] == []


def test_with_a_tests_first_gpu_all_others_of_it_are_held_in_one_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = {which: tmp_path / f"node-{which}" for which in (0, "GPU-1", "GPU-2")}
    for place in nodes.values():
        place.mkdir()
    monkeypatch.setattr(nvml, "node", lambda which=0: nodes[which])
    opened, locked = list[Path](), files.locked

    def noted(at: Path, **of: Any) -> AbstractContextManager[None]:
        opened.append(at)
        return locked(at, **of)

    monkeypatch.setattr(files, "locked", noted)
    gpus = ("GPU-0", "GPU-2", "GPU-1")
    assert held(tmp_path, *nodes.values(), gpus=lambda: gpus) == [True] * 3
    assert opened[:3] == sorted(nodes.values())


def test_where_who_started_it_holds_the_device_another_place_is_held(
    tmp_path: Path, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes may be several at once."""
    instead = tmp_path / "instead"
    instead.mkdir()
    monkeypatch.setenv(STAND_IN, str(instead))
    with files.locked(node):
        assert held(tmp_path, instead) == [True]


def test_neither_a_cpu_nor_for_who_waits_a_gpu_is_held(tmp_path: Path, node: Path) -> None:
    assert held(tmp_path, node, device=nvml.portable_device()) == [False]
    assert held(tmp_path, node, guarded=False) == [False]


def test_who_waits_for_the_device_says_for_whom(tmp_path: Path, node: Path) -> None:
    """Until the other one lets go, which here is as soon as it hears of it."""
    heard = Heard()
    measured(ScriptedCollector(CYCLES), tmp_path, progress=heard)
    assert heard.said == []  # who need not wait says nothing
    with ExitStack() as other:
        other.enter_context(files.locked(node))

        class Leaving(Heard):
            def begins(self, stage: str, place: str = "") -> None:
                super().begins(stage, place)
                other.close()

        measured(ScriptedCollector(CYCLES), tmp_path, progress=Leaving(heard.said))
    assert heard.said == ["waiting for another process, which measures on this device"]


def test_a_device_that_is_gone_or_not_free_within_an_hour_is_not_measured(
    tmp_path: Path, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert PATIENCE == 3600
    monkeypatch.setattr("pytest_gpuperf.measure.instrument.PATIENCE", 0.01)
    says = r"locked: .*node: locked by another process after 0 s\. Wait until it ends"
    with files.locked(node), pytest.raises(MeasurementError, match=says):
        measured(ScriptedCollector(CYCLES), tmp_path, step=lambda: 1 / 0)
    node.rmdir()
    with pytest.raises(MeasurementError, match=r"device cannot be locked: .*No such file"):
        measured(ScriptedCollector(CYCLES), tmp_path, step=lambda: 1 / 0)


# What only some collectors can do

WINDOW = Window(10, 100, "cupti", (Sample(PAPER_WINDOW, "cycles", (5.0,)),))
KERNELS = KernelTable((), (), (), 0.0)


class Able(ScriptedCollector):
    """Counts kernels, with the device locked."""

    def __init__(self, node: Path) -> None:
        super().__init__(CYCLES)
        self._node = node

    def kernels(self, *_: object) -> KernelTable:
        assert is_held(self._node)
        return KERNELS


class Windows(Replicas):
    """Fresh processes, beside a locked device, that make this measurement and end with an error."""

    def __init__(self, node: Path, made: Measurement | None) -> None:
        self._node, self._made = node, made

    def run(self, task: Task, **_: object) -> Finished:
        assert is_held(self._node)
        assert task == Task(TEST, replica.WINDOW, "step")
        return Finished(run([self._made]) if self._made else None, 3, "no GPU today", 1.0)


def test_kernels_are_added_and_what_they_took_or_it_is_said_that_they_cannot_be_true(
    tmp_path: Path, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instrument = DeviceInstrument(Able(node), tmp_path)
    made = instrument.with_kernels(once(instrument), work(), PLAN)
    assert made.kernels == KERNELS
    assert "kernels_s" in made.fingerprint.settings
    plain = DeviceInstrument(ScriptedCollector(CYCLES), tmp_path)  # it counts no kernels
    assert plain.with_kernels(made, work(), PLAN) is made
    monkeypatch.setattr(Able, "kernels", lambda *_: replace(KERNELS, idle=-1.0))
    with pytest.raises(MeasurementError, match=r"returned an invalid kernel table .idles/0: -1 ns"):
        instrument.with_kernels(made, work(), PLAN)


def test_the_window_is_that_of_a_fresh_process_which_is_quoted_where_it_fails(
    tmp_path: Path, node: Path
) -> None:
    made = measurement(test=TEST)
    counted = replace(made, window=WINDOW)
    instrument = DeviceInstrument(Able(node), tmp_path, windows=Windows(node, counted))
    assert instrument.with_window(made, work(test=TEST)) == counted
    for brought in (None, made):
        instrument = DeviceInstrument(Able(node), tmp_path, windows=Windows(node, brought))
        with pytest.raises(MeasurementError, match="exit code 3 and no counts:\nno GPU today"):
            instrument.with_window(made, work(test=TEST))


def test_the_extremes_of_wall_times_are_reported_by_themselves(tmp_path: Path) -> None:
    collector = ScriptedCollector(Sample("step", "wall_time", (3.0, 1.0, 2.0)), CYCLES)
    made = once(DeviceInstrument(collector, tmp_path), Plan((), extremes=True))
    extremes = {s.metric: s.values for s in made.samples if s.metric.startswith("wall_time_")}
    names = ("wall_time_best", "wall_time_worst", "wall_time_mean")
    assert extremes == dict(zip(names, ((1.0,), (3.0,), (2.0,)), strict=True))


# A recorded run

ONE = measurement(process="p1", device=H200)
OTHER = measurement(process="p2", device=OTHER_H200)
SAMPLING = measurement(name="sampling")


def recorded(folder: Path, *measurements: Measurement) -> RecordedRun:
    """A run of these measurements, saved and opened."""
    run_files.save(run(measurements), folder / "run.json")
    return RecordedRun(folder / "run.json")


def test_all_processes_of_a_test_are_replayed_without_running_the_step(tmp_path: Path) -> None:
    source = recorded(tmp_path, ONE, SAMPLING, OTHER)
    assert (source.device, source.torch_device) == (H200, "cpu")
    never = work(lambda: 1 / 0)
    assert source.measure(SUBJECT, never, PLAN) == (ONE, OTHER)
    assert source.measure(replace(SUBJECT, name="sampling"), never, PLAN) == (SAMPLING,)
    assert source.with_kernels(ONE, never, PLAN) is ONE
    assert source.with_window(ONE, never) is ONE


def test_what_was_not_recorded_or_not_on_one_device_is_a_usage_failure(tmp_path: Path) -> None:
    source = recorded(tmp_path, ONE)
    with pytest.raises(UsageFailure, match=r'run\.json has no measurement "step" of a\.py::test'):
        source.measure(replace(SUBJECT, test="a.py::test"), work(), PLAN)
    with pytest.raises(UsageFailure, match=r"run\.json has no measurements"):
        recorded(tmp_path)
    with pytest.raises(UsageFailure, match=r"H200 \(sm90\) and on NVIDIA A100.* \(sm80\)"):
        recorded(tmp_path, ONE, measurement(device=A100))
    (tmp_path / "run.json").write_text("{")
    refusal(RecordedRun, tmp_path / "run.json", BadFile)
