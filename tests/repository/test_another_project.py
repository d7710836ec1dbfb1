"""Another project's night: the doubled layer is red, however the project is installed there.

Its environment is empty but for the project, which pip installs; torch and what we need are found
in the environment of these tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import EVERY, ROOT
from tests.commands.revisions import git

MODEL = """
import torch

LAYERS = 1


def step():
    value = torch.ones(8, 8)
    for _ in range(LAYERS):
        value = value @ value
"""
TEST = """
from gpnet import model


def test_step(gpuperf):
    gpuperf.measure(model.step)
"""
BUILD = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "gp-net"
version = "1"

[tool.setuptools]
packages = ["gpnet"]
{where}
[tool.pytest.ini_options]
testpaths = ["tests"]
"""
NIGHT = ("-m", "pytest", "--gpuperf-require-judged", "--gpuperf-report=report.md", "tests/perf")
"""What `gpuperf night` runs, without its question for a GPU."""


@dataclass(frozen=True)
class Runner:
    """A runner with a checkout of the project, and an environment beside it."""

    checkout: Path
    source: Path
    """The folder of the package."""
    environment: Path

    def python(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of the environment's Python, in the checkout."""
        own = self.environment / "bin" / "python"
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            [str(own), *words],
            cwd=self.checkout,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
        )

    def installs(self, *words: str) -> None:
        """Installs the project, from its checkout and the environment of these tests alone."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.environment / "bin" / "python")]
        offline = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation")
        subprocess.run([*pip, "install", *offline, *words], cwd=self.checkout, check=True)


@pytest.fixture(params=["src/", ""], ids=["src", "flat"])
def runner(request: pytest.FixtureRequest, tmp_path: Path) -> Runner:
    checkout = tmp_path / "checkout"
    made = Runner(checkout, checkout / request.param / "gpnet", tmp_path / "environment")
    where = 'package-dir = {"" = "src"}\n' if request.param else ""
    for file, text in {
        made.source / "__init__.py": "",
        made.source / "model.py": MODEL,
        made.checkout / "tests" / "perf" / "test_net.py": TEST,
        made.checkout / "pyproject.toml": BUILD.format(where=where),
        made.checkout / ".gitignore": "build/\n*.egg-info/\n",
    }.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    git(made.checkout, "init", "-q")
    git(made.checkout, "add", "-A")
    git(made.checkout, "commit", "-q", "-m", "One layer")
    venv.create(made.environment)
    (packages,) = made.environment.glob("lib/python*/site-packages")
    ours = sysconfig.get_path("purelib")
    (packages / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    return made


@pytest.mark.skipif(EVERY not in os.environ, reason="takes a minute: at night")
@pytest.mark.parametrize("how", [(".",), ("--editable", ".")], ids=["copy", "editable"])
def test_the_doubled_layer_is_red(runner: Runner, how: tuple[str, ...]) -> None:
    runner.installs(*how)
    accepted = ("update-baseline", "run.json", "--reason=first", "--yes", "--force")
    for words in (("record", "--run=run.json", "--", "tests/perf"), accepted):
        assert runner.python("-m", "pytest_gpuperf", *words).returncode == 0
    # Of a flat layout pytest, started as a module, imports what stands in its folder.
    is_stale = len(how) == 1 and runner.source.parent != runner.checkout
    assert runner.python(*NIGHT).returncode == int(is_stale)
    doubled = MODEL.replace("LAYERS = 1", "LAYERS = 2")
    (runner.source / "model.py").write_text(doubled, encoding="utf-8")
    git(runner.checkout, "commit", "-q", "-a", "-m", "Two layers")
    red = runner.python(*NIGHT)
    assert red.returncode == 1
    headline = (runner.checkout / "report.md").read_text(encoding="utf-8").partition("\n")[0]
    begins = "# gpuperf: the tests used " if is_stale else "# gpuperf: 1 regressed"
    assert headline.startswith(begins), red.stdout
    assert ("site-packages/gpnet instead of src/gpnet" in headline) is is_stale
