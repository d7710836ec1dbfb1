"""Passes that other GPUs count: real processes on a host of scripted GPUs, and one measurement."""

from __future__ import annotations

import json

import pytest

from pytest_gpuperf.measure.instrument import STAND_IN
from pytest_gpuperf.model.measurement import STEP
from tests.plugin.projects import BASELINE, Project
from tests.plugin.projects import STEP as MEASURES

HOST = """
import sys

from tests.scripted_nvml import Gpu, Library

sys.modules["pynvml"] = Library([
    Gpu(uuid, name="NVIDIA A100-SXM4-80GB", capability=(8, 0))
    for uuid in ("GPU-a", "GPU-b", "GPU-c")
])
"""
"""At the end of a conftest file."""
CALIBRATION = """calibration:
  date: '2026-11-24'
  processes: 20
  allocations: 4
  units: 4
  nights: 100
  false_alarms: 0
  classes:
    deterministic: {rounds: 1.0e-06, processes: 1.0e-06, allocations: null, units: 1.0e-06}
    cycle: {rounds: 0.0005, processes: 0.0005, allocations: null, units: 0.01}
"""
"""GPUs agree on counts, and not on cycles."""
SPREAD = ("--gpuperf-spread-passes", "--gpuperf-processes=1")


@pytest.fixture
def host(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project on a host of three GPUs, with a baseline of one process."""
    project.device(passes=True)
    project.tests(MEASURES)
    project.accept()
    conftest = project.root / "conftest.py"
    conftest.write_text(conftest.read_text("utf-8") + HOST, encoding="utf-8")
    for variable in ("CUDA_VISIBLE_DEVICES", STAND_IN):
        monkeypatch.delenv(variable, raising=False)
    return project


def calibrate(project: Project) -> None:
    file = next((project.root / BASELINE).glob("*.yaml"))
    text = file.read_text("utf-8")
    file.write_text(text.replace("calibration: null\n", CALIBRATION), encoding="utf-8")


def test_other_gpus_count_what_all_agree_on(host: Project) -> None:
    calibrate(host)
    result = host.run_apart(*SPREAD)
    assert result.ret == 0, result.stdout.str()
    (measured,) = host.saved().measurements
    of_step = {s.metric: s.values for s in measured.samples if s.phase == STEP}
    assert {"cycles", "active_cycles", "instructions", "ipc", "duration", "step_time"} <= {*of_step}
    (peer,) = measured.peers
    assert peer.name == "pass share 2"
    assert {sample.metric for sample in peer.samples} == {"instructions"}
    assert peer.conditions is not None
    assert "instructions" not in str(measured.fingerprint.settings["asked"])
    assert measured.fingerprint.settings["pass_shares"] == 2
    (instructions,) = (s.values for s in peer.samples)
    assert of_step["instructions"] == instructions


def test_without_a_calibration_each_counts_its_own_and_says_so(host: Project) -> None:
    result = host.run_apart(*SPREAD)
    assert result.ret == 0
    assert "no pass was counted on another GPU" in " ".join(str(result.stdout).split())
    (measured,) = host.saved().measurements
    assert measured.peers == ()


def test_where_no_other_gpu_is_idle_it_says_so(
    host: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrate(host)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-c")
    result = host.run_apart(*SPREAD)
    assert result.ret == 0
    assert "none of this name is idle here" in " ".join(str(result.stdout).split())


def test_unless_it_is_asked_for_nothing_is_spread(host: Project) -> None:
    calibrate(host)
    assert host.run_apart().ret == 0
    (measured,) = host.saved().measurements
    assert measured.peers == ()
    assert "no pass" not in json.dumps(measured.fingerprint.settings)


def test_what_another_gpus_process_could_not_count_is_unsupported_with_the_reason(
    host: Project,
) -> None:
    calibrate(host)
    host.tests(
        """
        import os

        def test_step(gpuperf):
            assert os.environ.get("CUDA_VISIBLE_DEVICES") != "GPU-b", "this GPU is lost"
            gpuperf.measure(lambda: None)
        """
    )
    result = host.run_apart(*SPREAD)
    assert result.ret == 0, result.stdout.str()
    (measured,) = host.saved().measurements
    (lacking,) = measured.unsupported
    assert lacking.metric == "instructions"
    assert (
        "the process that was to count it on another GPU ended with exit code 1" in lacking.reason
    )
    assert host.run_apart(*SPREAD, "--gpuperf-require-counters").ret == pytest.ExitCode.TESTS_FAILED


def test_other_measurements_of_the_test_are_not_made_again(host: Project) -> None:
    calibrate(host)
    host.tests(
        """
        import os

        def test_step(gpuperf):
            for name in ("first", "second"):
                def step():
                    with open("executed", "a") as file:
                        print(os.environ.get("CUDA_VISIBLE_DEVICES"), name, file=file)
                gpuperf.measure(step, name=name)
        """
    )
    assert host.run_apart(*SPREAD, "--gpuperf-missing=warn").ret == 0
    executed = (host.root / "executed").read_text("utf-8").splitlines()
    assert sorted(executed) == ["GPU-b first", "GPU-b second", "None first", "None second"]
