"""A process that was started for one test only: how it learns of that, and how it ends.

What comes of such processes is in tests/plugin/test_looks.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from pytest_gpuperf.measure import fresh_process, replica
from pytest_gpuperf.measure.replica import FIRST, WINDOW, Task
from tests.waiting import lives, wait_for

# What it is to do


@pytest.mark.parametrize(
    "task",
    [
        Task("test_steps.py::test_step"),
        Task("suites/a b/test_x.py::TestIt::test_step[tf32-1.5]", WINDOW, "sampling"),
        Task('test_x.py::test_step["\u00fc\\\\\n]', FIRST, "step"),
        Task(""),
    ],
)
def test_the_task_comes_as_it_is_and_only_once(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(replica.VARIABLE, json.dumps(asdict(task)))
    assert replica.own_task() == task
    assert replica.VARIABLE not in os.environ
    assert replica.own_task() is None


# Whom it ends with

SAYING = """
import os
from pytest_gpuperf.measure import fresh_process

print(fresh_process.follow_parent(), fresh_process.PARENT in os.environ)
"""


def said(**environment: str) -> subprocess.CompletedProcess[str]:
    """What a child of ours says, that is told this."""
    known = {name: value for name, value in os.environ.items() if name != fresh_process.PARENT}
    command = [sys.executable, "-c", SAYING]
    return subprocess.run(command, env={**known, **environment}, capture_output=True, text=True)


def test_a_child_of_ours_learns_who_waits_for_it_and_does_not_pass_it_on() -> None:
    child = said(**{fresh_process.PARENT: str(os.getpid())})
    assert (child.returncode, child.stdout, child.stderr) == (0, f"{os.getpid()} False\n", "")


def test_nobody_waits_for_a_process_that_a_user_started() -> None:
    child = said()
    assert (child.returncode, child.stdout, child.stderr) == (0, "None False\n", "")


def test_a_child_whose_parent_is_gone_already_ends_without_a_word() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    child = said(**{fresh_process.PARENT: str(ended.pid)})
    assert (child.returncode, child.stdout, child.stderr) == (1, "", "")


def test_a_profiler_may_stand_between_a_child_and_its_parent() -> None:
    profiler = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SAYING!r}])"
    child = subprocess.run(
        [sys.executable, "-c", profiler],
        env={**os.environ, fresh_process.PARENT: str(os.getpid())},
        capture_output=True,
        text=True,
    )
    assert (child.returncode, child.stdout, child.stderr) == (0, f"{os.getpid()} False\n", "")


STARTING = """
import os, signal, subprocess, sys

CHILD = '''
import os, signal, sys
from pathlib import Path
from pytest_gpuperf.measure import fresh_process

if sys.argv[1] == "follows":
    assert fresh_process.follow_parent() == os.getppid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path("new").write_text(str(os.getpid()))
Path("new").rename("child")
signal.pause()
'''

subprocess.Popen(
    [sys.executable, "-c", CHILD, sys.argv[1]],
    env={**os.environ, "GPUPERF_PARENT": str(os.getpid())},
    start_new_session=True,
)
signal.pause()
"""


@pytest.mark.parametrize("kind", ["follows", "stays"])
def test_a_child_dies_with_a_parent_that_is_killed_hard(kind: str, tmp_path: Path) -> None:
    """In a session of its own, where no signal to the parent's group reaches it."""
    said = tmp_path / "child"
    with subprocess.Popen([sys.executable, "-c", STARTING, kind], cwd=tmp_path) as parent:
        try:
            wait_for(said.exists, "the child to say that it is there")
        finally:
            parent.kill()
    child = int(said.read_text(encoding="utf-8"))
    try:
        if kind == "follows":
            wait_for(lambda: not lives(child), "the child to end with its parent")
        else:
            # By its end alone a parent does not end a child: the test above would tell nothing.
            assert lives(child)
    finally:
        if lives(child):
            os.kill(child, signal.SIGKILL)
