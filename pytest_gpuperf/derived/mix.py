"""What a step consists of: kernels by their time, and instructions by their kind.

Kernels: the share of kernel time per family (figures 6 and 8 of the paper). Instructions, twice: by
the pipe that executed them (warp instructions) and by SASS class (thread instructions whose
predicates were true), as counted, and in the classes of figures 4, 7 and 9.

The paper's classes are the headings of the instruction set reference in NVIDIA's CUDA Binary
Utilities. It counted opcodes; counters know pipes and SASS classes, which are not the same thing.
`PAPER_CLASSES` says what each class is made of here, and which have no counter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuperf.derived import ipc
from pytest_gpuperf.derived.launches import (
    STEP,
    Counters,
    Family,
    Group,
    absent,
    left_out,
    of_graphs,
    ratio,
    total,
)
from pytest_gpuperf.model import KernelTable

PIPES = (
    "pipe_fma", "pipe_fp16", "pipe_fp64", "pipe_alu", "pipe_lsu", "pipe_tex", "pipe_cbu",
    "pipe_adu", "pipe_uniform", "pipe_tensor", "pipe_xu",
)  # fmt: skip
SASS = (
    "sass_fp32", "sass_fp16", "sass_fp64", "sass_integer", "sass_bit", "sass_memory",
    "sass_control", "sass_uniform", "sass_conversion", "sass_communication", "sass_misc",
)  # fmt: skip
REST = "rest"
"""Instructions of no pipe that is counted, such as those of the tensor memory accelerator."""
_OWN_FP16_PIPE = ("sm70", "sm75", "sm80")
"""Where half precision has a pipe of its own; elsewhere pipe_fma counts its instructions, too."""
_ROUNDING = 1e-3
_NANOSECONDS, _WARPS, _THREADS = "ns", "instructions", "thread instructions"


@dataclass(frozen=True, slots=True)
class PaperClass:
    """A class of instructions of the paper's figures 4, 7 and 9, and what it is made of here."""

    name: str
    meaning: str
    pipes: tuple[str, ...]
    """Empty where no pipe tells these instructions from others."""
    sass: tuple[str, ...]
    """Empty where no SASS class does."""
    caveat: str


PAPER_CLASSES = (
    PaperClass(
        "FP",
        "floating point",
        ("pipe_fma", "pipe_fp16", "pipe_fp64"),
        ("sass_fp32", "sass_fp16", "sass_fp64"),
        "by pipe with integer multiplications (IMAD), which the FMA pipe executes, and without "
        "comparisons and minima (ALU) and special functions (XU)",
    ),
    PaperClass(
        "INT",
        "integer and logic",
        ("pipe_alu",),
        ("sass_integer", "sass_bit"),
        "by pipe without integer multiplications, and with moves, selections, comparisons and "
        "predicate logic, all of which the ALU executes",
    ),
    PaperClass(
        "LS",
        "load and store",
        ("pipe_lsu", "pipe_tex"),
        ("sass_memory",),
        "by pipe with shuffles and reads of special registers, which the LSU executes, and with "
        "textures",
    ),
    PaperClass("MV", "move", (), (), "in INT by pipe, in MISC by SASS class, where not in others"),
    PaperClass(
        "CTRL",
        "control",
        ("pipe_cbu", "pipe_adu"),
        ("sass_control",),
        "by pipe with loads of constants by address, which the ADU executes",
    ),
    PaperClass("PRED", "predicate", (), (), "in INT by pipe, in MISC or INT by SASS class"),
    PaperClass("UD", "uniform datapath", ("pipe_uniform",), ("sass_uniform",), ""),
    PaperClass(
        "TENSOR",
        "tensor cores",
        ("pipe_tensor",),
        (),
        "with HFMA2.MMA, which loads constants; the paper has no such class (its reference lists "
        "HMMA under floating point), and no SASS class has them",
    ),
    PaperClass(
        "MISC",
        "everything else",
        ("pipe_xu", REST),
        ("sass_conversion", "sass_communication", "sass_misc"),
        "by pipe special functions and conversions, and what no pipe counts",
    ),
)


@dataclass(frozen=True, slots=True)
class KernelShare:
    """The kernels of one family within a step."""

    family: str
    launches: int
    nanoseconds: float
    share: float | None
    """Of the time of all that are in the mix; None where that is 0."""


@dataclass(frozen=True, slots=True)
class KernelMix:
    """The time of a step's kernels by family."""

    unit: str
    """Of `total`."""
    total: float
    """Time of all launches in the mix, added up; gaps between them are not in it."""
    copies: bool
    """Whether the driver's copies and fills are in the mix."""
    parts: tuple[KernelShare, ...]
    """The largest first."""
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of instructions in a mix."""

    name: str
    """A metric of the catalogue, REST, or a class of the paper."""
    value: float
    """In the mix's unit."""
    share: float | None
    """Of the mix; None where it has no instructions."""
    ipc: float | None
    """share x IPC: its part of the IPC stack (figure 4). None where the IPC is not known."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Instructions by kind."""

    unit: str
    """Of `total` and of every part's value."""
    total: float
    parts: tuple[Part, ...]
    """In the order of PIPES, SASS or PAPER_CLASSES; empty where nothing was collected."""
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InstructionMix:
    """The instructions of a step, a family or a kernel, by pipe and by SASS class."""

    of: str
    """STEP, the family, or the kernel's name."""
    ipc: float | None
    """instructions/cycle, of these launches together."""
    pipes: Mix
    """Warp instructions by pipe."""
    sass: Mix
    """Thread instructions by SASS class. Part by part an IPC stack only as far as all warps have
    equally many active threads."""
    pipe_classes: Mix
    """`pipes` in the paper's classes."""
    sass_classes: Mix
    """`sass` in the paper's classes."""


@dataclass(frozen=True, slots=True)
class InstructionMixes:
    """The instruction mixes of a step's kernels."""

    step: InstructionMix
    families: tuple[InstructionMix, ...]
    """Those that take longest first."""
    dominant: InstructionMix | None
    """Of the kernel, by name, that takes longest (figure 4); None where there is no kernel."""
    missing: tuple[str, ...]


def kernel_mix(table: KernelTable, family: Family, *, copies: bool = False) -> KernelMix:
    """The share of kernel time per family (figures 6 and 8).

    share = the family's time / the time of all, over the launches' durations without counters.
    Kernels and graphs, as the paper's profiler saw them; with `copies` also the driver's copies and
    fills. `family` may group by anything: `kernels.paper_name` gives the paper's KN1 to KN8.
    """
    counters = Counters(table)
    found: dict[str, list[float]] = {}
    launches = table.launches if copies else counters.whole().launches
    for launch in launches:
        found.setdefault(family(table.names[launch.name]), []).append(launch.duration)
    times = {name: total(durations) for name, durations in found.items()}
    whole = total(times.values())
    return KernelMix(
        unit=_NANOSECONDS,
        total=whole,
        copies=copies,
        parts=tuple(
            KernelShare(name, len(found[name]), time, ratio(time, whole))
            for name, time in sorted(times.items(), key=lambda item: -item[1])
        ),
        missing=tuple(of_graphs(launches)),
    )


def instruction_mix(values: Mapping[str, float], arch: str, of: str = STEP) -> InstructionMix:
    """The instruction mix that these counts describe, such as those of a whole measured step.

    share of a pipe = its instructions / `instructions`; what is left is REST. Where the pipes have
    more than that, as an instruction may pass through two, the shares are of the pipes' sum.
    share of a SASS class = its thread instructions / those of all classes.
    """
    rate = ipc.of_step(values)
    pipes, notes = _pipes(values, arch)
    sass = {name: values[name] for name in SASS if name in values}
    absent_sass = [*absent(SASS, values)]
    return InstructionMix(
        of=of,
        ipc=rate,
        pipes=_mix(_WARPS, pipes, rate, notes),
        sass=_mix(_THREADS, sass, rate, absent_sass),
        pipe_classes=_classes(_WARPS, pipes, rate, notes, {c.name: c.pipes for c in PAPER_CLASSES}),
        sass_classes=_classes(
            _THREADS, sass, rate, absent_sass, {c.name: c.sass for c in PAPER_CLASSES}
        ),
    )


def instruction_mixes(table: KernelTable, family: Family, arch: str) -> InstructionMixes:
    """The instruction mixes of a table: of all kernels, of each family, of the dominant kernel.

    By `instruction_mix`, of counts added up over launches. The dominant kernel's `pipe_classes` are
    its IPC stack (figure 4).
    """
    counters = Counters(table)
    everything = counters.whole()
    wanted = (*PIPES, *SASS, *ipc.COUNTS)

    def mix(group: Group) -> InstructionMix:
        counts = counters.totals(group.launches, wanted)
        return instruction_mix(counts.values, arch, of=group.name)

    dominant = max(counters.by_kernel(family), key=_time, default=None)
    families = sorted(counters.by_family(family), key=_time, reverse=True)
    lacking = counters.totals(everything.launches, wanted).left_out
    return InstructionMixes(
        step=mix(everything),
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


def _pipes(values: Mapping[str, float], arch: str) -> tuple[dict[str, float], list[str]]:
    """Warp instructions by pipe, each counted once, and what is to be said of them."""
    found = {name: values[name] for name in PIPES if name in values}
    notes = [*absent((*PIPES, ipc.INSTRUCTIONS), values)]
    if arch not in _OWN_FP16_PIPE and "pipe_fma" in found and "pipe_fp16" in found:
        found["pipe_fma"] = max(found["pipe_fma"] - found["pipe_fp16"], 0.0)
    instructions = values.get(ipc.INSTRUCTIONS)
    if found and instructions is not None:
        piped = total(found.values())
        if piped > instructions:
            notes += _too_many(piped, instructions)
        else:
            found[REST] = instructions - piped
    return found, notes


def _too_many(piped: float, instructions: float) -> Iterator[str]:
    over = ratio(piped - instructions, instructions)
    # Counters of several passes differ by some parts in 100,000 of identical work.
    if over is None or over > _ROUNDING:
        more = "" if over is None else f" by {over:.1%}"
        yield (
            f"the pipes have more instructions than the kernels{more}: some pass through two, and "
            "shares are of the pipes' sum"
        )


def _classes(
    unit: str,
    found: Mapping[str, float],
    rate: float | None,
    notes: Sequence[str],
    members: Mapping[str, Sequence[str]],
) -> Mix:
    """What was found, in the paper's classes; only those of which something was collected."""
    there = {
        name: [found[member] for member in own if member in found] for name, own in members.items()
    }
    classes = {name: total(values) for name, values in there.items() if values}
    uncounted = [name for name, own in members.items() if not own]
    said = [*notes]
    if found:
        said.append(f"no counter tells {', '.join(uncounted)} from the other classes")
    return _mix(unit, classes, rate, said)


def _mix(unit: str, found: Mapping[str, float], rate: float | None, notes: Sequence[str]) -> Mix:
    whole = total(found.values())
    parts = []
    for name, value in found.items():
        share = ratio(value, whole)
        stacked = None if share is None or rate is None else share * rate
        parts.append(Part(name, value, share, stacked))
    return Mix(unit, whole, tuple(parts), tuple(notes))
