"""The figures of the report: what `figures.yaml` says of each, with the rows of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from pytest_gpuperf.analysis import launch_totals, priority
from pytest_gpuperf.analysis.mix import (
    PIPES,
    SASS,
    InstructionMix,
    Mix,
    instruction_mix,
    paper_classes,
)
from pytest_gpuperf.analysis.roofline import DRAM_BYTES, OPCODES, TENSOR, Roofline, roofline
from pytest_gpuperf.analysis.roofline import of_device as peaks_of_device
from pytest_gpuperf.catalogue import units, yaml_table
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.model.measurement import KernelTable
from pytest_gpuperf.report.html.figure import (
    RATIO,
    Cell,
    Figure,
    Plot,
    Quantity,
    Roof,
    Shape,
    cell_text,
    quantity,
    ratio,
    share,
    told,
)
from pytest_gpuperf.report.html.subject import (
    NO_GPU,
    FigureSubject,
    family,
    missing_kernels,
    missing_metrics,
    name_sums,
    portable,
    short_name,
)
from pytest_gpuperf.report.text.step_tables import COPY_TIMES, OUTSIDE

_FOLDER = Path(__file__).parent
_ACTIVITY = "--gpuperf-metrics activity"
_STEP = "the whole step"
_MOST = 15
"""Kernels that are shown by themselves, per configuration."""
_POINTS = 120
"""Kernels that have a point, per configuration."""
_UNDER_ROOFS = 40
"""Kernels under the roofs, per configuration, those that take longest."""
_NAME = 300
"""Characters of a whole name that are kept; ATen's have up to 5,000."""

_WORK = ("step_time", "cycles", "instructions", "ipc")
_COUNTS = (
    *("flops", "operators", "layout_copies"),
    *("layout_copy_bytes", "saved_bytes", "peak_memory"),
)
_NO_COUNTS = "This run has none: they are counted on a CPU, and memory on a GPU too"
_UTILISATION = (
    *("tensor_utilization", "fma_utilization", "int_alu_utilization", "sm_throughput"),
    *("l1_hit_rate", "l2_hit_rate", "dram_throughput"),
)
_STALLS = (
    "active_warps",
    *("stall_long_scoreboard", "stall_math_pipe_throttle", "stall_branch_resolving"),
)
_PHASES = (
    *("cycles", "instructions", "ipc", "tensor_utilization", "dram_throughput", "flops"),
    *("operators", "layout_copies", "layout_copy_bytes", "saved_bytes"),
)
"""What is shown of each phase, where it was measured."""
_SPENT = ("cycles", "flops")
"""What a phase takes its part of: without a GPU nobody counts cycles."""
_TIMES = {
    "kernel_time": "kernels",
    "copy_time_h2d": "copies to the device",
    "copy_time_d2h": "copies to the host",
    "copy_time_d2d": "copies on the device",
}
_SHARES = {"gpu_idle": "idle", "copy_overlap": "copies under kernels"}
_BYTES = {
    "copy_time_h2d": ("copy_bytes_h2d_pinned", "copy_bytes_h2d_pageable"),
    "copy_time_d2h": ("copy_bytes_d2h_pinned", "copy_bytes_d2h_pageable"),
    "copy_time_d2d": ("copy_bytes_d2d",),
}
_FLOP = (*(name for weights in OPCODES.values() for name in weights), *TENSOR.values(), DRAM_BYTES)

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
    """What one subject has for a figure."""

    rows: list[tuple[Cell | float, ...]] = field(default_factory=list)
    """Without the configuration, which is the first column of every figure."""
    said: str = ""
    """What is to be said of it, in a few words."""
    notes: list[str] = field(default_factory=list)
    roofs: list[Roof] = field(default_factory=list)


@dataclass(frozen=True)
class Recipe:
    """How a figure of `figures.yaml` gets its rows, and what is said where it has none."""

    rows: Callable[[FigureSubject, Sequence[FigureSubject]], Found]
    """Of one subject, among all; relative to the first of them."""
    missing: Callable[[Sequence[FigureSubject]], str]
    """What no subject has, and which flag collects it; "" where nothing is missing."""
    beside: bool = False
    """Whether something may be missing that is said beside what is there."""


def all_figures(subjects: Sequence[FigureSubject]) -> list[Figure]:
    """Every figure; one whose metrics the run lacks says which, and what collects them."""
    described = yaml_table(_FOLDER / "figures.yaml")
    return [_figure(key, known, RECIPES[key], subjects) for key, known in described.items()]


def _figure(
    key: str, known: dict[str, Any], recipe: Recipe, subjects: Sequence[FigureSubject]
) -> Figure:
    found = [(subject, recipe.rows(subject, subjects)) for subject in subjects]
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
    roofs = {roof.name: roof for _, one in found for roof in one.roofs}
    return Figure(
        key=key,
        title=known["title"],
        conclusion=said + known["conclusion"],
        columns=shown,
        rows=tuple(tuple(row[at] for at in kept) for row in rows),
        plot=_plot(known["plot"], shown, subjects, tuple(roofs.values())),
        source=known.get("source", ""),
        notes=tuple(dict.fromkeys(notes)),
        missing=recipe.missing(subjects) if recipe.beside or not rows else "",
    )


def _plot(
    known: dict[str, Any],
    columns: Sequence[str],
    subjects: Sequence[FigureSubject],
    roofs: tuple[Roof, ...],
) -> Plot | None:
    """How the columns that are there are drawn; of the paper's GPUs that of our architecture."""
    values = ["relative"] if "relative" in columns else [v for v in known["values"] if v in columns]
    own = dict.fromkeys(_paper_column(PAPER_GPUS.get(s.device.arch, "")) for s in subjects)
    published = tuple(column for column in own if column in columns)
    if len(values) < (2 if known["shape"] == Shape.POINTS.value else 1):
        return None
    return Plot(
        Shape(known["shape"]),
        known["name"],
        (*values, *published),
        series=known.get("series", ""),
        panel=known.get("panel", ""),
        published=published,
        logarithmic=tuple(known.get("logarithmic", (False, False))),
        most=known.get("most"),
        roofs=roofs,
        sizes=known["sizes"] if known.get("sizes") in columns else "",
    )


def _cell(value: Cell | float, unit: str) -> Cell:
    """A cell as it is, or of a number in this unit; "share" is 0.01 for 1 %."""
    if not isinstance(value, (int, float)):
        return value
    return quantity(100 * value, "%") if unit == "share" else quantity(float(value), unit)


# Metrics of the step


def _metrics(
    names: Sequence[str], *, relative: bool = False, others: str = ""
) -> Callable[[FigureSubject, Sequence[FigureSubject]], Found]:
    """A row per metric, what the paper gives beside it; then those that begin with `others`.

    `relative` to the first subject, where there are several.
    """

    def rows(subject: FigureSubject, subjects: Sequence[FigureSubject]) -> Found:
        found, compared = Found(), relative and len(subjects) > 1
        more = [n for n in catalogue().metrics if others and n.startswith(others)]
        for metric in dict.fromkeys([*names, *more]):
            value = subject.value(metric)
            if value is None:
                continue
            here = quantity(value, catalogue().metrics[metric].unit)
            beside = ratio(value, subjects[0].value(metric)) if compared else None
            paper = [_of_the_paper(metric, subject, gpu, compared) for gpu in PAPER_GPUS.values()]
            found.rows.append((metric, here, beside, *paper))
            found.notes += [_PROTOCOL] if any(paper) else []
        return found

    return rows


def _paper_column(gpu: str) -> str:
    return f"paper, {gpu}"


def _of_the_paper(metric: str, subject: FigureSubject, gpu: str, relative: bool) -> Cell:
    """What the paper gives of this configuration on one of its GPUs; None for nothing.

    A percentage, or relative to its Baseline; text where it gives a range.
    """
    if subject.result.first.suite != PAPER_SUITE:
        return None
    scale = yaml_table(_FOLDER / "paper_values.yaml")["relative" if relative else "absolute"]
    of_gpu = scale.get(metric, {}).get(gpu, {})
    value: float | str | None = of_gpu.get(subject.result.first.configuration)
    return Quantity(value, RATIO if relative else "%") if isinstance(value, float) else value


def _phases(subject: FigureSubject, _: Sequence[FigureSubject]) -> Found:
    found = Found()
    for metric in _PHASES:
        known = catalogue().metrics[metric]
        values = {phase: subject.value(metric, phase) for phase in subject.phases}
        whole = subject.value(metric) if known.additive else None
        # Of what occurs nowhere there is no chart.
        for phase, value in values.items() if any(values.values()) else ():
            if value is not None:
                cells = quantity(value, known.unit), share(value, whole)
                found.rows.append((metric, phase, *cells))
        if metric in _SPENT and whole and any(values.values()) and not found.said:
            value, phase = max((value or 0.0, phase) for phase, value in values.items())
            found.said = f"{phase} ({100 * value / whole:.0f} % of {metric})"
    return found


def _without_phases(_: Sequence[FigureSubject]) -> str:
    return "This run has no phases: a step names them by `with gpuperf.phase(...)`"


# What a trace has shown


def _transfers(subject: FigureSubject, subjects: Sequence[FigureSubject]) -> Found:
    """Kernels, each direction of copies in which anything is copied, overlap and idleness."""
    found, span = Found(), subject.value("gpu_span")
    for metric, name in _TIMES.items():
        value = subject.value(metric)
        if value is not None and any(one.value(metric) for one in subjects):
            sizes = {size: subject.value(size) for size in _BYTES.get(metric, ())}
            known = [size for size in sizes.values() if size is not None]
            ends = [size.rpartition("_")[2] for size, count in sizes.items() if count]
            found.rows.append(
                (
                    *(name, quantity(value, catalogue().metrics[metric].unit), share(value, span)),
                    quantity(sum(known) if known else None, "bytes"),
                    " and ".join(end for end in ends if end != "d2d") or None,
                )
            )
    for metric, name in _SHARES.items():
        value = subject.value(metric)
        if value is not None:
            found.rows.append((name, quantity(value, "%"), None, None, None))
    idle = subject.value("gpu_idle")
    found.said = "" if idle is None else f"{units.value(idle, '%')} of its span"
    return found


def _without_trace(subjects: Sequence[FigureSubject]) -> str:
    """Why there is no trace, or what takes one."""
    reasons = dict.fromkeys(
        entry.reason
        for subject in subjects
        for measurement in subject.measurements
        for entry in measurement.unsupported
        if entry.metric in ("kernel_time", *COPY_TIMES)
    )
    if reasons:
        return f"Not available here: {'; '.join(reasons)}"
    if portable(subjects):
        return f"{NO_GPU} there is nothing to trace"
    return f"This run has no trace of the step: {_ACTIVITY} takes one"


def _components(subject: FigureSubject, subjects: Sequence[FigureSubject]) -> Found:
    """Its components, the longest first, where anything was launched in one."""
    listed, inside = subject.components, _inside(subject)
    # Where all are graphs, in which nothing can be told apart, that is what there is to see.
    if listed is None or (not inside and any(map(_inside, subjects))):
        return Found()
    found = Found(said=inside[0] if inside else "")
    found.notes += [f"{subject.label}: {note}" for note in listed.notes]
    others = [one.label for one in subjects if one.components and not _inside(one)]
    if inside and others:
        why = "left out here, since nothing was launched in a component"
        found.notes.append(f"{', '.join(others)}: {why}")
    for entry in listed.entries:
        time, part = (None, None) if entry.empty else (entry.time, entry.share)
        cells = quantity(time, listed.unit), quantity(part, "%")
        found.rows.append((entry.name, *cells, entry.launches, entry.copy_time))
    return found


def _inside(subject: FigureSubject) -> list[str]:
    """The components in which something was launched, the longest first."""
    entries = subject.components.entries if subject.components else ()
    return [entry.name for entry in entries if entry.name != OUTSIDE and not entry.empty]


def _without_components(subjects: Sequence[FigureSubject]) -> str:
    """What the run lacks: the set that hears components, or their marks."""
    traced = any(subject.value("launches") is not None for subject in subjects)
    by = "" if traced or portable(subjects) else f", and is measured with {_ACTIVITY}"
    return f"This run has no components: a step names them by `with gpuperf.component(...)`{by}"


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
    launches, duration = name_sums(table)
    for index, full in enumerate(table.names):
        of = family(full)
        name = of if families else short_name(full)
        one = added.setdefault((name, of), LaunchedGroup(name, of, full))
        one.launches += launches[index]
        one.duration += duration[index]
    return sorted(added.values(), key=lambda one: -one.duration)


def _times(one: LaunchedGroup, total: float) -> tuple[Cell | float, ...]:
    return one.duration, share(one.duration, total), one.launches


def _longest(one: LaunchedGroup, total: float) -> str:
    return f"{one.name} ({100 * one.duration / total:.0f} %)" if total else ""


def _families(subject: FigureSubject, _: Sequence[FigureSubject]) -> Found:
    if subject.kernels is None:
        return Found()
    every = groups(subject.kernels, families=True)
    total = sum(one.duration for one in every)
    idle = units.value(subject.kernels.idle, "ns")
    return Found(
        [(one.name, *_times(one, total)) for one in every if one.duration],
        _longest(every[0], total) if every else "",
        [f"{subject.label}: nothing ran on the GPU for {idle}, which is no part of it."],
    )


def _kernels(subject: FigureSubject, _: Sequence[FigureSubject]) -> Found:
    every = groups(subject.kernels) if subject.kernels else []
    total = sum(one.duration for one in every)
    found = Found(said=_longest(every[0], total) if every else "")
    shown, rest = every[:_MOST], every[_MOST:]
    if rest:
        launches, duration = sum(one.launches for one in rest), sum(one.duration for one in rest)
        shown.append(LaunchedGroup(f"{len(rest):,} others", "other", "", launches, duration))
    for one in shown:
        full = one.full if len(one.full) <= _NAME else one.full[:_NAME] + "..."
        found.rows.append((one.name, one.family, *_times(one, total), full))
    return found


def _rates(subject: FigureSubject, _: Sequence[FigureSubject]) -> Found:
    """The IPC of each kernel."""
    if subject.kernels is None:
        return Found()
    totals = launch_totals.of_kernels(subject.kernels, family)
    found = Found(notes=[*totals.missing])
    for one in totals.kernels[:_POINTS]:
        rates = one.nanoseconds, one.ipc, one.geometric_mean
        found.rows.append((short_name(one.name), one.family, *rates, one.launches))
    if totals.geometric_mean is not None and totals.whole is not None:
        found.said = f"{totals.geometric_mean:.3g} and {totals.whole:.3g}"
    return found


def _priorities(subject: FigureSubject, _: Sequence[FigureSubject]) -> Found:
    """Time times estimated speedup by family (the paper's equations 1 and 2)."""
    if subject.kernels is None:
        return Found()
    scores = priority.priorities(subject.kernels, family)
    rows: list[tuple[Cell | float, ...]] = [
        (
            *(one.family, one.score, one.share, one.nanoseconds),
            *(one.speedup, one.bottleneck, one.throughput, one.launches),
        )
        for one in scores.families
    ]
    return Found(rows, scores.families[0].family if rows else "", [*scores.missing])


def _stack(subject: FigureSubject, _: Sequence[FigureSubject]) -> Found:
    """The IPC of the kernel that takes longest, by the class of its instructions."""
    mixes = subject.instructions
    if mixes is None or mixes.dominant is None:
        return Found()
    dominant, classes = mixes.dominant, mixes.dominant.pipe_classes
    kernel, largest = short_name(dominant.of), _largest(classes)
    return Found(
        [(kernel, part.name, part.share, part.ipc) for part in classes.parts],
        f"{kernel} at IPC {dominant.ipc:.3g}, mostly {largest},"
        if largest and dominant.ipc
        else "",
        [*_meanings([classes]), *mixes.missing, *classes.missing],
    )


def _instructions(of: Callable[[InstructionMix], Mix], subject: FigureSubject) -> Found:
    """Instructions of the step and of each family, in the paper's classes."""
    whole = instruction_mix(subject.values, subject.device.arch)
    mixes = subject.instructions
    parts = {_STEP: of(whole)}
    parts |= {one.of: of(one) for one in mixes.families} if mixes else {}
    found = Found(notes=[*_meanings(parts.values()), *(mixes.missing if mixes else ())])
    for name, classes in parts.items():
        found.said = found.said or _largest(classes)
        found.notes += classes.missing if classes.parts else ()
        found.rows += [(name, part.name, part.share, part.value) for part in classes.parts]
    return found


def _meanings(mixes: Iterable[Mix]) -> Iterator[str]:
    """What the classes are, of those that are there."""
    there = {part.name for one in mixes for part in one.parts}
    meanings = [f"{one.name} {one.meaning}" for one in paper_classes() if one.name in there]
    if meanings:
        yield f"Classes: {', '.join(meanings)}."


def _largest(classes: Mix) -> str:
    known = [(part.share, part.name) for part in classes.parts if part.share is not None]
    if not known:
        return ""
    part, name = max(known)
    return f"{name} ({100 * part:.0f} %)"


def _under_roofs(subject: FigureSubject, _: Sequence[FigureSubject]) -> Found:
    """Kernels under the roofs of the device; areas are their times."""
    if subject.kernels is None:
        return Found()
    device = subject.device
    points = roofline(subject.kernels, family, peaks_of_device(device.slug), device.arch)
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


def _roofs(points: Roofline) -> Iterator[Roof]:
    """A roof for each kind of arithmetic that the kernels do, at the device's published peak."""
    if points.peaks is None:
        return
    for kind, work in points.step.flop.items():
        top = points.peaks.flop_per_second.get(kind)
        if work and top:
            yield Roof(kind, points.peaks.bytes_per_second, top)


def _lacking(
    names: Sequence[str], *, per_kernel: bool = False
) -> Callable[[Sequence[FigureSubject]], str]:
    return lambda subjects: missing_metrics(subjects, names, per_kernel=per_kernel)


RECIPES = {
    "work": Recipe(_metrics(_WORK, relative=True), _lacking(_WORK), beside=True),
    "counts": Recipe(_metrics(_COUNTS), lambda _: _NO_COUNTS),
    "utilisation": Recipe(_metrics(_UTILISATION), _lacking(_UTILISATION), beside=True),
    "stalls": Recipe(
        _metrics(_STALLS, relative=True, others="stall_"), _lacking(_STALLS), beside=True
    ),
    "phases": Recipe(_phases, _without_phases),
    "transfers": Recipe(_transfers, _without_trace),
    "components": Recipe(_components, _without_components),
    "kernel-mix": Recipe(_families, missing_kernels),
    "kernels": Recipe(_kernels, missing_kernels),
    "kernel-ipc": Recipe(_rates, _lacking(launch_totals.COUNTS, per_kernel=True), beside=True),
    "priority": Recipe(_priorities, _lacking(priority.THROUGHPUTS, per_kernel=True), beside=True),
    "ipc-stack": Recipe(_stack, _lacking(PIPES, per_kernel=True), beside=True),
    "instruction-mix": Recipe(
        lambda subject, _: _instructions(attrgetter("pipe_classes"), subject),
        _lacking(PIPES, per_kernel=True),
        beside=True,
    ),
    "sass-mix": Recipe(
        lambda subject, _: _instructions(attrgetter("sass_classes"), subject),
        _lacking(SASS, per_kernel=True),
        beside=True,
    ),
    "roofline": Recipe(_under_roofs, _lacking(_FLOP, per_kernel=True), beside=True),
}
"""The figures by their keys in `figures.yaml`."""
