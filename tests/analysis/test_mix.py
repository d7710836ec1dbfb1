"""Instructions by pipe, by SASS class and in the paper's classes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.analysis import mix
from pytest_gpuperf.analysis.mix import REST, members
from pytest_gpuperf.analysis.roofline import OPCODES
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from tests.analysis.tables import family, table
from tests.strategies import few

COUNTS = {
    "instructions": 1000.0, "active_cycles": 500.0,  # IPC 2
    "pipe_fma": 400.0, "pipe_fp16": 100.0, "pipe_fp64": 0.0, "pipe_alu": 150.0,
    "pipe_lsu": 80.0, "pipe_tex": 50.0, "pipe_tma": 15.0, "pipe_tmem": 5.0, "pipe_cbu": 40.0,
    "pipe_adu": 10.0, "pipe_uniform": 60.0, "pipe_tensor": 20.0, "pipe_tc": 10.0,
    "pipe_xu": 20.0,
}  # fmt: skip
SASS_COUNTS = {
    "thread_instructions": 10_000.0, "sass_fp32": 4000.0, "sass_fp16": 500.0,
    "sass_fp64": 300.0, "sass_fp8": 150.0, "sass_fp4": 50.0, "sass_integer": 2000.0,
    "sass_bit": 500.0, "sass_memory": 1000.0, "sass_control": 500.0, "sass_uniform": 250.0,
    "sass_conversion": 100.0, "sass_communication": 150.0, "sass_misc": 300.0,
}  # fmt: skip
UNCOUNTED = "no counter separates MV, PRED from the other classes"


def shares(mixed: mix.Mix) -> dict[str, float | None]:
    return {part.name: part.share for part in mixed.parts}


def test_the_papers_classes_by_pipe_are_an_ipc_stack() -> None:
    mixed = mix.instruction_mix(COUNTS, "sm100")
    assert mixed.ipc == 2
    parts = mixed.pipe_classes.parts
    assert {part.name: part.value for part in parts} == {
        "FP": 500,  # 400 + 100 + 0
        "INT": 150,
        "LS": 150,  # 80 + 50 + 15 + 5
        "CTRL": 50,  # 40 + 10
        "UD": 60,
        "TENSOR": 30,  # 20 + 10
        "MISC": 60,  # 20, and 40 of no pipe
    }
    assert {part.name: part.ipc for part in parts} == pytest.approx(
        # The share of 1000 times 2
        {"FP": 1, "INT": 0.3, "LS": 0.3, "CTRL": 0.1, "UD": 0.12, "TENSOR": 0.06, "MISC": 0.12}
    )
    assert mixed.pipe_classes.missing == (UNCOUNTED,)


def test_the_papers_classes_by_sass_class() -> None:
    mixed = mix.instruction_mix(SASS_COUNTS, "sm100")
    classes = mixed.sass_classes
    assert classes.unit == "thread instructions"
    assert shares(mixed.sass_classes) == pytest.approx(
        {
            "FP": 0.5,  # 4000 + 500 + 300 + 150 + 50 of 10,000
            "INT": 0.25,  # 2000 + 500
            "LS": 0.1,
            "CTRL": 0.05,
            "UD": 0.025,
            "MISC": 0.075,  # 100 + 150 + 300, and 200 of no class
        }
    )
    assert mixed.sass_classes.missing == (
        "no counter separates MV, PRED, TENSOR from the other classes",
    )
    assert {part.ipc for part in mixed.sass_classes.parts} == {None}  # nothing to compute it from


def test_pipes_that_were_not_collected_are_named() -> None:
    some = {"pipe_fma": 30.0, "pipe_alu": 10.0}
    mixed = mix.instruction_mix(some, "sm80")
    assert shares(mixed.pipe_classes) == {"FP": 0.75, "INT": 0.25}
    missing, uncounted = mixed.pipe_classes.missing
    assert uncounted == UNCOUNTED
    assert missing.startswith("not collected: pipe_fp16, pipe_fp64, pipe_lsu, pipe_tex")
    assert missing.endswith("pipe_xu, instructions")


def test_instructions_that_pass_through_two_pipes() -> None:
    mixed = mix.instruction_mix({**COUNTS, "instructions": 800.0}, "sm100").pipe_classes
    # 960 in pipes, a fifth more than the 800 executed
    assert shares(mixed)["FP"] == pytest.approx(500 / 960)
    assert mixed.missing == (
        "the parts sum to more instructions than the whole by 20.0%, so shares refer to the sum",
        UNCOUNTED,
    )
    # What is rounded is not said.
    rounded = mix.instruction_mix({**COUNTS, "instructions": 959.9}, "sm100").pipe_classes
    assert rounded.missing == (UNCOUNTED,)


def test_nothing_counted_is_no_mix_and_says_so() -> None:
    mixed = mix.instruction_mix({"instructions": 1000.0}, "sm90")
    for one, some in ((mixed.pipe_classes, "pipe_fma"), (mixed.sass_classes, "sass_fp32")):
        assert one.parts == ()
        assert one.missing[0].startswith(f"not collected: {some}, ")


def test_classes_have_every_pipe_and_sass_class_once() -> None:
    parts = sorted(
        part for by in (members("pipes"), members("sass")) for own in by.values() for part in own
    )
    opcodes = {metric for weights in OPCODES.values() for metric in weights}
    known = {name for name in catalogue().metrics if name.startswith(("pipe_", "sass_"))}
    assert parts == sorted([*(known - opcodes), REST, REST])


# Of a table


def counted(alu: float, fma: float, cycles: float) -> dict[str, float]:
    both = {"pipe_alu": alu, "pipe_fma": fma}
    return {**both, "instructions": alu + fma, "active_cycles": cycles}


def test_mixes_of_families_and_dominant_kernel() -> None:
    mixed = mix.instruction_mixes(
        table(
            ("norm", 20.0, counted(30, 10, 80)),
            ("conv a", 50.0, counted(20, 80, 50)),
            ("conv b", 40.0, counted(10, 10, 20)),
            ("norm", 25.0, counted(20, 20, 80)),
        ),
        family,
        "sm90",
    )
    # By name, conv a takes 50 us, norm 45 and conv b 40.
    assert mixed.dominant is not None
    assert (mixed.dominant.of, mixed.dominant.ipc) == ("conv a", 2)
    stack = {part.name: part.ipc for part in mixed.dominant.pipe_classes.parts}
    assert stack == pytest.approx({"FP": 1.6, "INT": 0.4, "MISC": 0})
    assert [(one.of, one.ipc) for one in mixed.families] == [
        ("conv", pytest.approx(120 / 70)),
        ("norm", 0.5),
    ]
    assert mixed.missing == ()


def test_launches_without_counters_are_left_out_of_mixes() -> None:
    mixed = mix.instruction_mixes(
        table(("a", 1.0, counted(10, 30, 20)), ("a", 9.0)), family, "sm90"
    )
    (one,) = mixed.families
    assert shares(one.pipe_classes) == pytest.approx({"FP": 0.75, "INT": 0.25, "MISC": 0})
    assert mixed.missing == ("without 1 of 2 launches, because they lack counters",)
    empty = mix.instruction_mixes(table(), family, "sm90")
    assert (empty.dominant, empty.families) == (None, ())


# Whatever the numbers

amounts = st.floats(0, 1e15)


@few
@given(st.fixed_dictionaries(dict.fromkeys((*COUNTS, *SASS_COUNTS), amounts)))
def test_shares_add_up_to_one(values: dict[str, float]) -> None:
    mixed = mix.instruction_mix({**values, "active_cycles": 1.0}, "sm90")
    for one in (mixed.pipe_classes, mixed.sass_classes):
        known = [part.share for part in one.parts if part.share is not None]
        assert math.fsum(known) == pytest.approx(1) or not any(part.value for part in one.parts)
        if known and mixed.ipc is not None:
            stacked = math.fsum(part.ipc for part in one.parts if part.ipc is not None)
            assert stacked == pytest.approx(mixed.ipc)
