"""One file per `gpuperf X`: its flags, its action and its own text.

What a command prints goes through `say`: it names what is in files that others made.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from pytest_gpuperf.errors import printable

if TYPE_CHECKING:
    from pytest_gpuperf.measure.fresh_process import Finished
    from pytest_gpuperf.report.text.table import Line


def say(*lines: str, error: bool = False) -> None:
    """Prints each text as one line, on stderr for an `error`.

    A reader that closes the pipe early (`| head`) is no error.
    """
    stream = sys.stderr if error else sys.stdout
    try:
        print("\n".join(map(printable, lines)), file=stream, flush=True)
    except BrokenPipeError:
        # Python would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def tell(*lines: str) -> None:
    """Prints texts for people to read, with lines wrapped to the terminal's width.

    Commands to type next are not wrapped.
    """
    from pytest_gpuperf.report.text.table import within

    say(*(part for line in lines for part in within(printable(line), terminal_width())))


def say_lines(lines: Iterable[Line]) -> None:
    """Prints lines that were made for this width."""
    say(*(line.text for line in lines))


def say_json(data: object) -> None:
    """Prints JSON that says the same in the log of a CI service. Raises ValueError for NaN."""
    text = json.dumps(data, indent=1, allow_nan=False).replace("##", "#\\u0023")
    say(*text.split("\n"))


def terminal_width() -> int:
    """How many characters a line may have here."""
    return get_terminal_size().columns


def here(path: Path) -> str:
    """The path as a user would type it here, if the path lies in this folder."""
    from pytest_gpuperf.storage import files

    return files.short(path, Path.cwd())


def write_reports(outputs: Iterable[Path], text_of: Callable[[Path], str]) -> None:
    """Writes each file's content, and prints a line about each file, as `say` does."""
    from pytest_gpuperf.storage import files

    for output in outputs:
        files.write_atomically(output, text_of(output))
        say(f"report written: {output}")


def complain(message: object) -> None:
    """Says on stderr what went wrong, an error's message for example; it may have several lines."""
    say(*f"gpuperf: {message}".split("\n"), error=True)


def confirmed(question: str) -> bool:
    """Whether the user at the terminal answers yes."""
    if not sys.stdin.isatty():
        complain("confirmation needs a terminal. To accept without one, pass --yes")
        return False
    try:
        return input(printable(f"{question} [y/N] ")).strip().lower() in ("y", "yes")
    except EOFError:
        say("")
        return False


def print_failure(finished: Finished) -> int:
    """Prints the reason for a failure of pytest, if any; returns our exit code for the failure."""
    if not finished.code:
        return 0
    # As it would stand here if that process were this one.
    print(finished.output, file=sys.stderr)
    if finished.code > 0:
        complain(f"pytest ended with exit code {finished.code}, see above")
        return finished.code
    import signal

    name = signal.strsignal(-finished.code)
    complain(f"pytest ended by signal {-finished.code} ({name}), see above")
    return 128 - finished.code
