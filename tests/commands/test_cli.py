"""The `gpuperf` command itself. What may follow it is in files of their names."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pytest_gpuperf
from pytest_gpuperf import __main__, errors


def test_it_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "pytest_gpuperf", "--version"]
    assert subprocess.check_output(command, text=True) == f"gpuperf {pytest_gpuperf.__version__}\n"


def test_help_lists_the_commands_and_bad_words_are_bad_configuration(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert __main__.main(["--help"]) == errors.OK
    said = capsys.readouterr().out
    for command in ("doctor", "record", "update-baseline", "compare"):
        assert command in said
    for words in ("", "dctor", "record --processes two", "update-baseline --why x"):
        assert __main__.main(words.split()) == errors.BAD_CONFIGURATION
        assert "usage: gpuperf" in capsys.readouterr().err
