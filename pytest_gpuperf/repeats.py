"""Measuring a test again, each time in a fresh interpreter.

One slow process says nothing: its memory layout, its clocks and its luck are its own. So the judge
asks for more of them, and they are started here, from inside the session: the same command line, in
the same folder, reduced to the one test.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf import fresh
from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.model import Measurement

_VARIABLE = "GPUPERF_REPEAT"
"""Names the test to a fresh process: JSON of its node id."""
_PASSED, _FAILED = 0, 1
_OUTPUT_LINES = 20
"""So much of a failed process's output is quoted."""


@dataclass(frozen=True)
class Invocation:
    """How pytest was started, so that it can be started again."""

    arguments: tuple[str, ...]
    folder: Path
    """The working directory that the arguments are relative to."""
    distributed: bool = False
    """pytest-xdist is there: a repeat must not start workers of its own."""


class Repeats:
    """Measurements of tests in further processes, made when asked for and kept for the session."""

    def __init__(
        self, invocation: Invocation, time_limit: float, say: Callable[[str], None]
    ) -> None:
        self._invocation = invocation
        self._time_limit = time_limit
        self._say = say
        self._found: dict[str, list[tuple[Measurement, ...]]] = {}

    def measurements(self, test: str, name: str, count: int) -> tuple[Measurement, ...]:
        """`count` measurements `name` of the test with this node id, each of a fresh process.

        What earlier calls measured is used again. Raises MeasurementError when a process fails,
        measures nothing, or takes longer than the time limit; what was measured before is kept.
        """
        found = self._found.setdefault(test, [])
        if len(found) < count:
            self._say(
                f"{test} is not settled: measuring it in {count - len(found)} "
                f"fresh process{'es' if count - len(found) > 1 else ''}"
            )
        while len(found) < count:
            found.append(self._repeat(test))
        named = tuple(m for process in found[:count] for m in process if m.name == name)
        if len(named) < count:
            raise MeasurementError(
                f'a fresh process of {test} did not measure "{name}": a test that measures '
                "something else every time cannot be repeated"
            )
        return named

    def _repeat(self, test: str) -> tuple[Measurement, ...]:
        with tempfile.TemporaryDirectory(prefix="gpuperf-") as cache:
            finished = fresh.run_pytest(
                _arguments(self._invocation, cache),
                folder=self._invocation.folder,
                time_limit=self._time_limit,
                environment={_VARIABLE: json.dumps(test)},
            )
        if finished.timed_out:
            raise MeasurementError(
                f"a fresh process of {test} was stopped after {finished.seconds:.0f} s, the time "
                "limit: --gpuperf-time-limit SECONDS allows more"
            )
        run = finished.run
        # A test that fails after it measured fails in the session as well, and says why there.
        if run is None or finished.code not in (_PASSED, _FAILED):
            output = "\n".join(finished.output.splitlines()[-_OUTPUT_LINES:])
            raise MeasurementError(
                f"a fresh process of {test} ended with pytest's exit code {finished.code}"
                + ("" if run else " and measured nothing")
                + f":\n{output}"
            )
        return tuple(m for m in run.measurements if m.test == test)


def asked_for() -> str | None:
    """The node id of the only test that this process is to run; None in an ordinary session.

    Takes it out of the environment: processes that a test starts are not meant.
    """
    text = os.environ.pop(_VARIABLE, None)
    return None if text is None else str(json.loads(text))


def follow_parent() -> int | None:
    """Has the kernel end this process when the one that started it ends, however that happens.

    Returns the pid of that process, or None when nobody of ours started this one.
    """
    text = os.environ.pop(fresh.PARENT, None)
    if text is None:
        return None
    import ctypes
    import signal

    # PR_SET_PDEATHSIG of linux/prctl.h. A parent that was killed cannot end its children itself.
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)
    parent = int(text)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)
    return parent


def _arguments(invocation: Invocation, cache: str) -> list[str]:
    """The command line of a repeat: pytest lets the last of several values win."""
    own = ["-o", f"cache_dir={cache}"]  # what failed last is the session's, not the repeat's
    if invocation.distributed:
        own += ["-n0"]
    arguments = list(invocation.arguments)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:end] + own + arguments[end:]
