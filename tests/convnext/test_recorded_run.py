"""The run that was recorded on an H200, judged by baselines made of its other processes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import recorded
from pytest_gpuperf import __main__
from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.storage import run_files
from tests import ROOT

SMALL = ("--convnext-size", "8", "--convnext-widths", "4,6", "--convnext-steps", "2")
"""Steps are built when a run is judged again, and never executed."""


def of(*numbers: int) -> Run:
    """What these of the processes measured that measured everything.

    Two on one GPU, and the last on another.
    """
    run = recorded.run("docs/runs/h200-convnext.json.xz")
    every = tuple(dict.fromkeys(m.process for m in run.measurements if "time_step" in m.test))
    processes = {every[number] for number in numbers}
    return replace(run, measurements=tuple(m for m in run.measurements if m.process in processes))


@pytest.fixture(scope="module")
def baselines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the first and the last process."""
    folder = tmp_path_factory.mktemp("baselines")
    file = folder / "known.json"
    run_files.save(of(0, 2), file)
    accepted = ["--baselines", str(folder), "--reason", "a test", "--force", "--yes"]
    assert __main__.main(["update-baseline", str(file), *accepted]) == 0
    return folder


def judged(
    measured: Run, baselines: Path, tests: str = "suites/convnext_ddpm"
) -> subprocess.CompletedProcess[str]:
    file = baselines / "measured.json"
    run_files.save(measured, file)
    command = [sys.executable, "-m", "pytest", "--gpu-arch", "sm90", tests, "-q"]
    command += ["--gpuperf-replay", str(file), "--gpuperf-baselines", str(baselines)]
    command += ["-p", "no:cacheprovider", *SMALL]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_a_process_that_did_not_make_the_baselines_passes(baselines: Path) -> None:
    result = judged(of(1), baselines)
    assert result.returncode == 0, result.stdout
    assert "51 passed" in result.stdout


def slower(measurement: Measurement, times: float) -> Measurement:
    samples = tuple(
        replace(sample, values=tuple(times * value for value in sample.values))
        if sample.metric == "kernel_time"
        else sample
        for sample in measurement.samples
    )
    return replace(measurement, samples=samples)


def test_kernels_of_a_launch_bound_step_that_take_longer_are_a_regression(baselines: Path) -> None:
    """Its step takes as long as before: the host was and is what it waits for."""
    processes = [
        replace(slower(m, 1.05), process=name)
        for m in of(1).measurements
        for name in ("first", "second", "third")
    ]
    test = "suites/convnext_ddpm/test_sampling.py::test_time_step[fused]"
    result = judged(replace(of(1), measurements=tuple(processes)), baselines, test)
    assert result.returncode == 1, result.stdout
    failure = result.stdout.split("= gpuperf =")[0].splitlines()
    (row,) = (line.split() for line in failure if line.endswith("  regressed"))
    assert row[0] == "kernel_time"
    assert 4.5 < float(row[row.index("%") - 1]) < 5.5
    assert any(line.startswith("  kernel_time by phase: conv2d +4.") for line in failure)
