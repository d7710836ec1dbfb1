"""`gpuperf record`: runs tests in fresh processes, and merges their measurements into one run.

A baseline needs several processes: rounds within one share its memory layout, its clocks and its
luck, so rounds say little about the next process. Processes take long, so results are kept after
each of them; `gpuperf update-baseline` accepts several runs together.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_gpuperf.baselines.reference import other_work
from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.units import counted, duration
from pytest_gpuperf.commands import complain, here, print_failure, say
from pytest_gpuperf.commands.flags import add_new_run, check_new, new_run
from pytest_gpuperf.errors import FAILED, INTERRUPTED, UsageFailure
from pytest_gpuperf.measure import fresh_process
from pytest_gpuperf.measure.fresh_process import Finished, Start
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.report.text.next_command import of_run
from pytest_gpuperf.report.text.progress import Display, on_stdout
from pytest_gpuperf.storage import files, run_files

USAGE = (
    "gpuperf record [--processes K] [--run FILE] -- PYTEST-ARGS\n"
    "       gpuperf record ... -- torchrun --nproc-per-node N -m pytest PYTEST-ARGS"
)
EXAMPLES = ("gpuperf record --processes 5 -- tests/perf",)

_PROCESSES = 5
_COUNT_KERNELS = "--gpuperf-kernels=always"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf record`."""
    parser.add_argument(
        "--processes",
        type=int,
        metavar="K",
        help=f"total number of processes; default: {_PROCESSES} on a GPU, 1 on a CPU",
    )
    add_new_run(parser)
    parser.add_argument("pytest_args", nargs="*", metavar="PYTEST-ARGS")


def act(options: argparse.Namespace) -> int:
    """Runs pytest in one process after the other, and saves one merged run.

    No measurement is judged, since the run may become the baseline. The file is written after every
    process; where torchrun starts pytest, after one of each rank. Prints a line per process.
    Returns 0; pytest's exit code when a process measured nothing or had a failing test; 128 and the
    signal's number when one was killed; or INTERRUPTED.
    Raises UsageFailure for a file that exists, or that is being recorded at this moment.
    """
    if options.processes is not None and options.processes < 1:
        raise UsageFailure(f"--processes {options.processes} must be at least 1")
    with files.reserved(file := new_run(options)):
        check_new(file)
        return _Recording(options.processes, options.pytest_args, file).recorded()


class _Recording:
    """A recording under way."""

    def __init__(self, processes: int | None, pytest_args: Sequence[str], file: Path) -> None:
        self._processes = processes or _PROCESSES
        self._is_asked = processes is not None
        self._pytest_args, self._file = pytest_args, file
        self._kept: Run | None = None
        self._took: list[float] = []
        self._display = Display(on_stdout)

    def recorded(self) -> int:
        """Runs the processes, and returns the exit code."""
        try:
            code = self._measure()
        except KeyboardInterrupt:
            complain(f"interrupted {self._so_far()}")
            return INTERRUPTED
        if self._kept is None:
            complain("pytest measured nothing, so gpuperf saved no run")
            return code
        named = shlex.quote(here(self._file))
        # Tests whose step does other work each time cannot have a baseline.
        varying = filter(None, (other_work(r.measurements) for r in self._kept.results()))
        say(*(f"note: {text}" for text in varying), f"run saved: {named}")
        if not code:
            say("to accept it:", f"  {of_run(self._kept, here(self._file)).accept()}")
        return code

    def _measure(self) -> int:
        worst = number = 0
        launcher, arguments = run_files.launched(self._pytest_args)
        torchrun = [sys.executable, "-m", "torch.distributed.run", *launcher[1:-1], "--no-python"]
        while number < self._processes:
            number += 1
            # A baseline keeps one table of kernels. A flag of the user comes later, and wins.
            kernels = [_COUNT_KERNELS] if number == 1 else []
            name = f"process {number}{f' of {self._processes}' if self._is_asked else ''}"
            with self._display.of(name):
                self._display.begins("measuring")
                under = torchrun if launcher else []
                start = Start([*kernels, "-q", *arguments], Path.cwd(), under=under)
                finished = fresh_process.run_pytest(start)
            self._took.append(finished.seconds)
            self._settle(finished.run)
            self._print_progress(name, finished, self._processes - number)
            code = print_failure(finished)
            if finished.run:
                self._keep(finished.run)
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

    def _keep(self, measured: Run) -> None:
        parts = [self._kept, measured] if self._kept else [measured]
        words = ["gpuperf", "record", "--processes", str(self._processes), "--"]
        self._kept = run_files.merged(parts, run_files.command_line([*words, *self._pytest_args]))
        run_files.save(self._kept, self._file)

    def _print_progress(self, name: str, finished: Finished, missing: int) -> None:
        count = len(finished.run.measurements) if finished.run else 0
        each = sum(self._took) / len(self._took)
        left = f", about {duration(missing * each)} left" if missing else ""
        took = duration(finished.seconds)
        say(f"{name}: {counted(count, 'measurement')} in {took}{left}")

    def _so_far(self) -> str:
        """What an interrupted recording has kept, and how it is completed."""
        done, named = len(self._took), shlex.quote(here(self._file))
        if not done:
            return "before the first process finished, so gpuperf kept nothing"
        return (
            f"after {done} of {self._processes} processes, kept in {named}. For the others, record "
            f"again with --processes {self._processes - done}, and accept both runs together"
        )
