"""A step that is not fit to be compared fails its test with that reason, before any number."""

from __future__ import annotations

import pytest

from tests.plugin import scripted
from tests.plugin.projects import Project

CPU = ("--gpu-arch=cpu", "--gpuperf-missing=warn")


def test_an_unsound_step_fails_and_the_next_test_is_measured(project: Project) -> None:
    """So does one that measures itself."""
    project.tests(
        """
    import pytest

    losses = iter([0.1234, 0.1236])

    def test_step(gpuperf):
        gpuperf.measure(lambda: next(losses), reset=lambda: None)

    def test_settings(gpuperf):
        gpuperf.measure(lambda: None, settings=lambda: {"first_call_s": float("nan")})

    def test_nested(gpuperf):
        def step():
            try:
                gpuperf.measure(lambda: None, name="inner")
            except Exception:
                pass
        gpuperf.measure(step, name="outer")

    def test_sound(gpuperf):
        with pytest.raises(ZeroDivisionError):
            gpuperf.measure(lambda: 1 / 0, name="broken")
        gpuperf.measure(lambda: None, name="one")
        gpuperf.measure(lambda: None, name="two")
"""
    )
    result = project.run(*CPU)
    result.assert_outcomes(failed=3, passed=1)
    result.stdout.fnmatch_lines(
        [
            "gpuperf: two executions after reset gave the losses 0.1234 and 0.1236, 0.16 % apart *",
            'gpuperf: settings?"first_call_s"? is nan, but must be *',
            'gpuperf: the step of "outer" calls gpuperf.measure (name "inner"), *',
        ]
    )
    assert "Traceback" not in str(result.stdout)
    saved = project.saved().measurements
    assert [one.title for one in saved] == ["test_sound, one", "test_sound, two"]


LOST = """
    import sys
    from types import SimpleNamespace

    from {scripted} import ScriptedCollector

    ScriptedCollector.torch_device = "cuda"


    def asserts():  # a kernel's, which the host hears of later
        def synchronize():
            raise RuntimeError("CUDA error: device-side assert triggered\\nSearch for it")

        cuda = SimpleNamespace(
            is_initialized=lambda: True, memory_allocated=lambda: 0, synchronize=synchronize
        )
        sys.modules["torch"] = SimpleNamespace(cuda=cuda)
"""


@pytest.mark.parametrize("fails", [True, False])
def test_a_gpu_that_one_test_has_lost_is_said_by_those_after_it(
    project: Project, fails: bool
) -> None:
    """Also where that one has passed before its kernel failed, and measures nothing itself."""
    project.device()
    project.conftest(LOST.format(scripted=scripted.__name__))
    project.tests(
        f"""
    def test_before(gpuperf):
        gpuperf.measure(lambda: None)

    def test_asserts():
        import conftest
        conftest.asserts()
        assert not {fails}

    def test_plain():
        pass

    def test_after(gpuperf):
        raise RuntimeError("CUDA error: device-side assert triggered")

    def test_last(gpuperf):
        raise RuntimeError("CUDA error: device-side assert triggered")
"""
    )
    result = project.run_apart("--gpuperf-no-judge")
    result.assert_outcomes(passed=3 - fails, failed=int(fails), errors=2)
    lost = "gpuperf: this process lost its GPU in test_steps.py::test_asserts: CUDA error: device-"
    said = [line for line in result.outlines if line.startswith(f"{lost}side assert triggered.")]
    assert len(said) == 2
    assert ("RuntimeError" in str(result.stdout)) is False


def test_what_a_step_does_elsewhere_is_refused_or_said(project: Project) -> None:
    project.tests(
        """
        import time
        import torch

        WEIGHT = torch.ones(8, 8)

        def busy():
            end = time.thread_time() + 0.15
            while time.thread_time() < end:
                pass

        def test_elsewhere(gpuperf): gpuperf.measure(busy)
        def test_beside(gpuperf): gpuperf.measure(lambda: (WEIGHT @ WEIGHT, busy()))
        def test_here(gpuperf): gpuperf.measure(lambda: WEIGHT @ WEIGHT)
        """
    )
    result = project.run(*CPU)
    result.assert_outcomes(failed=1, passed=2)
    result.stdout.fnmatch_lines(
        [
            "gpuperf: most of this step cannot be counted: of * ms of CPU time it spends * ms *",
            "note: test_beside: gpuperf does not count this part of the step: code outside *",
        ]
    )
    result.stdout.no_fnmatch_line("note: test_here: *")


@pytest.mark.parametrize("metrics", ["activity", "core"])
def test_on_the_cpu_activity_is_unsupported_and_no_fault(project: Project, metrics: str) -> None:
    project.tests("def test_step(gpuperf): gpuperf.measure(lambda: sum(range(1000)))")
    result = project.run(*CPU, f"--gpuperf-metrics={metrics}", "--gpuperf-require-counters")
    assert result.ret == 0
    told = " ".join(str(result.stdout).split())
    assert ("copy_overlap: there is no GPU to trace" in told) is (metrics == "activity")
