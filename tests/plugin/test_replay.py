"""A recorded run is judged in place of a device."""

from __future__ import annotations

import copy
import json

import pytest

from tests.plugin.projects import STEP, Project, refused


@pytest.fixture
def recorded(project: Project) -> Project:
    """A project with a baseline of an A100 and a run of it, run.json, but without the device."""
    project.device()
    project.tests(STEP)
    project.accept()
    assert project.run("--gpuperf-run=run.json").ret == 0
    (project.root / "device.json").unlink()
    return project


def slower(project: Project, test: str = "test_steps.py::test_step") -> None:
    """Makes the recorded run one of twice the cycles, in three processes."""
    file = project.root / "run.json"
    data = json.loads(file.read_text(encoding="utf-8"))
    data["measurements"] = [
        {**copy.deepcopy(measurement), "process": f"p{number}"}
        for measurement in data["measurements"]
        for number in range(3)
    ]
    for measurement in data["measurements"]:
        for sample in measurement["samples"]:
            if measurement["test"] == test and sample["metric"] == "cycles":
                sample["values"] = [2 * value for value in sample["values"]]
    file.write_text(json.dumps(data), encoding="utf-8")


def test_a_recorded_run_passes(recorded: Project) -> None:
    result = recorded.run("--gpuperf-replay=run.json", "--gpu-arch=sm80")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["test_step on NVIDIA A100-SXM4-80GB (sm80)", "*cycles*400.00 M*unchanged"]
    )


def test_a_recorded_run_is_not_saved_again(recorded: Project) -> None:
    recorded.run("--gpuperf-replay=run.json")
    assert not recorded.run_files()


def test_a_recorded_regression_fails(recorded: Project) -> None:
    slower(recorded)
    result = recorded.run("--gpuperf-replay=run.json", "--gpuperf-report=report.md")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["gpuperf: test_step regressed on NVIDIA A100*", "*cycles*400.00 M*800.00 M*x2*regressed"]
    )
    assert "regressed" in (recorded.root / "report.md").read_text(encoding="utf-8")


def test_one_recorded_process_is_no_regression_yet(recorded: Project) -> None:
    file = recorded.root / "run.json"
    data = json.loads(file.read_text(encoding="utf-8"))
    for sample in data["measurements"][0]["samples"]:
        sample["values"] = [2 * value for value in sample["values"]]
    file.write_text(json.dumps(data), encoding="utf-8")
    result = recorded.run("--gpuperf-replay=run.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "gpuperf: test_step is inconclusive on NVIDIA A100*",
            "*cycles*x2*inconclusive",
            "One process in fifty is slow by itself: 3 are needed for a verdict*",
        ]
    )


def test_the_step_is_not_run(recorded: Project) -> None:
    recorded.tests(
        """
        def step():
            raise AssertionError("ran")

        def test_step(gpuperf):
            gpuperf.measure(step)
        """
    )
    assert recorded.run("--gpuperf-replay=run.json").ret == 0


def test_replay_works_under_xdist(recorded: Project) -> None:
    slower(recorded)
    result = recorded.run_apart("-n2", "--gpuperf-replay=run.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*cycles*400.00 M*800.00 M*x2*regressed"])


def test_a_run_of_another_architecture_is_refused(recorded: Project) -> None:
    text = refused(recorded.run("--gpuperf-replay=run.json", "--gpu-arch=sm90"))
    assert "--gpu-arch sm90 asks for sm90 baselines, but the run" in text
    assert "run.json was measured on NVIDIA A100-SXM4-80GB (sm80). Use --gpu-arch sm80" in text


def test_a_test_that_the_run_has_not_is_refused(recorded: Project) -> None:
    recorded.tests(STEP + "\n    def test_new(gpuperf): gpuperf.measure(lambda: None)")
    result = recorded.run("--gpuperf-replay=run.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ['gpuperf: *run.json has no measurement "step" of test_steps.py::test_new. Replay the run*']
    )


def test_several_processes_are_judged_together(recorded: Project) -> None:
    project = recorded
    project.device(factors={"": {"cycles": 2}})
    record = ("record", "--processes", "3", "--run", "slower.json")
    assert project.gpuperf(*record, "--", "-p", "no:cacheprovider").ret == 0
    (project.root / "device.json").unlink()
    assert len({m.process for m in project.saved("slower.json").measurements}) == 3
    result = project.run("--gpuperf-replay=slower.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["test_step on NVIDIA A100-SXM4-80GB (sm80, 3 processes)", "*cycles*x2*regressed"]
    )
