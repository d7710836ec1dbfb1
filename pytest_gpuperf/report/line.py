"""A line of a text report, apart from how a terminal colours it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """One line of text and how it is meant: "" plain, or good, bad, doubtful, heading."""

    text: str
    tone: str = ""
