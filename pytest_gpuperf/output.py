"""Printing what may be read only in part: `gpuperf compare ... | head`."""

from __future__ import annotations

import os
import sys


def show(text: str) -> None:
    """Prints `text`. Who has read enough of it and goes away is no error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Python would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
