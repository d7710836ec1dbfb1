"""Versions and the git revision that a measurement records."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_gpuperf.measure.device import fingerprint
from pytest_gpuperf.model.measurement import Machine
from tests.scripted_nvml import Gpu, Install, Instance, Library


def test_the_driver_is_asked_of_nvml_and_what_is_not_there_is_left_out(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(Library([], driver="580.159.03"))
    assert fingerprint.software()["driver"] == "580.159.03"
    install(None)
    monkeypatch.setitem(sys.modules, "torch", None)
    versions = fingerprint.software()
    assert not {"driver", "torch", "cuda", "cudnn"} & set(versions)
    assert "" not in versions.values()


def test_cudnn_is_written_as_people_write_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    for number, text in ((91900, "9.19.0"), (90100, "9.1.0"), (8907, "8.9.7")):
        monkeypatch.setattr(torch.backends.cudnn, "version", lambda number=number: number)
        assert fingerprint.software()["cudnn"] == text


# What a GPU is beyond its name

KIND_A = Machine(
    vbios="96.00.A5.00.1A",
    board_part="692-2G520-0282-001",
    inforom="G520.0282.02.02",
    memory_bytes=143_771 << 20,
    ecc=True,
    mig=False,
    power_limit_watts=700,
    enforced_power_limit_watts=650.5,
    pcie_generation=5,
    pcie_width=16,
)


def test_a_machine_is_what_the_driver_says_and_what_it_does_not_is_absent(
    install: Install,
) -> None:
    install(Library([Gpu(limits=(700_000, 650_500))]))
    assert fingerprint.machine() == KIND_A
    # In a MIG instance the memory is its own.
    install(Library([Gpu(mig=True, instances=[Instance("MIG-1")])]))
    machine = fingerprint.machine()
    assert machine is not None
    parted = (machine.mig, machine.memory_bytes, machine.vbios)
    assert parted == (True, 4864 << 20, KIND_A.vbios)
    fields = ("vbios", "board_part", "inforom", "memory_mib", "ecc", "mig", "limits", "pcie")
    silent = Gpu(**dict.fromkeys(fields))  # type: ignore[arg-type]
    install(Library([silent]))
    assert fingerprint.machine() is None
    silent.ecc = False
    assert fingerprint.machine() == Machine(ecc=False)
    install(None)
    assert fingerprint.machine() is None


# The revision


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit of one file."""
    (tmp_path / "model.py").write_text("x = 1\n")
    for command in (
        "init -q",
        "add model.py",
        "-c user.name=a -c user.email=a@example.org commit -q -m first",
    ):
        git(tmp_path, *command.split())
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True)


def test_revision_is_the_short_hash_and_whether_a_tracked_file_was_changed(
    repository: Path,
) -> None:
    (repository / "suite").mkdir()
    (repository / "suite" / "run.json").write_text("{}")  # git does not track it
    clean = fingerprint.revision(repository)
    assert re.fullmatch(r"[0-9a-f]{12}", clean)
    (repository / "model.py").write_text("x = 2\n")
    assert fingerprint.revision(repository / "suite") == f"{clean}+dirty"
    # The whole repository counts, whatever of it is the root directory, but for the baselines.
    (repository / "suite" / "baselines").mkdir()
    assert fingerprint.revision(repository / "suite", repository / "suite" / "baselines") == (
        f"{clean}+dirty"
    )
    assert fingerprint.revision(repository, repository / "model.py") == clean
    assert fingerprint.revision(repository, repository.parent / "elsewhere") == f"{clean}+dirty"


@pytest.mark.parametrize(
    ("origin", "name"),
    [
        ("https://user:ghp_secret@github.com/acme/train.git", "train"),
        ("git@github.com:fork/train.git/", "train"),
        ("host:train", "train"),
        ("/srv/git/train/.git", "train"),
        ("file:///srv/git/train.git", "train"),
    ],
)
def test_a_project_is_the_repository_and_the_folder_in_it(
    origin: str, name: str, repository: Path
) -> None:
    git(repository, "remote", "add", "origin", origin)
    assert fingerprint.project(repository) == name
    inner = repository / "models" / "unet"
    inner.mkdir(parents=True)
    assert fingerprint.project(inner) == f"{name}/models/unet"


def test_a_project_stays_in_clones_shallow_ones_and_worktrees(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Without an origin, too; without git, as in an archive, it is unknown."""
    name, places = repository.name, tmp_path_factory.mktemp("places")
    git(repository, "worktree", "add", "-q", "--detach", f"{places}/tree")
    git(places, "clone", "-q", f"{repository}", "whole")
    git(places, "clone", "-q", "--depth=1", f"file://{repository}", "shallow")
    for place in (repository, places / "tree", places / "whole", places / "shallow"):
        assert fingerprint.project(place) == name
    assert fingerprint.project(places) == ""


def test_no_revision_without_git_or_from_one_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    assert fingerprint.revision(tmp_path) == ""
    git = tmp_path / "git"
    git.write_text("#!/bin/sh\nexec sleep 30\n")
    git.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{path}")
    monkeypatch.setattr(fingerprint, "_GIT_TIMEOUT_SECONDS", 0.2)
    assert fingerprint.revision(tmp_path) == ""


# The project's packages


@dataclass
class Imported:
    """A checkout, and an environment beside it that modules are imported from."""

    checkout: Path
    environment: Path
    monkeypatch: pytest.MonkeyPatch

    def tracks(self, *files: str) -> None:
        """Puts these files into the checkout, with what they hold behind a colon."""
        for file in files:
            name, _, text = file.partition(":")
            (self.checkout / name).parent.mkdir(parents=True, exist_ok=True)
            (self.checkout / name).write_text(text)
        subprocess.run(["git", "-C", str(self.checkout), "add", "-A"], check=True)

    def imports(
        self, file: str, *, of: str = "", within: Path | None = None, text: str = "# older\n"
    ) -> Path:
        """Imports a module from this file of the environment, which `of` has installed."""
        place = (within or self.environment) / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        name = place.parent.name if place.stem == "__init__" else place.stem
        if of:
            (place.parents[1] / f"{name}-1.dist-info").mkdir(exist_ok=True)
            about = place.parents[1] / f"{name}-1.dist-info" / "METADATA"
            about.write_text(f"Metadata-Version: 2.1\nName: {of}\nVersion: 1\n")
            self.monkeypatch.syspath_prepend(str(place.parents[1]))
        spec = importlib.util.spec_from_file_location(name, place)
        assert spec is not None
        self.monkeypatch.setitem(sys.modules, name, importlib.util.module_from_spec(spec))
        return place


@pytest.fixture
def imported(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Imported]:
    environment = repository.parent / f"{repository.name}-env" / "site-packages"
    monkeypatch.setenv("HOME", str(environment.parent.parent))
    yield Imported(repository, environment, monkeypatch)
    fingerprint._of_package.cache_clear()


@pytest.mark.parametrize(
    ("tracked", "file", "place"),
    [
        ("src/gpnet/__init__.py", "gpnet/__init__.py", "src/gpnet"),
        ("gpnet/__init__.py", "gpnet/__init__.py", "gpnet"),
        ("gpnet.py", "gpnet.py", "gpnet.py"),
        ("src/gpnet.py", "gpnet.py", "src/gpnet.py"),
    ],
)
@pytest.mark.parametrize(
    "build",
    [
        "",
        'pyproject.toml:[project]\nname = "Gp_Net"\n',
        "setup.cfg:[metadata]\nname = gp-net\n",
        'setup.py:setup(name="gp.net")\n',
        "setup.py:setup(\n    name=PACKAGE,\n)\n",
    ],
)
def test_a_package_of_the_project_that_is_imported_from_elsewhere_is_named(
    imported: Imported, tracked: str, file: str, place: str, build: str
) -> None:
    imported.tracks(tracked, *filter(None, [build]), "tests/perf/test_net.py")
    used = imported.imports(file, of="gp-net" if build and "/" in file else "")
    used = used.parent if used.stem == "__init__" else used
    said = f"~/{used.relative_to(imported.environment.parent.parent)} instead of {place}"
    assert fingerprint.elsewhere(imported.checkout) == said
    assert fingerprint.elsewhere(imported.checkout / "tests" / "perf") == said


def test_a_project_in_a_folder_of_the_checkout_has_its_own_build_files(imported: Imported) -> None:
    imported.tracks("python/src/gpnet/__init__.py", 'python/setup.py:setup(name="gpnet")\n')
    imported.imports("gpnet/__init__.py", of="gpnet")
    said = fingerprint.elsewhere(imported.checkout / "python")
    assert said.endswith("/site-packages/gpnet instead of python/src/gpnet")
    assert fingerprint.elsewhere(imported.checkout) == ""


def test_an_environment_inside_of_the_checkout_is_elsewhere(imported: Imported) -> None:
    imported.tracks("src/gpnet/__init__.py")
    inside = imported.checkout / ".venv" / "site-packages"
    used = imported.imports("gpnet/__init__.py", within=inside)
    said = fingerprint.elsewhere(imported.checkout)
    assert said.endswith(".venv/site-packages/gpnet instead of src/gpnet"), used


@pytest.mark.parametrize(
    ("tracked", "file", "of"),
    [
        ("src/gpnet/model.py", "gpnet/__init__.py", ""),  # a namespace package
        ("third_party/gpnet/__init__.py", "gpnet/__init__.py", ""),
        ("other/__init__.py", "gpnet/__init__.py", ""),
        ("queue.py", "queue.py", ""),  # a script with the name of Python's own
        ("pytest_gpuperf/__init__.py", "pytest_gpuperf/__init__.py", ""),
        ("conftest.py", "conftest.py", ""),
        ("datasets/__init__.py", "datasets/__init__.py", "datasets"),  # another distribution
        ("net_data/__init__.py", "net_data/__init__.py", "net-data"),
        ("__main__.py", "__main__.py", ""),
    ],
)
def test_what_only_has_a_name_of_the_projects_is_no_package_of_the_project(
    imported: Imported, tracked: str, file: str, of: str
) -> None:
    imported.tracks(tracked, 'pyproject.toml:[project]\nname = "net"\n')
    imported.imports(file, of=of)
    assert fingerprint.elsewhere(imported.checkout) == ""


def test_what_is_in_the_checkout_is_the_projects_also_behind_a_link(imported: Imported) -> None:
    imported.tracks("src/gpnet/__init__.py", "tests/__init__.py")
    imported.environment.mkdir(parents=True)
    (imported.environment / "gpnet").symlink_to(imported.checkout / "src" / "gpnet")
    imported.imports("gpnet/__init__.py")
    imported.imports("tests/__init__.py", within=imported.checkout)
    assert fingerprint.elsewhere(imported.checkout) == ""


@pytest.mark.parametrize("changed", [True, False])
def test_a_copy_of_the_present_code_is_no_other(imported: Imported, changed: bool) -> None:
    """As `pip install .` makes it each night."""
    imported.tracks(
        "src/gpnet/__init__.py:net = 1\n", "src/gpnet/new.py:", "src/gpnet/layer.py:n = 2\n"
    )
    used = imported.imports("gpnet/__init__.py", text="net = 1\n")
    used.with_name("layer.py").write_text("n = 1\n" if changed else "n = 2\n")
    assert bool(fingerprint.elsewhere(imported.checkout)) == changed


def test_a_module_that_has_become_a_package_is_another(imported: Imported) -> None:
    imported.tracks("src/gpnet/__init__.py:")
    imported.imports("gpnet.py")
    assert fingerprint.elsewhere(imported.checkout).endswith("gpnet.py instead of src/gpnet")


def test_untracked_files_and_folders_without_git_are_no_checkout(imported: Imported) -> None:
    (imported.checkout / "gpnet.py").write_text("")
    imported.imports("gpnet.py")
    assert fingerprint.elsewhere(imported.checkout) == ""
    assert fingerprint.elsewhere(imported.environment) == ""
