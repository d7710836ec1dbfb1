"""The `gpuperf` command itself. What may follow it is in files of their names."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import pytest

import pytest_gpuperf
from pytest_gpuperf import __main__, commands, errors
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.storage import run_files
from tests import ROOT
from tests.examples import H200, HOSTILE, kernels_changed, measurement, run, verdict
from tests.kernel_steps import table
from tests.measure.ncu_reports import RANGES, module
from tests.workflow_commands import harmless

if TYPE_CHECKING:
    from tests.plugin.projects import Project

STEP = """
import pytest

NAMES = [pytest.param(name, marks=pytest.mark.optimization(name)) for name in ("baseline", "tf32")]

@pytest.mark.parametrize("name", NAMES)
def test_step(gpuperf, name):
    gpuperf.measure(lambda: None)
"""


def test_it_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "pytest_gpuperf", "--version"]
    assert subprocess.check_output(command, text=True) == f"gpuperf {pytest_gpuperf.__version__}\n"


def test_help_lists_the_commands_and_bad_words_are_bad_configuration(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert __main__.main(["--help"]) == errors.OK
    said = capsys.readouterr().out
    for command in Path(commands.__path__[0]).glob("[!_]*.py"):
        if hasattr(module := import_module(f"{commands.__name__}.{command.stem}"), "EXAMPLES"):
            (name,) = (n for n in __main__.COMMANDS if __main__.imported(n) is module)
            assert f"\n    {name} " in said or f"\n    {name}\n" in said
    for words in ("", "record --processes two", "update-baseline --why x", "recrod -- tests"):
        assert __main__.main(words.split()) == errors.BAD_CONFIGURATION
        assert "usage: gpuperf" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (["--version"], []),
        (["--help"], []),
        (["doctor", "--help"], ["commands.doctor"]),
    ],
)
def test_no_command_is_imported_but_the_one_that_is_typed(
    words: list[str], typed: list[str]
) -> None:
    """The version needs nothing else of the package; nor has a command the flags of others."""
    asked = (
        "import sys; from pytest_gpuperf import __main__; __main__.main(sys.argv[1:]);"
        "print(*(n for n in sys.modules if n.startswith('pytest_gpuperf.')), file=sys.stderr)"
    )
    command = [sys.executable, "-c", asked, *words]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr.split()
    names = {name.removeprefix("pytest_gpuperf.") for name in said}
    assert {name for name in names if name.startswith("commands.")} == {*typed}
    assert typed or names == {"__main__", "commands", "errors"}


# Examples


def examples() -> list[str]:
    """All that any command's help ends with, in an order in which they work."""
    order = ["doctor", "metrics", "record", "update-baseline"]
    known = {name: __main__.imported(name).EXAMPLES for name in __main__.COMMANDS}
    assert all(known.values())
    return [line for name in (*order, *(known.keys() - {*order})) for line in known[name]]


def test_the_help_of_every_command_ends_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for name in __main__.COMMANDS:
        assert __main__.main([name, "--help"]) == errors.OK
        said = capsys.readouterr().out
        typed = __main__.imported(name).EXAMPLES
        assert said.endswith("\n\nfor example:\n  " + "\n  ".join(typed) + "\n")
        assert all(example.startswith(f"gpuperf {name}") for example in typed)


OF_THEIR_OWN = {
    *("doctor", "ab", "bisect", "prove"),
    *("night", "night-issues", "propose-baseline", "pull-comment"),
}
"""Commands that ask the machine, git, torch or GitHub: their examples are in tests of their own."""


def test_every_example_works_as_it_is_typed(
    project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    """In a project with tests/perf and runs of the names that they have; with --yes, as asked."""
    project.device()
    project.tests(STEP, name="tests/perf/test_old")
    (project.root / ".git").mkdir()
    runs = {"before": "baseline", "after": "baseline", "monday": "tf32", "tuesday": "tf32"}
    for number, (name, configuration) in enumerate(runs.items()):
        one = measurement(configuration=configuration, process=f"p{number}")
        run_files.save(run([one]), project.root / f"{name}.json")
    shutil.copy(RANGES[1], project.root / "step.ncu-rep")
    shutil.copy(ROOT / "docs/runs/prove-first-test.json.xz", project.root / "proof.json.xz")
    module(project.root / "extras" / "python")
    for example in examples():
        if example.split()[1] in OF_THEIR_OWN:
            continue
        words = shlex.split(example)[1:]
        if words[0] == "record":
            words[words.index("--processes") + 1] = "1"
        if words[0] == "update-baseline":
            words += ["--yes", "--force"]
        if words[0] == "import":
            words += ["--ncu", str(project.root / "ncu")]
        assert __main__.main(words) == errors.OK, (example, *capfd.readouterr())
        if words[0] == "record":
            newest = run_files.newest(project.root)
            shutil.copy(newest, project.root / "run.json")


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
        "history a.json b.json --test step",
        "compare a.json missing.json",
        "calibrate a.json b.json",
        "export a.json",
        "report a.json --output report.md",
        "report a.json --output report.html",
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
        assert not calls, file


def is_print(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
