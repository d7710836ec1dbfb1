"""Repositories whose revisions are measured in turn, and what fresh processes measure of them."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest

from pytest_gpuperf.commands.worktrees import PREFIX
from pytest_gpuperf.measure import fresh_process
from pytest_gpuperf.measure.fresh_process import Finished, Start

ONE, TWO = "tests/perf/test_steps.py::test_one", "tests/perf/test_steps.py::test_two"
CYCLES = 4e8
_SETTINGS = ("user.name=a", "user.email=a@b", "commit.gpgsign=false", "gc.auto=0")
_GIT = ("git", *(word for setting in _SETTINGS for word in ("-c", setting)))


def git(folder: Path, *words: str) -> str:
    """What git prints, as somebody who may commit."""
    done = subprocess.run([*_GIT, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository, which one stands in; what is temporary is in a folder beside it."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    made = tmp_path / "checkout"
    made.mkdir()
    monkeypatch.chdir(made)
    git(made, "init", "-q", "-b", "main")
    return made


def left(checkout: Path) -> list[str]:
    """What is left of worktrees, for git and in the temporary folder."""
    listed = git(checkout, "worktree", "list", "--porcelain").split("\n\n")
    return [*listed[1:-1], *(p.name for p in (checkout.parent / "temporary").glob(f"{PREFIX}*"))]


@dataclass(frozen=True)
class Started:
    """A fresh process: what was asked of it."""

    arguments: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    python: str
    time_limit: float

    @property
    def side(self) -> str:
        """Of the two that `gpuperf ab` compares: a is in a worktree of this name."""
        return "a" if "a" in self.folder.parts else "b"

    @property
    def deselected(self) -> set[str]:
        """The tests that are left out."""
        return {word.partition("=")[2] for word in self.arguments if "--deselect=" in word}


@dataclass
class Processes(ABC):
    """Fresh processes, as `run_in_turn` starts them; what they bring is a script's."""

    ENDLESS: ClassVar[int] = 999
    ends: int = ENDLESS
    """After so many of them comes Ctrl-C."""
    started: list[Started] = field(default_factory=list)
    together: list[int] = field(default_factory=list)
    """How many started at once."""
    ahead: list[list[str]] = field(default_factory=list)
    """What those imported before their turn."""

    @abstractmethod
    def finished(self, one: Started, before: Sequence[Started]) -> Finished:
        """What comes of a process, after those before it."""

    def __call__(
        self,
        starts: Sequence[Start],
        *,
        time_limit: Callable[[], float],
        begins: Callable[[int], None],
        ahead: Sequence[str],
    ) -> Iterator[Finished]:
        self.together.append(len(starts))
        self.ahead.append([*ahead])
        for number, start in enumerate(starts, 1):
            begins(number)
            yield self.one(start, time_limit())

    def one(self, start: Start, time_limit: float) -> Finished:
        """The process whose turn it is."""
        assert str(start.folder) in start.environment["PYTHONPATH"]
        assert time_limit >= 1
        before = [*self.started]
        arguments = [*start.arguments]
        self.started.append(
            Started(arguments, start.folder, start.environment, start.python, time_limit)
        )
        if len(self.started) > self.ends:
            raise KeyboardInterrupt
        return self.finished(self.started[-1], before)

    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Puts them in the place of fresh processes."""
        monkeypatch.setattr(fresh_process, "run_in_turn", self)
