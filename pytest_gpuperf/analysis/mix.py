"""Instruction mixes of a step, a family or a kernel.

Each mix exists twice: by the pipe that executed the instructions (warp instructions), and by SASS
class (thread instructions whose predicates were true). The classes are those of the paper's figures
4, 7 and 9: headings of the instruction set reference in NVIDIA's CUDA Binary Utilities. The paper
counted opcodes; counters know only pipes and SASS classes. `instruction_classes.yaml` lists the
parts of each class, and the classes without a counter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from pytest_gpuperf.analysis import launch_totals
from pytest_gpuperf.analysis.launch_totals import (
    Counters,
    Family,
    Group,
    absent,
    existing,
    left_out,
    of_graphs,
    ratio,
    total,
)
from pytest_gpuperf.catalogue import yaml_table
from pytest_gpuperf.model.measurement import STEP, KernelTable

THREADS = "thread_instructions"
"""The metric of all thread instructions, whatever their class."""
_ROUNDING = 1e-3
"""Counters of several passes differ by some parts in 100,000 of identical work."""
_WARPS, _THREADS = "instructions", "thread instructions"
REST = "rest"
"""Instructions of no pipe, or of no SASS class, that is counted."""


@dataclass(frozen=True, slots=True)
class PaperClass:
    """A class of instructions of the paper's figures 4, 7 and 9, and what it is made of here."""

    name: str
    meaning: str
    pipes: tuple[str, ...]
    """Empty where no pipe tells these instructions from others."""
    sass: tuple[str, ...]
    """Empty where no SASS class does."""


@cache
def paper_classes() -> tuple[PaperClass, ...]:
    """The classes, in the paper's order."""
    known = yaml_table(Path(__file__).with_name("instruction_classes.yaml"))
    return tuple(
        PaperClass(name, of["meaning"], tuple(of["pipes"]), tuple(of["sass"]))
        for name, of in known.items()
    )


@cache
def _counted_by(parts: Literal["pipes", "sass"]) -> tuple[str, ...]:
    """The metrics of the classes' parts, in the order of the classes."""
    every = (name for one in paper_classes() for name in getattr(one, parts))
    return tuple(name for name in every if name != REST)


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of instructions in a mix."""

    name: str
    """A class of the paper."""
    value: float
    """The count, in the mix's unit."""
    share: float | None
    """The share of the mix; None if the mix has no instructions."""
    ipc: float | None
    """share x IPC: its part of the IPC stack (figure 4). None where the IPC is not known."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Instructions by kind."""

    unit: str
    """Of every part's value."""
    parts: tuple[Part, ...]
    """The parts in the order of the classes; empty if nothing was collected."""
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InstructionMix:
    """The instructions of a step, a family or a kernel, by pipe and by SASS class."""

    of: str
    """STEP, the family, or the kernel's name."""
    ipc: float | None
    """instructions/cycle, of these launches together."""
    pipe_classes: Mix
    """Warp instructions by pipe, in the paper's classes."""
    sass_classes: Mix
    """Thread instructions by SASS class, in the paper's classes. An IPC stack only as far as all
    warps have equally many active threads."""


@dataclass(frozen=True, slots=True)
class MixBreakdown:
    """The instruction mixes of a step's kernels."""

    families: tuple[InstructionMix, ...]
    """The mixes of the families, the longest first."""
    dominant: InstructionMix | None
    """The mix of the kernel (by name) that takes longest (figure 4); None without kernels."""
    missing: tuple[str, ...]


def instruction_mix(values: Mapping[str, float], arch: str, of: str = STEP) -> InstructionMix:
    """The instruction mix that these counts describe, such as those of a whole measured step.

    share of a pipe = its warp instructions / `instructions`; share of a SASS class = its thread
    instructions / `thread_instructions`. The remainder is REST. If the parts exceed the whole,
    since an instruction may pass two pipes, shares refer to the parts' sum. They also do if the
    whole was not counted. Metrics that do not exist on `arch` are not reported missing.
    """
    rate = launch_totals.of_step(values)
    pipes = _counted(values, _counted_by("pipes"), launch_totals.INSTRUCTIONS, arch)
    sass = _counted(values, _counted_by("sass"), THREADS, arch)
    return InstructionMix(
        of=of,
        ipc=rate,
        pipe_classes=_classes(_WARPS, *pipes, rate, {c.name: c.pipes for c in paper_classes()}),
        sass_classes=_classes(_THREADS, *sass, rate, {c.name: c.sass for c in paper_classes()}),
    )


def instruction_mixes(table: KernelTable, family: Family, arch: str) -> MixBreakdown:
    """The instruction mixes of a table: of each family, and of the dominant kernel.

    By `instruction_mix`, of counts added up over launches. The dominant kernel's `pipe_classes` are
    its IPC stack (figure 4).
    """
    counters = Counters(table)
    everything = counters.whole()
    wanted = (*_counted_by("pipes"), *_counted_by("sass"), THREADS, *launch_totals.COUNTS)
    _, lacking = counters.totals(everything.launches, wanted)

    def mix(group: Group) -> InstructionMix:
        counts, _ = counters.totals(group.launches, wanted)
        return instruction_mix(counts, arch, of=group.name)

    dominant = max(counters.by_kernel(family), key=_time, default=None)
    families = sorted(counters.by_family(family), key=_time, reverse=True)
    return MixBreakdown(
        families=tuple(mix(group) for group in families),
        dominant=None if dominant is None else mix(dominant),
        missing=(
            *counters.mismatch(),
            *left_out(lacking, len(everything.launches), "they lack counters"),
            *of_graphs(everything.launches),
        ),
    )


def _time(group: Group) -> float:
    return total(launch.duration for launch in group.launches)


def _counted(
    values: Mapping[str, float], parts: Sequence[str], whole: str, arch: str
) -> tuple[dict[str, float], list[str]]:
    """Instructions by part, and notes on them. `whole` is the metric of all instructions."""
    counts = {name: values[name] for name in parts if name in values}
    notes = [*absent(existing((*parts, whole), arch), values)]
    if counts and whole in values:
        every, several = values[whole], total(counts.values())
        over = ratio(several - every, every)
        if several <= every:
            counts[REST] = every - several
        elif over is None or over > _ROUNDING:
            more = "" if over is None else f" by {over:.1%}"
            notes.append(
                f"the parts sum to more instructions than the whole{more}, so shares refer to the "
                "sum"
            )
    return counts, notes


def _classes(
    unit: str,
    counts: Mapping[str, float],
    notes: Sequence[str],
    rate: float | None,
    members: Mapping[str, Sequence[str]],
) -> Mix:
    """The counts in the paper's classes; only classes with collected counts."""
    there = {
        name: [counts[member] for member in own if member in counts]
        for name, own in members.items()
    }
    classes = {name: total(values) for name, values in there.items() if values}
    uncounted = [name for name, own in members.items() if not own]
    said = [*notes]
    if counts:
        said.append(f"no counter separates {', '.join(uncounted)} from the other classes")
    whole = total(classes.values())
    parts = []
    for name, value in classes.items():
        share = ratio(value, whole)
        stacked = None if share is None or rate is None else share * rate
        parts.append(Part(name, value, share, stacked))
    return Mix(unit, tuple(parts), tuple(said))
