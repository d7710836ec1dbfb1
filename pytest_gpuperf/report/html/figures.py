"""The figures of the report: what `figures.yaml` says of each, with the rows of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_gpuperf.analysis import launch_totals, priority
from pytest_gpuperf.analysis.mix import Mix, instruction_mix, instruction_mixes, paper_classes
from pytest_gpuperf.analysis.roofline import Roofline, published, roofline
from pytest_gpuperf.catalogue import units, yaml_table
from pytest_gpuperf.catalogue.architectures import CPU
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.model.measurement import STEP, KernelTable
from pytest_gpuperf.report.html.components import (
    OUTSIDE,
    TIME,
    ComponentRow,
    component_rows,
    graph_note,
)
from pytest_gpuperf.report.html.figure import (
    RATIO,
    Cell,
    Figure,
    Plain,
    Plot,
    Quantity,
    cell_text,
    quantity,
    ratio,
    told,
)
from pytest_gpuperf.report.html.subject import FigureSubject, family, short_name

_FOLDER = Path(__file__).parent
_STEP = "the whole step"
_MOST_NAMED = 4
"""The number of missing metrics that a note names."""
_MOST = 15
"""Kernels that are shown by themselves, per configuration."""
_POINTS = 120
"""Kernels that have a point, per configuration."""
_UNDER_ROOFS = 40
"""Kernels under the roofs, per configuration, those that take longest."""
_NAME = 300
"""Characters of a whole name that are kept; ATen's have up to 5,000."""

_SPENT = ("cycles", "flops")
"""The metrics that phases share, on a GPU and on a CPU."""

PAPER_SUITE = "meddpm"
"""The suite that repeats the workload of the ICPE '26 paper (arXiv 2606.19365)."""
PAPER_GPUS = {"sm70": "V100", "sm80": "A100", "sm90": "H100"}
"""The paper's GPU of an architecture."""
_PROTOCOL = (
    "Paper: ICPE '26, its own GPUs, 100 kernel launches after the first 10 of a process under "
    "Nsight Compute, averaged over kernels. Here: the whole step"
)


@dataclass
class Found:
    """The rows and notes of one subject."""

    rows: list[tuple[Cell | float, ...]] = field(default_factory=list)
    """The rows without the configuration, which is the first column of every figure."""
    said: str = ""
    """A finding in a few words."""
    notes: list[str] = field(default_factory=list)
    roofs: list[Plain] = field(default_factory=list)


_Table = dict[str, Any]
"""An entry of `figures.yaml`."""


def all_figures(subjects: Sequence[FigureSubject]) -> list[Figure]:
    """Every figure. Without its metrics, a figure names them and how to collect them."""
    return [_figure(key, of, subjects) for key, of in yaml_table(_FOLDER / "figures.yaml").items()]


def _figure(key: str, known: _Table, subjects: Sequence[FigureSubject]) -> Figure:
    source = SOURCES.get(key, _metrics)
    found = [(subject, source(known, subject, subjects)) for subject in subjects]
    columns, unit = known["columns"], known.get("units", {})
    rows = [
        (subject.label, *(_cell(v, unit.get(c, "")) for c, v in zip(columns[1:], row, strict=True)))
        for subject, one in found
        for row in one.rows
    ]
    kept = [
        at for at in range(len(columns)) if not rows or any(row[at] is not None for row in rows)
    ]
    shown = tuple(columns[at] for at in kept)
    notes = [known["note"]] if rows and "note" in known else []
    notes += [note for _, one in found if one.rows for note in one.notes]
    before = f"{known['before']} " if "before" in known else ""
    said = told([(one.said, subject.label) for subject, one in found if one.said], before)
    roofs = {roof["name"]: roof for _, one in found for roof in one.roofs}
    return Figure(
        key=key,
        title=known["title"],
        conclusion=said + known["conclusion"],
        columns=shown,
        rows=tuple(tuple(row[at] for at in kept) for row in rows),
        plot=_plot(known["plot"], shown, subjects, tuple(roofs.values())),
        source=known.get("source", ""),
        notes=tuple(dict.fromkeys(notes)),
        missing=_missing(key, known, subjects, there=bool(rows)),
    )


def _missing(key: str, known: _Table, subjects: Sequence[FigureSubject], *, there: bool) -> str:
    """Metrics that no subject has, and the flag that collects them; "" if nothing is missing.

    On a CPU nothing is missed that only a GPU has.
    """
    archs = {subject.device.arch for subject in subjects}
    on_gpu = archs != {CPU}
    if not there:
        return f"needs {known['needs']}" if on_gpu or known.get("on_cpu") else "needs a GPU"
    absent = [
        metric
        for metric in (known["wanted"] if on_gpu and key not in SOURCES else ())
        if any(catalogue().metrics[metric].exists_on(arch) for arch in archs)
        and not any(subject.value(metric) is not None for subject in subjects)
    ]
    return f"Not measured: {units.few(absent, _MOST_NAMED)} ({known['needs']})" if absent else ""


def _plot(
    known: _Table,
    columns: Sequence[str],
    subjects: Sequence[FigureSubject],
    roofs: tuple[Plain, ...],
) -> Plot | None:
    """The chart of these columns, with the paper's GPU of our architecture."""
    values = ["relative"] if "relative" in columns else [v for v in known["values"] if v in columns]
    own = dict.fromkeys(f"paper, {PAPER_GPUS.get(s.device.arch)}" for s in subjects)
    published = tuple(column for column in own if column in columns)
    if len(values) < (2 if known["shape"] == "points" else 1):
        return None
    drawn = {**known, "values": (*values, *published)}
    return Plot(**drawn, published=published, roofs=roofs)


def _cell(value: Cell | float, unit: str) -> Cell:
    """A cell as it is, or of a number in this unit; "share" is 0.01 for 1 %."""
    if not isinstance(value, (int, float)):
        return value
    return quantity(100 * value, "%") if unit == "share" else quantity(float(value), unit)


# Metrics of the step


def _metrics(known: _Table, subject: FigureSubject, subjects: Sequence[FigureSubject]) -> Found:
    """A row per metric, what the paper gives beside it; relative to the first of the subjects."""
    found, compared = Found(), known.get("relative", False) and len(subjects) > 1
    others = known.get("others", "-")
    more = [name for name in catalogue().metrics if name.startswith(others)]
    for metric in dict.fromkeys([*known["wanted"], *known.get("besides", ()), *more]):
        value = subject.value(metric)
        if value is None:
            continue
        here = quantity(value, catalogue().metrics[metric].unit)
        beside = ratio(value, subjects[0].value(metric)) if compared else None
        paper = [_of_the_paper(metric, subject, gpu, compared) for gpu in PAPER_GPUS.values()]
        found.rows.append((metric, here, beside, *paper))
        found.notes += [_PROTOCOL] if any(paper) else []
    return found


def _of_the_paper(metric: str, subject: FigureSubject, gpu: str, relative: bool) -> Cell:
    """The paper's value of this configuration on one of its GPUs; None if it has none.

    The value is a percentage, or relative to its Baseline; text if the paper gives a range.
    """
    if subject.result.first.suite != PAPER_SUITE:
        return None
    scale = yaml_table(_FOLDER / "paper_values.yaml")["relative" if relative else "absolute"]
    value = scale.get(metric, {}).get(gpu, {}).get(subject.result.first.configuration)
    return Quantity(value, RATIO if relative else "%") if isinstance(value, float) else value


def _phases(known: _Table, subject: FigureSubject, _: Sequence[FigureSubject]) -> Found:
    found = Found()
    phases = dict.fromkeys(phase for phase, _ in subject.values if phase != STEP)
    for metric in known["wanted"]:
        of = catalogue().metrics[metric]
        values = {phase: subject.value(metric, phase) for phase in phases}
        whole = subject.value(metric) if of.additive else None
        # A metric that is zero in every phase has no chart.
        for phase, value in values.items() if any(values.values()) else ():
            if value is not None:
                cells = quantity(value, of.unit), ratio(value, whole, "%")
                found.rows.append((metric, phase, *cells))
        if metric in _SPENT and whole and any(values.values()) and not found.said:
            value, phase = max((value or 0.0, phase) for phase, value in values.items())
            found.said = f"{phase} ({100 * value / whole:.0f} % of {metric})"
    return found


# What a trace has shown


def _components(_: _Table, subject: FigureSubject, subjects: Sequence[FigureSubject]) -> Found:
    """The components of the subject, the longest first, if any has launches."""
    rows, inside = _rows_inside(subject)
    # A graph hides its components; it has bars if no other subject shows any.
    if not inside and any(_rows_inside(other)[1] for other in subjects):
        return Found()
    found, note = Found(said=inside[0] if inside else ""), graph_note(subject.values)
    found.notes += [f"{subject.label}: {note}"] if note else []
    for row in rows:
        part = ratio(row.time, subject.value(TIME), "%")
        time = (None, None) if row.empty else (row.time, part)
        found.rows.append((row.name, *time, row.launches, row.copy_time))
    return found


def _rows_inside(subject: FigureSubject) -> tuple[list[ComponentRow], list[str]]:
    """The components, and the names of those that launched something, the longest first."""
    rows = component_rows(subject.result.first.components, subject.values)
    return rows, [row.name for row in rows if row.name != OUTSIDE and not row.empty]


# Kernels


@dataclass
class LaunchedGroup:
    """The launches of kernels that read the same."""

    name: str
    """The short name, or the family when families were added up."""
    family: str
    full: str
    """The whole name, of one of them."""
    launches: int = 0
    duration: float = 0.0
    """Nanoseconds in all."""


def groups(table: KernelTable, *, families: bool = False) -> list[LaunchedGroup]:
    """Kernels, copies and fills by how they read, or by family; the longest in all first."""
    added: dict[tuple[str, str], LaunchedGroup] = {}
    for launch in table.launches:
        full = table.names[launch.name]
        of = family(full)
        name = of if families else short_name(full)
        one = added.setdefault((name, of), LaunchedGroup(name, of, full))
        one.launches += 1
        one.duration += launch.duration
    return sorted(added.values(), key=lambda one: -one.duration)


def _longest(every: Sequence[LaunchedGroup]) -> tuple[float, Found]:
    """The time of all groups, and what they show so far: the longest of them."""
    total = sum(one.duration for one in every)
    said = f"{every[0].name} ({100 * every[0].duration / total:.0f} %)" if total else ""
    return total, Found(said=said)


def _times(one: LaunchedGroup, total: float) -> tuple[Cell | float, ...]:
    return one.duration, ratio(one.duration, total, "%"), one.launches


def _families(_: _Table, subject: FigureSubject, __: Sequence[FigureSubject]) -> Found:
    """Time by family, and its priority score: time times estimated speedup (equations 1 and 2)."""
    every = groups(subject.kernels, families=True)
    total, found = _longest(every)
    scores = priority.priorities(subject.kernels, family)
    by_name = {one.family: one for one in scores.families}
    idle = units.value(subject.kernels.idle, "ns")
    found.notes.append(f"{subject.label}: the GPU was idle for {idle}, which is not counted here.")
    if scores.families:
        most = scores.families[0].family
        found.notes += [f"{subject.label}: most could be gained from {most}.", *scores.missing]
    else:
        found.notes.append("The priority score needs --gpuperf-metrics paper.")
    for one in every:
        of = by_name.get(one.name)
        gain: tuple[Cell | float, ...] = (None,) * 5
        if of is not None:
            gain = of.score, of.share, of.speedup, of.bottleneck, of.throughput
        found.rows += [(one.name, *_times(one, total), *gain)] if one.duration else []
    return found


def _kernels(_: _Table, subject: FigureSubject, __: Sequence[FigureSubject]) -> Found:
    every = groups(subject.kernels)
    total, found = _longest(every)
    shown, rest = every[:_MOST], every[_MOST:]
    if rest:
        launches, duration = sum(one.launches for one in rest), sum(one.duration for one in rest)
        shown.append(LaunchedGroup(f"{len(rest):,} others", "other", "", launches, duration))
    for one in shown:
        full = one.full if len(one.full) <= _NAME else one.full[:_NAME] + "..."
        found.rows.append((one.name, one.family, *_times(one, total), full))
    return found


def _rates(_: _Table, subject: FigureSubject, __: Sequence[FigureSubject]) -> Found:
    """The IPC of each kernel."""
    totals = launch_totals.of_kernels(subject.kernels, family)
    found = Found(notes=[*totals.missing])
    for one in totals.kernels[:_POINTS]:
        rates = one.nanoseconds, one.ipc, one.geometric_mean
        found.rows.append((short_name(one.name), one.family, *rates, one.launches))
    if totals.step.geometric_mean is not None and totals.step.ipc is not None:
        found.said = f"{totals.step.geometric_mean:.3g} and {totals.step.ipc:.3g}"
    return found


def _instructions(_: _Table, subject: FigureSubject, __: Sequence[FigureSubject]) -> Found:
    """Instructions in the paper's classes: of the step, of each family and of the longest kernel.

    The IPC of a class is known by pipe only, because SASS classes count threads.
    """
    arch = subject.device.arch
    mixes = instruction_mixes(subject.kernels, family, arch)
    step = {metric: value for (phase, metric), value in subject.values.items() if phase == STEP}
    parts = {_STEP: instruction_mix(step, arch)}
    parts |= {one.of: one for one in mixes.families}
    found = Found(notes=[*mixes.missing] if subject.kernels.launches else [])
    dominant = mixes.dominant
    if dominant and (largest := _largest(dominant.pipe_classes)):
        kernel = short_name(dominant.of)
        parts[f"longest kernel, {kernel}"] = dominant
        found.said = f"{kernel} at IPC {dominant.ipc or 0:.3g}, mostly {largest},"
    for name, one in parts.items():
        for kind, mix in (("by pipe", one.pipe_classes), ("by SASS class", one.sass_classes)):
            found.notes += [*_meanings(mix), *mix.missing] if mix.parts else []
            for part in mix.parts:
                ipc = part.ipc if mix is one.pipe_classes else None
                count = quantity(part.value, mix.unit)
                found.rows.append((name, kind, part.name, part.share, ipc, count))
    return found


def _meanings(mix: Mix) -> Iterator[str]:
    """The meaning of the classes in this mix."""
    there = {part.name for part in mix.parts}
    meanings = [f"{one.name} {one.meaning}" for one in paper_classes() if one.name in there]
    yield f"Classes: {', '.join(meanings)}."


def _largest(classes: Mix) -> str:
    known = [(part.share, part.name) for part in classes.parts if part.share is not None]
    part, name = max(known, default=(0.0, ""))
    return f"{name} ({100 * part:.0f} %)" if known else ""


def _under_roofs(_: _Table, subject: FigureSubject, __: Sequence[FigureSubject]) -> Found:
    """Kernels under the roofs of the device; areas are their times."""
    device = subject.device
    points = roofline(subject.kernels, family, published().get(device.slug), device.arch)
    step, found = points.step, Found()
    for one in points.kernels[:_UNDER_ROOFS]:
        if one.flop_per_byte:
            rate = one.flop_per_byte, one.flop_per_second, one.share_of_roof
            cells = one.roof, one.nanoseconds, one.dram_bytes
            found.rows.append((short_name(one.name), one.family, *rate, *cells))
    if not found.rows:
        return found
    if step.flop_per_second is not None and step.flop_per_byte is not None:
        rate_of_all = cell_text(quantity(step.flop_per_second, "FLOP/s"))
        at = f"{rate_of_all} at {step.flop_per_byte:.3g} FLOP per byte."
        found.notes.append(f"All kernels of {subject.label} together: {at}")
    if step.roof is not None and step.share_of_roof is not None:
        found.said = f"{100 * step.share_of_roof:.0f} % of {step.roof}"
    found.notes += points.missing
    found.roofs += _roofs(points)
    return found


def _roofs(points: Roofline) -> Iterator[Plain]:
    """A roof for each kind of arithmetic that the kernels do, at the device's published peak."""
    if points.peaks is None:
        return
    for kind, work in points.step.flop.items():
        top = points.peaks.flop_per_second.get(kind)
        if work and top:
            yield {"name": kind, "slope": points.peaks.bytes_per_second, "top": top}


SOURCES: dict[str, Callable[[_Table, FigureSubject, Sequence[FigureSubject]], Found]] = {
    "phases": _phases,
    "components": _components,
    "kernel-mix": _families,
    "kernels": _kernels,
    "kernel-ipc": _rates,
    "instruction-mix": _instructions,
    "roofline": _under_roofs,
}
"""The functions that find rows, by a figure's key; other figures show metrics."""
