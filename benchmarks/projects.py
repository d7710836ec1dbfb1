"""Small projects of their own, whose tests run in sessions that use this checkout's plugin."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

CONFTEST = """
from pytest_gpuperf.plugin import hooks


def pytest_addoption(pluginmanager):
    if not pluginmanager.has_plugin("gpuperf"):
        pluginmanager.register(hooks, "gpuperf")
"""
"""The beginning of a project's conftest.py: the plugin is there whether or not it is installed."""


def project(folder: Path, tests: str, conftest: str = "") -> Path:
    """The folder with these tests in it; `conftest` follows on CONFTEST."""
    folder.mkdir(exist_ok=True)
    for name, text in (
        ("conftest.py", CONFTEST + conftest),
        ("test_it.py", tests),
        ("pytest.ini", "[pytest]\n"),
    ):
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def environment(**more: str) -> dict[str, str]:
    """That of this process, with the checkout to import from."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": paths, **more}
