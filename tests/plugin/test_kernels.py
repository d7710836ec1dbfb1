"""When every kernel of a step is counted by itself, and which are named where it regressed."""

from __future__ import annotations

import pytest

from tests.plugin.projects import BASELINE, Project

ADD, SLOWER_ADD = ["ampere_sgemm_128x64_tn", 400, 2e6], ["ampere_sgemm_128x64_tn", 800, 2e6]
SOFTMAX = ["softmax_warp_forward", 200, 3e5]
DATA = BASELINE / "test_steps"
TESTS = """
    def test_fast(gpuperf): gpuperf.measure(lambda: None)
    def test_slow(gpuperf): gpuperf.measure(lambda: None)
"""


@pytest.fixture
def a100(project: Project) -> Project:
    """A project with two tests, on a scripted A100 with a baseline; one of them has regressed."""
    project.device(kernels=[ADD])
    project.tests(TESTS)
    project.accept_processes(*[1.0] * 5, kernels=True)
    project.device(kernels=[SLOWER_ADD], factors={"slow": {"cycles": 2}})
    return project


def counted(project: Project) -> list[tuple[str, bool]]:
    """By test, and of each by process, whether there is a kernel table."""
    measured = project.saved().measurements
    return [(m.test.partition("::test_")[2], m.kernels is not None) for m in measured]


def test_by_default_those_of_a_regression_are_counted_and_named(a100: Project) -> None:
    result = a100.run()
    result.assert_outcomes(passed=1, failed=1)
    # Only in the session's own process: the fresh ones are there to settle the test.
    slow = [("slow", True), ("slow", False), ("slow", False)]
    assert counted(a100) == [("fast", False), *slow]
    run = a100.saved()
    assert [entry.test for entry in run.attributions] == ["test_steps.py::test_slow"]
    result.stdout.fnmatch_lines(
        [
            "gpuperf: * on NVIDIA A100*",
            "kernels: +0.4 ms (x2) in a step, 100 % of it explained:",
            "*ampere_sgemm_128x64_tn  slower x2 (memory, cache or clocks), 1 launch",
        ]
    )


def test_they_are_counted_always_or_never_where_that_is_asked_for(a100: Project) -> None:
    a100.run("--gpuperf-kernels=always", "--gpuperf-processes=3")
    slow = [("slow", True), ("slow", False), ("slow", False)]
    assert counted(a100) == [("fast", True), *slow]
    a100.run_files()[0].unlink()
    a100.run("--gpuperf-kernels=never", "--gpuperf-processes=1")
    assert counted(a100) == [("fast", False), ("slow", False)]
    a100.run_files()[0].unlink()
    # Without a judge too, who alone could compare them.
    a100.run("--gpuperf-kernels=always", "--gpuperf-no-judge")
    assert counted(a100) == [("fast", True), ("slow", True)]
    assert not a100.saved().attributions


# Which are named


def test_another_sequence_fails_no_test(a100: Project) -> None:
    a100.device(kernels=[ADD, SOFTMAX, SOFTMAX])
    result = a100.run("-k", "slow", "--gpuperf-kernels=always")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["test_slow  *unchanged", "note: kernels of test_slow: 2 added"])
    # Neither settles it another process, nor are kernels of what did not regress listed.
    result.stdout.no_fnmatch_line("* processes)")
    result.stdout.no_fnmatch_line("kernels: *")
    assert len(a100.saved().attributions) == 1


def test_bad_tables_stop_no_verdict_and_are_noted_once(a100: Project) -> None:
    for file in (a100.root / DATA).iterdir():
        file.write_bytes(b"damaged")
    result = a100.replay(factor=2.0, kernels=[SLOWER_ADD])
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "gpuperf: * on NVIDIA A100*",
            f"  no kernel can be blamed: {DATA}/*: the file was changed: * Restore the file from "
            "git*",
            "accept an intended change: *",
        ]
    )
    assert result.stdout.str().count("  no kernel can be blamed") == 2  # each test's own
    judged = a100.saved("judged.json")
    assert judged.verdicts[0].metric == "cycles"
    assert judged.attributions == ()


def test_a_recorded_missing_baseline_has_kernels(project: Project) -> None:
    project.device(kernels=[ADD])
    project.tests(TESTS)
    assert project.run("--gpuperf-missing=record").ret == 0
    assert len([*(project.root / DATA).iterdir()]) == 2
    project.run_files()[0].unlink()
    result = project.replay(factor=2.0, kernels=[SLOWER_ADD])
    result.stdout.fnmatch_lines(["*ampere_sgemm_128x64_tn  slower x2 (memory, *), 1 launch"])
    # What is there is not recorded, so nothing is counted for it.
    assert project.run("--gpuperf-missing=record").ret == 0
    assert counted(project) == [("fast", False), ("slow", False)]
