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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf import __main__, errors
from pytest_gpuperf.errors import INTERRUPTED
from pytest_gpuperf.measure import fresh_process
from pytest_gpuperf.measure.device.nvml import portable_device
from pytest_gpuperf.measure.fresh_process import Finished, Start
from pytest_gpuperf.model.measurement import Device, KernelTable
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
    series: dict[str, list[float]] | None = None
    started: list[list[str]] = field(default_factory=list)

    def __call__(self, start: Start) -> Finished:
        assert not start.under, "no torchrun"
        assert start.folder == Path.cwd()
        self.started.append(list(start.arguments))
        number = len(self.started)
        code = self.codes[number - 1] if number <= len(self.codes) else 0
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        table = KernelTable((), (), (), 0.0) if ALWAYS in start.arguments else None
        measured = examples.measurement(
            self.series, test=STEP, process=f"child {number}", device=self.device, kernels=table
        )
        made = examples.run([measured])
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


def test_an_interruption_keeps_what_it_has(
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
        assert record("--run", "./run.json") == errors.BAD_CONFIGURATION
        assert "another process is writing run.json. Wait until" in capsys.readouterr().err
        assert len(project.saved("run.json").measurements) == 1  # it may also be killed
        process.send_signal(signal.SIGINT)
        shown += shown_on(ours)
        _, said = process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == INTERRUPTED
    assert said == (
        "gpuperf: interrupted after 1 of 2 processes, kept in run.json. For the others, record "
        "again with --processes 1, and accept both runs together\n"
    )
    assert shown.startswith(b"\rprocess 1 of 2: measuring\x1b[K")
    assert b"\r\x1b[Kprocess 1 of 2: 1 measurement in" in shown
    assert b" left\r\n\rprocess 2 of 2: measuring" in shown
    assert shown.endswith(b"\r\x1b[K")


# What it records


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


def test_a_number_that_cannot_be_and_a_file_that_exists_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    FILE.write_text("not a run", encoding="utf-8")
    for words, says in (
        (("--processes", "0"), "--processes 0 must be at least 1"),
        (("--run", "run.json"), "run.json exists already. Name another file"),
    ):
        assert record(*words) == errors.BAD_CONFIGURATION
        assert says in capsys.readouterr().err
    assert FILE.read_text("utf-8") == "not a run"


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


def test_the_baselines_that_were_named_are_named_again(
    children: Children, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record("--run=run.json", "--", "--gpuperf-baselines", "all kept", "tests") == errors.OK
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == "  gpuperf update-baseline run.json --baselines 'all kept' --reason \"...\""
    assert len(children.started) == 5


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


def test_what_a_process_measured_before_it_broke_is_kept(
    children: Children, capsys: pytest.CaptureFixture[str]
) -> None:
    children.codes = (3,)
    assert record("--processes", "3", "--run", "run.json") == 3
    assert capsys.readouterr().out.splitlines()[1:] == ["run saved: run.json"]
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


def test_a_token_is_given_to_pytest_and_kept_nowhere(children: Children) -> None:
    assert record("--processes", "1", "--run", "run.json", "--", "--api-token", "s3cr3t") == 0
    assert children.started == [[ALWAYS, "-q", "--api-token", "s3cr3t"]]
    assert b"s3cr3t" not in FILE.read_bytes()
    assert run_files.load(FILE).command == "gpuperf record --processes 1 -- --api-token '***'"
