"""Measuring under ncu: the command, what comes of its report, and what of its failures.

ncu is a stand-in, which really starts the program; the reports are real ones of an H200.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.measure.collector import KernelCollector, Phases, Plan, WindowCollector, Work
from pytest_gpuperf.measure.execution import CudaTimer
from pytest_gpuperf.measure.fresh_process import Finished
from pytest_gpuperf.measure.ncu import ncu_command
from pytest_gpuperf.measure.ncu.ncu_collector import NcuCollector
from pytest_gpuperf.measure.ncu.ncu_command import Control
from pytest_gpuperf.measure.replica import FIRST, PROFILED, Replicas, Task
from pytest_gpuperf.model.measurement import PAPER_WINDOW, STEP
from tests.examples import H200, measurement, run
from tests.heard_progress import Heard
from tests.measure import stand_in_ncu
from tests.measure.ncu_pages import COLUMNS, DATA, KERNEL, KERNELS, LONGER, RANGE, RANGES, page

CORE = catalogue().hardware_set("core")
TEST = "tests/test_a.py::test_step"
NVTX = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"


class Timer(CudaTimer):
    """Every run takes 5 ms on the device and 7 ms on the wall."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def timed(self, run: Callable[[], object]) -> tuple[float, float]:
        run()
        return 5.0, 7.0


class Children(Replicas):
    """The child is a real process under the command, which measures as it is told to."""

    def __init__(self, *, measures: bool = True) -> None:
        self.tasks: list[Task] = []
        self._measures = measures

    def run(
        self,
        task: Task,
        *,
        under: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Finished:
        self.tasks.append(task)
        done = subprocess.run(
            [*under, sys.executable, "-c", "print('ran')"],
            env=dict(environment or {}),
            capture_output=True,
            text=True,
            check=False,
        )
        made = run([measurement(test=task.test, name=task.name)]) if self._measures else None
        return Finished(made, done.returncode, done.stdout + done.stderr, 0.1)


class Ncu:
    """The stand-in, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "ncu"
        shutil.copy(stand_in_ncu.__file__, self.program)
        self.program.write_text(
            self.program.read_text().replace("/usr/bin/env python3", sys.executable)
        )
        self.program.chmod(0o755)
        self.gives()

    def gives(self, page: str = "", *, says: str = "", code: int = 0) -> None:
        """Prepares its report; with none, it fails saying so."""
        script = {"page": page, "says": says, "code": code}
        (self.program.parent / "ncu.json").write_text(json.dumps(script))

    @property
    def calls(self) -> list[dict[str, Any]]:
        lines = (self.program.parent / "calls.json").read_text().splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture
def ncu(tmp_path: Path) -> Ncu:
    """A stand-in for ncu."""
    folder = tmp_path / "nsight"
    folder.mkdir()
    return Ncu(folder)


def collector(ncu: Ncu, children: Children | None = None, **control: str) -> NcuCollector:
    """A collector that runs the stand-in."""
    return NcuCollector(
        H200, Control(ncu.program, **control), children or Children(), timer=Timer()
    )


def work(step: Callable[[], object] = lambda: None) -> Work:
    """A step of a test."""
    return Work(step, Phases(), test=TEST)


# What it brings back


def test_a_range_is_the_step_and_times_are_taken_without_ncu(ncu: Ncu) -> None:
    ncu.gives(RANGES[0].read_text())
    executed: list[str] = []
    found = collector(ncu).collect(work(lambda: executed.append(".")), Plan(CORE, repetitions=4))
    values = {sample.metric: sample.values for sample in found.samples}
    assert values["step_time"] == (5.0,) * 4
    assert values["instructions"] == (44_626_337.0,)
    assert all(sample.phase == STEP for sample in found.samples)
    assert len(executed) == 1 + 4  # the counters are of another process
    assert [entry.metric for entry in found.unsupported] == ["active_cycles", "ipc"]
    assert "ncu has no sm__cycles_active.sum" in found.unsupported[0].reason
    assert found.settings is not None
    assert {k: v for k, v in found.settings.items() if not k.endswith("_s")} == {
        "replay": "range",
        "clock_control": "none",
        "cache_control": "none",
        "rounds": 1,
        "repetitions": 4,
        "warmup": 1,
    }


def test_kernels_add_up_and_are_kept(ncu: Ncu) -> None:
    ncu.gives(page(KERNEL, LONGER))
    measuring = collector(ncu, replay="kernel")
    assert isinstance(measuring, KernelCollector)
    found = measuring.collect(work(), Plan(CORE))
    values = {sample.metric: sample.values for sample in found.samples}
    assert values["instructions"] == (9_200_000,)
    assert values["ipc"] == (9_200_000 / 5_000_000,)
    table = measuring.kernels(work(), CORE)
    assert [table.names[launch.name] for launch in table.launches] == ["add(int, float)", "mul"]
    assert len(ncu.calls) == 1  # they were counted already


def test_kernels_of_a_range_are_counted_by_kernel_replay(ncu: Ncu) -> None:
    ncu.gives(page(RANGE))
    measuring = collector(ncu)
    measuring.collect(work(), Plan(CORE))
    ncu.gives(KERNELS.read_text())
    assert len(measuring.kernels(work(), CORE).launches) == 4
    assert [call["options"]["--replay-mode"] for call in ncu.calls] == ["range", "kernel"]


def test_phases_are_told_apart_by_their_ranges(ncu: Ncu) -> None:
    def within(kernel: Mapping[str, str], phase: str) -> dict[str, str]:
        cell = f'7  "<default domain>:gpuperf step:gpuperf phase {phase}{":none" * 6}" '
        return {**kernel, NVTX: cell}

    units = {**COLUMNS, NVTX: ""}
    rows = [within(KERNEL, "forward"), within(LONGER, "backward"), within(KERNEL, "backward")]
    ncu.gives(page(*rows, units=units))
    found = collector(ncu, replay="kernel").collect(work(), Plan(CORE))
    instructions = {s.phase: s.values for s in found.samples if s.metric == "instructions"}
    assert instructions == {
        STEP: (9_400_000,),
        "forward": (200_000,),
        "backward": (9_200_000,),
    }


# How it is run


def test_the_command(ncu: Ncu) -> None:
    marks = {"kernel": "off", "range": None, "app-range": None}
    for replay, marked in marks.items():
        ncu.gives(page(RANGE) if replay != "kernel" else page(KERNEL))
        children = Children()
        collector(ncu, children, replay=replay).collect(work(), Plan(CORE))
        call = ncu.calls[-1]
        options = call["options"]
        assert options["--replay-mode"] == replay
        assert options.get("--profile-from-start") == marked
        assert (options["--clock-control"], options["--cache-control"]) == ("none", "none")
        assert options["--metrics"].split(",")[:2] == [
            "sm__cycles_elapsed.max",
            "sm__cycles_active.sum",
        ]
        assert children.tasks == [Task(TEST, PROFILED, STEP)]
        # Its lock file lies in a folder that nobody else has, and that is gone afterwards.
        assert Path(options["--export"]).parent == Path(call["TMPDIR"])
        assert not Path(call["TMPDIR"]).exists()


def test_clocks_and_caches_are_controlled_when_asked_for_and_it_is_recorded(ncu: Ncu) -> None:
    ncu.gives(page(RANGE))
    found = collector(ncu, clocks="base", caches="all").collect(work(), Plan(CORE))
    options = ncu.calls[0]["options"]
    assert (options["--clock-control"], options["--cache-control"]) == ("base", "all")
    assert found.settings is not None
    assert (found.settings["clock_control"], found.settings["cache_control"]) == ("base", "all")


def test_the_version_is_part_of_the_software(ncu: Ncu) -> None:
    assert collector(ncu).software()["ncu"] == "2025.3.1.0"


# The paper's window


def test_the_papers_command_and_its_window(ncu: Ncu) -> None:
    ncu.gives(page(*[KERNEL] * 57))
    children = Children(measures=False)  # the process is ended after the window
    measuring = collector(ncu, children)
    assert isinstance(measuring, WindowCollector)
    window = measuring.window(work())
    assert (window.skipped, window.counted, window.collector) == (10, 57, "ncu")
    values = {sample.metric: sample.values for sample in window.samples}
    assert values["instructions"] == (57 * 200_000,)
    assert {sample.phase for sample in window.samples} == {PAPER_WINDOW}
    assert window.kernels is not None
    assert window.kernels.names == ("add(int, float)",)
    options = ncu.calls[0]["options"]
    assert (options["--launch-skip"], options["--launch-count"]) == ("10", "100")
    assert (options["--set"], options["--kill"]) == ("full", "yes")
    assert "--profile-from-start" not in options
    assert children.tasks == [Task(TEST, FIRST, STEP)]


# When it fails


def test_what_ncu_says_becomes_our_error(ncu: Ncu) -> None:
    for name in ("bad-none.txt", "bad-option.txt", "bad-child.txt"):
        ncu.gives(says=(DATA / name).read_text(), code=1)
        with pytest.raises(MeasurementError, match=r"\. [A-Z]"):  # what happened, and what to do
            collector(ncu).collect(work(), Plan(CORE))


def test_without_permission_times_are_left(ncu: Ncu) -> None:
    ncu.gives(says="==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", code=1)
    found = collector(ncu).collect(work(), Plan(CORE))
    assert [sample.metric for sample in found.samples] == ["step_time", "wall_time"]
    assert [entry.metric for entry in found.unsupported] == [metric.name for metric in CORE]
    assert "NVreg_RestrictProfilingToAdminUsers=0" in found.unsupported[0].reason


def test_without_ncu_times_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu_command, "find", lambda: None)
    found = NcuCollector(H200, Control(), Children(), timer=Timer()).collect(work(), Plan(CORE))
    assert "--gpuperf-ncu PROGRAM" in found.unsupported[0].reason


def test_what_comes_from_traces_is_unsupported_and_the_collector_that_has_it_is_named(
    ncu: Ncu,
) -> None:
    ncu.gives(RANGES[0].read_text())
    launches = catalogue().metrics["launches"]
    found = collector(ncu).collect(work(), Plan(CORE, activity=(launches,)))
    (missing,) = (entry for entry in found.unsupported if entry.metric == "launches")
    assert missing.reason.endswith(
        "which the collector ncu does not take: the collector cupti does"
    )


def test_a_window_without_ncu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu_command, "find", lambda: None)
    with pytest.raises(MeasurementError, match="was not found"):
        NcuCollector(H200, Control(), Children(), timer=Timer()).window(work())
    with pytest.raises(CountersUnavailable):
        ncu_command.program(Control())


def test_a_test_that_fails_before_its_measurement_is_quoted(ncu: Ncu) -> None:
    ncu.gives(page(KERNEL))
    with pytest.raises(MeasurementError, match=r"failed under ncu before .*\nran"):
        collector(ncu, Children(measures=False)).collect(work(), Plan(CORE))


def test_a_report_that_is_no_step_is_an_error_of_the_measurement(ncu: Ncu) -> None:
    ncu.gives(page(KERNEL, RANGE))
    with pytest.raises(MeasurementError, match="1 ranges and 1 kernels"):
        collector(ncu).collect(work(), Plan(CORE))


def test_kernels_that_cannot_be_counted_say_why(ncu: Ncu) -> None:
    ncu.gives(says=(DATA / "bad-none.txt").read_text(), code=0)
    table = collector(ncu).kernels(work(), CORE)
    assert table.launches == ()
    assert "no kernel was profiled" in table.mismatch


# Progress


def test_executions_are_announced_and_nobody_knows_how_long_ncu_will_take(ncu: Ncu) -> None:
    ncu.gives(RANGES[0].read_text())
    heard = Heard()
    collector(ncu).collect(replace(work(), progress=heard), Plan(CORE, repetitions=1))
    assert heard.said == ["warming up 1 of 1", "timing 1 of 1"]
