"""The `gpuperf` command itself. What may follow it is in files of their names."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pytest_gpuperf
from pytest_gpuperf import __main__, errors


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
