"""What can go wrong, as types. Each message says what happened and what to do next.

pytest is not imported here; `plugin/hooks.py` turns a `UsageFailure` into exit code 4.
"""

from __future__ import annotations

from pathlib import Path

OK, FAILED, BAD_CONFIGURATION, INTERRUPTED = 0, 1, 4, 130
"""Exit codes of `gpuperf`: pytest's, and a shell's after Ctrl-C."""


class GpuperfError(Exception):
    """Anything this package raises on purpose. The message is for the user and complete."""


class UsageFailure(GpuperfError):
    """Bad configuration or bad input: nothing was measured, nothing was written. Exit code 4."""


class BadFile(UsageFailure):
    """A run or baseline file that cannot be trusted.

    `entry` is the path of the offending value inside the file, for example
    `tests/suites/x.py::test_y/step/samples/cycles/2`, or "" for the file as a whole.
    """

    def __init__(self, file: Path, entry: str, problem: str, remedy: str) -> None:
        self.file, self.entry, self.problem, self.remedy = file, entry, problem, remedy
        where = f"{file}: {entry}" if entry else f"{file}"
        super().__init__(f"{where}: {problem}. {remedy}")


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
