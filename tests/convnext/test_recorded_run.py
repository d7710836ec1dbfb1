"""The run that was recorded on an H200, judged by baselines made of its other processes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import recorded
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.storage import run_files
from tests.examples import with_factor
from tests.plugin.projects import Project

SMALL = ("--everything", "--convnext-size=8", "--convnext-widths=4,6", "--convnext-steps=2")
"""Steps are built when a run is judged again, and never executed."""


def of(*numbers: int) -> Run:
    """What these of the processes measured that measured everything.

    Two on one GPU, and the last on another.
    """
    run = recorded.run("docs/runs/h200-convnext.json.xz")
    every = tuple(dict.fromkeys(m.process for m in run.measurements if "time_step" in m.test))
    processes = {every[number] for number in numbers}
    return replace(run, measurements=tuple(m for m in run.measurements if m.process in processes))


@pytest.fixture
def h200(checkout: Project) -> Project:
    """A checkout with baselines of the first and the last process."""
    run_files.save(of(0, 2), checkout.root / "known.json")
    assert checkout.update("known.json") == 0
    return checkout


def judged(h200: Project, measured: Run, tests: str = "suites/convnext_ddpm") -> pytest.RunResult:
    run_files.save(measured, h200.root / "measured.json")
    return h200.run("--gpu-arch=sm90", tests, "--gpuperf-replay=measured.json", *SMALL)


def test_a_process_that_did_not_make_the_baselines_passes(h200: Project) -> None:
    judged(h200, of(1)).assert_outcomes(passed=50)


def test_kernels_of_a_launch_bound_step_that_take_longer_are_a_regression(h200: Project) -> None:
    """Its step takes as long as before: the host was and is what it waits for."""
    processes = [
        replace(with_factor(m, "kernel_time", 1.05), process=name)
        for m in of(1).measurements
        for name in ("first", "second", "third")
    ]
    test = "suites/convnext_ddpm/test_sampling.py::test_time_step[fused]"
    result = judged(h200, replace(of(1), measurements=tuple(processes)), test)
    result.assert_outcomes(failed=1)
    failure = str(result.stdout).split("= gpuperf =")[0].splitlines()
    (row,) = (line.split() for line in failure if line.endswith("  regressed"))
    assert row[0] == "kernel_time"
    assert 4.5 < float(row[row.index("%") - 1]) < 5.5
    assert any(line.startswith("  kernel_time by phase: conv2d +4.") for line in failure)
