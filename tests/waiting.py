"""Other processes: waiting for what happens in them, whether one lives or holds something, several
at once.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pytest_gpuperf.storage import files

DEADLINE = 60.0
"""Seconds after which a test gives up."""


def wait_for(happened: Callable[[], bool], what: str) -> None:
    """Returns once `happened`; fails the test when it takes too long."""
    end = time.monotonic() + DEADLINE
    while not happened():
        assert time.monotonic() < end, f"waited {DEADLINE:.0f} s in vain for {what}"
        time.sleep(0.02)


def lives(pid: int) -> bool:
    """Whether this process runs; one that ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def is_held(place: Path) -> bool:
    """Whether somebody holds it."""
    try:
        with files.locked(place, patience=0):
            return False
    except files.Locked:
        return True


def run_at_once(*arguments: list[str]) -> None:
    """Runs Python with these arguments, each until it has printed a line, and then all at once."""
    children = [
        subprocess.Popen(
            [sys.executable, *own], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for own in arguments
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        child.communicate()
        assert child.returncode == 0
