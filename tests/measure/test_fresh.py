"""pytest in a fresh interpreter: what it brings back, what it is started with, how it is ended."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.measure import fresh_process
from tests.waiting import lives

if TYPE_CHECKING:
    from tests.plugin.projects import Project

STARTING = """
import os, subprocess, sys, time
from pathlib import Path

CHILD = '''
import os, signal, sys, time
from pathlib import Path
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path("new").write_text(str(os.getpid()))
Path("new").rename("child")
time.sleep(600)
'''

started = []

def start(kind):
    started.append(subprocess.Popen([sys.executable, "-c", CHILD, kind]))
    while not Path("child").exists():
        time.sleep(0.01)
"""
"""The beginning of a test file: starts a child that writes its process id into the file `child`."""


def run_in(project: Project, *arguments: str) -> fresh_process.Finished:
    """Runs pytest in this project."""
    return fresh_process.run_pytest(["-q", *arguments], folder=project.root)


# What comes back


def test_what_was_measured_comes_back_and_no_file_stays(
    project: Project, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.device()
    project.tests("def test_step(gpuperf): gpuperf.measure(lambda: None)")
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    finished = run_in(project)
    assert finished.run is not None
    assert [m.test for m in finished.run.measurements] == ["test_steps.py::test_step"]
    assert finished.run.verdicts == ()
    assert (finished.code, finished.timed_out) == (0, False)
    assert "1 passed" in finished.output
    assert not project.run_files()
    assert [path.name for path in temporary.glob("gpuperf-*") if "locks" not in path.name] == []


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("def test_it(): pass", 0),
        ("def test_it(): raise AssertionError", 1),
        ("def test_it(: pass", 2),
        ("import pytest\n\ndef test_it(): pytest.exit('enough', returncode=77)", 77),
        ("", 5),
        ("import os, signal\n\ndef test_it(): os.kill(os.getpid(), signal.SIGKILL)", -9),
    ],
)
def test_the_exit_code_comes_back_also_when_nothing_was_measured(
    source: str, code: int, project: Project
) -> None:
    project.tests(source)
    finished = run_in(project)
    assert (finished.run, finished.code, finished.timed_out) == (None, code, False)


def test_stdout_and_stderr_come_back_in_the_order_of_writing(project: Project) -> None:
    project.tests(
        """
        import os, sys

        def test_it():
            print("<1>")
            print("<2>", file=sys.stderr)
            os.write(1, b"<3>\\xff")
            print("<4>")
        """
    )
    said = run_in(project, "-s").output
    marks = [said.index(f"<{number}>") for number in (1, 2, 3, 4)]
    assert marks == sorted(marks)
    assert "<3>\N{REPLACEMENT CHARACTER}" in said


# What it is started with


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["test_steps.py"],
        ["--", "test_steps.py"],
        ["-k", "flags", "--", "test_steps.py", "test_others.py"],
        ["--gpuperf-run=mine.json"],
    ],
    ids=" ".join,
)
def test_our_flags_are_flags_wherever_the_others_end(
    arguments: list[str], project: Project
) -> None:
    source = """
        def test_flags(pytestconfig):
            assert pytestconfig.getoption("--gpuperf-no-judge")
            assert pytestconfig.getoption("--gpuperf-run").endswith("run.json")
    """
    project.tests(source)
    project.tests(source, "test_others")
    finished = run_in(project, *arguments)
    assert finished.code == 0, finished.output


def test_it_runs_in_the_folder_in_a_session_of_its_own_without_input(project: Project) -> None:
    project.tests(
        """
        import json, os
        from pathlib import Path

        def test_it():
            seen = [os.getsid(0), os.getpid(), os.read(0, 1) == b""]
            Path("seen.json").write_text(json.dumps(seen))
        """
    )
    assert run_in(project, "-s").code == 0
    session, pid, at_end = json.loads((project.root / "seen.json").read_text(encoding="utf-8"))
    assert session == pid
    assert at_end


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageFailure, match=r"nowhere: pytest cannot be started there \(No such"):
        fresh_process.run_pytest([], folder=tmp_path / "nowhere")


def test_the_environment_is_ours_but_for_what_says_which_test_we_are(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_OURS", "kept")
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "this one")
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
        monkeypatch.setenv(name, "gw0")
    project.pytester.makeconftest(
        "import json, os\n"
        "from pathlib import Path\n"
        "Path('environment.json').write_text(json.dumps(dict(os.environ)))"
    )
    fresh_process.run_pytest([], folder=project.root, environment={"ADDED": "too", "COLUMNS": "77"})
    seen = json.loads((project.root / "environment.json").read_text(encoding="utf-8"))
    assert (seen["OF_OURS"], seen["ADDED"], seen["COLUMNS"]) == ("kept", "too", "77")
    assert not [name for name in seen if name.startswith(("PYTEST_CURRENT", "PYTEST_XDIST"))]
    assert seen[fresh_process.PARENT] == str(os.getpid())
    assert fresh_process.PARENT not in os.environ


# How it is ended


def child_of(project: Project) -> int:
    """The process id of the child that a test of the project has started."""
    return int((project.root / "child").read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", ["polite", "stubborn"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_exception_while_waiting_ends_pytest_and_all_that_it_started(
    kind: str, error: type[BaseException], project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh_process, "GRACE", 0.3)
    monkeypatch.setattr(fresh_process, "_TICK", 0.05)
    project.tests(f"{STARTING}\ndef test_it():\n    start({kind!r})\n    time.sleep(600)")

    def tick(_: float) -> None:
        if (project.root / "child").exists():
            raise error

    with pytest.raises(error):
        fresh_process.run_pytest(["-q"], folder=project.root, tick=tick)
    assert not lives(child_of(project))


def test_before_it_is_killed_pytest_may_tidy_up(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh_process, "_TICK", 0.05)
    project.tests(
        """
        import signal, sys, time
        from pathlib import Path

        def test_it():
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(Path("tidied").write_text("")))
            Path("child").write_text("0")
            time.sleep(600)
        """
    )

    def tick(_: float) -> None:
        if (project.root / "child").exists():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fresh_process.run_pytest(["-q"], folder=project.root, tick=tick)
    assert (project.root / "tidied").exists()


@pytest.mark.parametrize("limit", [0.0, 0.3])
def test_a_time_limit_ends_it(limit: float, project: Project) -> None:
    project.tests("import time\n\ndef test_it(): time.sleep(600)")
    finished = fresh_process.run_pytest(["-q"], folder=project.root, time_limit=limit)
    assert finished.timed_out
    assert (finished.run, finished.code) == (None, -signal.SIGTERM)


def test_within_its_time_limit_it_is_left_alone(project: Project) -> None:
    project.tests("def test_it(): pass")
    finished = fresh_process.run_pytest(["-q"], folder=project.root, time_limit=600)
    assert (finished.code, finished.timed_out) == (0, False)


def test_what_it_leaves_running_is_not_waited_for_but_ended(project: Project) -> None:
    project.tests(f"{STARTING}\ndef test_it(): start('polite')")
    finished = run_in(project, "-s")  # so that the child has pytest's own stdout
    assert finished.code == 0
    assert not lives(child_of(project))


def test_a_tick_comes_at_once_and_again(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh_process, "_TICK", 0.05)
    project.tests("def test_it(): pass")
    seconds: list[float] = []
    finished = fresh_process.run_pytest([], folder=project.root, tick=seconds.append)
    assert len(seconds) > 1
    assert seconds == sorted(seconds)
    assert finished.seconds > seconds[-1]
