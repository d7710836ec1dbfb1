"""Running tests in fresh processes, and merging what they measured into one run.

A baseline needs several processes: rounds within one share its memory layout, its clocks and its
luck, so they say little about the next process.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pytest_gpuperf import runs
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.model import Run
from pytest_gpuperf.report import messages

_TESTS_FAILED = 1


def record(processes: int, pytest_args: Sequence[str], file: Path) -> int:
    """Runs pytest `processes` times, one after the other, and saves one merged run in `file`.

    Nothing is judged: what is recorded may become the baseline. Prints a line per process. Returns
    0, or pytest's exit code when a process measured nothing or had a failing test; what was
    measured until then is saved all the same. Raises UsageFailure for fewer than one process.
    """
    if processes < 1:
        raise UsageFailure(f"--processes {processes}: at least 1 is needed")
    found: list[Run] = []
    worst = 0
    command = shlex.join(["gpuperf", "record", "--processes", str(processes), "--", *pytest_args])
    with tempfile.TemporaryDirectory(prefix="gpuperf-") as folder:
        for number in range(1, processes + 1):
            begun = time.monotonic()
            part = Path(folder) / f"{number}.json"
            code, output = _run_pytest(pytest_args, part)
            took = time.monotonic() - begun
            measured = runs.load(part) if part.exists() else None
            count = len(measured.measurements) if measured else 0
            left = (processes - number) * took
            print(
                f"process {number} of {processes}: {count} measurements in {took:.0f} s"
                + (f", about {left:.0f} s left" if left else ""),
                flush=True,
            )
            if measured:
                found.append(measured)
            if code:
                worst = max(worst, code)
                print(output, file=sys.stderr)
                print(f"gpuperf: pytest ended with exit code {code}, see above", file=sys.stderr)
            if code > _TESTS_FAILED or not measured:
                worst = worst or _TESTS_FAILED
                break
    if not found:
        print("gpuperf: nothing was measured, so no run was saved", file=sys.stderr)
        return worst
    runs.save(runs.merged(found, command), file)
    print(f"run saved: {file}")
    if not worst:
        named = shlex.quote(messages.short(file, Path.cwd()))
        print(f'accept it with:  gpuperf update-baseline {named} --reason "..."')
    return worst


def _run_pytest(pytest_args: Sequence[str], run: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-q", *pytest_args]
    command += ["--gpuperf-no-judge", f"--gpuperf-run={run}"]
    finished = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return finished.returncode, finished.stdout
