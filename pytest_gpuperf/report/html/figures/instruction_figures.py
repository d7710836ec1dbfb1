"""The figures of instructions: the IPC stack and the mix (the paper's figures 4, 7 and 9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

from pytest_gpuperf.analysis import mix
from pytest_gpuperf.analysis.mix import PIPES, SASS, InstructionMix, Mix, paper_classes
from pytest_gpuperf.report.html.figure import Cell, Figure, described, quantity
from pytest_gpuperf.report.html.subject import FigureSubject, missing_metrics, short_name

_STEP = "the whole step"
_PAPER_STACK = (
    "Paper, dominant kernel of 100 launches: V100 IPC 2.38 with 78 % FP; A100 42 % INT and 25 % "
    "FP; H100 more than 50 % UD and 2 % FP."
)


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
            stacked = f"{kernel} runs at IPC {dominant.ipc:.3g}, mostly {largest},"
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
        said += [(f"the step is mostly {largest}", subject.label)] if largest else []
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
