"""`gpuperf bisect`: which commit, or which release of a package, made tests slower.

`git bisect` asks about a revision, and `gpuperf ab` of the good and this revision answers. To git,
releases are commits, too, of a repository made for them.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from pytest_gpuperf.commands import ab, complain, interleaved, say
from pytest_gpuperf.commands.interleaved import Ended, Interleaved, Revision
from pytest_gpuperf.commands.worktrees import Checkout, repository, worktrees
from pytest_gpuperf.errors import FAILED, NotInstalled, UsageFailure
from pytest_gpuperf.measure import fresh_process
from pytest_gpuperf.model.result import Outcome
from pytest_gpuperf.storage import files

USAGE = (
    "gpuperf bisect {GOOD BAD | --package NAME=OLD..NEW ...} [--processes K]\n"
    "                      [--time-limit SECONDS] [--install CMD] -- PYTEST-ARGS"
)
EXAMPLES = (
    "gpuperf bisect v1.2 main -- tests/perf",
    "gpuperf bisect --package torch=2.8.0..2.10.0 --package triton=3.4.0..3.6.0 -- tests/perf",
)
PREFIX = "gpuperf-environments-"
"""The beginning of the names of folders with environments."""
_SAID = {"good": "not slower", "bad": "slower", "skip": "skipped"}
"""Git's words for an answer, each with ours."""
_ASKED = re.compile(r"^\[?([0-9a-f]{40,64})\b", re.MULTILINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf bisect`."""
    parser.add_argument("good", nargs="?", metavar="GOOD", help="a revision known to be fast")
    parser.add_argument("bad", nargs="?", metavar="BAD", help="a later, slower revision")
    parser.add_argument(
        "--package",
        dest="packages",
        action="append",
        default=[],
        metavar="NAME=OLD..NEW",
        help="search releases of this package, not revisions; repeat it for several packages",
    )
    interleaved.add_limits(parser, "one comparison of two revisions")
    parser.set_defaults(outputs=[])


def act(options: argparse.Namespace) -> int:
    """Names the first commit or release from which on the tests are slower, and its effect.

    Returns the exit code of `gpuperf ab` of that commit and its predecessor, 1 for slower; 1 where
    several candidates could not be measured. Raises UsageFailure for unknown revisions or releases,
    or where the bad one is not slower.
    """
    interleaved.check_limits(options)
    with ExitStack() as opened:
        opened.enter_context(interleaved.ended_by_sigterm())
        return (_Releases if options.packages else _Commits)(options, opened).searched()


class _Commits:
    """A search among the commits of the repository, each in a worktree."""

    def __init__(self, options: argparse.Namespace, opened: ExitStack) -> None:
        self._options, self._prepared = options, cache(self._prepare)
        self._begin(opened)
        self._environment = opened.enter_context(interleaved.device_held(self._here, self._place))

    def _begin(self, opened: ExitStack) -> None:
        """Finds the good and bad commits, and makes a place for what is measured."""
        good, bad = self._options.good, self._options.bad
        if not bad:
            raise UsageFailure("name two revisions, GOOD and BAD, or pass --package NAME=OLD..NEW")
        self._here = repository(Path.cwd())
        self.good, self.bad = self._here.commit(good), self._here.commit(bad)
        self._place = opened.enter_context(worktrees(self._here))
        self._asking = self._here.worktree(self._place / "asked", self.good).top

    def _title(self, commit: str) -> str:
        return self._here.title(commit)

    def _prepare(self, commit: str) -> Revision:
        """Prepares a commit for measuring. Raises NotInstalled and UsageFailure."""
        tree = self._here.worktree(self._place / commit[:12], commit)
        if self._options.install:
            tree.install(self._options.install)
        return Revision("", commit[:12], self._title(commit), tree, sys.executable)

    def searched(self) -> int:
        """Answers git until git names a commit, then prints the effect of that commit."""
        # It ends with 2 where all other commits were skipped.
        git = partial(files.git, self._asking, "bisect", ends=(0, 2))
        said = git("start", "--no-checkout", "--first-parent", self.bad, self.good)
        if (answer := self._answer(self.bad)) != "bad":
            raise UsageFailure(
                f"BAD, {self._title(self.bad)}, is not measurably slower than GOOD, "
                f"{self._title(self.good)} ({_SAID[answer]}). Name another pair, or other tests"
            )
        while said.startswith(b"Bisecting"):
            (asked,) = _ASKED.findall(said.decode(errors="replace"))
            said = git(self._answer(asked), asked)
        first, *others = _ASKED.findall(said.decode(errors="replace"))
        if others:
            say("", "one of these is the first slower one (the others could not be compared):")
            say(*(f"  {self._title(commit)}" for commit in (first, *others)))
            return FAILED
        say("", f"first slower one: {self._title(first)}", "")
        before = files.git(self._asking, "rev-parse", f"{first}^").decode().strip()
        trial = self._compared(before, first)
        trial.count_kernels()
        return ab.conclude(trial, self._options)

    def _answer(self, commit: str) -> str:
        """Git's word for a commit, one of _SAID."""
        say(self._title(commit))
        answer = "skip"
        try:
            trial = self._compared(self.good, commit)
            outcomes = trial.pairs.outcomes
            if Outcome.REGRESSED in outcomes:
                answer = "bad"
            elif outcomes and not outcomes & {*interleaved.UNDECIDED}:
                answer = "good"
            elif trial.out_of_time:
                complain("time ran out. A longer --time-limit allows more pairs")
        except (Ended, NotInstalled) as error:
            if isinstance(error, Ended) and error.side.letter == "a":
                raise  # without it, nothing can be said
            complain(error)
        say(f"  {_SAID[answer]}")
        return answer

    def _compared(self, old: str, new: str) -> Interleaved:
        """The comparison by `gpuperf ab`. Raises Ended, NotInstalled and UsageFailure."""
        options, made = self._options, self._prepared
        sides = replace(made(old), letter="a", runs=[]), replace(made(new), letter="b", runs=[])
        words = options.words if options.packages else ["ab", *(side.name for side in sides)]
        trial = Interleaved(options, sides, self._environment, words)
        trial.measure()
        return trial


class _Releases(_Commits):
    """A search among states of packages, each in a copy of this environment by hard links.

    No program writes into these files: uv removes files and makes others, and so does Python.
    """

    def _begin(self, opened: ExitStack) -> None:
        if self._options.good or self._options.install:
            raise UsageFailure("--package replaces GOOD, BAD and --install. Leave those out")
        if sys.prefix == sys.base_prefix:
            raise UsageFailure(
                f"--package copies a virtual environment, but {sys.prefix} is not one. Run gpuperf "
                "from an environment that venv or uv made"
            )
        self._here = Checkout(Path.cwd(), Path.cwd(), Path.cwd())  # whether it is one or not
        place, beside = Path(tempfile.gettempdir()), Path(sys.prefix).parent
        if os.access(beside, os.W_OK) and place.stat().st_dev != beside.stat().st_dev:
            place = beside  # one can link only within a file system
        files.sweep(place, PREFIX)
        self._place = self._asking = opened.enter_context(files.staging(place, PREFIX))
        self.bad, self.good = _as_commits(self._asking, self._options.packages)

    def _title(self, commit: str) -> str:
        return self._here.moved(self._asking).title(commit).partition(" ")[2]

    def _prepare(self, commit: str) -> Revision:
        copy = self._place / f"of-{commit}"
        shutil.copytree(sys.prefix, copy, symlinks=True, copy_function=_linked)
        wanted, python = self._title(commit), str(copy / "bin" / "python")
        code, said = _uv("pip", "install", "--quiet", f"--python={python}", *wanted.split())
        if code:
            raise NotInstalled(f"uv cannot install {wanted}: {said}")
        return Revision("", wanted, wanted, self._here, python)


def _linked(source: str, copy: str) -> None:
    """Makes a hard link; a copy where the file system or the file's permissions allow none."""
    try:
        os.link(source, copy, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, copy, follow_symlinks=False)


def _as_commits(folder: Path, packages: list[str]) -> tuple[str, str]:
    """The last and the first of commits that are made here, one for each state of the packages.

    One after the other gets its releases.
    """
    listed = dict(_listed(folder, written) for written in packages)
    state, stream = {package: known[0] for package, known in listed.items()}, ""
    for package, known in listed.items():
        say(f"{package}: {len(known)} releases, {known[0]} to {known[-1]}")
        for release in known[1:] if stream else known:
            state = {package: release} | state | {package: release}
            message = " ".join(map("==".join, state.items()))
            stream += f"commit HEAD\ncommitter a <a> 0 +0000\ndata {len(message)}\n{message}"
    files.git(folder, "init", "--quiet")
    files.git(folder, "fast-import", "--quiet", given=stream)
    last, *_, first = files.git(folder, "rev-list", "HEAD").decode().split()
    return last, first


def _listed(folder: Path, written: str) -> tuple[str, list[str]]:
    """The package of NAME=OLD..NEW; and its releases: OLD, uv's choices in between, and NEW.

    Yanked releases, pre-releases and releases that need another Python are left out.
    Raises UsageFailure.
    """
    match = re.fullmatch(r"([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)=(.+?)\.\.(.+)", written)
    if match is None:
        raise UsageFailure(
            f"--package {written} is not valid. Write NAME=OLD..NEW, such as torch=2.8.0..2.10.0"
        )
    package, old, known = re.sub(r"[-_.]+", "-", match[1]).lower(), match[2], [match[3]]
    words = ("--quiet", "--no-deps", "--no-header", "--no-annotate", "--prerelease=disallow")
    asked = folder / "asked.in"
    while True:
        asked.write_text(f"{package}>={old},!={old},<{known[0].partition('+')[0]}\n", "utf-8")
        _, said = _uv("pip", "compile", *words, f"--python={sys.executable}", str(asked))
        if "No solution found" in said:
            return package, [old, *known]
        newest = re.search(rf"^{re.escape(package)}==(\S+)", said, re.MULTILINE)
        if newest is None:
            missing = ". Type pip install uv" if "No module named uv" in said else ""
            raise UsageFailure(f"uv cannot list the releases of {package}: {said}{missing}")
        known.insert(0, newest[1])


def _uv(*words: str) -> tuple[int, str]:
    """The exit code and output of uv, run in the user's folder, where the user's settings hold."""
    code, said = fresh_process.run([sys.executable, "-m", "uv", *words], folder=Path.cwd())
    return code, said.strip()
