"""`gpuperf record`: runs tests in fresh processes, and merges their measurements into one run.

A baseline needs several processes: rounds within one share its memory layout, its clocks and its
luck, so rounds say little about the next process. Processes take long, so results are kept after
each of them, and a recording can be continued.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from pytest_gpuperf.baselines.reference import other_work
from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.units import counted, duration
from pytest_gpuperf.commands import complain, here, print_failure, say
from pytest_gpuperf.commands.flags import add_new_run, check_new, new_run
from pytest_gpuperf.errors import FAILED, INTERRUPTED, OK, UsageFailure, printable
from pytest_gpuperf.measure import fresh_process
from pytest_gpuperf.measure.fresh_process import Finished
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.report.text.progress import Display, on_stdout
from pytest_gpuperf.storage import files, run_files

USAGE = (
    "gpuperf record [--processes K] [--run FILE] -- PYTEST-ARGS\n"
    "       gpuperf record --continue RUN [--processes K] -- PYTEST-ARGS\n"
    "       gpuperf record ... -- torchrun --nproc-per-node N -m pytest PYTEST-ARGS"
)
EXAMPLES = (
    "gpuperf record --processes 5 -- tests/perf",
    "gpuperf record --continue run.json --processes 9 -- tests/perf",
)

_PROCESSES = 5
_COMMAND = ["gpuperf", "record"]
_COUNT_KERNELS = "--gpuperf-kernels=always"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf record`."""
    parser.add_argument(
        "--processes",
        type=int,
        metavar="K",
        help=f"total number of processes; default: {_PROCESSES} on a GPU, 1 on a CPU",
    )
    either = parser.add_mutually_exclusive_group()
    add_new_run(either)
    either.add_argument(
        "--continue",
        dest="continued",
        type=Path,
        metavar="RUN",
        help="resume or extend this run to K processes, from the same folder and with the same "
        "PYTEST-ARGS",
    )
    parser.add_argument("pytest_args", nargs="*", metavar="PYTEST-ARGS")


def act(options: argparse.Namespace) -> int:
    """Runs pytest in one process after the other, and saves one merged run.

    No measurement is judged, since the run may become the baseline. The file is written after every
    process; where torchrun starts pytest, after one of each rank. Prints a line per process.
    Returns 0; pytest's exit code when a process measured nothing or had a failing test; 128 and the
    signal's number when one was killed; or INTERRUPTED.
    Raises UsageFailure for a file that exists, or that is being recorded at this moment. Also for a
    recording to continue, left unchanged, when the arguments of pytest differ, or a process
    measures another device, test or workload than the processes in the recording.
    """
    if options.processes is not None and options.processes < 1:
        raise UsageFailure(f"--processes {options.processes} must be at least 1")
    continued: Path | None = options.continued
    with files.reserved(file := continued or new_run(options)):
        if not continued:
            check_new(file)
        begun = _begun(continued, options.pytest_args) if continued else None
        recording = _Recording(options.processes, options.pytest_args, file, begun)
        return recording.go_on()


def _begun(file: Path, pytest_args: Sequence[str]) -> Run:
    """The recording to continue.

    Arguments of pytest execute what they name, and a run may come from elsewhere. So they are never
    taken out of the run, only compared with the arguments that the user typed.
    """
    run = run_files.load(file)
    try:
        before = run_files.pytest_arguments(run.command)
    except UsageFailure as error:
        raise UsageFailure(
            f"{file} cannot be continued, as {error}. Start a new recording, without --continue"
        ) from error
    if run_files.without_secrets(pytest_args) != run_files.without_secrets(before):
        other = "other pytest arguments" if pytest_args else "these pytest arguments"
        raise UsageFailure(
            f"{file} was recorded with {other}. Type `{_continue(file, before)}`, or start "
            "a new recording without --continue"
        )
    return run


class _Recording:
    """A recording under way."""

    def __init__(
        self, processes: int | None, pytest_args: Sequence[str], file: Path, begun: Run | None
    ) -> None:
        self._processes = processes or _PROCESSES
        self._is_asked = bool(processes or begun)
        self._pytest_args, self._file = pytest_args, file
        self._begun = self._kept = begun
        self._done = _processes(begun) if begun else 0
        self._without_kernels = not begun or all(m.kernels is None for m in begun.measurements)
        self._took: list[float] = []
        self._display = Display(on_stdout)

    def go_on(self) -> int:
        """Runs the processes that are missing, and returns the exit code."""
        if self._done >= self._processes:
            held = f"{counted(self._done, 'process')} of {self._processes}"
            say(
                f"nothing to do: {_named(self._file)} has {held}. A larger --processes adds more",
                *_next(self._file),
            )
            return OK
        try:
            code = self._measure()
        except KeyboardInterrupt:
            self._print_interrupted()
            return INTERRUPTED
        if self._kept is None:
            complain("pytest measured nothing, so gpuperf saved no run")
            return code
        say(*_varying(self._kept), f"run saved: {_named(self._file)}")
        if not code:
            say(*_next(self._file))
        elif self._done < self._processes:
            say("to continue:", f"  {self._go_on()}")
        return code

    def _measure(self) -> int:
        worst = 0
        launcher, arguments = run_files.launched(self._pytest_args)
        torchrun = [sys.executable, "-m", "torch.distributed.run", *launcher[1:-1], "--no-python"]
        under = torchrun if launcher else []
        number = self._done
        while number < self._processes:
            number += 1
            name = f"process {number}{f' of {self._processes}' if self._is_asked else ''}"
            with self._display.of(name):
                self._display.begins("measuring")
                finished = fresh_process.run_pytest(
                    [*self._kernels(), "-q", *arguments],
                    folder=Path.cwd(),
                    under=under,
                    tick=lambda _: self._display.goes_on(),
                )
            self._took.append(finished.seconds)
            self._settle(finished.run)
            self._print_progress(name, finished, self._processes - number)
            code = print_failure(finished)
            if finished.run:
                self._keep(finished.run, code)
            worst = max(worst, code)
            if code > FAILED or not finished.run:
                return worst or FAILED
        return worst

    def _settle(self, first: Run | None) -> None:
        """Sets the number of processes by the first process, where the user gave no number.

        Exact counts, the only judged metrics on a CPU, are the same in all processes.
        """
        if not self._is_asked and first and first.measurements:
            self._is_asked = True
            if {m.fingerprint.device.arch for m in first.measurements} == {architectures.CPU}:
                self._processes = 1

    def _kernels(self) -> list[str]:
        """The flag for the first process to count kernels: a baseline keeps one table of kernels.

        The flag comes before the arguments of pytest, so that a flag of the user wins.
        """
        first = not self._took
        return [_COUNT_KERNELS] if first and self._without_kernels else []

    def _keep(self, measured: Run, code: int) -> None:
        if self._begun:
            check_same(self._begun, measured, self._file, partly=bool(code))
        parts = [self._kept, measured] if self._kept else [measured]
        words = [*_COMMAND, "--processes", str(self._processes), "--", *self._pytest_args]
        self._kept = run_files.merged(parts, run_files.command_line(words))
        run_files.save(self._kept, self._file)
        self._done += 1

    def _print_progress(self, name: str, finished: Finished, missing: int) -> None:
        count = len(finished.run.measurements) if finished.run else 0
        each = sum(self._took) / len(self._took)
        left = f", about {duration(missing * each)} left" if missing else ""
        took = duration(finished.seconds)
        say(f"{name}: {counted(count, 'measurement')} in {took}{left}")

    def _print_interrupted(self) -> None:
        # By the file: Ctrl-C may have come right after it was written.
        if self._file.exists():
            said = (
                f"interrupted after {_processes(run_files.load(self._file))} of "
                f"{self._processes} processes, kept in {_named(self._file)}; continue with:  "
                f"{self._go_on()}"
            )
        else:
            said = "interrupted before the first process finished, so gpuperf kept nothing"
        complain(said)

    def _go_on(self) -> str:
        return _continue(self._file, self._pytest_args, self._processes)


def _varying(run: Run) -> list[str]:
    """The tests that cannot have a baseline, since their step does other work each time."""
    return [f"note: {text}" for r in run.results() if (text := other_work(r.measurements))]


def _next(file: Path) -> list[str]:
    return ["to accept it:", f'  gpuperf update-baseline {_named(file)} --reason "..."']


def _named(file: Path) -> str:
    """The file as a user would type it here."""
    return shlex.quote(here(file))


def _continue(file: Path, pytest_args: Sequence[str], processes: int = _PROCESSES) -> str:
    """The command that continues a recording."""
    number = "" if processes == _PROCESSES else f"--processes {processes} "
    words = run_files.command_line(["--", *pytest_args]) if pytest_args else ""
    return printable(f"gpuperf record --continue {_named(file)} {number}{words}".rstrip())


def _processes(run: Run) -> int:
    """The number of processes in a run that measured the whole suite.

    Under pytest-xdist each process measures in several interpreters, but a test in one of them. In
    a session's run, which looked again at some tests alone, it is the test with the fewest; in a
    recording, of which a test may have failed, that with the most.
    """
    by_name: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for measurement in run.measurements:
        by_name[measurement.test, measurement.name].add(measurement.process)
    is_recorded = shlex.split(run.command)[: len(_COMMAND)] == _COMMAND
    return (max if is_recorded else min)(map(len, by_name.values()), default=0)


def check_same(begun: Run, measured: Run, file: Path, *, partly: bool) -> None:
    """Raises UsageFailure, naming both, when `measured` is of another device, test or workload.

    `partly`: some of its tests failed, so that they may be missing.
    """
    before, now = _what(begun), _what(measured)
    for what, where in (
        (now - before, f"this process measured {{}}, which {file} lacks"),
        (set() if partly else before - now, f"{file} has {{}}, which this process did not measure"),
    ):
        if what:
            raise UsageFailure(
                f"{where.format('; '.join(sorted(what)))}. gpuperf did not change {file}. Start a "
                "new recording, without --continue"
            )


def _what(run: Run) -> set[str]:
    """The contents of a run: tests, their workloads, and devices.

    Devices count by name and architecture: two GPUs of one name may be in one recording.
    """
    return {
        f"{m.title} on {m.fingerprint.device.name} ({m.fingerprint.device.arch})"
        + "".join(f", {key} {value}" for key, value in sorted(m.workload.items()))
        for m in run.measurements
    }
