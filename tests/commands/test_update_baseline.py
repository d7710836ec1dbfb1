"""`gpuperf update-baseline`: what it shows, asks, writes and refuses."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf import __main__, errors
from pytest_gpuperf.baselines import acceptance
from pytest_gpuperf.baselines.objections import NEW_ORIGIN
from pytest_gpuperf.commands import update_baseline
from pytest_gpuperf.model.entry import BaselineFile
from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.model.result import Outcome, Verdict
from pytest_gpuperf.storage import baseline_files, run_files
from tests import examples
from tests.examples import H200, OTHER_H200, TEST, measurement, run
from tests.kernel_steps import table

FILE = Path("baselines/sm90/nvidia-h200/meddpm.yaml")
TF32, BOTH, OTHER = TEST, TEST.replace("tf32", "tf32_channels_last"), "other.py::test_other"
FORCED = ("--reason", "first", "--yes", "--force")


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somewhere else."""
    monkeypatch.chdir(tmp_path)


def five(day: str = "2026-03-01", test: str = TEST, **series: float) -> list[Measurement]:
    """Five processes on two GPUs, of which the first knows its kernels."""
    return [
        measurement(
            {name: [value] for name, value in (series or {"cycles": 4e8}).items()},
            test=test,
            process=f"{day}/{number}",
            device=OTHER_H200 if number == 4 else H200,
            kernels=None if number else table(("conv", 900.0)),
        )
        for number in range(5)
    ]


def saved(measurements: Sequence[Measurement], name: str = "run.json") -> str:
    run_files.save(run(measurements), Path(name))
    return name


def update(*arguments: str) -> int:
    return __main__.main(["update-baseline", *arguments])


def baselines() -> BaselineFile:
    """What was accepted."""
    loaded = baseline_files.load(FILE)
    assert loaded is not None
    return loaded


# What is shown


def shown(
    measurements: Sequence[Measurement],
    *,
    day: str = "2026-03-01",
    accept: bool = False,
    **options: Any,
) -> list[str]:
    """What is shown of the only proposal, which is then accepted if that is wanted."""
    request = acceptance.AcceptanceRequest(
        Path("baselines"), "because", f"{day}T00:00:00Z", **options
    )
    (proposal,) = acceptance.proposals(measurements, request)
    if accept:
        acceptance.accept([proposal])
    return update_baseline.lines(proposal)


def test_old_new_and_the_origin_are_shown() -> None:
    assert shown(five(cycles=437e6), accept=True) == [
        "test_training_step[tf32] on NVIDIA H200, 5 processes",
        "  cycles                           (new) ->      437.00 M  -",
    ]
    # The origin is the one replaced.
    assert shown(five(cycles=438e6, layout_copies=0.0), day="2026-03-08", accept=True) == [
        "test_training_step[tf32] on NVIDIA H200, 5 processes",
        "  cycles                        437.00 M ->      438.00 M  +0.23 %",
        "  zero: layout_copies",
        "  note: the first accepted samples (origin) of 2026-03-01 have no layout_copies, so "
        "gpuperf cannot see creep of it. --new-origin starts over from these samples",
    ]
    assert shown(five(cycles=450e6, layout_copies=0.0), new_origin=True, accept=True) == [
        "test_training_step[tf32] on NVIDIA H200, 5 processes",
        "  cycles                        438.00 M ->      450.00 M  +2.74 %",
        "  zero: layout_copies",
        "  note: since the first accepted samples (2026-03-01): cycles +2.97 %",
        "  note: these samples replace the origin of 2026-03-01: creep is measured from them",
        "  the log will say: forced: new origin",
    ]
    lines = shown(five(cycles=450e6, layout_copies=39.0))
    assert "  layout_copies                        0 ->            39  from 0" in lines
    assert any("This change shows layout_copies from 0" in line for line in lines)


# What is accepted


def test_a_first_baseline_is_shown_written_and_logged(capsys: pytest.CaptureFixture[str]) -> None:
    assert update(saved(five()), "--reason", "first baseline", "--yes") == errors.OK
    said = capsys.readouterr().out
    assert "test_training_step[tf32] on NVIDIA H200, 5 processes" in said
    assert said.endswith(f"written: {FILE}\nwritten: 1 file in {FILE.with_suffix('')}\n")
    (log,) = baselines().tests[TEST]["step"].log
    assert (log.reason, log.forced) == ("first baseline", ())


def test_several_runs_are_accepted_together() -> None:
    for number, process in enumerate(five()):
        saved([process], f"{number}.json")
    named = [f"{number}.json" for number in (0, 1, 2, 3, 4, 2)]  # one of them by mistake twice
    assert update(*named, "--reason", "several days", "--yes") == errors.OK
    assert baselines().tests[TEST]["step"].log[0].processes == 5


def test_only_the_tests_that_match_are_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    saved([one for test in (TF32, BOTH, OTHER) for one in five(test=test)])
    for patterns, tests in (
        ([BOTH], {BOTH}),
        (["[tf32]", "other"], {BOTH, TF32, OTHER}),
    ):
        words = [word for pattern in patterns for word in ("--test", pattern)]
        assert update("run.json", *FORCED, *words) == errors.OK
        assert set(baselines().tests) == tests
    before = baselines()
    assert update("run.json", *FORCED, "--test", "tf64") == errors.FAILED
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith('gpuperf: no test of the run matches "tf64"')
    assert said[1:] == [f"  {test}" for test in (TF32, BOTH, OTHER)]
    assert baselines() == before


def test_only_new_leaves_the_entries_that_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert update(saved(five()), *FORCED) == errors.OK
    before = baselines()
    capsys.readouterr()
    assert update("run.json", *FORCED, "--only-new") == errors.OK
    said = capsys.readouterr().out
    assert said == "nothing new: all measurements of run.json have entries in baselines\n"
    assert baselines() == before


# Asking


def test_where_nobody_can_be_asked_nothing_is_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(five())
    with Path(os.devnull).open(encoding="utf-8") as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        assert update("run.json", "--reason", "first") == errors.FAILED
    said = capsys.readouterr()
    assert "To accept without one, pass --yes" in said.err
    assert "nothing was written" in said.out
    assert not FILE.exists()


def test_on_a_terminal_it_asks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(five())
    for typed, accepted in ((b"\n", False), (b"n\n", False), (b"\x04", False), (b"Yes\n", True)):
        ours, theirs = pty.openpty()
        with os.fdopen(ours, "wb", buffering=0) as keyboard, os.fdopen(theirs) as terminal:
            monkeypatch.setattr(sys, "stdin", terminal)
            keyboard.write(typed)  # \x04 is the end of the file
            code = update("run.json", "--reason", "first")
        said = capsys.readouterr().out
        assert "accept 1 measurements of run.json? [y/N]" in said
        assert FILE.exists() is accepted, typed
        assert code == (errors.OK if accepted else errors.FAILED)
        assert ("written" if accepted else "nothing was written") in said


# What is refused


def test_a_reason_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--reason", "  "]):
        assert update(saved(five()), "--yes", *words) == errors.BAD_CONFIGURATION
        assert "the log needs a reason" in capsys.readouterr().err
        assert not FILE.exists()


def test_runs_that_are_not_there_or_empty_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert update("other.json", *FORCED) == errors.BAD_CONFIGURATION
    assert "other.json: no such run file" in capsys.readouterr().err
    assert update(*FORCED) == errors.BAD_CONFIGURATION
    assert "there is no run in" in capsys.readouterr().err
    assert not run_files.FOLDER.exists()
    assert update(saved([]), *FORCED) == errors.FAILED
    assert "run.json has no measurements to accept" in capsys.readouterr().err


REGRESSED = examples.verdict(test=TF32)
UNCHANGED = examples.verdict(test=BOTH, outcome=Outcome.UNCHANGED)


def judged(*verdicts: Verdict) -> str:
    """A session's run: three processes of a test that regressed, and one of one that had not."""
    looks = {TF32: 3, BOTH: 1}
    parts = [
        measurement({"cycles": [4e8]}, test=test, process=f"{test}/{number}")
        for test, count in looks.items()
        for number in range(count)
    ]
    run_files.save(run(parts, verdicts or (REGRESSED, UNCHANGED)), Path("run.json"))
    return "run.json"


def test_of_a_judged_run_what_asks_for_it_is_accepted_and_the_rest_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert update(judged(), "--reason", "wider", "--yes") == errors.OK
    assert list(baselines().tests) == [TF32]
    said = capsys.readouterr().out
    assert "keeps the baseline of 1 measurement unchanged or not compared in the" in said
    assert update("run.json", "--test", "*", *FORCED) == errors.OK
    assert list(baselines().tests) == [TF32, BOTH]


ASKING = (
    *(Outcome.IMPROVED, Outcome.OUTWEIGHED, Outcome.NO_BASELINE),
    *(Outcome.MACHINE, Outcome.REPORTED),
)


@pytest.mark.parametrize("outcome", [*ASKING, Outcome.INCONCLUSIVE, Outcome.UNFIT])
def test_an_outcome_asks_to_be_accepted_or_not(outcome: Outcome) -> None:
    judged(replace(REGRESSED, outcome=outcome), UNCHANGED)
    assert update("run.json", "--reason", "it is so", "--yes") == errors.OK
    assert FILE.exists() is (outcome in ASKING)


def test_from_a_folder_of_the_project_its_newest_run_and_its_baselines_are_meant(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_files.save(run(five()), run_files.new_file(Path.cwd()))
    inner = Path("tests/perf")
    inner.mkdir(parents=True)
    project = Path.cwd()
    monkeypatch.chdir(inner)
    assert update("--reason", "first", "--yes") == errors.OK
    assert f"written: ../../{FILE}\n" in capsys.readouterr().out
    assert (project / FILE).exists()


@pytest.mark.parametrize(
    ("file", "text", "folder"),
    [
        ("pytest.ini", "[pytest]\ngpuperf_baselines = kept\n", "kept"),
        ("tox.ini", "[pytest]\naddopts = --gpuperf-baselines kept --of-a-conftest\n", "perf/kept"),
        ("setup.cfg", "[tool:pytest]\ngpuperf_baselines = kept\n", "kept"),
        ("pyproject.toml", '[tool.pytest.ini_options]\ngpuperf_baselines = "kept"\n', "kept"),
        ("pyproject.toml", '[tool.other]\ngpuperf_baselines = "kept"\n', "baselines"),
        ("pyproject.toml", "", "baselines"),
    ],
)
def test_the_baselines_are_where_pytest_s_settings_say(file: str, text: str, folder: str) -> None:
    """Which pytest reads, without conftest files: these may import anything."""
    Path(file).write_text(text, encoding="utf-8")
    Path("conftest.py").write_text("raise RuntimeError", encoding="utf-8")
    Path("perf").mkdir()
    project = Path.cwd()
    name = saved(five())
    os.chdir("perf")
    assert update(f"../{name}", "--reason", "first", "--yes") == errors.OK
    assert (project / folder / FILE.relative_to("baselines")).exists()
    # A flag wins.
    assert update(f"../{name}", "--reason", "a", "--yes", "--baselines=own") == errors.OK
    assert Path("own").is_dir()


def test_settings_that_pytest_refuses_are_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    Path("pytest.ini").write_text("[pytest\ngpuperf_baselines = kept\n", encoding="utf-8")
    assert update(saved(five()), "--reason", "first", "--yes") == errors.BAD_CONFIGURATION
    said = capsys.readouterr().err
    assert "pytest.ini:1: " in said
    assert "Add --baselines DIR" in said


def test_objections_are_all_shown_and_nothing_is_written_without_force(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (one, *_) = five()
    dirty = replace(one, fingerprint=replace(one.fingerprint, revision="0123456789ab+dirty"))
    assert update(saved([dirty]), "--reason", "first", "--yes") == errors.FAILED
    said = capsys.readouterr()
    assert "objection: 1 process of 3, too few to estimate their spread" in said.out
    assert "objection: measured at 0123456789ab+dirty, with uncommitted code" in said.out
    assert "nothing was written, because of the objections above" in said.err
    assert "--force" in said.err
    assert not FILE.exists()
    assert update("run.json", *FORCED) == errors.OK
    assert "  the log will say: forced: 1 process of 3, dirty tree\n" in capsys.readouterr().out
    assert baselines().tests[TEST]["step"].log[0].forced == ("1 process of 3", "dirty tree")
    assert update(saved(five()), "--reason", "anew", "--yes", "--new-origin") == errors.OK
    assert baselines().tests[TEST]["step"].log[1].forced == (NEW_ORIGIN,)
