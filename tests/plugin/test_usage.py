"""What is refused before anything runs (exit code 4), and who is left in peace."""

from __future__ import annotations

from textwrap import dedent

import pytest

from tests import ROOT
from tests.plugin.projects import BASELINE, STEP, Project, refused

# Architectures


def test_without_a_gpu_it_says_what_can_be_done_instead(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    project.tests(STEP)
    text = refused(project.run("--gpu-arch=sm90"))
    assert "--gpu-arch sm90 asks for an sm90 GPU, but gpuperf found no NVIDIA GPU here" in text
    assert "`gpuperf doctor` lists what is missing" in text
    # It is asked for where a test needs it alone.
    project.tests("def test_nothing(): pass")
    assert project.run("--gpu-arch=sm90").ret == 0


# Files


def test_a_corrupted_baseline_is_named_with_its_entry_and_kept(a100: Project) -> None:
    a100.accept()
    file = a100.root / BASELINE / "test_steps.yaml"
    whole = file.read_text(encoding="utf-8")
    file.write_text(whole.replace("schema: 2", "schema: 99", 1), encoding="utf-8")
    before = file.read_bytes()
    text = refused(a100.run("--gpuperf-missing=record"))
    assert "test_steps.yaml: schema: schema version 99, but this version of gpuperf reads 2" in text
    assert file.read_bytes() == before
    assert not a100.run_files()
    # It does not matter where nothing is judged, nor does that of another suite.
    assert a100.run("--gpuperf-no-judge").ret == 0
    file.rename(file.with_name("other.yaml"))
    file.write_text(whole, encoding="utf-8")
    assert a100.run("--gpuperf-run=run.json").ret == 0


# Others


def test_in_a_plain_checkout_its_conftest_file_brings_us(
    a100: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which pytest reads after it has looked for files and folders among the arguments."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    conftest = a100.root / "conftest.py"
    ours = (ROOT / "conftest.py").read_text("utf-8")
    conftest.write_text(f"{ours}\n{conftest.read_text('utf-8')}", encoding="utf-8")
    result = a100.run_apart("--gpu-arch", "sm80", "test_steps.py")
    command = "  gpuperf record -- * --gpu-arch sm80 test_steps.py::test_step"
    result.stdout.fnmatch_lines([command])


def test_a_test_outside_of_the_root_directory_is_not_judged_by_its_baselines(
    a100: Project,
) -> None:
    """Of two projects in one session, whose node ids are the same."""
    for name in ("a", "b"):
        (a100.root / name).mkdir()
        (a100.root / name / "pytest.ini").write_text("[pytest]\n")
        (a100.root / name / "test_steps.py").write_text(dedent(STEP))
        (a100.root / name / "conftest.py").write_text((a100.root / "conftest.py").read_text())
    both = ("a", "b", "--import-mode=importlib")
    said = refused(a100.run("--rootdir=a", *both))
    assert "b/test_steps.py is outside of the root directory" in said
    result = a100.run("--rootdir=.", *both, "--gpuperf-missing=warn")
    assert result.ret == 0
    assert "2 passed" in result.stdout.str()
