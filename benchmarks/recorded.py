"""The committed runs, each of which is read once in a process, however many tables need it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pytest_gpuperf.model.result import Run
from pytest_gpuperf.storage import run_files

_ROOT = Path(__file__).resolve().parent.parent


def run(file: str | Path) -> Run:
    """The run in `file`, from the root on. Raises GpuperfError where it cannot be read."""
    return _read(_ROOT / file)


@cache
def _read(file: Path) -> Run:
    return run_files.load(file)
