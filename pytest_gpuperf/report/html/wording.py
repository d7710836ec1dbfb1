"""Sentences about several configurations, short enough to be read."""

from __future__ import annotations

from collections.abc import Sequence

_MOST = 3
"""So many findings are named, and so many configurations of one; the table has the others."""


def of_each(found: Sequence[tuple[str, str]], verb: str = "in") -> str:
    """Findings and the configuration of each, those that are alike together; "" of none.

    "gemm takes 31 % in tf32, bf16 and 2 others; layout takes 40 % in channels_last".
    """
    groups: dict[str, list[str]] = {}
    for what, label in found:
        groups.setdefault(what, []).append(label)
    parts = [f"{what} {verb} {_listed(labels)}" for what, labels in groups.items()]
    more = len(parts) - _MOST
    return "; ".join(parts[:_MOST]) + (f"; and {more} more in the table" if more > 0 else "")


def sentence(text: str) -> str:
    """`text` as a sentence, with a blank behind it; "" of nothing."""
    return f"{text[0].upper()}{text[1:]}. " if text else ""


def _listed(labels: Sequence[str]) -> str:
    more = len(labels) - _MOST
    if more > 1:
        return f"{', '.join(labels[:_MOST])} and {more} others"
    return " and ".join(filter(None, [", ".join(labels[:-1]), labels[-1]]))
