"""Of what kind a loss is, and whose it is: realistic kernels, a line each, and real steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from pytest_gpuperf.catalogue import kernel_families
from pytest_gpuperf.judge.attribution import attribute
from pytest_gpuperf.judge.cause import precision
from pytest_gpuperf.model.measurement import STEP, CallSite, KernelTable
from pytest_gpuperf.model.result import Attribution, CauseKind
from pytest_gpuperf.report.text.kernel_lines import sentence
from tests import ROOT
from tests.examples import verdict
from tests.judge.losses import (
    ACROSS,
    ADAM,
    ADD,
    ADD_STRIDED,
    ATTEND,
    BLOCK,
    CONV,
    CONV_F32,
    CONV_TILE,
    COPY,
    DOWN,
    FUSED,
    GEMM,
    GEMM_TILE,
    ITEM,
    MODULES,
    MOMENTS,
    MUL,
    NAMING,
    NORM,
    REDUCE,
    SOFTMAX,
    STEP_ROWS,
    TO_NCHW,
    TO_NHWC,
    TRAIN,
    UP,
    WINOGRAD,
    ZEROS,
    Launched,
    again,
    before_each,
    between,
    bound,
    cause,
    changed,
    in_double,
    more,
    of,
    short,
    step_time,
)
from tests.kernel_steps import (
    Sited,
    counted,
    operators,
    sited,
    slowed,
    traced,
    with_launches,
)

KINDS: dict[str, tuple[Callable[[], Attribution], CauseKind, str]] = {
    "float64": (
        lambda: of(changed((NORM, in_double)), step_time(0.16)),
        CauseKind.PRECISION,
        "+3.2 ms (+16.00 %): layers.py:45 GroupNorm32.forward runs in float64 (2 modules); "
        "was float32",
    ),
    "no tf32": (
        lambda: of(changed((BLOCK, lambda row: [(CONV_F32, 9_000.0, row[2])])), step_time(0.4)),
        CauseKind.PRECISION,
        "+8 ms (+40.00 %): layers.py:75 ResidualBlock.forward runs in float32 (2 modules); "
        "was tf32",
    ),
    "layout": (
        lambda: of(changed((BLOCK, before_each(TO_NHWC, 300.0))), step_time(0.03)),
        CauseKind.LAYOUT,
        "+0.6 ms (+3.00 %): layers.py:75 ResidualBlock.forward converts the layout (2 modules): "
        "nchwToNhwcKernel f32x3 F T, 2 launches; none before",
    ),
    "called twice": (
        lambda: of(changed((ATTEND, again)), step_time(0.12)),
        CauseKind.REPEATED,
        "+2.4 ms (+12.00 %): layers.py:118 SelfAttention._attend is called twice (2 modules); "
        "was once",
    ),
    "called three times, as one module does": (
        lambda: of(changed((f"{ATTEND} {MODULES[1]}", lambda row: [row] * 3)), step_time(0.12)),
        CauseKind.REPEATED,
        "+2.4 ms (+12.00 %): layers.py:118 SelfAttention._attend is called 3 times "
        "(middle.attention); was once",
    ),
    "another algorithm": (
        lambda: of(changed((BLOCK, lambda row: [(WINOGRAD, 7_000.0, row[2])])), step_time(0.2)),
        CauseKind.PRECISION,
        "+4 ms (+20.00 %): layers.py:75 ResidualBlock.forward runs in float32 (2 modules); "
        "was tf32",
    ),
    "another tile": (
        lambda: of(
            changed((BLOCK, lambda row: [(row[0].replace("64x64x32", "32x32x32"), 7e3, row[2])])),
            step_time(0.2),
        ),
        CauseKind.ALGORITHM,
        "+4 ms (+20.00 %): layers.py:75 ResidualBlock.forward uses sm90_xmma_fprop tf32 32x32x32 "
        "(2 modules); was sm90_xmma_fprop tf32 64x64x32",
    ),
    "more launches": (
        lambda: of(changed((BLOCK, before_each(MUL, 50.0))), step_time(0.006, 0.001)),
        CauseKind.LAUNCHES,
        "+0.12 ms (+0.60 %): layers.py:75 ResidualBlock.forward launches 2 more kernels "
        "(vectorized_elementwise Binary Mul f32, 2 modules); were 2",
    ),
    "an optimizer in a loop": (
        lambda: of(
            changed((TRAIN, lambda row: [(MUL, 2.0, row[2])] * 1500)),
            step_time(0.3),
            idle=7_000.0,
            idle_at=[(TRAIN, 7_000.0)],
        ),
        CauseKind.LAUNCHES,
        "+6 ms (+30.00 %): training.py:95 Training.step launches 1,499 more kernels "
        "(vectorized_elementwise Binary Mul f32); were 1",
    ),
    "item": (
        lambda: of(
            (*STEP_ROWS, (DOWN, 1.5, ITEM)),
            step_time(0.026),
            calls=[("cudaStreamSynchronize", ITEM, 12)],
            idle=1500.0,
            idle_at=[(TRAIN, 1000.0), (ITEM, 500.0)],
        ),
        CauseKind.SYNCHRONISATION,
        "+0.52 ms (+2.60 %): layers.py:77 ResidualBlock.forward waits for the GPU 12 times "
        "(cudaStreamSynchronize, blocks.0); never before",
    ),
    "item, where nobody counts calls": (
        lambda: of((*STEP_ROWS, *[(DOWN, 1.5, ITEM)] * 3), more("copies", 0, 3), step_time(0.0)),
        CauseKind.SYNCHRONISATION,
        "layers.py:77 ResidualBlock.forward waits for the GPU 3 times "
        "(Memcpy DtoH (Device -> Pageable), blocks.0); never before",
    ),
    "transfer": (
        lambda: of(
            changed((TRAIN, before_each(UP, 900.0))),
            step_time(0.045),
            more("copy_bytes_h2d_pageable", 0, 12 * 2**20),
        ),
        CauseKind.TRANSFER,
        "+0.9 ms (+4.50 %): training.py:95 Training.step copies 12.000 MiB more to the device "
        "(pageable) once; never before",
    ),
    "memory": (
        lambda: of(
            STEP_ROWS,
            step_time(0.1),
            calls=[("cudaMalloc", f"{BLOCK} blocks.1", 4), ("cudaFree", f"{BLOCK} blocks.1", 4)],
            idle=3_000.0,
            idle_at=[(TRAIN, 1000.0), (f"{BLOCK} blocks.1", 2_000.0)],
        ),
        CauseKind.MEMORY,
        "+2 ms (+10.00 %): layers.py:75 ResidualBlock.forward asks the driver for memory 8 times "
        "(cudaFree, blocks.1); never before",
    ),
    "recompilation": (
        lambda: of(STEP_ROWS, step_time(0.0), more("recompilations", 0, 2)),
        CauseKind.RECOMPILATION,
        "the step is compiled again twice; never before",
    ),
    "graph breaks": (
        lambda: of(
            STEP_ROWS, step_time(0.0), more("graph_breaks", 1, 3), more("compiled_graphs", 2, 4)
        ),
        CauseKind.RECOMPILATION,
        "the step breaks its graph 3 times; was 1",
    ),
    "torch.compile is lost": (
        lambda: of(
            changed((TRAIN, before_each(UP, 900.0))),
            step_time(0.045),
            replace(more("compiled_graphs", 1, 0), reason="not-compiled"),
        ),
        CauseKind.RECOMPILATION,
        "+0.9 ms (+4.50 %): the step has no compiled graph any more; it had 1",
    ),
    "copies, where nobody knows which": (
        lambda: of(STEP_ROWS, step_time(0.0), more("copies", 2, 5)),
        CauseKind.TRANSFER,
        "the step copies 5 times; was 2",
    ),
    "bytes": (
        lambda: of(
            STEP_ROWS,
            step_time(0.0),
            replace(more("copy_bytes_h2d_pageable", 0, 2**20), unit="bytes"),
        ),
        CauseKind.TRANSFER,
        "the step copies 1.0000 MiB more to the device (pageable)",
    ),
    "host time": (
        lambda: of(
            STEP_ROWS,
            step_time(0.25),
            idle=6_000.0,
            idle_at=[(TRAIN, 1000.0), ("data.py:8 Volumes.load", 5_000.0)],
        ),
        CauseKind.HOST,
        "+5 ms (+25.00 %): the GPU waits for data.py:8 Volumes.load",
    ),
    "slower": (
        lambda: of(changed((NORM, lambda row: [(row[0], 1.3 * row[1], row[2])])), step_time(0.048)),
        CauseKind.SLOWER,
        "+0.96 ms (+4.80 %): layers.py:45 GroupNorm32.forward takes longer with the same kernels "
        "(RowwiseMomentsCUDAKernel f32, 2 modules)",
    ),
    "unknown": (
        lambda: of(STEP_ROWS, step_time(0.019)),
        CauseKind.UNKNOWN,
        "+0.38 ms (+1.90 %): no kernel stands out from the noise",
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_loss_is_told_by_its_kind_its_line_and_the_time_of_the_step(name: str) -> None:
    said, kind, says = KINDS[name]
    attribution = said()
    assert sentence(attribution) == says
    assert cause(attribution).kind is kind


def test_every_kind_of_loss_is_told() -> None:
    assert {kind for _, kind, _ in KINDS.values()} == {*CauseKind}


@pytest.mark.parametrize(
    ("converting", "kind"), [((COPY, COPY), CauseKind.LAYOUT), ((), CauseKind.ALGORITHM)]
)
def test_where_formats_are_converted_otherwise_that_is_why_there_are_other_kernels(
    converting: Sequence[str], kind: CauseKind
) -> None:
    """As one activation turned channels-last did, on an H200."""
    place = f"{BLOCK} blocks.0"
    names = [TO_NHWC, CONV, TO_NHWC, ADD], [*converting, CONV, ADD_STRIDED]
    times = {ADD_STRIDED: 800.0, ADD: 200.0, CONV: 5_000.0}
    before, after = (
        sited(*((name, times.get(name, 30.0), place) for name in side)) for side in names
    )
    made = cause(attribute(after, before, NAMING, [step_time(0.1)]))
    assert (made.kind, made.line) == (kind, "layers.py:75")


def test_operators_that_copy_convert_the_layout_where_that_is_counted() -> None:
    """Without a GPU: nothing has a time, and the numbers decide."""
    before = operators(("aten.mm", "net.py:3 Net.forward a"))
    clones = [("aten.clone", "net.py:4 Net.norm a")] * 3
    after = operators(("aten.mm", "net.py:3 Net.forward a"), *clones)
    copies = verdict("layout_copies", unit="copies", baseline=0.0, measured=3.0, change=None)
    for verdicts, says in (
        ([copies], "converts the layout (a): aten.clone, 3 calls; none before"),
        ([verdict("operators")], "calls 3 more operators (aten.clone, a); none before"),
    ):
        said = attribute(after, before, NAMING, verdicts)
        assert sentence(said) == f"net.py:4 Net.norm {says}"
        assert cause(said).traced is None


def test_several_lines_of_a_function_are_one_change_and_it_is_at_the_worst() -> None:
    lines = changed((NORM, lambda row: [(row[0], row[1], row[2].replace("45", "46"))]))
    rows = [*lines, (MUL, 60.0, f"{NORM} x"), (MUL, 90.0, "layers.py:47 GroupNorm32.forward x")]
    told = cause(of((*rows, (MUL, 100.0, "other.py:1 f")), step_time(0.01)))
    assert (told.line, told.function) == ("layers.py:47", "GroupNorm32.forward")
    assert told.traced == pytest.approx(150e3)
    assert (told.before, told.after) == (0, 2)


def test_kernels_that_no_line_is_known_of_are_told_all_the_same() -> None:
    """As those of compiled code, in a table in which others have theirs."""
    rows = [(CONV, 5_000.0, BLOCK), (GEMM, 900.0, ATTEND)]
    before, after = (
        replace(made, sites=(*made.sites[:2], CallSite("", "")))
        for made in (
            sited(*rows, (MUL, 500.0, "x x")),
            sited(*rows, *[(MUL, 500.0, "x x")] * 3),
        )
    )
    said = attribute(after, before, NAMING, [step_time(0.15, before=6.4)])
    assert sentence(said) == (
        "+0.96 ms (+15.00 %): the step launches 2 more kernels "
        "(vectorized_elementwise Binary Mul f32); were 1"
    )


def test_what_did_not_regress_has_no_headline() -> None:
    slower = changed((NORM, in_double))
    assert of(slower, step_time(0.0)).cause is None
    assert of(slower).cause is not None
    assert of().cause is None
    assert of(changed((NORM, lambda row: [(row[0], row[1] / 2, row[2])]))).cause is None


def test_what_the_host_is_counted_to_do_is_the_cause_where_the_time_is_as_it_was() -> None:
    """And where the time is not, what costs it."""
    rows = changed((NORM, in_double))
    waits = more("stream_synchronizations", 0, 12)
    calls = [("cudaStreamSynchronize", ITEM, 12)]
    same = cause(of(rows, step_time(0.0), waits, calls=calls))
    assert (same.kind, same.line, same.change) == (CauseKind.SYNCHRONISATION, ITEM.split()[0], None)
    assert (same.before, same.after) == (0, 12)
    slower = cause(of(rows, step_time(0.16), waits, calls=calls))
    assert (slower.kind, slower.function) == (CauseKind.PRECISION, "GroupNorm32.forward")


def test_a_loss_that_the_trace_does_not_see_is_that_of_new_calls() -> None:
    """Profiled, the host is slow anyway: that it waits is in no gap."""
    rows = changed((BLOCK, before_each(MUL, 50.0)))
    told = cause(of(rows, step_time(0.1), calls=[("cudaDeviceSynchronize", ITEM, 2)]))
    assert told.kind is CauseKind.SYNCHRONISATION
    seen = cause(of(rows, step_time(0.01), calls=[("cudaDeviceSynchronize", ITEM, 2)]))
    assert seen.kind is CauseKind.LAUNCHES


def test_calls_stay_where_they_were_when_an_edit_above_moves_their_line() -> None:
    """The line launches nothing itself; the nearest that does has moved as far."""
    before = sited(*STEP_ROWS, calls=[("cudaStreamSynchronize", ITEM, 3)])
    moved = [(n, us, at.replace("layers.py:75", "layers.py:85")) for n, us, at in STEP_ROWS]
    there = ITEM.replace("77", "87")
    after = sited(*moved, calls=[("cudaStreamSynchronize", there, 3)])
    assert attribute(after, before, NAMING).calls == ()
    thrice = sited(*moved, calls=[("cudaStreamSynchronize", there, 9)])
    (call,) = attribute(thrice, before, NAMING).calls
    assert (call.line, call.before, call.after) == ("layers.py:87", 3, 9)


# Work that is done otherwise


def summed(row: Sited) -> list[Sited]:
    """A product of matrices, by multiplying and adding up."""
    return [(MUL, 600.0, row[2]), (REDUCE, 300.0, row[2])] if row[0] == GEMM else [row]


def test_a_line_whose_kernels_are_gone_and_others_have_come_does_it_otherwise() -> None:
    told = cause(of(changed((ATTEND, summed)), step_time(0.1)))
    assert (told.kind, told.function) == (CauseKind.ALGORITHM, "SelfAttention._attend")
    names = tuple(map(kernel_families.short_name, (MUL, GEMM)))
    assert (told.what, told.formerly) == names


@pytest.mark.parametrize(("pieces", "kind"), [(20, CauseKind.ALGORITHM), (21, CauseKind.LAUNCHES)])
def test_what_one_kernel_did_piece_by_piece_is_more_launches(pieces: int, kind: CauseKind) -> None:
    told = cause(of(changed((TRAIN, lambda row: [(MUL, 200.0, row[2])] * pieces)), step_time(0.1)))
    assert (told.kind, told.function) == (kind, "Training.step")


def test_what_is_done_again_may_bring_a_sum_of_both() -> None:
    """Of its launches two fifths are that, and of its time next to nothing."""
    once = changed((BLOCK, lambda row: [(name, 900.0, row[2]) for name in (CONV, GEMM, SOFTMAX)]))
    again_ = [made for row in once for made in ([row, row] if BLOCK in row[2] else [row])]
    extra = [(name, 9.0, f"{BLOCK} blocks.{n}") for n in range(2) for name in (ADD, MUL)]
    others = [(MOMENTS, 10.0, f"{BLOCK} blocks.{n}") for n in range(2)] * 6
    after, before = sited(*again_, *extra, *others), sited(*once, *others)
    told = cause(attribute(after, before, NAMING, [step_time(0.2)]))
    assert (told.kind, told.function) == (CauseKind.REPEATED, "ResidualBlock.forward")


# What is named, and how often


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ([], short(MUL, ADD, REDUCE)),
        ([MOMENTS], f"{short(MUL, ADD, REDUCE)} and 1 more"),
        ([MOMENTS, SOFTMAX], f"{short(MUL, ADD, REDUCE)} and 2 more"),
    ],
)
def test_the_three_new_kernels_that_take_most_are_named(others: Sequence[str], says: str) -> None:
    """By all that each takes, however often it is launched."""
    fewer = [(name, 1.0) for name in others for _ in range(9)]
    new = [*fewer, (ADD, 80.0), *[(MUL, 30.0)] * 3, (REDUCE, 20.0)]
    told = between([(CONV, 5_000.0)], [(CONV, 5_000.0), *new])
    assert (told.kind, told.what) == (CauseKind.LAUNCHES, says)
    assert (told.before, told.after) == (1, 1 + len(new))


def test_of_operators_those_are_named_first_that_are_called_most_often() -> None:
    rows = [("aten.mm", "net.py:3 Net.forward a")]
    new = [(name, "net.py:4 Net.norm a") for name in ("aten.add", "aten.relu", "aten.relu")]
    told = cause(attribute(operators(*rows, *new), operators(*rows), NAMING))
    assert (told.kind, told.what) == (CauseKind.LAUNCHES, "aten.relu, aten.add")
    assert (told.before, told.after) == (0, 3)


def test_a_single_operator_more_is_told() -> None:
    rows = [("aten.mm", "net.py:3 Net.forward a")]
    after = operators(*rows, ("aten.add", "net.py:4 Net.norm a"))
    told = cause(attribute(after, operators(*rows), NAMING, [verdict("operators")]))
    assert (told.kind, told.line) == (CauseKind.LAUNCHES, "net.py:4")
    assert (told.what, told.before, told.after) == ("aten.add", 0, 1)


@pytest.mark.parametrize(
    ("before", "after", "named", "counts"),
    [
        # Two that are new.
        ([], [(COPY, 100.0), (TO_NHWC, 60.0)], COPY, (0, 1)),
        # One that was there takes longer than the others together, and than each by far.
        ([(COPY, 1e3)], [(TO_NHWC, 300.0), (TO_NCHW, 300.0), (COPY, 1.4e3)], COPY, (1, 1)),
        # One that took long already takes another grid, and hardly longer.
        ([(COPY, 1e3)], [(f"{COPY}@8", 1.1e3), *[(TO_NHWC, 150.0)] * 2], TO_NHWC, (0, 2)),
        # One takes as long as before.
        ([(TO_NHWC, 1e3)], [(TO_NHWC, 1e3), *[(COPY, 100.0)] * 3], COPY, (0, 3)),
    ],
)
def test_the_conversion_that_takes_most_longer_is_named_and_counted(
    before: Sequence[Launched], after: Sequence[Launched], named: str, counts: tuple[int, int]
) -> None:
    """Among other kernels of the function, which do not count."""
    told = between([(CONV, 5_000.0), *before], [(CONV, 5_000.0), *after])
    assert (told.kind, told.family, told.what) == (CauseKind.LAYOUT, "layout", short(named))
    assert (told.before, told.after) == counts


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ([(CONV, 3_000.0), (REDUCE, 200.0)], [(CONV, 3_200.0), (REDUCE, 600.0)], REDUCE),
        ([(CONV, 3_000.0), (REDUCE, 200.0)], [(CONV, 4_000.0), (REDUCE, 250.0)], CONV),
    ],
)
def test_the_kernel_that_takes_most_longer_is_named_whichever_takes_most(
    before: Sequence[Launched], after: Sequence[Launched], named: str
) -> None:
    told = between(before, after)
    assert (told.kind, told.what) == (CauseKind.SLOWER, short(named))


@pytest.mark.parametrize(
    ("conv", "gemm", "now", "then"),
    [(5_200.0, 900.0, GEMM_TILE, GEMM), (7_000.0, 900.0, CONV_TILE, CONV)],
)
def test_the_algorithm_that_costs_most_is_named_whichever_takes_most(
    conv: float, gemm: float, now: str, then: str
) -> None:
    told = between([(CONV, 5_000.0), (GEMM, 300.0)], [(CONV_TILE, conv), (GEMM_TILE, gemm)])
    assert told.kind is CauseKind.ALGORITHM
    assert (told.what, told.formerly) == (short(now), short(then))


# Data types


@pytest.mark.parametrize(
    ("place", "change", "says"),
    [
        (NORM, in_double, ("float64", "float32", "normalization")),
        (BLOCK, lambda row: [(CONV_F32, 9e3, row[2])], ("float32", "tf32", "convolution-forward")),
        (ATTEND, in_double, ("float64", "float32", "reduction")),
    ],
)
def test_a_data_type_is_that_of_a_family(
    place: str, change: Callable[[Sited], Sequence[Sited]], says: tuple[str, str, str]
) -> None:
    """And told of the kernels that have another one than before."""
    told = cause(of(changed((place, change)), step_time(0.1)))
    assert told.kind is CauseKind.PRECISION
    assert (told.what, told.formerly, told.family) == says


@pytest.mark.parametrize(
    ("other", "kind"), [(3_900.0, CauseKind.PRECISION), (4_100.0, CauseKind.LAUNCHES)]
)
def test_a_data_type_is_why_where_a_fifth_of_what_changed_has_it(
    other: float, kind: CauseKind
) -> None:
    assert between([(CONV, 100.0)], [(CONV_F32, 1_000.0), (MUL, other)]).kind is kind


@pytest.mark.parametrize(("usual", "new"), [("half", "double"), ("x.f32", "x.f64")])
def test_the_name_of_a_module_is_no_data_type(usual: str, new: str) -> None:
    """An operator is told apart by where it is called, and its own name has no type."""
    rows = [("aten.mul", f"net.py:4 Net.norm {usual}")]
    after = operators(*rows, ("aten.add", f"net.py:4 Net.norm {new}"))
    told = cause(attribute(after, operators(*rows), NAMING, [verdict("operators")]))
    assert (told.kind, told.what) == (CauseKind.LAUNCHES, "aten.add")


def test_the_data_type_of_most_of_the_time_counts_not_that_of_most_launches() -> None:
    double = MOMENTS.replace("float", "double")
    told = between(
        [(MOMENTS, 100.0), *[(FUSED, 10.0)] * 2], [(double, 1e3), *[(f"{FUSED}@2", 10.0)] * 2]
    )
    assert (told.kind, told.what, told.formerly) == (CauseKind.PRECISION, "float64", "float32")


@pytest.mark.parametrize(
    ("usual", "formerly"),
    [
        ([CONV], "tf32"),
        ([CONV, MOMENTS], "float32"),
        ([ZEROS, CONV], "tf32"),
        ([ZEROS], ""),
        ([CONV.replace("tf32", "bf16"), REDUCE.replace("float", "double")], ""),
        ([], ""),
    ],
    ids=["tf32", "both", "fill", "unknown", "float64", "nothing"],
)
def test_new_work_in_float64_is_told_where_the_function_knows_no_float64(
    usual: Sequence[str], formerly: str
) -> None:
    """A family that it has not launched has no data type before: the others' is the usual one."""
    old = [(ADAM, 3_000.0, TRAIN), *((name, 100.0, ITEM) for name in usual)]
    after = sited(*old, (MUL.replace("float", "double"), 500.0, ITEM))
    told = cause(attribute(after, sited(*old), NAMING))
    assert told.kind is (CauseKind.PRECISION if formerly else CauseKind.LAUNCHES)
    assert told.formerly == formerly
    assert not formerly or (told.what, told.family) == ("float64", "elementwise")


# Work that is done again

ONCE = [(CONV, 900.0), (GEMM, 800.0), (SOFTMAX, 700.0), (ADD, 600.0), (MUL, 500.0)]


@pytest.mark.parametrize(
    ("again_", "times"),
    [
        ([*ONCE[:4], (MOMENTS, 10.0)], 2),
        ([*ONCE[:3], (MOMENTS, 10.0), (FUSED, 10.0)], None),
        ([*ONCE, *ONCE], 3),
    ],
)
def test_a_function_is_called_again_where_nine_tenths_of_its_launches_are(
    again_: Sequence[Launched], times: int | None
) -> None:
    told = between(ONCE, [*ONCE, *again_])
    assert told.times == times
    assert (told.before, told.after) == (5, 5 + len(again_))
    if times:
        extra = len({name for name, _ in again_}) - 3
        assert told.kind is CauseKind.REPEATED
        assert told.what == f"{short(CONV, GEMM, SOFTMAX)} and {extra} more"


@pytest.mark.parametrize(("of_ten", "times"), [(8, 2), (7, None)])
def test_nine_tenths_of_twice_as_many_launches_have_to_be_there(
    of_ten: int, times: int | None
) -> None:
    ten = [(f"{CONV}@{blocks}", 100.0) for blocks in range(1, 11)]
    assert between(ten, [*ten, *ten[:of_ten]]).times == times


def test_a_function_of_the_backward_pass_alone_may_be_called_again() -> None:
    backward = "layers.py:9 Scale.backward scale backward"
    told = between([(MUL, 500.0)], [(MUL, 500.0)] * 2, at=backward)
    assert (told.kind, told.times, told.function) == (CauseKind.REPEATED, 2, "Scale.backward")


@pytest.mark.parametrize(("other", "kind"), [(1, CauseKind.REPEATED), (2, CauseKind.LAUNCHES)])
def test_what_is_done_again_does_not_do_the_rest_otherwise(other: int, kind: CauseKind) -> None:
    """Where ten launches are new one may be another one than before."""
    before = [*ONCE, *[(MOMENTS, 10.0)] * 2]
    after = [*ONCE * 3, *[(f"{MOMENTS}@8", 10.0)] * other, *[(MOMENTS, 10.0)] * (2 - other)]
    told = between(before, after)
    assert (told.kind, told.times) == (kind, None)


@pytest.mark.parametrize("at", [f"{BLOCK} blocks.0", TRAIN], ids=["module", "no module"])
@pytest.mark.parametrize(
    ("again_", "us", "kind"),
    [
        ((CONV, GEMM, SOFTMAX), 299.0, CauseKind.REPEATED),
        ((CONV, GEMM, SOFTMAX), 301.0, CauseKind.LAUNCHES),
        ((CONV, GEMM), 1.0, CauseKind.LAUNCHES),
    ],
)
def test_what_is_done_again_is_three_kernels_and_nine_tenths_of_what_is_new(
    again_: Sequence[str], us: float, kind: CauseKind, at: str
) -> None:
    """One kernel more of a kind that is known is just that."""
    known = [(name, 900.0) for name in (CONV, GEMM, SOFTMAX)]
    before = [*known, *((f"{MOMENTS}@{blocks}", 10.0) for blocks in range(1, 9))]
    new = [*((name, 900.0) for name in again_), (MUL, us)]
    told = between(before, [*before, *new], at=at)
    assert (told.kind, told.times) == (kind, None)


@pytest.mark.parametrize(
    ("again_", "other", "kind"),
    [((3, 3, 3), 1, CauseKind.REPEATED), ((3, 3, 2), 2, CauseKind.LAUNCHES)],
)
def test_of_operators_nine_tenths_of_those_that_are_new_are_done_again(
    again_: tuple[int, int, int], other: int, kind: CauseKind
) -> None:
    """They have no times; and some are called less often again than they were."""
    norm, names = "net.py:4 Net.norm a", ("aten.mean", "aten.sub", "aten.mul")
    before = [(name, norm) for name in names for _ in range(4)]
    new = [(name, norm) for name, count in zip(names, again_, strict=True) for _ in range(count)]
    after = [*before, *new, *[("aten.relu", norm)] * other]
    told = cause(attribute(operators(*after), operators(*before), NAMING))
    assert (told.kind, told.times, told.before, told.after) == (kind, None, 12, 22)


# Which reason most of a change has


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        # Those that take longer, and one that is new.
        (
            [(CONV, 3e3), (GEMM, 3e3)],
            [(CONV, 3.3e3), (GEMM, 3.3e3), (MUL, 500.0)],
            CauseKind.SLOWER,
        ),
        (
            [(CONV, 3e3), (GEMM, 3e3)],
            [(CONV, 3.3e3), (GEMM, 3e3), (MUL, 500.0)],
            CauseKind.LAUNCHES,
        ),
        # All take longer by what noise may be.
        (
            [(f"{CONV}@{n}", 3e3) for n in range(1, 11)],
            [*((f"{CONV}@{n}", 3.012e3) for n in range(1, 11)), (MUL, 60.0)],
            CauseKind.LAUNCHES,
        ),
        # Another algorithm that hardly takes longer than the one before.
        ([(CONV, 5e3)], [(CONV_TILE, 5.2e3), (MUL, 900.0)], CauseKind.LAUNCHES),
        # What is gone makes up for what has come.
        (
            [(CONV, 5e3), (REDUCE, 450.0)],
            [(CONV, 5e3), (MUL, 500.0), (UP, 100.0)],
            CauseKind.TRANSFER,
        ),
        # A product is gone, and nothing that computes has come.
        ([(CONV, 5e3), (GEMM, 300.0)], [(CONV, 5e3), (TO_NHWC, 400.0)], CauseKind.LAYOUT),
        # Of as much, the conversions are it: by what is new, and by that less what is gone.
        (
            [(CONV, 5e3)],
            [(TO_NHWC, 50.0), (TO_NCHW, 50.0), (CONV, 5e3), (MUL, 100.0)],
            CauseKind.LAYOUT,
        ),
        (
            [(MUL, 100.0), (MUL, 100.0), (CONV, 5e3)],
            [(MUL, 100.0), (CONV, 5e3), (TO_NHWC, 100.0), (REDUCE, 200.0)],
            CauseKind.LAYOUT,
        ),
        # What fills memory does not copy, and what copies does not fill it.
        ([(CONV, 5e3)], [(ZEROS, 100.0), (CONV, 5e3)], CauseKind.LAUNCHES),
        ([(CONV, 5e3)], [(ACROSS, 100.0), (CONV, 5e3)], CauseKind.TRANSFER),
        ([(ZEROS, 50.0), (CONV, 5e3)], [(ACROSS, 100.0), (CONV, 5e3)], CauseKind.TRANSFER),
        ([(ACROSS, 50.0), (CONV, 5e3)], [(ZEROS, 100.0), (CONV, 5e3)], CauseKind.ALGORITHM),
    ],
)
def test_the_reason_is_that_of_most_of_the_change(
    before: Sequence[Launched], after: Sequence[Launched], kind: CauseKind
) -> None:
    assert between(before, after).kind is kind


def test_what_takes_longer_although_a_launch_is_gone_is_slower() -> None:
    """No kernel by itself is beyond its noise, and what is left is named."""
    told = between([(CONV, 5_000.0), (MUL, 30.0)], [(CONV, 5_040.0)])
    assert (told.kind, told.what) == (CauseKind.SLOWER, short(CONV))
    assert told.traced == pytest.approx(10e3)


def test_of_other_kernels_that_take_exactly_as_long_as_those_before_none_is_named() -> None:
    """None of the launches is left that could have become slower."""
    told = between([(CONV, 3_000.0)], [(MUL, 1_000.0)] * 3)
    assert (told.function, told.what, told.traced) == ("ResidualBlock.forward", "", 0.0)
    assert (told.before, told.after) == (1, 3)


@pytest.mark.parametrize(("others", "kind"), [(1, CauseKind.LAYOUT), (2, CauseKind.ALGORITHM)])
def test_half_of_what_changed_are_conversions_where_formats_are_why(
    others: int, kind: CauseKind
) -> None:
    before = [(TO_NHWC, 30.0), (CONV, 5_000.0), *[(ADD, 200.0), (REDUCE, 100.0)][:others]]
    after = [(COPY, 30.0), (CONV, 5_000.0), *[(ADD_STRIDED, 800.0), (SOFTMAX, 300.0)][:others]]
    assert between(before, after).kind is kind


def test_a_gpu_that_waits_for_kernels_of_another_shape_waits_for_these_launches() -> None:
    """They take less time themselves."""
    rows = changed((NORM, lambda row: [(f"{row[0]}@8", row[1] / 2, row[2])]))
    told = bound(rows, 5_000.0, step_time(0.3, 0.29))
    assert (told.kind, told.function) == (CauseKind.LAUNCHES, "GroupNorm32.forward")
    assert (told.before, told.after) == (4, 4)


# Steps of an H200


def launched(whole: KernelTable, function: str, *, backward: bool | None = None) -> list[int]:
    """The launches of a function, of one pass or of both."""
    places = [(at, whole.sites[site]) for at, site in enumerate(whole.site_of)]
    return [
        at for at, site in places if site.function == function and backward in (None, site.backward)
    ]


def test_attention_that_is_computed_twice_is_called_twice_in_four_modules() -> None:
    whole = counted("tf32-sites")
    forward = launched(whole, "SelfAttention._attend", backward=False)
    order = sorted([*range(len(whole.launches)), *forward])
    twice = replace(
        whole,
        launches=tuple(whole.launches[i] for i in order),
        site_of=tuple(whole.site_of[i] for i in order),
    )
    told = cause(attribute(twice, whole, NAMING, [step_time(0.003, 0.001, 231.0)]))
    assert (told.kind, told.times, len(told.modules)) == (CauseKind.REPEATED, 2, 4)
    assert told.line.startswith("suites/meddpm/model/layers.py:10")
    assert told.change == pytest.approx(0.693e6)


def test_one_norm_in_float64_is_told_by_its_line() -> None:
    whole = counted("tf32-sites")
    places = launched(whole, "GroupNorm32.forward")
    double = [name.replace("float", "double") for name in whole.names]
    names = (*whole.names, *double)
    launches = list(whole.launches)
    for at in places:
        launches[at] = replace(launches[at], name=launches[at].name + len(whole.names))
    norm = slowed(replace(with_launches(whole, launches), names=names), places, 2.0)
    told = cause(attribute(norm, whole, NAMING, [step_time(0.26, 0.002, 231.0)]))
    assert (told.kind, told.what, told.formerly) == (CauseKind.PRECISION, "float64", "float32")
    assert (told.line, len(told.modules)) == ("suites/meddpm/model/layers.py:45", 39)


@pytest.mark.parametrize(
    ("measured", "baseline", "kind", "family"),
    [
        ("baseline", "tf32", CauseKind.PRECISION, "convolution-weight-gradient"),
        ("tf32", "bf16", CauseKind.PRECISION, "convolution-weight-gradient"),
        ("tf32_channels_last", "tf32", CauseKind.LAYOUT, "layout"),
        ("adam-foreach-off", "tf32", CauseKind.LAUNCHES, "elementwise"),
    ],
)
def test_without_call_sites_it_is_told_by_the_family(
    measured: str, baseline: str, kind: CauseKind, family: str
) -> None:
    told = cause(attribute(traced(measured), traced(baseline), NAMING))
    assert (told.kind, told.family, told.line, told.function) == (kind, family, "", "")


def test_identical_steps_have_no_headline() -> None:
    one, other = counted("tf32-core"), counted("tf32-core-1")
    assert attribute(other, one, NAMING).cause is None
    unchanged = [step_time(0.001)]
    assert attribute(other, one, NAMING, unchanged).cause is None
    assert all(verdict.phase == STEP for verdict in unchanged)


@pytest.mark.parametrize(
    ("measured", "baseline"),
    [("baseline", "tf32"), ("tf32_channels_last", "tf32"), ("adam-foreach-off", "tf32")],
)
def test_without_call_sites_the_launches_of_the_family_are_counted(
    measured: str, baseline: str
) -> None:
    """Of conversions those that are named."""
    told = cause(attribute(traced(measured), traced(baseline), NAMING))

    def counts(name: str) -> bool:
        if told.kind is CauseKind.LAYOUT:
            return kernel_families.short_name(name) == told.what
        return kernel_families.family(name) == told.family

    before, after = (
        sum(counts(step.names[launch.name]) for launch in step.launches)
        for step in (traced(baseline), traced(measured))
    )
    assert (told.before, told.after) == (before, after)


# Names of kernels


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (CONV, "tf32"),
        (CONV_F32, "float32"),
        (MOMENTS, "float32"),
        (MOMENTS.replace("float", "double"), "float64"),
        ("volta_dgemm_128x64_nn", "float64"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_128x64_16x3_nn_align1>", "float64"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64_32x6_nt_align4>", "tf32"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_tn_align1>", "float32"),
        ("ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x6_tn", "float16"),
        ("volta_s884cudnn_fp16_256x64_ldg8_relu_exp_small_nhwc_tn_v1", "float16"),
        ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN", "bfloat16"),
        ("nvjet_sm90_hss_320x128", "float16"),
        ("void cudnn::cnn::reduce_wgrad_nchw_helper<float, __nv_bfloat16>(void*)", "bfloat16"),
        ("Memset (Device)", ""),
    ],
)
def test_a_kernels_name_says_its_data_type(name: str, says: str) -> None:
    assert precision(name) == says


def test_no_recorded_kernel_is_taken_for_float64() -> None:
    known = json.loads((ROOT / "tests" / "data" / "kernel-names.json").read_text("utf-8"))
    names = {entry["name"] for entry in known} | {*counted("tf32-sites").names}
    names |= {*traced("adam-fused").names}
    assert [name for name in names if precision(name) == "float64"] == []


@pytest.mark.parametrize(
    ("share", "named"),
    # All kernels take a tenth more. What one of them takes besides is a share of that.
    [(0.0, False), (0.3, False), (0.4, True), (2.0, True)],
)
def test_of_what_all_kernels_take_longer_no_line_is_named(share: float, *, named: bool) -> None:
    one = traced("tf32")
    times = [launch.duration for launch in one.launches]
    most = max(range(len(times)), key=times.__getitem__)
    every = slowed(one, range(len(times)), 1.1)
    more_of_one = 1 + share * 0.1 * sum(times) / (1.1 * times[most])
    new = slowed(every, [most], more_of_one)
    told = attribute(new, one, NAMING, verdicts=[step_time(0.1 * (1 + share))])
    assert told.shift == pytest.approx(0.1)
    assert (told.cause is not None) is named
    assert ("clocks, power or another GPU?" in sentence(told)) is not named
