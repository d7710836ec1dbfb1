"""Who does not use the plugin does not notice it: what is imported, and by whom."""

from __future__ import annotations

import json

import pytest

from tests.plugin.projects import STEP, Project

HEAVY = ("torch", "scipy", "numpy", "pydantic", "pynvml", "yaml", "jinja2")

CONFTEST = f"""
    import json, sys
    from pathlib import Path

    def pytest_unconfigure(config):
        found = [name for name in {HEAVY} if name in sys.modules]
        # Not as one word: a conftest file that says it uses us.
        ours = [name for name in sys.modules if name.startswith("pytest_gpu" + "perf")]
        Path("imported.json").write_text(json.dumps([found, ours]))
"""


@pytest.fixture
def plain(pytester: pytest.Pytester) -> Project:
    """A project that does not use us."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_plain="def test_plain(): pass")
    return Project(pytester)


def imported(project: Project, *arguments: str) -> tuple[list[str], list[str]]:
    """The heavy modules and ours that pytest has imported at its end."""
    # Hypothesis takes a second to load, and pytest-randomly loads numpy.
    others = ("-p", "no:hypothesispytest", "-p", "no:randomly")
    assert project.run_apart(*others, *arguments).ret == 0
    said, ours = json.loads((project.root / "imported.json").read_text(encoding="utf-8"))
    return said, ours


def test_a_project_that_does_not_use_us_imports_nothing_heavy(plain: Project) -> None:
    names = ("", ".errors", ".model", ".model.settings", ".plugin")
    of_plugin = ("hooks", "options", "session", "terminal", "workers")
    light = {*names, *(f".plugin.{name}" for name in of_plugin)}
    for arguments in ((), ("-n1",)):
        heavy, ours = imported(plain, *arguments)
        assert heavy == []
        assert {name.removeprefix("pytest_gpuperf") for name in ours} == light


def test_collecting_tests_that_use_us_does_not_import_torch(plain: Project) -> None:
    plain.tests(STEP)
    heavy, _ = imported(plain, "--collect-only")
    assert {"torch", "scipy", "numpy"}.isdisjoint(heavy)
