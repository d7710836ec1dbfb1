"""`gpuperf record`: tests in fresh processes, and one run of what they measured.

A baseline needs several processes: rounds within one share its memory layout, its clocks and its
luck, so they say little about the next process. They take long, so what is measured is kept after
each of them, and a recording can be continued.
"""

from __future__ import annotations

import argparse
import math
import shlex
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.units import counted, duration
from pytest_gpuperf.commands import complain, here, print_failure, say
from pytest_gpuperf.commands.flags import add_new_run
from pytest_gpuperf.errors import FAILED, INTERRUPTED, OK, UsageFailure, printable
from pytest_gpuperf.measure import fresh_process
from pytest_gpuperf.measure.fresh_process import Finished
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.report.text.progress import Display, on_stdout
from pytest_gpuperf.storage import files, run_files

USAGE = (
    "gpuperf record [--processes K] [--pause SECONDS] [--run FILE] -- PYTEST-ARGS\n"
    "       gpuperf record --continue RUN [--processes K] [--pause SECONDS] -- PYTEST-ARGS"
)
EXAMPLES = (
    "gpuperf record --processes 5 -- tests/perf",
    "gpuperf record --continue run.json --processes 9 -- tests/perf",
)

_PROCESSES = 5
_COMMAND = ["gpuperf", "record"]
_COUNT_KERNELS = "--gpuperf-kernels=always"


@dataclass(frozen=True)
class Order:
    """What is to be recorded. Raises UsageFailure for numbers that cannot be."""

    processes: int = _PROCESSES
    """How many fresh processes are wanted in all."""
    pytest_args: tuple[str, ...] = ()
    pause: float = 0.0
    """Seconds between the end of a process and the start of the next."""

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise UsageFailure(f"--processes {self.processes}: at least 1 is needed")
        if not (math.isfinite(self.pause) and self.pause >= 0):
            raise UsageFailure(
                f"--pause {self.pause:g}: give the seconds between two processes, 0 or more"
            )

    @property
    def command(self) -> str:
        """The command line of this order, which its run keeps: without secrets."""
        pause = ["--pause", f"{self.pause:g}"] if self.pause else []
        words = [*_COMMAND, "--processes", str(self.processes), *pause, "--", *self.pytest_args]
        return run_files.command_line(words)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf record`."""
    parser.add_argument("--processes", type=int, metavar="K", help=f"default: {_PROCESSES}")
    parser.add_argument(
        "--pause", type=float, metavar="SECONDS", help="between two processes; default: 0"
    )
    either = parser.add_mutually_exclusive_group()
    add_new_run(either)
    either.add_argument(
        "--continue",
        dest="continued",
        type=Path,
        metavar="RUN",
        help="go on with a recording that was interrupted, or extend it, or the run of a session, "
        "to K processes; from the folder in which it was begun, and with the PYTEST-ARGS of it",
    )
    parser.add_argument("pytest_args", nargs="*", metavar="PYTEST-ARGS")


def act(options: argparse.Namespace) -> int:
    """Runs pytest as ordered, one process after the other, and saves one merged run.

    Nothing is judged: what is recorded may become the baseline. The file is written after every
    process. Prints a line per process. Returns 0; pytest's exit code when a process measured
    nothing or had a failing test; 128 and the signal's number when one was killed; or INTERRUPTED.
    Raises UsageFailure for a file that exists, or that is being recorded at this moment; and of one
    to go on with, which it leaves as it is, when this command did not make it, or when a process
    measures something else than those that are in it.
    """
    if options.continued is not None:
        return _resume(options)
    order, file = _order(options), options.run or run_files.new_file(run_files.project(Path.cwd()))
    with _alone(file):
        if file.exists():
            raise UsageFailure(f"{file} exists: name another, or go on with it by --continue")
        return _Recording(order, file, None).go_on()


def _resume(options: argparse.Namespace) -> int:
    """Runs the processes that the recording lacks; numbers that are given replace its own.

    Arguments of pytest execute what they name, and a run may come from elsewhere: they are never
    taken out of it, only compared with those that somebody typed.
    """
    file: Path = options.continued
    with _alone(file):
        run = run_files.load(file)
        begun = _order_of(run, file)
        order = Order(
            begun.processes if options.processes is None else options.processes,
            tuple(options.pytest_args),
            begun.pause if options.pause is None else options.pause,
        )
        typed, before = map(run_files.without_secrets, (options.pytest_args, begun.pytest_args))
        if typed != before:
            other = "others" if options.pytest_args else "these, which are to be typed again"
            raise UsageFailure(
                f"{file} was recorded with {other}: `{_continue(file, begun)}` goes on with it; a "
                "new recording begins without --continue"
            )
        held = _processes(run)
        if held < order.processes:
            return _Recording(order, file, run).go_on()
        say(
            f"nothing to do: {_named(file)} has {counted(held, 'process')} of {order.processes}; "
            "a larger --processes adds to it"
        )
        _print_next(file)
        return OK


def _order(options: argparse.Namespace) -> Order:
    processes = _PROCESSES if options.processes is None else options.processes
    return Order(processes, tuple(options.pytest_args), options.pause or 0.0)


class _Recording:
    """A recording under way."""

    def __init__(self, order: Order, file: Path, begun: Run | None) -> None:
        self._order, self._file, self._begun = order, file, begun
        self._kept = begun
        self._done = _processes(begun) if begun else 0
        self._without_kernels = not begun or all(m.kernels is None for m in begun.measurements)
        self._took: list[float] = []
        self._display = Display(on_stdout)

    def go_on(self) -> int:
        """Runs the processes that are missing, and returns the exit code."""
        try:
            code = self._measure()
        except KeyboardInterrupt:
            self._print_interrupted()
            return INTERRUPTED
        if self._kept is None:
            complain("nothing was measured, so no run was saved")
            return code
        say(f"run saved: {_named(self._file)}")
        if not code:
            _print_next(self._file)
        elif self._done < self._order.processes:
            say("to go on:", f"  {_continue(self._file, self._order)}")
        return code

    def _measure(self) -> int:
        worst = 0
        for number in range(self._done + 1, self._order.processes + 1):
            name = f"process {number} of {self._order.processes}"
            with self._display.of(name):
                if self._took and self._order.pause:
                    self._rest()
                self._display.begins("measuring")
                finished = fresh_process.run_pytest(
                    [*self._kernels(), "-q", *self._order.pytest_args],
                    folder=Path.cwd(),
                    tick=lambda _: self._display.goes_on(),
                )
            self._took.append(finished.seconds)
            self._print_progress(name, finished, self._order.processes - number)
            code = print_failure(finished)
            if finished.run:
                self._keep(finished.run, code)
            worst = max(worst, code)
            if code > FAILED or not finished.run:
                return worst or FAILED
        return worst

    def _kernels(self) -> list[str]:
        """Has the first process count kernels: one table of them is what a baseline keeps.

        Before the arguments of the order, whose own flag then wins.
        """
        first = not self._took
        return [_COUNT_KERNELS] if first and self._without_kernels else []

    def _keep(self, measured: Run, code: int) -> None:
        if self._begun:
            check_same(self._begun, measured, self._file, partly=bool(code))
        parts = [self._kept, measured] if self._kept else [measured]
        merged = run_files.merged(parts, self._order.command)
        run_files.save(merged, self._file)
        self._kept = merged
        self._done += 1

    def _rest(self) -> None:
        self._display.begins(f"pausing for {duration(self._order.pause)}")
        end = time.monotonic() + self._order.pause
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(1.0, left))
            self._display.goes_on()

    def _print_progress(self, name: str, finished: Finished, missing: int) -> None:
        count = len(finished.run.measurements) if finished.run else 0
        each = sum(self._took) / len(self._took) + self._order.pause
        left = f", about {duration(missing * each)} left" if missing else ""
        took = duration(finished.seconds)
        say(f"{name}: {counted(count, 'measurement')} in {took}{left}")

    def _print_interrupted(self) -> None:
        # By the file: Ctrl-C may have come right after it was written.
        if self._file.exists():
            said = (
                f"interrupted after {_processes(run_files.load(self._file))} of "
                f"{self._order.processes} processes, kept in {_named(self._file)}; go on with:  "
                f"{_continue(self._file, self._order)}"
            )
        else:
            said = "interrupted before a process had finished: nothing was kept"
        complain(said)


def _print_next(file: Path) -> None:
    say("to accept it:", f'  gpuperf update-baseline {_named(file)} --reason "..."')


def _named(file: Path) -> str:
    """The file as one would type it here."""
    return shlex.quote(here(file))


def _continue(file: Path, order: Order) -> str:
    words = run_files.command_line(["--", *order.pytest_args]) if order.pytest_args else ""
    return printable(f"gpuperf record --continue {_named(file)} {words}".rstrip())


def _order_of(run: Run, file: Path) -> Order:
    """What the recording in `file` was begun with; of a session's run, a recording of its tests.

    Raises UsageFailure for the run of any other command.
    """
    try:
        arguments = tuple(run_files.pytest_arguments(run.command))
        if not _is_recorded(run):
            return Order(_PROCESSES, arguments)
        parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
        add_arguments(parser)
        options, unknown = parser.parse_known_args(shlex.split(run.command)[len(_COMMAND) :])
        if unknown:
            raise UsageFailure(f"its command has {printable(' '.join(unknown))}")
        return _order(options)
    except (argparse.ArgumentError, UsageFailure) as error:
        raise UsageFailure(
            f"{file} cannot be continued: {error}. Begin a new recording, without --continue"
        ) from error


def _is_recorded(run: Run) -> bool:
    return shlex.split(run.command)[: len(_COMMAND)] == _COMMAND


def _processes(run: Run) -> int:
    """How many processes are in the run that measured all of it.

    Under pytest-xdist each of them measures in several interpreters, but a test in one of them. In
    a session's run, which looked again at some tests alone, it is the test with the fewest; in a
    recording, of which a test may have failed, that with the most.
    """
    by_name: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for measurement in run.measurements:
        by_name[measurement.test, measurement.name].add(measurement.process)
    return (max if _is_recorded(run) else min)(map(len, by_name.values()), default=0)


def check_same(begun: Run, measured: Run, file: Path, *, partly: bool) -> None:
    """Raises UsageFailure, naming both, when `measured` is of another device, test or workload.

    `partly`: some of its tests failed, so that they may be missing.
    """

    def refuse(difference: str) -> NoReturn:
        raise UsageFailure(
            f"{difference}. Nothing was added to {file}: begin a new recording, without --continue"
        )

    if _devices(begun) != _devices(measured):
        refuse(
            f"{file} was recorded on {', '.join(_devices(begun))}, and this process measured on "
            f"{', '.join(_devices(measured))}"
        )
    before = {(m.test, m.name): m for m in begun.measurements}
    now = {(m.test, m.name): m for m in measured.measurements}
    new = [m.title for key, m in now.items() if key not in before]
    missing = [m.title for key, m in before.items() if key not in now]
    if new:
        refuse(f"this process measured {' '.join(new)}, of which {file} has nothing")
    if missing and not partly:
        refuse(f"{file} has {' '.join(missing)}, of which this process measured nothing")
    for key, m in now.items():
        if m.workload != before[key].workload:
            difference = units.differences(before[key].workload, m.workload)
            refuse(f"{m.title}: the workload in {file} is {difference}")


def _devices(run: Run) -> list[str]:
    """By name and architecture: two GPUs of one name may be in one recording."""
    devices = [measurement.fingerprint.device for measurement in run.measurements]
    return sorted({f"{device.name} ({device.arch})" for device in devices})


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Keeps other recordings from `file`. Raises UsageFailure while one of them is writing it."""
    with ExitStack() as reserved:
        try:
            # The other may take hours: it is not waited for.
            reserved.enter_context(files.reserved(file))
        except files.Locked as taken:
            raise UsageFailure(
                f"{file} is being recorded by another `gpuperf record`, {taken.holder}: wait until "
                "it has ended, or name another file"
            ) from None
        yield
