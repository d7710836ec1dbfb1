"""With and without pytest-xdist: the same verdicts, and one process that writes."""

from __future__ import annotations

import pytest

from tests.plugin.projects import Project

KERNELS = [["conv", 900, 5e6], ["add", 400, 2e6]]
MORE = [*KERNELS, ["softmax", 200, 3e5]]

TESTS = """
    def test_same(gpuperf): gpuperf.measure(lambda: None)
    def test_slower(gpuperf): gpuperf.measure(lambda: None)

    def test_ratio(gpuperf):
        gpuperf.measure(lambda: None, name="a")
        gpuperf.measure(lambda: None, name="b")
        gpuperf.expect_ratio("cycles", "a", "b", above=0.9)
"""
NEW = """
    def test_new(gpuperf): gpuperf.measure(lambda: None)
"""


def test_workers_bring_every_verdict_with_its_kernels_and_one_process_writes(
    a100: Project,
) -> None:
    a100.device(kernels=KERNELS)
    a100.tests(TESTS)
    a100.accept_processes(*[1.0] * 5, kernels=True)
    a100.tests(TESTS + NEW)
    a100.device(kernels=MORE, factors={"slower": {"cycles": 2}})
    flags = ("--gpu-arch=sm80", "--gpuperf-processes=3", "--gpuperf-missing=record")
    result = a100.run("-n2", *flags)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines_random(
        [
            "gpuperf: cycles x2* on NVIDIA A100-SXM4-80GB (sm80)*",
            "*added (new), 1 launch",
            "*cycles*400.00 M*800.00 M*x2*0.5 %*regressed",
            "a / b: cycles 1, above 0.9: holds",
            "baseline recorded: test_steps.py::test_new in *",
        ]
    )
    assert a100.baseline_text().count("reason: recorded by --gpuperf-missing record") == 1
    run = a100.saved()
    cycles = {v.test.split("::")[1]: v.outcome.value for v in run.verdicts if v.metric == "cycles"}
    assert cycles == {
        "test_same": "unchanged",
        "test_slower": "regressed",
        "test_ratio": "unchanged",
        "test_new": "no-baseline",
    }
    assert [entry.test for entry in run.attributions] == ["test_steps.py::test_slower"]
    # The workers looked at what was not settled in fresh processes of their own.
    assert len(run.measurements) == 1 + 3 + 2 + 1


def test_another_architecture_in_the_ini_file_is_refused_by_the_workers_tests(
    a100: Project,
) -> None:
    a100.ini("gpu_arch = sm90")
    a100.tests(
        """
        import pytest

        def test_step(gpuperf): raise AssertionError("ran")

        @pytest.mark.gpu_arch("sm90")
        def test_on_a_gpu(): raise AssertionError("ran")

        @pytest.mark.skip(reason="not today")
        def test_skipped(gpuperf): pass

        def test_of_others(): pass
        """
    )
    result = a100.run("-n2", "--junitxml=junit.xml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.assert_outcomes(errors=2, passed=1, skipped=1)
    result.stdout.fnmatch_lines(
        ["gpuperf: --gpu-arch sm90 asks for sm90 baselines, but this device is NVIDIA A100*"]
    )
    result.stdout.no_fnmatch_line("usage error: *")
    assert "asks for sm90" in (a100.root / "junit.xml").read_text(encoding="utf-8")
