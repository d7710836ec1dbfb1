"""What is said of a comparison, whatever the format: titles, notes, and the cells of its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.judge.comparison import (
    Comparison,
    Devices,
    Differing,
    MetricChange,
    Pair,
    Side,
    Source,
    Unpaired,
)
from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.model.result import Attribution
from pytest_gpuperf.report.markdown import cell, row
from pytest_gpuperf.report.text import kernel_lines as blamed
from pytest_gpuperf.report.text import table
from pytest_gpuperf.report.text.progress import counted
from pytest_gpuperf.report.text.table import Line

METRICS = ("metric", "a", "b", "change")
INTERVAL = "99.5 % interval"
KERNELS = ("kernel", "a", "b", "change", "share", "")
_NOTHING = "-"
_CPU = "cpu"


def source_line(found: Source) -> str:
    """What one side is: file, configuration, device, code and time."""
    configuration = (
        "" if found.configuration is None else f"configuration {found.configuration or 'none'}"
    )
    devices, revisions = (" and ".join(names) for names in (found.devices, found.revisions))
    parts = [found.run, configuration, devices, revisions, found.measured]
    return ", ".join(part for part in parts if part)


def title(pair: Pair) -> str:
    """Which measurements are compared, and how many processes made each."""
    one, other = _label(pair.a), _label(pair.b)
    processes = f"{pair.a.processes} and {counted(pair.b.processes, 'process')}"
    if pair.a.processes == pair.b.processes:
        processes = f"{counted(pair.a.processes, 'process')} each"
    return f"{one if one == other else f'{one} -> {other}'} ({processes})"


def pair_notes(pair: Pair, *, kernels: bool = True) -> list[str]:
    """What differs between the sides beside the numbers, and may be why those differ.

    With `kernels`, also that there are none to compare.
    """
    found = [_on_devices(pair)] if pair.devices is not Devices.SAME else []
    by_kind: dict[str, list[Differing]] = {}
    for entry in pair.differing:
        by_kind.setdefault(entry.what, []).append(entry)
    for what, entries in by_kind.items():
        moved = "; ".join(f"{e.key} {e.a or 'unset'} -> {e.b or 'unset'}" for e in entries)
        found.append(f"{what} {'differ' if what == 'settings' else 'differs'}: {moved}")
    missing = [label for label, side in (("a", pair.a), ("b", pair.b)) if not side.tables]
    if missing and kernels:
        were = "was" if len(missing) == 1 else "were"
        found.append(f"no kernels to compare: {' and '.join(missing)} {were} measured without them")
    return found


def shared_notes(comparison: Comparison, *, kernels: bool = True) -> list[str]:
    """The notes that all pairs have: they are said once."""
    first, *others = [pair_notes(pair, kernels=kernels) for pair in comparison.pairs]
    return [note for note in first if all(note in found for found in others)]


def metric_headings(pair: Pair) -> tuple[str, ...]:
    """The headings of the table of metrics; intervals only where any metric has one."""
    return (*METRICS, INTERVAL) if _has_intervals(pair) else METRICS


def metric_cells(pair: Pair) -> dict[str, list[tuple[str, ...]]]:
    """A row per metric, by phase; the whole step's first."""
    intervals = _has_intervals(pair)
    by_phase: dict[str, list[tuple[str, ...]]] = {}
    for found in pair.metrics:
        cells = (
            found.metric,
            units.value(found.a, found.unit),
            units.value(found.b, found.unit),
            _change(found),
            *((_interval(found),) if intervals else ()),
        )
        by_phase.setdefault(found.phase, []).append(cells)
    return by_phase


@dataclass(frozen=True)
class KernelChanges:
    """What is said of a pair's kernels."""

    title: str
    cells: tuple[tuple[str, ...], ...]
    """A row per kernel, those whose times changed most first."""
    rest: str
    """What the kernels that have no row changed together; "" where all have one."""
    notes: tuple[str, ...]


def kernel_changes(blame: Attribution, pair: Pair, most: int) -> KernelChanges:
    """What is said of the kernels of a pair, the `most` whose times changed most one by one."""
    # None is too small for a row of its own: what is not shown is summed up.
    every = blamed.rows(blame.entries, small=0.0)
    shown = [row for row in every if row.change][:most]
    rest = ""
    if len(every) > len(shown):
        moved = blamed.duration(blame.change - fsum(row.change for row in shown))
        rest = f"and {len(every) - len(shown)} more: {moved}"
    found = blamed.notes(blame)
    for label, side in (("a", pair.a), ("b", pair.b)):
        found += [f"{label} has no counters by kernel: {reason}" for reason in side.mismatches]
        if side.tables < side.processes:
            found.append(f"kernels of {label} are of {side.tables} of {side.processes} processes")
    return KernelChanges(
        title=_kernel_title(blame),
        cells=tuple(_kernel_cells(row) for row in shown),
        rest=rest,
        notes=tuple(found),
    )


def unpaired(found: Unpaired) -> str:
    """A measurement that has no partner, by its test's whole id."""
    name = "" if found.name == STEP else f", {found.name}"
    return f"{found.test}{name} ({counted(found.processes, 'process')})"


def _label(side: Side) -> str:
    """A measurement by its test's name, and by what else it has."""
    path, bracket, parameters = side.test.partition("[")
    test = path.rsplit("::", 1)[-1] + bracket + parameters
    parts = [test] if side.name == STEP else [test, side.name]
    if side.configuration not in test:
        parts.append(f"configuration {side.configuration}")
    return ", ".join(parts)


def _on_devices(pair: Pair) -> str:
    a, b = (f"{side.device} ({side.arch})" for side in (pair.a, pair.b))
    if pair.devices is Devices.KINDS:
        return f"a is of {a}, b of {b}: what changes is the device, whatever the code"
    if pair.a.arch == _CPU:
        return "measured on two machines: times are their own, counts are the same everywhere"
    return "measured on other GPUs of one name: cycles differ by some per cent between such GPUs"


def _has_intervals(pair: Pair) -> bool:
    return any(found.low is not None for found in pair.metrics)


def _change(found: MetricChange) -> str:
    if found.change is not None:
        return units.moved(found.change, points=found.points)
    return "from 0" if found.a == 0 and found.b is not None else _NOTHING


def _interval(found: MetricChange) -> str:
    """As "+0.67 to +1.33 %": the unit once, where both ends have the same."""
    if found.low is None or found.high is None:
        return _NOTHING
    low, high = (units.moved(end, points=found.points) for end in (found.low, found.high))
    number, _, unit = low.rpartition(" ")
    return f"{number if number and high.endswith(f' {unit}') else low} to {high}"


def _kernel_title(found: Attribution) -> str:
    before, after = (units.value(value, "ns") for value in (found.before, found.after))
    launched = found.launched
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
    if max(found.baseline_tables, found.measured_tables) > 1:
        several = f", means of {found.baseline_tables} and {found.measured_tables} executions"
    moved = blamed.duration(found.change)
    return f"kernels and gaps: {before} -> {after} ({moved}{several}); {sequence}"


def _kernel_cells(row: blamed.ChangeRow) -> tuple[str, ...]:
    before, after = (
        units.value(time, "ns") if time else _NOTHING for time in (row.before, row.after)
    )
    # Of the gap between kernels nothing but the times is said, which stand here already.
    how = row.how.removeprefix(f"{before} -> {after}").strip()
    return row.what, before, after, blamed.duration(row.change), blamed.share(row.share), how


# A comparison as text: what it is of, metric by metric, kernel by kernel.

_INDENT = "  "


def text_lines(comparison: Comparison, *, kernels: int = 10, width: int = 80) -> list[Line]:
    """The text of a comparison, at most `width` wide.

    Of the kernels of each pair, the `kernels` whose times changed most; nothing at all for 0.
    """
    found: list[Line] = []
    for label, source in (("a", comparison.a), ("b", comparison.b)):
        found += table.wrapped_words(f"{label}: {source_line(source)}", width, "heading")
    shared = shared_notes(comparison, kernels=kernels > 0)
    for note in shared:
        found += table.wrapped_words(note, width, "doubtful")
    for pair in comparison.pairs:
        found += [Line(""), *_pair(pair, shared, kernels, width)]
    for label, alone in (("a", comparison.only_a), ("b", comparison.only_b)):
        if alone:
            found += [Line(""), Line(f"only in {label}:", "heading")]
        for entry in alone:
            found += table.wrapped_words(unpaired(entry), width, "doubtful", _INDENT)
    return found


def _pair(pair: Pair, shared: Sequence[str], kernels: int, width: int) -> list[Line]:
    found = table.wrapped_words(title(pair), width, "heading")
    for note in pair_notes(pair, kernels=kernels > 0):
        if note not in shared:
            found += table.wrapped_words(note, width, "doubtful")
    found += _metric_lines(pair, width)
    return (
        found + _kernel_lines(pair.blame, pair, kernels, width) if pair.blame and kernels else found
    )


def _metric_lines(pair: Pair, width: int) -> list[Line]:
    """The metrics of the step, then those of each phase under its name."""
    headings = metric_headings(pair)
    cells: list[tuple[str, ...]] = []
    for phase, rows in metric_cells(pair).items():
        if phase == STEP:
            cells += rows
        else:
            cells += [(phase,), *((_INDENT + name, *others) for name, *others in rows)]
    # Where not all fits in columns, the interval is the first thing to be left out.
    fewer = len(METRICS)
    without = [row[:fewer] for row in cells]
    if table.fits(headings, cells, width) or not table.fits(headings[:fewer], without, width):
        return table.fitted_columns(headings, cells, width, left=(0,))
    return table.fitted_columns(headings[:fewer], without, width, left=(0,))


def _kernel_lines(blame: Attribution, pair: Pair, most: int, width: int) -> list[Line]:
    said = kernel_changes(blame, pair, most)
    found = table.wrapped_words(said.title, width, "heading")
    found += table.fitted_columns(KERNELS, said.cells, width, left=(0, 5))
    found += table.wrapped_words(said.rest, width, "", _INDENT)
    for note in said.notes:
        found += table.wrapped_words(note, width, "doubtful")
    return found


# A comparison as Markdown, for pull requests and job summaries.

_KERNELS = (*KERNELS[:-1], "what happened")


def markdown(comparison: Comparison, *, kernels: int = 10) -> str:
    """A table per pair of measurements, and one of its kernels. Everything from outside is escaped.

    Of the kernels of each pair, the `kernels` whose times changed most; nothing at all for 0.
    """
    parts = ["# gpuperf compare", ""]
    for label, source in (("a", comparison.a), ("b", comparison.b)):
        parts.append(f"- {label}: {cell(source_line(source))}")
    shared = shared_notes(comparison, kernels=kernels > 0)
    parts += _listed(shared)
    for pair in comparison.pairs:
        parts += ["", f"## {cell(title(pair))}"]
        notes = pair_notes(pair, kernels=kernels > 0)
        parts += _listed([note for note in notes if note not in shared])
        parts += _table(metric_headings(pair), _metric_rows(pair), left=(0,))
        parts += _kernel_rows(pair.blame, pair, kernels) if pair.blame and kernels else []
    for label, alone in (("a", comparison.only_a), ("b", comparison.only_b)):
        if alone:
            parts += ["", f"## Only in {label}"]
            parts += _listed([unpaired(entry) for entry in alone])
    return "\n".join(parts) + "\n"


def _metric_rows(pair: Pair) -> list[tuple[str, ...]]:
    return [
        (name if phase == STEP else f"{name} ({phase})", *others)
        for phase, cells in metric_cells(pair).items()
        for name, *others in cells
    ]


def _kernel_rows(blame: Attribution, pair: Pair, most: int) -> list[str]:
    said = kernel_changes(blame, pair, most)
    parts = ["", cell(said.title)]
    if said.cells:
        parts += _table(_KERNELS, said.cells, left=(0, 5))
    return parts + _listed([note for note in (said.rest, *said.notes) if note])


def _listed(texts: Sequence[str]) -> list[str]:
    return ["", *(f"- {cell(text)}" for text in texts)] if texts else []


def _table(
    headings: Sequence[str], cells: Sequence[Sequence[str]], left: Sequence[int]
) -> list[str]:
    sides = ("---" if i in left else "---:" for i in range(len(headings)))
    return ["", row(headings), f"| {' | '.join(sides)} |", *map(row, cells)]
