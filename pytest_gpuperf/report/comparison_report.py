"""The report of a comparison, as text and as Markdown: metric by metric, kernel by kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

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
from pytest_gpuperf.model.result import Attribution
from pytest_gpuperf.report.markdown import cell, row
from pytest_gpuperf.report.text import kernel_lines, table
from pytest_gpuperf.report.text.table import INDENT, NOTHING, Line

_METRICS = ("metric", "a", "b", "change")
_INTERVAL = "99.5 % interval"
_KERNELS = ("kernel", "a", "b", "change", "share", "")
_LEFT = (0, 5)
"""Columns of text of either table."""
_CPU = "cpu"


def text_lines(comparison: Comparison, *, kernels: int = 10, width: int = 80) -> list[Line]:
    """The text of a comparison, at most `width` wide.

    Of the kernels of each pair, the `kernels` whose times changed most; nothing at all for 0.
    """
    lines: list[Line] = []
    for text in _sources(comparison):
        lines += table.wrapped_lines(text, width, "heading")
    shared = _shared_notes(comparison, kernels)
    for note in shared:
        lines += table.wrapped_lines(note, width, "doubtful")
    for pair in comparison.pairs:
        lines += [Line(""), *_pair_lines(pair, shared, kernels, width)]
    for label, alone in (("a", comparison.only_a), ("b", comparison.only_b)):
        if alone:
            lines += [Line(""), Line(f"only in {label}:", "heading")]
        for entry in alone:
            lines += table.wrapped_lines(_unpaired(entry), width, "doubtful", INDENT)
    return lines


def markdown(comparison: Comparison, *, kernels: int = 10) -> str:
    """A table per pair of measurements, and one of its kernels. Everything from outside is escaped.

    Of the kernels of each pair, the `kernels` whose times changed most; nothing at all for 0.
    """
    shared = _shared_notes(comparison, kernels)
    parts = ["# gpuperf compare", *_listed(_sources(comparison)), *_listed(shared)]
    for pair in comparison.pairs:
        parts += ["", f"## {cell(_title(pair))}", *_listed(_own_notes(pair, shared, kernels))]
        metrics = [
            (name if phase == STEP else f"{name} ({phase})", *others)
            for phase, rows in _metric_rows(pair).items()
            for name, *others in rows
        ]
        parts += _markdown_table(_metric_headings(pair), metrics)
        if pair.attribution and kernels:
            changes = _kernel_changes(pair.attribution, pair, kernels)
            parts += ["", cell(changes.title)]
            if changes.rows:
                parts += _markdown_table((*_KERNELS[:-1], "what happened"), changes.rows)
            parts += _listed([note for note in (changes.rest, *changes.notes) if note])
    for label, alone in (("a", comparison.only_a), ("b", comparison.only_b)):
        if alone:
            parts += ["", f"## Only in {label}", *_listed([_unpaired(entry) for entry in alone])]
    return "\n".join(parts) + "\n"


def _pair_lines(pair: Pair, shared: Sequence[str], kernels: int, width: int) -> list[Line]:
    lines = table.wrapped_lines(_title(pair), width, "heading")
    for note in _own_notes(pair, shared, kernels):
        lines += table.wrapped_lines(note, width, "doubtful")
    metrics: list[tuple[str, ...]] = []
    for phase, rows in _metric_rows(pair).items():
        if phase == STEP:
            metrics += rows
        else:
            metrics += [(phase,), *((INDENT + name, *others) for name, *others in rows)]
    interval = len(_METRICS)
    lines += table.column_lines(_metric_headings(pair), metrics, width, (0,), dispensable=interval)
    if pair.attribution and kernels:
        changes = _kernel_changes(pair.attribution, pair, kernels)
        lines += table.wrapped_lines(changes.title, width, "heading")
        lines += table.column_lines(_KERNELS, changes.rows, width, _LEFT)
        lines += table.wrapped_lines(changes.rest, width, indent=INDENT)
        for note in changes.notes:
            lines += table.wrapped_lines(note, width, "doubtful")
    return lines


def _listed(texts: Sequence[str]) -> list[str]:
    return ["", *(f"- {cell(text)}" for text in texts)] if texts else []


def _markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    sides = ("---" if i in _LEFT else "---:" for i in range(len(headings)))
    return ["", row(headings), f"| {' | '.join(sides)} |", *map(row, rows)]


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


def _own_notes(pair: Pair, shared: Sequence[str], kernels: int) -> list[str]:
    return [note for note in _notes(pair, kernels) if note not in shared]


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


@dataclass(frozen=True)
class _KernelSection:
    """What is said of a pair's kernels."""

    title: str
    rows: tuple[tuple[str, ...], ...]
    """A row per kernel, those whose times changed most first."""
    rest: str
    """What the kernels that have no row changed together; "" where all have one."""
    notes: tuple[str, ...]


def _kernel_changes(attribution: Attribution, pair: Pair, most: int) -> _KernelSection:
    """What is said of the kernels of a pair, the `most` whose times changed most one by one."""
    if attribution.of_operators:
        said = [": ".join(row) for row in kernel_lines.code_lines(attribution)[:most]]
        title = f"operators: {kernel_lines.operators(attribution)}"
        return _KernelSection(title, (), "", tuple(said))
    # None is too small for a row of its own: what is not shown is summed up.
    every = kernel_lines.rows(attribution.entries, small=0.0)
    shown = [change for change in every if change.change][:most]
    rest = ""
    if len(every) > len(shown):
        moved = kernel_lines.duration(attribution.change - fsum(change.change for change in shown))
        rest = f"and {len(every) - len(shown)} more: {moved}"
    notes = kernel_lines.notes(attribution)
    for label, side in (("a", pair.a), ("b", pair.b)):
        notes += [f"{label} has no counters by kernel: {reason}" for reason in side.mismatches]
        if side.tables < side.processes:
            notes.append(f"kernels of {label} are of {side.tables} of {side.processes} processes")
    rows = tuple(_kernel_cells(change) for change in shown)
    return _KernelSection(_kernel_title(attribution), rows, rest, tuple(notes))


def _kernel_title(attribution: Attribution) -> str:
    before, after = (units.value(value, "ns") for value in (attribution.before, attribution.after))
    launched = attribution.launched
    counts = ", ".join(
        f"{count:,} {what}"
        for what, count in (
            ("added", launched.added),
            ("removed", launched.removed),
            ("replaced", launched.replaced),
            ("moved", launched.moved),
        )
        if count
    )
    sequence = f"launches: {counts}" if launched.changed else "the same launches"
    several = ""
    if max(attribution.baseline_tables, attribution.measured_tables) > 1:
        several = (
            f", means of {attribution.baseline_tables} and {attribution.measured_tables} executions"
        )
    moved = kernel_lines.duration(attribution.change)
    return f"kernels and gaps: {before} -> {after} ({moved}{several}); {sequence}"


def _kernel_cells(change: kernel_lines.ChangeRow) -> tuple[str, ...]:
    before, after = (
        units.value(time, "ns") if time else NOTHING for time in (change.before, change.after)
    )
    # Of the gap between kernels nothing but the times is said, which stand here already.
    how = change.how.removeprefix(f"{before} -> {after}").strip()
    return (
        change.what,
        before,
        after,
        kernel_lines.duration(change.change),
        kernel_lines.share(change.share),
        how,
    )
