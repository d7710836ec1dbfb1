"""What a terminal shows after it was sent text: as much of one as our output and pytest's need."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(
    r"\x1b\[(\d*)([A-Za-z])|\x1b\][^\x1b\x07]*(?:\x1b\\|\x07)|[\r\n]|.", re.DOTALL
)


class Screen:
    """A terminal of so many columns, endless below."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._rows: list[list[str]] = [[]]
        self._row = self._column = 0
        self.frames: list[str] = []
        """The line that the cursor was in, whenever the rest of it had been erased."""

    @property
    def text(self) -> str:
        """All that is shown, without blanks at the ends of lines."""
        return "\n".join("".join(row).rstrip() for row in self._rows).rstrip("\n")

    @property
    def cursor(self) -> tuple[int, int]:
        """Row and column of what is written next, from 0."""
        return self._row, self._column

    def feed(self, text: str) -> None:
        """Shows `text`. Raises ValueError for a control sequence that is not known here."""
        for made in _SEQUENCE.finditer(text):
            if made[2]:
                self._control(made[2], int(made[1] or 0))
            elif made[0] == "\r":
                self._column = 0
            elif made[0] == "\n":
                self._down()
            elif not made[0].startswith("\x1b"):
                self._write(made[0])

    def _write(self, character: str) -> None:
        if self._column == self._columns:
            self._down()
        row = self._rows[self._row]
        row += " " * (self._column + 1 - len(row))
        row[self._column] = character
        self._column += 1

    def _down(self) -> None:
        """To the beginning of the next line, as a terminal's driver makes it of a newline."""
        self._row, self._column = self._row + 1, 0
        if self._row == len(self._rows):
            self._rows.append([])

    def _control(self, kind: str, number: int) -> None:
        if kind == "K":
            self.frames.append("".join(self._rows[self._row][: self._column]))
            del self._rows[self._row][self._column :]
        elif kind == "A":
            self._row -= number or 1
        elif kind == "G":
            self._column = min(number, self._columns) - 1
        elif kind != "m":
            raise ValueError(f"the control sequence {kind} is not known here")
