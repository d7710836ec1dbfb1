"""`gpuperf bisect`: which commit, or which release of a package, made tests slower.

`git bisect` asks, and `gpuperf ab` of the good one and the one that is asked answers. To git,
releases are commits too, of a repository that is made for them. Answers are kept, so that the same
command goes on; what ran out of time has none, and is asked again.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from pytest_gpuperf.catalogue.metric_catalogue import catalogue, no_metric
from pytest_gpuperf.commands import ab, complain, interleaved, say
from pytest_gpuperf.commands.flags import add_tests
from pytest_gpuperf.commands.interleaved import Ended, Interleaved, PairState, Revision
from pytest_gpuperf.commands.worktrees import Repository, Tree, repository, worktrees
from pytest_gpuperf.errors import FAILED, INTERRUPTED, NotInstalled, UsageFailure
from pytest_gpuperf.measure import fresh_process
from pytest_gpuperf.measure.device import fingerprint
from pytest_gpuperf.model.result import Outcome
from pytest_gpuperf.storage import files, run_files

USAGE = (
    "gpuperf bisect {GOOD BAD | --package NAME=OLD..NEW ...} [--test PATTERN ...] [--metric NAME]\n"
    "                      [--processes K] [--time-limit SECONDS] [--install CMD] -- PYTEST-ARGS"
)
EXAMPLES = (
    "gpuperf bisect v1.2 main -- tests/perf",
    "gpuperf bisect HEAD~20 HEAD --test 'test_step' --metric cycles -- tests/perf",
    "gpuperf bisect --package torch=2.8.0..2.10.0 --package triton=3.4.0..3.6.0 -- tests/perf",
)
PREFIX = "gpuperf-environments-"
"""How the names of folders with environments begin."""
_SAID = {"good": "as good", "bad": "slower", "skip": "skipped", "": "skipped: time ran out"}
"""Git's words for an answer, and ours."""
_ASKED = re.compile(r"^\[?([0-9a-f]{40,64})\b", re.MULTILINE)
_ONLY_SKIPPED, _NO_SOLUTION = 2, 1
"""With which git bisect ends where all others were skipped, and uv where nothing fits."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf bisect`."""
    parser.add_argument("good", nargs="?", metavar="GOOD", help="a revision known to be fast")
    parser.add_argument("bad", nargs="?", metavar="BAD", help="a later one that is slower")
    parser.add_argument(
        "--package",
        dest="packages",
        action="append",
        default=[],
        metavar="NAME=OLD..NEW",
        help="releases of a package in place of revisions; may be repeated, to learn which it was",
    )
    add_tests(parser, "only tests that match, by the rules of update-baseline")
    parser.add_argument("--metric", metavar="NAME", help="only what this metric says")
    interleaved.add_limits(parser, "a comparison of two revisions")
    parser.set_defaults(outputs=[])


def act(options: argparse.Namespace) -> int:
    """Names the first commit or release from which on the tests are slower, and what it did.

    Returns what `gpuperf ab` of it and the one before says, 1 where they are slower; 1 where
    several are left that could not be measured; INTERRUPTED, after which the same command goes on.
    Raises UsageFailure for revisions or releases that are none, or where the bad one is not slower.
    """
    interleaved.check_limits(options)
    if options.metric and options.metric not in catalogue().metrics:
        raise UsageFailure(f"--metric {options.metric}: {no_metric(options.metric)}")
    with ExitStack() as opened:
        opened.enter_context(interleaved.ended_by_sigterm())
        line = opened.enter_context((_releases if options.packages else _commits)(options))
        environment = opened.enter_context(interleaved.device_held(line.here, line.folder))
        try:
            return _Search(options, line, environment).run()
        except KeyboardInterrupt:
            complain("interrupted: the same command goes on")
            return INTERRUPTED
        except Ended as ended:
            return ended.code


class _CommitRange(NamedTuple):
    """What lies between a good and a bad commit of the checkout in which git bisects."""

    here: Repository
    folder: Path
    """For what goes with the command."""
    asking: Path
    good: str
    bad: str
    title: Callable[[str], str]
    made: Callable[[str], Revision]
    """Makes a commit ready to be measured, once. Raises NotInstalled and UsageFailure."""


@contextmanager
def _commits(options: argparse.Namespace) -> Iterator[_CommitRange]:
    """Those of the repository, each in a worktree."""
    if not options.bad:
        raise UsageFailure("name GOOD and BAD, two revisions, or --package NAME=OLD..NEW")
    here = repository(Path.cwd())
    good, bad = here.commit(options.good), here.commit(options.bad)
    with worktrees(here) as place:

        @cache
        def made(commit: str) -> Revision:
            tree = place.add(commit[:12], commit)
            if options.install:
                tree.install(options.install)
            return Revision("", commit[:12], here.title(commit), tree, sys.executable)

        yield _CommitRange(
            here, place.folder, place.add("asked", good).top, good, bad, here.title, made
        )


class _Search:
    """A search under way."""

    def __init__(
        self, options: argparse.Namespace, line: _CommitRange, environment: dict[str, str]
    ) -> None:
        self._options, self._line, self._environment = options, line, environment
        self._title = line.title
        question = [line.good, line.bad, options.tests, options.metric, *options.pytest_args]
        name = hashlib.sha256(json.dumps(question).encode()).hexdigest()[:16]
        self._file = run_files.project(Path.cwd()) / ".gpuperf" / "bisect" / f"{name}.json"
        self._known: Any = {}
        """Answers of before."""
        with suppress(FileNotFoundError):
            self._known = files.read_json(self._file, "Remove it: the search begins anew")

    def run(self) -> int:
        """Answers git until it names a commit."""
        asking, good, bad = self._line[2:5]
        git = partial(files.git, asking, "bisect", ends=(0, _ONLY_SKIPPED))
        said = git("start", "--no-checkout", "--first-parent", bad, good).decode(errors="replace")
        if (answer := self._answer(bad)) != "bad":
            raise UsageFailure(
                f"{self._title(bad)} is not slower than {self._title(good)}: {_SAID[answer]}. Name "
                "another pair, or the --test and --metric that are"
            )
        while said.startswith("Bisecting"):
            (asked,) = _ASKED.findall(said)
            said = git(self._answer(asked) or "skip", asked).decode(errors="replace")
        first, *others = _ASKED.findall(said)
        if others:
            say("", "the first that is slower is one of these, of which the others were skipped:")
            say(*(f"  {self._title(commit)}" for commit in (first, *others)))
            return FAILED
        say("", f"the first that is slower: {self._title(first)}", "")
        before = files.git(asking, "rev-parse", f"{first}^").decode().strip()
        return ab.conclude(self._compared(before, first), self._options)

    def _answer(self, commit: str) -> str:
        """Git's word for it, measured where that is not known; "" where time ran out."""
        if self._known.get(commit) in _SAID:
            return str(self._known[commit])
        say(self._title(commit))
        answer = self._measured(commit)
        say(f"  {_SAID[answer]}")
        if answer:
            self._known[commit] = answer
            files.ignored_by_git(self._file.parent.parent)
            files.write_atomically(self._file, json.dumps(self._known, indent=1) + "\n")
        else:
            longer = f"--time-limit {2 * self._options.time_limit:g} gives it longer"
            say(f"  the same command asks again; {longer}")
        return answer

    def _measured(self, commit: str) -> str:
        try:
            trial = self._compared(self._line.good, commit)
        except Ended as ended:
            if ended.side.letter == "a":  # without it, nothing can be said
                raise
            return "skip"
        except NotInstalled as error:
            complain(error)
            return "skip"
        outcomes = trial.pairs.outcomes(self._options.metric)
        if Outcome.REGRESSED in outcomes:
            return "bad"
        if outcomes and not outcomes & {*interleaved.UNDECIDED}:
            return "good"
        return "" if trial.out_of_time else "skip"

    def _compared(self, old: str, new: str) -> Interleaved:
        """By `gpuperf ab`. Raises Ended, NotInstalled and UsageFailure."""
        options, made = self._options, self._line.made
        sides = replace(made(old), letter="a", runs=[]), replace(made(new), letter="b", runs=[])
        packages = [f"--package={one}" for one in options.packages]
        words = ["bisect", *packages] if packages else ["ab", *(side.name for side in sides)]
        command = run_files.command_line(["gpuperf", *words, "--", *options.pytest_args])
        pairs = PairState(sides, options.tests)
        trial = Interleaved(options, pairs, self._environment, command)
        trial.measure()
        return trial


@contextmanager
def _releases(options: argparse.Namespace) -> Iterator[_CommitRange]:
    """Those of packages, each in a copy of this environment, whose files are hard links.

    Nothing writes into these: uv removes files and makes others, and so does Python.
    """
    if options.good or options.install:
        raise UsageFailure("--package takes the place of GOOD, BAD and --install: leave them out")
    if sys.prefix == sys.base_prefix:
        made_by = "run this from one that venv or uv has made"
        raise UsageFailure(f"--package copies an environment, and {sys.prefix} is none: {made_by}")
    here = Repository(Path.cwd(), Path.cwd())
    with suppress(UsageFailure):  # none is needed
        here = repository(Path.cwd())
    place = Path(tempfile.gettempdir())
    beside = Path(sys.prefix).parent
    if os.access(beside, os.W_OK) and place.stat().st_dev != beside.stat().st_dev:
        place = beside  # one can link only within a file system
    files.sweep(place, PREFIX)
    with files.staging(place, PREFIX) as folder:
        commits = _as_commits(folder, options.packages)

        def title(commit: str) -> str:
            return files.git(folder, "log", "-1", "--format=%s", commit).decode().strip()

        @cache
        def made(commit: str) -> Revision:
            copy = folder / f"of-{commit}"
            shutil.copytree(sys.prefix, copy, symlinks=True, copy_function=_linked)
            python = str(copy / "bin" / "python")
            wanted = files.git(folder, "log", "-1", "--format=%b", commit).decode().splitlines()[0]
            code, said = _uv("pip", "install", "--quiet", f"--python={python}", *wanted.split())
            if code:
                error = NotInstalled if code == _NO_SOLUTION else UsageFailure
                raise error(f"{wanted} cannot be installed: {said}")
            return Revision("", title(commit), title(commit), Tree(here, here.top), python)

        yield _CommitRange(here, folder, folder, commits[-1], commits[0], title, made)


def _linked(source: str, copy: str) -> None:
    """A hard link; a copy where the file system, or who owns the file, allows none."""
    try:
        os.link(source, copy, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, copy, follow_symlinks=False)


def _as_commits(folder: Path, packages: list[str]) -> list[str]:
    """A repository with a commit for each state of the packages, the newest first.

    One after the other gets its releases. All else that answers depend on is in the messages.
    """
    listed = dict(_listed(folder, written) for written in packages)
    if len(listed) < len(packages):
        raise UsageFailure(f"--package {', '.join(packages)}: name each package once")
    installed = sorted(f"{d.name} {d.version}" for d in importlib.metadata.distributions())
    rest = json.dumps([fingerprint.revision(Path.cwd()), installed])
    states = [{package: known[0] for package, known in listed.items()}]
    for package, known in listed.items():
        say(f"{package}: {len(known)} releases, {known[0]} to {known[-1]}")
        others = {name: release for name, release in states[-1].items() if name != package}
        states += [{package: release, **others} for release in known[1:]]
    stream = ""
    for state in states:
        title = " with ".join(f"{package} {release}" for package, release in state.items())
        message = f"{title}\n\n{' '.join(map('=='.join, state.items()))}\n{rest}\n"
        stream += f"commit HEAD\ncommitter a <a> 0 +0000\ndata {len(message)}\n{message}"
    files.git(folder, "init", "--quiet")
    files.git(folder, "fast-import", "--quiet", given=stream)
    return files.git(folder, "rev-list", "HEAD").decode().split()


def _listed(folder: Path, written: str) -> tuple[str, list[str]]:
    """Of NAME=OLD..NEW the package; and OLD, what uv would install from in between, and NEW.

    Those that were yanked, pre-releases and what does not run on this Python are not among them.
    Raises UsageFailure.
    """
    match = re.fullmatch(r"([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)=(.+?)\.\.(.+)", written)
    if match is None:
        raise UsageFailure(
            f"--package {written}: write NAME=OLD..NEW, for example torch=2.8.0..2.10.0"
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
            raise UsageFailure(f"the releases of {package} cannot be listed: {said}")
        known.insert(0, newest[1])


def _uv(*words: str) -> tuple[int, str]:
    """How uv ends, and what it prints; where the user stands, for its settings there to hold."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    program = shutil.which("uv", path=path)
    if program is None:
        raise UsageFailure("--package installs releases by uv, which is not there: pip install uv")
    code, said = fresh_process.run([program, *words], folder=Path.cwd())
    return code, said.strip()
