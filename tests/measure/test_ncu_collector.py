"""Measuring under ncu: the command, what comes of its report, and what of its failures.

What stands in for ncu writes real reports of an H200; tests/plugin/test_ncu.py starts processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.measure import gpu_collector
from pytest_gpuperf.measure.collector import Collected, KernelCollector, Phases, Plan, Work
from pytest_gpuperf.measure.fresh_process import Finished
from pytest_gpuperf.measure.ncu import ncu_command
from pytest_gpuperf.measure.ncu.ncu_collector import NcuCollector
from pytest_gpuperf.measure.replica import PROFILED, Replicas, Task
from pytest_gpuperf.model.measurement import STEP
from tests.examples import H200, measurement, run
from tests.heard_progress import Heard
from tests.measure.ncu_reports import DATA, KERNEL, KERNELS, LONGER, RANGE, RANGES, page, read_here
from tests.measure.stand_ins import Timer, values

CORE = catalogue().hardware_set("core")
TEST = "tests/test_a.py::test_step"


class Ncu(Replicas):
    """Stands for ncu and for the fresh process under it, which measures unless it is told not to.

    It writes this page as its report, or none, and says what it is told to.
    """

    def __init__(self) -> None:
        self.page, self.says, self.code = "", "ran", 0
        self.measures = True
        self.tasks: list[Task] = []
        self.options: list[dict[str, str]] = []

    def run(
        self, task: Task, *, under: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> Finished:
        self.tasks.append(task)
        self.options.append(dict(pairwise(under[1:])))
        report = Path(self.options[-1]["--export"])
        # Its lock file lies in a folder that nobody else has.
        assert environment == {"TMPDIR": str(report.parent)}
        if self.page:
            report.write_text(self.page, encoding="utf-8")
        made = run([measurement(test=task.test, name=task.name)]) if self.measures else None
        return Finished(made, self.code, self.says, 0.1)


@pytest.fixture
def ncu(monkeypatch: pytest.MonkeyPatch) -> Ncu:
    """A stand-in for ncu, whose reports are read in this process, beside a scripted clock."""
    read_here(monkeypatch)
    monkeypatch.setattr(gpu_collector, "CudaTimer", Timer)
    return Ncu()


def collector(ncu: Ncu, replay: str = "range") -> NcuCollector:
    """A collector that runs the stand-in."""
    return NcuCollector(H200, Path("/opt/ncu"), ncu, replay)


def work(step: Callable[[], object] = lambda: None) -> Work:
    """A step of a test."""
    return Work(step, Phases(), test=TEST)


def collected(ncu: Ncu, replay: str = "range") -> Collected:
    return collector(ncu, replay).collect(work(), Plan(CORE))


# What it brings back


def test_a_range_is_the_step_and_times_are_taken_without_ncu(ncu: Ncu) -> None:
    ncu.page = RANGES[0].read_text()
    executed: list[str] = []
    heard = Heard()
    step = replace(work(lambda: executed.append(".")), progress=heard)
    brought = collector(ncu).collect(step, Plan(CORE, repetitions=2))
    of = values(brought)
    assert (of[STEP, "step_time"], of[STEP, "instructions"]) == ((5.0,) * 2, (44_626_337.0,))
    assert len(executed) == 1 + 2  # the counters are of another process
    assert [entry.metric for entry in brought.unsupported] == ["active_cycles", "ipc"]
    assert "ncu has no sm__cycles_active.sum" in brought.unsupported[0].reason
    assert "floor_s" not in (brought.settings or {})
    settings = {k: v for k, v in (brought.settings or {}).items() if not k.endswith("_s")}
    assert settings == {"replay": "range", "rounds": 1, "repetitions": 2, "warmup": 1}
    # Nobody knows how long ncu will take.
    assert heard.said == ["warming up 1 of 1", "timing 1 of 2", "timing 2 of 2"]


def test_kernels_add_up_and_are_kept(ncu: Ncu) -> None:
    ncu.page = page(KERNEL, LONGER)
    measuring = collector(ncu, replay="kernel")
    assert isinstance(measuring, KernelCollector)
    of = values(measuring.collect(work(), Plan(CORE)))
    assert of[STEP, "instructions"] == (9_200_000,)
    assert of[STEP, "ipc"] == (9_200_000 / 5_000_000,)
    table = measuring.kernels(work(), CORE)
    assert [table.names[launch.name] for launch in table.launches] == ["add(int, float)", "mul"]
    assert len(ncu.tasks) == 1  # they were counted already


def test_kernels_of_a_range_are_counted_by_kernel_replay(ncu: Ncu) -> None:
    ncu.page = page(RANGE)
    measuring = collector(ncu)
    measuring.collect(work(), Plan(CORE))
    ncu.page = KERNELS.read_text()
    assert len(measuring.kernels(work(), CORE).launches) == 4
    assert [options["--replay-mode"] for options in ncu.options] == ["range", "kernel"]


# How it is run


def test_the_command(ncu: Ncu) -> None:
    for replay, marked in (("kernel", "off"), ("range", None), ("app-range", None)):
        ncu.page = page(KERNEL if replay == "kernel" else RANGE)
        collected(ncu, replay=replay)
        options = ncu.options[-1]
        assert options["--replay-mode"] == replay
        assert options.get("--profile-from-start") == marked
        assert (options["--clock-control"], options["--cache-control"]) == ("none", "none")
        assert options["--metrics"].startswith("sm__cycles_elapsed.max,sm__cycles_active.sum,")
        assert ncu.tasks[-1] == Task(TEST, PROFILED, STEP)
        assert not Path(options["--export"]).parent.exists()


def test_the_version_is_part_of_the_software(ncu: Ncu, monkeypatch: pytest.MonkeyPatch) -> None:
    for version, software in (("2025.3.1.0", {"ncu": "2025.3.1.0"}), ("", {})):
        monkeypatch.setattr(ncu_command, "version", lambda _, version=version: version)
        assert collector(ncu).software() == software


# When it fails


def test_what_ncu_says_becomes_our_error(ncu: Ncu) -> None:
    for name, says in (("bad-child.txt", "exit code 1: "), ("bad-none.txt", "no kernel was prof")):
        ncu.says, ncu.code = (DATA / name).read_text(), 1
        with pytest.raises(MeasurementError, match=says):
            collected(ncu)
    table = collector(ncu).kernels(work(), CORE)
    assert table.launches == ()
    assert "no kernel was profiled" in table.mismatch


def test_without_permission_or_ncu_times_are_left(
    ncu: Ncu, monkeypatch: pytest.MonkeyPatch
) -> None:
    ncu.says = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"
    brought = collected(ncu)
    assert set(values(brought)) == {(STEP, "step_time"), (STEP, "wall_time")}
    assert [entry.metric for entry in brought.unsupported] == [metric.name for metric in CORE]
    assert "NVreg_RestrictProfilingToAdminUsers=0" in brought.unsupported[0].reason
    monkeypatch.setattr(ncu_command, "find", lambda: None)
    without = NcuCollector(H200, None, ncu)
    brought = without.collect(work(), Plan(CORE))
    assert "--gpuperf-ncu PROGRAM" in brought.unsupported[0].reason
    with pytest.raises(CountersUnavailable):
        ncu_command.program(None)


def test_what_came_of_it_is_an_error_where_it_is_not_the_step(ncu: Ncu) -> None:
    for kernels, measures, says in (
        ([KERNEL], False, r"failed under ncu before .*\nran"),
        ([KERNEL, RANGE], True, "1 ranges and 1 kernels"),
    ):
        ncu.page, ncu.measures = page(*kernels), measures
        with pytest.raises(MeasurementError, match=says):
            collected(ncu)
