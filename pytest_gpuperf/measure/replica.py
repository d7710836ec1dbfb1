"""One test of the session again, alone in a fresh process: a replica, or one with a task.

One slow process proves nothing, since memory layout and clocks vary by process. So the judge asks
for more of them. Some numbers need a special process: a profiler must start before it (ncu), or the
count begins with it (the paper's window). Both use the session's own command line, in the same
folder, reduced to the one test.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.measure import fresh_process
from pytest_gpuperf.measure.collector import Collected, Collector, Plan, Progress, Work, each
from pytest_gpuperf.measure.fresh_process import Finished, FreshProcess, Start
from pytest_gpuperf.model.measurement import Device, Measurement

VARIABLE = "GPUPERF_TASK"
"""The environment variable that tells a process its task, as JSON."""

REPLICA = "replica"
"""Measure the test once more, as the session did."""
PROFILED = "profiled"
"""Run the step once between marks, for the profiler that this process runs under."""
WINDOW = "window"
"""Count the first launches of the test oneself."""

RANKS = "ranks"
"""Be one of several ranks that execute the step together."""

_PASSED, _FAILED = 0, 1

_EXPORTED = "PYTEST_ADDOPTS"
_OF_THE_SESSION = {
    # pytest
    *("--junitxml", "--junit-xml", "--log-file", "--basetemp", "--pastebin"),
    # pytest-reportlog, -html, -json-report, -md-report, -csv, -json-ctrf, allure-pytest
    *("--report-log", "--html", "--json-report-file", "--md-report-output", "--csv", "--ctrf"),
    "--alluredir",
    # pytest-benchmark, pytest-cov, pytest-split, ours
    *("--benchmark-json", "--benchmark-save", "--cov-report", "--cov-fail-under"),
    *("--durations-path", "--gpuperf-report", "--gpuperf-run"),
    # They would skip the test.
    *("--lfnf", "--last-failed-no-failures"),
}
"""Flags with a value that a fresh process must not have. Their files belong to the session; two
processes that write one file damage it."""
_SWITCHES = {
    *("--json-report", "--self-contained-html", "--clean-alluredir", "--benchmark-autosave"),
    *("--benchmark-save-data", "--store-durations"),
    # They would skip the test, or wait for input: pytest-xdist, -testmon, -picked, pytest
    *("-f", "--looponfail", "--testmon", "--testmon-forceselect", "--picked", "--pdb", "--trace"),
}
"""Those without a value."""


@dataclass(frozen=True)
class Task:
    """The task of a fresh process."""

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
    """The task of this process; None in an ordinary session.

    Removes the variable from the environment, so that a test's own processes do not see it.
    """
    text = os.environ.pop(VARIABLE, None)
    if text is None:
        return None
    return Task(**json.loads(text))


@dataclass(frozen=True)
class Invocation:
    """The start of a session, as far as its fresh processes need it."""

    arguments: tuple[str, ...]
    folder: Path
    """The working directory that the arguments are relative to."""
    addopts: tuple[str, ...] = ()
    """The arguments that the ini file puts first."""
    written: tuple[str, ...] = ()
    """Settings of the ini file by which this session writes somewhere: cache_dir, log_file."""
    distributed: bool = False
    """pytest-xdist is there, of which a replica must not start workers of its own."""
    seed: int | None = None
    """The seed of pytest-randomly, which each session redraws: the step needs the same numbers."""

    def apart(self, folder: Path) -> tuple[list[str], dict[str, str]]:
        """Arguments of a process that writes only to `folder`, and additions to its environment.

        pytest lets the last of several values win. The last failures and the reports belong to the
        session.
        """
        flags = [flag for name in self.written for flag in ("-o", f"{name}={folder / name}")]
        environment = {}
        addopts = unwritten(self.addopts)
        if addopts != list(self.addopts):
            flags += ["-o", f"addopts={shlex.join(addopts)}"]
        exported = shlex.split(os.environ.get(_EXPORTED, ""))
        if unwritten(exported) != exported:
            environment[_EXPORTED] = shlex.join(unwritten(exported))
        if any(word.startswith("--cov") for word in (*addopts, *exported, *self.arguments)):
            # The tracing slows the step down, as in the session; its figures are the session's.
            flags.append("--cov-report=")
            environment["COVERAGE_FILE"] = str(folder / "coverage")
        flags += ["-n0"] if self.distributed else []
        flags += [] if self.seed is None else [f"--randomly-seed={self.seed}"]
        return fresh_process.with_flags(unwritten(self.arguments), flags), environment


def unwritten(arguments: Sequence[str]) -> list[str]:
    """Arguments of pytest without flags of the session; what follows "--" are no flags."""
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            return [*kept, word, *words]
        flag, equals, _ = word.partition("=")
        if flag in _OF_THE_SESSION and not equals:
            next(words, None)
        elif flag not in _OF_THE_SESSION | _SWITCHES:
            kept.append(word)
    return kept


@dataclass(eq=False)
class Replicas:
    """Fresh processes of single tests, started like this session."""

    invocation: Invocation
    time_limit: float
    """The seconds that one process may take."""
    progress: Progress
    added: Callable[[], Mapping[str, str]] = dict
    """Additions to a process's environment, asked when it starts."""
    _measured: dict[str, list[Measurement]] = field(default_factory=dict, init=False)

    def measurements(
        self,
        test: str,
        name: str,
        count: int,
        meanwhile: Callable[[], object] | None = None,
    ) -> tuple[Measurement, ...]:
        """`count` measurements `name` of the test with this node id, each from a fresh process.

        Measurements of earlier calls are used again. `meanwhile` is called while the processes
        start and do not need the device. Raises MeasurementError if a process fails, measures
        nothing, or exceeds the time limit; earlier measurements are kept.
        """
        known = self._measured.setdefault(test, [])
        missing = count - sum(one.name == name for one in known)
        if missing > 0:
            self._measure(test, missing, known, meanwhile)
        named = [one for one in known if one.name == name][:count]
        if len(named) < count:
            raise MeasurementError(
                f'a fresh process of {test} did not measure "{name}", but the first process did. '
                "Let the test make the same measurements in every process"
            )
        return tuple(named)

    def run(
        self,
        task: Task,
        *,
        under: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Finished:
        """Makes a fresh process, started by the command `under` (a profiler's), do this task.

        See `run_pytest`. Raises MeasurementError if it exceeds the time limit.
        """
        profiler = Path(under[0]).name if under else ""
        # Only the paper's window, which counts itself, needs no profiler.
        self.progress.begins(f"{profiler or 'the paper window'} in a fresh process")
        _release_memory()
        with self._apart(task, {**self.added(), **(environment or {})}) as start:
            profiled = replace(start, under=under)
            finished = fresh_process.run_pytest(profiled, time_limit=self.time_limit)
        return self._in_time(finished, f"{task.test} under {profiler}" if under else task.test)

    @contextmanager
    def _apart(self, task: Task, added: Mapping[str, str]) -> Iterator[Start]:
        """The start of a process with this task, which writes to its own folder."""
        with self.progress.aside(), tempfile.TemporaryDirectory(prefix="gpuperf-") as folder:
            arguments, apart = self.invocation.apart(Path(folder))
            environment = {**apart, VARIABLE: json.dumps(asdict(task)), **added}
            yield Start(arguments, self.invocation.folder, environment)

    @contextmanager
    def together(
        self, task: Task, environments: Sequence[Mapping[str, str]]
    ) -> Iterator[list[FreshProcess]]:
        """A fresh process for each environment, at once, all with this task."""
        _release_memory()
        with self._apart(task, {}) as start, ExitStack() as started:
            every = [{**start.environment, **of_rank} for of_rank in environments]
            starts = [replace(start, environment=environment) for environment in every]
            yield [started.enter_context(FreshProcess(one)) for one in starts]

    def _measure(
        self,
        test: str,
        count: int,
        known: list[Measurement],
        meanwhile: Callable[[], object] | None,
    ) -> None:
        """Adds what `count` more processes have measured."""
        stage = "inconclusive, fresh process"
        self.progress.begins(f"{stage}es start" if count > 1 else f"{stage} starts")
        announced = each(self.progress, stage, count)

        def begins(_: int) -> None:
            next(announced)
            _release_memory()

        with self._apart(Task(test), self.added()) as start:
            processes = fresh_process.run_in_turn(
                [start] * count,
                time_limit=lambda: self.time_limit,
                meanwhile=meanwhile,
                begins=begins,
            )
            with closing(processes):
                for finished in processes:
                    known += self._replica(test, self._in_time(finished, test))

    @staticmethod
    def _replica(test: str, finished: Finished) -> list[Measurement]:
        run = finished.run
        # A test that fails after it measured fails in the session as well, and says why there.
        if run is None or finished.code not in (_PASSED, _FAILED):
            raise MeasurementError(
                f"a fresh process of {test} ended with pytest's exit code {finished.code}"
                + ("" if run else ", before it measured anything")
                + f". Its last output:\n{finished.last_lines()}"
            )
        return [m for m in run.measurements if m.test == test]

    @staticmethod
    def _in_time(finished: Finished, what: str) -> Finished:
        if not finished.timed_out:
            return finished
        where = finished.standing()
        raise MeasurementError(
            f"a fresh process of {what} reached the time limit after {finished.seconds:.0f} s. "
            "--gpuperf-time-limit SECONDS raises the limit"
            + (f". Its last output (innermost call first):\n{where}" if where else "")
        )


def _release_memory() -> None:
    """Gives back what torch keeps of a GPU's memory: a fresh process needs it now."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


class TaskRunner:
    """A replacement for a collector: runs the step as the task says, and returns no data.

    The process that started this one has the counts.
    """

    def __init__(self, task: Task, collector: Collector) -> None:
        self._task = task
        self._collector = collector
        self.name = f"{collector.name} ({task.kind})"
        self.torch_device = collector.torch_device

    def device(self) -> Device:
        """The device of the collector that would measure here."""
        return self._collector.device()

    def software(self) -> dict[str, str]:
        """Empty: the waiting process reports the versions."""
        return {}

    def begin(self) -> None:
        """The test begins, its set-up included: for what counts from there on."""

    def collect(self, work: Work, plan: Plan) -> Collected:
        """Executes the step, warmed up and marked."""
        from pytest_gpuperf.measure.ncu import profiled_step

        if work.name != self._task.name:
            return Collected(())
        for _ in range(max(plan.warmup, 1)):
            work.reset()
            work.step()
        work.reset()
        with profiled_step.marked():
            work.step()
        return Collected(())
