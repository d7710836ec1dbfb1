"""The `gpuperf` command itself, and the doctor. Other commands are in files of their names."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pytest_gpuperf
from pytest_gpuperf import __main__, errors

# doctor


def test_the_doctor_has_a_remedy_for_every_no(capsys: pytest.CaptureFixture[str]) -> None:
    code = __main__.main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    answers = [line for line in lines if not line.startswith("     -> ")]
    assert answers
    assert all(line.startswith(("yes  ", "no   ")) for line in answers)
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("no "):
            assert following.startswith("     -> "), line
    assert any(line.startswith("no ") for line in answers) or code == errors.OK


def test_without_a_gpu_the_doctor_fails_and_says_where_it_looked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert __main__.main(["doctor"]) == errors.FAILED
    said = capsys.readouterr().out
    assert "no   GPU: none is visible, so suites measure portable counts on the CPU" in said
    assert "yes  torch: " in said


# The command itself


def gpuperf(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_gpuperf", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_runs_as_a_module() -> None:
    done = gpuperf("--version")
    assert (done.returncode, done.stdout) == (0, f"gpuperf {pytest_gpuperf.__version__}\n")


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["--help"]) == errors.OK
    said = capsys.readouterr().out
    for command in ("doctor", "record", "update-baseline", "compare"):
        assert command in said


@pytest.mark.parametrize(
    "words", [[], ["dctor"], ["record", "--processes", "two"], ["update-baseline", "--why", "x"]]
)
def test_bad_words_are_bad_configuration(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert __main__.main(words) == errors.BAD_CONFIGURATION
    assert "usage: gpuperf" in capsys.readouterr().err
