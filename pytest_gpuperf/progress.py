"""Saying how far something long has come: durations for people, and a line that is written over."""

from __future__ import annotations

import sys
from collections.abc import Callable


def duration(seconds: float) -> str:
    """Seconds as people say them: "61 s", "2.5 min", "14 h"; at most two digits of min and h."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    number, unit = (seconds / 60, "min") if seconds < 99.5 * 60 else (seconds / 3600, "h")
    return f"{number:.2g} {unit}" if number < 9.95 else f"{number:.0f} {unit}"


def counted(number: int, noun: str) -> str:
    """A number and what it counts: "1 measurement", "3 processes"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


class LiveLine:
    """A line on stdout that is written over until it is erased; nothing without a terminal."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._width = 0

    def show(self, text: str) -> None:
        """Shows `text` in place of what was shown before."""
        if self._terminal:
            # Before it is printed: Ctrl-C right after it has to erase it.
            self._width = max(self._width, len(text))
            print("\r" + text.ljust(self._width), end="", flush=True)

    def counting(self, text: str) -> Callable[[float], None]:
        """A function that shows `text` and the seconds that it is called with."""
        return lambda seconds: self.show(f"{text} ... {duration(seconds)}")

    def erase(self) -> None:
        """Leaves the line empty, as if nothing had been shown."""
        if self._width:
            print("\r" + " " * self._width + "\r", end="", flush=True)
            self._width = 0
