"""`gpuperf record`: fresh processes one after the other, what is kept of them, and going on.

What the processes bring is a script's, but for two tests: what they really are is told there.
"""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf import __main__, errors
from pytest_gpuperf.commands.record import check_same
from pytest_gpuperf.errors import INTERRUPTED, UsageFailure
from pytest_gpuperf.measure import fresh_process
from pytest_gpuperf.measure.device.nvml import portable_device
from pytest_gpuperf.measure.fresh_process import Finished
from pytest_gpuperf.model.measurement import Device, KernelTable
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.storage import run_files
from tests import examples

if TYPE_CHECKING:
    from tests.plugin.projects import Project

A100 = Device("sm80", "NVIDIA A100-SXM4-80GB", "nvidia-a100-sxm4-80gb", "scripted")
ALWAYS = "--gpuperf-kernels=always"
STEP = "test_steps.py::test_step"
FILE = Path("run.json")


@dataclass
class Children:
    """Fresh processes: each makes one measurement, and ends as the script has it for its number."""

    codes: Sequence[int] = ()
    measures: bool = True
    device: Device = A100
    tests: Sequence[str] = (STEP,)
    series: dict[str, list[float]] | None = None
    started: list[list[str]] = field(default_factory=list)

    def __call__(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        tick: Callable[[float], None],
        under: Sequence[str] = (),
    ) -> Finished:
        assert not under, "no torchrun"
        assert folder == Path.cwd()
        tick(0.0)
        self.started.append(list(arguments))
        number = len(self.started)
        code = self.codes[number - 1] if number <= len(self.codes) else 0
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        parts = [
            one(
                f"child {number}",
                kernels=ALWAYS in arguments,
                device=self.device,
                test=test,
                series=self.series,
            )
            for test in self.tests
        ]
        made = examples.run([part.measurements[0] for part in parts])
        return Finished(made if self.measures else None, code, f"output {number}", 60.0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Children:
    """In the place of fresh processes."""
    scripted = Children()
    monkeypatch.setattr(fresh_process, "run_pytest", scripted)
    return scripted


def one(process: str, *, kernels: bool = False, device: Device = A100, **changes: Any) -> Run:
    """What one process measured."""
    made: dict[str, Any] = {"test": STEP, "workload": {}, **changes}
    table = KernelTable((), (), (), 0.0) if kernels else None
    return examples.run(
        [examples.measurement(process=process, device=device, kernels=table, **made)]
    )


def recorded(processes: int, *, of: int, command: str | None = None, **changes: Any) -> Run:
    """A recording of so many processes `of` so many, as the scripted A100 would have made it."""
    parts = [one(f"p{number}", **changes).measurements[0] for number in range(processes)]
    return replace(examples.run(parts), command=command or f"gpuperf record --processes {of} --")


def saved(run: Run) -> bytes:
    """Makes this run the file `run.json`, and returns its content."""
    run_files.save(run, FILE)
    return FILE.read_bytes()


def record(*arguments: str) -> int:
    return __main__.main(["record", *arguments])


def with_kernels() -> list[bool]:
    """Which processes of the run have a kernel table."""
    return [m.kernels is not None for m in run_files.load(FILE).measurements]


# Really in fresh processes


def test_the_runs_of_fresh_processes_are_merged(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.device()
    project.tests("def test_step(gpuperf): gpuperf.measure(lambda: None)")
    arguments = ["-k", "test_step", "--gpu-arch", "sm80", "--", "test_steps.py"]
    assert record("--processes", "2", "--run", "run.json", "--", *arguments) == errors.OK
    assert "process 2 of 2: 1 measurement in " in capsys.readouterr().out
    run = project.saved("run.json")
    assert run.command == f"gpuperf record --processes 2 -- {shlex.join(arguments)}"
    assert run.verdicts == ()  # nothing was judged, although there is no baseline
    assert len({m.process for m in run.measurements}) == 2
    assert with_kernels() == [True, False]
    assert not project.run_files()


def shown_on(terminal: int, until: bytes = b"") -> bytes:
    """What is written to this terminal until it has this text, or is closed."""
    shown = b""
    with suppress(OSError):  # so Linux says that nobody has it open any more
        while not until or until not in shown:
            shown += os.read(terminal, 1000)
    return shown


def test_an_interruption_keeps_what_it_has_and_can_be_gone_on_with(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal, where a line says what is done; meanwhile nobody else may have the file."""
    project.device()
    project.tests(
        """
        import pathlib, signal
        def test_step(gpuperf):
            gpuperf.measure(lambda: None)
            if pathlib.Path("once").exists():
                signal.alarm(60)
                signal.pause()
            pathlib.Path("once").touch()
        """
    )
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "pytest_gpuperf", "record", "--processes", "2"]
    # A shell has its background jobs ignore Ctrl-C, and what they start inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        [*command, "--run", "run.json", "--", "-x"],
        stdout=theirs,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(theirs)
        shown = shown_on(ours, until=b"process 2 of 2: measuring")
        for arguments in (["--run", "./run.json"], ["--continue", "run.json"]):
            assert record(*arguments) == errors.BAD_CONFIGURATION
            said = capsys.readouterr().err
            assert "another process is writing run.json. Wait until" in said
        assert len(project.saved("run.json").measurements) == 1  # it may also be killed
        process.send_signal(signal.SIGINT)
        shown += shown_on(ours)
        _, said = process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == INTERRUPTED
    assert said == (
        "gpuperf: interrupted after 1 of 2 processes, kept in run.json; continue with:  "
        "gpuperf record --continue run.json --processes 2 -- -x\n"
    )
    assert shown.startswith(b"\rprocess 1 of 2: measuring\x1b[K")
    assert b"\r\x1b[Kprocess 1 of 2: 1 measurement in" in shown
    assert b" left\r\n\rprocess 2 of 2: measuring" in shown
    assert shown.endswith(b"\r\x1b[K")
    monkeypatch.setattr(fresh_process, "run_pytest", Children())
    assert record("--continue", "run.json", "--processes", "2", "--", "-x") == errors.OK
    assert "process 2 of 2: 1 measurement in" in capsys.readouterr().out
    run = project.saved("run.json")
    assert len(run.measurements) == 2
    assert run.command == "gpuperf record --processes 2 -- -x"


# What it records


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What it says to these, which are bad configuration; the run that is there is left alone."""
    before = FILE.read_bytes() if FILE.exists() else None
    assert record(*arguments) == errors.BAD_CONFIGURATION
    assert (FILE.read_bytes() if FILE.exists() else None) == before
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("device", "asked", "processes"),
    [(A100, (), 5), (portable_device(), (), 1), (portable_device(), ("--processes", "3"), 3)],
)
def test_one_process_is_enough_for_the_exact_counts_of_a_cpu(
    device: Device,
    asked: tuple[str, ...],
    processes: int,
    children: Children,
    capsys: pytest.CaptureFixture[str],
) -> None:
    children.device = device
    assert __main__.main(["record", *asked, "--run", "run.json", "--", "tests"]) == errors.OK
    assert len(children.started) == processes
    run = run_files.load(Path("run.json"))
    assert len(run.measurements) == processes
    assert f"--processes {processes} --" in run.command
    assert ("process 1 of" in capsys.readouterr().out) is bool(asked)


def test_a_number_that_cannot_be_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    saved(recorded(1, of=2))
    for place in ("--run=new.json", "--continue=run.json"):
        assert "--processes 0 must be at least 1" in refused(capsys, place, "--processes", "0")
    both = refused(capsys, "--continue", "run.json", "--run", "other.json")
    assert "--run: not allowed with argument --continue" in both


def test_a_file_that_exists_is_not_written_over(capsys: pytest.CaptureFixture[str]) -> None:
    FILE.write_text("not a run", encoding="utf-8")
    assert "run.json exists already. Name another file" in refused(capsys, "--run", "run.json")


def test_the_time_left_is_told_but_not_of_the_last_process(
    children: Children, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record("--processes", "2") == errors.OK
    (file,) = (folder / run_files.FOLDER).glob("*.json")
    assert run_files.newest(folder) == file  # where update-baseline looks
    assert capsys.readouterr().out.splitlines() == [  # no terminal, no line that is written over
        "process 1 of 2: 1 measurement in 60 s, about 60 s left",
        "process 2 of 2: 1 measurement in 60 s",
        f"run saved: .gpuperf/runs/{file.name}",
        "to accept it:",
        f'  gpuperf update-baseline .gpuperf/runs/{file.name} --reason "..."',
    ]
    assert run_files.load(file).command == "gpuperf record --processes 2 --"
    assert children.started == [[ALWAYS, "-q"], ["-q"]]


# Kernels


def test_the_first_process_counts_kernels_unless_its_arguments_say_otherwise(
    children: Children,
) -> None:
    words = ["--gpuperf-kernels=never", "--", "test_steps.py"]
    assert record("--processes", "3", "--run", "run.json", "--", *words) == errors.OK
    # pytest lets the last of several values win, and reads flags up to the "--".
    assert children.started == [[ALWAYS, "-q", *words], ["-q", *words], ["-q", *words]]
    assert with_kernels() == [True, False, False]


def test_a_step_that_does_other_work_each_time_is_said(
    children: Children, capsys: pytest.CaptureFixture[str]
) -> None:
    children.series = {"operators": [30.0, 36.0]}
    assert record("--processes", "2") == errors.OK
    note = "note: the step of test_step does other work each time: operators 30 to 36. Give"
    assert note in capsys.readouterr().out


def test_going_on_counts_kernels_where_none_were_counted(children: Children) -> None:
    saved(recorded(1, of=3))  # as by an earlier version
    assert record("--continue", "run.json", "--processes", "3") == errors.OK
    assert with_kernels() == [False, True, False]
    children.started.append([])
    assert record("--continue", "run.json", "--processes", "4") == errors.OK
    assert with_kernels() == [False, True, False, False]


# Processes that fail


def test_failing_tests_are_reported_and_what_was_measured_is_kept(
    children: Children, capsys: pytest.CaptureFixture[str]
) -> None:
    children.codes = (1, 1)
    assert record("--processes", "2", "--run", "run.json") == errors.FAILED
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        *("output 1", "gpuperf: pytest ended with exit code 1, see above"),
        *("output 2", "gpuperf: pytest ended with exit code 1, see above"),
    ]
    assert said.out.splitlines()[2:] == ["run saved: run.json"]
    assert len(run_files.load(FILE).measurements) == 2


def test_a_process_that_measures_nothing_ends_the_recording(
    children: Children, capsys: pytest.CaptureFixture[str]
) -> None:
    children.measures = False
    for code, ours, said in (
        (4, 4, "gpuperf: pytest ended with exit code 4, see above"),
        (0, 1, "gpuperf: pytest measured nothing, so gpuperf saved no run"),
        (-9, 137, "gpuperf: pytest ended by signal 9 (Killed), see above"),
    ):
        children.codes = (code,)
        children.started.clear()
        assert record("--processes", "3", "--run", "run.json") == ours
        shown = capsys.readouterr()
        assert said in shown.err.splitlines()
        assert shown.err.endswith("pytest measured nothing, so gpuperf saved no run\n")
        assert shown.out.startswith("process 1 of 3: 0 measurements in")
        assert len(children.started) == 1
        assert not FILE.exists()


def test_what_a_process_measured_before_it_broke_is_kept_and_can_be_gone_on_with(
    children: Children, capsys: pytest.CaptureFixture[str]
) -> None:
    children.codes = (3,)
    assert record("--processes", "3", "--run", "run.json") == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == [
        "run saved: run.json",
        "to continue:",
        "  gpuperf record --continue run.json --processes 3",
    ]
    assert len(run_files.load(FILE).measurements) == 1


def test_an_interruption_before_anything_was_measured_keeps_nothing(
    children: Children, capsys: pytest.CaptureFixture[str]
) -> None:
    children.codes = (INTERRUPTED,)
    assert record("--run", "run.json") == INTERRUPTED
    said = capsys.readouterr()
    nothing = "interrupted before the first process finished, so gpuperf kept nothing"
    assert said.err == f"gpuperf: {nothing}\n"
    assert said.out == ""
    assert not FILE.exists()


# Going on


def test_a_complete_recording_is_left_as_it_is_or_extended(
    children: Children, capsys: pytest.CaptureFixture[str]
) -> None:
    before = saved(recorded(2, of=2, command="gpuperf record --processes 2 -- -k step"))
    words = ["--", "-k", "step"]
    assert record("--continue", "run.json", "--processes", "2", *words) == errors.OK
    assert capsys.readouterr().out.splitlines() == [
        "nothing to do: run.json has 2 processes of 2. A larger --processes adds more",
        "to accept it:",
        '  gpuperf update-baseline run.json --reason "..."',
    ]
    assert FILE.read_bytes() == before
    assert record("--continue", "run.json", "--processes", "3", *words) == errors.OK
    assert capsys.readouterr().out.startswith("process 3 of 3: 1 measurement in ")
    assert children.started == [[ALWAYS, "-q", "-k", "step"]]
    run = run_files.load(FILE)
    assert len(run.measurements) == 3
    assert run.command == "gpuperf record --processes 3 -- -k step"


def test_the_workers_of_one_process_count_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    parts = [
        examples.measurement(process=process, test=test)
        for process, test in (("gw0", "a"), ("gw1", "b"), ("gw2", "b"), ("gw3", "a"))
    ]
    saved(replace(examples.run(parts), command="gpuperf record --processes 2 --"))
    assert record("--continue", "run.json", "--processes", "2") == errors.OK
    assert "run.json has 2 processes of 2" in capsys.readouterr().out


@pytest.mark.parametrize("typed", [[], ["--", "-k", "a b", "-x"]])
def test_arguments_are_never_taken_out_of_a_run_but_have_to_be_typed_again(
    typed: list[str], children: Children, capsys: pytest.CaptureFixture[str]
) -> None:
    """They execute what they name, and runs travel."""
    saved(recorded(1, of=2, command="gpuperf record --processes 2 -- -k 'a b'"))
    said = refused(capsys, "--continue", "run.json", *typed)
    assert "Type `gpuperf record --continue run.json -- -k 'a b'`, or start" in said
    assert children.started == []
    typed = ["--processes", "2", "--", "-k", "a b"]
    assert record("--continue", "run.json", *typed) == errors.OK


def test_a_token_is_given_to_pytest_and_kept_nowhere(
    children: Children, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record("--processes", "1", "--run", "run.json", "--", "--api-token", "s3cr3t") == 0
    assert children.started == [[ALWAYS, "-q", "--api-token", "s3cr3t"]]
    assert b"s3cr3t" not in FILE.read_bytes()
    assert run_files.load(FILE).command == "gpuperf record --processes 1 -- --api-token '***'"
    more = ("--continue", "run.json", "--processes", "2", "--")
    assert record(*more, "--api-token", "s3cr3t") == errors.OK
    assert children.started[1][-2:] == ["--api-token", "s3cr3t"]
    assert b"s3cr3t" not in FILE.read_bytes()
    assert "was recorded with other pytest arguments" in refused(capsys, *more, "-x")
    assert "s3cr3t" not in "".join(capsys.readouterr())


def test_the_run_of_a_session_gets_the_processes_that_it_lacks(children: Children) -> None:
    """It looked again at one of its tests alone."""
    children.tests = ("a.py::test_first", "a.py::test_second")
    looks = [("first", 1), ("second", 1), ("first", 2), ("first", 3)]
    parts = [one(f"p{number}", test=f"a.py::test_{name}") for name, number in looks]
    run = examples.run([part.measurements[0] for part in parts])
    saved(replace(run, command="a.py --gpuperf-run=run.json --gpu-arch sm80"))
    arguments = ("--processes", "3", "--", "a.py", "--gpu-arch", "sm80")
    for _ in range(2):  # the second time there is nothing to do
        assert record("--continue", "run.json", *arguments) == errors.OK
        made = run_files.load(FILE)
        assert made.command == "gpuperf record --processes 3 -- a.py --gpu-arch sm80"
        by_test = Counter(measurement.test for measurement in made.measurements)
        assert by_test == {"a.py::test_first": 5, "a.py::test_second": 3}


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("gpuperf import report.ncu-rep", "does not run pytest"),
        (
            "gpuperf record -- 'open",
            "its recorded command `gpuperf record -- 'open` cannot be parsed (No closing quot",
        ),
    ],
)
def test_what_did_not_run_pytest_cannot_be_continued(
    command: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(replace(recorded(1, of=2), command=command))
    said = refused(capsys, "--continue", "run.json")
    assert "run.json cannot be continued, as " in said
    assert why in said


def test_what_measures_the_same_is_added_and_something_else_refused() -> None:
    held = recorded(1, of=2)
    other = recorded(1, of=2, test="test_steps.py::test_other")
    both = replace(held, measurements=(*held.measurements, *other.measurements))
    twin = recorded(1, of=2, device=replace(A100, identity="its twin"))
    smaller = recorded(1, of=2, workload={"size": 64})
    on = "on NVIDIA A100-SXM4-80GB (sm80)"
    for known, measured, partly, said in (
        (held, held, False, ""),
        (held, twin, False, ""),
        (both, held, True, ""),
        (held, both, False, f"this process measured test_other {on}, which run.json lacks"),
        (held, both, True, f"this process measured test_other {on}, which run.json lacks"),
        (both, held, False, f"run.json has test_other {on}, which this process did not measure."),
        (held, smaller, True, f"this process measured test_step {on}, size 64, which"),
    ):
        with pytest.raises(UsageFailure) if said else nullcontext() as caught:
            check_same(known, measured, Path("run.json"), partly=partly)
        if caught:
            assert str(caught.value).startswith(said)
            assert "gpuperf did not change run.json. Start a new recording" in str(caught.value)
