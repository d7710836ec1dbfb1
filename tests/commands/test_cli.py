"""The `gpuperf` command itself. What may follow it is in files of their names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pytest_gpuperf
from pytest_gpuperf import __main__, errors
from pytest_gpuperf.storage import run_files
from tests.examples import measurement, run


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


@pytest.mark.parametrize(
    "command",
    [
        "update-baseline RUN --reason x --yes --force",
        "compare RUN RUN",
        "calibrate RUN --write",
        "report RUN --output report.html",
        "export RUN",
        "record --continue RUN -- x",
    ],
)
def test_no_command_follows_a_run_out_of_its_folder(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    here = tmp_path / "a" / "b" / "c"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    file = here / "run.json"
    run_files.save(run([measurement(suite="../../../../escaped/evil")]), file)
    before = file.read_bytes()
    assert __main__.main(command.replace("RUN", str(file)).split()) == errors.BAD_CONFIGURATION
    assert f"{file}: measurements/0/suite: " in capsys.readouterr().err
    assert {*tmp_path.rglob("*.*")} == {file}
    assert file.read_bytes() == before
