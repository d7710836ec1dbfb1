"""The figures of the step: its metrics by configuration beside what the paper gives, its phases,
and its instructions (the paper's figures 4, 7 and 9).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from pytest_gpuperf.analysis import mix
from pytest_gpuperf.analysis.mix import PIPES, SASS, InstructionMix, Mix, paper_classes
from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.report.html.figure import (
    Cell,
    Figure,
    cell_text,
    described,
    description,
    quantity,
    ratio,
    share,
)
from pytest_gpuperf.report.html.figures import paper_figures
from pytest_gpuperf.report.html.subject import (
    FigureSubject,
    having,
    missing_metrics,
    short_name,
)

_HERE = "here"
_RELATIVE = "here, relative"
_NO_COUNTS = "This run has none: they are counted on a CPU, and memory on a GPU too"
_NO_PHASES = "This run has no phases: a step names them by `with gpuperf.phase(...)`"
_TIMES = ("step_time", "wall_time")
"""The time of a step, the best first: a run of a CPU has no step_time."""
_PHASE_METRICS = (
    "cycles", "instructions", "ipc", "tensor_utilization", "dram_throughput", "flops", "operators",
    "layout_copies", "layout_copy_bytes", "saved_bytes",
)  # fmt: skip
"""What is shown of each phase, where it was measured."""
_SPENT = {"cycles": "cycles", "flops": "FLOP"}
"""What a phase takes its part of: without a GPU nobody counts cycles."""
_STEP = "the whole step"
_PAPER_STACK = (
    "Paper, dominant kernel of 100 launches: V100 IPC 2.38 with 78 % FP; A100 42 % INT and 25 % "
    "FP; H100 more than 50 % UD and 2 % FP."
)


def ipc(subjects: Sequence[FigureSubject]) -> Figure:
    """IPC against the time of a step, one point per configuration."""
    time = next((n for n in _TIMES if any(s.value(n) is not None for s in subjects)), _TIMES[0])
    known = catalogue().metrics
    timed = having(subjects, time)
    conclusion = ""
    if timed:
        least, fastest = min(timed, key=lambda entry: entry[0])
        said = f"{fastest.label} is the fastest, {units.value(least, known[time].unit)} a step"
        conclusion = f"{said if len(timed) > 1 else 'To the left is faster'}. "
        conclusion += "A high IPC does not make a step fast: the work it does counts as well."
    return described(
        "ipc-time",
        (
            (s.label, quantity(t, known[time].unit), quantity(s.value("ipc"), known["ipc"].unit))
            for t, s in timed
        ),
        conclusion=conclusion,
        notes=("The paper's figure 2 compares models, whose values it does not print.",),
        missing=missing_metrics(subjects, (time, "ipc")),
    )


def work(subjects: Sequence[FigureSubject]) -> Figure:
    """Cycles, instructions and IPC, relative to the first configuration (section 6.1)."""
    base = subjects[0].value("cycles") if subjects else None
    conclusion = ""
    if base and len(subjects) > 1:
        least, best = min(having(subjects, "cycles"), key=lambda entry: entry[0])
        factor = cell_text(ratio(least, base))
        conclusion = (
            f"{best.label} needs the fewest cycles: {factor} of {subjects[0].label}'s. IPC alone "
            "says little: slow code that spins has a high one."
        )
    return metric_bars(subjects, "work", conclusion=conclusion)


def counts(subjects: Sequence[FigureSubject]) -> Figure:
    """What is counted without a GPU, as far as it was: nothing of it is missed on a GPU."""
    figure = metric_bars(subjects, "counts")
    return replace(figure, missing="" if figure.rows else _NO_COUNTS)


def stalls(subjects: Sequence[FigureSubject]) -> Figure:
    """Why warps wait, relative to the first configuration."""
    measured = {metric for subject in subjects for metric in subject.values}
    others = [n for n in catalogue().metrics if n.startswith("stall_") and n in measured]
    return metric_bars(subjects, "stalls", others)


def metric_bars(
    subjects: Sequence[FigureSubject],
    key: str,
    others: Sequence[str] = (),
    *,
    conclusion: str = "",
) -> Figure:
    """A chart per metric, a bar per configuration, the paper's beside it.

    The metrics are those described, then `others`. Where the description says `relative`, to the
    first subject; one subject alone is shown as it is.
    """
    known = description(key)
    metrics = tuple(dict.fromkeys([*known["metrics"], *others]))
    relative = known.get("relative", False) and len(subjects) > 1
    published = paper_figures.relative if relative else paper_figures.absolute
    here = [(metric, s) for metric in metrics for _, s in having(subjects, metric)]
    gpus = paper_figures.gpus_of(here, published)
    rows: list[tuple[Cell, ...]] = []
    for metric, subject in here:
        value = subject.value(metric)
        row: list[Cell] = [metric, subject.label, quantity(value, catalogue().metrics[metric].unit)]
        row += [ratio(value, subjects[0].value(metric))] if relative else []
        rows.append((*row, *(published(metric, subject, gpu) for gpu in gpus)))
    drawn = paper_figures.drawn_columns(gpus, subjects)
    return described(
        key,
        rows,
        conclusion=conclusion or _most(subjects, known) + known["conclusion"],
        columns=[*([_RELATIVE] if relative else []), *map(paper_figures.column, gpus)],
        values=[_RELATIVE if relative else _HERE, *drawn],
        published=drawn,
        notes=[paper_figures.PROTOCOL] if gpus else [],
        missing=missing_metrics(subjects, metrics),
    )


def _most(subjects: Sequence[FigureSubject], known: Mapping[str, str]) -> str:
    """A sentence about the subject with the highest value; "" where there is none."""
    metric = known.get("most", "")
    values = having(subjects, metric)
    if not values:
        return ""
    value, highest = max(values, key=lambda entry: entry[0])
    shown = units.value(value, catalogue().metrics[metric].unit)
    return known["says"].format(label=highest.label, value=shown)


def phases(subjects: Sequence[FigureSubject]) -> Figure:
    """A chart per metric, the phases of each configuration beside each other."""
    known = catalogue().metrics
    rows: list[tuple[Cell, ...]] = []
    for metric in _PHASE_METRICS:
        unit, additive = known[metric].unit, known[metric].additive
        if not any(subject.value(metric, p) for subject in subjects for p in subject.phases):
            continue  # of what occurs nowhere there is no chart
        for subject in subjects:
            whole = subject.value(metric) if additive else None
            for phase in subject.phases:
                value = subject.value(metric, phase)
                if value is not None:
                    cells = quantity(value, unit), share(value, whole)
                    rows.append((metric, subject.label, phase, *cells))
    missing = "" if rows else _NO_PHASES
    return described("phases", rows, conclusion=_longest_phase(subjects), missing=missing)


def _longest_phase(subjects: Sequence[FigureSubject]) -> str:
    """In which phase most of it goes, in the first subject that has them; "" where none has."""
    for subject, metric in itertools.product(subjects, _SPENT):
        whole = subject.value(metric)
        spent = [(subject.value(metric, phase), phase) for phase in subject.phases]
        known = [(value, phase) for value, phase in spent if value is not None]
        if known and whole:
            value, phase = max(known)
            return (
                f"{phase} takes {100 * value / whole:.0f} % of the {_SPENT[metric]} of "
                f"{subject.label}: what is saved there counts most."
            )
    return ""


def stack(subjects: Sequence[FigureSubject]) -> Figure:
    """The IPC of the kernel that takes longest, by the class of its instructions."""
    rows: list[tuple[Cell | float, ...]] = []
    notes: list[str] = []
    said: list[tuple[str, str]] = []
    for subject in subjects:
        mixes = subject.instructions
        if mixes is None or mixes.dominant is None:
            continue
        dominant = mixes.dominant
        classes = dominant.pipe_classes
        notes += [*mixes.missing, *classes.missing]
        kernel = short_name(dominant.of)
        rows += [(subject.label, kernel, part.name, part.share, part.ipc) for part in classes.parts]
        largest = _largest(classes)
        if largest and dominant.ipc is not None:
            stacked = f"{kernel} at IPC {dominant.ipc:.3g}, mostly {largest},"
            said.append((stacked, subject.label))
    notes = [*_legend(rows), *([_PAPER_STACK] if rows else []), *notes]
    missing = missing_metrics(subjects, PIPES, per_kernel=True)
    return described("ipc-stack", rows, said=said, notes=notes, missing=missing)


def by_pipe(subjects: Sequence[FigureSubject]) -> Figure:
    """Warp instructions of each family by the pipe that executes them, in the paper's classes."""
    return _mix_figure("instruction-mix", subjects, PIPES, attrgetter("pipe_classes"))


def by_sass(subjects: Sequence[FigureSubject]) -> Figure:
    """Thread instructions of each family by SASS class, in the paper's classes."""
    return _mix_figure("sass-mix", subjects, SASS, attrgetter("sass_classes"))


def _mix_figure(
    key: str,
    subjects: Sequence[FigureSubject],
    metrics: Sequence[str],
    classes: Callable[[InstructionMix], Mix],
) -> Figure:
    """A chart per configuration, a stack per family and one of the step."""
    rows: list[tuple[Cell | float, ...]] = []
    notes: list[str] = []
    said: list[tuple[str, str]] = []
    for subject in subjects:
        whole = mix.instruction_mix(subject.values, subject.device.arch)
        groups = [(_STEP, classes(whole))]
        mixes = subject.instructions
        if mixes is not None:
            groups += [(one.of, classes(one)) for one in mixes.families]
            notes += mixes.missing
        for name, one in groups:
            notes += one.missing if one.parts else ()
            rows += [
                (subject.label, name, part.name, part.share, quantity(part.value, one.unit))
                for part in one.parts
            ]
        largest = next((text for _, one in groups if (text := _largest(one))), "")
        said += [(largest, subject.label)] if largest else []
    missing = missing_metrics(subjects, metrics, per_kernel=True)
    return described(key, rows, said=said, notes=[*_legend(rows), *notes], missing=missing)


def _legend(rows: Sequence[Sequence[Cell | float]]) -> Iterator[str]:
    """What the classes are, of those that are there."""
    there = {row[2] for row in rows}
    meanings = [f"{c.name} {c.meaning}" for c in paper_classes() if c.name in there]
    if meanings:
        yield f"Classes: {', '.join(meanings)}."


def _largest(classes: Mix) -> str:
    known = [(part.share, part.name) for part in classes.parts if part.share is not None]
    if not known:
        return ""
    share, name = max(known)
    return f"{name} ({100 * share:.0f} %)"
