"""Revisions of a repository beside each other: git worktrees in a temporary folder.

The worktrees are removed when their user ends. The next user removes those of a killed process:
each process locks its folder (flock) while it lives. The user's checkout and index stay as is.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest_gpuperf
from pytest_gpuperf.errors import NotInstalled, UsageFailure, meant, printable
from pytest_gpuperf.measure import fresh_process
from pytest_gpuperf.storage import files

PREFIX = "gpuperf-worktrees-"
"""The beginning of the folders' names, by which folders of killed processes are known."""
_OF_A_HOOK = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"),
    *("GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE"),
)
"""The variables that git sets for hooks; a git below would take these for its own repository."""
_PACKAGES = ("site-packages", "dist-packages")
_QUOTED_LINES = 20


@dataclass(frozen=True)
class Checkout:
    """A checkout of a repository, in which pytest is run as it would be in the user's own."""

    top: Path
    """The root of this checkout."""
    folder: Path
    """The working folder in this checkout, at the same place as in the user's own."""
    own: Path
    """The root of the user's own checkout."""

    def commit(self, revision: str) -> str:
        """The full hash of a revision's commit. Raises UsageFailure for an unknown revision."""
        try:
            asked = ("--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
            return files.git(self.top, "rev-parse", *asked).decode().strip()
        except UsageFailure:
            names = files.git(self.top, "for-each-ref", "--format=%(refname:short)").decode()
            raise UsageFailure(
                f'"{printable(revision)}" is not a revision of {self.top}.'
                f"{meant(revision, names.split())} Name a branch, a tag or a commit"
            ) from None

    def title(self, commit: str) -> str:
        """The short hash and the first line of a commit's message."""
        said = files.git(self.top, "log", "-1", "--format=%h %s", commit)
        return printable(said.decode(errors="replace").strip())

    def worktree(self, path: Path, commit: str) -> Checkout:
        """A new worktree of this commit, for no branch. No hook runs. Raises UsageFailure."""
        no_hooks = ("-c", f"core.hooksPath={os.devnull}")
        files.git(self.top, *no_hooks, "worktree", "add", "--quiet", "--detach", str(path), commit)
        return self.moved(path)

    def moved(self, path: Path) -> Checkout:
        """The same checkout with its root at another path."""
        return Checkout(path, path / self.folder.relative_to(self.top), self.own)

    def arguments(self, words: Sequence[str]) -> list[str]:
        """The words of a command, with paths into the user's checkout changed to this tree."""
        own = str(self.own)

        def here(path: str) -> str:
            inside = path == own or path.startswith((f"{own}{os.sep}", f"{own}::"))
            return f"{self.top}{path[len(own) :]}" if inside else path

        return [
            f"{name}{equals}{here(value)}" if equals and name.startswith("-") else here(word)
            for word in words
            for name, equals, value in [word.partition("=")]
        ]

    def import_path(self) -> str:
        """PYTHONPATH for imports from this tree, also where the user's checkout is installed.

        An editable installation leads to the user's checkout, by a path (.pth) or by a finder; both
        come after PYTHONPATH. What this process finds in the checkout is found here at the same
        place.
        """
        places = [self.folder, self.folder / "src", self.top, self.top / "src"]
        for entry in sys.path:
            path = Path(entry)
            if entry and path.is_relative_to(self.own) and not {*_PACKAGES} & {*path.parts}:
                places.append(self.top / path.relative_to(self.own))
        inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        others = [
            entry for entry in inherited if entry and not Path(entry).is_relative_to(self.own)
        ]
        known = [str(place) for place in places if place.is_dir()]
        return os.pathsep.join(dict.fromkeys([*known, *others]))

    def install(self, command: str) -> None:
        """Runs the command here in a shell. Raises NotInstalled where the command fails."""
        code, said = fresh_process.run(["/bin/sh", "-c", command], folder=self.top)
        if code:
            last = "\n".join(said.splitlines()[-_QUOTED_LINES:])
            raise NotInstalled(
                f"--install `{printable(command)}` exited with {code} in {self.top}:\n{last}"
            )


def repository(folder: Path) -> Checkout:
    """The user's checkout, with this folder in it. Raises UsageFailure where there is none."""
    for name in _OF_A_HOOK:
        os.environ.pop(name, None)
    top = files.git(folder, "rev-parse", "--show-toplevel").decode().rstrip("\n")
    if not top:
        raise UsageFailure(f"{folder} is a bare git repository. Run gpuperf in a working tree")
    root = Path(top).resolve()
    return Checkout(root, folder.resolve(), root)


@contextmanager
def worktrees(of: Checkout) -> Iterator[Path]:
    """A folder for worktrees, removed with all that is in it after the block.

    First removes those of killed processes.
    """
    sweep(of)
    try:
        with files.staging(Path(tempfile.gettempdir()), PREFIX) as folder:
            yield folder.resolve()
    finally:
        sweep(of)


def sweep(of: Checkout) -> None:
    """Removes the worktrees of killed processes: no process locks their folders any more."""
    for place in {tree.parent.parent for tree in _ours(of.top)}:
        if place.is_dir():
            files.sweep(place, PREFIX)
    for tree in _ours(of.top):
        if not tree.parent.exists():
            # Twice forced: also one that was being made, which git has locked.
            with suppress(UsageFailure):
                files.git(of.top, "worktree", "remove", "--force", "--force", str(tree))


def pinned(folder: Path) -> str:
    """A folder in `folder` from which this very package is imported, whatever else is on the path.

    So all revisions are measured alike: a checkout may have another version of this package.
    """
    place = folder / "instrument"
    place.mkdir(exist_ok=True)
    link = place / pytest_gpuperf.__name__
    if not link.exists():
        link.symlink_to(Path(pytest_gpuperf.__file__).parent, target_is_directory=True)
    return str(place)


def _ours(top: Path) -> list[Path]:
    """The worktrees that git knows of and that are in a folder of ours."""
    said = files.git(top, "worktree", "list", "--porcelain").decode(errors="surrogateescape")
    listed = (line.partition(" ") for line in said.splitlines())
    paths = [Path(path) for what, _, path in listed if what == "worktree"]
    return [path for path in paths if path.parent.name.startswith(PREFIX)]
