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
    Family,
    Group,
    absent,
    existing,
    groups,
    lacking,
    left_out,
    ratio,
    whole,
)
from pytest_gpuperf.catalogue import yaml_table
from pytest_gpuperf.model.measurement import STEP, KernelTable

THREADS = "thread_instructions"
"""The metric of all thread instructions, whatever their class."""
_ROUNDING = 1e-3
"""Counters of several passes differ by some parts in 100,000 of identical work."""
REST = "rest"
"""Instructions of no pipe, or of no SASS class, that is counted."""


_CLASSES = Path(__file__).with_name("instruction_classes.yaml")
"""The classes of the paper's figures 4, 7 and 9, in its order, and what each is made of here: no
pipes, or no SASS classes, where none tells these instructions from others."""
_By = Literal["pipes", "sass"]
_WHOLE = {"pipes": launch_totals.INSTRUCTIONS, "sass": THREADS}
"""The metrics of all instructions."""
_UNITS = {"pipes": "instructions", "sass": "thread instructions"}


def meanings() -> dict[str, str]:
    """The meaning of each of the paper's classes, by name."""
    return {name: of["meaning"] for name, of in yaml_table(_CLASSES).items()}


@cache
def members(by: _By) -> Mapping[str, Sequence[str]]:
    """The metrics of each class's parts, in the order of the classes."""
    return {name: of[by] for name, of in yaml_table(_CLASSES).items()}


@cache
def _parts(by: _By) -> tuple[str, ...]:
    """The metrics of all classes."""
    return tuple(name for own in members(by).values() for name in own if name != REST)


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
    return InstructionMix(
        of=of,
        ipc=rate,
        pipe_classes=_mix("pipes", values, rate, arch),
        sass_classes=_mix("sass", values, rate, arch),
    )


def instruction_mixes(table: KernelTable, family: Family, arch: str) -> MixBreakdown:
    """The instruction mixes of a table: of each family, and of the dominant kernel.

    By `instruction_mix`, of counts added up over launches. The dominant kernel's `pipe_classes` are
    its IPC stack (figure 4).
    """
    everything = whole(table)
    wanted = (*_parts("pipes"), *_parts("sass"), THREADS, *launch_totals.COUNTS)
    there = [metric for metric in wanted if metric in everything.metrics]
    _, without = everything.sums(there)

    def mix(group: Group) -> InstructionMix:
        return instruction_mix(group.sums(there)[0], arch, of=group.name)

    longest = groups(table, family)[:1]
    return MixBreakdown(
        families=tuple(mix(group) for group in groups(table, family, families=True)),
        dominant=mix(longest[0]) if longest else None,
        missing=(
            *lacking(table),
            *left_out(without, len(everything.launches), "they lack counters"),
        ),
    )


def _counted(by: _By, values: Mapping[str, float], arch: str) -> tuple[dict[str, float], list[str]]:
    """Instructions by part, and notes on them."""
    parts, all_of_them = _parts(by), _WHOLE[by]
    counts = {name: values[name] for name in parts if name in values}
    notes = [*absent(existing((*parts, all_of_them), arch), values)]
    if counts and all_of_them in values:
        rest = values[all_of_them] - sum(counts.values())
        over = ratio(-rest, values[all_of_them])
        if rest >= 0:
            counts[REST] = rest
        elif over is None or over > _ROUNDING:
            more = "" if over is None else f" by {over:.1%}"
            notes.append(
                f"the parts sum to more instructions than the whole{more}, so shares refer to the "
                "sum"
            )
    return counts, notes


def _mix(by: _By, values: Mapping[str, float], rate: float | None, arch: str) -> Mix:
    """The counts in the paper's classes; only classes with collected counts."""
    counts, notes = _counted(by, values, arch)
    there = {
        name: [counts[member] for member in own if member in counts]
        for name, own in members(by).items()
    }
    classes = {name: sum(known) for name, known in there.items() if known}
    if counts:
        uncounted = ", ".join(name for name, own in members(by).items() if not own)
        notes.append(f"no counter separates {uncounted} from the other classes")
    every = sum(classes.values())
    parts = []
    for name, value in classes.items():
        share = ratio(value, every)
        stacked = None if share is None or rate is None else share * rate
        parts.append(Part(name, value, share, stacked))
    return Mix(_UNITS[by], tuple(parts), tuple(notes))
