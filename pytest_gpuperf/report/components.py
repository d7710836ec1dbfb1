"""The components of a step: what each took, the longest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_gpuperf.judge.interval import centre
from pytest_gpuperf.metrics import catalogue
from pytest_gpuperf.model import STEP, Measurement, Verdict
from pytest_gpuperf.report import columns, numbers
from pytest_gpuperf.report.line import Line

TIMES = ("kernel_time", "wall_time")
"""The time of a component: that of its kernels on a GPU, that of the host elsewhere."""
COPY_TIMES = ("copy_time_h2d", "copy_time_d2h", "copy_time_d2d")
OUTSIDE = "(outside)"
"""What is in no component."""
_NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Component:
    """One component of a measurement, of all its processes. Times are in the unit of the metric."""

    name: str
    time: float
    share: float | None
    """Of the step's time, in percent."""
    launches: float | None
    copy_time: float | None
    """Of copies in any direction, added up."""
    change: str = ""
    """Of the time, against the baseline; "" where there is none."""

    @property
    def empty(self) -> bool:
        """Nothing was launched in it, which is no time of 0: there was nothing to take any."""
        return self.launches == 0 and not self.copy_time


@dataclass(frozen=True, slots=True)
class Components:
    """Those of one measurement, the longest first, what is outside of them last."""

    metric: str
    """What the times are of."""
    unit: str
    entries: tuple[Component, ...]
    notes: tuple[str, ...]


def components(
    measurements: Sequence[Measurement], verdicts: Sequence[Verdict] = ()
) -> Components | None:
    """The components of a test's measurements, one per process; None where there are none."""
    names = measurements[0].components
    values = _values(measurements)
    metric = next((m for m in TIMES if any((n, m) in values for n in names)), None)
    if metric is None:
        return None
    changes = {
        v.phase: numbers.change(v)
        for v in verdicts
        if v.metric == metric and v.change is not None and v.phase in names
    }
    whole = values.get((STEP, metric))
    found = [
        Component(
            name,
            values[name, metric],
            _share(values[name, metric], whole),
            values.get((name, "launches")),
            _copy_time(values, name),
            changes.get(name, ""),
        )
        for name in names
        if (name, metric) in values
    ]
    found.sort(key=lambda entry: -entry.time)
    outside = _outside(found, values, metric)
    return Components(
        metric,
        catalogue().metrics[metric].unit,
        (*found, *([outside] if outside else [])),
        tuple(_notes(values)),
    )


def cells(found: Components) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The headings of a table and its rows. A column that has nothing in it is left out."""
    headings = ("component", found.metric, "share", "launches", "copies", "change")
    rows = [
        (
            numbers.printable(entry.name),
            _NOTHING if entry.empty else numbers.value(entry.time, found.unit),
            _NOTHING if entry.share is None or entry.empty else f"{entry.share:.1f} %",
            numbers.value(entry.launches, "launches"),
            numbers.value(entry.copy_time or None, "ns"),
            entry.change or _NOTHING,
        )
        for entry in found.entries
    ]
    kept = [i for i in range(len(headings)) if i < 2 or {row[i] for row in rows} != {_NOTHING}]
    return tuple(headings[i] for i in kept), [tuple(row[i] for i in kept) for row in rows]


def lines(
    measurements: Sequence[Measurement], verdicts: Sequence[Verdict], width: int
) -> Iterator[Line]:
    """The table as lines of at most `width` characters; nothing where there are no components."""
    found = components(measurements, verdicts)
    if found is None:
        return
    headings, rows = cells(found)
    yield from columns.fitted(headings, rows, width, left=(0,))
    for note in found.notes:
        yield from columns.wrapped(note, width, "", "  ")


def _values(measurements: Sequence[Measurement]) -> dict[tuple[str, str], float]:
    rounds: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    for measurement in measurements:
        for sample in measurement.samples:
            rounds.setdefault((sample.phase, sample.metric), []).append(sample.values)
    return {key: centre(values) for key, values in rounds.items()}


def _outside(
    found: Sequence[Component], values: dict[tuple[str, str], float], metric: str
) -> Component | None:
    """What the step took beyond its components; None where that is nothing.

    Of kernels that ran at once on several streams, components have more than the step.
    """
    whole = values.get((STEP, metric), 0.0)
    time = max(0.0, whole - sum(entry.time for entry in found))
    launches = values.get((STEP, "launches"))
    left = None if launches is None else launches - sum(entry.launches or 0.0 for entry in found)
    copies = _copy_time(values, STEP)
    other = None if copies is None else max(0.0, copies - sum(e.copy_time or 0.0 for e in found))
    # On the host, what the clock itself takes is outside too.
    if left == 0 or (left is None and time == 0):
        return None
    return Component(OUTSIDE, time, _share(time, whole), left, other)


def _notes(values: dict[tuple[str, str], float]) -> Iterator[str]:
    graphs = round(values.get((STEP, "graph_launches"), 0.0))
    if graphs:
        yield (
            f"{graphs} of the launches {'are CUDA graphs' if graphs > 1 else 'is a CUDA graph'}"
            ": its kernels belong to the component in which the graph is launched, not to those "
            "that were open when it was captured"
        )


def _copy_time(values: dict[tuple[str, str], float], part: str) -> float | None:
    found = [values[part, name] for name in COPY_TIMES if (part, name) in values]
    return sum(found) if found else None


def _share(time: float, whole: float | None) -> float | None:
    return 100 * time / whole if whole else None
