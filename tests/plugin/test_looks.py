"""A test that one process does not settle is measured again, in fresh processes."""

from __future__ import annotations

import pytest

from pytest_gpuperf.judge.stopping import LOOKS
from pytest_gpuperf.plugin.options import PROCESSES
from tests.plugin.projects import STEP, Project

SLOW: dict[str, float] = {"cycles": 1.02}
SAME: dict[str, float] = {}
FIVE = (1.0,) * 5
LOGGED = """
    import os

    def run_of(name):
        with open("runs.txt", "a") as log:
            log.write(f"{name} {os.getpid()}\\n")

    def test_quiet(gpuperf):
        gpuperf.measure(lambda: run_of("quiet"))

    def test_noisy(gpuperf):
        gpuperf.measure(lambda: run_of("noisy"))
"""


@pytest.fixture
def a100(project: Project) -> Project:
    """A project with one test, on a scripted A100 with a baseline of five processes."""
    project.device()
    project.tests(STEP)
    project.accept_processes(*FIVE)
    return project


def test_the_flag_offers_the_looks_of_the_judge() -> None:
    assert tuple(map(int, PROCESSES)) == LOOKS


def test_one_slow_process_is_no_regression(a100: Project) -> None:
    a100.device(processes=[SLOW, SAME, SAME])
    result = a100.run("--gpu-arch=sm80")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "test_step on NVIDIA A100-SXM4-80GB (sm80, 3 processes)",
            "*cycles*unchanged",
        ]
    )
    run = a100.saved()
    assert len({measurement.process for measurement in run.measurements}) == 3
    assert {verdict.processes for verdict in run.verdicts} == {3}


def test_three_slow_processes_are_one(a100: Project) -> None:
    a100.device(processes=[SLOW, SLOW, SLOW])
    result = a100.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "gpuperf: test_step regressed on NVIDIA A100-SXM4-80GB (sm80)",
            "*cycles*400.00 M*408.00 M*+2.00 %*regressed",
            "*99.5 % interval, 3 processes: cycles +1.* % to +2.* %",
        ]
    )


def test_a_settled_test_is_not_measured_again(project: Project) -> None:
    project.device()
    project.tests(LOGGED)
    project.accept_processes(*FIVE)
    (project.root / "runs.txt").unlink()
    project.device(factors={"noisy": {"cycles": 2}})
    # Counting the kernels of a regression would run its step once more.
    project.run("--gpuperf-kernels=never").assert_outcomes(passed=1, failed=1)
    lines = (project.root / "runs.txt").read_text(encoding="utf-8").split("\n")
    ran = [line.split()[0] for line in lines if line]
    assert ran == ["quiet", "noisy", "noisy", "noisy"]
    assert len({line.split()[1] for line in lines if line}) == 3


def test_processes_are_shared_by_the_measurements_of_a_test(project: Project) -> None:
    project.device()
    project.tests(
        """
        def test_two(gpuperf):
            try:
                gpuperf.measure(lambda: None, name="first")
            finally:
                gpuperf.measure(lambda: None, name="second")
        """
    )
    project.accept_processes(*FIVE)
    project.device(processes=[{"cycles": 2}] * 3)
    result = project.run()
    result.assert_outcomes(failed=1)
    verdicts = [v for v in project.saved().verdicts if v.metric == "cycles"]
    assert [(v.name, v.outcome.value, v.processes) for v in verdicts] == [
        ("first", "regressed", 3),
        ("second", "regressed", 3),
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--lf", "-k", "step", "--gpu-arch", "sm80", "test_steps.py::test_step"),
        ("--junitxml=junit.xml", "--gpuperf-report=report.md", "--maxfail=1"),
        ("--", "test_steps.py"),
    ],
    ids=" ".join,
)
def test_the_command_line_may_say_anything_else(arguments: tuple[str, ...], a100: Project) -> None:
    a100.device(processes=[SLOW, SLOW, SLOW])
    result = a100.run("--gpuperf-run=run.json", *arguments)
    result.assert_outcomes(failed=1)
    run = a100.saved("run.json")
    assert {verdict.processes for verdict in run.verdicts} == {3}
    for report in ("junit.xml", "report.md"):
        if any(report in argument for argument in arguments):
            assert "regressed" in (a100.root / report).read_text(encoding="utf-8")


def test_a_replica_writes_neither_runs_nor_baselines(project: Project) -> None:
    project.device()
    project.tests(STEP)
    project.accept_processes(*FIVE)
    project.tests(STEP + "\n    def test_new(gpuperf): gpuperf.measure(lambda: None)")
    project.device(processes=[SLOW, SAME, SAME])
    project.run("--gpuperf-missing=record").assert_outcomes(passed=2)
    assert len(project.run_files()) == 1
    assert project.baseline_text().count("reason: recorded by --gpuperf-missing record") == 1


def test_a_replica_that_fails_leaves_the_test_undecided_and_says_why(a100: Project) -> None:
    a100.tests(
        """
        from pathlib import Path

        if Path("process-0").exists():
            raise RuntimeError("no second process today")

        def test_step(gpuperf):
            gpuperf.measure(lambda: None)
        """
    )
    a100.device(processes=[SLOW])
    result = a100.run_apart()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "gpuperf: test_step is inconclusive on NVIDIA A100*",
            "*not looked at again: a fresh process of test_steps.py::test_step ended with pytest's "
            "exit code 2 and measured nothing:",
            "*RuntimeError: no second process today",
        ]
    )
