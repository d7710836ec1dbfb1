"""The report of a comparison: metric by metric, and its kernels."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.architectures import CPU
from pytest_gpuperf.catalogue.units import counted
from pytest_gpuperf.judge.comparison import Comparison, DeviceRelation, Measurements, Pair, tables
from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.model.result import Verdict
from pytest_gpuperf.report import view
from pytest_gpuperf.report.text import kernel_lines, table
from pytest_gpuperf.report.text.table import INDENT, NOTHING, Line

_METRICS = ("metric", "a", "b", "change", "99.5 % interval")


def text_lines(comparison: Comparison, *, kernels: int = 10, width: int = 80) -> list[Line]:
    """The text of a comparison, at most `width` wide, with so many lines about `kernels`."""
    lines: list[Line] = []
    for text in _sources(comparison):
        lines += table.wrapped_lines(text, width, "heading")
    shared = _shared_notes(comparison, kernels)
    for note in shared:
        lines += table.wrapped_lines(note, width, "doubtful")
    for pair in comparison.pairs:
        lines += [Line(""), *table.wrapped_lines(_title(pair), width, "heading")]
        for note in _notes(pair, kernels):
            lines += table.wrapped_lines(note, width, "doubtful") if note not in shared else []
        lines += _metrics(pair, width)
        lines += map(Line, _kernels(pair, kernels, width))
    for label, alone in (("a", comparison.only_a), ("b", comparison.only_b)):
        lines += [Line(""), Line(f"only in {label}:", "heading")] if alone else []
        for one in alone:
            name = "" if one[0].name == STEP else f", {one[0].name}"
            said = f"{one[0].test}{name} ({counted(_processes(one), 'process')})"
            lines += table.wrapped_lines(said, width, "doubtful", INDENT)
    return lines


def _processes(measurements: Measurements) -> int:
    return len({measurement.process for measurement in measurements})


def _kernels(pair: Pair, most: int, width: int) -> list[str]:
    """The lines on the kernels, with notes on their processes and counters."""
    attribution = pair.result.attribution
    if not (attribution and most):
        return []
    notes = []
    for label, side in zip("ab", pair.sides, strict=True):
        traced, every = tables(side), _processes(side)
        reasons = dict.fromkeys(one.mismatch for one in traced if one.mismatch)
        notes += [f"{label} has no counters per kernel: {reason}" for reason in reasons]
        if len(traced) < every:
            notes.append(f"kernels of {label} come from {len(traced)} of {every} processes")
    lines = kernel_lines.lines(attribution, width, most)
    return [*lines, *(line for note in notes for line in table.wrapped([note], width, ""))]


def _sources(comparison: Comparison) -> Iterator[str]:
    """The description of each side: file, device, code and time."""
    for label, side in (("a", comparison.a), ("b", comparison.b)):
        prints = [measurement.fingerprint for measurement in side.measurements]
        devices = " and ".join(dict.fromkeys(str(one.device) for one in prints))
        revisions = " and ".join(dict.fromkeys(one.revision for one in prints if one.revision))
        measured = min((one.measured for one in prints if one.measured), default="")
        parts = [str(side.run), devices, revisions, measured]
        yield f"{label}: {', '.join(filter(None, parts))}"


def _title(pair: Pair) -> str:
    """The compared measurement, and the number of processes of each."""
    old, new = map(_processes, pair.sides)
    each = counted(new, "process")
    processes = f"{each} each" if old == new else f"{old} and {each}"
    return f"{pair.before[0].title} ({processes})"


def _notes(pair: Pair, kernels: int) -> list[str]:
    """Differences between the sides, other than the numbers, that may explain the numbers.

    The notes also say if there are no kernels to compare although they were requested.
    """
    notes = [_on_devices(pair)] if pair.devices is not DeviceRelation.SAME else []
    differing = (
        (what, f"{key} {old or 'unset'} -> {new or 'unset'}")
        for what, key, old, new in pair.differing
    )
    for what, moved in view.gathered(differing).items():
        notes.append(f"{what} {'differ' if what == 'settings' else 'differs'}: {'; '.join(moved)}")
    missing = [label for label, side in zip("ab", pair.sides, strict=True) if not tables(side)]
    if missing and kernels:
        were = "was" if len(missing) == 1 else "were"
        notes.append(f"no kernels to compare: {' and '.join(missing)} {were} recorded without any")
    return notes


def _shared_notes(comparison: Comparison, kernels: int) -> list[str]:
    """The notes that all pairs have: they are said once."""
    first, *others = [_notes(pair, kernels) for pair in comparison.pairs]
    return [note for note in first if all(note in notes for notes in others)]


def _on_devices(pair: Pair) -> str:
    devices = [side[0].fingerprint.device for side in pair.sides]
    if pair.devices is DeviceRelation.KINDS:
        a, b = devices
        return f"a ran on {a}, b on {b}, so the device may be the cause, not the code"
    if devices[0].arch == CPU:
        return "measured on two machines: times may differ by machine, counts do not"
    return "measured on two GPUs of one model, whose cycles differ by a few per cent"


def _metrics(pair: Pair, width: int) -> list[Line]:
    """The table of the metrics, the whole step's first; each phase is a heading of its own.

    Intervals are included if any metric has one.
    """
    verdicts = [verdict for verdict in pair.result.verdicts if not table.is_zero(verdict)]
    last = len(_METRICS) - all(verdict.low is None for verdict in verdicts)
    rows: list[tuple[str, ...]] = []
    for verdict, change in zip(verdicts, units.changes(verdicts), strict=True):
        inside = verdict.phase != STEP
        if inside and (verdict.phase,) not in rows:
            rows.append((verdict.phase,))
        a, b = (units.value(v, verdict.unit) for v in (verdict.baseline, verdict.measured))
        name = INDENT + verdict.metric if inside else verdict.metric
        rows.append((name, a, b, change, _interval(verdict))[:last])
    return table.column_lines(_METRICS[:last], rows, width, (0,), dispensable=(len(_METRICS) - 1,))


def _interval(verdict: Verdict) -> str:
    """As "+0.67 to +1.33 %": the unit once."""
    if verdict.low is None or verdict.high is None:
        return NOTHING
    low, high = units.interval(verdict.low, verdict.high, points=verdict.points)
    return f"{low.removesuffix(' %').removesuffix(' pt')} to {high}"
