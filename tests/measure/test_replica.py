"""A test of the session in fresh processes, which a script stands for, and what they are told."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.measure import fresh_process, replica
from pytest_gpuperf.measure.collector import Phases, Plan, Work
from pytest_gpuperf.measure.fresh_process import Finished, Start
from pytest_gpuperf.measure.ncu import profiled_step
from pytest_gpuperf.measure.replica import (
    PROFILED,
    WINDOW,
    Invocation,
    Replicas,
    Task,
    TaskRunner,
    unwritten,
)
from tests.examples import H200, measurement, run
from tests.heard_progress import Heard
from tests.scripted_collector import ScriptedCollector

TEST = "test_steps.py::test_step"
FOLDER = Path("where the session was started")


@dataclass
class Processes:
    """Stand for fresh ones: each measures the step, and `ends` as it is told for its number."""

    ends: Mapping[int, Finished] = field(default_factory=dict)
    tasks: list[dict[str, str]] = field(default_factory=list)
    commands: list[list[str]] = field(default_factory=list)
    added: list[dict[str, str]] = field(default_factory=list)
    """What the environment of each has besides its task."""
    ended: list[int] = field(default_factory=list)
    """How many of those that were started together were ended together."""

    def __call__(self, start: Start, *, time_limit: float) -> Finished:
        assert (start.folder, time_limit) == (FOLDER, 60.0)
        environment = start.environment
        self.tasks.append(json.loads(environment[replica.VARIABLE]))
        self.commands.append([*start.under, *start.arguments])
        self.added.append({k: v for k, v in environment.items() if k != replica.VARIABLE})
        number = len(self.tasks)
        made = [measurement(test=test, process=f"p{number}") for test in (TEST, "of others")]
        return self.ends.get(number, Finished(run(made), 0, "", 1.0))

    def in_turn(
        self,
        starts: Sequence[Start],
        *,
        time_limit: Callable[[], float],
        begins: Callable[[int], None],
        meanwhile: Callable[[], object] | None,
    ) -> Iterator[Finished]:
        if meanwhile:
            meanwhile()
        try:
            for number, start in enumerate(starts, 1):
                begins(number)
                yield self(start, time_limit=time_limit())
        finally:
            self.ended.append(len(starts))


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    """In the place of fresh processes."""
    scripted = Processes()
    monkeypatch.setattr(fresh_process, "run_pytest", scripted)
    monkeypatch.setattr(fresh_process, "run_in_turn", scripted.in_turn)
    return scripted


def replicas(heard: Heard | None = None, *arguments: str, **more: Any) -> Replicas:
    return Replicas(Invocation(arguments, FOLDER, **more), 60.0, heard or Heard())


# Replicas


def test_replicas_are_made_when_asked_for_and_kept(processes: Processes) -> None:
    heard = Heard()
    made = replicas(heard)
    assert [m.process for m in made.measurements(TEST, "step", 1)] == ["p1"]
    assert [m.process for m in made.measurements(TEST, "step", 3)] == ["p1", "p2", "p3"]
    assert {m.test for m in made.measurements(TEST, "step", 2)} == {TEST}
    assert processes.tasks == [json.loads(json.dumps(asdict(Task(TEST))))] * 3
    waiting = "inconclusive, fresh process"
    assert heard.said == [
        *(f"{waiting} starts", f"{waiting} 1 of 1"),
        *(f"{waiting}es start", f"{waiting} 1 of 2", f"{waiting} 2 of 2"),
    ]


def test_a_replica_that_fails_says_why_and_what_came_before_it_is_kept(
    processes: Processes,
) -> None:
    other = run([measurement(test=TEST, name="other")])
    for end, said in (
        (
            Finished(None, 3, "first\nlast", 1.0),
            "exit code 3, before it measured anything. Its last output:\nfirst\nlast",
        ),
        (Finished(run([]), 2, "last words", 1.0), "exit code 2. Its last output:\nlast words"),
        (Finished(None, -15, "", 61.0, timed_out=True), "limit after 61 s. --gpuperf-time-limit"),
        (
            Finished(None, -15, "Current thread 0x1 (most recent\n  here", 61.0, timed_out=True),
            "raises the limit. Its last output (innermost call first):\n  here",
        ),
        (Finished(other, 0, "", 1.0), 'measure "step", but'),
    ):
        processes.tasks.clear()
        processes.ends = {2: end}
        made = replicas()
        with pytest.raises(MeasurementError, match=f"^a fresh process of {TEST} ") as caught:
            made.measurements(TEST, "step", 2)
        assert said in str(caught.value)
        assert processes.ended.pop() == 2
        assert [m.process for m in made.measurements(TEST, "step", 1)] == ["p1"]
    # One whose test fails after it measured counts.
    processes.tasks.clear()
    processes.ends = {1: Finished(run([measurement(test=TEST)]), 1, "", 1.0)}
    assert len(replicas().measurements(TEST, "step", 1)) == 1


OWN = ("-o", "cache_dir=/...")


@pytest.mark.parametrize(
    ("typed", "more", "command"),
    [
        ("-n4 -- a.py", {"written": ("cache_dir",)}, ["-n4", *OWN, "--", "a.py"]),
        (
            "-n4 -- a.py",
            {"written": ("cache_dir",), "distributed": True},
            ["-n4", *OWN, "-n0", "--", "a.py"],
        ),
        ("-pno:cacheprovider", {}, ["-pno:cacheprovider"]),
        ("--cov=a --cov-report xml", {}, ["--cov=a", "--cov-report="]),
        # It draws the numbers that the session has drawn.
        ("--randomly-seed=9 a.py", {"seed": 7}, ["--randomly-seed=9", "a.py", "--randomly-seed=7"]),
        ("-x -- a.py", {"seed": 7}, ["-x", "--randomly-seed=7", "--", "a.py"]),
        (
            "a.py",
            {"addopts": ("-ra", "--junitxml=x y.xml"), "written": ("log_file",)},
            ["a.py", "-o", "log_file=/...", "-o", "addopts=-ra"],
        ),
    ],
)
def test_a_fresh_process_has_the_sessions_arguments_and_places_of_its_own(
    processes: Processes,
    monkeypatch: pytest.MonkeyPatch,
    typed: str,
    more: dict[str, Any],
    command: list[str],
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "-q --log-file='a b'")
    replicas(None, *typed.split(), **more).measurements(TEST, "step", 1)
    assert [re.sub("=/.*", "=/...", word) for word in processes.commands[-1]] == command
    (added,) = processes.added
    assert added.pop("PYTEST_ADDOPTS") == "-q"
    assert [*added] == ["COVERAGE_FILE"] * ("--cov=a" in command)
    assert all(Path(place).is_absolute() for place in added.values())


@pytest.mark.parametrize(
    ("typed", "left"),
    [
        (["--junitxml=a.xml", "a.py"], ["a.py"]),
        (["--junit-xml", "a.xml", "a.py"], ["a.py"]),
        (["--basetemp", "x", "--log-file=y", "--report-log", "z", "-x"], ["-x"]),
        (["--html=a.html", "--self-contained-html", "a.py"], ["a.py"]),
        (["--benchmark-json", "a.json", "--benchmark-autosave", "-q"], ["-q"]),
        (["--testmon", "--pdb", "a.py"], ["a.py"]),
        (["--gpuperf-report=a.md", "--gpuperf-missing=warn"], ["--gpuperf-missing=warn"]),
        # A path may be called like a flag.
        (["a.py", "--", "--pdb"], ["a.py", "--", "--pdb"]),
        (["--lf", "--lfnf=none", "-f"], ["--lf"]),
        (["--junitxml"], []),
        (["-k", "tf32", "--maxfail=1"], ["-k", "tf32", "--maxfail=1"]),
    ],
)
def test_what_writes_for_the_session_or_leaves_out_the_test_is_not_inherited(
    typed: list[str], left: list[str]
) -> None:
    assert unwritten(typed) == left


# Tasks


def test_a_process_with_a_task_is_started_by_a_profiler_or_not(processes: Processes) -> None:
    task = Task(TEST, WINDOW, "sampling")
    for under, said in (
        (["/opt/ncu", "-f"], "ncu in a fresh process"),
        ([], "the paper window in a fresh process"),
    ):
        heard = Heard()
        assert replicas(heard, "-x").run(task, under=under).code == 0
        assert processes.tasks[-1] == json.loads(json.dumps(asdict(task)))
        assert processes.commands[-1][: len(under) + 1] == [*under, "-x"]
        assert heard.said == [said]
    processes.ends = {3: Finished(None, -15, "", 61.0, timed_out=True)}
    with pytest.raises(MeasurementError, match=f"{TEST} under ncu reached the time limit"):
        replicas().run(task, under=["/opt/ncu"])


def test_the_task_comes_as_it_is_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for task in (
        Task("suites/a b/test_x.py::TestIt::test_step[tf32-1.5]", WINDOW, "sampling"),
        Task('test_x.py::test_step["\u00fc\\\n]'),
        Task(""),
    ):
        monkeypatch.setenv(replica.VARIABLE, json.dumps(asdict(task)))
        assert replica.own_task() == task
        assert replica.VARIABLE not in os.environ
        assert replica.own_task() is None


def test_a_task_runs_the_step_warmed_up_and_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    diary: list[str] = []

    @contextmanager
    def marked() -> Iterator[None]:
        diary.append("begin")
        yield
        diary.append("end")

    monkeypatch.setattr(profiled_step, "marked", marked)
    work = Work(lambda: diary.append("step"), Phases(), lambda: diary.append("reset"))
    for name, done in (("other", []), ("step", ["reset", "step", "reset", "begin", "step", "end"])):
        diary.clear()
        runner = TaskRunner(Task(TEST, PROFILED, name), ScriptedCollector())
        assert (runner.device(), runner.torch_device, runner.software()) == (H200, "cuda", {})
        collected = runner.collect(work, Plan(()))
        assert (diary, collected.samples) == (done, ())
