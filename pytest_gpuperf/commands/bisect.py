"""`gpuperf bisect`: which commit made tests slower, by `gpuperf ab` of the good one and others.

First parents alone: a merge counts as one change. Commits that do not measure, or that nobody can
decide on, are passed over. What is known is kept, so that an interrupted one goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

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
from pytest_gpuperf.errors import FAILED, INTERRUPTED, UsageFailure
from pytest_gpuperf.measure.worktrees import Repository, Tree, Worktrees, repository, worktrees
from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.model.result import Outcome, Result
from pytest_gpuperf.report.text.next_command import PAIRED
from pytest_gpuperf.report.text.progress import counted
from pytest_gpuperf.storage import files, run_files

NAME = "bisect"
HELP = "which commit made tests slower: two revisions at a time, as gpuperf ab measures them"
USAGE = (
    "gpuperf bisect GOOD BAD [--test PATTERN] [--metric NAME] [--processes K]\n"
    "                      [--time-limit SECONDS] [--install CMD] -- PYTEST-ARGS"
)
EXAMPLES = (
    "gpuperf bisect v1.2 main -- tests/perf",
    "gpuperf bisect HEAD~20 HEAD --test 'test_step' --metric cycles -- tests/perf",
)

FOLDER = Path(".gpuperf") / "bisect"
"""Where it is kept what is known of the commits, a file for each question."""
_SLOWER, _AS_GOOD, _SKIPPED = "slower", "as good", "skipped"
_LISTED = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf bisect`."""
    parser.add_argument("good", metavar="GOOD", help="a revision that was not slow yet")
    parser.add_argument("bad", metavar="BAD", help="a later one that is slower")
    parser.add_argument(
        "--test", metavar="PATTERN", help="only tests that match, by the rules of update-baseline"
    )
    parser.add_argument("--metric", metavar="NAME", help="only what this metric says")
    add_limits(parser, "a comparison of two revisions")
    parser.set_defaults(reports=[])


def act(options: argparse.Namespace) -> int:
    """Names the first commit from which on the tests are slower than in GOOD, and what it did.

    Returns what `gpuperf ab` of that commit and the one before says, 1 where they are slower; 1
    where several are left that could not be measured; INTERRUPTED, after which the same command
    goes on. Raises UsageFailure for revisions that are none, or where BAD is not slower.
    """
    check_limits(options)
    if options.metric and options.metric not in catalogue().metrics:
        raise UsageFailure(f"--metric {options.metric}: {no_metric(options.metric)}")
    here = repository(Path.cwd())
    with ExitStack() as opened:
        opened.enter_context(ended_by_sigterm())
        commits = _commits(here, here.commit(options.good), here.commit(options.bad))
        place = opened.enter_context(worktrees(here))
        environment = opened.enter_context(device_held(here, place.folder))
        search = _Search(options, here, place, environment, commits)
        try:
            return search.run()
        except KeyboardInterrupt:
            complain("interrupted: the same command goes on")
            return INTERRUPTED
        except Ended as ended:
            return ended.code


def _commits(here: Repository, good: str, bad: str) -> list[str]:
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


class _Search:
    """A search under way."""

    def __init__(
        self,
        options: argparse.Namespace,
        here: Repository,
        place: Worktrees,
        environment: dict[str, str],
        commits: Sequence[str],
    ) -> None:
        self._options, self._here, self._place = options, here, place
        self._environment, self._commits = environment, commits
        question = [commits[0], commits[-1], options.test, options.metric, *options.pytest_args]
        digest = hashlib.sha256(json.dumps(question).encode()).hexdigest()[:16]
        self._file = run_files.project(Path.cwd()) / FOLDER / f"{digest}.json"
        self._known = _known(self._file, commits)
        self._trees: dict[str, Tree] = {}

    def run(self) -> int:
        """Halves what is left until one commit is."""
        good, bad = 0, len(self._commits) - 1
        if self._known:
            say(f"going on: {counted(len(self._known), 'commit')} measured before")
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
        return min(left, key=lambda n: abs(2 * n - good - bad), default=None)

    def _verdict(self, number: int) -> str:
        """What is said of a commit against the good one; measured where that is not known."""
        commit = self._commits[number]
        if commit not in self._known:
            left = len(self._commits) - 1
            say(f"{self._title(number)}, {number} of {left} after the good one")
            self._known[commit] = self._measured(number)
            files.ignored_by_git(self._file.parent.parent)
            files.write_atomically(self._file, json.dumps(self._known, indent=1) + "\n")
            say(f"  {self._known[commit]}")
        return self._known[commit]

    def _measured(self, number: int) -> str:
        try:
            trial = self._in_turn(0, number)
            trial.measure()
        except Ended as ended:
            if ended.side.letter == "a":
                raise
            return _SKIPPED
        except UsageFailure as error:  # it cannot be installed
            complain(error)
            return _SKIPPED
        finally:
            self._remove(number)
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
        sides = self._side("a", old), self._side("b", new)
        words = [*PAIRED.split(), *(self._commits[n][:12] for n in (old, new))]
        command = run_files.command_line([*words, "--", *self._options.pytest_args])
        pattern = self._options.test

        def wanted(test: str) -> bool:
            return pattern is None or run_files.matches(test, pattern)

        return InTurn(self._options, sides, self._environment, command, wanted)

    def _side(self, letter: str, number: int) -> Revision:
        commit = self._commits[number]
        if commit not in self._trees:
            self._trees[commit] = self._place.add(commit[:12], commit)
            if self._options.install:
                self._trees[commit].install(self._options.install)
        tree = self._trees[commit]
        return Revision(letter, commit[:12], self._title(number), tree, sys.executable)

    def _remove(self, number: int) -> None:
        """Takes the worktree of a commit away; that of the good one is needed again."""
        tree = self._trees.pop(self._commits[number], None) if number else None
        if tree is not None:
            self._place.remove(tree)

    def _title(self, number: int) -> str:
        return self._here.title(self._commits[number])

    def _known_of(self, number: int) -> str:
        return self._known.get(self._commits[number], "")

    def _say_several(self, good: int, bad: int) -> int:
        """One of these it is: those between could not be measured, or decided."""
        several = [self._title(number) for number in range(good + 1, bad + 1)]
        say("", "the first that is slower is one of these, of which the others were skipped:")
        say(*(f"  {title}" for title in several[:_LISTED]))
        if len(several) > _LISTED:
            say(f"  and {len(several) - _LISTED} more")
        return FAILED


def _known(file: Path, commits: Sequence[str]) -> dict[str, str]:
    """What an interrupted search has kept of these commits. Raises BadFile."""
    try:
        kept = files.read_json(file, "Remove it: the search begins anew")
    except FileNotFoundError:
        return {}
    words = (_SLOWER, _AS_GOOD, _SKIPPED)
    listed = kept.items() if isinstance(kept, dict) else ()
    return {commit: said for commit, said in listed if commit in commits and said in words}
