"""With and without pytest-xdist: the same verdicts, and one process that writes."""

from __future__ import annotations

import pytest

from tests.plugin.projects import BASELINE, STEP, Project, refused

MODES = [(), ("-n0",), ("-n2",)]
each_mode = pytest.mark.parametrize("mode", MODES, ids=["without", "n0", "n2"])

THREE = """
    def test_same(gpuperf): gpuperf.measure(lambda: None)
    def test_slower(gpuperf): gpuperf.measure(lambda: None)
    def test_faster(gpuperf): gpuperf.measure(lambda: None)
"""
FOURTH = """
    def test_new(gpuperf): gpuperf.measure(lambda: None)
"""


@pytest.fixture
def a100(project: Project) -> Project:
    """A project on a scripted A100."""
    project.device()
    return project


@each_mode
def test_every_verdict_is_the_same(mode: tuple[str, ...], a100: Project) -> None:
    a100.tests(THREE)
    a100.accept()
    a100.tests(THREE + FOURTH)
    a100.device(factors={"slower": {"cycles": 2}, "faster": {"cycles": 0.5}})
    result = a100.run_apart(*mode, "--gpu-arch=sm80")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines_random(
        [
            "gpuperf: test_slower regressed on NVIDIA A100-SXM4-80GB (sm80)",
            "gpuperf: test_new has no baseline on NVIDIA A100-SXM4-80GB (sm80)",
            "*cycles*400.00 M*800.00 M*x2*0.5 %*regressed",
            "*cycles*400.00 M*200.00 M*-50.00 %*0.5 %*improved",
        ]
    )
    run = a100.saved()
    cycles = {v.test.split("::")[1]: v.outcome.value for v in run.verdicts if v.metric == "cycles"}
    assert cycles == {
        "test_same": "unchanged",
        "test_slower": "regressed",
        "test_faster": "improved",
        "test_new": "no-baseline",
    }
    assert len(run.measurements) == 1 + 3 + 3 + 1


@each_mode
def test_baselines_are_recorded_by_one_writer(mode: tuple[str, ...], a100: Project) -> None:
    names = [f"test_{number}" for number in range(8)]
    a100.tests("\n".join(f"def {name}(gpuperf): gpuperf.measure(lambda: None)" for name in names))
    result = a100.run_apart(*mode, "--gpuperf-missing=record")
    assert result.ret == 0
    text = a100.baseline_text()
    for name in names:
        assert f"  test_steps.py::{name}:" in text
    assert text.count("reason: recorded by --gpuperf-missing record") == len(names)
    assert a100.run().ret == 0


@each_mode
def test_a_corrupted_baseline_stops_all_and_is_kept(mode: tuple[str, ...], a100: Project) -> None:
    a100.tests(THREE)
    a100.accept()
    file = a100.root / BASELINE / "test_steps.yaml"
    damaged = file.read_text(encoding="utf-8").replace("schema: 1", "schema: one")
    file.write_text(damaged, encoding="utf-8")
    result = a100.run_apart(*mode, "--gpuperf-missing=record")
    text = refused(result)
    assert "test_steps.yaml: schema: schema version 'one' is not 1" in text
    assert result.parseoutcomes().get("passed", 0) == 0
    assert file.read_text(encoding="utf-8") == damaged


@each_mode
def test_another_architecture_is_a_usage_error(mode: tuple[str, ...], a100: Project) -> None:
    a100.tests(STEP)
    text = refused(a100.run_apart(*mode, "--gpu-arch=sm90"))
    assert "--gpu-arch sm90 asks for sm90 baselines" in text
    assert "this device is NVIDIA A100-SXM4-80GB (sm80)" in text


def test_another_architecture_in_the_ini_file_is_refused_by_the_workers_tests(
    a100: Project,
) -> None:
    a100.ini("gpu_arch = sm90")
    a100.tests(
        """
        import pytest

        def test_step(gpuperf): raise AssertionError("ran")

        @pytest.mark.gpu
        def test_on_a_gpu(): raise AssertionError("ran")

        @pytest.mark.skip(reason="not today")
        def test_skipped(gpuperf): pass

        def test_of_others(): pass
        """
    )
    result = a100.run_apart("-n2", "--junitxml=junit.xml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.assert_outcomes(errors=2, passed=1, skipped=1)
    result.stdout.fnmatch_lines(
        ["refused: --gpu-arch sm90 asks for sm90 baselines, but this device is NVIDIA A100*"]
    )
    assert str(result.stdout).count("refused:") == 1
    assert "asks for sm90" in (a100.root / "junit.xml").read_text(encoding="utf-8")


def test_a_wrong_marker_is_refused_by_the_workers_tests(a100: Project) -> None:
    a100.tests("import pytest\n\n@pytest.mark.gpuperf(rounds=0)" + STEP.replace("\n    ", "\n"))
    result = a100.run_apart("-n2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["refused: test_steps.py::test_step: *rounds=0*"])
    assert not a100.run_files()


def test_a_run_that_cannot_be_saved_ends_the_workers_too(a100: Project) -> None:
    a100.tests(STEP)
    a100.pytester.mkdir("folder")
    result = a100.run_apart("-n2", "--gpuperf-run=folder", "--gpuperf-missing=warn")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["refused: *folder: cannot be written*", "*1 passed*"])
