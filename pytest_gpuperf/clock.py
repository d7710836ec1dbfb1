"""The time of day, as our files write it."""

from __future__ import annotations

from datetime import datetime, timezone


def now() -> str:
    """The present moment: UTC, ISO 8601 to the second, "2026-03-01T12:00:00Z"."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
