"""`gpuperf record`: fresh processes one after the other, what is kept of them, and going on."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf import __main__, errors
from pytest_gpuperf.commands.record import Order, check_same
from pytest_gpuperf.errors import INTERRUPTED, UsageFailure
from pytest_gpuperf.model.measurement import Device, Measurement
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.storage import run_files
from tests import examples
from tests.waiting import wait_for

if TYPE_CHECKING:
    from tests.plugin.projects import Project

STEP = "def test_step(gpuperf): gpuperf.measure(lambda: None)\n"
STAYING = """
import time
from pathlib import Path

def test_step(gpuperf):
    until = Path("stays-once-there-is")
    if until.exists() and Path(until.read_text()).exists():
        Path("stays").touch()
        time.sleep(600)
    gpuperf.measure(lambda: None)
"""
"""Measures, but for a process that finds what `stays-once-there-is` names: that one stays."""

A100 = Device("sm80", "NVIDIA A100-SXM4-80GB", "nvidia-a100-sxm4-80gb", "scripted")


@pytest.fixture
def a100(project: Project) -> Project:
    """A project on a scripted A100, with one test."""
    project.device()
    project.tests(STEP)
    return project


def stay(project: Project, once_there_is: str = ".") -> None:
    """Has the project's test stay in its step, from the process on that finds this file."""
    project.tests(STAYING)
    (project.root / "stays-once-there-is").write_text(once_there_is, encoding="utf-8")


@dataclass(frozen=True)
class Command:
    """A `gpuperf record` under way."""

    project: Project
    process: subprocess.Popen[str]

    def wait_for(self, name: str) -> None:
        """Waits until the project has a file of this name."""
        wait_for((self.project.root / name).exists, name)

    def interrupt(self) -> tuple[str, str]:
        """Presses Ctrl-C, and returns what it has said."""
        self.process.send_signal(signal.SIGINT)
        said = self.process.communicate(timeout=60)
        assert self.process.returncode == INTERRUPTED
        return said


@contextmanager
def started(project: Project, *arguments: str, stdout: int = subprocess.PIPE) -> Iterator[Command]:
    """Runs `gpuperf record` beside this test, and ends it with the block at the latest."""
    words = [sys.executable, "-m", "pytest_gpuperf", "record", *arguments]
    # A shell has its background jobs ignore Ctrl-C, and what they start inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(words, stdout=stdout, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield Command(project, process)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)


def record(*arguments: str) -> int:
    return __main__.main(["record", *arguments])


def kept(project: Project, name: str = "run.json") -> int:
    """How many processes a run holds."""
    return len({measurement.process for measurement in project.saved(name).measurements})


def recorded(
    processes: int,
    *,
    of: int,
    device: Device = A100,
    command: str | None = None,
    **changes: Any,
) -> Run:
    """A recording of so many processes `of` so many, as the scripted A100 would have made it."""
    measurement: dict[str, Any] = {"test": "test_steps.py::test_step", "workload": {}, **changes}
    parts = [
        examples.measurement(process=f"p{number}", device=device, **measurement)
        for number in range(processes)
    ]
    return replace(examples.run(parts), command=command or Order(of).command)


# What it records


def test_the_runs_of_fresh_processes_are_merged(
    a100: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["-k", "test_step", "--gpu-arch", "sm80", "--", "test_steps.py"]
    assert record("--processes", "2", "--run", "run.json", "--", *arguments) == errors.OK
    first, second, saved, following = capsys.readouterr().out.splitlines()
    assert first.startswith("process 1 of 2: 1 measurement in ")
    assert first.endswith(" left")
    assert second.startswith("process 2 of 2: 1 measurement in ")
    assert "left" not in second
    assert saved == "run saved: run.json"
    assert following == 'accept it with:  gpuperf update-baseline run.json --reason "..."'
    run = a100.saved("run.json")
    assert run.command == f"gpuperf record --processes 2 -- {shlex.join(arguments)}"
    assert kept(a100) == 2
    assert run.verdicts == ()  # nothing was judged, although there is no baseline
    assert not a100.run_files()


@pytest.mark.parametrize(
    ("order", "command"),
    [
        (Order(), "gpuperf record --processes 5 --"),
        (Order(3, ("-k", "a b")), "gpuperf record --processes 3 -- -k 'a b'"),
        (Order(2, (), 0.5), "gpuperf record --processes 2 --pause 0.5 --"),
    ],
)
def test_the_command_is_kept_as_one_would_type_it(order: Order, command: str) -> None:
    assert order.command == command


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--processes", "0"], "--processes 0: at least 1 is needed"),
        (["--processes", "-1"], "--processes -1: at least 1 is needed"),
        (["--pause", "-0.1"], "--pause -0.1: give the seconds between two processes, 0 or more"),
        (["--pause", "nan"], "--pause nan: give"),
        (["--pause", "inf"], "--pause inf: give"),
    ],
    ids=" ".join,
)
def test_numbers_that_cannot_be_are_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record(*arguments) == errors.BAD_CONFIGURATION
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "{}", "not a run"])
def test_a_file_that_exists_is_not_written_over(
    content: str, project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    file = project.root / "run.json"
    file.write_text(content, encoding="utf-8")
    assert record("--run", "run.json") == errors.BAD_CONFIGURATION
    said = capsys.readouterr().err
    assert "run.json exists: continue it with `gpuperf record --continue run.json`" in said
    assert file.read_text(encoding="utf-8") == content


# Kernels


def with_kernels(project: Project, name: str = "run.json") -> list[bool]:
    """Which processes of a run have a kernel table."""
    return [m.kernels is not None for m in project.saved(name).measurements]


def test_the_first_process_counts_kernels_and_no_other(a100: Project) -> None:
    assert record("--processes", "3", "--run", "run.json") == errors.OK
    assert with_kernels(a100) == [True, False, False]
    assert a100.saved("run.json").command == "gpuperf record --processes 3 --"
    # One table is what the baseline keeps.
    assert a100.update("run.json") == 0
    assert "kernels:" in a100.baseline_text()


@pytest.mark.parametrize(
    ("arguments", "tables"),
    [
        (["--gpuperf-kernels=never"], [False, False]),
        (["--gpuperf-kernels", "always"], [True, True]),
        (["--gpuperf-kernels=on-regression", "--", "test_steps.py"], [False, False]),
    ],
    ids=["never", "always", "on a regression"],
)
def test_who_says_when_kernels_are_counted_is_heeded(
    arguments: list[str], tables: list[bool], a100: Project
) -> None:
    assert record("--processes", "2", "--run", "run.json", "--", *arguments) == errors.OK
    assert with_kernels(a100) == tables


def test_going_on_counts_kernels_where_none_were_counted(a100: Project) -> None:
    saved(a100, recorded(1, of=3))  # as by an earlier version
    assert record("--continue", "run.json") == errors.OK
    assert with_kernels(a100) == [False, True, False]
    assert record("--continue", "run.json", "--processes", "4") == errors.OK
    assert with_kernels(a100) == [False, True, False, False]


def test_without_a_gpu_nobody_is_asked_for_kernels(project: Project) -> None:
    project.tests(STEP)
    arguments = ["--processes", "2", "--run", "run.json", "--", "--gpu-arch=cpu"]
    assert record(*arguments) == errors.OK
    assert with_kernels(project) == [False, False]


# Processes that fail


def test_failing_tests_are_reported_and_what_was_measured_is_kept(
    a100: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    a100.tests(STEP + "\ndef test_wrong(): raise AssertionError('the reason')")
    assert record("--processes", "2", "--run", "run.json") == errors.FAILED
    said = capsys.readouterr()
    assert said.err.count("the reason") >= 2
    assert said.err.count("pytest ended with exit code 1, see above") == 2
    assert "run saved: run.json" in said.out
    assert "accept it with" not in said.out
    assert kept(a100) == 2


@pytest.mark.parametrize(
    ("source", "arguments", "code", "said"),
    [
        (STEP, ["--gpu-arch=sm90"], 4, "this device is NVIDIA A100-SXM4-80GB (sm80)"),
        ("", [], 5, "no tests ran"),
        ("def test_plain(): pass", [], 1, ""),
        (
            "import os\n\ndef test_it(): os.kill(os.getpid(), 9)",
            [],
            137,
            "pytest ended by signal 9 (Killed), see above",
        ),
    ],
    ids=["usage error", "no tests", "nothing measured", "killed"],
)
def test_a_process_that_measures_nothing_ends_the_recording(
    source: str,
    arguments: list[str],
    code: int,
    said: str,
    a100: Project,
    capsys: pytest.CaptureFixture[str],
) -> None:
    a100.tests(source)
    assert record("--processes", "3", "--run", "run.json", "--", *arguments) == code
    shown = capsys.readouterr()
    assert said in shown.err
    assert "nothing was measured, so no run was saved" in shown.err
    assert "process 1 of 3: 0 measurements in" in shown.out
    assert "process 2 of 3" not in shown.out
    assert not (a100.root / "run.json").exists()


def test_what_a_process_measured_before_it_broke_is_kept_and_can_be_gone_on_with(
    a100: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    a100.tests(STEP + "\ndef test_z():\n    import pytest\n    pytest.exit('enough', returncode=3)")
    assert record("--processes", "3", "--run", "run.json") == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == ["run saved: run.json", "go on with:  gpuperf record --continue run.json"]
    assert kept(a100) == 1


# Interruptions


def test_an_interruption_keeps_what_it_has_and_can_be_gone_on_with(
    a100: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    stay(a100, once_there_is="run.json")
    with started(a100, "--processes", "2", "--run", "run.json", "--", "-x") as command:
        command.wait_for("stays")
        assert kept(a100) == 1  # already now: it may also be killed, or the machine
        _, said = command.interrupt()
    assert said == (
        "gpuperf: interrupted after 1 of 2 processes, kept in run.json; go on with:  "
        "gpuperf record --continue run.json\n"
    )
    assert kept(a100) == 1
    a100.tests(STEP)
    assert record("--continue", "run.json") == errors.OK
    assert "process 2 of 2: 1 measurement in" in capsys.readouterr().out
    assert kept(a100) == 2
    assert a100.saved("run.json").command == "gpuperf record --processes 2 -- -x"


def test_an_interruption_before_anything_was_measured_keeps_nothing(a100: Project) -> None:
    stay(a100)
    with started(a100, "--run", "run.json") as command:
        command.wait_for("stays")
        _, said = command.interrupt()
    assert said == "gpuperf: interrupted before a process had finished: nothing was kept\n"
    assert not (a100.root / "run.json").exists()


def test_of_two_recordings_into_one_file_the_second_is_refused(
    a100: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    stay(a100)
    with started(a100, "--run", "run.json") as command:
        command.wait_for("stays")
        for arguments in (["--run", "./run.json"], ["--continue", "run.json"]):
            assert record(*arguments) == errors.BAD_CONFIGURATION
            said = capsys.readouterr().err
            assert "run.json is being recorded by another `gpuperf record`: wait" in said
        command.interrupt()


# The terminal


def shown_on(terminal: int, until: bytes = b"") -> bytes:
    """What is written to this terminal until it has this text, or is closed."""
    shown = b""
    with suppress(OSError):  # so Linux says that nobody has it open any more
        while not until or until not in shown:
            shown += os.read(terminal, 1000)
    return shown


def test_on_a_terminal_a_line_counts_and_is_gone_in_the_end(a100: Project) -> None:
    ours, theirs = pty.openpty()
    arguments = ("--processes", "2", "--pause", "3600", "--run", "run.json")
    with started(a100, *arguments, stdout=theirs) as command:
        os.close(theirs)
        shown = shown_on(ours, until=b"begins in")
        _, said = command.interrupt()
        shown += shown_on(ours)
    os.close(ours)
    assert "interrupted after 1 of 2 processes" in said
    counting, pausing = b"process 1 of 2 ... 0 s", b"process 2 of 2 begins in 60 min"
    assert shown.startswith(b"\r" + counting)
    assert b"\rprocess 1 of 2: 1 measurement in" in shown
    assert b", about 60 min left\r\n\r" + pausing in shown
    assert shown.endswith(b"\r" + b" " * len(pausing) + b"\r")


def test_after_the_last_process_there_is_no_pause(
    a100: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record("--processes", "1", "--pause", "360000") == errors.OK
    said = capsys.readouterr().out
    assert "left" not in said
    assert "\r" not in said  # no terminal, no line that is written over
    (file,) = a100.run_files()
    assert run_files.newest(a100.root) == file  # where update-baseline looks
    assert f"gpuperf update-baseline .gpuperf/runs/{file.name} --reason" in said
    assert a100.saved().command == "gpuperf record --processes 1 --pause 360000 --"


# Going on


def saved(project: Project, run: Run) -> bytes:
    """Makes this run the file `run.json`, and returns its content."""
    file = project.root / "run.json"
    run_files.save(run, file)
    return file.read_bytes()


def test_a_complete_recording_is_left_as_it_is(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    before = saved(project, recorded(2, of=2))
    assert record("--continue", "run.json") == errors.OK
    said = capsys.readouterr().out
    assert "nothing to do: run.json has 2 processes of 2; a larger --processes adds to it" in said
    assert "accept it with:  gpuperf update-baseline run.json" in said
    assert (project.root / "run.json").read_bytes() == before


def test_a_complete_recording_can_be_extended(
    a100: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(a100, recorded(2, of=2, command="gpuperf record --processes 2 -- -k step"))
    assert record("--continue", "run.json", "--processes", "3") == errors.OK
    assert capsys.readouterr().out.startswith("process 3 of 3: 1 measurement in ")
    assert kept(a100) == 3
    assert a100.saved("run.json").command == "gpuperf record --processes 3 -- -k step"


def test_the_workers_of_one_process_count_as_one(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    parts: list[Measurement] = []
    for process, test in [
        ("gw0", "test_a"),
        ("gw1", "test_b"),
        ("gw2", "test_b"),
        ("gw3", "test_a"),
    ]:
        parts.append(examples.measurement(process=process, test=test))
    saved(project, replace(examples.run(parts), command=Order(2).command))
    assert record("--continue", "run.json") == errors.OK
    assert "run.json has 2 processes of 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--", "-k", "a b"], "so these cannot be given: -k 'a b'"),
        (["--run", "other.json"], "so --run other.json cannot be given as well"),
        (["--processes", "0"], "--processes 0: at least 1"),
        (["--pause", "-1"], "--pause -1: give"),
    ],
    ids=" ".join,
)
def test_going_on_takes_no_arguments_but_numbers(
    arguments: list[str], said: str, project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    before = saved(project, recorded(1, of=2))
    assert record("--continue", "run.json", *arguments) == errors.BAD_CONFIGURATION
    assert said in capsys.readouterr().err
    assert (project.root / "run.json").read_bytes() == before


@pytest.mark.parametrize(
    "command",
    [
        "suites/meddpm --gpu-arch sm90",
        "",
        "gpuperf",
        "gpuperf record --processes two -- -x",
        "gpuperf record --processes 0 -- -x",
        "gpuperf record --else",
        "gpuperf record -- 'open",
    ],
)
def test_a_run_that_was_not_recorded_cannot_be_continued(
    command: str, project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    before = saved(project, replace(recorded(1, of=2), command=command))
    assert record("--continue", "run.json") == errors.BAD_CONFIGURATION
    said = capsys.readouterr().err
    assert "run.json was not made by `gpuperf record`, which alone can be continued" in said
    assert f"`{command}`" in said
    assert (project.root / "run.json").read_bytes() == before


def test_a_run_that_is_not_there_cannot_be_continued(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record("--continue", "run.json") == errors.BAD_CONFIGURATION
    assert "run.json: no such run file" in capsys.readouterr().err
    assert not (project.root / "run.json").exists()


def test_a_process_on_another_device_is_not_added(
    a100: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    before = saved(a100, recorded(1, of=2, device=examples.H200))
    assert record("--continue", "run.json") == errors.BAD_CONFIGURATION
    assert (
        "run.json was recorded on NVIDIA H200 (sm90), and this process measured on "
        "NVIDIA A100-SXM4-80GB (sm80). Nothing was added to run.json: begin a new recording"
    ) in capsys.readouterr().err
    assert (a100.root / "run.json").read_bytes() == before


HELD = recorded(1, of=2)
OTHER = recorded(1, of=2, test="test_steps.py::test_other")
BOTH = replace(HELD, measurements=(*HELD.measurements, *OTHER.measurements))


@pytest.mark.parametrize(
    ("held", "measured", "partly"),
    [
        (HELD, HELD, False),
        (HELD, recorded(1, of=2, device=replace(A100, identity="its twin")), False),
        (BOTH, HELD, True),
    ],
    ids=["the same", "another GPU of that name", "a test failed"],
)
def test_what_measures_the_same_is_added(held: Run, measured: Run, partly: bool) -> None:
    check_same(held, measured, Path("run.json"), partly=partly)


@pytest.mark.parametrize(
    ("held", "measured", "partly", "said"),
    [
        (HELD, BOTH, False, "this process measured test_other, of which run.json has nothing."),
        (HELD, BOTH, True, "this process measured test_other, of which run.json has nothing."),
        (BOTH, HELD, False, "run.json has test_other, of which this process measured nothing."),
        (
            HELD,
            recorded(1, of=2, workload={"size": 64}),
            False,
            "test_step: the workload in run.json is size unset, here 64.",
        ),
        (
            HELD,
            recorded(1, of=2, device=replace(A100, arch="sm90")),
            False,
            "run.json was recorded on NVIDIA A100-SXM4-80GB (sm80), and this process measured on "
            "NVIDIA A100-SXM4-80GB (sm90).",
        ),
    ],
    ids=["a new test", "a new test beside failures", "a test less", "workload", "architecture"],
)
def test_what_measures_something_else_is_refused(
    held: Run, measured: Run, partly: bool, said: str
) -> None:
    with pytest.raises(UsageFailure) as caught:
        check_same(held, measured, Path("run.json"), partly=partly)
    assert str(caught.value).startswith(said)
    assert "Nothing was added to run.json: begin a new recording" in str(caught.value)
