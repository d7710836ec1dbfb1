"""Two revisions measured in turn, pair by pair, for `gpuperf ab` and `gpuperf bisect`.

Processes of both follow each other as A B, B A, A B and so on; two that are next to each other make
a pair, and pairs are judged by their differences. Processes of up to two pairs start together, for
their imports, and wait for their turn.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import NoReturn

from pytest_gpuperf.baselines.judgement import fit_pairs, judged_in_pairs, surely_no_loss
from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.units import counted, duration
from pytest_gpuperf.commands import complain, print_failure, say
from pytest_gpuperf.commands.worktrees import Checkout, pinned
from pytest_gpuperf.errors import FAILED, OK, GpuperfError, UsageFailure
from pytest_gpuperf.judge.stopping import LOOKS, settled
from pytest_gpuperf.measure import fresh_process
from pytest_gpuperf.measure.device import nvml
from pytest_gpuperf.measure.fresh_process import Finished, Start
from pytest_gpuperf.measure.instrument import PATIENCE, STAND_IN
from pytest_gpuperf.model.measurement import STEP, Measurement
from pytest_gpuperf.model.result import FAULTS, TEST_FAILED, JudgedBy, Outcome, Result, Run
from pytest_gpuperf.report.text.progress import Display, on_stdout
from pytest_gpuperf.storage import files, run_files

FOLDER = Path(".gpuperf") / "ab"
"""The folder of the runs of both sides, with a folder for each comparison."""
UNDECIDED = (Outcome.INCONCLUSIVE, Outcome.UNFIT, Outcome.MACHINE)
_TIME_LIMIT = 1800.0
_TOGETHER = 2
"""Pairs whose processes start at once: each process that waits holds the host memory of torch."""

Key = tuple[str, str]
"""A test, and the measurement's name."""
Pair = tuple[Measurement, Measurement]


@dataclass
class Revision:
    """One of the two revisions."""

    letter: str
    """The letter of the side, a or b."""
    name: str
    """The name as the user gave it: "main"; or "the working tree"."""
    title: str
    """The name with the title of its commit."""
    tree: Checkout
    python: str
    runs: list[Run] = field(default_factory=list)
    failed: int = 0
    """pytest's exit code where a process had failing tests."""

    @property
    def measured(self) -> dict[Key, Measurement]:
        """The measurements of the side's last process."""
        return {(m.test, m.name): m for m in self.runs[-1].measurements}


class Ended(GpuperfError):
    """A process of `side` ended without measuring: the trial cannot go on. Has its exit code."""

    def __init__(self, code: int, side: Revision) -> None:
        super().__init__(
            f"{side.title} measured nothing, so there is nothing to compare. A revision has only "
            "the tests and files of its commit"
        )
        self.code, self.side = code, side


def add_limits(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds the flags for the time limit of `what`, and for the preparations."""
    parser.add_argument(
        "--processes",
        type=int,
        default=LOOKS[-1],
        metavar="K",
        help=f"maximum processes per revision, 1-{LOOKS[-1]}; default: {LOOKS[-1]}",
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        default=_TIME_LIMIT,
        metavar="SECONDS",
        help=f"time limit of {what}; no pair of processes starts that would exceed it; "
        f"default: {_TIME_LIMIT:g}",
    )
    parser.add_argument(
        "--install",
        metavar="CMD",
        help="shell command to run once in each new checkout, before measuring",
    )


def check_limits(options: argparse.Namespace) -> None:
    """Raises UsageFailure for impossible numbers."""
    if not 1 <= options.processes <= LOOKS[-1]:
        raise UsageFailure(f"--processes {options.processes} must be from 1 to {LOOKS[-1]}")
    if not (math.isfinite(options.time_limit) and options.time_limit > 0):
        raise UsageFailure(f"--time-limit {options.time_limit:g} must be more than 0 seconds")


class PairState:
    """The measurements of two revisions, pair by pair, and the verdicts on them."""

    def __init__(self, sides: tuple[Revision, Revision]) -> None:
        self.sides = sides
        self.results: dict[Key, Result] = {}
        """The result of the last look at each test and measurement."""
        self._pairs: dict[Key, list[Pair]] = {}
        self._apart: dict[Key, str] = {}
        """The reason for each measurement of only one side, or that cannot be compared."""

    @property
    def count(self) -> int:
        """The number of pairs of the test with the most pairs."""
        return max(map(len, self._pairs.values()), default=0)

    @property
    def open(self) -> list[Key]:
        """The measurements that are undecided, or have only been made on an unfit device."""
        return [
            key
            for key in self._pairs
            if key not in self.results
            or not settled(self.results[key].verdicts)
            or self.results[key].outcome is Outcome.UNFIT
        ]

    @property
    def slower(self) -> list[Key]:
        """The measurements that regressed, or failed otherwise."""
        return [key for key, result in self.results.items() if result.outcome in FAULTS]

    @property
    def outcomes(self) -> set[Outcome]:
        """The outcomes of whole steps."""
        verdicts = (verdict for result in self.results.values() for verdict in result.verdicts)
        return {verdict.outcome for verdict in verdicts if verdict.phase == STEP}

    @property
    def skipped(self) -> dict[str, str]:
        """The tests that were not compared, or failed, each with its reason, as in reports.

        Tests that both sides skip for the same reason are left out.
        """
        said: dict[str, list[str]] = {}
        for (test, name), why in self._apart.items():
            said.setdefault(test, []).append(why if name == STEP else f"{name}: {why}")
        old, new = ({e for r in side.runs[:1] for e in r.skipped.items()} for side in self.sides)
        for side, skipped in zip(self.sides, (old, new), strict=True):
            for test, why in sorted(skipped):
                if why == TEST_FAILED:
                    said.setdefault(test, []).append(f"failed in {side.name}")
                elif (test, why) not in old & new:
                    said.setdefault(test, []).append(f"skipped in {side.name}: {why}")
        return {test: ", ".join(parts) for test, parts in said.items()}

    def add(self) -> None:
        """Adds the measurements of the last process of each side.

        Raises UsageFailure for two devices.
        """
        old, new = (side.measured for side in self.sides)
        # Of what a look has decided, a pair that had started with others is not judged.
        wanted = self.open if self.results else [*old]
        for key in [key for key in old if key in new]:
            _check_device(old[key], new[key])
            if dict(old[key].workload) != dict(new[key].workload):
                differing = units.differences(old[key].workload, new[key].workload)
                self._apart[key] = f"the workloads differ: {differing}"
            elif key in wanted:
                self._pairs.setdefault(key, []).append((old[key], new[key]))
        if not self.results:
            for one, other, side in zip((old, new), (new, old), self.sides, strict=True):
                self._apart |= {key: f"only in {side.name}" for key in one if key not in other}

    def look(self, *, last: bool) -> None:
        """Judges the open keys that have enough pairs for a look, or all open keys at the end."""
        for key in self.open:
            pairs = self._pairs[key]
            if last or fit_pairs(pairs) in LOOKS or key not in self.results:
                self.results[key] = judged_in_pairs(pairs)

    def with_kernels(self, keys: Sequence[Key]) -> None:
        """Judges these keys again, with the kernels that the last process of each side counted."""
        old, new = (side.measured for side in self.sides)
        for key in keys:
            if key in old and key in new:
                (a, b), *others = self._pairs[key]
                first = replace(a, kernels=old[key].kernels), replace(b, kernels=new[key].kernels)
                self._pairs[key] = [first, *others]
                self.results[key] = judged_in_pairs(self._pairs[key])

    def deselected(self, wanted: Sequence[Key] = ()) -> list[str]:
        """Flags that deselect all tests but those wanted, or else all that are decided."""
        if not self.results:
            return []
        kept = {test for test, _ in wanted or self.open}
        every = {test for test, _ in (*self._pairs, *self._apart)}
        # pytest leaves out whatever begins so.
        return [
            f"--deselect={test}"
            for test in sorted(every - kept)
            if not any(other.startswith(test) for other in kept)
        ]


class Interleaved:
    """Fresh processes of both revisions, in turn, until all is decided or a limit is reached."""

    def __init__(
        self,
        options: argparse.Namespace,
        sides: tuple[Revision, Revision],
        environment: dict[str, str],
        words: Sequence[str],
    ) -> None:
        self.pairs = PairState(sides)
        self.command = run_files.command_line(["gpuperf", *words, "--", *options.pytest_args])
        self._options, self._environment = options, environment
        stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")
        project = run_files.project(Path.cwd())
        self.place = run_files.own_folder(project, FOLDER) / f"{stamp}-{os.getpid()}"
        """The folder of the runs of both sides."""
        self.out_of_time = False
        """Whether the time limit has prevented further pairs."""
        self._display = Display(on_stdout)
        self._begun = time.monotonic()
        self._longest = 0.0
        """Seconds that the longest pair took."""

    @property
    def took(self) -> str:
        """The time since the start, as text."""
        return duration(time.monotonic() - self._begun)

    def measure(self) -> None:
        """Measures until all is decided, or a limit is reached. Raises Ended."""
        most: int = self._options.processes
        number = 0
        while numbers := self._next(number, most):
            begun = time.monotonic()
            if not self._measured(numbers):
                self.out_of_time = True
                break
            self._longest = max(self._longest, (time.monotonic() - begun) / len(numbers))
            number = numbers.stop
        self.pairs.look(last=True)
        self.out_of_time |= number < most and bool(self.pairs.open)

    def count_kernels(self) -> None:
        """Counts the kernels of slower tests, in one more process per side. Raises Ended."""
        if slower := self.pairs.slower:
            processes = [(side, f"kernels, {side.name}") for side in self.pairs.sides]
            flags = ["--gpuperf-kernels=always", *self.pairs.deselected(slower)]
            if all(self._in_turn(processes, flags)):
                self.pairs.with_kernels(slower)

    def _next(self, number: int, most: int) -> range:
        """The numbers of the pairs that start together, from this number on: at most one look's."""
        if not number:
            return range(1)
        if not self.pairs.open:
            return range(0)
        in_time = int(self._left() / self._longest) if self._longest else _TOGETHER
        look = next((look for look in LOOKS if look > number), most)
        return range(number, min(number + min(_TOGETHER, in_time), look, most))

    def _measured(self, numbers: range) -> bool:
        """Has two processes for each of these pairs measure open tests. Returns whether all did."""
        most: int = self._options.processes
        processes = [
            (side, f"pair {number + 1} of {most} at most, {side.name}")
            for number in numbers
            for side in self.pairs.sides[:: -1 if number % 2 else 1]
        ]
        flags = ["--gpuperf-kernels=never", *self.pairs.deselected()]
        with closing(self._in_turn(processes, flags)) as turns:
            for number in numbers:
                if not (next(turns) and next(turns)):
                    return False
                self.pairs.add()
                self.pairs.look(last=number + 1 == most)
        return True

    def _in_turn(
        self, processes: Sequence[tuple[Revision, str]], flags: Sequence[str]
    ) -> Generator[bool, None, None]:
        """Has each process, of a side and with a name, measure. Yields whether it measured.

        Raises Ended where a process could not measure.
        """
        ended = fresh_process.run_in_turn(
            [self._start(side, flags) for side, _ in processes],
            time_limit=lambda: max(self._left(), 1.0),
            begins=lambda _: self._display.begins("measuring"),
            ahead=self._ahead(),
        )
        with closing(ended):
            for side, name in processes:
                with self._display.of(name):
                    self._display.begins("starting")
                    finished = next(ended)
                yield self._kept(side, name, finished)

    def _ahead(self) -> list[str]:
        """The modules to import before the first process measures: every optimizer needs them."""
        first = [m for side in self.pairs.sides for run in side.runs[:1] for m in run.measurements]
        return ["torch._dynamo"] if any("torch" in m.fingerprint.software for m in first) else []

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

    def _kept(self, side: Revision, name: str, finished: Finished) -> bool:
        """Keeps the run of a process. Raises Ended where the process could not measure."""
        if finished.timed_out:
            complain(f"{side.name}: stopped after {duration(finished.seconds)}, at the time limit")
            return False
        count = len(finished.run.measurements) if finished.run else 0
        say(f"{name}: {counted(count, 'measurement')} in {duration(finished.seconds)}")
        if finished.code not in (OK, FAILED) or finished.run is None:
            raise Ended(print_failure(finished) or FAILED, side)
        if finished.code and not side.failed:
            side.failed = print_failure(finished)
        side.runs.append(finished.run)
        run_files.save_draft(run_files.merged(side.runs, self.command), self.file(side))
        return True

    def _left(self) -> float:
        limit: float = self._options.time_limit
        return limit - (time.monotonic() - self._begun)

    def save(self) -> Run:
        """Saves the runs of both sides as they are at the end; returns that of B, with verdicts."""
        old, new = self.pairs.sides
        run_files.save(run_files.merged(old.runs, self.command), self.file(old))
        run = run_files.merged(new.runs, self.command)
        measured = tuple(m for one in new.runs for m in one.measurements)
        run = replace(
            run.with_results(self.pairs.results.values()),
            measurements=measured,
            skipped=self.pairs.skipped,
            judged_by=tuple(
                JudgedBy(m.test, m.name, m.fingerprint.measured[:10], old.title)
                for m in old.runs[0].measurements
                if (m.test, m.name) in self.pairs.results
            ),
        )
        run_files.save(run, self.file(new))
        return run

    def file(self, side: Revision) -> Path:
        """The file of a side's run."""
        return self.place / f"{side.letter}.json"


def _check_device(old: Measurement, new: Measurement) -> None:
    """Raises UsageFailure where the devices of both measurements differ."""
    devices = [m.fingerprint.device for m in (old, new)]
    if devices[0] != devices[1]:
        named = " and ".join(f"{device.name} ({device.identity})" for device in devices)
        raise UsageFailure(
            f"A and B were measured on two devices, {named}. Let both see the same GPU: "
            "CUDA_VISIBLE_DEVICES=0 gpuperf ..."
        )


def is_undecided(result: Result) -> bool:
    """Whether a result is undecided, and may be a loss."""
    return any(
        verdict.outcome in UNDECIDED and not surely_no_loss(verdict) for verdict in result.verdicts
    )


@contextmanager
def device_held(here: Checkout, folder: Path) -> Iterator[dict[str, str]]:
    """Holds the GPU until all is measured; yields the environment of the processes that measure.

    These processes hold another place instead, for there may be several at once (pytest-xdist).
    Without a GPU no device is held. In this package's own repository they import this package.
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
            display.begins("for another measurement on this device")
            held.enter_context(files.locked(nvml.node(), patience=PATIENCE))
        yield {**environment, STAND_IN: str(stand_in)}


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Has SIGTERM end this process as an exception does: worktrees are removed."""

    def end(_: int, __: FrameType | None) -> NoReturn:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
