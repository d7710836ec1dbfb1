"""When every kernel of a step is counted by itself, and where the counts go."""

from __future__ import annotations

import pytest

from pytest_gpuperf.model.measurement import KernelTable
from tests.plugin.projects import STEP, Project

SLOW = {"": {"cycles": 2}}


@pytest.fixture
def a100(project: Project) -> Project:
    """A project with one test, on a scripted A100 with a baseline."""
    project.device()
    project.tests(STEP)
    project.accept_processes(*[1.0] * 5)
    return project


def tables(project: Project) -> list[KernelTable | None]:
    """The kernel tables of the run that was saved, one per process."""
    return [measurement.kernels for measurement in project.saved().measurements]


@pytest.mark.parametrize(
    ("when", "slow", "fast"),
    [("never", False, False), ("on-regression", True, False), ("always", True, True)],
)
def test_kernels_are_counted_when_asked_for(
    when: str, slow: bool, fast: bool, a100: Project
) -> None:
    a100.run(f"--gpuperf-kernels={when}")
    assert [table is not None for table in tables(a100)] == [fast]
    a100.run_files()[0].unlink()
    a100.device(factors=SLOW)
    a100.run(f"--gpuperf-kernels={when}")
    # Only in the session's own process: the fresh ones are there to settle the test.
    assert [table is not None for table in tables(a100)] == [slow, False, False]


def test_by_default_a_regression_has_them(a100: Project) -> None:
    a100.device(factors=SLOW)
    a100.run()
    found = tables(a100)[0]
    assert found is not None
    assert found.names == ("step_kernel",)
    assert found.metrics == ("cycles", "active_cycles", "instructions", "ipc", "duration")


def test_a_replayed_run_keeps_its_own(a100: Project) -> None:
    a100.run("--gpuperf-kernels=always", "--gpuperf-run=run.json")
    result = a100.run(
        "--gpuperf-replay=run.json", "--gpuperf-kernels=always", "--gpuperf-report=report.json"
    )
    assert result.ret == 0
    (before,) = a100.saved("run.json").measurements
    (after,) = a100.saved("report.json").measurements
    assert before.kernels == after.kernels != None  # noqa: E711 -- both are there


def test_a_collector_that_cannot_is_not_asked(project: Project) -> None:
    project.tests("def test_step(gpuperf): gpuperf.measure(lambda: None)")
    result = project.run("--gpu-arch=cpu", "--gpuperf-kernels=always", "--gpuperf-missing=warn")
    assert result.ret == 0
    assert tables(project) == [None]


def test_they_are_counted_without_a_judge_too(a100: Project) -> None:
    a100.run("--gpuperf-no-judge", "--gpuperf-kernels=always")
    assert tables(a100)[0] is not None
