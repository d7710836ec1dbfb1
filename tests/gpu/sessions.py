"""Sessions of pytest in a folder of their own, as a user of the plugin has them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.projects import environment

ENDED_AFTER_S = 300
"""A session that is not over by then hangs."""


def session(folder: Path, *flags: str, **variables: str) -> tuple[int, str]:
    """Its exit code and what it printed."""
    command = [sys.executable, "-m", "pytest", "-rs", "--gpu-arch=auto", *flags]
    ended = subprocess.run(
        command,
        cwd=folder,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=ENDED_AFTER_S,
        check=False,
    )
    print(ended.stdout)
    return ended.returncode, ended.stdout
