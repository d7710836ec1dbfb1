"""The `gpuperf` command itself. What may follow it is in files of their names."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TypeGuard

import pytest

import pytest_gpuperf
from pytest_gpuperf import __main__, commands, errors
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.storage import run_files
from tests.examples import H200, HOSTILE, kernels_changed, measurement, run, verdict
from tests.kernel_steps import table
from tests.workflow_commands import harmless


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


def hostile_run(cycles: float, process: str) -> Run:
    """A run in which everything that has a name has a hostile one."""
    test = f"suites/meddpm/test_training.py::test_step[{HOSTILE}]"
    measured = measurement(
        {"cycles": [cycles] * 3, "step_time": [9.0] * 3},
        test=test,
        name=HOSTILE,
        process=process,
        configuration=HOSTILE,
        workload={HOSTILE: HOSTILE},
        phases={HOSTILE: {"cycles": [1.0]}},
        unsupported={"ipc": HOSTILE},
        device=replace(H200, name=HOSTILE, identity=HOSTILE),
        software={"torch": HOSTILE, HOSTILE: process},
        settings={HOSTILE: HOSTILE},
        kernels=table((HOSTILE, cycles / 1e5, 9.0)),
    )
    said = (
        verdict(test=test, name=HOSTILE, detail=HOSTILE),
        kernels_changed(HOSTILE, test=test, name=HOSTILE),
    )
    return replace(run([measured], said), command=HOSTILE, created=f"2026{HOSTILE}")


@pytest.mark.parametrize(
    "command",
    [
        "update-baseline a.json b.json --reason x --yes --force",
        "update-baseline a.json --reason x --yes",
        "update-baseline a.json --reason x --yes --test nothing",
        "compare a.json b.json",
        "compare a.json b.json --format markdown",
        "compare a.json b.json --format json",
        "compare a.json b.json --config none",
        "calibrate a.json b.json",
        "export a.json",
        "report a.json --output report.md",
        "report a.json --output report.html",
        "record --continue a.json -- x",
        "update-baseline a.json same.json --reason x --yes",
        "update-baseline wrong.json --reason x --yes",
    ],
)
def test_names_in_a_run_are_shown_and_never_obeyed(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    run_files.save(hostile_run(4e8, "p1"), Path("a.json"))
    run_files.save(hostile_run(8e8, "p2"), Path("b.json"))
    run_files.save(hostile_run(8e8, "p1"), Path("same.json"))
    text = Path("a.json").read_text(encoding="utf-8")
    Path("wrong.json").write_text(text.replace("400000000.0", "-1.0"), encoding="utf-8")
    __main__.main(command.split())
    said = capsys.readouterr()
    assert said.out or said.err
    assert harmless(said.out + said.err), said
    for written in tmp_path.glob("report.*"):
        shown = re.sub("<script>.*?</script>", "", written.read_text("utf-8"), flags=re.DOTALL)
        assert "WL" in shown
        assert harmless(re.sub("<style>.*?</style>", "", shown, flags=re.DOTALL))


def test_what_a_command_prints_goes_through_one_place() -> None:
    """Nobody has to remember it: the commands do not print by themselves."""
    for file in sorted(Path(commands.__path__[0]).glob("[!_]*.py")):
        calls = [node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if is_print(node)]
        # What a fresh process of pytest said is passed on as it is.
        allowed = ["finished.output"] if file.stem == "record" else []
        assert [ast.unparse(call.args[0]) for call in calls] == allowed, file


def is_print(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
