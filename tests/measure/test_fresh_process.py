"""pytest in a fresh interpreter: what it brings back, what it is started with, how it ends.

Each process here takes about a second, so each tells several things.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.measure import fresh_process
from pytest_gpuperf.measure.fresh_process import (
    PARENT,
    Finished,
    Start,
    run_in_turn,
    run_pytest,
    with_flags,
)
from pytest_gpuperf.measure.replica import VARIABLE, Task
from tests import ALONE
from tests.plugin import scripted
from tests.waiting import lives, wait_for

STARTING = """
import os, signal, subprocess, sys, time
from pathlib import Path

CHILD = '''
import os, signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path(f"new {sys.argv[1]}").write_text(str(os.getpid()))
Path(f"new {sys.argv[1]}").rename(sys.argv[1])
time.sleep(600)
'''

def start():
    for name in ("child", "apart"):
        command = [sys.executable, "-c", CHILD, name]
        subprocess.Popen(command, start_new_session=name == "apart")
    while not all(Path(name).exists() for name in ("child", "apart")):
        time.sleep(0.01)
"""
"""The beginning of a test file: starts two stubborn children, of which one leads its own session.
Their ids are in the files `child` and `apart`."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for a project; what pytest is patient with elsewhere comes soon here."""
    monkeypatch.setattr(fresh_process, "GRACE", 0.3)
    monkeypatch.setattr(fresh_process, "_TICK", 0.05)
    project = tmp_path / "project"
    project.mkdir()
    (project / "pytest.ini").write_text(f"[pytest]\naddopts = {ALONE}\n", encoding="utf-8")
    return project


def write(folder: Path, source: str, *, measures: bool = False) -> None:
    """Makes this the folder's test file; what `measures` has a scripted collector."""
    (folder / "test_steps.py").write_text(source, encoding="utf-8")
    if measures:
        conftest = Path(scripted.__file__).read_text(encoding="utf-8")
        (folder / "conftest.py").write_text(conftest, encoding="utf-8")
        (folder / "device.json").write_text("{}", encoding="utf-8")


def living(folder: Path, *names: str) -> list[str]:
    """The processes that run of those whose ids are in files of these names; else the children."""
    ids = {
        name: (folder / name).read_text(encoding="utf-8") for name in names or ("child", "apart")
    }
    return [name for name, pid in ids.items() if lives(int(pid))]


def test_what_was_measured_and_said_comes_back_and_no_file_stays(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a session and with an environment of its own, with our flags and without an input."""
    write(
        folder,
        """
import json, os, sys
from pathlib import Path

ENVIRONMENT = dict(os.environ)  # pytest has not yet said which test it runs

def test_step(gpuperf, pytestconfig):
    gpuperf.measure(lambda: None)
    print("<1>")
    print("<2>", file=sys.stderr)
    os.write(1, b"<3>\\xff")
    print("<4>")
    seen = {
        "leads a session": os.getsid(0) == os.getpid(),
        "at the end of its input": os.read(0, 1) == b"",
        "judges": not pytestconfig.getoption("--gpuperf-no-judge"),
        "run": Path(pytestconfig.getoption("--gpuperf-run")).name,
        "environment": ENVIRONMENT,
    }
    Path("seen.json").write_text(json.dumps(seen))
""",
        measures=True,
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("OF_OURS", "kept")
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "this one")
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
        monkeypatch.setenv(name, "gw0")
    arguments = ["-q", "-s", "--gpuperf-run=mine.json", "--", "test_steps.py"]
    start = Start(arguments, folder, {"ADDED": "too"})
    finished = run_pytest(start, time_limit=600)
    assert (finished.code, finished.timed_out) == (0, False), finished.output
    assert finished.run is not None
    assert [m.test for m in finished.run.measurements] == ["test_steps.py::test_step"]
    assert finished.run.verdicts == ()
    made = finished.measurement("test_steps.py::test_step", "step")
    assert made is finished.run.measurements[0]
    assert finished.measurement("test_steps.py::test_step", "sampling") is None
    marks = [finished.output.index(f"<{number}>") for number in (1, 2, 3, 4)]
    assert marks == sorted(marks)
    assert "<3>\N{REPLACEMENT CHARACTER}" in finished.output
    assert "1 passed" in finished.last_lines()
    assert finished.seconds > 0

    seen = json.loads((folder / "seen.json").read_text(encoding="utf-8"))
    environment = seen.pop("environment")
    assert seen.pop("run") == "run.json"
    assert seen == {"leads a session": True, "at the end of its input": True, "judges": False}
    assert (environment["OF_OURS"], environment["ADDED"]) == ("kept", "too")
    assert not [name for name in environment if name.startswith(("PYTEST_C", "PYTEST_X"))]
    assert PARENT not in os.environ
    assert not (folder / "mine.json").exists()
    assert not (folder / ".gpuperf").exists()
    assert [path.name for path in temporary.glob("gpuperf-*") if "locks" not in path.name] == []


def test_flags_come_last_where_they_are_still_read_as_flags() -> None:
    assert with_flags(["-x", "a.py"], ["-q"]) == ["-x", "a.py", "-q"]
    assert with_flags(["-x", "--", "a.py"], ["-q"]) == ["-x", "-q", "--", "a.py"]


@pytest.mark.parametrize(("end", "code"), [("exit 3", 3), ("exit 255", 255), ("kill -9 $$", -9)])
def test_a_command_ends_with_its_exit_code_or_its_signal(
    tmp_path: Path, end: str, code: int
) -> None:
    command = ["sh", "-c", f"echo said; {end}"]
    assert fresh_process.run(command, folder=tmp_path) == (code, "said\n")


def test_of_a_process_that_was_killed_comes_the_signal_and_its_children_are_ended(
    folder: Path,
) -> None:
    """They are not waited for, though they have pytest's own stdout."""
    write(folder, f"{STARTING}\ndef test_it():\n    start()\n    os.kill(os.getpid(), 9)")
    finished = run_pytest(Start(["-s"], folder))
    assert (finished.run, finished.code, finished.timed_out) == (None, -signal.SIGKILL, False)
    assert finished.measurement("test_steps.py::test_it", "step") is None
    assert living(folder) == []


SESSION = """
import signal, sys
from pathlib import Path
from pytest_gpuperf.measure import fresh_process

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job would ignore it
fresh_process.GRACE = 0.3
fresh_process.run_pytest(fresh_process.Start(["-q", "-s"], Path(), under=sys.argv[1:]))
"""
"""A process that waits for a fresh one."""

PROFILER = [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])"]

TIDYING = f"""{STARTING}
def test_it():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(Path("tidied").write_text("")))
    start()
    Path("test").write_text(str(os.getpid()))
    Path("parent").write_text(str(os.getppid()))
    Path("begun").touch()
    time.sleep(600)
"""


def session(folder: Path, *under: str) -> subprocess.Popen[bytes]:
    """One that has begun; the ids of the test's process and of its parent are in files, too."""
    write(folder, TIDYING)
    begun = folder / "begun"
    begun.unlink(missing_ok=True)
    process = subprocess.Popen([sys.executable, "-c", SESSION, *under], cwd=folder)
    wait_for(begun.exists, "the test to begin")
    return process


@pytest.mark.parametrize("under", [[], PROFILER], ids=["alone", "under-a-profiler"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_a_session_that_is_ended(
    folder: Path, number: signal.Signals, under: list[str]
) -> None:
    """As a job's time limit does. The test may tidy up; what does not go is killed.

    Under a profiler it goes with that, which tidies up nothing.
    """
    with session(folder, *under) as process:
        process.send_signal(number)
    assert process.returncode == -number
    everything = ("test", "parent", "child", "apart")
    wait_for(lambda: living(folder, *everything) == [], "everything to end")
    assert under or (folder / "tidied").exists()


def test_a_second_interruption_leaves_nothing_either(folder: Path) -> None:
    with session(folder) as process:
        process.send_signal(signal.SIGINT)
        wait_for((folder / "tidied").exists, "the test to tidy up")
        process.send_signal(signal.SIGINT)
    assert process.returncode == -signal.SIGINT
    assert living(folder) == []


def test_where_an_interruption_leaves_a_lock_nobody_waits_for_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ctrl-C does between two instructions of Popen's."""
    started, locked = fresh_process._started, []

    def interrupted(*arguments: Any, **others: Any) -> Any:
        process: Any = started(*arguments, **others)
        process._waitpid_lock.acquire()
        locked.append(process)
        return process

    monkeypatch.setattr(fresh_process, "_started", interrupted)
    write(folder, "import time\n\ndef test_it(): time.sleep(600)")
    assert run_pytest(Start(["-q"], folder), time_limit=0.1).timed_out
    write(folder, "def test_it(): assert False")
    assert run_pytest(Start(["-q"], folder)).code == pytest.ExitCode.TESTS_FAILED
    for process in locked:
        process._waitpid_lock.release()
        process.poll()


def test_a_reaper_whose_session_ended_before_it_begins_starts_nothing(tmp_path: Path) -> None:
    started = [sys.executable, "-c", "from pathlib import Path; Path('started').touch()"]
    ended = subprocess.Popen(["true"])
    ended.wait()
    program = f"from {fresh_process.__name__} import keep; keep({ended.pid}, 1.0, {started})"
    assert subprocess.run([sys.executable, "-c", program], cwd=tmp_path).returncode == 1
    assert [*tmp_path.iterdir()] == []


def a_day_passes(monkeypatch: pytest.MonkeyPatch, begun: Path) -> None:
    """For who waits for a fresh process, as soon as there is this file."""

    def monotonic() -> float:
        return time.monotonic() + 86400 * begun.exists()

    clock = SimpleNamespace(monotonic=monotonic, sleep=time.sleep)
    monkeypatch.setattr(fresh_process, "time", clock)


def test_a_step_that_hangs_is_ended_by_the_time_limit_and_says_where_it_stands(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        folder,
        """
import time
from pathlib import Path

def copies_for_ever():
    Path("begun").touch()
    time.sleep(600)

def test_it(gpuperf):
    copies_for_ever()
""",
        measures=True,
    )
    a_day_passes(monkeypatch, folder / "begun")
    task = json.dumps(asdict(Task("test_steps.py::test_it")))
    finished = run_pytest(Start(["-q"], folder, {VARIABLE: task}), time_limit=3600)
    assert (finished.timed_out, finished.code) == (True, -signal.SIGTERM)
    file = folder / "test_steps.py"
    assert [line.strip() for line in finished.standing().splitlines()] == [
        f'File "{file}", line 7 in copies_for_ever',
        f'File "{file}", line 10 in test_it',
    ]


def test_those_that_are_never_ready_for_their_turn_take_one_time_limit_together(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, "import time\nfrom pathlib import Path\nPath('begun').touch()\ntime.sleep(600)")
    a_day_passes(monkeypatch, folder / "begun")
    finished = list(in_turn(folder))
    assert [each.timed_out for each in finished] == [True, True]


def test_what_cannot_be_started_is_refused(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    for folder, under, says in (
        (nowhere, [], r"cannot be started in the folder .*nowhere \(No su"),
        (nowhere, ["no-such-profiler"], r"cannot be started in the folder .*nowhere \(No su"),
        (tmp_path, ["no-such-profiler"], r"^no-such-profiler: no such program"),
    ):
        with pytest.raises(UsageFailure, match=says):
            run_pytest(Start([], folder, under=under))


# Several


def in_turn(folder: Path, arguments: str = "-q") -> Generator[Finished, None, None]:
    """Two processes; `diary` has when each begins, and what its test notes there."""

    def begins(number: int) -> None:
        with (folder / "diary").open("a", encoding="utf-8") as diary:
            diary.write(f"{number} begins\n")

    starts = [Start(arguments.split(), folder)] * 2
    return run_in_turn(starts, time_limit=lambda: 600, begins=begins)


def diary(folder: Path) -> list[str]:
    return (folder / "diary").read_text(encoding="utf-8").splitlines()


def test_processes_start_together_and_run_their_tests_in_turn(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has imported ahead what takes long and this process has, and nothing else."""
    monkeypatch.setattr(fresh_process, "_IMPORTED_AHEAD", ("wave", "no_such_module", "chunk"))
    monkeypatch.setitem(sys.modules, "wave", ModuleType("wave"))
    monkeypatch.setitem(sys.modules, "no_such_module", ModuleType("no_such_module"))
    write(
        folder,
        """
import os, sys
from pathlib import Path

Path(f"loaded-{os.getpid()}").touch()

def test_it():
    loaded = len(list(Path().glob("loaded-*")))
    ahead = [name for name in ("wave", "chunk") if name in sys.modules]
    with open("diary", "a") as diary:
        print(f"{loaded} loaded, with {ahead}, {os.environ.get('GPUPERF_TURN')}", file=diary)
""",
    )
    assert [finished.code for finished in in_turn(folder)] == [0, 0]
    runs = "2 loaded, with ['wave'], None"
    assert diary(folder) == ["1 begins", runs, "2 begins", runs]
    assert fresh_process.TURN not in os.environ


WITH_NVML = """
import json, os, subprocess, sys
from pathlib import Path
from pytest_gpuperf.measure.device import guard
from tests.scripted_nvml import Gpu, Library

Path(f"loaded-{os.getpid()}").touch()

def test_it():
    child = subprocess.Popen(["sleep", "600"])
    loaded = [int(file.name[7:]) for file in Path().glob("loaded-*")]
    living = [pid for pid in loaded if Path(f"/proc/{pid}").exists()]
    sys.modules["pynvml"] = Library([Gpu(processes=[*living, child.pid, %d])])
    others = guard.read().other_processes
    Path(f"others-{os.getpid()}").write_text(json.dumps([sorted(others), child.pid]))
"""


def test_who_waits_for_its_turn_is_no_other_process_of_the_device(folder: Path) -> None:
    """A test module may have allocated memory when it was imported. All else are others."""
    with subprocess.Popen(["sleep", "600"]) as stranger:  # of the session, and no pytest
        try:
            write(folder, WITH_NVML % stranger.pid)
            assert [finished.code for finished in in_turn(folder)] == [0, 0]
        finally:
            stranger.kill()
    said = [json.loads(file.read_text("utf-8")) for file in folder.glob("others-*")]
    assert len(said) == 2
    for others, child in said:
        assert others == sorted([child, stranger.pid])


def test_the_workers_of_a_process_wait_with_it(folder: Path) -> None:
    """The controller of xdist runs no test itself."""
    write(folder, "def test_it():\n    open('diary', 'a').write('runs\\n')")
    assert [finished.code for finished in in_turn(folder, arguments="-q -n 1")] == [0, 0]
    assert diary(folder) == ["1 begins", "runs", "2 begins", "runs"]


def test_a_process_that_ends_before_its_turn_says_why(folder: Path) -> None:
    write(folder, "raise ArithmeticError('while it is imported')")
    for finished in in_turn(folder):
        assert (finished.code, finished.run) == (2, None)
        assert "while it is imported" in finished.output


def test_those_that_wait_are_ended_with_who_waits_for_them(folder: Path) -> None:
    write(folder, "import os\nopen(f'loaded-{os.getpid()}', 'w')\ndef test_it(): pass")
    with closing(in_turn(folder)) as processes:
        assert next(processes).code == 0
        loaded = [int(file.name.removeprefix("loaded-")) for file in folder.glob("loaded-*")]
        (waiting,) = filter(lives, loaded)
    assert not lives(waiting)
