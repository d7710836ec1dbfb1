"""The benchmark of ranks says what recorded runs come to, and misses no bound that they miss."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks import ranks
from tests import ROOT

RECORDED = ROOT / "docs" / "runs" / "ranks"
OLDER = ROOT / "tests" / "data" / "h100-ranks"
"""Trials of three traces each; `misplaced` is of before counters followed launches."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What two H100s recorded: four steps, and 22 trials, in turn with nobody slowed, rank 0,
    and rank 1.
    """
    shutil.copytree(RECORDED, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_what_was_recorded_meets_every_bound(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ranks.main(["--from", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "| ddp, tf32 | 2 | 28 | 252.2 | 9.9 | 12.2 | 4.6e-06 | 4.6e-06 |" in said
    assert "| fsdp2, best | 2 | 28 |" in said
    assert "2 ranks, 30 measurements under torchrun, " in said
    assert "slowed by 2 % was named in 19 of 20, anybody in 0 of 10 without one" in said


def test_instructions_that_were_put_together_with_other_launches_are_found(folder: Path) -> None:
    shutil.copy(OLDER / "misplaced.json.xz", folder / "trials.json.xz")
    said, good = ranks.table(folder)
    assert "own instructions of a rank 6.0e-01 apart" in said
    assert not good
