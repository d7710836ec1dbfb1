"""Which kernels the step's time goes to (the paper's figures 6 and 8)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_gpuperf.analysis.launch_totals import COUNTS, of_kernels
from pytest_gpuperf.analysis.priority import THROUGHPUTS, priorities
from pytest_gpuperf.catalogue import units
from pytest_gpuperf.model.measurement import KernelTable
from pytest_gpuperf.report.html import overview
from pytest_gpuperf.report.html.figure import Cell, Figure, Plot, Shape, of_each, quantity, sentence
from pytest_gpuperf.report.html.figures import paper_figures
from pytest_gpuperf.report.html.subject import (
    FigureSubject,
    LaunchedGroup,
    by_family,
    by_kernel,
    family,
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


def mix(subjects: Sequence[FigureSubject]) -> Figure:
    """The share of kernel time per family, a bar per configuration."""
    rows: list[tuple[Cell, ...]] = []
    said: list[tuple[str, str]] = []
    for subject, table in _tables(subjects):
        families = by_family(table)
        total = sum(one.duration for one in families)
        rows += [
            (subject.label, one.name, *_counted(one, total)) for one in families if one.duration
        ]
        if total:
            most = families[0]
            share = f"{most.name} takes {100 * most.duration / total:.0f} %"
            said.append((share, subject.label))
    return Figure(
        key="kernel-mix",
        title="Which families of kernels the time goes to",
        conclusion=sentence(of_each(said))
        + "The longest family is where a faster kernel counts most.",
        columns=("configuration", "family", "time", "share of kernel time", "launches"),
        rows=tuple(rows),
        plot=Plot(
            Shape.STACK,
            name="configuration",
            values=("share of kernel time",),
            series="family",
            most=100.0,
        )
        if rows
        else None,
        source="figures 6 and 8",
        notes=tuple(_idle(subjects)),
        missing=overview.missing_kernels(subjects),
    )


def convolutions(subjects: Sequence[FigureSubject]) -> Figure:
    """The share of convolutions and matrix products, which the paper gives."""
    found = []
    for subject, table in _tables(subjects):
        families = by_family(table)
        total = sum(one.duration for one in families)
        if total:
            dense = sum(one.duration for one in families if one.name in _DENSE)
            found.append((subject, 100 * dense / total))
    gpus = [
        gpu
        for gpu in paper_figures.GPUS.values()
        if any(_published(s, gpu) is not None for s, _ in found)
    ]
    own = {paper_figures.GPUS.get(subject.device.arch) for subject, _ in found}
    drawn = tuple(f"paper, {gpu}" for gpu in gpus if gpu in own)
    said = of_each([(f"{share:.0f} %", subject.label) for subject, share in found])
    return Figure(
        key="convolutions",
        title="How much of the kernels' time is convolutions and matrix products",
        conclusion=sentence(said)
        + "The rest is normalization, elementwise work and changes of layout, which tensor cores "
        "do not speed up.",
        columns=("configuration", "here", *(f"paper, {gpu}" for gpu in gpus)),
        rows=tuple(
            (s.label, quantity(share, "%"), *(_published(s, gpu) for gpu in gpus))
            for s, share in found
        ),
        plot=Plot(
            Shape.BARS, name="configuration", values=("here", *drawn), published=drawn, most=100.0
        )
        if found
        else None,
        source="figure 8",
        notes=(f"{paper_figures.PROTOCOL}. The paper's Baseline is its dominant kernel alone.",)
        if gpus
        else (),
        missing=overview.missing_kernels(subjects),
    )


def longest(subjects: Sequence[FigureSubject]) -> Figure:
    """The kernels that take most time, a chart per configuration."""
    rows: list[tuple[Cell, ...]] = []
    said = ""
    for subject, table in _tables(subjects):
        found = by_kernel(table)
        total = sum(one.duration for one in found)
        for one in found[:_MOST]:
            full = one.full if len(one.full) <= _NAME else one.full[:_NAME] + "..."
            rows.append((subject.label, one.name, one.family, *_counted(one, total), full))
        rest = found[_MOST:]
        if rest:
            others = LaunchedGroup(
                f"{len(rest):,} others",
                "other",
                "",
                sum(one.launches for one in rest),
                sum(one.duration for one in rest),
            )
            rows.append((subject.label, others.name, others.family, *_counted(others, total), ""))
        if found and total and not said:
            launches = found[0].launches
            said = (
                f"{found[0].name} takes {100 * found[0].duration / total:.0f} % of the kernels' "
                f"time in {subject.label}, in {launches:,} launch{'es' if launches != 1 else ''}."
            )
    return Figure(
        key="kernels",
        title="The kernels that take most time",
        conclusion=said or "A kernel at the top is worth a faster algorithm or fewer launches.",
        columns=(
            "configuration", "kernel", "family", "time", "share of kernel time", "launches",
            "whole name",
        ),
        rows=tuple(rows),
        plot=Plot(
            Shape.BARS, name="kernel", values=("time",), series="family", panel="configuration"
        )
        if rows
        else None,
        missing=overview.missing_kernels(subjects),
    )  # fmt: skip


def ipc(subjects: Sequence[FigureSubject]) -> Figure:
    """The IPC of each kernel against the time it takes, a chart per configuration."""
    rows: list[tuple[Cell, ...]] = []
    notes: list[str] = []
    said: list[tuple[str, str]] = []
    for subject, table in _tables(subjects):
        found = of_kernels(table, family)
        rows += [
            (
                subject.label,
                short_name(one.name),
                one.family,
                quantity(one.nanoseconds, "ns"),
                quantity(one.ipc, found.unit),
                quantity(one.geometric_mean, found.unit),
                quantity(float(one.launches), "launches"),
            )
            for one in found.kernels[:_POINTS]
        ]
        if found.kernels:
            notes += found.missing
        if found.geometric_mean is not None and found.whole is not None:
            rates = f"{found.geometric_mean:.3g} and {found.whole:.3g}"
            said.append((rates, subject.label))
    return Figure(
        key="kernel-ipc",
        title="Instructions per cycle of each kernel, against the time it takes",
        conclusion=(
            f"The geometric mean over kernels, which the paper takes, and the IPC of all of them "
            f"together are {of_each(said)}. "
            if said
            else ""
        )
        + "The mean weighs a kernel of 2 us like one of 20 ms; what is far right and low is worth "
        "a look.",
        columns=(
            "configuration", "kernel", "family", "time", "IPC", "geometric mean of launches",
            "launches",
        ),
        rows=tuple(rows),
        plot=Plot(
            Shape.POINTS,
            name="kernel",
            values=("time", "IPC"),
            series="family",
            panel="configuration",
            logarithmic=(True, False),
        )
        if rows
        else None,
        source="section 3",
        notes=tuple(dict.fromkeys(notes)),
        missing=overview.missing_metrics(subjects, COUNTS, per_kernel=True),
    )  # fmt: skip


def _tables(subjects: Sequence[FigureSubject]) -> Iterator[tuple[FigureSubject, KernelTable]]:
    for subject in subjects:
        if subject.kernels is not None:
            yield subject, subject.kernels


def _counted(one: LaunchedGroup, total: float) -> tuple[Cell, ...]:
    share = 100 * one.duration / total if total else None
    return (
        quantity(one.duration, "ns"),
        quantity(share, "%"),
        quantity(float(one.launches), "launches"),
    )


def _idle(subjects: Sequence[FigureSubject]) -> Iterator[str]:
    found = [
        f"{units.value(table.idle, 'ns')} in {subject.label}"
        for subject, table in _tables(subjects)
    ]
    if found:
        yield f"Time in which nothing ran on the GPU is no part of it: {', '.join(found)}."


def _published(subject: FigureSubject, gpu: str) -> Cell:
    if subject.first.suite != paper_figures.SUITE:
        return None
    return paper_figures.absolute(_SHARE, subject.configuration, gpu)


# Where work on kernels pays most: the priority score (figure 5, Equations 1 and 2).


def priority(subjects: Sequence[FigureSubject]) -> Figure:
    """Time times estimated speedup by family, a chart per configuration."""
    rows: list[tuple[Cell, ...]] = []
    notes: list[str] = []
    said: list[tuple[str, str]] = []
    for subject in subjects:
        if subject.kernels is None:
            continue
        found = priorities(subject.kernels, family)
        notes += found.missing if found.families else ()
        rows += [
            (
                subject.label,
                one.family,
                quantity(one.score, found.unit),
                quantity(None if one.share is None else 100 * one.share, "%"),
                quantity(one.nanoseconds, "ns"),
                quantity(None if one.speedup is None else 100 * one.speedup, "%"),
                one.bottleneck,
                quantity(one.throughput, "%"),
                quantity(float(one.launches), "launches"),
            )
            for one in found.families
        ]
        if found.families:
            said.append((found.families[0].family, subject.label))
    first = f"Most could be gained from {of_each(said)}. " if said else ""
    return Figure(
        key="priority",
        title="Priority scores: where a faster kernel would save most time",
        conclusion=f"{first}The score is the time of each kernel times its estimated speedup, 1 at "
        "most; it says what a perfect kernel would save, not how hard it is to write.",
        columns=(
            "configuration", "family", "priority score", "share of the score", "time",
            "estimated speedup", "bottleneck", "of its peak", "launches",
        ),
        rows=tuple(rows),
        plot=Plot(
            Shape.BARS,
            name="family",
            values=("priority score",),
            series="family",
            panel="configuration",
        )
        if rows
        else None,
        source="figure 5",
        notes=(
            "Paper: normalization has the largest sum, then tensor-core GEMMs, then elementwise "
            "kernels.",
            *dict.fromkeys(notes),
        )
        if rows
        else (),
        missing=overview.missing_metrics(subjects, THROUGHPUTS, per_kernel=True),
    )  # fmt: skip
