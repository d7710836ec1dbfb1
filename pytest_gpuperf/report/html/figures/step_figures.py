"""Figures of the step's metrics by configuration, beside what the paper gives."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.report.html import overview
from pytest_gpuperf.report.html.figure import Cell, Figure, Plot, Shape, cell_text, quantity, ratio
from pytest_gpuperf.report.html.figures import paper_figures
from pytest_gpuperf.report.html.subject import FigureSubject

HERE = "here"
RELATIVE = "here, relative"


def work(subjects: Sequence[FigureSubject]) -> Figure:
    """Cycles, instructions and IPC, relative to the first configuration (section 6.1)."""
    best = _extreme(subjects, "cycles", least=True)
    cycles = [(s, s.value("cycles")) for s in subjects]
    base = cycles[0][1] if cycles else None
    conclusion = "Fewer cycles is faster; fewer instructions is less work."
    if best and base and len(subjects) > 1:
        factor = cell_text(ratio(best.value("cycles"), base))
        conclusion = (
            f"{best.label} needs the fewest cycles: {factor} of {subjects[0].label}'s. IPC alone "
            "says little: slow code that spins has a high one."
        )
    return _figure(
        "work",
        "Cycles, instructions and IPC of the step, by configuration",
        conclusion,
        "section 6.1",
        subjects,
        ("cycles", "instructions", "ipc"),
        relative=True,
    )


def utilisation(subjects: Sequence[FigureSubject]) -> Figure:
    """How busy the pipes of the SMs are (figure 10)."""
    return _figure(
        "utilisation",
        "How busy tensor cores, FMA and integer pipes are, and the busiest unit of the SM",
        _most(
            subjects,
            "tensor_utilization",
            "The tensor cores are busiest in {label}: {value} of their peak.",
            "What is left to the peak is time in which the SMs waited or did other work.",
        ),
        "figure 10",
        subjects,
        ("tensor_utilization", "fma_utilization", "int_alu_utilization", "sm_throughput"),
    )


def memory(subjects: Sequence[FigureSubject]) -> Figure:
    """Hit rates of the caches and the share of DRAM's bandwidth (figure 11)."""
    return _figure(
        "memory",
        "L1 and L2 hit rates, and the share of DRAM bandwidth in use",
        _most(
            subjects,
            "dram_throughput",
            "DRAM is busiest in {label}: {value} of its bandwidth.",
            "A step near 100 % is bound by memory: fewer bytes make it faster, fewer FLOP do not.",
        ),
        "figure 11",
        subjects,
        ("l1_hit_rate", "l2_hit_rate", "dram_throughput"),
    )


def warps(subjects: Sequence[FigureSubject]) -> Figure:
    """Warps that are resident per cycle, relative to the first configuration (figure 12)."""
    return _figure(
        "warps",
        "Active warps per cycle, relative to the first configuration",
        _most(
            subjects,
            "active_warps",
            "{label} keeps most warps resident: {value} per active cycle.",
            "Many warps hide latency; they are no work by themselves.",
        ),
        "figure 12",
        subjects,
        ("active_warps",),
        relative=True,
    )


def stalls(subjects: Sequence[FigureSubject]) -> Figure:
    """Why warps wait, relative to the first configuration (figure 13)."""
    known = catalogue().metrics
    named = ("stall_long_scoreboard", "stall_math_pipe_throttle", "stall_branch_resolving")
    others = [
        name
        for name in known
        if name.startswith("stall_")
        and name not in named
        and any(subject.value(name) is not None for subject in subjects)
    ]
    return _figure(
        "stalls",
        "Warps that wait per issued instruction: for memory, for a math pipe, for a branch",
        _most(
            subjects,
            "stall_long_scoreboard",
            "Waiting for memory is worst in {label}: {value} warps per issued instruction.",
            "A stall matters where too few other warps are ready to hide it.",
        ),
        "figure 13",
        subjects,
        (*named, *others),
        relative=True,
    )


def _figure(
    key: str,
    title: str,
    conclusion: str,
    source: str,
    subjects: Sequence[FigureSubject],
    metrics: Sequence[str],
    *,
    relative: bool = False,
) -> Figure:
    """A chart per metric, a bar per configuration, the paper's beside it.

    Where they are `relative`, to the first subject; one subject alone is shown as it is.
    """
    relative = relative and len(subjects) > 1
    known = catalogue().metrics
    gpus = _gpus(subjects, metrics, relative)
    rows: list[tuple[Cell, ...]] = []
    for metric in metrics:
        base = subjects[0].value(metric) if subjects else None
        for subject in subjects:
            value = subject.value(metric)
            if value is None:
                continue
            row: list[Cell] = [metric, subject.label, quantity(value, known[metric].unit)]
            row += [ratio(value, base)] if relative else []
            row += [_published(subject, metric, gpu, relative) for gpu in gpus]
            rows.append(tuple(row))
    shown = RELATIVE if relative else HERE
    own = [
        paper_figures.GPUS[s.device.arch] for s in subjects if s.device.arch in paper_figures.GPUS
    ]
    drawn = [f"paper, {gpu}" for gpu in gpus if gpu in own]
    columns = ["metric", "configuration", HERE, *([RELATIVE] if relative else [])]
    return Figure(
        key=key,
        title=title,
        conclusion=conclusion,
        columns=(*columns, *(f"paper, {gpu}" for gpu in gpus)),
        rows=tuple(rows),
        plot=Plot(
            Shape.BARS,
            name="configuration",
            values=(shown, *drawn),
            panel="metric",
            published=tuple(drawn),
        )
        if rows
        else None,
        source=source,
        notes=(paper_figures.PROTOCOL,) if gpus else (),
        missing=overview.missing_metrics(subjects, metrics),
    )


def _gpus(subjects: Sequence[FigureSubject], metrics: Sequence[str], relative: bool) -> list[str]:
    """The paper's GPUs of which it gives any of these values."""
    return [
        gpu
        for gpu in paper_figures.GPUS.values()
        if any(
            _published(subject, metric, gpu, relative) is not None
            for subject in subjects
            for metric in metrics
            if subject.value(metric) is not None
        )
    ]


def _published(subject: FigureSubject, metric: str, gpu: str, relative: bool) -> Cell:
    if subject.first.suite != paper_figures.SUITE:
        return None
    find = paper_figures.relative if relative else paper_figures.absolute
    return find(metric, subject.configuration, gpu)


def _most(subjects: Sequence[FigureSubject], metric: str, says: str, else_says: str) -> str:
    """A sentence about the subject with the highest value, and one that holds for all."""
    highest = _extreme(subjects, metric, least=False)
    if highest is None:
        return else_says
    value = highest.value(metric)
    assert value is not None
    shown = units.value(value, catalogue().metrics[metric].unit)
    return f"{says.format(label=highest.label, value=shown)} {else_says}"


def _extreme(
    subjects: Sequence[FigureSubject], metric: str, *, least: bool
) -> FigureSubject | None:
    found = [(value, s) for s in subjects if (value := s.value(metric)) is not None]
    if not found:
        return None
    pick = min if least else max
    return pick(found, key=lambda entry: entry[0])[1]


# The phases of the step side by side.

_METRICS = (
    "cycles", "instructions", "ipc", "tensor_utilization", "dram_throughput", "flops", "operators",
)  # fmt: skip
"""What is shown of each phase, where it was measured."""


def phases(subjects: Sequence[FigureSubject]) -> Figure:
    """A chart per metric, the phases of each configuration beside each other."""
    known = catalogue().metrics
    rows: list[tuple[Cell, ...]] = []
    for metric in _METRICS:
        for subject in subjects:
            whole = subject.value(metric)
            for phase in subject.phases:
                value = subject.value(metric, phase)
                if value is None:
                    continue
                share = value / whole * 100 if known[metric].additive and whole else None
                rows.append(
                    (
                        metric,
                        subject.label,
                        phase,
                        quantity(value, known[metric].unit),
                        quantity(share, "%"),
                    )
                )
    return Figure(
        key="phases",
        title="The phases of the step side by side",
        conclusion=_conclusion(subjects),
        columns=("metric", "configuration", "phase", "value", "share of the step"),
        rows=tuple(rows),
        plot=Plot(
            Shape.BARS, name="configuration", values=("value",), series="phase", panel="metric"
        )
        if rows
        else None,
        missing=""
        if rows
        else "This run has no phases: a step names them by `with gpuperf.phase(...)`",
    )


def _conclusion(subjects: Sequence[FigureSubject]) -> str:
    """In which phase most cycles go, in the first subject that has them."""
    for subject in subjects:
        whole = subject.value("cycles")
        found = [(subject.value("cycles", phase), phase) for phase in subject.phases]
        known = [(value, phase) for value, phase in found if value is not None]
        if known and whole:
            value, phase = max(known)
            return (
                f"{phase} takes {100 * value / whole:.0f} % of the cycles of {subject.label}: what "
                "is saved there counts most."
            )
    return "The longest phase is where a saving counts most."


# IPC against step time (the paper's figure 2).

_TIMES = ("step_time", "wall_time")
"""The time of a step, the best first: a run of a CPU has no step_time."""


def ipc(subjects: Sequence[FigureSubject]) -> Figure:
    """One point per configuration."""
    time = _first(subjects, _TIMES)
    rate = "ipc"
    known = catalogue().metrics
    found = [
        (subject, subject.value(time), subject.value(rate))
        for subject in subjects
        if subject.value(time) is not None
    ]
    drawn = any(value is not None for _, _, value in found)
    conclusion = "To the left is faster; higher is busier."
    timed = [(t, s) for s, t, _ in found if t is not None]
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
            (s.label, quantity(t, known[time].unit), quantity(v, known[rate].unit))
            for s, t, v in found
        ),
        plot=Plot(
            Shape.POINTS, name="configuration", values=("step time", "IPC"), series="configuration"
        )
        if drawn
        else None,
        source="figure 2",
        notes=("The paper's figure 2 compares models, whose values it does not print.",),
        missing=overview.missing_metrics(subjects, (time, rate)),
    )


def _first(subjects: Sequence[FigureSubject], names: Sequence[str]) -> str:
    return next((n for n in names if any(s.value(n) is not None for s in subjects)), names[0])
