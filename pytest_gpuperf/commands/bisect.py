"""`gpuperf bisect`: which commit, or which release of a package, made tests slower.

By `gpuperf ab` of the good one and others. Of commits first parents alone: a merge counts as one
change. Of several packages one after the other gets its releases, so that they are a line as
commits are; the first that is asked are those at which a package has all of its own. What does not
measure, or what nobody can decide on, is passed over. What is known is kept, so that an interrupted
one goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Protocol

from pytest_gpuperf.catalogue.metric_catalogue import catalogue, no_metric
from pytest_gpuperf.commands import complain, say
from pytest_gpuperf.commands.ab import (
    UNDECIDED,
    Ended,
    InTurn,
    Revision,
    add_limits,
    check_limits,
    device_held,
    ended_by_sigterm,
)
from pytest_gpuperf.errors import FAILED, INTERRUPTED, NotInstalled, UsageFailure
from pytest_gpuperf.measure.device import fingerprint
from pytest_gpuperf.measure.environments import Environments, Span, environments, releases, span
from pytest_gpuperf.measure.worktrees import Repository, Tree, Worktrees, repository, worktrees
from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.model.result import Outcome, Result
from pytest_gpuperf.report.text.progress import counted
from pytest_gpuperf.storage import files, run_files

USAGE = (
    "gpuperf bisect GOOD BAD [--test PATTERN] [--metric NAME] [--processes K]\n"
    "                      [--time-limit SECONDS] [--install CMD] -- PYTEST-ARGS\n"
    "       gpuperf bisect --package NAME=OLD..NEW [--package ...] [--test PATTERN]\n"
    "                      [--metric NAME] [--processes K] [--time-limit SECONDS] -- PYTEST-ARGS"
)
EXAMPLES = (
    "gpuperf bisect v1.2 main -- tests/perf",
    "gpuperf bisect HEAD~20 HEAD --test 'test_step' --metric cycles -- tests/perf",
    "gpuperf bisect --package torch=2.8.0..2.10.0 --package triton=3.4.0..3.6.0 -- tests/perf",
)

FOLDER = Path(".gpuperf") / "bisect"
"""Where it is kept what is known of the commits, a file for each question."""
_SLOWER, _AS_GOOD, _SKIPPED = "slower", "as good", "skipped"
_LISTED = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf bisect`."""
    parser.add_argument("good", nargs="?", metavar="GOOD", help="a revision that was not slow yet")
    parser.add_argument("bad", nargs="?", metavar="BAD", help="a later one that is slower")
    parser.add_argument(
        "--package",
        dest="packages",
        action="append",
        default=[],
        metavar="NAME=OLD..NEW",
        help="releases of a package in the place of revisions: OLD was not slow yet, NEW is; may "
        "be repeated, to learn which package it was",
    )
    parser.add_argument(
        "--test", metavar="PATTERN", help="only tests that match, by the rules of update-baseline"
    )
    parser.add_argument("--metric", metavar="NAME", help="only what this metric says")
    add_limits(parser, "a comparison of two revisions")
    parser.set_defaults(outputs=[])


def act(options: argparse.Namespace) -> int:
    """Names the first commit or release from which on the tests are slower, and what it did.

    Returns what `gpuperf ab` of it and the one before says, 1 where they are slower; 1 where
    several are left that could not be measured; INTERRUPTED, after which the same command goes on.
    Raises UsageFailure for revisions or releases that are none, or where the bad one is not slower.
    """
    check_limits(options)
    if options.metric and options.metric not in catalogue().metrics:
        raise UsageFailure(f"--metric {options.metric}: {no_metric(options.metric)}")
    if not options.packages and not options.bad:
        raise UsageFailure("name GOOD and BAD, two revisions, or --package NAME=OLD..NEW")
    with ExitStack() as opened:
        opened.enter_context(ended_by_sigterm())
        line = opened.enter_context((_releases if options.packages else _commits)(options))
        environment = opened.enter_context(device_held(line.here, line.folder))
        search = _Search(options, line, environment)
        try:
            return search.run()
        except KeyboardInterrupt:
            complain("interrupted: the same command goes on")
            return INTERRUPTED
        except Ended as ended:
            return ended.code


class Candidates(Protocol):
    """What is halved: the good one first, the bad one last."""

    noun: str
    here: Repository
    folder: Path
    """For what goes with the command."""
    keys: Sequence[str]
    """By which it is kept what is known of each."""
    question: Sequence[object]
    """What else has to be the same for that to hold."""

    def title(self, number: int) -> str:
        """What people call it."""

    def sooner(self, numbers: Sequence[int]) -> Sequence[int]:
        """Those of these that are to be asked before the others."""

    def side(self, letter: str, number: int) -> Revision:
        """To be measured. Raises UsageFailure where it cannot be made."""

    def remove(self, number: int) -> None:
        """Takes away what `side` has made."""

    def words(self, old: int, new: int) -> list[str]:
        """Of the command that asks for two of them alone."""


@contextmanager
def _commits(options: argparse.Namespace) -> Iterator[Candidates]:
    here = repository(Path.cwd())
    commits = _between(here, here.commit(options.good), here.commit(options.bad))
    with worktrees(here) as place:
        yield _Commits(here, place, commits, options.install)


class _Commits:
    """GOOD and what followed it, each in a worktree."""

    noun = "commit"

    def __init__(
        self, here: Repository, place: Worktrees, commits: Sequence[str], install: str | None
    ) -> None:
        self.here, self.folder, self.keys = here, place.folder, commits
        self.question: Sequence[object] = [commits[0], commits[-1]]
        self._place, self._install = place, install
        self._trees: dict[int, Tree] = {}

    def title(self, number: int) -> str:
        return self.here.title(self.keys[number])

    def sooner(self, numbers: Sequence[int]) -> Sequence[int]:
        return numbers

    def side(self, letter: str, number: int) -> Revision:
        commit = self.keys[number]
        if number not in self._trees:
            self._trees[number] = self._place.add(commit[:12], commit)
            if self._install:
                self._trees[number].install(self._install)
        tree = self._trees[number]
        return Revision(letter, commit[:12], self.title(number), tree, sys.executable)

    def remove(self, number: int) -> None:
        tree = self._trees.pop(number, None)
        if tree is not None:
            self._place.remove(tree)

    def words(self, old: int, new: int) -> list[str]:
        return ["gpuperf", "ab", *(self.keys[n][:12] for n in (old, new))]


def _between(here: Repository, good: str, bad: str) -> list[str]:
    """GOOD and what followed it up to BAD, by first parents. Raises UsageFailure."""
    listed = files.git(here.top, "rev-list", "--first-parent", "--reverse", f"{good}..{bad}")
    commits = [good, *listed.decode().split()]
    parents = files.git(here.top, "rev-list", "--first-parent", bad).decode().split()
    if good not in parents or len(commits) < 2:
        raise UsageFailure(
            f"{here.title(good)} is not before {here.title(bad)} by first parents: name a commit "
            f"of that line, for example {here.title(parents[-1])}"
        )
    return commits


@contextmanager
def _releases(options: argparse.Namespace) -> Iterator[Candidates]:
    spans = [span(written) for written in options.packages]
    names = [one.package for one in spans]
    if options.good:
        raise UsageFailure(f"--package beside {options.good}: bisect either commits or releases")
    if options.install:
        raise UsageFailure("--install is for checkouts: with --package none is made")
    if len({*names}) < len(names):
        raise UsageFailure(f"--package {', '.join(names)}: name each package once")
    here = Repository(Path.cwd(), Path.cwd())
    with suppress(UsageFailure):  # none is needed
        here = repository(Path.cwd())
    with environments() as place:
        listed = [releases(one) for one in spans]
        for one, known in zip(spans, listed, strict=True):
            say(f"{one.package}: {len(known)} releases, {known[0]} to {known[-1]}")
        yield _Releases(here, place, spans, listed)


class _Releases:
    """Environments: all packages old, then one after the other release by release up to its new."""

    noun = "release"

    def __init__(
        self,
        here: Repository,
        place: Environments,
        spans: Sequence[Span],
        listed: Sequence[Sequence[str]],
    ) -> None:
        self.here, self.folder, self._place = here, place.folder, place
        state = {one.package: known[0] for one, known in zip(spans, listed, strict=True)}
        self._states = [state]
        self._changed = [""]
        for one, known in zip(spans, listed, strict=True):
            for release in known[1:]:
                state = {**state, one.package: release}
                self._states.append(state)
                self._changed.append(one.package)
        self._last = [*accumulate(len(known) - 1 for known in listed)]
        """Of each package the place of its new release."""
        self.keys: Sequence[str] = [
            " ".join(map("==".join, sorted(one.items()))) for one in self._states
        ]
        distributions = importlib.metadata.distributions()
        installed = sorted(f"{one.name}=={one.version}" for one in distributions)
        revision = fingerprint.revision(Path.cwd())
        self.question: Sequence[object] = [self.keys[0], self.keys[-1], revision, installed]
        self._pythons: dict[int, Path] = {}

    def title(self, number: int) -> str:
        state, changed = self._states[number], self._changed[number]
        named = [f"{package} {release}" for package, release in state.items()]
        if not changed or len(named) == 1:
            return ", ".join(named)
        first = f"{changed} {state[changed]}"
        return f"{first} (with {', '.join(one for one in named if one != first)})"

    def sooner(self, numbers: Sequence[int]) -> Sequence[int]:
        """Which package it is, then which release."""
        return [number for number in self._last if number in numbers] or numbers

    def side(self, letter: str, number: int) -> Revision:
        if number not in self._pythons:
            self._place.remove(str(number))  # of an attempt
            self._pythons[number] = self._place.add(str(number), self._states[number])
        tree, python = Tree(self.here, self.here.top), str(self._pythons[number])
        title = self.title(number)
        return Revision(letter, title, title, tree, python)

    def remove(self, number: int) -> None:
        self._pythons.pop(number, None)
        self._place.remove(str(number))

    def words(self, old: int, new: int) -> list[str]:
        before, after = self._states[old], self._states[new]
        moved = [name for name in after if before[name] != after[name]]
        spans = [f"--package={name}={before[name]}..{after[name]}" for name in moved]
        return ["gpuperf", "bisect", *spans]


class _Search:
    """A search under way."""

    def __init__(
        self, options: argparse.Namespace, line: Candidates, environment: dict[str, str]
    ) -> None:
        self._options, self._line, self._environment = options, line, environment
        question = [*line.question, options.test, options.metric, *options.pytest_args]
        digest = hashlib.sha256(json.dumps(question).encode()).hexdigest()[:16]
        self._file = run_files.project(Path.cwd()) / FOLDER / f"{digest}.json"
        self._known = _known(self._file, line.keys)

    def run(self) -> int:
        """Halves what is left until one is."""
        good, bad = 0, len(self._line.keys) - 1
        if self._known:
            say(f"going on: {counted(len(self._known), self._line.noun)} measured before")
        if self._verdict(bad) != _SLOWER:
            raise UsageFailure(
                f"{self._title(bad)} is not slower than {self._title(good)}: {self._known_of(bad)}"
                ". Name another pair, or the --test and --metric that are"
            )
        while (middle := self._middle(good, bad)) is not None:
            verdict = self._verdict(middle)
            good = middle if verdict == _AS_GOOD else good
            bad = middle if verdict == _SLOWER else bad
        if bad - good > 1:
            return self._say_several(good, bad)
        say("", f"the first that is slower: {self._title(bad)}", "")
        trial = self._in_turn(good, bad)
        trial.measure()
        return trial.conclude()

    def _middle(self, good: int, bad: int) -> int | None:
        """What is next to the middle and may be measured; None where nothing is left."""
        left = [n for n in range(good + 1, bad) if self._known_of(n) != _SKIPPED]
        return min(self._line.sooner(left), key=lambda n: abs(2 * n - good - bad), default=None)

    def _verdict(self, number: int) -> str:
        """What is said of one against the good one; measured where that is not known."""
        key = self._line.keys[number]
        if key not in self._known:
            left = len(self._line.keys) - 1
            say(f"{self._title(number)}, {number} of {left} after the good one")
            self._known[key] = self._measured(number)
            files.ignored_by_git(self._file.parent.parent)
            files.write_atomically(self._file, json.dumps(self._known, indent=1) + "\n")
            say(f"  {self._known[key]}")
        return self._known[key]

    def _measured(self, number: int) -> str:
        self._line.side("a", 0)  # without it, nothing can be said
        try:
            trial = self._in_turn(0, number)
            trial.measure()
        except Ended as ended:
            if ended.side.letter == "a":
                raise
            return _SKIPPED
        except NotInstalled as error:
            complain(error)
            return _SKIPPED
        finally:
            self._line.remove(number)
        return self._said(trial.results.values())

    def _said(self, results: Iterable[Result]) -> str:
        outcomes = {
            verdict.outcome
            for result in results
            for verdict in result.verdicts
            if verdict.phase == STEP and verdict.metric == (self._options.metric or verdict.metric)
        }
        if Outcome.REGRESSED in outcomes:
            return _SLOWER
        return _SKIPPED if not outcomes or outcomes & {*UNDECIDED} else _AS_GOOD

    def _in_turn(self, old: int, new: int) -> InTurn:
        sides = self._line.side("a", old), self._line.side("b", new)
        words = self._line.words(old, new)
        command = run_files.command_line([*words, "--", *self._options.pytest_args])
        pattern = self._options.test

        def wanted(test: str) -> bool:
            return pattern is None or run_files.matches(test, pattern)

        return InTurn(self._options, sides, self._environment, command, wanted)

    def _title(self, number: int) -> str:
        return self._line.title(number)

    def _known_of(self, number: int) -> str:
        return self._known.get(self._line.keys[number], "")

    def _say_several(self, good: int, bad: int) -> int:
        """One of these it is: those between could not be measured, or decided."""
        several = [self._title(number) for number in range(good + 1, bad + 1)]
        say("", "the first that is slower is one of these, of which the others were skipped:")
        say(*(f"  {title}" for title in several[:_LISTED]))
        if len(several) > _LISTED:
            say(f"  and {len(several) - _LISTED} more")
        return FAILED


def _known(file: Path, keys: Sequence[str]) -> dict[str, str]:
    """What an interrupted search has kept of these commits or releases. Raises BadFile."""
    try:
        kept = files.read_json(file, "Remove it: the search begins anew")
    except FileNotFoundError:
        return {}
    words = (_SLOWER, _AS_GOOD, _SKIPPED)
    listed = kept.items() if isinstance(kept, dict) else ()
    return {key: said for key, said in listed if key in keys and said in words}
