"""The benchmark of ranks says what recorded runs come to, and misses no bound that they miss."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import ranks
from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.storage import run_files
from tests import ROOT

RECORDED = ROOT / "docs" / "runs" / "ranks" / "trials.json.xz"
MISPLACED = ROOT / "tests" / "data" / "h100-ranks" / "slowed.json.xz"
"""Recorded before counters followed launches."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three trials of two H100s: nobody slowed, rank 0, rank 1."""
    shutil.copy(RECORDED, tmp_path)
    return tmp_path


def changed(folder: Path, change: dict[str, float]) -> None:
    """With other settings in the first trial."""
    file = folder / "trials.json.xz"
    run = run_files.load(file)
    first: Measurement = run.measurements[0]
    known = first.fingerprint
    measured = replace(first, fingerprint=replace(known, settings={**known.settings, **change}))
    run_files.save(replace(run, measurements=(measured, *run.measurements[1:])), file)


def test_what_was_recorded_meets_every_bound(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ranks.main(["--from", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "2 ranks, 3 measurements under torchrun, 24 passes: a rank slowed by 2 %" in said
    assert "was named in 2 of 2, " in said
    assert "own instructions 2.1e-06 apart" in said
    assert "anybody in 0 of 1 without one" in said


def test_counting_may_take_its_passes_and_little_more(folder: Path) -> None:
    changed(folder, {"counters_s": 4.0})
    assert ranks.table(folder)[1]
    changed(folder, {"counters_s": 4.5})  # 1.3 x 8 passes x 0.1235 s + 3 s is 4.28 s
    assert not ranks.table(folder)[1]


def test_instructions_that_were_put_together_with_other_launches_are_found(folder: Path) -> None:
    shutil.copy(MISPLACED, folder / "trials.json.xz")
    said, good = ranks.table(folder)
    assert "own instructions 6.0e-01 apart" in said
    assert not good


def test_with_nothing_recorded_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ranks.main(["--from", str(tmp_path)]) == 4
    assert "nothing was recorded here" in capsys.readouterr().err
