"""Sessions of pytest in a folder of their own, as a user of the plugin has them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import ROOT

CONFTEST = """
from pytest_gpuperf.plugin import hooks


def pytest_addoption(pluginmanager):
    if not pluginmanager.has_plugin("gpuperf"):
        pluginmanager.register(hooks, "gpuperf")
"""
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
}
ENDED_AFTER_S = 300
"""A session that is not over by then hangs."""


def project(folder: Path, tests: str, conftest: str = "") -> Path:
    """The folder, with these tests in it."""
    for name, text in (
        ("conftest.py", CONFTEST + conftest),
        ("test_it.py", tests),
        ("pytest.ini", "[pytest]"),
    ):
        (folder / name).write_text(text)
    return folder


def session(folder: Path, *flags: str, **environment: str) -> tuple[int, str]:
    """Its exit code and what it printed."""
    command = [sys.executable, "-m", "pytest", "-rs", "--gpu-arch=auto", *flags]
    ended = subprocess.run(
        command,
        cwd=folder,
        env={**ENVIRONMENT, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=ENDED_AFTER_S,
        check=False,
    )
    print(ended.stdout)
    return ended.returncode, ended.stdout
