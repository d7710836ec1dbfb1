"""A line of a text report, apart from how a terminal colours it."""

from __future__ import annotations

from dataclasses import dataclass

_GAP = "..."


@dataclass(frozen=True)
class Line:
    """One line of text and how it is meant: "" plain, or good, bad, doubtful, heading."""

    text: str
    tone: str = ""


def shortened(text: str, width: int) -> str:
    """`text` in at most `width` characters. Of a longer one the middle is left out.

    What tells tests apart is mostly at the end: their parameters.
    """
    if len(text) <= width:
        return text
    kept = max(width - len(_GAP), 0)
    end = (2 * kept + 2) // 3
    return (text[: kept - end] + _GAP + text[len(text) - end :])[: max(width, 0)]
