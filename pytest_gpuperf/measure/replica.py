"""Running one test of a session again, alone in a fresh interpreter.

One slow process says nothing: its memory layout, its clocks and its luck are its own. So the judge
asks for more of them, and they are started here, from inside the session: the same command line, in
the same folder, reduced to the one test. So are processes with an errand (collect/errand.py).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.measure import fresh_process
from pytest_gpuperf.measure.collector import Collected, Collector, Plan, Progress, Work, each
from pytest_gpuperf.measure.fresh_process import Finished
from pytest_gpuperf.model.measurement import Device, Measurement

if TYPE_CHECKING:
    pass


_VARIABLE = "GPUPERF_REPEAT"
"""Names the test to a fresh process: JSON of its node id."""
_PASSED, _FAILED = 0, 1


@dataclass(frozen=True)
class Invocation:
    """How pytest was started, so that it can be started again."""

    arguments: tuple[str, ...]
    folder: Path
    """The working directory that the arguments are relative to."""
    distributed: bool = False
    """pytest-xdist is there: a repeat must not start workers of its own."""

    def alone(
        self,
        test: str,
        *,
        time_limit: float | None = None,
        under: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> fresh_process.Finished:
        """Runs the test with this node id, and no other, in a fresh process.

        See `fresh.run_pytest`. This process keeps no device memory that it does not use.
        """
        _release_memory()
        with tempfile.TemporaryDirectory(prefix="gpuperf-") as cache:
            return fresh_process.run_pytest(
                _arguments(self, cache),
                folder=self.folder,
                under=under,
                time_limit=time_limit,
                environment={**(environment or {}), _VARIABLE: json.dumps(test)},
                tick=lambda _: tick(),
            )


class Errands:
    """Sends fresh processes on errands. A `collect.errand.Rerun`."""

    def __init__(self, invocation: Invocation, time_limit: float, progress: Progress) -> None:
        self._invocation = invocation
        self._time_limit = time_limit
        self._progress = progress

    def __call__(
        self,
        test: str,
        errand: Task,
        *,
        under: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> fresh_process.Finished:
        """Runs `test` alone, on this errand, started by the command `under`.

        Raises MeasurementError when it takes longer than the time limit.
        """
        profiler = Path(under[0]).name if under else ""
        # Only what counts by itself is sent without a profiler: the paper's window.
        self._progress.begins(f"{profiler or 'the paper window'} in a fresh process")
        finished = self._invocation.alone(
            test,
            time_limit=self._time_limit,
            under=under,
            environment={**(environment or {}), **errand.environment()},
            tick=self._progress.goes_on,
        )
        if finished.timed_out:
            under_it = f" under {profiler}" if profiler else ""
            raise MeasurementError(_too_long(test, finished, under_it))
        return finished


class Repeats:
    """Measurements of tests in further processes, made when asked for and kept for the session."""

    def __init__(self, invocation: Invocation, time_limit: float, progress: Progress) -> None:
        self._invocation = invocation
        self._time_limit = time_limit
        self._progress = progress
        self._found: dict[str, list[tuple[Measurement, ...]]] = {}

    def measurements(self, test: str, name: str, count: int) -> tuple[Measurement, ...]:
        """`count` measurements `name` of the test with this node id, each of a fresh process.

        What earlier calls measured is used again. Raises MeasurementError when a process fails,
        measures nothing, or takes longer than the time limit; what was measured before is kept.
        """
        found = self._found.setdefault(test, [])
        for _ in each(self._progress, "not settled, fresh process", count - len(found)):
            found.append(self._repeat(test))
        named = tuple(m for process in found[:count] for m in process if m.name == name)
        if len(named) < count:
            raise MeasurementError(
                f'a fresh process of {test} did not measure "{name}": a test that measures '
                "something else every time cannot be repeated"
            )
        return named

    def _repeat(self, test: str) -> tuple[Measurement, ...]:
        finished = self._invocation.alone(
            test, time_limit=self._time_limit, tick=self._progress.goes_on
        )
        if finished.timed_out:
            raise MeasurementError(_too_long(test, finished))
        run = finished.run
        # A test that fails after it measured fails in the session as well, and says why there.
        if run is None or finished.code not in (_PASSED, _FAILED):
            raise MeasurementError(
                f"a fresh process of {test} ended with pytest's exit code {finished.code}"
                + ("" if run else " and measured nothing")
                + f":\n{finished.last_lines()}"
            )
        return tuple(m for m in run.measurements if m.test == test)


def test_asked_for() -> str | None:
    """The node id of the only test that this process is to run; None in an ordinary session.

    Takes it out of the environment: processes that a test starts are not meant.
    """
    text = os.environ.pop(_VARIABLE, None)
    return None if text is None else str(json.loads(text))


def follow_parent() -> int | None:
    """Has the kernel end this process when the one that started it ends, however that happens.

    Returns the pid of that process, or None when nobody of ours started this one.
    """
    text = os.environ.pop(fresh_process.PARENT, None)
    if text is None:
        return None
    import ctypes
    import signal

    # PR_SET_PDEATHSIG of linux/prctl.h. A parent that was killed cannot end its children itself.
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)
    parent = int(text)
    if parent not in _ancestors():  # it ended before the line above
        os._exit(1)
    return parent


def _ancestors() -> list[int]:
    """The processes that this one descends from, the nearest first: a profiler may be between."""
    found, process = [], os.getppid()
    while process > 0:  # the first of a container may be ours too
        found.append(process)
        try:
            text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # it has ended while we looked
            break
        # "pid (name) state parent ...", and the name may hold anything.
        process = int(text.rpartition(")")[2].split()[1])
    return found


def _too_long(test: str, finished: fresh_process.Finished, under: str = "") -> str:
    return (
        f"a fresh process of {test}{under} was stopped after {finished.seconds:.0f} s, the time "
        "limit: --gpuperf-time-limit SECONDS allows more"
    )


def _release_memory() -> None:
    """Gives back what torch keeps of a GPU's memory: a fresh process needs it now."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _arguments(invocation: Invocation, cache: str) -> list[str]:
    """The command line of a repeat: pytest lets the last of several values win."""
    own = ["-o", f"cache_dir={cache}"]  # what failed last is the session's, not the repeat's
    if invocation.distributed:
        own += ["-n0"]
    arguments = list(invocation.arguments)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:end] + own + arguments[end:]


# What a fresh process does in place of measuring, when it was started for one number only.
#
# Some numbers cannot be had where the test runs: a profiler has to be there before the process is
# (ncu), or the count begins with the process (the paper's window). So the test is run again in a
# process of its own, and this says what its `gpuperf.measure` does there.

VARIABLE = "GPUPERF_ERRAND"
"""The environment variable that tells a process its errand."""

PROFILED_S = "profiled_s"
"""The setting that has the seconds between the marks."""

PROFILED = "profiled"
"""Run the step once between marks, for the profiler that this process runs under."""
FIRST = "first"
"""Run the step once: somebody watches the process from its start."""
WINDOW = "window"
"""Count the first launches of the test oneself."""


@dataclass(frozen=True)
class Task:
    """What a fresh process is to do."""

    kind: str
    """profiled, first or window."""
    name: str
    """The measurement that it is about; others of the same test are passed over."""

    def environment(self) -> dict[str, str]:
        """The variable that tells a child."""
        return {VARIABLE: json.dumps(asdict(self))}


class Rerun(Protocol):
    """Runs one test of this session again, alone in a fresh process, and waits for it."""

    def __call__(
        self,
        test: str,
        errand: Task,
        *,
        under: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Finished:
        """`test` is a node id; `under` a command that starts the process, a profiler's."""
        ...


def no_rerun(
    test: str,
    errand: Task,  # noqa: ARG001
    *,
    under: Sequence[str] = (),  # noqa: ARG001
    environment: Mapping[str, str] | None = None,  # noqa: ARG001
) -> Finished:
    """Where no session is there to run a test of. Raises MeasurementError."""
    raise MeasurementError(f"{test or 'the step'} can be run again by a pytest session only")


class Marks(Protocol):
    """Tells a profiler around this process where the step is."""

    def enter(self, phase: str) -> None:
        """A phase of the step begins."""
        ...

    def leave(self, phase: str) -> None:
        """It ends."""
        ...

    def begin(self) -> None:
        """The step begins."""
        ...

    def end(self) -> None:
        """The device has done all of the step."""
        ...


class Runner:
    """In a collector's place: runs the step as the errand says, and brings back nothing.

    What was counted is in the hands of who started this process.
    """

    def __init__(self, errand: Task, collector: Collector, marks: Marks) -> None:
        self._errand = errand
        self._collector = collector
        self._marks = marks
        self.name = f"{collector.name} ({errand.kind})"
        self.torch_device = collector.torch_device

    def device(self) -> Device:
        """The device of the collector that would measure here."""
        return self._collector.device()

    def software(self) -> dict[str, str]:
        """Nothing: the process that waits says it."""
        return {}

    def collect(self, work: Work, plan: Plan) -> Collected:
        """Executes the step: warmed up and marked, or once as it comes.

        The settings say how long it took between the marks: with a profiler, the profiling.
        """
        if work.name != self._errand.name:
            return Collected(())
        if self._errand.kind == FIRST:
            work.step()
            return Collected(())
        return Collected((), settings={PROFILED_S: self._marked(work, plan)})

    def _marked(self, work: Work, plan: Plan) -> float:
        for _ in range(max(plan.warmup, 1)):
            work.reset()
            work.step()
        work.reset()
        before = time.perf_counter()
        self._marks.begin()
        with work.phases.heard_by(self._marks):
            work.step()
        self._marks.end()
        return round(time.perf_counter() - before, 3)


def task_asked_for() -> Task | None:
    """What this process is to do; None where it is to measure.

    Takes it out of the environment: processes that a test starts have none.
    """
    text = os.environ.pop(VARIABLE, None)
    return None if text is None else Task(**json.loads(text))
