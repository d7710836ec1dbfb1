"""Progress for people: a line of a terminal with the current action of a measurement.

The line is overwritten, and erased after the measurement. Elsewhere nothing is shown.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from shutil import get_terminal_size

from pytest_gpuperf.errors import printable
from pytest_gpuperf.measure.collector import Progress
from pytest_gpuperf.report.text.table import shortened

_REDRAWN = 0.1
"""Seconds between two states of a line within one stage: eyes are no faster."""
_SPARE = 3
"""Columns left free: for the ^C that a terminal shows, and the last, after which it may go on
below."""
_LEAST_TITLE = 10
"""Characters below which a name says nothing, and is left out."""


@dataclass(frozen=True)
class Outlet:
    """A terminal that another writer writes to as well."""

    write: Callable[[str], object]
    """Puts text on the terminal at once."""
    columns: Callable[[], int]
    """The width of the terminal."""
    column: Callable[[], int]
    """The length of the line that the other writer has open."""


class Display(Progress):
    """Shows the current action of a measurement below the line that another writer has open.

    That writer can go on undisturbed. `find` returns the outlet, or None to show nothing. It is
    called when a measurement begins, because pytest has a terminal for certain only then.
    """

    def __init__(
        self,
        find: Callable[[], Outlet | None],
        clock: Callable[[], float] = time.monotonic,
        aside: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._find, self._clock, self._aside = find, clock, aside
        self._outlet: Outlet | None = None
        self._title = self._stage = ""
        self._drawn = 0.0
        self._under: int | None = None
        """The length of the line above; None while nothing is shown."""

    @contextmanager
    def of(self, title: str) -> Iterator[None]:
        """Shows progress inside the block under this title, and nothing after it."""
        outlet = self._outlet = self._find()
        self._title, self._stage = title, ""
        try:
            yield
        finally:
            self._outlet = None
            under, self._under = self._under, None
            if outlet and under is not None and under == outlet.column():
                # The line is erased, and the other writer's position is as before.
                back = f"\x1b[A\x1b[{(under - 1) % outlet.columns() + 2}G" if under else ""
                outlet.write(f"\r\x1b[K{back}")

    def aside(self) -> AbstractContextManager[object]:
        """See Progress."""
        return self._aside()

    def begins(self, stage: str, place: str = "") -> None:
        """Overwrites the previous action, but slowly enough to read."""
        outlet, now = self._outlet, self._clock()
        if outlet is None or (stage == self._stage and now - self._drawn < _REDRAWN):
            return
        self._stage, self._drawn = stage, now
        here = outlet.column()
        if self._under != here:  # not yet shown, or the other writer has written meanwhile
            self._under = here
            outlet.write("\n" if here else "")
        said = line(self._title, f"{stage} {place}".rstrip(), outlet.columns() - _SPARE)
        outlet.write(f"\r{said}\x1b[K")


def line(title: str, doing: str, width: int) -> str:
    """Title and action in at most `width` characters; without room, the title is shortened."""
    title, room = printable(title), width - len(doing) - len(": ")
    if room >= min(len(title), _LEAST_TITLE):
        doing = f"{shortened(title, room)}: {doing}"
    return printable(doing)[: max(width, 0)]


def on_stdout() -> Outlet | None:
    """The outlet of a command: its terminal if stdout is one."""
    if not obeys(sys.stdout.isatty()):
        return None
    write = partial(print, end="", flush=True)
    return Outlet(write, lambda: get_terminal_size().columns, column=lambda: 0)


def obeys(terminal: bool) -> bool:
    """Whether a line can be erased on this terminal."""
    return terminal and os.environ.get("TERM", "dumb") != "dumb"
