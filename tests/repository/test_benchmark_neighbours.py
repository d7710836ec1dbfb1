"""The benchmark of neighbours: one at work against a halted one, and a process that is bound."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import neighbours, projects
from pytest_gpuperf.errors import GpuperfError
from pytest_gpuperf.measure.device import nvml
from pytest_gpuperf.measure.device.nvml import VisibleGpu
from pytest_gpuperf.model.measurement import Device, Sample
from pytest_gpuperf.storage import run_files
from tests import ROOT
from tests.plugin.test_conditions import AT_NIGHT

RECORDED = ROOT / "docs" / "runs" / "h200-meddpm.json"


def recorded(folder: Path, step_ms: Callable[[int, str, str], float]) -> Path:
    """200 turns of one test, whose step takes what is said of the turn's number and kind."""
    run = run_files.load(RECORDED)
    measured = []
    for turn in neighbours.turns(200):
        number, neighbour, processors = turn.split(".")
        value = step_ms(int(number), neighbour, processors)
        sample = Sample("step", "step_time", (value,))
        test = f"suites/test_it.py::test_step[{turn}-tf32]"
        measured.append(replace(run.measurements[0], test=test, samples=(sample,), kernels=None))
    run_files.save(replace(run, measurements=tuple(measured), verdicts=()), folder / neighbours.RUN)
    return folder


def noise(number: int) -> float:
    """Up to 1 %, now more and now less, and a step of a hundred that the host held up."""
    return 1 + (number * 7 % 11) / 1100 + (number % 97 == 96)


def test_all_four_kinds_of_turns_are_as_often() -> None:
    kinds = Counter(turn.partition(".")[2] for turn in neighbours.turns(40))
    assert kinds == dict.fromkeys(
        ["halted.free", "halted.bound", "beside.free", "beside.bound"], 10
    )
    assert neighbours.turns(7) == neighbours.turns(40)[:7]


def test_what_makes_no_difference_is_not_noticed(tmp_path: Path) -> None:
    said, good = neighbours.table(recorded(tmp_path, lambda number, *_: noise(number)))
    assert good
    assert said.count("nothing |") == 2
    assert "| test_step[tf32] | `step_time` | beside |" in said
    assert "Each 100 times with it and without; noticed is a p below 0.013." in said


@pytest.mark.parametrize("at", [neighbours.BESIDE, neighbours.BOUND])
def test_a_slower_step_is(tmp_path: Path, at: str) -> None:
    said, good = neighbours.table(
        recorded(tmp_path, lambda number, *kind: noise(number) * (1.01 if at in kind else 1))
    )
    assert not good
    (seen,) = (line for line in said.splitlines() if line.endswith("| median |"))
    assert f"| {at} | +1.0" in seen


@pytest.mark.parametrize(("of", "good"), [(neighbours.BESIDE, False), (neighbours.HALTED, True)])
def test_a_wider_spread_is_and_a_narrower_is_not(tmp_path: Path, of: str, *, good: bool) -> None:
    def step_ms(number: int, *kind: str) -> float:
        return 1 + (noise(number) - 1.005) * (3 if of in kind else 1)

    said, well = neighbours.table(recorded(tmp_path, step_ms))
    assert well is good
    assert any(line.endswith("| spread |") for line in said.splitlines()) is not good


def on_two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device("sm90", "NVIDIA H100", "nvidia-h100", "0123456789ab")
    gpus = tuple(VisibleGpu(f"GPU-{name}", device, frozenset()) for name in "ab")
    monkeypatch.setattr(nvml, "visible_gpus", lambda: gpus)


def measured_on_cpu(folder: Path, *names: str) -> list[str]:
    tests = "".join(
        f"def test_{name}(gpuperf):\n    gpuperf.measure(lambda: sum(range(10_000)) and None)\n"
        for name in names
    )
    file = projects.project(folder, tests) / "test_it.py"
    return [str(file), f"--rootdir={folder}", f"-c{folder / 'pytest.ini'}", "--gpu-arch=cpu"]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that are started and not waited for at once: the sessions beside."""
    begun: list[subprocess.Popen[bytes]] = []
    begin = subprocess.Popen

    def noted(*args: Any, **more: Any) -> subprocess.Popen[bytes]:
        begun.append(begin(*args, **more))
        return begun[-1]

    monkeypatch.setattr(subprocess, "Popen", noted)
    return begun


def test_every_test_is_measured_in_every_turn_and_nobody_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[bytes]]
) -> None:
    """On a CPU, where nobody looks for the two GPUs."""
    on_two_gpus(monkeypatch)
    arguments = measured_on_cpu(tmp_path / "project", "one", "other")
    folder = tmp_path / "recorded"
    neighbours.record(folder, 1e9, arguments, arguments, most=4)
    run = run_files.load(folder / neighbours.RUN)
    names = [measurement.test.rpartition("::")[2] for measurement in run.measurements]
    for turn in neighbours.turns(4):
        in_turn = {names.pop(0) for _ in range(2)}
        assert in_turn == {f"test_one[{turn}]", f"test_other[{turn}]"}
    assert not names
    assert started[0].returncode == -signal.SIGKILL


@AT_NIGHT
def test_no_turn_begins_when_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_two_gpus(monkeypatch)
    arguments = measured_on_cpu(tmp_path / "project", "one")
    neighbours.record(tmp_path / "recorded", 0.0, arguments, arguments, most=4)
    run = run_files.load(tmp_path / "recorded" / neighbours.RUN)
    assert len(run.measurements) == 1


def test_a_failure_beside_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[bytes]]
) -> None:
    """A neighbour that is gone is as good as halted."""
    on_two_gpus(monkeypatch)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: started[0].wait())
    with pytest.raises(GpuperfError, match=r"a session beside failed, see .*beside\.log"):
        neighbours.record(tmp_path, 1e9, [str(tmp_path / "missing.py")], [])


def test_one_gpu_is_not_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nvml, "visible_gpus", tuple)
    assert neighbours.main(["--record", str(tmp_path)]) == 4
    assert "two GPUs are needed, and 0 are here" in capsys.readouterr().err
