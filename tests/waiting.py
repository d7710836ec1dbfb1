"""Waiting for something to happen in another process, and looking at whether one lives."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

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
