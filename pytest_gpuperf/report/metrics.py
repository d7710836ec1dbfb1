"""The metric catalogue as text: what each metric is called where, and what a set costs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from pytest_gpuperf.arch import CPU
from pytest_gpuperf.metrics import catalogue
from pytest_gpuperf.metrics.listing import Listing, Passes, hardware_names
from pytest_gpuperf.model import Direction, Metric
from pytest_gpuperf.report import columns
from pytest_gpuperf.report.line import Line

_HEADINGS = ("metric", "unit", "better", "class", "")
_ABSENT = "absent"
_NONE = "no hardware counters"
_INDENT = "  "
_BELOW = "     "
"""Deeper than a metric's own name; the longest name of NVIDIA's still fits into 80 columns."""


def lines(found: Listing, width: int) -> list[Line]:
    """A listing as lines of at most `width` characters.

    A metric stands with the smallest set that has it, NVIDIA's name below where it does not fit.
    """
    groups: dict[str, list[tuple[str, ...]]] = {}
    for metric in found.metrics:
        groups.setdefault(_group(metric), []).append(_cells(metric, found.architectures))
    rows = [row for name in _groups() if name in groups for row in ((name,), *groups[name])]
    return [
        *columns.fitted(_HEADINGS, rows, width, left=range(len(_HEADINGS)), below=_BELOW),
        Line(""),
        *_passes(found, width),
    ]


def _groups() -> list[str]:
    """Titles in the order of the sets: one of counters has all of the one before it."""
    counted = catalogue().counter_sets
    larger = [f"{name}, besides {before}" for before, name in pairwise(counted)]
    traced = [f"{name}, from a trace" for name in catalogue().sets if name not in counted]
    return [counted[0], *larger, *traced, _NONE]


def _group(metric: Metric) -> str:
    having = (metric.name in members for members in catalogue().sets.values())
    return next(title for title, has in zip(_groups(), (*having, True), strict=True) if has)


def _cells(metric: Metric, architectures: tuple[str, ...]) -> tuple[str, ...]:
    direction = metric.direction
    return (
        _INDENT + metric.name,
        metric.unit,
        "-" if direction is Direction.NEUTRAL else direction.value,
        metric.metric_class.value,
        names(metric, architectures),
    )


def names(metric: Metric, architectures: tuple[str, ...]) -> str:
    """NVIDIA's name on these architectures, or each name with those that have it; "" for none."""
    found = hardware_names(metric, architectures)
    if len(found) == 1:
        return next(iter(found)) or _ABSENT
    return ", ".join(f"{name or _ABSENT} ({' '.join(where)})" for name, where in found.items())


def _passes(found: Listing, width: int) -> Iterator[Line]:
    if isinstance(found.passes, str):
        yield from columns.wrapped(f"passes: {found.passes}", width, "doubtful")
        return
    known = found.passes
    title = f"passes of the step per round, by CUPTI of CUDA {known.release}, {known.library}:"
    yield from columns.wrapped(title, width, "heading")
    counted = [
        (name, *(str(known.counts[name][wanted]) for wanted in found.sets))
        for name in found.architectures
        if name in known.counts
    ]
    yield from columns.fitted(("", *found.sets), counted, width, left=(0,))
    yield from _notes(known, found.architectures, width)


def _notes(known: Passes, architectures: tuple[str, ...], width: int) -> Iterator[Line]:
    others = [name for name in architectures if name not in known.counts and name != CPU]
    if others:
        text = f"note: this CUPTI knows no chip of {', '.join(others)}"
        yield from columns.wrapped(text, width, "doubtful")
    for name, refused in known.refused.items():
        for entry in refused:
            yield from columns.wrapped(f"note: {name}: {entry.reason}", width, "doubtful")
