"""Commands that are ended at any moment lose nothing and leave nothing."""

from __future__ import annotations

import subprocess
import sys

from tests import ROOT


def test_what_is_ended_at_any_moment_loses_nothing_and_leaves_nothing() -> None:
    """4 of them here, 500 at night; by a process that is for nothing else, since it forks."""
    command = [sys.executable, "-m", "tests.killing", "4"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.endswith("\nnothing was lost and nothing was left\n")
