"""The `gpuperf` command: accepting runs, recording in fresh processes, and the doctor."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pytest_gpuperf
from pytest_gpuperf import cli, runs

if TYPE_CHECKING:
    from tests.plugin.projects import Project

STEP = """
    def test_step(gpuperf):
        gpuperf.measure(lambda: None)
"""
BASELINE = Path("baselines/sm80/nvidia-a100-sxm4-80gb/test_steps.yaml")


@pytest.fixture
def a100(project: Project) -> Project:
    """A project on a scripted A100, with one test."""
    project.device()
    project.tests(STEP)
    return project


@pytest.fixture
def measured(a100: Project, capsys: pytest.CaptureFixture[str]) -> Project:
    """The same, with a run."""
    assert a100.run("--gpuperf-no-judge", "--gpuperf-run=run.json").ret == 0
    capsys.readouterr()
    return a100


def update(*arguments: str) -> int:
    return cli.main(["update-baseline", *arguments])


# update-baseline


def test_a_first_baseline_is_shown_written_and_logged(
    measured: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert update("run.json", "--reason", "first baseline", "--yes") == cli.OK
    shown = capsys.readouterr().out
    assert "test_step on NVIDIA A100-SXM4-80GB, 1 process" in shown
    assert "(new) ->      400.00 M" in shown
    assert f"written: {BASELINE}" in shown
    assert "reason: first baseline" in measured.baseline_text()
    assert measured.run().ret == 0


def test_a_change_is_shown_from_old_to_new_and_appended_to_the_log(
    measured: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert update("run.json", "--reason", "first baseline", "--yes") == cli.OK
    measured.device(factors={"": {"cycles": 1.25}})
    assert measured.run().ret == pytest.ExitCode.TESTS_FAILED
    capsys.readouterr()
    assert update("--reason", "a slower, safer kernel", "--yes") == cli.OK
    assert "400.00 M ->      500.00 M  +25.00 %" in capsys.readouterr().out
    text = measured.baseline_text()
    assert text.index("reason: first baseline") < text.index("reason: a slower, safer kernel")
    assert measured.run().ret == 0


def test_without_a_run_the_newest_is_taken(
    a100: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    for factor in (1, 2, 3):
        a100.device(factors={"": {"cycles": factor}})
        assert a100.run("--gpuperf-no-judge").ret == 0
    capsys.readouterr()
    assert update("--reason", "newest", "--yes") == cli.OK
    assert "(new) ->      1.2000 G" in capsys.readouterr().out


def test_several_runs_are_accepted_together(
    a100: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2, 3):
        assert a100.run_apart("--gpuperf-no-judge", f"--gpuperf-run={number}.json").ret == 0
    capsys.readouterr()
    assert update("1.json", "2.json", "3.json", "--reason", "three days", "--yes") == cli.OK
    assert "3 processes" in capsys.readouterr().out
    assert "processes: 3" in a100.baseline_text()


@pytest.mark.parametrize("reason", [[], ["--reason", ""], ["--reason", "  "]])
def test_a_reason_is_needed(
    reason: list[str], measured: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert update("run.json", "--yes", *reason) == cli.BAD_CONFIGURATION
    assert "a reason is needed" in capsys.readouterr().err
    assert not measured.has_baseline()


def test_where_nobody_can_be_asked_nothing_is_written(
    measured: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path(os.devnull).open(encoding="utf-8") as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        assert update("run.json", "--reason", "first") == cli.FAILED
    said = capsys.readouterr()
    assert "pass --yes to accept" in said.err
    assert "nothing was written" in said.out
    assert not measured.has_baseline()


@pytest.mark.parametrize(
    ("typed", "accepted"),
    [
        (b"y\n", True),
        (b"Yes\n", True),
        (b"\n", False),
        (b"n\n", False),
        (b"\x04", False),  # end of file
    ],
)
def test_on_a_terminal_it_asks(typed: bytes, accepted: bool, measured: Project) -> None:
    ours, theirs = pty.openpty()
    try:
        command = [sys.executable, "-m", "pytest_gpuperf", "update-baseline", "run.json"]
        asking = subprocess.Popen(
            [*command, "--reason", "first"], stdin=theirs, stdout=subprocess.PIPE, text=True
        )
        os.write(ours, typed)
        said, _ = asking.communicate()
    finally:
        os.close(ours)
        os.close(theirs)
    assert "accept 1 measurements of run.json? [y/N]" in said
    assert measured.has_baseline() is accepted
    assert asking.returncode == (cli.OK if accepted else cli.FAILED)
    assert ("written" if accepted else "nothing was written") in said


def test_a_missing_run_is_refused(measured: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert update("other.json", "--reason", "first", "--yes") == cli.BAD_CONFIGURATION
    assert "other.json: no such run file" in capsys.readouterr().err
    (measured.root / "run.json").unlink()
    assert update("--reason", "first", "--yes") == cli.BAD_CONFIGURATION
    assert "no run under" in capsys.readouterr().err


def test_a_corrupted_run_is_refused_and_nothing_written(
    measured: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    file = measured.root / "run.json"
    file.write_text(file.read_text(encoding="utf-8").replace("400000000.0", "null", 1))
    before = file.read_bytes()
    assert update("run.json", "--reason", "first", "--yes") == cli.BAD_CONFIGURATION
    assert "run.json: measurements/0/samples/0/values/0: " in capsys.readouterr().err
    assert file.read_bytes() == before
    assert not measured.has_baseline()


def test_a_corrupted_baseline_is_refused_and_not_overwritten(
    measured: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert update("run.json", "--reason", "first", "--yes") == cli.OK
    file = measured.root / BASELINE
    file.write_text(file.read_text(encoding="utf-8").replace("arch:", "march:", 1))
    before = file.read_bytes()
    assert update("run.json", "--reason", "second", "--yes") == cli.BAD_CONFIGURATION
    said = capsys.readouterr().err
    assert "test_steps.yaml: arch: Field required" in said
    assert "nothing was overwritten" in said
    assert file.read_bytes() == before


def test_one_corrupted_baseline_of_two_keeps_both_as_they_are(
    a100: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    a100.tests(STEP, "test_others")
    a100.accept()
    files = [a100.root / BASELINE, a100.root / BASELINE.with_name("test_others.yaml")]
    files[0].write_text("schema: 1\n", encoding="utf-8")  # collected last, so accepted last
    before = [file.read_bytes() for file in files]
    assert a100.update("accepted.json") == cli.BAD_CONFIGURATION
    assert [file.read_bytes() for file in files] == before
    assert "test_steps.yaml" in capsys.readouterr().err


def test_baselines_may_be_kept_elsewhere(measured: Project) -> None:
    kept = ("--baselines", "kept")
    assert update("run.json", "--reason", "first", "--yes", *kept) == cli.OK
    assert not measured.has_baseline()
    assert measured.run("--gpuperf-baselines=kept").ret == 0


# record


def test_recording_merges_the_runs_of_fresh_processes(
    a100: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["record", "--processes", "2", "--run", "merged.json"]
    assert cli.main([*command, "--", "-k", "test_step", "--gpu-arch", "sm80"]) == cli.OK
    said = capsys.readouterr().out
    assert "process 1 of 2: 1 measurements in" in said
    assert "process 2 of 2: 1 measurements in" in said
    assert "run saved: merged.json" in said
    assert 'accept it with:  gpuperf update-baseline merged.json --reason "..."' in said
    run = a100.saved("merged.json")
    assert run.command == "gpuperf record --processes 2 -- -k test_step --gpu-arch sm80"
    assert len({measurement.process for measurement in run.measurements}) == 2
    assert run.verdicts == ()  # nothing was judged, although there is no baseline
    assert not a100.run_files()


def test_recording_saves_where_update_baseline_looks(
    a100: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["record", "--processes", "1"]) == cli.OK
    (file,) = a100.run_files()
    assert f"gpuperf update-baseline .gpuperf/runs/{file.name} --reason" in capsys.readouterr().out
    assert update("--reason", "first", "--yes") == cli.OK
    assert a100.has_baseline()


def test_failing_tests_are_reported_and_what_was_measured_is_kept(
    a100: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    a100.tests(STEP + "\n    def test_wrong(): raise AssertionError('the reason')")
    assert cli.main(["record", "--processes", "2", "--run", "run.json"]) == cli.FAILED
    said = capsys.readouterr()
    assert said.err.count("the reason") >= 2
    assert said.err.count("pytest ended with exit code 1, see above") == 2
    assert "accept it with" not in said.out
    assert len(a100.saved("run.json").measurements) == 2


def test_a_usage_error_ends_the_recording(
    a100: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["record", "--processes", "3", "--run", "run.json", "--", "--gpu-arch=sm90"]
    assert cli.main(arguments) == cli.BAD_CONFIGURATION
    said = capsys.readouterr()
    assert "this device is NVIDIA A100-SXM4-80GB (sm80)" in said.err
    assert "nothing was measured, so no run was saved" in said.err
    assert "process 2 of 3" not in said.out
    assert not (a100.root / "run.json").exists()


def test_tests_that_measure_nothing_make_no_run(
    a100: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    a100.tests("def test_plain(): pass")
    assert cli.main(["record", "--processes", "2", "--run", "run.json"]) == cli.FAILED
    assert "nothing was measured" in capsys.readouterr().err
    assert not (a100.root / "run.json").exists()


@pytest.mark.parametrize("processes", ["0", "-1"])
def test_at_least_one_process_is_needed(processes: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["record", "--processes", processes]) == cli.BAD_CONFIGURATION
    assert "at least 1 is needed" in capsys.readouterr().err


# doctor


def test_the_doctor_has_a_remedy_for_every_no(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    answers = [line for line in lines if not line.startswith("     -> ")]
    assert answers
    assert all(line.startswith(("yes  ", "no   ")) for line in answers)
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("no "):
            assert following.startswith("     -> "), line
    assert any(line.startswith("no ") for line in answers) or code == cli.OK


def test_without_a_gpu_the_doctor_fails_and_says_where_it_looked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert cli.main(["doctor"]) == cli.FAILED
    said = capsys.readouterr().out
    assert "no   GPU: none is visible, so suites measure portable counts on the CPU" in said
    assert "yes  torch: " in said


# The command itself


def gpuperf(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_gpuperf", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_runs_as_a_module() -> None:
    done = gpuperf("--version")
    assert (done.returncode, done.stdout) == (0, f"gpuperf {pytest_gpuperf.__version__}\n")


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == cli.OK
    said = capsys.readouterr().out
    for command in ("doctor", "record", "update-baseline"):
        assert command in said


@pytest.mark.parametrize(
    "words", [[], ["dctor"], ["record", "--processes", "two"], ["update-baseline", "--why", "x"]]
)
def test_bad_words_are_bad_configuration(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == cli.BAD_CONFIGURATION
    assert "usage: gpuperf" in capsys.readouterr().err


def test_the_newest_run_needs_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert update("--reason", "first", "--yes") == cli.BAD_CONFIGURATION
    assert not (tmp_path / runs.FOLDER).exists()
