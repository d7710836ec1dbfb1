"""The report of a comparison, as text and as Markdown: metric by metric, and its kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.units import counted
from pytest_gpuperf.judge.comparison import (
    Comparison,
    DeviceRelation,
    Differing,
    MetricChange,
    Pair,
    Side,
    Source,
    Unpaired,
)
from pytest_gpuperf.model.measurement import STEP, title_of
from pytest_gpuperf.report.markdown import cell, code, row
from pytest_gpuperf.report.text import kernel_lines, table
from pytest_gpuperf.report.text.table import INDENT, NOTHING, Line

_METRICS = ("metric", "a", "b", "change")
_INTERVAL = "99.5 % interval"
_CPU = "cpu"


@dataclass(frozen=True)
class _Section:
    """One measurement of both sides, as either report writes it."""

    title: str
    notes: Sequence[str]
    """What all others do not have too."""
    headings: tuple[str, ...]
    rows: Mapping[str, Sequence[tuple[str, ...]]]
    """By phase, the whole step first."""
    kernels: Sequence[str]
    """Lines, as under a failing test."""


def text_lines(comparison: Comparison, *, kernels: int = 10, width: int = 80) -> list[Line]:
    """The text of a comparison, at most `width` wide, with so many lines about `kernels`."""
    lines: list[Line] = []
    for text in _sources(comparison):
        lines += table.wrapped_lines(text, width, "heading")
    for note in _shared_notes(comparison, kernels):
        lines += table.wrapped_lines(note, width, "doubtful")
    for section in _sections(comparison, kernels, width):
        lines += [Line(""), *table.wrapped_lines(section.title, width, "heading")]
        for note in section.notes:
            lines += table.wrapped_lines(note, width, "doubtful")
        rows: list[tuple[str, ...]] = []
        for phase, own in section.rows.items():
            below = ((INDENT + name, *others) for name, *others in own)
            rows += own if phase == STEP else [(phase,), *below]
        interval = len(_METRICS)
        lines += table.column_lines(section.headings, rows, width, (0,), dispensable=interval)
        lines += map(Line, section.kernels)
    for title, alone in _alone(comparison):
        lines += [Line(""), Line(f"{title}:", "heading")]
        for text in alone:
            lines += table.wrapped_lines(text, width, "doubtful", INDENT)
    return lines


def markdown(comparison: Comparison, *, kernels: int = 10) -> str:
    """A table per pair of measurements, and so many lines about its `kernels`.

    Everything from outside is escaped.
    """
    shared = _shared_notes(comparison, kernels)
    parts = ["# gpuperf compare", *_listed(_sources(comparison)), *_listed(shared)]
    for section in _sections(comparison, kernels, table.WIDTH):
        parts += ["", f"## {cell(section.title)}", *_listed(section.notes)]
        parts += ["", row(section.headings)]
        parts += [f"| --- |{' ---: |' * (len(section.headings) - 1)}"]
        for phase, rows in section.rows.items():
            of = "" if phase == STEP else f" ({phase})"
            parts += [row((f"{name}{of}", *others)) for name, *others in rows]
        if section.kernels:
            parts += ["", "```", *map(code, section.kernels), "```"]
    for title, alone in _alone(comparison):
        parts += ["", f"## {title.capitalize()}", *_listed(alone)]
    return "\n".join(parts) + "\n"


def _sections(comparison: Comparison, kernels: int, width: int) -> Iterator[_Section]:
    shared = _shared_notes(comparison, kernels)
    for pair in comparison.pairs:
        own = [note for note in _notes(pair, kernels) if note not in shared]
        yield _Section(
            _title(pair),
            own,
            _metric_headings(pair),
            _metric_rows(pair),
            _kernels(pair, kernels, width),
        )


def _kernels(pair: Pair, most: int, width: int) -> list[str]:
    """What is said of the kernels, and of which processes and counters it is."""
    if not (pair.attribution and most):
        return []
    lines = kernel_lines.lines(pair.attribution, width, most)
    notes = []
    for label, side in (("a", pair.a), ("b", pair.b)):
        notes += [f"{label} has no counters by kernel: {reason}" for reason in side.mismatches]
        if side.tables < side.processes:
            notes.append(f"kernels of {label} are of {side.tables} of {side.processes} processes")
    return [*lines, *(line for note in notes for line in table.wrapped([note], width, ""))]


def _alone(comparison: Comparison) -> Iterator[tuple[str, list[str]]]:
    for label, entries in (("a", comparison.only_a), ("b", comparison.only_b)):
        if entries:
            yield f"only in {label}", [_unpaired(entry) for entry in entries]


def _listed(texts: Sequence[str]) -> list[str]:
    return ["", *(f"- {cell(text)}" for text in texts)] if texts else []


def _sources(comparison: Comparison) -> list[str]:
    return [
        f"{label}: {_source(side)}" for label, side in (("a", comparison.a), ("b", comparison.b))
    ]


def _source(side: Source) -> str:
    """What one side is: file, configuration, device, code and time."""
    configuration = (
        "" if side.configuration is None else f"configuration {side.configuration or 'none'}"
    )
    devices, revisions = (" and ".join(names) for names in (side.devices, side.revisions))
    return ", ".join(filter(None, [side.run, configuration, devices, revisions, side.measured]))


def _title(pair: Pair) -> str:
    """Which measurements are compared, and how many processes made each."""
    one, other = _label(pair.a), _label(pair.b)
    processes = f"{pair.a.processes} and {counted(pair.b.processes, 'process')}"
    if pair.a.processes == pair.b.processes:
        processes = f"{counted(pair.a.processes, 'process')} each"
    return f"{one if one == other else f'{one} -> {other}'} ({processes})"


def _label(side: Side) -> str:
    """A measurement by its test's name, and by what else it has."""
    test = title_of(side.test)
    parts = [test] if side.name == STEP else [test, side.name]
    if side.configuration not in test:
        parts.append(f"configuration {side.configuration}")
    return ", ".join(parts)


def _unpaired(alone: Unpaired) -> str:
    """A measurement that has no partner, by its test's whole id."""
    name = "" if alone.name == STEP else f", {alone.name}"
    return f"{alone.test}{name} ({counted(alone.processes, 'process')})"


def _notes(pair: Pair, kernels: int) -> list[str]:
    """What differs between the sides beside the numbers, and may be why those differ.

    Also that there are no kernels to compare, where these are asked for.
    """
    notes = [_on_devices(pair)] if pair.devices is not DeviceRelation.SAME else []
    by_kind: dict[str, list[Differing]] = {}
    for entry in pair.differing:
        by_kind.setdefault(entry.what, []).append(entry)
    for what, entries in by_kind.items():
        moved = "; ".join(f"{e.key} {e.a or 'unset'} -> {e.b or 'unset'}" for e in entries)
        notes.append(f"{what} {'differ' if what == 'settings' else 'differs'}: {moved}")
    missing = [label for label, side in (("a", pair.a), ("b", pair.b)) if not side.tables]
    if missing and kernels:
        were = "was" if len(missing) == 1 else "were"
        notes.append(f"no kernels to compare: {' and '.join(missing)} {were} measured without them")
    return notes


def _shared_notes(comparison: Comparison, kernels: int) -> list[str]:
    """The notes that all pairs have: they are said once."""
    first, *others = [_notes(pair, kernels) for pair in comparison.pairs]
    return [note for note in first if all(note in notes for notes in others)]


def _on_devices(pair: Pair) -> str:
    a, b = (f"{side.device} ({side.arch})" for side in (pair.a, pair.b))
    if pair.devices is DeviceRelation.KINDS:
        return f"a is of {a}, b of {b}: what changes is the device, whatever the code"
    if pair.a.arch == _CPU:
        return "measured on two machines: times are their own, counts are the same everywhere"
    return "measured on other GPUs of one name: cycles differ by some per cent between such GPUs"


def _metric_headings(pair: Pair) -> tuple[str, ...]:
    """Intervals only where any metric has one."""
    return (*_METRICS, _INTERVAL) if any(m.low is not None for m in pair.metrics) else _METRICS


def _metric_rows(pair: Pair) -> dict[str, list[tuple[str, ...]]]:
    """A row per metric, by phase; the whole step's first."""
    columns = len(_metric_headings(pair))
    by_phase: dict[str, list[tuple[str, ...]]] = {}
    factors = units.in_factors(metric.change for metric in pair.metrics if not metric.points)
    for metric in pair.metrics:
        cells = (
            metric.metric,
            units.value(metric.a, metric.unit),
            units.value(metric.b, metric.unit),
            _change(metric, factors),
            _interval(metric, factors),
        )
        by_phase.setdefault(metric.phase, []).append(cells[:columns])
    return by_phase


def _change(metric: MetricChange, factors: bool) -> str:
    if metric.change is not None:
        return units.moved(metric.change, points=metric.points, factors=factors)
    return "from 0" if metric.a == 0 and metric.b is not None else NOTHING


def _interval(metric: MetricChange, factors: bool) -> str:
    """As "+0.67 to +1.33 %": the unit once."""
    if metric.low is None or metric.high is None:
        return NOTHING
    low, high = (
        units.moved(end, points=metric.points, factors=factors) for end in (metric.low, metric.high)
    )
    return f"{low.removesuffix(' %').removesuffix(' pt')} to {high}"
