"""`gpuperf reproduce`: how a run came to be, and what of it is executed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf import __main__
from pytest_gpuperf.errors import BAD_CONFIGURATION, OK
from pytest_gpuperf.measure.device import fingerprint, nvml
from pytest_gpuperf.model.measurement import Device
from pytest_gpuperf.model.result import Outcome
from pytest_gpuperf.storage import run_files
from tests.commands.revisions import git
from tests.examples import H200, measurement, run, verdict

if TYPE_CHECKING:
    from tests.plugin.projects import Project

TEST = "tests/perf/test_steps.py::test_step[tf32]"
OTHER = "tests/perf/test_steps.py::test_other"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder on a machine with the H200 that the runs are of."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nvml, "detect_device", lambda: H200)
    monkeypatch.setattr(fingerprint, "software", lambda: {"torch": "2.12.0", "driver": "580"})
    return tmp_path


def saved(command: str, **changes: Any) -> None:
    """Makes a run of two tests of this command the file run.json."""
    made = {"software": {"torch": "2.12.0", "driver": "580"}, **changes}
    both = [measurement(test=test, **made) for test in (TEST, OTHER)]
    said = verdict(test=TEST, outcome=Outcome.REGRESSED)
    run_files.save(replace(run(both, [said]), command=command), Path("run.json"))


def reproduce(*words: str) -> int:
    return __main__.main(["reproduce", "run.json", *words])


@pytest.mark.parametrize(
    ("command", "whole", "alone"),
    [
        ("tests/perf", "pytest tests/perf", f"pytest '{TEST}'"),
        (
            "--gpu-arch sm90 --gpuperf-metrics=paper -k x -p evil --gpuperf-missing record tests",
            "pytest --gpu-arch sm90 --gpuperf-metrics=paper -k x -p evil --gpuperf-missing record "
            "tests",
            f"pytest --gpu-arch sm90 --gpuperf-metrics=paper '{TEST}'",
        ),
        (
            "gpuperf record --processes 5 -- --gpu-arch sm90 tests",
            "gpuperf record --processes 5 -- --gpu-arch sm90 tests",
            f"pytest --gpu-arch sm90 '{TEST}'",
        ),
        (
            "gpuperf ab main HEAD -- tests -x",
            "gpuperf ab main HEAD -- tests -x",
            f"gpuperf ab main HEAD -- '{TEST}'",
        ),
    ],
)
@pytest.mark.usefixtures("folder")
def test_it_prints_the_command_of_a_run_and_of_a_test(
    capsys: pytest.CaptureFixture[str], command: str, whole: str, alone: str
) -> None:
    saved(command)
    assert reproduce() == OK
    assert capsys.readouterr().out.endswith(f"\ncommand:\n  {whole}\n")
    assert reproduce("test_step[tf32]") == OK
    said = capsys.readouterr().out
    assert said.endswith(f"\ncommand:\n  {alone}\n")
    assert said.startswith("test_step[tf32] regressed on NVIDIA H200 (sm90): cycles ")


@pytest.mark.parametrize("command", ["gpuperf import step.csv", ""])
@pytest.mark.usefixtures("folder")
def test_a_run_that_no_pytest_made_says_so(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    saved(command)
    if not command:
        assert reproduce() == BAD_CONFIGURATION
    assert reproduce("--run") == BAD_CONFIGURATION
    assert "gpuperf: " in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_what_is_different_here_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    saved("tests")
    assert reproduce() == OK
    assert "environment: as here\n" in capsys.readouterr().out
    other = Device("sm80", "NVIDIA A100", "nvidia-a100", "a")
    saved("tests", software={"torch": "2.11.0", "cupti": "12", "driver": "580"}, device=other)
    assert reproduce() == OK
    assert (
        capsys.readouterr()
        .out.split("environment, there -> here:\n")[1]
        .startswith("  device: NVIDIA A100 -> NVIDIA H200\n  torch: 2.11.0 -> 2.12.0\ncommand:")
    )
    saved("tests", device=replace(H200, identity="bbbb"))
    assert reproduce() == OK
    assert "  GPU: bbbb -> aaaa00000001\n" in capsys.readouterr().out


def test_the_revision_is_said_and_how_to_get_there(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(folder, "init", "-q", "-b", "main")
    git(folder, "commit", "-q", "--allow-empty", "-m", "First")
    first = git(folder, "rev-parse", "--short=12", "HEAD").strip()
    for revision, expected in (
        (first, f"revision: {first} (as here)\n"),
        (f"{first}+dirty", "  it had changes that are in no commit\n"),
        ("0123456789ab", "  this repository has no commit 0123456789ab: git fetch\n"),
        ("", "revision: unknown\n"),
    ):
        one = measurement(test=TEST)
        one = replace(one, fingerprint=replace(one.fingerprint, revision=revision))
        run_files.save(replace(run([one]), command="tests"), Path("run.json"))
        assert reproduce() == OK
        assert expected in capsys.readouterr().out
    git(folder, "commit", "-q", "--allow-empty", "-m", "Second")
    one = replace(one, fingerprint=replace(one.fingerprint, revision=first))
    run_files.save(replace(run([one]), command="tests"), Path("run.json"))
    assert reproduce() == OK
    place = f"../{folder.name}-{first}"
    assert f"  git worktree add --detach {place} {first}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "test", "said"),
    [
        ("gpuperf ab main --install 'touch evil' -- tests", TEST, "is not executed out of a run"),
        ("tests", "../evil.py::test_step", "is outside of "),
        ("tests", "--basetemp=x", "--basetemp=x is no test"),
        ("tests", "gone.py::test_step", "has no gone.py: stand in the root directory"),
    ],
)
def test_nothing_of_a_run_is_executed_that_does_more_than_measure(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, test: str, said: str
) -> None:
    one = measurement(test=test)
    run_files.save(replace(run([one]), command=command), Path("run.json"))
    (folder.parent / "evil.py").write_text("open('evil', 'w')", encoding="utf-8")
    before = {*folder.rglob("*")}
    assert reproduce("--run") == BAD_CONFIGURATION
    assert said in capsys.readouterr().err
    assert {*folder.rglob("*")} == before


def test_it_is_measured_again_at_its_revision(
    project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without what writes or executes; and the checkout stays as it is."""
    project.device()
    project.tests("def test_step(gpuperf): gpuperf.measure(lambda: None)")
    git(project.root, "init", "-q", "-b", "main")
    git(project.root, "add", "-A")
    git(project.root, "commit", "-q", "-m", "Fast")
    measured = project.run("--gpuperf-no-judge", "--gpuperf-run=run.json", "--junitxml=evil.xml")
    assert measured.ret == OK
    (project.root / "evil.xml").unlink()
    (project.root / "test_steps.py").write_text("def test_step(): assert 0", encoding="utf-8")
    git(project.root, "commit", "-qam", "Broken")
    capfd.readouterr()
    assert reproduce("--run") == OK
    said = capfd.readouterr().out
    assert "  pytest --gpuperf-no-judge test_steps.py::test_step --gpuperf-run=" in said
    assert "1 passed" in said
    assert not (project.root / "evil.xml").exists()
    (again,) = project.run_files()
    then, now = (
        one.measurements[0].fingerprint
        for one in (project.saved("run.json"), run_files.load(again))
    )
    assert then.revision.partition("+")[0] == now.revision
    assert git(project.root, "worktree", "list").count("\n") == 1
