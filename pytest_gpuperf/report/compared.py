"""What is said of a comparison, whatever the format: titles, notes, and the cells of its tables."""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum

from pytest_gpuperf.judge.blamed import Blame
from pytest_gpuperf.judge.compared import (
    Change,
    Comparison,
    Devices,
    Differing,
    Pair,
    Side,
    Source,
    Unpaired,
)
from pytest_gpuperf.model import STEP
from pytest_gpuperf.progress import counted
from pytest_gpuperf.report import blame as blamed
from pytest_gpuperf.report import numbers

METRICS = ("metric", "a", "b", "change")
INTERVAL = "99.5 % interval"
KERNELS = ("kernel", "a", "b", "change", "share", "")
_NOTHING = "-"
_CPU = "cpu"


def source(found: Source) -> str:
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


def notes(pair: Pair, *, kernels: bool = True) -> list[str]:
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
    first, *others = [notes(pair, kernels=kernels) for pair in comparison.pairs]
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
            numbers.value(found.a, found.unit),
            numbers.value(found.b, found.unit),
            _change(found),
            *((_interval(found),) if intervals else ()),
        )
        by_phase.setdefault(found.phase, []).append(cells)
    return by_phase


@dataclass(frozen=True)
class Kernels:
    """What is said of a pair's kernels."""

    title: str
    cells: tuple[tuple[str, ...], ...]
    """A row per kernel, those whose times changed most first."""
    rest: str
    """What the kernels that have no row changed together; "" where all have one."""
    notes: tuple[str, ...]


def kernels(blame: Blame, pair: Pair, most: int) -> Kernels:
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
    return Kernels(
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


def _change(found: Change) -> str:
    if found.change is not None:
        return numbers.moved(found.change, points=found.points)
    return "from 0" if found.a == 0 and found.b is not None else _NOTHING


def _interval(found: Change) -> str:
    """As "+0.67 to +1.33 %": the unit once, where both ends have the same."""
    if found.low is None or found.high is None:
        return _NOTHING
    low, high = (numbers.moved(end, points=found.points) for end in (found.low, found.high))
    number, _, unit = low.rpartition(" ")
    return f"{number if number and high.endswith(f' {unit}') else low} to {high}"


def _kernel_title(found: Blame) -> str:
    before, after = (numbers.value(value, "ns") for value in (found.before, found.after))
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


def _kernel_cells(row: blamed.Row) -> tuple[str, ...]:
    before, after = (
        numbers.value(time, "ns") if time else _NOTHING for time in (row.before, row.after)
    )
    # Of the gap between kernels nothing but the times is said, which stand here already.
    how = row.how.removeprefix(f"{before} -> {after}").strip()
    return row.what, before, after, blamed.duration(row.change), blamed.share(row.share), how
