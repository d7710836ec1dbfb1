"""The figures of the step: its metrics by configuration beside what the paper gives, its phases."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.report.html.figure import (
    Cell,
    Figure,
    Plot,
    Shape,
    cell_text,
    quantity,
    ratio,
    share,
)
from pytest_gpuperf.report.html.figures import paper_figures
from pytest_gpuperf.report.html.subject import FigureSubject, missing_metrics

_HERE = "here"
_RELATIVE = "here, relative"
_TIMES = ("step_time", "wall_time")
"""The time of a step, the best first: a run of a CPU has no step_time."""
_PHASE_METRICS = (
    "cycles", "instructions", "ipc", "tensor_utilization", "dram_throughput", "flops", "operators",
)  # fmt: skip
"""What is shown of each phase, where it was measured."""


def ipc(subjects: Sequence[FigureSubject]) -> Figure:
    """IPC against the time of a step, one point per configuration."""
    time = next((n for n in _TIMES if any(s.value(n) is not None for s in subjects)), _TIMES[0])
    known = catalogue().metrics
    timed = [(t, s) for s in subjects if (t := s.value(time)) is not None]
    conclusion = "To the left is faster; higher is busier."
    if timed:
        least, fastest = min(timed, key=lambda entry: entry[0])
        said = f"{fastest.label} is the fastest, {units.value(least, known[time].unit)} a step"
        conclusion = f"{said if len(timed) > 1 else 'To the left is faster'}. "
        conclusion += "A high IPC does not make a step fast: the work it does counts as well."
    return Figure(
        key="ipc-time",
        title="Instructions per cycle against the time of a step",
        conclusion=conclusion,
        columns=("configuration", "step time", "IPC"),
        rows=tuple(
            (s.label, quantity(t, known[time].unit), quantity(s.value("ipc"), known["ipc"].unit))
            for t, s in timed
        ),
        plot=Plot(
            Shape.POINTS, name="configuration", values=("step time", "IPC"), series="configuration"
        ),
        source="figure 2",
        notes=("The paper's figure 2 compares models, whose values it does not print.",),
        missing=missing_metrics(subjects, (time, "ipc")),
    )


def work(subjects: Sequence[FigureSubject]) -> Figure:
    """Cycles, instructions and IPC, relative to the first configuration (section 6.1)."""
    known = [(value, s) for s in subjects if (value := s.value("cycles")) is not None]
    base = subjects[0].value("cycles") if subjects else None
    conclusion = "Fewer cycles is faster; fewer instructions is less work."
    if base and len(subjects) > 1:
        least, best = min(known, key=lambda entry: entry[0])
        factor = cell_text(ratio(least, base))
        conclusion = (
            f"{best.label} needs the fewest cycles: {factor} of {subjects[0].label}'s. IPC alone "
            "says little: slow code that spins has a high one."
        )
    return metric_bars(
        subjects,
        "work",
        "Cycles, instructions and IPC of the step, by configuration",
        ("cycles", "instructions", "ipc"),
        conclusion,
        "section 6.1",
        relative=True,
    )


def utilisation(subjects: Sequence[FigureSubject]) -> Figure:
    """How busy the pipes of the SMs are."""
    return metric_bars(
        subjects,
        "utilisation",
        "How busy tensor cores, FMA and integer pipes are, and the busiest unit of the SM",
        ("tensor_utilization", "fma_utilization", "int_alu_utilization", "sm_throughput"),
        _most(
            subjects,
            "tensor_utilization",
            "The tensor cores are busiest in {label}: {value} of their peak. ",
        )
        + "What is left to the peak is time in which the SMs waited or did other work.",
        "figure 10",
    )


def memory(subjects: Sequence[FigureSubject]) -> Figure:
    """Hit rates of the caches and the share of DRAM's bandwidth."""
    return metric_bars(
        subjects,
        "memory",
        "L1 and L2 hit rates, and the share of DRAM bandwidth in use",
        ("l1_hit_rate", "l2_hit_rate", "dram_throughput"),
        _most(subjects, "dram_throughput", "DRAM is busiest in {label}: {value} of its bandwidth. ")
        + "A step near 100 % is bound by memory: fewer bytes make it faster, fewer FLOP do not.",
        "figure 11",
    )


def warps(subjects: Sequence[FigureSubject]) -> Figure:
    """Warps that are resident per cycle, relative to the first configuration."""
    return metric_bars(
        subjects,
        "warps",
        "Active warps per cycle, relative to the first configuration",
        ("active_warps",),
        _most(
            subjects,
            "active_warps",
            "{label} keeps most warps resident: {value} per active cycle. ",
        )
        + "Many warps hide latency; they are no work by themselves.",
        "figure 12",
        relative=True,
    )


def stalls(subjects: Sequence[FigureSubject]) -> Figure:
    """Why warps wait, relative to the first configuration."""
    named = ("stall_long_scoreboard", "stall_math_pipe_throttle", "stall_branch_resolving")
    measured = {metric for subject in subjects for metric in subject.values}
    others = [n for n in catalogue().metrics if n.startswith("stall_") and n in measured]
    return metric_bars(
        subjects,
        "stalls",
        "Warps that wait per issued instruction: for memory, for a math pipe, for a branch",
        tuple(dict.fromkeys([*named, *others])),
        _most(
            subjects,
            "stall_long_scoreboard",
            "Waiting for memory is worst in {label}: {value} warps per issued instruction. ",
        )
        + "A stall matters where too few other warps are ready to hide it.",
        "figure 13",
        relative=True,
    )


def metric_bars(
    subjects: Sequence[FigureSubject],
    key: str,
    title: str,
    metrics: Sequence[str],
    conclusion: str,
    source: str,
    *,
    relative: bool = False,
) -> Figure:
    """A chart per metric, a bar per configuration, the paper's beside it.

    Where they are `relative`, to the first subject; one subject alone is shown as it is.
    """
    relative = relative and len(subjects) > 1
    published = paper_figures.relative if relative else paper_figures.absolute
    here = [(metric, s) for metric in metrics for s in subjects if s.value(metric) is not None]
    gpus = paper_figures.gpus_of(here, published)
    rows: list[tuple[Cell, ...]] = []
    for metric, subject in here:
        value = subject.value(metric)
        row: list[Cell] = [metric, subject.label, quantity(value, catalogue().metrics[metric].unit)]
        row += [ratio(value, subjects[0].value(metric))] if relative else []
        rows.append((*row, *(published(metric, subject, gpu) for gpu in gpus)))
    drawn = paper_figures.drawn_columns(gpus, subjects)
    columns = ["metric", "configuration", _HERE, *([_RELATIVE] if relative else [])]
    return Figure(
        key=key,
        title=title,
        conclusion=conclusion,
        columns=(*columns, *map(paper_figures.column, gpus)),
        rows=tuple(rows),
        plot=Plot(
            Shape.BARS,
            name="configuration",
            values=(_RELATIVE if relative else _HERE, *drawn),
            panel="metric",
            published=drawn,
        ),
        source=source,
        notes=(paper_figures.PROTOCOL,) if gpus else (),
        missing=missing_metrics(subjects, metrics),
    )


def _most(subjects: Sequence[FigureSubject], metric: str, says: str) -> str:
    """A sentence about the subject with the highest value; "" where there is none."""
    known = [(value, s) for s in subjects if (value := s.value(metric)) is not None]
    if not known:
        return ""
    value, highest = max(known, key=lambda entry: entry[0])
    shown = units.value(value, catalogue().metrics[metric].unit)
    return says.format(label=highest.label, value=shown)


def phases(subjects: Sequence[FigureSubject]) -> Figure:
    """A chart per metric, the phases of each configuration beside each other."""
    known = catalogue().metrics
    rows: list[tuple[Cell, ...]] = []
    for metric in _PHASE_METRICS:
        for subject in subjects:
            whole = subject.value(metric)
            for phase in subject.phases:
                value = subject.value(metric, phase)
                if value is None:
                    continue
                rows.append(
                    (
                        metric,
                        subject.label,
                        phase,
                        quantity(value, known[metric].unit),
                        share(value, whole) if known[metric].additive else None,
                    )
                )
    return Figure(
        key="phases",
        title="The phases of the step side by side",
        conclusion=_longest_phase(subjects),
        columns=("metric", "configuration", "phase", "value", "share of the step"),
        rows=tuple(rows),
        plot=Plot(
            Shape.BARS, name="configuration", values=("value",), series="phase", panel="metric"
        ),
        missing=""
        if rows
        else "This run has no phases: a step names them by `with gpuperf.phase(...)`",
    )


def _longest_phase(subjects: Sequence[FigureSubject]) -> str:
    """In which phase most cycles go, in the first subject that has them."""
    for subject in subjects:
        whole = subject.value("cycles")
        cycles = [(subject.value("cycles", phase), phase) for phase in subject.phases]
        known = [(value, phase) for value, phase in cycles if value is not None]
        if known and whole:
            value, phase = max(known)
            return (
                f"{phase} takes {100 * value / whole:.0f} % of the cycles of {subject.label}: what "
                "is saved there counts most."
            )
    return "The longest phase is where a saving counts most."
