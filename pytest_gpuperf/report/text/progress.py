"""Progress for people: the current action of a measurement and the remaining time.

Collectors report to a `Display`, and an outlet shows it. A terminal has one line that is
overwritten and erased; a log has an occasional line if it takes long; or nothing is shown.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from shutil import get_terminal_size

from pytest_gpuperf.catalogue.units import duration
from pytest_gpuperf.errors import printable
from pytest_gpuperf.measure.collector import Progress
from pytest_gpuperf.report.text.table import shortened

PATIENCE = 30.0
"""Seconds of one measurement before the first line of a log; each later wait doubles."""
_REDRAWN = 0.1
"""Seconds between two states of a line within one stage: eyes are no faster."""
_SPARE = 3
"""Columns left free on a terminal: for the ^C that it shows, and the last, after which it may go on
below."""
_LEAST_TITLE = 10
"""Characters below which a name says nothing, and is left out."""


@dataclass(frozen=True)
class Status:
    """The state of a measurement at one moment."""

    title: str
    """The title of the measurement."""
    doing: str
    """For example "counting round 2 of 5, pass 3 of 14"."""
    passed: float
    """Seconds since the measurement began."""
    since: float
    """Seconds since that began which is being done."""
    left: float | None = None
    """Estimated seconds to the end; None if unknown."""

    def line(self, width: int) -> str:
        """The status in at most `width` characters; what has no room is shortened or left out."""
        title = printable(self.title)
        said = self.doing
        if self.left:
            said += f", about {duration(self.left)} left"
        elif self.since >= 1:
            said += f", {duration(self.since)} so far"
        said = said if len(said) <= width else self.doing
        room = width - len(said) - len(": ")
        if room >= min(len(title), _LEAST_TITLE):
            said = f"{shortened(title, room)}: {said}"
        return printable(said)[:width]


class Outlet:
    """The place where a status appears; this one shows nothing."""

    def show(self, status: Status, *, new: bool) -> None:
        """Shows it; `new` says that another stage begins."""

    def end(self) -> None:
        """The measurement has ended; nothing is to stay behind."""


class Below(Outlet):
    """One line below the line that another writer has open; that writer can go on undisturbed.

    `write` puts text on the terminal at once; `columns` is its width; `column` is the length of the
    other writer's line.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        columns: Callable[[], int],
        column: Callable[[], int],
    ) -> None:
        self._write, self._columns, self._column = write, columns, column
        self._under: int | None = None
        """The length of the line above; None while nothing is shown."""
        self._drawn = 0.0

    def show(self, status: Status, *, new: bool) -> None:
        """Overwrites the previous status, but slowly enough to read."""
        here = self._column()
        if self._under != here:  # not yet shown, or the other writer has written meanwhile
            self._under, new = here, True
            self._write("\n" if here else "")
        if new or status.passed - self._drawn >= _REDRAWN:
            self._drawn = status.passed
            self._write(f"\r{status.line(self._columns() - _SPARE)}\x1b[K")

    def end(self) -> None:
        """Erases the line, and returns to the other writer's position."""
        under, self._under = self._under, None
        if under is not None and under == self._column():
            columns = self._columns()
            back = f"\x1b[A\x1b[{(under - 1) % columns + 2}G" if under else ""
            self._write(f"\r\x1b[K{back}")


class Occasional(Outlet):
    """Lines for a log: none for a short measurement, and ever fewer for a long one."""

    def __init__(self, say: Callable[[str], object], columns: Callable[[], int]) -> None:
        self._say, self._columns = say, columns
        self._due = PATIENCE

    def show(self, status: Status, *, new: bool) -> None:  # noqa: ARG002
        """Says it where it is time for that."""
        if status.passed >= self._due:
            while self._due <= status.passed:
                self._due *= 2
            self._say(status.line(self._columns()))

    def end(self) -> None:
        """The next measurement is given as much patience."""
        self._due = PATIENCE


class Display(Progress):
    """Shows the current action of the measurement.

    The remaining time is estimated from earlier executions of the same stage. `outlet` is asked for
    when the first measurement begins, because pytest has a terminal for certain only then.
    """

    def __init__(
        self,
        outlet: Callable[[], Outlet],
        clock: Callable[[], float] = time.monotonic,
        aside: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._find_outlet, self._clock, self._aside = outlet, clock, aside
        self._outlet: Outlet | None = None
        self._title = ""
        self._begun = 0.0
        self._stage = self._place = ""
        self._left: int | None = None
        self._stage_begun = self._last_begun = 0.0
        self._done = 0
        """Executions of this stage that are over."""

    @contextmanager
    def of(self, title: str) -> Iterator[None]:
        """Shows progress inside the block under this title, and nothing after it."""
        outlet = self._outlet = self._outlet or self._find_outlet()
        self._title, self._stage, self._begun = title, "", self._clock()
        try:
            yield
        finally:
            self._title = ""
            outlet.end()

    def aside(self) -> AbstractContextManager[object]:
        """See Progress."""
        return self._aside()

    def begins(self, stage: str, place: str = "", left: int | None = None) -> None:
        """See Progress."""
        now, new = self._clock(), stage != self._stage
        if new:
            self._stage, self._stage_begun, self._done = stage, now, 0
        else:
            self._done += 1
        self._place, self._left, self._last_begun = place, left, now
        self._show(now, new=new)

    def goes_on(self) -> None:
        """See Progress."""
        self._show(self._clock(), new=False)

    def _show(self, now: float, *, new: bool) -> None:
        if not self._title or self._outlet is None:
            return
        since, left = now - self._last_begun, None
        if self._left is not None and self._done:
            each = (self._last_begun - self._stage_begun) / self._done
            left = max(0.0, self._left * each - since)
        doing = f"{self._stage} {self._place}".rstrip()
        status = Status(self._title, doing, now - self._begun, since, left)
        self._outlet.show(status, new=new)


def on_stdout() -> Outlet:
    """The outlet of a command: a line on its terminal if stdout is one; else none."""
    if not obeys(sys.stdout.isatty()):
        return Outlet()

    def write(text: str) -> None:
        print(text, end="", flush=True)

    return Below(write, lambda: get_terminal_size().columns, column=lambda: 0)


def obeys(terminal: bool) -> bool:
    """Whether a line can be erased on this terminal."""
    return terminal and os.environ.get("TERM", "dumb") != "dumb"
