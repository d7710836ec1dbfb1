"""The retention of nights: old run files leave the folder in which `gpuperf night` keeps them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.storage import files

_NAME = re.compile(r"(\d{8}T\d{6}\.\d{6})-\d+\.json\.xz", re.ASCII)


@dataclass(frozen=True, slots=True)
class Kept:
    """What a folder of nights lost, and its size now."""

    removed: int
    """Run files."""
    removed_bytes: int
    bytes: int
    """The size of the run files that stay."""


def keep(folder: Path, days: int, now: datetime) -> Kept:
    """Removes the run files of nights in `folder` that are `days` old or older at `now`.

    The age is that of the UTC time in a name like "20260301T030000.000000-4711.json.xz". The
    newest run stays, whatever its age. Files with other names, folders and links stay, too, and
    `bytes` does not count them. Raises UsageFailure for less than one day, and where the folder
    cannot be read or a file cannot be removed.
    """
    if days < 1:
        raise UsageFailure(f"cannot keep runs for {days} days. Name 1 day or more")
    sizes = _sizes(folder)
    ages = {name: (now - made).days for name in sizes if (made := _made(name))}
    # A name from the future is not the newest run: the clock was wrong.
    newest = max((name for name, age in ages.items() if age >= 0), default="")
    old = [name for name, age in ages.items() if age >= days and name != newest]
    for name in old:
        files.remove(folder / name)
    removed = sum(sizes[name] for name in old)
    return Kept(len(old), removed, sum(sizes[name] for name in ages) - removed)


def _sizes(folder: Path) -> dict[str, int]:
    """The bytes of each file in `folder`, by name; without links."""
    try:
        with os.scandir(folder) as entries:
            regular = [entry for entry in entries if entry.is_file(follow_symlinks=False)]
            return {entry.name: entry.stat(follow_symlinks=False).st_size for entry in regular}
    except OSError as error:
        raise UsageFailure(f"{folder}: cannot be read ({error.strerror})") from None


def _made(name: str) -> datetime | None:
    """The time in the name of a night's run file; None for another name."""
    named = _NAME.fullmatch(name)
    try:
        stamp = datetime.strptime(named[1], "%Y%m%dT%H%M%S.%f") if named else None
    except ValueError:  # 20261399T...
        return None
    return stamp and stamp.replace(tzinfo=timezone.utc)
