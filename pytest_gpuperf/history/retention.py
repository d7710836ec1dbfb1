"""The retention of nights: old run files leave the folder in which `gpuperf night` keeps them."""

from __future__ import annotations

import os
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path

from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.storage import files

_NAME = re.compile(r"\d{8}T\d{6}\.\d{6}-\d+\.json\.xz", re.ASCII)
_STAMP = "%Y%m%dT%H%M%S.%f"
"""The beginning of a name: the time in UTC, so that names sort by time."""


def keep(folder: Path, days: int, now: datetime) -> tuple[int, int]:
    """Removes the run files of nights in `folder` whose names are older than `days` at `now`.

    Returns how many it removed, and the bytes of those that stay. The newest run stays, whatever
    its age; a run from the future is no such run. Other files, folders and links stay, and do not
    count. Raises UsageFailure for an impossible number of days, and where the folder cannot be read
    or a file cannot be removed.
    """
    if not 1 <= days <= 36_500:
        raise UsageFailure(f"runs cannot be kept for {days} days. Name 1 to 36,500 days")
    try:
        with os.scandir(folder) as entries:
            nights = [one for one in entries if _NAME.fullmatch(one.name)]
            regular = [one for one in nights if one.is_file(follow_symlinks=False)]
            sizes = {one.name: one.stat(follow_symlinks=False).st_size for one in regular}
    except OSError as error:
        raise UsageFailure(f"{folder}: cannot be read ({error.strerror})") from None
    utc = now.astimezone(timezone.utc)
    stamp = utc.strftime(_STAMP)
    newest = max((name for name in sizes if name[: len(stamp)] <= stamp), default="")
    oldest = (utc - timedelta(days)).strftime(_STAMP)
    old = {name: size for name, size in sizes.items() if name < min(oldest, newest)}
    for name in old:
        files.remove(folder / name)
    return len(old), sum(sizes.values()) - sum(old.values())
