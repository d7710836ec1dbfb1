"""The classes of instructions of the paper's figures 4, 7 and 9, and what counters know of them.

They are the headings of the instruction set reference in NVIDIA's CUDA Binary Utilities. The paper
counted opcodes; counters know pipes and SASS classes, which are not the same thing. `PAPER_CLASSES`
says what each class is made of here, and which have no counter.
"""

from __future__ import annotations

from dataclasses import dataclass

PIPES = (
    "pipe_fma", "pipe_fp16", "pipe_fp64", "pipe_alu", "pipe_lsu", "pipe_tex", "pipe_tma",
    "pipe_tmem", "pipe_cbu", "pipe_adu", "pipe_uniform", "pipe_tensor", "pipe_tc", "pipe_xu",
)  # fmt: skip
"""Metrics of warp instructions by the pipe that executes them, in the order of the classes."""
SASS = (
    "sass_fp32", "sass_fp16", "sass_fp64", "sass_fp8", "sass_fp4", "sass_integer", "sass_bit",
    "sass_memory", "sass_control", "sass_uniform", "sass_conversion", "sass_communication",
    "sass_misc",
)  # fmt: skip
"""Metrics of thread instructions by SASS class, in the same order."""
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
    caveat: str


PAPER_CLASSES = (
    PaperClass(
        "FP",
        "floating point",
        ("pipe_fma", "pipe_fp16", "pipe_fp64"),
        ("sass_fp32", "sass_fp16", "sass_fp64", "sass_fp8", "sass_fp4"),
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
        ("pipe_lsu", "pipe_tex", "pipe_tma", "pipe_tmem"),
        ("sass_memory",),
        "by pipe with shuffles and reads of special registers, which the LSU executes, with "
        "textures, bulk copies (TMA) and moves to and from tensor memory",
    ),
    PaperClass("MV", "move", (), (), "in INT by pipe, in MISC by SASS class"),
    PaperClass(
        "CTRL",
        "control",
        ("pipe_cbu", "pipe_adu"),
        ("sass_control",),
        "by pipe with constants that are loaded by index, which the ADU executes",
    ),
    PaperClass("PRED", "predicate", (), (), "in INT by pipe, in MISC by SASS class"),
    PaperClass("UD", "uniform datapath", ("pipe_uniform",), ("sass_uniform",), ""),
    PaperClass(
        "TENSOR",
        "tensor cores",
        ("pipe_tensor", "pipe_tc"),
        (),
        "with HFMA2.MMA, by which compilers load constants; the paper has no such class (its "
        "reference lists HMMA under floating point), and SASS classes have none",
    ),
    PaperClass(
        "MISC",
        "everything else",
        ("pipe_xu", REST),
        ("sass_conversion", "sass_communication", "sass_misc", REST),
        "special functions (by pipe), conversions, and what is in no other class",
    ),
)
