"""`gpuperf ab`: the cost of a change, by two revisions that are measured in turn on one device.

No baseline is needed. What the GPU, its day and its clocks do to both cancels out. It ends as soon
as every test is decided.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from pytest_gpuperf.catalogue.units import counted
from pytest_gpuperf.commands import complain, here, say, say_lines, terminal_width, write_reports
from pytest_gpuperf.commands.flags import add_outputs, check_outputs
from pytest_gpuperf.commands.interleaved import (
    Interleaved,
    PairState,
    Revision,
    add_limits,
    check_limits,
    device_held,
    ended_by_sigterm,
    is_undecided,
)
from pytest_gpuperf.commands.worktrees import Checkout, repository, worktrees
from pytest_gpuperf.errors import FAILED, INTERRUPTED, OK, UsageFailure, printable
from pytest_gpuperf.model.measurement import title_of
from pytest_gpuperf.model.result import FAULTS, Outcome, Result
from pytest_gpuperf.report import github, view
from pytest_gpuperf.report.interchange import SUFFIXES, report_text
from pytest_gpuperf.report.text.failure import failure
from pytest_gpuperf.report.text.next_command import CommandContext
from pytest_gpuperf.report.text.summary import summary
from pytest_gpuperf.storage import run_files

USAGE = (
    "gpuperf ab BASE [HEAD] [--processes K] [--time-limit SECONDS] [--install CMD]\n"
    "                  [--python-a PYTHON] [--python-b PYTHON] [--output FILE] -- PYTEST-ARGS"
)
EXAMPLES = (
    "gpuperf ab main -- tests/perf",
    "gpuperf ab v1.2 v1.3 --output ab.md -- tests/perf",
)

WORKING_TREE = "the working tree"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf ab`."""
    parser.add_argument("base", metavar="BASE", help="the revision to compare with, A")
    parser.add_argument(
        "head",
        nargs="?",
        metavar="HEAD",
        help="the revision to compare, B; default: the working tree with uncommitted changes",
    )
    add_limits(parser, "the whole comparison")
    for letter in ("a", "b"):
        parser.add_argument(
            f"--python-{letter}",
            metavar="PYTHON",
            help=f"interpreter for {letter.upper()}, with pytest-gpuperf installed; relative "
            f"paths start at the checkout of {letter.upper()}; default: this interpreter",
        )
    add_outputs(parser, "report to write; the suffix (.html, .md, .json) sets the format")


def act(options: argparse.Namespace) -> int:
    """Measures two revisions in turn, and prints the cost of the second.

    The run of each side is kept under `.gpuperf/ab`; that of B has the verdicts. Returns 0; 1 where
    a test regressed, is undecided (and may be a loss), or failed in B; pytest's exit code where it
    measured nothing; 128 and a signal's number; or INTERRUPTED. Raises UsageFailure for revisions
    that do not exist, and where nothing can be compared.
    """
    check_limits(options)
    check_outputs(options.outputs, SUFFIXES)
    repo = repository(Path.cwd())
    with ExitStack() as opened:
        opened.enter_context(ended_by_sigterm())
        place = opened.enter_context(worktrees(repo))
        sides = _sides(options, repo, place)
        for side in sides:
            if options.install and side.tree.top != repo.top:
                say(f"installing {side.title}")
                side.tree.install(options.install)
        for side in sides:
            say(f"{side.letter.upper()}: {side.title}")
        environment = opened.enter_context(device_held(repo, place))
        return _compared(Interleaved(options, sides, environment, options.words), options)


def _compared(trial: Interleaved, options: argparse.Namespace) -> int:
    """Measures until all tests are decided, and returns the exit code."""
    try:
        trial.measure()
        trial.count_kernels()
    except KeyboardInterrupt:
        kept = f"; the measurements so far are in {here(trial.place)}" if trial.pairs.count else ""
        complain(f"interrupted{kept}")
        return INTERRUPTED
    if not trial.pairs.results:
        listed = "".join(f"\n  {line}" for line in _incomplete_lines(trial.pairs))
        raise UsageFailure(f"A and B have no measurement to compare{listed}")
    return conclude(trial, options)


def _sides(options: argparse.Namespace, repo: Checkout, place: Path) -> tuple[Revision, Revision]:
    """Both revisions, in worktrees in `place` or as the user's checkout is."""

    def of(letter: str, revision: str, python: str | None) -> Revision:
        name, title, tree = WORKING_TREE, WORKING_TREE, repo
        if revision:
            commit = repo.commit(revision)
            name, title = revision, f"{revision} ({repo.title(commit)})"
            tree = repo.worktree(place / letter, commit)
        return Revision(letter, name, title, tree, python or sys.executable)

    return of("a", options.base, options.python_a), of("b", options.head, options.python_b)


def conclude(trial: Interleaved, options: argparse.Namespace) -> int:
    """Prints and writes the results of the trial, and returns the exit code."""
    pairs, (old, new) = trial.pairs, trial.pairs.sides
    run, saved = trial.save(), here(trial.file(new))
    project, folder = run_files.project(Path.cwd()), Path.cwd()
    context = CommandContext(trial.command, root=str(project), folder=str(folder))
    width = terminal_width()
    results = view.worst_first(pairs.results.values())
    slower = [result for result in results if result.outcome in FAULTS]
    for result in slower:
        failing = [entry for entry in result.said if entry.outcome in FAULTS]
        say("", *failure(result, failing, context, width).split("\n"))
    say("", f"baseline: {old.title}", f"measured: {new.title}")
    notes = _notes(trial, options)
    say_lines(summary(results, width, context, notes=notes, told=slower))
    if slower or any(result.outcome is Outcome.IMPROVED for result in results):
        both = shlex.join([here(trial.file(old)), saved])
        say("to see all changes:", f"  gpuperf compare {both}")
    write_reports(options.outputs, lambda output: report_text(run, output, saved))
    if (actions := github.actions(os.environ)) and (note := actions.append(run)):
        say(note)
    say(_sentence(trial, results))
    return FAILED if slower or new.failed or any(map(is_undecided, results)) else OK


def _sentence(trial: Interleaved, results: Sequence[Result]) -> str:
    """The outcomes, pairs and time of the trial, in a line."""
    pairs = counted(trial.pairs.count, "pair")
    kept = here(trial.place)
    return f"{view.tally(results)}: {pairs} of processes in {trial.took}; runs {kept}"


def _notes(trial: Interleaved, options: argparse.Namespace) -> Iterator[str]:
    yield from _incomplete_lines(trial.pairs)
    for side in trial.pairs.sides:
        if side.failed:
            yield f"note: tests failed in {side.name}, see above"
    undecided = [result for result in trial.pairs.results.values() if is_undecided(result)]
    if undecided and trial.out_of_time:
        yield (
            f"note: the time limit ended before {counted(len(undecided), 'measurement')} could be "
            f"decided. --time-limit {2 * options.time_limit:g} allows more pairs"
        )


def _incomplete_lines(pairs: PairState) -> Iterator[str]:
    for test, why in pairs.skipped.items():
        yield f"{printable(title_of(test))}: {printable(why)}"
