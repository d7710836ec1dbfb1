"""The first year of a small project: every command that is printed on the way works when pasted.

All of it but its beginning is at night.
The device is scripted, and all else is real: processes, git, files, a shell.
"""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_gpuperf.storage import baseline_files
from tests.examples import A100
from tests.plugin.projects import Project
from tests.plugin.test_conditions import AT_NIGHT

_COMMAND = re.compile(r"^(?:  |[a-z].*: )((?:gpuperf|pytest) .*)$")
FIRST, SECOND = "tests/test_perf.py::test_first", "tests/test_perf.py::test_second"


class Year:
    """A project under git, and somebody who types what is printed."""

    def __init__(self, project: Project, home: Path) -> None:
        self.root = project.root
        self._project = project
        home.mkdir()
        for name, module in (("gpuperf", "pytest_gpuperf"), ("pytest", "pytest")):
            start = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n'
            (home / name).write_text(start)
            (home / name).chmod(0o755)
        self._environment = {
            **os.environ,
            "PATH": f"{home}:{os.environ['PATH']}",
            "COLUMNS": "60",
            "HOME": str(home),
        }
        project.ini()
        self.device()
        (self.root / ".gitignore").write_text("__pycache__/\n")
        self.shell("git init -q . && git config user.name me && git config user.email me@home")

    def device(self, factors: Mapping[str, float] | None = None) -> None:
        """Has tests, by a part of their names, take so many times the cycles."""
        of = {
            name: {"cycles": factor, "step_time": factor}
            for name, factor in (factors or {}).items()
        }
        self._project.device(name=A100.name, factors=of)

    def tests(self, *names: str, file: str = "tests/test_perf.py", workload: str = "{}") -> None:
        """Writes the tests, and commits all there is."""
        place = self.root / file
        place.parent.mkdir(parents=True, exist_ok=True)
        body = f"gpuperf.measure(lambda: None, workload={workload})"
        lines = [
            f"def {name}(gpuperf{', size' if 'size' in name else ''}): {body}" for name in names
        ]
        marks = [
            '@pytest.mark.parametrize("size", [1, 2])\n' if "size" in name else "" for name in names
        ]
        text = "\n\n".join(mark + line for mark, line in zip(marks, lines, strict=True))
        place.write_text(f"import pytest\n\n{text}\n")
        self.commit()

    def commit(self) -> None:
        self.shell("git add -A && git commit -qm more --allow-empty")

    def shell(self, command: str, *, folder: str = ".", code: int | None = 0) -> str:
        """Types a command, and y at whatever it asks; what is printed."""
        controller, terminal = pty.openpty()
        os.write(controller, b"y\n")
        try:
            done = subprocess.run(
                command,
                shell=True,
                cwd=self.root / folder,
                env=self._environment,
                stdin=terminal,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
        finally:
            os.close(controller)
            os.close(terminal)
        assert code is None or done.returncode == code, f"{command}:\n{done.stdout}"
        return done.stdout

    def paste(self, printed: str, *, folder: str = ".") -> list[str]:
        """Types each command of the summary, once; all of them succeed.

        What a failure says is that of its test alone, and among these. Where one test has said it
        all, the summary does not say it again.
        """
        failures, _, summary = printed.rpartition(" gpuperf ===")
        commands = _commands(summary) or _commands(failures)
        for command in commands:
            # What is measured once more after a commit may have regressed as before.
            self.shell(command, folder=folder, code=None if command.startswith("pytest") else 0)
        return commands

    def entries(self, suite: str = "tests") -> list[str]:
        """The tests that have a baseline."""
        known = baseline_files.load(baseline_files.path_for(self.root / "baselines", A100, suite))
        return list(known.tests) if known else []


def _commands(printed: str) -> list[str]:
    """Each command that stands in a line of its own or after what it is for, once."""
    matches = map(_COMMAND.match, printed.splitlines())
    return list(dict.fromkeys(match[1] for match in matches if match))


@pytest.fixture
def year(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Year:
    return Year(project, tmp_path_factory.mktemp("home") / "bin")


def test_a_first_test_and_its_baseline(year: Year) -> None:
    year.tests("test_first")
    printed = year.shell("pytest", code=1)
    assert "no baseline on" in printed
    assert len(year.paste(printed)) == 2
    assert year.entries() == [FIRST]


@AT_NIGHT
def test_the_rest_of_the_year(year: Year) -> None:
    year.tests("test_first")
    year.shell("gpuperf record --processes 3 -- tests")
    year.shell('gpuperf update-baseline --reason "first baselines"')
    year.commit()

    # A change that is meant, tried before it is committed.
    year.device({"first": 1.1})
    printed = year.shell("pytest", code=1)
    assert 'gpuperf update-baseline --force --reason "..."' in year.paste(printed)
    year.commit()  # the code and its baseline together
    year.shell("pytest")
    year.device({"first": 1.2})
    year.commit()
    printed = year.shell("pytest", code=1)
    assert 'gpuperf update-baseline --reason "..."' in year.paste(printed)
    year.commit()

    # A second test: recorded alone, and the first is neither refused nor touched.
    before = (year.root / "baselines").rglob("tests.yaml")
    text = next(iter(before)).read_text()
    year.tests("test_first", "test_second")
    record, _ = year.paste(year.shell("pytest", code=1))
    assert record == f"gpuperf record -- {SECOND}"
    assert year.entries() == [FIRST, SECOND]
    assert (
        text.split("accepted:")[0].split(FIRST)[1].strip()
        in next(iter((year.root / "baselines").rglob("tests.yaml"))).read_text()
    )
    year.commit()

    # Everything once more.
    year.shell("gpuperf record --processes 3 -- tests")
    year.shell('gpuperf update-baseline --reason "another driver"')
    year.commit()

    # A new name, and a loss in the same change.
    year.tests("test_first", "test_other")
    year.device({"first": 1.1, "other": 1.1})
    year.commit()
    printed = year.shell("pytest", code=1)
    rename = f"gpuperf baseline rename {SECOND} tests/test_perf.py::test_other"
    assert f"  {rename}" in printed.splitlines()
    year.shell(rename)
    assert "regressed" in year.shell("pytest", code=1)
    year.device({"first": 1.1})
    year.commit()
    year.shell("pytest")

    # Another folder, which is another suite.
    year.shell("mkdir -p perf && git mv tests/test_perf.py perf/test_perf.py")
    year.commit()
    printed = year.shell("pytest", code=1)
    moves = [line.strip() for line in printed.splitlines() if " baseline rename " in line]
    assert len(moves) == 2
    for move in moves:
        year.shell(move)
    assert (year.entries("tests"), len(year.entries("perf"))) == ([], 2)
    year.commit()
    year.shell("pytest")

    # Parameters: which of the tests is the old one cannot be told, and both are recorded.
    year.tests("test_first_size", "test_other", file="perf/test_perf.py")
    printed = year.shell("pytest", code=1)
    assert " baseline rename " not in printed
    year.paste(printed)
    assert len(year.entries("perf")) == 4
    year.commit()
    year.shell("pytest")

    # One goes.
    year.tests("test_first_size", file="perf/test_perf.py")
    assert len(year.entries("perf")) == 4
    year.commit()

    # Another workload.
    year.tests("test_first_size", file="perf/test_perf.py", workload='{"size": 64}')
    printed = year.shell("pytest", code=1)
    assert "another workload" in " ".join(printed.split())
    year.paste(printed)
    year.commit()
    year.shell("pytest")

    # From a folder inside: the newest run and the baselines of the project.
    year.device({"": 1.3})
    year.commit()
    year.shell("cp ../device.json .", folder="perf")
    printed = year.shell("pytest", folder="perf", code=1)
    pasted = year.paste(printed, folder="perf")
    assert any(command.startswith("pytest 'test_perf.py::test_") for command in pasted)
    assert not (year.root / "perf" / "baselines").exists()
    year.commit()
    year.shell("pytest")
