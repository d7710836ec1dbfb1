"""Two measurements side by side: what they are, metric by metric, kernel by kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_gpuperf.judge.blame import Naming, blame
from pytest_gpuperf.judge.blamed import Blame
from pytest_gpuperf.judge.interval import centre
from pytest_gpuperf.metrics import catalogue
from pytest_gpuperf.model import STEP, Measurement
from pytest_gpuperf.report import messages, numbers, table
from pytest_gpuperf.report.blame import Row, duration, rows, share
from pytest_gpuperf.report.line import Line

_INDENT = "  "
_GAP = "  "
_NOTHING = "-"
_METRICS = ("metric", "a", "b", "change")
_KERNELS = ("kernel", "a", "b", "change", "share", "")


def lines(
    a: Measurement, b: Measurement, naming: Naming, *, kernels: int = 10, width: int = 80
) -> list[Line]:
    """The text of a comparison of `a` with `b`, at most `width` wide.

    Changes are those from `a` to `b`, of the medians over the rounds of one process each: what is
    shown here is no verdict. Of the kernels, the `kernels` whose times changed most.
    """
    found: list[Line] = []
    for label, measurement in (("a", a), ("b", b)):
        title = f"{label}: {_described(measurement)}"
        found += [Line(text, "heading") for text in table.wrapped([title], width, "")]
    for text in _differences(a, b):
        found += [Line(part, "doubtful") for part in table.wrapped([text], width, "")]
    found += _fitted(_METRICS, [*_metrics(a, b)], width, left=(0,))
    return found + _kernels(a, b, naming, kernels, width)


def _described(measurement: Measurement) -> str:
    """Which measurement it is: its test, configuration, device, code and time."""
    device = measurement.fingerprint.device
    parts = [
        messages.subject(measurement).rstrip(","),
        measurement.configuration,
        f"{device.name} ({device.arch})",
        measurement.fingerprint.revision,
        measurement.fingerprint.measured,
    ]
    return ", ".join(part for part in parts if part)


def _differences(a: Measurement, b: Measurement) -> Iterator[str]:
    """What differs between the two beside the numbers, and may be why those differ."""
    for what, one, other in (
        ("workload", a.workload, b.workload),
        ("software", a.fingerprint.software, b.fingerprint.software),
        ("settings", a.fingerprint.settings, b.fingerprint.settings),
    ):
        keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
        if keys:
            moved = "; ".join(
                f"{key} {one.get(key, 'unset')} -> {other.get(key, 'unset')}" for key in keys
            )
            yield f"{what} differs: {moved}"
    if a.fingerprint.device.identity != b.fingerprint.device.identity:
        yield "measured on two GPUs: cycles of one name differ by some per cent between them"


def _metrics(a: Measurement, b: Measurement) -> Iterator[tuple[str, ...]]:
    """A row per metric and phase that either has; the step's first."""
    first, second = ({(s.phase, s.metric): s.values for s in m.samples if s.values} for m in (a, b))
    known = catalogue().metrics
    for phase, name in sorted({**first, **second}, key=lambda key: key[0] != STEP):
        metric = known.get(name)
        unit = metric.unit if metric else ""
        one, other = (
            centre([side[phase, name]]) if (phase, name) in side else None
            for side in (first, second)
        )
        change = _NOTHING
        if one is not None and other is not None:
            if metric is not None and metric.percentage:
                change = numbers.moved(other - one, points=True)
            elif one:
                change = numbers.moved((other - one) / abs(one))
            elif other:
                change = "from 0"
            else:
                change = numbers.moved(0.0)
        label = name if phase == STEP else f"{name} ({phase})"
        yield label, numbers.value(one, unit), numbers.value(other, unit), change


def _kernels(a: Measurement, b: Measurement, naming: Naming, most: int, width: int) -> list[Line]:
    missing = [label for label, m in (("a", a), ("b", b)) if m.kernels is None]
    if a.kernels is None or b.kernels is None:
        text = f"no kernels to compare: {' and '.join(missing)} were measured without them"
        if len(missing) == 1:
            text = f"no kernels to compare: {missing[0]} was measured without them"
        return [Line(part) for part in table.wrapped([text], width, "")]
    found = blame(b.kernels, a.kernels, naming)
    every = rows(found.entries, small=0.0)
    shown = [row for row in every if row.change][:most]
    title = _kernel_title(found)
    result = [Line(part, "heading") for part in table.wrapped([title], width, "")]
    result += _fitted(_KERNELS, [_cells(row) for row in shown], width, left=(0, 5))
    rest = len(every) - len(shown)
    if rest:
        moved = duration(found.change - sum(row.change for row in shown))
        result += [
            Line(part) for part in table.wrapped([f"and {rest} more: {moved}"], width, _INDENT)
        ]
    for label, kernels in (("a", a.kernels), ("b", b.kernels)):
        if kernels.mismatch:
            text = f"{label} has no counters by kernel: {kernels.mismatch}"
            result += [Line(p, "doubtful") for p in table.wrapped([text], width, "")]
    return result


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
    return f"kernels and gaps: {before} -> {after} ({duration(found.change)}); {sequence}"


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.what,
        numbers.value(row.before, "ns") if row.before else _NOTHING,
        numbers.value(row.after, "ns") if row.after else _NOTHING,
        duration(row.change),
        share(row.share),
        row.how,
    )


def _fitted(
    headings: Sequence[str], cells: Sequence[Sequence[str]], width: int, left: Sequence[int]
) -> list[Line]:
    """A table where it fits; else each row as its first cell, and the others wrapped below it.

    A last column without a heading may be wrapped below its row before that.
    """
    if not cells:
        return []
    wide = [max(len(row[i]) for row in [headings, *cells]) for i in range(len(headings))]
    if len(_INDENT) + sum(wide) + len(_GAP) * (len(wide) - 1) <= width:
        return [
            Line(_aligned(row, wide, left), "" if number else "heading")
            for number, row in enumerate([headings, *cells])
        ]
    below = not headings[-1]
    columns = len(headings) - below
    if below and len(_INDENT) + sum(wide[:-1]) + len(_GAP) * (columns - 1) <= width:
        found = [Line(_aligned(headings[:-1], wide, left), "heading")]
        for row in cells:
            found.append(Line(_aligned(row[:-1], wide, left)))
            found += [Line(part) for part in table.wrapped([row[-1]], width, _INDENT * 3)]
        return found
    found = []
    for row in cells:
        found += [Line(part) for part in table.wrapped([f"{row[0]}:"], width, _INDENT)]
        named = [f"{headings[i]} {row[i]}" for i in range(1, columns)]
        text = ", ".join([*named, *row[columns:]])
        found += [Line(part) for part in table.wrapped([text], width, _INDENT * 2)]
    return found


def _aligned(row: Sequence[str], wide: Sequence[int], left: Sequence[int]) -> str:
    padded = (
        cell.ljust(wide[i]) if i in left else cell.rjust(wide[i]) for i, cell in enumerate(row)
    )
    return (_INDENT + _GAP.join(padded)).rstrip()
