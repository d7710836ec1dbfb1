"""A progress that keeps what it is told."""

from __future__ import annotations

from pytest_gpuperf.measure.collector import Progress


class Heard(Progress):
    """Every report as a text."""

    def __init__(self, diary: list[str] | None = None) -> None:
        self.said: list[str] = [] if diary is None else diary
        """In a diary, others may write of themselves in between."""

    def begins(self, stage: str, place: str = "") -> None:
        self.said.append(f"{stage} {place}".rstrip())
