"""The errors of this package, as types. Each message names the problem and the next action.

This module also makes names from outside fit to be shown.

pytest is not imported here; `plugin/hooks.py` turns a `UsageFailure` into exit code 4.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

OK, FAILED, BAD_CONFIGURATION, INTERRUPTED = 0, 1, 4, 130
"""Exit codes of `gpuperf`: pytest's, and a shell's after Ctrl-C."""

_COMMAND = re.compile(r"^( *):(?=:.*::)|#(?=#(?:\[|vso\[|teamcity\[))")
"""Text that is a command in a CI log: for GitHub "::error::" at the start and "##[error]" anywhere,
"##vso[" for Azure Pipelines, "##teamcity[" for TeamCity."""


def printable(text: str) -> str:
    r"""`text` in one line that shows as it is and that no CI service executes.

    Unprintable characters (control characters, and those that change the direction of writing)
    become their codes, a line feed \x0a. So does the first character of text that a CI log takes
    for a command. Applying it twice changes nothing.
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() else _code(c) for c in text)
    return _COMMAND.sub(lambda match: match[0][:-1] + _code(match[0][-1]), text)


def printable_lines(text: str) -> str:
    """`printable` applied to each line of a text with intended line breaks."""
    return "\n".join(map(printable, text.split("\n")))


def meant(word: str, known: Iterable[str], most: int = 1) -> str:
    """A question that suggests known words close to `word`; "" if there are none."""
    import difflib

    close = difflib.get_close_matches(word, sorted(known), n=most)
    asked = " or ".join(f'"{printable(one)}"' for one in close)
    return f" Did you mean {asked}?" if close else ""


def _code(character: str) -> str:
    return f"\\x{ord(character):02x}"


class GpuperfError(Exception):
    """An error that this package raises on purpose. The message is complete and for the user."""

    code = BAD_CONFIGURATION
    """The exit code of `gpuperf`."""

    def __str__(self) -> str:
        """The message: whatever file or name it quotes, a terminal shows it and does no more."""
        return printable_lines(super().__str__())


class UsageFailure(GpuperfError):
    """Bad configuration or bad input: nothing was measured, nothing was written. Exit code 4."""


class BadFile(UsageFailure):
    """A run or baseline file that cannot be trusted.

    `entry` is the path of the offending value inside the file, for example
    `tests/suites/x.py::test_y/step/samples/cycles/2`, or "" for the file as a whole.
    """

    def __init__(self, file: Path, entry: str, problem: str, remedy: str) -> None:
        self.file, self.entry, self.problem, self.remedy = file, entry, problem, remedy
        where = f"{file}: {printable(entry)}" if entry else f"{file}"
        super().__init__(f"{where}: {problem}. {remedy}")


class NotInstalled(UsageFailure):
    """A revision or a release that cannot be installed here, however often that is tried."""


class CountersUnavailable(GpuperfError):
    """Hardware counters cannot be read here. `reason` says why, `remedy` what to do about it."""

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason, self.remedy = reason, remedy
        super().__init__(f"{reason}. {remedy}")


class MeasurementError(GpuperfError):
    """The step was run but could not be measured as asked (nested phases, changing phases, ...)."""


class UnsoundStep(MeasurementError):
    """The step itself is not fit to be compared, and the test fails with this reason alone.

    Its loss is no number, it does other work after every reset, or memory does not hold it.
    """
