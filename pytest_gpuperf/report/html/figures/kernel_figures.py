"""The figures of kernels: where a step's time goes, at which rate, and where work pays most."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pytest_gpuperf.analysis.launch_totals import COUNTS, of_kernels
from pytest_gpuperf.analysis.priority import THROUGHPUTS, priorities
from pytest_gpuperf.analysis.roofline import DRAM_BYTES, OPCODES, TENSOR, Point, Roofline, roofline
from pytest_gpuperf.analysis.roofline import of_device as peaks_of_device
from pytest_gpuperf.catalogue import units
from pytest_gpuperf.model.measurement import KernelTable
from pytest_gpuperf.report.html.figure import (
    Cell,
    Figure,
    Roof,
    cell_text,
    described,
    quantity,
    share,
)
from pytest_gpuperf.report.html.figures import paper_figures
from pytest_gpuperf.report.html.subject import (
    FigureSubject,
    family,
    missing_kernels,
    missing_metrics,
    name_sums,
    short_name,
)

_MOST = 15
"""Kernels that are shown by themselves, per configuration."""
_POINTS = 120
"""Kernels that have a point, per configuration."""
_NAME = 300
"""Characters of a whole name that are kept; ATen's have up to 5,000."""
_DENSE = ("convolution-forward", "convolution-data-gradient", "convolution-weight-gradient", "gemm")
_SHARE = "convolution and GEMM share"
_PAPER_PRIORITY = (
    "Paper: normalization has the largest sum, then tensor-core GEMMs, then elementwise kernels."
)
_UNDER_ROOFS = 40
"""Kernels under the roofs, per configuration, those that take longest."""
_FLOP_METRICS = (*(name for weights in OPCODES.values() for name in weights), *TENSOR.values())


@dataclass(frozen=True, slots=True)
class LaunchedGroup:
    """The launches of kernels that read the same."""

    name: str
    """The short name, or the family when families were added up."""
    family: str
    full: str
    """The whole name, of one of them."""
    launches: int
    duration: float
    """Nanoseconds in all."""


def mix(subjects: Sequence[FigureSubject]) -> Figure:
    """The share of kernel time per family, a bar per configuration."""
    rows: list[tuple[Cell | float, ...]] = []
    said: list[tuple[str, str]] = []
    for subject, table in _tables(subjects):
        families = by_family(table)
        total = sum(one.duration for one in families)
        rows += [
            (subject.label, one.name, *_counted(one, total)) for one in families if one.duration
        ]
        if total:
            most = families[0]
            said.append((f"{most.name} ({100 * most.duration / total:.0f} %)", subject.label))
    return described(
        "kernel-mix", rows, said=said, notes=_idle(subjects), missing=missing_kernels(subjects)
    )


def convolutions(subjects: Sequence[FigureSubject]) -> Figure:
    """The share of convolutions and matrix products, which the paper gives."""
    shares = []
    for subject, table in _tables(subjects):
        families = by_family(table)
        dense = sum(one.duration for one in families if one.name in _DENSE)
        part = share(dense, sum(one.duration for one in families))
        if part:
            shares.append((subject, part))
    measured = [subject for subject, _ in shares]
    published = paper_figures.absolute
    gpus = paper_figures.gpus_of([(_SHARE, subject) for subject in measured], published)
    drawn = paper_figures.drawn_columns(gpus, measured)
    note = f"{paper_figures.PROTOCOL}. The paper's Baseline is its dominant kernel alone."
    return described(
        "convolutions",
        (
            (subject.label, part, *(published(_SHARE, subject, gpu) for gpu in gpus))
            for subject, part in shares
        ),
        said=[(f"{part.value:.0f} %", subject.label) for subject, part in shares],
        columns=[*map(paper_figures.column, gpus)],
        values=drawn,
        published=drawn,
        notes=[note] if gpus else [],
        missing=missing_kernels(subjects),
    )


def longest(subjects: Sequence[FigureSubject]) -> Figure:
    """The kernels that take most time, a chart per configuration."""
    rows: list[tuple[Cell | float, ...]] = []
    said = ""
    for subject, table in _tables(subjects):
        kernels = by_kernel(table)
        total = sum(one.duration for one in kernels)
        for one in kernels[:_MOST]:
            full = one.full if len(one.full) <= _NAME else one.full[:_NAME] + "..."
            rows.append((subject.label, one.name, one.family, *_counted(one, total), full))
        rest = kernels[_MOST:]
        if rest:
            launches = sum(one.launches for one in rest)
            duration = sum(one.duration for one in rest)
            others = LaunchedGroup(f"{len(rest):,} others", "other", "", launches, duration)
            rows.append((subject.label, others.name, others.family, *_counted(others, total), ""))
        if kernels and total and not said:
            first = kernels[0]
            launched = f"{first.launches:,} launch{'es' if first.launches != 1 else ''}"
            said = (
                f"{first.name} takes {100 * first.duration / total:.0f} % of the kernels' time in "
                f"{subject.label}, in {launched}."
            )
    return described("kernels", rows, conclusion=said, missing=missing_kernels(subjects))


def ipc(subjects: Sequence[FigureSubject]) -> Figure:
    """The IPC of each kernel against the time it takes, a chart per configuration."""
    rows: list[tuple[Cell | float, ...]] = []
    notes: list[str] = []
    said: list[tuple[str, str]] = []
    for subject, table in _tables(subjects):
        totals = of_kernels(table, family)
        rows += [
            (
                *(subject.label, short_name(one.name), one.family),
                *(one.nanoseconds, one.ipc, one.geometric_mean, one.launches),
            )
            for one in totals.kernels[:_POINTS]
        ]
        if totals.kernels:
            notes += totals.missing
        if totals.geometric_mean is not None and totals.whole is not None:
            rates = f"{totals.geometric_mean:.3g} and {totals.whole:.3g}"
            said.append((rates, subject.label))
    missing = missing_metrics(subjects, COUNTS, per_kernel=True)
    return described("kernel-ipc", rows, said=said, notes=notes, missing=missing)


def priority(subjects: Sequence[FigureSubject]) -> Figure:
    """Where work pays most: time times estimated speedup by family (Equations 1 and 2)."""
    rows: list[tuple[Cell | float, ...]] = []
    notes: list[str] = []
    said: list[tuple[str, str]] = []
    for subject, table in _tables(subjects):
        scores = priorities(table, family)
        notes += scores.missing if scores.families else ()
        rows += [
            (
                *(subject.label, one.family, one.score, one.share, one.nanoseconds),
                *(one.speedup, one.bottleneck, one.throughput, one.launches),
            )
            for one in scores.families
        ]
        if scores.families:
            said.append((scores.families[0].family, subject.label))
    missing = missing_metrics(subjects, THROUGHPUTS, per_kernel=True)
    notes = [_PAPER_PRIORITY, *notes] if rows else []
    return described("priority", rows, said=said, notes=notes, missing=missing)


def under_roofs(subjects: Sequence[FigureSubject]) -> Figure:
    """Kernels under the roofs of the device, a chart per configuration; areas are their times."""
    rows: list[tuple[Cell | float, ...]] = []
    notes: list[str] = []
    said: list[tuple[str, str]] = []
    roofs: dict[str, Roof] = {}
    for subject, table in _tables(subjects):
        device = subject.device
        points = roofline(table, family, peaks_of_device(device.slug), device.arch)
        drawn = [point for point in points.kernels[:_UNDER_ROOFS] if point.flop_per_byte]
        rows += [
            (
                *(subject.label, short_name(point.name), point.family, point.flop_per_byte),
                *(point.flop_per_second, point.share_of_roof, point.roof),
                *(point.nanoseconds, point.dram_bytes),
            )
            for point in drawn
        ]
        if not drawn:
            continue
        notes += [*_together(subject.label, points.step), *points.missing]
        roofs.update((roof.name, roof) for roof in _roofs(points))
        if points.step.roof is not None and points.step.share_of_roof is not None:
            reached = f"{100 * points.step.share_of_roof:.0f} % of {points.step.roof}"
            said.append((reached, subject.label))
    missing = missing_metrics(subjects, (*_FLOP_METRICS, DRAM_BYTES), per_kernel=True)
    drawn_roofs = tuple(roofs.values())
    return described("roofline", rows, said=said, notes=notes, missing=missing, roofs=drawn_roofs)


def _together(label: str, step: Point) -> Iterator[str]:
    """Where all kernels of a step stand."""
    if step.flop_per_second is not None and step.flop_per_byte is not None:
        rate = cell_text(quantity(step.flop_per_second, "FLOP/s"))
        yield f"All kernels of {label} together: {rate} at {step.flop_per_byte:.3g} FLOP per byte."


def _roofs(points: Roofline) -> Iterator[Roof]:
    """A roof for each kind of arithmetic that the kernels do, at the device's published peak."""
    if points.peaks is None:
        return
    for kind, work in points.step.flop.items():
        top = points.peaks.flop_per_second.get(kind)
        if work and top:
            yield Roof(kind, points.peaks.bytes_per_second, top)


def by_kernel(table: KernelTable) -> list[LaunchedGroup]:
    """The kernels, copies and fills of a table, those that took most time first.

    Kernels that read the same are one: those of one algorithm in several variants.
    """
    launches, duration = name_sums(table)
    return _added(
        LaunchedGroup(short_name(name), family(name), name, launches[index], duration[index])
        for index, name in enumerate(table.names)
    )


def by_family(table: KernelTable) -> list[LaunchedGroup]:
    """The same by family, the one that took most time first."""
    return _added(replace(one, name=one.family) for one in by_kernel(table))


def _added(kernels: Iterable[LaunchedGroup]) -> list[LaunchedGroup]:
    groups: dict[tuple[str, str], list[LaunchedGroup]] = {}
    for one in kernels:
        groups.setdefault((one.name, one.family), []).append(one)
    sums = [
        replace(
            group[0],
            launches=sum(one.launches for one in group),
            duration=sum(one.duration for one in group),
        )
        for group in groups.values()
    ]
    return sorted(sums, key=lambda one: -one.duration)


def _tables(subjects: Sequence[FigureSubject]) -> Iterator[tuple[FigureSubject, KernelTable]]:
    for subject in subjects:
        if subject.kernels is not None:
            yield subject, subject.kernels


def _counted(one: LaunchedGroup, total: float) -> tuple[Cell | float, ...]:
    return one.duration, share(one.duration, total), one.launches


def _idle(subjects: Sequence[FigureSubject]) -> Iterator[str]:
    idle = [f"{units.value(table.idle, 'ns')} in {s.label}" for s, table in _tables(subjects)]
    if idle:
        yield f"Time in which nothing ran on the GPU is no part of it: {', '.join(idle)}."
