"""Versions and the git revision that a measurement records."""

from __future__ import annotations

import os
import re
import subprocess
import sys
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
