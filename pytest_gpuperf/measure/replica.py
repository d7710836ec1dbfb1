"""One test of the session again, alone in a fresh process: a replica, or one with a task.

One slow process says nothing: its memory layout, its clocks and its luck are its own. So the judge
asks for more of them. And some numbers cannot be had where the test runs: a profiler has to be
there before the process is (ncu), or the count begins with the process (the paper's window). Both
are the session's own command line, in the same folder, reduced to the one test.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.measure import fresh_process
from pytest_gpuperf.measure.collector import Collected, Collector, Plan, Progress, Work, each
from pytest_gpuperf.measure.fresh_process import Finished
from pytest_gpuperf.model.measurement import Device, Measurement

VARIABLE = "GPUPERF_TASK"
"""The environment variable that tells a process its task, as JSON."""

REPLICA = "replica"
"""Measure the test once more, as the session did."""
PROFILED = "profiled"
"""Run the step once between marks, for the profiler that this process runs under."""
FIRST = "first"
"""Run the step once: somebody watches the process from its start."""
WINDOW = "window"
"""Count the first launches of the test oneself."""

PROFILED_S = "profiled_s"
"""The setting that has the seconds between the marks."""

_PASSED, _FAILED = 0, 1


@dataclass(frozen=True)
class Task:
    """What a fresh process is to do."""

    test: str
    """The node id of the only test that it runs."""
    kind: str = REPLICA
    name: str = ""
    """The measurement that it is about; others of the test are passed over. A replica makes all."""

    @property
    def is_replica(self) -> bool:
        """Whether the process measures as the session does."""
        return self.kind == REPLICA


def own_task() -> Task | None:
    """What this process was started for; None in an ordinary session.

    Takes it out of the environment: processes that a test starts are not meant.
    """
    text = os.environ.pop(VARIABLE, None)
    return None if text is None else Task(**json.loads(text))


class Replicas:
    """Fresh processes of single tests, for a session that was started with these arguments.

    `folder` is the working directory that the arguments are relative to; `time_limit` are the
    seconds that one process may take. `distributed` says that pytest-xdist is there, of which a
    replica must not start workers of its own.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        time_limit: float,
        progress: Progress,
        *,
        distributed: bool = False,
    ) -> None:
        self._arguments = tuple(arguments)
        self._folder = folder
        self._time_limit = time_limit
        self._progress = progress
        self._distributed = distributed
        self._measured: dict[str, list[tuple[Measurement, ...]]] = {}

    def measurements(
        self,
        test: str,
        name: str,
        count: int,
        meanwhile: Callable[[], object] | None = None,
    ) -> tuple[Measurement, ...]:
        """`count` measurements `name` of the test with this node id, each of a fresh process.

        What earlier calls measured is used again. `meanwhile` is called while the processes start,
        which then have no need of the device. Raises MeasurementError when a process fails,
        measures nothing, or takes longer than the time limit; what was measured before is kept.
        """
        known = self._measured.setdefault(test, [])
        missing = count - len(known)
        if missing > 0:
            self._measure(test, missing, known, meanwhile)
        named = tuple(m for process in known[:count] for m in process if m.name == name)
        if len(named) < count:
            raise MeasurementError(
                f'a fresh process of {test} did not measure "{name}": a test that measures '
                "something else every time cannot be repeated"
            )
        return named

    def run(
        self,
        task: Task,
        *,
        under: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Finished:
        """Has a fresh process, started by the command `under` (a profiler's), do this task.

        See `run_pytest`. Raises MeasurementError when it takes longer than the time limit.
        """
        profiler = Path(under[0]).name if under else ""
        # Only what counts by itself is sent without a profiler: the paper's window.
        self._progress.begins(f"{profiler or 'the paper window'} in a fresh process")
        return self._alone(task, under, environment or {})

    def _measure(
        self,
        test: str,
        count: int,
        known: list[tuple[Measurement, ...]],
        meanwhile: Callable[[], object] | None,
    ) -> None:
        """Adds what `count` more processes have measured."""
        stage = "not settled, fresh process"
        self._progress.begins(f"{stage}es start" if count > 1 else f"{stage} starts")
        announced = each(self._progress, stage, count)

        def begins(_: int) -> None:
            next(announced)
            _release_memory()

        task = Task(test)
        with tempfile.TemporaryDirectory(prefix="gpuperf-") as cache:
            processes = fresh_process.run_in_turn(
                self._flagged(cache),
                count,
                folder=self._folder,
                time_limit=self._time_limit,
                environment={VARIABLE: json.dumps(asdict(task))},
                meanwhile=meanwhile,
                begins=begins,
                tick=lambda _: self._progress.goes_on(),
            )
            with closing(processes):
                for finished in processes:
                    measured = self._replica(task, self._in_time(finished, task))
                    known.append(measured)

    def _replica(self, task: Task, finished: Finished) -> tuple[Measurement, ...]:
        run, test = finished.run, task.test
        # A test that fails after it measured fails in the session as well, and says why there.
        if run is None or finished.code not in (_PASSED, _FAILED):
            raise MeasurementError(
                f"a fresh process of {test} ended with pytest's exit code {finished.code}"
                + ("" if run else " and measured nothing")
                + f":\n{finished.last_lines()}"
            )
        return tuple(m for m in run.measurements if m.test == test)

    def _alone(
        self, task: Task, under: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> Finished:
        _release_memory()
        with tempfile.TemporaryDirectory(prefix="gpuperf-") as cache:
            finished = fresh_process.run_pytest(
                self._flagged(cache),
                folder=self._folder,
                under=under,
                time_limit=self._time_limit,
                environment={**(environment or {}), VARIABLE: json.dumps(asdict(task))},
                tick=lambda _: self._progress.goes_on(),
            )
        return self._in_time(finished, task, under)

    def _flagged(self, cache: str) -> list[str]:
        # pytest lets the last of several values win. What failed last is the session's.
        flags = ["-o", f"cache_dir={cache}", *(["-n0"] if self._distributed else [])]
        return fresh_process.with_flags(self._arguments, flags)

    @staticmethod
    def _in_time(finished: Finished, task: Task, under: Sequence[str] = ()) -> Finished:
        if finished.timed_out:
            profiler = f" under {Path(under[0]).name}" if under else ""
            raise MeasurementError(
                f"a fresh process of {task.test}{profiler} was stopped after "
                f"{finished.seconds:.0f} s, the time limit: --gpuperf-time-limit SECONDS allows "
                "more"
            )
        return finished


def _release_memory() -> None:
    """Gives back what torch keeps of a GPU's memory: a fresh process needs it now."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


class TaskRunner:
    """In a collector's place: runs the step as the task says, and brings back nothing.

    What was counted is in the hands of who started this process.
    """

    def __init__(self, task: Task, collector: Collector) -> None:
        from pytest_gpuperf.measure.ncu.profiled_step import CudaMarks

        self._task = task
        self._collector = collector
        self._marks = CudaMarks()
        self.name = f"{collector.name} ({task.kind})"
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
        if work.name != self._task.name:
            return Collected(())
        if self._task.kind == FIRST:
            work.step()
            return Collected(())
        for _ in range(max(plan.warmup, 1)):
            work.reset()
            work.step()
        work.reset()
        before = time.perf_counter()
        self._marks.begin()
        with work.phases.heard_by(self._marks):
            work.step()
        self._marks.end()
        return Collected((), settings={PROFILED_S: round(time.perf_counter() - before, 3)})
