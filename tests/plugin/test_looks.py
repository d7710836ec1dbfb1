"""A test that one process does not settle is measured again, in fresh processes."""

from __future__ import annotations

from collections import Counter

from pytest_gpuperf.judge.stopping import LOOKS
from pytest_gpuperf.model.settings import PROCESSES
from tests.plugin.projects import STEP, Project

TESTS = """
    import os

    def ran(name):
        with open("runs.txt", "a") as log:
            log.write(f"{name} {os.getpid()}\\n")

    def test_quiet(gpuperf):
        gpuperf.measure(lambda: ran("quiet"))

    def test_slow_once(gpuperf):
        gpuperf.measure(lambda: ran("once"))
"""
NEW = """
    def test_new(gpuperf):
        gpuperf.measure(lambda: ran("new"))
"""
SLOW = """
    def test_always_slow(gpuperf):
        try:
            gpuperf.measure(lambda: ran("first"), name="first")
        finally:
            gpuperf.measure(lambda: ran("second"), name="second")
"""
ARGUMENTS = (
    *("--lf", "-k", "test_", "--gpu-arch", "sm80", "--junitxml=junit.xml", "--maxfail=1"),
    *("--gpuperf-report=report.md", "--gpuperf-missing=record", "--gpuperf-kernels=never"),
    *("--", "test_steps.py"),
)
"""What a fresh process must not do in its turn, or does for one test alone."""


def test_the_flag_offers_the_looks_of_the_judge() -> None:
    assert tuple(map(int, PROCESSES)) == LOOKS


def test_what_is_not_settled_is_measured_in_fresh_processes(project: Project) -> None:
    project.device()
    project.tests(TESTS + SLOW)
    project.accept_processes(*[1.0] * 5)
    (project.root / "runs.txt").unlink()
    project.tests(TESTS + NEW + SLOW)
    # The session's own process is the first.
    once = [{"once": {"cycles": 1.02}}, *[{}] * 6]
    project.device(factors={"always": {"cycles": 1.02}}, processes=once)
    result = project.run(*ARGUMENTS)

    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        [
            "gpuperf: first: cycles +2.00 % on NVIDIA A100-SXM4-80GB (sm80)",
            "*cycles*400.00 M*408.00 M*+2.00 %*regressed",
            "*99.5 % interval, 3 processes: cycles +1.* % to +2.* %",
            "test_steps.py:20: Failed",
            "test_new *  no baseline",
            "test_quiet *  unchanged",
            "test_slow_once *  0 %  *  unchanged",
        ]
    )
    run = project.saved()  # the only one: fresh processes leave none
    verdicts = [v for v in run.verdicts if v.metric == "cycles"]
    assert [(v.test[20:], v.name, v.outcome.value, v.processes) for v in verdicts] == [
        ("quiet", "step", "unchanged", 1),
        ("slow_once", "step", "unchanged", 5),
        ("new", "step", "no-baseline", 1),
        # The measurements of a test share its processes.
        ("always_slow", "first", "regressed", 3),
        ("always_slow", "second", "regressed", 3),
    ]
    assert len({measurement.process for measurement in run.measurements}) == 7
    lines = (project.root / "runs.txt").read_text(encoding="utf-8").splitlines()
    counts = Counter(line.split()[0] for line in lines)
    assert counts == {"quiet": 1, "once": 5, "new": 1, "first": 3, "second": 3}
    assert len({line.split()[1] for line in lines}) == 7
    assert project.baseline_text().count("reason: recorded by --gpuperf-missing record") == 1
    for report in ("junit.xml", "report.md"):
        assert "regressed" in (project.root / report).read_text(encoding="utf-8")


def test_a_fresh_process_that_fails_leaves_the_test_undecided_and_says_why(
    project: Project,
) -> None:
    project.device()
    project.tests(STEP)
    project.accept_processes(*[1.0] * 5)
    project.tests(
        """
        def test_step(gpuperf):
            gpuperf.measure(lambda: None)
            raise KeyboardInterrupt("no second process today")
        """
    )
    project.device(factors={"": {"cycles": 1.02}})
    result = project.run("--gpuperf-inconclusive=warn", "-p", "no:randomly")  # which is for noise
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "gpuperf: *inconclusive on NVIDIA A100*",
            "*the test could not be repeated: a fresh process of test_steps.py::test_step ended "
            "with pytest's "
            "exit code 2, before it measured anything. Its last output:",
            "*KeyboardInterrupt: no second process today*",
        ]
    )
