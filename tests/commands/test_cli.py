"""The `gpuperf` command: accepting runs, and the doctor. Recording is in test_record.py."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pytest_gpuperf
from pytest_gpuperf import __main__, errors
from pytest_gpuperf.commands import update_baseline
from pytest_gpuperf.storage import baseline_files, run_files

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
    return __main__.main(["update-baseline", *arguments])


# update-baseline


def test_a_first_baseline_is_shown_written_and_logged(
    measured: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert update("run.json", "--reason", "first baseline", "--yes", "--force") == errors.OK
    shown = capsys.readouterr().out
    assert "test_step on NVIDIA A100-SXM4-80GB, 1 process" in shown
    assert "(new) ->      400.00 M" in shown
    assert f"written: {BASELINE}" in shown
    assert "reason: first baseline" in measured.baseline_text()
    assert measured.run().ret == 0


def test_a_change_is_shown_from_old_to_new_and_appended_to_the_log(
    measured: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert update("run.json", "--reason", "first baseline", "--yes", "--force") == errors.OK
    measured.device(factors={"": {"cycles": 1.25}})
    assert measured.run().ret == pytest.ExitCode.TESTS_FAILED
    capsys.readouterr()
    assert update("--reason", "a slower, safer kernel", "--yes", "--force") == errors.OK
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
    assert update("--reason", "newest", "--yes", "--force") == errors.OK
    assert "(new) ->      1.2000 G" in capsys.readouterr().out


def test_several_runs_are_accepted_together(
    a100: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2, 3):
        assert a100.run_apart("--gpuperf-no-judge", f"--gpuperf-run={number}.json").ret == 0
    capsys.readouterr()
    three = ("1.json", "2.json", "3.json", "2.json")  # one of them by mistake twice
    assert update(*three, "--reason", "three days", "--yes", "--force") == errors.OK
    assert "3 processes" in capsys.readouterr().out
    assert "processes: 3" in a100.baseline_text()


@pytest.mark.parametrize("reason", [[], ["--reason", ""], ["--reason", "  "]])
def test_a_reason_is_needed(
    reason: list[str], measured: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert update("run.json", "--yes", *reason) == errors.BAD_CONFIGURATION
    assert "a reason is needed" in capsys.readouterr().err
    assert not measured.has_baseline()


def test_where_nobody_can_be_asked_nothing_is_written(
    measured: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path(os.devnull).open(encoding="utf-8") as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        assert update("run.json", "--reason", "first", "--force") == errors.FAILED
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
            [*command, "--reason", "first", "--force"],
            stdin=theirs,
            stdout=subprocess.PIPE,
            text=True,
        )
        os.write(ours, typed)
        said, _ = asking.communicate()
    finally:
        os.close(ours)
        os.close(theirs)
    assert "accept 1 measurements of run.json? [y/N]" in said
    assert measured.has_baseline() is accepted
    assert asking.returncode == (errors.OK if accepted else errors.FAILED)
    assert ("written" if accepted else "nothing was written") in said


def test_a_missing_run_is_refused(measured: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert update("other.json", "--reason", "first", "--yes") == errors.BAD_CONFIGURATION
    assert "other.json: no such run file" in capsys.readouterr().err
    (measured.root / "run.json").unlink()
    assert update("--reason", "first", "--yes") == errors.BAD_CONFIGURATION
    assert "no run under" in capsys.readouterr().err


def test_a_corrupted_run_is_refused_and_nothing_written(
    measured: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    file = measured.root / "run.json"
    file.write_text(file.read_text(encoding="utf-8").replace("400000000.0", "null", 1))
    before = file.read_bytes()
    assert update("run.json", "--reason", "first", "--yes") == errors.BAD_CONFIGURATION
    assert "run.json: measurements/0/samples/0/values/0: " in capsys.readouterr().err
    assert file.read_bytes() == before
    assert not measured.has_baseline()


def test_a_corrupted_baseline_is_refused_and_not_overwritten(
    measured: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert update("run.json", "--reason", "first", "--yes", "--force") == errors.OK
    file = measured.root / BASELINE
    file.write_text(file.read_text(encoding="utf-8").replace("arch:", "march:", 1))
    before = file.read_bytes()
    assert update("run.json", "--reason", "second", "--yes") == errors.BAD_CONFIGURATION
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
    assert a100.update("accepted.json") == errors.BAD_CONFIGURATION
    assert [file.read_bytes() for file in files] == before
    assert "test_steps.yaml" in capsys.readouterr().err


def test_baselines_may_be_kept_elsewhere(measured: Project) -> None:
    kept = ("--baselines", "kept")
    assert update("run.json", "--reason", "first", "--yes", "--force", *kept) == errors.OK
    assert not measured.has_baseline()
    assert measured.run("--gpuperf-baselines=kept").ret == 0


# Which tests

TESTS = """
    import pytest

    @pytest.mark.parametrize("name", ["tf32", "tf32_channels_last"])
    def test_step(gpuperf, name):
        gpuperf.measure(lambda: None)

    def test_other(gpuperf):
        gpuperf.measure(lambda: None)
"""
TF32, BOTH, OTHER = (
    "test_steps.py::test_step[tf32]",
    "test_steps.py::test_step[tf32_channels_last]",
    "test_steps.py::test_other",
)
FORCED = ("--reason", "first", "--yes", "--force")


@pytest.fixture
def several(measured: Project, capsys: pytest.CaptureFixture[str]) -> Project:
    """A project with a run of three tests."""
    measured.tests(TESTS)
    assert measured.run("--gpuperf-no-judge", "--gpuperf-run=run.json").ret == 0
    capsys.readouterr()
    return measured


def accepted_tests(project: Project) -> set[str]:
    """The tests that have an entry."""
    known = baseline_files.load(project.root / BASELINE)
    return set(known.tests) if known else set()


@pytest.mark.parametrize(
    ("patterns", "tests"),
    [
        ([], {TF32, BOTH, OTHER}),
        (["test_step[tf32]"], {TF32}),
        ([BOTH], {BOTH}),
        (["tf32"], {TF32, BOTH}),
        (["*test_o*"], {OTHER}),
        (["[tf32]", "other"], {TF32, OTHER}),
    ],
)
def test_only_the_tests_that_match_are_accepted(
    patterns: list[str], tests: set[str], several: Project
) -> None:
    words = [word for pattern in patterns for word in ("--test", pattern)]
    assert update("run.json", *FORCED, *words) == errors.OK
    assert accepted_tests(several) == tests


def test_a_pattern_that_matches_nothing_lists_the_tests_of_the_run(
    several: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert update("run.json", *FORCED, "--test", "tf64") == errors.FAILED
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith('gpuperf: no test of the run matches "tf64"')
    assert set(said[1:]) == {f"  {test}" for test in (TF32, BOTH, OTHER)}
    assert not several.has_baseline()


def test_only_new_leaves_the_entries_that_are_there(
    several: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert update("run.json", *FORCED, "--test", "other") == errors.OK
    several.device(factors={"": {"cycles": 2}})
    assert several.run("--gpuperf-no-judge", "--gpuperf-run=twice.json").ret == 0
    capsys.readouterr()
    assert update("twice.json", *FORCED, "--only-new") == errors.OK
    said = capsys.readouterr().out
    assert said.count("(new) ->      800.00 M") == 2
    assert "test_other" not in said
    assert accepted_tests(several) == {TF32, BOTH, OTHER}
    assert "[400000000," in several.baseline_text()

    before = several.baseline_text()
    assert update("twice.json", *FORCED, "--only-new") == errors.OK
    said = capsys.readouterr().out
    assert said == "nothing new: all that twice.json measured has an entry in baselines\n"
    assert several.baseline_text() == before


# Objections


def test_objections_are_all_shown_and_nothing_is_written(
    measured: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    run = measured.saved("run.json")
    (one,) = run.measurements
    dirty = replace(one, fingerprint=replace(one.fingerprint, revision="0123456789ab+dirty"))
    run_files.save(replace(run, measurements=(dirty,)), measured.root / "dirty.json")
    assert update("dirty.json", "--reason", "first", "--yes") == errors.FAILED
    said = capsys.readouterr()
    assert "objection: 1 process of 5: record more with gpuperf record --processes 5" in said.out
    assert "objection: measured at 0123456789ab+dirty: code that is in no commit" in said.out
    assert "refused, nothing was written" in said.err
    assert "--force" in said.err
    assert not measured.has_baseline()

    assert update("dirty.json", *FORCED) == errors.OK
    assert "the log will say: forced: 1 process of 5, dirty tree" in capsys.readouterr().out
    assert "forced: [1 process of 5, dirty tree]" in measured.baseline_text()


def in_five_processes(project: Project, factor: float) -> None:
    """Saves a run in which each of five processes counted so many times the cycles."""
    project.device(factors={"": {"cycles": factor}})
    assert project.run("--gpuperf-no-judge", "--gpuperf-run=one.json").ret == 0
    run = project.saved("one.json")
    (one,) = run.measurements
    five = tuple(replace(one, process=f"{factor}/{number}") for number in range(5))
    run_files.save(replace(run, measurements=five), project.root / "five.json")


def test_creep_is_refused_until_it_is_forced_or_starts_over(
    a100: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    accepting = ("five.json", "--reason", "faster torch", "--yes")
    for factor in (1.0, 1.004):
        in_five_processes(a100, factor)
        assert update(*accepting) == errors.OK
    in_five_processes(a100, 1.008)
    capsys.readouterr()
    assert update(*accepting) == errors.FAILED
    said = capsys.readouterr().out
    assert "+0.40 %" in said
    assert ": cycles +0.80 %," in said  # since the anchor
    assert "objection: creep since the anchor of" in said
    assert "--new-anchor starts over" in said
    assert update(*accepting, "--force") == errors.OK
    assert "forced: ['creep: cycles +0.80 %']" in a100.baseline_text()
    assert update(*accepting) == errors.FAILED
    assert update(*accepting, "--new-anchor") == errors.OK
    assert "forced: [new anchor]" in a100.baseline_text()
    assert update(*accepting) == errors.OK


def test_a_process_with_two_values_is_bad_input(
    measured: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (measured.root / "run.json").read_text(encoding="utf-8")
    (measured.root / "edited.json").write_text(
        text.replace("400000000.0", "390000000.0", 1), encoding="utf-8"
    )
    assert update("run.json", "edited.json", *FORCED) == errors.BAD_CONFIGURATION
    assert "other values" in capsys.readouterr().err
    assert not measured.has_baseline()


def test_what_was_accepted_while_it_asked_is_shown(
    measured: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_five_processes(measured, 0.5)

    def meanwhile(_: str) -> bool:
        assert update("run.json", *FORCED) == errors.OK
        return True

    monkeypatch.setattr(update_baseline, "_confirmed", meanwhile)
    assert update("five.json", "--reason", "first") == errors.OK
    said = capsys.readouterr().out
    assert "the baselines were changed in the meantime; what was really replaced:" in said
    assert "400.00 M ->      200.00 M  -50.00 %" in said


# doctor


def test_the_doctor_has_a_remedy_for_every_no(capsys: pytest.CaptureFixture[str]) -> None:
    code = __main__.main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    answers = [line for line in lines if not line.startswith("     -> ")]
    assert answers
    assert all(line.startswith(("yes  ", "no   ")) for line in answers)
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("no "):
            assert following.startswith("     -> "), line
    assert any(line.startswith("no ") for line in answers) or code == errors.OK


def test_without_a_gpu_the_doctor_fails_and_says_where_it_looked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert __main__.main(["doctor"]) == errors.FAILED
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
    assert __main__.main(["--help"]) == errors.OK
    said = capsys.readouterr().out
    for command in ("doctor", "record", "update-baseline", "compare"):
        assert command in said


@pytest.mark.parametrize(
    "words", [[], ["dctor"], ["record", "--processes", "two"], ["update-baseline", "--why", "x"]]
)
def test_bad_words_are_bad_configuration(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert __main__.main(words) == errors.BAD_CONFIGURATION
    assert "usage: gpuperf" in capsys.readouterr().err


def test_the_newest_run_needs_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert update("--reason", "first", "--yes") == errors.BAD_CONFIGURATION
    assert not (tmp_path / run_files.FOLDER).exists()
