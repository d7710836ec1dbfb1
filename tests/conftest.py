"""What all tests share: `pytester`, and projects of its kind that use the plugin."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from pytest_gpuperf.measure import fresh_process
from pytest_gpuperf.measure.device import nvml
from tests import ROOT

if TYPE_CHECKING:
    from tests.plugin.projects import Project

pytest_plugins = ["pytester"]

# Without a GPU, Triton's interpreter runs the kernels. It has to be asked for before anything loads
# Triton, whose own functions are made then: torch does, for the first test module that compiles.
if nvml.detect_device() is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Workers beside each other have one thread each, and what they start has: threads that wait for
# other tests' threads take longer than one. It has to be said before anything loads torch.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# What fresh processes import is compiled once, not by each of them: that is a third of their time,
# and it is what they find wherever this is not set.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# How long an example takes says more of the machine than of the code.
settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")


_FIRST = ("test_killing.py", "test_browser.py")
"""They take longest. At the end a worker would wait for the other's, and in the middle the browser
and its pages would be opened by both."""


@pytest.fixture(scope="session")
def patch() -> Iterator[pytest.MonkeyPatch]:
    """Patches that stay for all tests."""
    with pytest.MonkeyPatch.context() as made:
        yield made


@pytest.fixture(scope="session", autouse=True)
def not_on_github(patch: pytest.MonkeyPatch) -> None:
    """Keeps what tests run from telling GitHub, where these tests themselves are run by it."""
    patch.delenv("GITHUB_ACTIONS", raising=False)


@pytest.fixture(scope="session", autouse=True)
def nothing_is_imported_ahead(patch: pytest.MonkeyPatch) -> None:
    """A fresh process would import all of torch that other tests' modules have loaded here."""
    patch.setattr(fresh_process, "_IMPORTED_AHEAD", ())


@pytest.fixture(scope="session", autouse=True)
def torch_stays(patch: pytest.MonkeyPatch) -> None:
    """Pytester forgets what is imported under it, and torch's compiler cannot be imported twice."""
    from _pytest import pytester

    class Snapshot(pytester.SysModulesSnapshot):
        def __init__(self, preserve: Callable[[str], bool] | None = None) -> None:
            def kept(name: str) -> bool:
                its = name.startswith(("torch.", "sympy", "mpmath"))  # and what it is made with
                return its or bool(preserve and preserve(name))

            super().__init__(kept)

    patch.setattr(pytester, "SysModulesSnapshot", Snapshot)


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """As in a process that has compiled nothing: else a step is executed once more, for that."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    if utils is not None:
        utils.counters.clear()


@pytest.fixture(scope="module", autouse=True)
def modules_frozen() -> Iterator[None]:
    """Measuring collects garbage first, which need not look through torch every time.

    Torch comes with the first test that needs it, so what there is then is set aside per file.
    """
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def set_aside_is_counted_once(patch: pytest.MonkeyPatch) -> None:
    """Sessions ask how much is set aside, which Python counts one by one: 20 ms with torch."""
    known: list[int] = []
    count = gc.get_freeze_count

    def counted() -> int:
        if not known:
            known.append(count())
        return known[0]

    def forgotten(change: Callable[[], None]) -> Callable[[], None]:
        def changed() -> None:
            known.clear()
            change()

        return changed

    patch.setattr(gc, "get_freeze_count", counted)
    patch.setattr(gc, "freeze", forgotten(gc.freeze))
    patch.setattr(gc, "unfreeze", forgotten(gc.unfreeze))


@pytest.fixture(scope="session", autouse=True)
def what_is_installed_stays(patch: pytest.MonkeyPatch) -> None:
    """Every pytest of this process looks for plugins in whatever is installed, and at their files.

    That is a sixth of its time. Those that have plugins are looked for once; their modules are
    there, and are not rewritten again.
    """
    installed = metadata.distributions()
    found = [one for one in installed if any(e.group == "pytest11" for e in one.entry_points)]
    load = pytest.PytestPluginManager.load_setuptools_entrypoints

    def loaded(manager: pytest.PytestPluginManager, group: str, name: str | None = None) -> int:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(metadata, "distributions", lambda: found)
            return load(manager, group, name)

    patch.setattr(pytest.PytestPluginManager, "load_setuptools_entrypoints", loaded)
    patch.setattr(pytest.Config, "_mark_plugins_for_rewrite", lambda *_: None)


@pytest.fixture(scope="session")
def project_type() -> type[Project]:
    """Imported before `pytester` begins: it forgets all modules that are imported under it."""
    from tests.plugin.projects import Project

    return Project


@pytest.fixture
def project(
    project_type: type[Project],
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Project:
    """An empty project with strict markers, where warnings are errors."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # its pytest is not our worker's
    monkeypatch.setenv("COLUMNS", "200")  # so that no line of the summary is wrapped
    for name in ("CI", "BUILD_NUMBER"):  # there pytest's own summary repeats messages in full
        monkeypatch.delenv(name, raising=False)
    # What it leaves among temporary files is not found by the tests beside this.
    private = tmp_path_factory.mktemp("private")
    monkeypatch.setenv("TMPDIR", str(private))
    monkeypatch.setattr(tempfile, "tempdir", None)
    # The device is scripted, and nobody else's: its lock is not shared with the tests beside this.
    monkeypatch.setenv("GPUPERF_STAND_IN", str(tmp_path_factory.mktemp("device")))
    made = project_type(pytester)
    made.ini()
    return made


@pytest.fixture
def checkout(project: Project) -> Project:
    """A checkout of ours without baselines, in which pytest runs our suites in this process."""
    for name in ("suites", "conftest.py"):
        (project.root / name).symlink_to(ROOT / name)
    return project


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts first what takes longest, and makes every warning an error, in these tests alone.

    Not in pyproject.toml: there it would fail the suites for a warning of somebody's torch, or of
    another plugin.
    """
    items.sort(key=lambda item: item.path.name not in _FIRST)
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            # First, so that a test of its own accord may let one pass.
            item.add_marker(pytest.mark.filterwarnings("error"), append=False)
