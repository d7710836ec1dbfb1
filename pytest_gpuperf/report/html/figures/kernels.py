"""Which kernels the step's time goes to (the paper's figures 6 and 8)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_gpuperf.derived.ipc import COUNTS, of_kernels
from pytest_gpuperf.model import KernelTable
from pytest_gpuperf.report import numbers
from pytest_gpuperf.report.html import launched, missing, paper
from pytest_gpuperf.report.html.figure import Cell, Figure, Plot, Shape, quantity
from pytest_gpuperf.report.html.launched import Launched
from pytest_gpuperf.report.html.subject import Subject
from pytest_gpuperf.report.html.wording import of_each, sentence

_MOST = 15
"""Kernels that are shown by themselves, per configuration."""
_POINTS = 120
"""Kernels that have a point, per configuration."""
_NAME = 300
"""Characters of a whole name that are kept; ATen's have up to 5,000."""
_DENSE = ("convolution-forward", "convolution-data-gradient", "convolution-weight-gradient", "gemm")
_SHARE = "convolution and GEMM share"


def mix(subjects: Sequence[Subject]) -> Figure:
    """The share of kernel time per family, a bar per configuration."""
    rows: list[tuple[Cell, ...]] = []
    said: list[tuple[str, str]] = []
    for subject, table in _tables(subjects):
        families = launched.by_family(table)
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
        missing=missing.kernels(subjects),
    )


def convolutions(subjects: Sequence[Subject]) -> Figure:
    """The share of convolutions and matrix products, which the paper gives."""
    found = []
    for subject, table in _tables(subjects):
        families = launched.by_family(table)
        total = sum(one.duration for one in families)
        if total:
            dense = sum(one.duration for one in families if one.name in _DENSE)
            found.append((subject, 100 * dense / total))
    gpus = [
        gpu for gpu in paper.GPUS.values() if any(_published(s, gpu) is not None for s, _ in found)
    ]
    own = {paper.GPUS.get(subject.device.arch) for subject, _ in found}
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
        notes=(f"{paper.PROTOCOL}. The paper's Baseline is its dominant kernel alone.",)
        if gpus
        else (),
        missing=missing.kernels(subjects),
    )


def longest(subjects: Sequence[Subject]) -> Figure:
    """The kernels that take most time, a chart per configuration."""
    rows: list[tuple[Cell, ...]] = []
    said = ""
    for subject, table in _tables(subjects):
        found = launched.by_kernel(table)
        total = sum(one.duration for one in found)
        for one in found[:_MOST]:
            full = one.full if len(one.full) <= _NAME else one.full[:_NAME] + "..."
            rows.append((subject.label, one.name, one.family, *_counted(one, total), full))
        rest = found[_MOST:]
        if rest:
            others = Launched(
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
        missing=missing.kernels(subjects),
    )  # fmt: skip


def ipc(subjects: Sequence[Subject]) -> Figure:
    """The IPC of each kernel against the time it takes, a chart per configuration."""
    rows: list[tuple[Cell, ...]] = []
    notes: list[str] = []
    said: list[tuple[str, str]] = []
    for subject, table in _tables(subjects):
        found = of_kernels(table, launched.family)
        rows += [
            (
                subject.label,
                launched.short_name(one.name),
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
        missing=missing.metrics(subjects, COUNTS, per_kernel=True),
    )  # fmt: skip


def _tables(subjects: Sequence[Subject]) -> Iterator[tuple[Subject, KernelTable]]:
    for subject in subjects:
        if subject.kernels is not None:
            yield subject, subject.kernels


def _counted(one: Launched, total: float) -> tuple[Cell, ...]:
    share = 100 * one.duration / total if total else None
    return (
        quantity(one.duration, "ns"),
        quantity(share, "%"),
        quantity(float(one.launches), "launches"),
    )


def _idle(subjects: Sequence[Subject]) -> Iterator[str]:
    found = [
        f"{numbers.value(table.idle, 'ns')} in {subject.label}"
        for subject, table in _tables(subjects)
    ]
    if found:
        yield f"Time in which nothing ran on the GPU is no part of it: {', '.join(found)}."


def _published(subject: Subject, gpu: str) -> Cell:
    if subject.first.suite != paper.SUITE:
        return None
    return paper.absolute(_SHARE, subject.configuration, gpu)
