"""The figures of the report: what `figures.yaml` says of each, with the rows of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_gpuperf.analysis import launch_totals, priority
from pytest_gpuperf.analysis.mix import instruction_mix, instruction_mixes, meanings
from pytest_gpuperf.analysis.roofline import DRAM, Roofline, published, roofline
from pytest_gpuperf.catalogue import units, yaml_table
from pytest_gpuperf.catalogue.architectures import CPU
from pytest_gpuperf.catalogue.kernel_families import family, short_name
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.model.measurement import STEP, KernelTable, grouped
from pytest_gpuperf.report.html.figure import (
    RATIO,
    Cell,
    Figure,
    Plain,
    Plot,
    Quantity,
    quantity,
    ratio,
    told,
)
from pytest_gpuperf.report.html.subject import FigureSubject

_FOLDER = Path(__file__).parent
_MOST = 15
"""Kernels that are shown by themselves, per configuration."""
_POINTS = 120
"""Kernels that have a point, per configuration."""
_UNDER_ROOFS = 40
"""Kernels under the roofs, per configuration, those that take longest."""

_OUTSIDE = "(outside)"
"""The row for time outside all components."""
_TIME, _COPY_TIMES = "kernel_time", ("copy_time_h2d", "copy_time_d2h", "copy_time_d2d")
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
    on_gpu = {subject.device.arch for subject in subjects} != {CPU}
    needs = known["needs"] if on_gpu or known.get("on_cpu") else "a GPU"
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
        missing="" if rows else f"needs {needs}",
    )


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


def _components(_: _Table, subject: FigureSubject, __: Sequence[FigureSubject]) -> Found:
    """The components, the longest first, and what is outside them; none if a graph hides them all.

    With kernels on several streams at once, components can add up to more than the step.
    """
    named = [name for name in subject.result.first.components if (name, _TIME) in subject.values]
    parts = {name: _traced(subject, name) for name in named}
    names = sorted(parts, key=lambda name: -parts[name][0])
    if not any(launches or copies for _, launches, copies in parts.values()):
        return Found()
    found, whole = Found(said=names[0]), _traced(subject, STEP)
    inside = [sum(column) for column in zip(*parts.values(), strict=True)]
    outside = [max(0.0, of - known) for of, known in zip(whole, inside, strict=True)]
    rows = [(name, *parts[name]) for name in names]
    rows += [(_OUTSIDE, outside[0], outside[1], outside[2])] if outside[1] else []
    for name, time, launches, copies in rows:
        # The time of a component without launches and copies is undefined and not 0.
        times = (time, ratio(time, whole[0], "%")) if launches or copies else (None, None)
        found.rows.append((name, *times, launches, copies))
    return found


def _traced(subject: FigureSubject, phase: str) -> tuple[float, float, float]:
    """Time of kernels in ns, launches, and time of copies in all directions."""
    values = (subject.value(metric, phase) or 0.0 for metric in (_TIME, "launches", *_COPY_TIMES))
    time, launches, *copies = values
    return time, launches, sum(copies)


# Kernels


def launched(table: KernelTable, named: Callable[[str], str]) -> list[tuple[str, str, float, int]]:
    """Kernels, copies and fills added up by the name that `named` gives them, the longest first.

    Each has name, family, time in ns and the number of launches.
    """
    names = [(named(full), family(full)) for full in table.names]
    launches = grouped(table.launches, lambda launch: names[launch.name])
    added = [(*key, sum(one.duration for one in own), len(own)) for key, own in launches.items()]
    return sorted(added, key=lambda one: -one[2])


def _longest(every: Sequence[tuple[str, str, float, int]]) -> tuple[float, Found]:
    """The time of all kernels, and the longest as what was found."""
    total = sum(time for _, _, time, _ in every)
    said = f"{every[0][0]} ({100 * every[0][2] / total:.0f} %)" if total else ""
    return total, Found(said=said)


def _families(_: _Table, subject: FigureSubject, __: Sequence[FigureSubject]) -> Found:
    """Time by family, and its priority score: time times estimated speedup (equations 1 and 2)."""
    every = launched(subject.kernels, family)
    total, found = _longest(every)
    scores = priority.priorities(subject.kernels, family)
    by_name = {one.family: one for one in scores.families}
    idle = units.value(subject.kernels.idle, "ns")
    found.notes.append(f"{subject.label}: the GPU was idle for {idle}, which is not counted here.")
    unknown = "The priority score needs --gpuperf-metrics paper."
    found.notes += scores.missing if scores.families else [unknown]
    for name, of, time, launches in every:
        score = by_name.get(of)
        gain: tuple[Cell | float, ...] = (None,) * 5
        if score is not None:
            gain = score.score, score.share, score.speedup, score.bottleneck, score.throughput
        cells = name, time, ratio(time, total, "%"), launches
        found.rows += [(*cells, *gain)] if time else []
    return found


def _kernels(_: _Table, subject: FigureSubject, __: Sequence[FigureSubject]) -> Found:
    every = launched(subject.kernels, short_name)
    total, found = _longest(every)
    shown, rest = every[:_MOST], every[_MOST:]
    if rest:
        time, launches = sum(one[2] for one in rest), sum(one[3] for one in rest)
        shown.append((f"{len(rest):,} others", "other", time, launches))
    for name, of, time, launches in shown:
        found.rows.append((name, of, time, ratio(time, total, "%"), launches))
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
    parts = {"the whole step": instruction_mix(step, arch)}
    parts |= {one.of: one for one in mixes.families}
    found = Found(notes=[*mixes.missing] if subject.kernels.launches else [])
    dominant = mixes.dominant
    classes = dominant.pipe_classes.parts if dominant else ()
    shares = [(part.share, part.name) for part in classes if part.share is not None]
    if dominant and shares:
        kernel, (share, name) = short_name(dominant.of), max(shares)
        parts[f"longest kernel, {kernel}"] = dominant
        mostly = f"mostly {name} ({100 * share:.0f} %),"
        found.said = f"{kernel} at IPC {dominant.ipc or 0:.3g}, {mostly}"
    for name, one in parts.items():
        for kind, mix in (("by pipe", one.pipe_classes), ("by SASS class", one.sass_classes)):
            there = {part.name for part in mix.parts}
            meant = [f"{name} {meaning}" for name, meaning in meanings().items() if name in there]
            found.notes += [f"Classes: {', '.join(meant)}.", *mix.missing] if there else []
            for part in mix.parts:
                ipc = part.ipc if mix is one.pipe_classes else None
                count = quantity(part.value, mix.unit)
                found.rows.append((name, kind, part.name, part.share, ipc, count))
    return found


def _under_roofs(_: _Table, subject: FigureSubject, __: Sequence[FigureSubject]) -> Found:
    """Kernels under the roofs of the device; areas are their times."""
    device = subject.device
    points = roofline(subject.kernels, family, published().get(device.slug, {}), device.arch)
    step, found = points.step, Found()
    for one in points.kernels[:_UNDER_ROOFS]:
        if one.flop_per_byte:
            rate = one.flop_per_byte, one.flop_per_second, one.share_of_roof
            cells = one.roof, one.nanoseconds, one.dram_bytes
            found.rows.append((short_name(one.name), one.family, *rate, *cells))
    if not found.rows:
        return found
    if step.roof is not None and step.share_of_roof is not None:
        found.said = f"{100 * step.share_of_roof:.0f} % of {step.roof}"
    found.notes += points.missing
    found.roofs += _roofs(points)
    return found


def _roofs(points: Roofline) -> Iterator[Plain]:
    """A roof for each kind of arithmetic that the kernels do, at the device's published peak."""
    for kind, work in points.step.flop.items():
        if work and kind in points.peaks:
            yield {"name": kind, "slope": points.peaks[DRAM], "top": points.peaks[kind]}


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
