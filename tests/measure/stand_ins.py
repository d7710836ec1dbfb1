"""What tests of measuring have in place of a device's clock, its memory and a C library."""

from __future__ import annotations

import inspect
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.measure.collector import Collected
from pytest_gpuperf.measure.device.memory import CudaMemory
from pytest_gpuperf.measure.execution import CudaTimer
from pytest_gpuperf.model.measurement import Measurement, Reading
from tests import ROOT


class Timer(CudaTimer):
    """Every run takes 5 ms on the device and 7 ms on the wall."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def timed(self, run: Callable[[], object], *, apart: bool = False) -> tuple[float, float]:  # noqa: ARG002
        run()
        return 5.0, 7.0


class Memory(CudaMemory):
    """Of a device whose step takes 5 GB; `note` is told when it was asked."""

    def __init__(self, note: Callable[[str], object] = str) -> None:
        self._note = note

    def clear(self) -> None:
        self._note("clear")

    def begin(self) -> None:
        self._note("memory")

    def peak(self) -> int:
        return 5_000_000_000


def values(collected: Collected) -> dict[tuple[str, str], tuple[float, ...]]:
    """The values of each phase's metrics."""
    return {(sample.phase, sample.metric): sample.values for sample in collected.samples}


def around(made: Measurement) -> tuple[Reading, Reading]:
    """What the guard has read before the measurement and after it."""
    assert made.fingerprint.conditions is not None
    return made.fingerprint.conditions.before, made.fingerprint.conditions.after


def compiled(source: Path, library: Path, *options: str) -> Path:
    """A shared library of C; skips the test where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("needs a C compiler (cc or gcc)")
    made = [compiler, "-shared", "-fPIC", "-o", str(library), str(source), *options]
    subprocess.run(made, check=True)
    return library


def line_of(function: Any, text: str) -> str:
    """The line of a function's or class's file on which it has this text."""
    lines, first = inspect.getsourcelines(function)
    number = next(number for number, line in enumerate(lines, first) if text in line)
    file = Path(inspect.getfile(function)).relative_to(ROOT).as_posix()
    return f"{file}:{number}"
