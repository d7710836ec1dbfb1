"""Worktrees of a repository: made beside the checkout, gone with whoever made them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_gpuperf
from pytest_gpuperf.commands.worktrees import (
    PREFIX,
    Checkout,
    pinned,
    repository,
    sweep,
    worktrees,
)
from pytest_gpuperf.errors import UsageFailure
from tests import ROOT
from tests.commands.revisions import checkout, git, left

__all__ = ["checkout"]

KILLED = """
import os, signal, sys
from pathlib import Path
from pytest_gpuperf.commands.worktrees import repository, worktrees

with worktrees(of := repository(Path.cwd())) as place:
    print(of.worktree(place / "a", "HEAD").top, flush=True)
    if sys.argv[1:] == ["wait"]:
        sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def here(checkout: Path) -> Checkout:
    """A repository of one commit."""
    (checkout / "inside").mkdir()
    (checkout / "inside" / "step.py").write_text("LAYERS = 1\n", encoding="utf-8")
    git(checkout, "add", "-A")
    git(checkout, "commit", "-q", "-m", "One layer")
    return repository(checkout / "inside")


def started(of: Checkout, *words: str) -> subprocess.Popen[str]:
    """Somebody else who makes a worktree there, and is killed."""
    command = [sys.executable, "-c", KILLED, *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=of.top, env=environment, stdin=pipe, stdout=pipe, text=True
    )


def test_a_worktree_is_of_its_commit_and_goes_with_the_block(here: Checkout) -> None:
    (here.folder / "step.py").write_text("LAYERS = 2\n", encoding="utf-8")
    index = (here.top / ".git" / "index").read_bytes()
    with worktrees(here) as place:
        tree = here.worktree(place / "a", here.commit("main"))
        assert (tree.folder / "step.py").read_text("utf-8") == "LAYERS = 1\n"
        assert not tree.top.is_relative_to(here.top)
        (tree.top / "made").touch()
        assert git(tree.top, "status", "--porcelain", "--branch").startswith("## HEAD (no branch)")
    assert not left(here.top)
    assert (here.top / ".git" / "index").read_bytes() == index
    assert git(here.top, "status", "--porcelain") == " M inside/step.py\n"


def test_what_was_killed_is_removed_by_the_next_and_who_lives_is_left_alone(
    here: Checkout,
) -> None:
    with started(here, "wait") as living:
        assert living.stdout is not None
        its = living.stdout.readline().strip()
        with started(here) as killed:
            assert killed.wait() < 0
        assert len(left(here.top)) == 4
        sweep(here)
        assert len(left(here.top)) == 2
        assert Path(its, "inside", "step.py").exists()
        living.communicate("")
    with worktrees(here) as place:
        here.worktree(place / "a", "HEAD")
        assert len(left(here.top)) == 2
    assert not left(here.top)


def test_one_whose_folder_is_gone_is_removed_and_other_people_s_stay(here: Checkout) -> None:
    own = here.top.parent / "theirs"
    git(here.top, "worktree", "add", "-q", "--detach", str(own))
    git(here.top, "worktree", "add", "-q", "--detach", str(here.top.parent / f"{PREFIX}x" / "a"))
    for path in (own / ".git", own / "inside" / "step.py"):
        path.unlink()
    (own / "inside").rmdir()
    own.rmdir()
    subprocess.run(["rm", "-r", str(here.top.parent / f"{PREFIX}x")], check=True)
    sweep(here)
    (theirs,) = left(here.top)
    assert f"worktree {own}\n" in theirs


def test_hooks_are_not_run_and_those_of_a_hook_do_not_lead_astray(
    here: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = here.top / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {here.top}/ran\n", encoding="utf-8")
    hook.chmod(0o755)
    for name in ("GIT_DIR", "GIT_INDEX_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    of = repository(here.folder)
    with worktrees(of) as place:
        of.worktree(place / "a", "HEAD")
    assert not (here.top / "ran").exists()


@pytest.mark.parametrize("revision", ["mian", "--all", "", "HEAD:inside", "main^{tree}"])
def test_what_is_no_commit_is_refused(here: Checkout, revision: str) -> None:
    with pytest.raises(UsageFailure, match="is not a revision of"):
        here.commit(revision)


def test_paths_into_the_checkout_lead_into_the_worktree(here: Checkout) -> None:
    tree, top = here.moved(Path("/elsewhere")), here.top
    given = [f"{top}/tests", f"--rootdir={top}", f"{top}::x", f"{top}beside", "-k", "a=b", "/other"]
    assert tree.arguments(given) == [
        *("/elsewhere/tests", "--rootdir=/elsewhere", "/elsewhere::x"),
        *(f"{top}beside", "-k", "a=b", "/other"),
    ]


def test_what_is_imported_from_the_checkout_is_imported_from_the_worktree(
    here: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an editable installation has it (a path into the checkout); an environment in it stays."""
    environment = here.top / ".venv" / "lib" / "site-packages"
    tree = here.moved(tmp_path / "tree")
    for folder in ("inside", "lib", "src", ".venv/lib/site-packages"):
        (tree.top / folder).mkdir(parents=True)
    paths = [str(here.top / "lib"), str(environment), str(here.top / "gone"), "/usr/lib/python3"]
    monkeypatch.setattr(sys, "path", paths)
    monkeypatch.setenv("PYTHONPATH", f"{here.top}/lib:/mine")
    said = tree.import_path().split(":")
    top = str(tree.top)
    assert said == [f"{top}/inside", top, f"{top}/src", f"{top}/lib", "/mine"]


def test_the_instrument_is_the_same_on_both_sides(tmp_path: Path) -> None:
    assert pinned(tmp_path) == pinned(tmp_path)
    asked = "import pytest_gpuperf, os; print(os.path.realpath(pytest_gpuperf.__file__))"
    environment = {**os.environ, "PYTHONPATH": f"{pinned(tmp_path)}:/nowhere"}
    said = subprocess.check_output([sys.executable, "-c", asked], env=environment, text=True)
    assert said.strip() == str(Path(pytest_gpuperf.__file__).resolve())
