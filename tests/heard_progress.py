"""A progress that keeps what it is told."""

from __future__ import annotations

from pytest_gpuperf.measure.collector import Progress


class Heard(Progress):
    """Every report as a text, with what is left in brackets."""

    def __init__(self, diary: list[str] | None = None) -> None:
        self.said: list[str] = [] if diary is None else diary
        """In a diary, others may write of themselves in between."""

    def begins(self, stage: str, place: str = "", left: int | None = None) -> None:
        text = f"{stage} {place}".rstrip()
        self.said.append(text if left is None else f"{text} ({left})")

    def goes_on(self) -> None:
        self.said.append("goes on")
