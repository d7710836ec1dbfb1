"""The retention of nights: what goes, what stays, and that nothing else is touched."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.history.retention import keep

NOW = datetime(2026, 3, 31, 3, tzinfo=timezone.utc)
SIZE = 100


def night(folder: Path, days: float, pid: int = 4711) -> Path:
    """The run file of a night so many days ago, as `gpuperf night` names it."""
    stamp = (NOW - timedelta(days=days)).strftime("%Y%m%dT%H%M%S.%f")
    file = folder / f"{stamp}-{pid}.json.xz"
    file.write_bytes(bytes(SIZE))
    return file


def left(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_runs_older_than_that_go_and_their_sizes_are_told(tmp_path: Path) -> None:
    nights = [night(tmp_path, age) for age in (40, 30.001, 30, 10, 0)]
    night(tmp_path, 40, pid=1)
    assert keep(tmp_path, 30, NOW) == (3, 3 * SIZE)
    assert left(tmp_path) == nights[2:]
    assert keep(tmp_path, 30, NOW) == (0, 3 * SIZE)


def test_the_newest_run_stays_and_a_clock_that_was_ahead_makes_none_newest(
    tmp_path: Path,
) -> None:
    newest, _, future = (night(tmp_path, age) for age in (400, 401, -30))
    assert keep(tmp_path, 1, NOW) == (1, 2 * SIZE)
    assert left(tmp_path) == [newest, future]


def test_nothing_but_a_run_of_a_night_is_removed_or_counted(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "nights", tmp_path / "elsewhere"
    for place in (folder, elsewhere, folder / "deeper"):
        place.mkdir()
    target = night(elsewhere, 100)
    (folder / night(elsewhere, 101).name).symlink_to(target)
    (folder / night(elsewhere, 102).name).mkdir()
    os.mkfifo(folder / night(elsewhere, 103).name)
    night(folder / "deeper", 104)
    old = night(elsewhere, 105).name
    names = (f".{old}", f"{old}.bak", old[:-3], f"a{old}", f"{old}\n", old.replace("-", "-x"))
    for name in (*names, "baseline.yaml"):
        (folder / name).write_text("mine")
    before = left(folder)
    assert keep(folder, 1, NOW) == (0, 0)
    assert (left(folder), len(left(elsewhere)), target.exists()) == (before, 5, True)


@pytest.mark.parametrize(
    ("folder", "days", "says"),
    [
        (".", 0, "for 0 days"),
        (".", -1, "for -1 days"),
        (".", 10**12, "Name 1 to 36,500 days"),
        ("nowhere", 1, "nowhere: cannot be read (No such"),
    ],
)
def test_what_cannot_be_is_refused(folder: str, days: int, says: str, tmp_path: Path) -> None:
    file = night(tmp_path, 100)
    with pytest.raises(UsageFailure, match=says.replace("(", r"\(")):
        keep(tmp_path / folder, days, NOW)
    assert left(tmp_path) == [file]
