"""On GitHub Actions: the job summary, and annotations at the lines of the tests that failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugin.projects import Project
from tests.workflow_commands import Command, commands

TESTS = """
    import pytest

    def test_same(gpuperf):
        gpuperf.measure(lambda: None)

    def test_slower(gpuperf):
        gpuperf.measure(lambda: None)
"""
SLOWER = {"slower": {"cycles": 2}}


@pytest.fixture
def summary(project: Project, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the job summary; the project runs as a step of a job."""
    file = project.root / "summary.md"
    file.touch()
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(file))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.root))
    return file


@pytest.fixture
def a100(project: Project, summary: Path) -> Project:
    """A project whose second test has regressed; nothing was told to GitHub yet."""
    project.device()
    project.tests(TESTS)
    project.accept("--gpuperf-github=never")
    project.device(factors=SLOWER)
    assert not summary.read_bytes()
    return project


def told(result: pytest.RunResult) -> list[Command]:
    """The annotations of a run."""
    return commands(result.stdout.str())


def test_a_regression_is_in_the_summary_once_and_at_its_line(a100: Project, summary: Path) -> None:
    # It is looked at again in fresh processes, which tell nothing.
    result = a100.run("-q", "--gpuperf-report=report.md")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    text = summary.read_text(encoding="utf-8")
    assert text.startswith("# gpuperf: 1 regressed, 1 unchanged\n\n- **test\\_slower regressed on")
    assert text == (a100.root / "report.md").read_text(encoding="utf-8")
    (command,) = told(result)
    assert command.name == "error"
    assert command.properties == {
        "file": "test_steps.py",
        "line": "6",
        "title": "gpuperf: test_slower regressed on NVIDIA A100-SXM4-80GB (sm80)",
    }
    assert command.message == "cycles x2 (400.00 M -> 800.00 M, tolerance 0.5 %)"
    assert "job summary: written" in str(a100.run("--gpuperf-report=report.md").stdout)


CATCHING = """
    import pytest

    def measured(gpuperf):
        try:
            gpuperf.measure(lambda: None)
        except pytest.fail.Exception:
            return True

    @pytest.mark.xfail(reason='cuDNN 9.1')
    def test_expected(gpuperf):
        gpuperf.measure(lambda: None)

    @pytest.mark.xfail(raises=ZeroDivisionError)
    def test_of_another_reason(gpuperf):
        gpuperf.measure(lambda: None)

    def test_skipped(gpuperf):
        measured(gpuperf) and pytest.skip('later')
"""
SAID = {"expected": "notice", "of_another_reason": "error", "skipped": "notice"}


def test_only_what_failed_a_test_is_an_error(project: Project, summary: Path) -> None:
    project.device()
    project.tests(CATCHING.replace("@pytest.mark.xfail", "# "))
    project.accept_processes(*[1.0] * 3)
    project.tests(CATCHING)
    summary.write_bytes(b"")
    result = project.replay(factor=2.0)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(skipped=1, xfailed=1, failed=1)
    assert summary.read_bytes()
    said = {command.properties["title"].split()[1]: command for command in told(result)}
    assert {name.removeprefix("test_"): one.name for name, one in said.items()} == SAID
    for command in said.values():
        spared = command.message.startswith("the test did not fail\n")
        assert spared is (command.name == "notice")
        assert "cycles x2 (400.00 M -> 800.00 M, tolerance 0.5 %)" in command.message


def test_elsewhere_or_switched_off_or_without_measurements_nothing_is_told(
    a100: Project, summary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing_is_told(*arguments: str) -> None:
        result = a100.run(*arguments)
        assert not told(result)
        assert not summary.read_bytes()
        assert "job summary" not in result.stdout.str()

    nothing_is_told("--gpuperf-github=never", "--gpuperf-processes=1")
    a100.tests("def test_x(): pass", name="test_plain")
    nothing_is_told("test_plain.py")
    monkeypatch.setenv("GITHUB_ACTIONS", "false")
    nothing_is_told("--gpuperf-processes=1")
