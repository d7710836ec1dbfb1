"""The committed runs, each of which is read once in a process, however many tables need it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pytest_gpuperf.model.result import Run
from pytest_gpuperf.storage import run_files


@cache
def run(file: Path) -> Run:
    """The run in `file`. Raises GpuperfError where it cannot be read."""
    return run_files.load(file)
