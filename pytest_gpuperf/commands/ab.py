"""`gpuperf ab`: what a change costs, by two revisions that are measured in turn on one device.

No baseline is needed. Processes of both follow each other as A B, B A, A B and so on; two that are
next to each other make a pair, and pairs are judged by their differences. What the GPU, its day and
its clocks do to both cancels out. It ends as soon as every test is decided. Processes of up to two
pairs start together, for their imports, and wait for their turn.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import NoReturn

from pytest_gpuperf.baselines.judgement import (
    alarming,
    fit_pairs,
    judged_in_pairs,
    surely_no_loss,
)
from pytest_gpuperf.catalogue import units
from pytest_gpuperf.commands import complain, print_failure, say
from pytest_gpuperf.commands.flags import add_outputs, check_outputs
from pytest_gpuperf.errors import FAILED, INTERRUPTED, OK, UsageFailure, printable
from pytest_gpuperf.judge.stopping import LOOKS, settled
from pytest_gpuperf.measure import fresh_process
from pytest_gpuperf.measure.device import nvml
from pytest_gpuperf.measure.fresh_process import Finished, Start
from pytest_gpuperf.measure.instrument import PATIENCE, STAND_IN
from pytest_gpuperf.measure.worktrees import Repository, Tree, pinned, repository, worktrees
from pytest_gpuperf.model.measurement import STEP, Measurement, title_of
from pytest_gpuperf.model.result import FAULTS, TEST_FAILED, Outcome, Result, Run, worst_first
from pytest_gpuperf.report.interchange import SUFFIXES, report_text
from pytest_gpuperf.report.text.failure import failure
from pytest_gpuperf.report.text.next_command import CommandContext
from pytest_gpuperf.report.text.progress import Display, counted, duration, on_stdout
from pytest_gpuperf.report.text.summary import summary
from pytest_gpuperf.storage import files, run_files

USAGE = (
    "gpuperf ab BASE [HEAD] [--processes K] [--time-limit SECONDS] [--install CMD]\n"
    "                  [--python-a PYTHON] [--python-b PYTHON] [--output FILE] -- PYTEST-ARGS"
)
EXAMPLES = (
    "gpuperf ab main -- tests/perf",
    "gpuperf ab v1.2 v1.3 --output ab.md -- tests/perf",
)

FOLDER = Path(".gpuperf") / "ab"
"""Where the runs of both sides are kept, a folder for each command."""
WORKING_TREE = "the working tree"
_TIME_LIMIT = 1800.0
UNDECIDED = (Outcome.INCONCLUSIVE, Outcome.UNFIT, Outcome.MACHINE)
_TOGETHER = 2
"""Pairs whose processes start at once: each process that waits holds the host memory of torch."""
_AHEAD = {"torch": "torch._dynamo"}
"""By the software that a step names, what else it imports: every optimizer of torch does."""
_TERMINATED = 128 + signal.SIGTERM

Key = tuple[str, str]
"""A test, and the measurement's name."""
Pair = tuple[Measurement, Measurement]


@dataclass
class Revision:
    """One of the two revisions."""

    letter: str
    """a or b."""
    name: str
    """As it was asked for: "main"; or "the working tree"."""
    title: str
    """With its commit."""
    tree: Tree
    python: str
    runs: list[Run] = field(default_factory=list)
    failed: int = 0
    """pytest's exit code where a process had failing tests."""

    def measured(self, number: int) -> dict[Key, Measurement]:
        """What its process of this number, from 0 on, measured."""
        return {(m.test, m.name): m for m in self.runs[number].measurements}


class Ended(Exception):
    """A process of `side` ended without measuring: nothing more is to be had. Has its exit code."""

    def __init__(self, code: int, side: Revision) -> None:
        self.code, self.side = code, side


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf ab`."""
    parser.add_argument("base", metavar="BASE", help="the revision to compare with, A")
    parser.add_argument(
        "head",
        nargs="?",
        metavar="HEAD",
        help="the revision that is compared, B; default: the working tree as it stands, with what "
        "is in no commit",
    )
    add_limits(parser, "the whole")
    for letter in ("a", "b"):
        parser.add_argument(
            f"--python-{letter}",
            metavar="PYTHON",
            help=f"the interpreter of {letter.upper()}, which has pytest-gpuperf too; a path is "
            "relative to its checkout; default: this one",
        )
    add_outputs(parser, "where to write a report, the format by the suffix: .html, .md or .json")


def add_limits(parser: argparse.ArgumentParser, what: str) -> None:
    """The flags of how long `what` may take, and what comes before it."""
    parser.add_argument(
        "--processes",
        type=int,
        default=LOOKS[-1],
        metavar="K",
        help=f"of each revision at most; default and most: {LOOKS[-1]}",
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        default=_TIME_LIMIT,
        metavar="SECONDS",
        help=f"of {what}: no pair is begun that would not end in it; default: {_TIME_LIMIT:g}",
    )
    parser.add_argument(
        "--install",
        metavar="CMD",
        help="what a shell runs once in each checkout that is made, before anything is measured",
    )


def act(options: argparse.Namespace) -> int:
    """Measures two revisions in turn, and says what the second costs.

    The run of each side is kept under `.gpuperf/ab`; that of B has the verdicts. Returns 0; 1 where
    a test regressed, is undecided (and may be a loss), or failed in B; pytest's exit code where it
    measured nothing; 128 and a signal's number; or INTERRUPTED. Raises UsageFailure for revisions
    that are none, and where nothing can be compared.
    """
    check_limits(options)
    check_outputs(options.outputs, SUFFIXES)
    here = repository(Path.cwd())
    with ExitStack() as opened:
        opened.enter_context(ended_by_sigterm())
        commits = here.commit(options.base), options.head and here.commit(options.head)
        place = opened.enter_context(worktrees(here))
        sides = _sides(options, here, place.add("a", commits[0]), commits)
        if options.head:
            sides[1].tree = place.add("b", commits[1])
        for side in sides:
            if options.install and side.tree.top != here.top:
                say(f"installing {side.title}")
                side.tree.install(options.install)
        for side in sides:
            say(f"{side.letter.upper()}: {side.title}")
        environment = opened.enter_context(device_held(here, place.folder))
        command = run_files.command_line(["gpuperf", "ab", *_words(options)])
        return InTurn(options, sides, environment, command).run()


def check_limits(options: argparse.Namespace) -> None:
    """Raises UsageFailure for numbers that cannot be."""
    if not 1 <= options.processes <= LOOKS[-1]:
        raise UsageFailure(f"--processes {options.processes}: give a number from 1 to {LOOKS[-1]}")
    if not (math.isfinite(options.time_limit) and options.time_limit > 0):
        raise UsageFailure(f"--time-limit {options.time_limit:g}: give seconds, more than 0")


def _words(options: argparse.Namespace) -> list[str]:
    """The words of this command, as a run keeps them."""
    words = [options.base, *([options.head] if options.head else [])]
    for flag in ("install", "python_a", "python_b"):
        if value := getattr(options, flag):
            words += [f"--{flag.replace('_', '-')}", value]
    return [*words, "--", *options.pytest_args]


def _sides(
    options: argparse.Namespace,
    here: Repository,
    base: Tree,
    commits: tuple[str, str | None],
) -> tuple[Revision, Revision]:
    old = f"{options.base} ({here.title(commits[0])})"
    new = f"{options.head} ({here.title(commits[1])})" if commits[1] else WORKING_TREE
    own = Tree(here, here.top)
    name = options.head or WORKING_TREE
    return (
        Revision("a", options.base, old, base, options.python_a or sys.executable),
        Revision("b", name, new, own, options.python_b or sys.executable),
    )


class InTurn:
    """A comparison under way. `wanted` are the tests that are compared; others are left out."""

    def __init__(
        self,
        options: argparse.Namespace,
        sides: tuple[Revision, Revision],
        environment: dict[str, str],
        command: str,
        wanted: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._wanted = wanted
        self._options, self._sides = options, sides
        self._environment, self._command = environment, command
        stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")
        self._place = run_files.project(Path.cwd()) / FOLDER / f"{stamp}-{os.getpid()}"
        self._display = Display(on_stdout)
        self._begun = time.monotonic()
        self._longest = 0.0
        """Seconds that a pair took."""
        self._pairs: dict[Key, list[Pair]] = {}
        self._alone: dict[Key, Revision] = {}
        """What only one side has measured."""
        self._other: dict[Key, str] = {}
        """What both have, and cannot be compared: why."""
        self.results: dict[Key, Result] = {}
        """Of the last look at each."""
        self._left_out: set[str] = set()

    def run(self) -> int:
        """Measures until all is decided, and returns the exit code."""
        try:
            self.measure()
        except Ended as ended:
            return ended.code
        except KeyboardInterrupt:
            kept = f"; what was measured is in {self._named(self._place)}" if self._pairs else ""
            complain(f"interrupted{kept}")
            return INTERRUPTED
        if not self.results:
            listed = "".join(f"\n  {line}" for line in self._incomplete_lines())
            raise UsageFailure(f"nothing to compare{listed}")
        return self.conclude()

    def measure(self) -> None:
        """Measures until all is decided, or no more may be. Raises Ended."""
        most: int = self._options.processes
        number = 0
        while pairs := self._next(number, most):
            # The second pair of what may be slower counts kernels too: they are to be named.
            kernels = 1 in pairs and any(map(alarming, self.results.values()))
            begun = time.monotonic()
            if not self._measured(pairs, kernels=kernels):
                break
            self._longest = max(self._longest, (time.monotonic() - begun) / len(pairs))
            number = pairs.stop
        self._look(last=True)
        slower = [key for key, result in self.results.items() if _is_slower(result)]
        if any(self.results[key].attribution is None for key in slower):
            self._count_kernels(slower)

    def _next(self, number: int, most: int) -> range:
        """The pairs that start together, from this number on: at most those of one look."""
        if not number:
            return range(1)
        if not self._open():
            return range(0)
        in_time = int(self._left() / self._longest) if self._longest else _TOGETHER
        look = next((look for look in LOOKS if look > number), most)
        return range(number, min(number + min(_TOGETHER, in_time), look, most))

    def _measured(self, pairs: range, *, kernels: bool) -> bool:
        """Has two processes for each of these pairs measure what is open. Whether all did."""
        most: int = self._options.processes
        processes = [
            (
                side,
                f"pair {number + 1} of {most} at most, {side.name}",
                "always" if kernels and number == 1 else "never",
            )
            for number in pairs
            for side in self._sides[:: -1 if number % 2 else 1]
        ]
        with closing(self._in_turn(processes, self._deselected())) as turns:
            for number in pairs:
                if not (next(turns) and next(turns)):
                    return False
                self._add(*(side.measured(-1) for side in self._sides))
                self._look(last=number + 1 == most)
        return True

    def _in_turn(
        self, processes: Sequence[tuple[Revision, str, str]], deselected: Sequence[str]
    ) -> Generator[bool, None, None]:
        """Has each measure: of a side, under a name, and with what kernels. Whether it did.

        Raises Ended where one could not.
        """
        starts = [
            self._start(side, [f"--gpuperf-kernels={kernels}", *deselected])
            for side, _, kernels in processes
        ]
        ended = fresh_process.run_in_turn(
            starts,
            time_limit=lambda: max(self._left(), 1.0),
            begins=lambda _: self._display.begins("measuring"),
            tick=lambda _: self._display.goes_on(),
            ahead=self._ahead(),
        )
        with closing(ended):
            for side, name, _ in processes:
                with self._display.of(name):
                    self._display.begins("starting")
                    finished = next(ended)
                yield self._kept(side, name, finished)

    def _ahead(self) -> list[str]:
        """What is worth importing before the first of them measures: the first pair shows it."""
        runs = [run for side in self._sides for run in side.runs[:1]]
        software = {
            name for run in runs for m in run.measurements for name in m.fingerprint.software
        }
        return [module for name, module in _AHEAD.items() if name in software]

    def _kept(self, side: Revision, name: str, finished: Finished) -> bool:
        """Keeps what a process measured. Raises Ended where it could not."""
        if finished.timed_out:
            complain(f"{side.name}: ended after {duration(finished.seconds)}, at the time limit")
            return False
        count = len(finished.run.measurements) if finished.run else 0
        say(f"{name}: {counted(count, 'measurement')} in {duration(finished.seconds)}")
        if finished.code not in (OK, FAILED) or finished.run is None:
            code = print_failure(finished) or FAILED
            complain(
                f"{side.title} measured nothing: there is nothing to compare. A revision has the "
                "tests and the files that are in its commit, and no other"
            )
            raise Ended(code, side)
        if finished.code and not side.failed:
            side.failed = print_failure(finished)
        side.runs.append(finished.run)
        self._save(side)
        return True

    def _start(self, side: Revision, flags: Sequence[str]) -> Start:
        tree = side.tree
        own = self._environment.get("PYTHONPATH")
        paths = [own] if own else []
        return Start(
            [*flags, "-q", *tree.arguments(self._options.pytest_args)],
            tree.folder,
            {**self._environment, "PYTHONPATH": os.pathsep.join([*paths, tree.import_path()])},
            str(tree.top / side.python) if os.sep in side.python else side.python,
        )

    def _left(self) -> float:
        limit: float = self._options.time_limit
        return limit - (time.monotonic() - self._begun)

    def _add(self, old: dict[Key, Measurement], new: dict[Key, Measurement]) -> None:
        """Takes the measurements of a pair. Raises UsageFailure for two devices."""
        self._left_out |= {test for test, _ in (*old, *new) if not self._wanted(test)}
        old, new = (
            {key: one for key, one in side.items() if key[0] not in self._left_out}
            for side in (old, new)
        )
        # Of what a look has decided, a pair that had started with others is not judged.
        wanted = self._open() if self.results else [*old]
        for key in [key for key in old if key in new]:
            a, b = old[key], new[key]
            devices = [m.fingerprint.device for m in (a, b)]
            if devices[0] != devices[1]:
                named = " and ".join(f"{d.name} ({d.identity})" for d in devices)
                raise UsageFailure(
                    f"A and B were measured on two devices, {named}: have both see the same one, "
                    "for example by CUDA_VISIBLE_DEVICES"
                )
            if dict(a.workload) != dict(b.workload):
                self._other[key] = (
                    f"not compared: its workload is {units.differences(a.workload, b.workload)}"
                )
            elif key in wanted:
                self._pairs.setdefault(key, []).append((a, b))
        if not self.results:
            alone = [(old, new, self._sides[0]), (new, old, self._sides[1])]
            for one, other, side in alone:
                self._alone |= {key: side for key in one if key not in other}

    def _open(self) -> list[Key]:
        """What is not decided yet, or was measured on an unfit device alone."""
        return [
            key
            for key in self._pairs
            if key not in self.results
            or not settled(self.results[key].verdicts)
            or self.results[key].outcome is Outcome.UNFIT
        ]

    def _look(self, *, last: bool) -> None:
        """Judges what has as many pairs as a look takes, or what it has at the end."""
        for key in self._open():
            pairs = self._pairs[key]
            if last or fit_pairs(pairs) in LOOKS or key not in self.results:
                self.results[key] = judged_in_pairs(pairs)

    def _deselected(self, wanted: Sequence[Key] | None = None) -> list[str]:
        """Flags that leave out the tests of which nothing more has to be known."""
        if not (self.results or self._left_out):
            return []
        kept = {test for test, _ in (self._open() if wanted is None else wanted)}
        every = {test for test, _ in (*self._pairs, *self._alone, *self._other)}
        every |= self._left_out
        # pytest leaves out whatever begins so.
        return [
            f"--deselect={test}"
            for test in sorted(every - kept)
            if not any(other.startswith(test) for other in kept)
        ]

    def _count_kernels(self, slower: Sequence[Key]) -> None:
        """Has a process of each side count the kernels of what is slower, for their names alone."""
        processes = [(side, f"kernels, {side.name}", "always") for side in self._sides]
        if not all(self._in_turn(processes, self._deselected(slower))):
            return
        old, new = (side.measured(-1) for side in self._sides)
        for key in slower:
            if key in old and key in new:
                (a, b), *others = self._pairs[key]
                first = replace(a, kernels=old[key].kernels), replace(b, kernels=new[key].kernels)
                self._pairs[key] = [first, *others]
                self.results[key] = judged_in_pairs(self._pairs[key])

    def conclude(self) -> int:
        """Prints and writes what came of it, and returns the exit code."""
        old, new = (self._file(side) for side in self._sides)
        measured = tuple(m for run in self._sides[1].runs for m in run.measurements)
        run = run_files.merged(self._sides[1].runs, self._command)
        run = replace(
            run.with_results(self.results.values()), measurements=measured, skipped=self._skipped
        )
        run_files.save(run, new)
        self._save(self._sides[0], draft=False)
        context = CommandContext(self._command, paired=True)
        width = shutil.get_terminal_size().columns
        results = worst_first(self.results.values())
        slower = [result for result in results if _is_slower(result)]
        for result in slower:
            failing = [entry for entry in result.said if entry.outcome in FAULTS]
            say("", *failure(result, failing, context, width).split("\n"))
        say("", f"baseline: {self._sides[0].title}", f"measured: {self._sides[1].title}")
        saved = self._named(self._place)
        lines = summary(results, width, context, saved, notes=self._notes(), told=slower)
        say(*(line.text for line in lines))
        if slower or any(result.outcome is Outcome.IMPROVED for result in results):
            both = shlex.join([self._named(old), self._named(new)])
            say("to see all that changed:", f"  gpuperf compare {both}")
        for report in self._options.outputs:
            files.write_atomically(report, report_text(run, report, self._named(new)))
            say(f"report written: {report}")
        doubtful = any(_is_undecided(result) for result in results)
        failed = bool(slower) or doubtful or bool(self._sides[1].failed)
        say(self._sentence(results))
        return FAILED if failed else OK

    def _sentence(self, results: Sequence[Result]) -> str:
        """How it ended, in a line."""
        outcomes = [result.outcome for result in results]
        parts = [
            f"{outcomes.count(outcome)} {outcome.value}"
            for outcome in dict.fromkeys(outcomes)
            if outcome
        ]
        pairs = max(map(len, self._pairs.values()))
        took = duration(time.monotonic() - self._begun)
        return f"{', '.join(parts)}: {counted(pairs, 'pair')} of processes in {took}"

    def _notes(self) -> Iterator[str]:
        yield from self._incomplete_lines()
        for side in self._sides:
            if side.failed:
                yield f"note: tests failed in {side.name}, see above"
        undecided = [result for result in self.results.values() if _is_undecided(result)]
        if undecided and self._left() < self._longest:
            limit = self._options.time_limit
            yield (
                f"note: {counted(len(undecided), 'measurement')} undecided at the time limit: "
                f"--time-limit {2 * limit:g} allows more pairs"
            )

    @property
    def _skipped(self) -> dict[str, str]:
        """What was not compared, or failed, and why, as reports have it of tests that were skipped.

        What both sides skip for the same reason is not there.
        """
        said: dict[str, list[str]] = {}
        whys = {key: f"only in {side.name}" for key, side in self._alone.items()}
        for (test, name), why in [*whys.items(), *self._other.items()]:
            said.setdefault(test, []).append(why if name == STEP else f"{name}: {why}")
        old, new = ({e for r in side.runs[:1] for e in r.skipped.items()} for side in self._sides)
        for side, skipped in zip(self._sides, (old, new), strict=True):
            for test, why in sorted(skipped):
                if why == TEST_FAILED:
                    said.setdefault(test, []).append(f"failed in {side.name}")
                elif (test, why) not in old & new:
                    said.setdefault(test, []).append(f"skipped in {side.name}: {why}")
        return {test: ", ".join(parts) for test, parts in said.items()}

    def _incomplete_lines(self) -> Iterator[str]:
        for test, why in self._skipped.items():
            yield f"{printable(title_of(test))}: {printable(why)}"

    def _save(self, side: Revision, *, draft: bool = True) -> None:
        """Keeps what a side has measured."""
        files.ignored_by_git(self._place.parent.parent)
        run, file = run_files.merged(side.runs, self._command), self._file(side)
        if draft:
            run_files.save_draft(run, run.results(), file)
        else:
            run_files.save(run, file)

    def _file(self, side: Revision) -> Path:
        return self._place / f"{side.letter}.json"

    @staticmethod
    def _named(path: Path) -> str:
        return files.short(path, Path.cwd())


def _is_slower(result: Result) -> bool:
    return any(verdict.outcome in FAULTS for verdict in result.verdicts)


def _is_undecided(result: Result) -> bool:
    return any(
        verdict.outcome in UNDECIDED and not surely_no_loss(verdict) for verdict in result.verdicts
    )


@contextmanager
def device_held(here: Repository, folder: Path) -> Iterator[dict[str, str]]:
    """Holds the GPU until all is measured; the environment of processes that do it.

    They hold another place in its stead, for there may be several at once (pytest-xdist). Without a
    GPU there is nothing to hold. Where the repository is that of this package, they have this one.
    """
    own = Path(fresh_process.__file__).is_relative_to(here.top)
    environment = {"PYTHONPATH": pinned(folder)} if own else {}
    if nvml.detect_device() is None:
        yield environment
        return
    stand_in = folder / "device"
    stand_in.mkdir()
    display = Display(on_stdout)
    with ExitStack() as held:
        with display.of("waiting"):
            display.begins("for others who measure on this device")
            held.enter_context(files.locked(nvml.node(), patience=PATIENCE, tick=display.goes_on))
        yield {**environment, STAND_IN: str(stand_in)}


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Has SIGTERM end this process as an exception does: worktrees are removed."""

    def end(_: int, __: FrameType | None) -> NoReturn:
        raise SystemExit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
