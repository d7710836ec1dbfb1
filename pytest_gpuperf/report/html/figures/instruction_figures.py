"""Which instructions are executed: the IPC stack and the instruction mix (figures 4, 7 and 9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pytest_gpuperf.analysis import mix
from pytest_gpuperf.analysis.mix import PAPER_CLASSES, PIPES, SASS, InstructionMix, Mix
from pytest_gpuperf.report.html import overview
from pytest_gpuperf.report.html.figure import Cell, Figure, Plot, Shape, of_each, quantity, sentence
from pytest_gpuperf.report.html.subject import FigureSubject, short_name

_STEP = "the whole step"
_SHARE, _IPC = "share of instructions", "IPC"
_PAPER_STACK = (
    "Paper, dominant kernel of 100 launches: V100 IPC 2.38 with 78 % FP; A100 42 % INT and 25 % "
    "FP; H100 more than 50 % UD and 2 % FP."
)


def stack(subjects: Sequence[FigureSubject]) -> Figure:
    """The IPC of the kernel that takes longest, by the class of its instructions."""
    rows: list[tuple[Cell, ...]] = []
    notes: list[str] = []
    said: list[tuple[str, str]] = []
    for subject in subjects:
        found = subject.instructions
        if found is None or found.dominant is None:
            continue
        classes = found.dominant.pipe_classes
        notes += [*found.missing, *classes.missing]
        kernel = short_name(found.dominant.of)
        rows += [
            (
                subject.label,
                kernel,
                part.name,
                quantity(_percent(part.share), "%"),
                quantity(part.ipc, "instructions/cycle"),
            )
            for part in classes.parts
        ]
        largest = _largest(classes)
        if largest and found.dominant.ipc is not None:
            stacked = f"{kernel} runs at IPC {found.dominant.ipc:.3g}, mostly {largest},"
            said.append((stacked, subject.label))
    return Figure(
        key="ipc-stack",
        title="What the IPC of the dominant kernel is made of",
        conclusion=sentence(of_each(said))
        + "A kernel whose IPC is mostly addresses, moves and control does little arithmetic.",
        columns=("configuration", "kernel", "class", _SHARE, _IPC),
        rows=tuple(rows),
        plot=Plot(Shape.STACK, name="configuration", values=(_IPC,), series="class")
        if rows
        else None,
        source="figure 4",
        notes=tuple(dict.fromkeys([*_legend(rows), *([_PAPER_STACK] if rows else []), *notes])),
        missing=overview.missing_metrics(subjects, PIPES, per_kernel=True),
    )


def by_pipe(subjects: Sequence[FigureSubject]) -> Figure:
    """Warp instructions of each family by the pipe that executes them, in the paper's classes."""
    return _mix_figure(
        subjects,
        key="instruction-mix",
        title="Which instructions each family of kernels executes, by pipe",
        metrics=PIPES,
        classes=lambda found: found.pipe_classes,
    )


def by_sass(subjects: Sequence[FigureSubject]) -> Figure:
    """Thread instructions of each family by SASS class, in the paper's classes."""
    return _mix_figure(
        subjects,
        key="sass-mix",
        title="Which instructions each family of kernels executes, by SASS class",
        metrics=SASS,
        classes=lambda found: found.sass_classes,
    )


def _mix_figure(
    subjects: Sequence[FigureSubject],
    *,
    key: str,
    title: str,
    metrics: Sequence[str],
    classes: Callable[[InstructionMix], Mix],
) -> Figure:
    """A chart per configuration, a stack per family and one of the step."""
    rows: list[tuple[Cell, ...]] = []
    notes: list[str] = []
    said: list[tuple[str, str]] = []
    for subject in subjects:
        whole = mix.instruction_mix(subject.values, subject.device.arch)
        groups = [(_STEP, classes(whole))]
        found = subject.instructions
        if found is not None:
            groups += [(one.of, classes(one)) for one in found.families]
            notes += found.missing
        for name, one in groups:
            notes += one.missing if one.parts else ()
            rows += [
                (
                    subject.label,
                    name,
                    part.name,
                    quantity(_percent(part.share), "%"),
                    quantity(part.value, one.unit),
                )
                for part in one.parts
            ]
        largest = next((text for _, one in groups if (text := _largest(one))), "")
        said += [(f"the step is mostly {largest}", subject.label)] if largest else []
    return Figure(
        key=key,
        title=title,
        conclusion=sentence(of_each(said))
        + "Integer and control work around little arithmetic is overhead of small kernels.",
        columns=("configuration", "family", "class", _SHARE, "instructions"),
        rows=tuple(rows),
        plot=Plot(
            Shape.STACK,
            name="family",
            values=(_SHARE,),
            series="class",
            panel="configuration",
            most=100.0,
        )
        if rows
        else None,
        source="figures 7 and 9",
        notes=tuple(dict.fromkeys([*_legend(rows), *notes])),
        missing=overview.missing_metrics(subjects, metrics, per_kernel=True),
    )


def _legend(rows: Sequence[Sequence[Cell]]) -> Iterator[str]:
    """What the classes are, of those that are there."""
    there = {row[2] for row in rows}
    meanings = [f"{c.name} {c.meaning}" for c in PAPER_CLASSES if c.name in there]
    if meanings:
        yield f"Classes: {', '.join(meanings)}."


def _largest(found: Mix) -> str:
    known = [(part.share, part.name) for part in found.parts if part.share is not None]
    if not known:
        return ""
    share, name = max(known)
    return f"{name} ({100 * share:.0f} %)"


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
