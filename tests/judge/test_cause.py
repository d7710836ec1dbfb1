"""Of what kind a loss is, whose it is, and its numbers: realistic kernels, a line each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from pytest_gpuperf.catalogue import kernel_families
from pytest_gpuperf.judge.attribution import attribute
from pytest_gpuperf.judge.cause import precision
from pytest_gpuperf.model.measurement import CallSite, KernelTable
from pytest_gpuperf.model.result import Attribution
from pytest_gpuperf.model.result import CauseKind as Kind
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
    ZEROS,
    Cases,
    Launched,
    again,
    against,
    before_each,
    between,
    bound,
    cause,
    changed,
    expected,
    in_double,
    more,
    of,
    record,
    said,
    short,
    step_time,
    summed,
)
from tests.kernel_steps import counted, operators, sited, slowed, table, traced, with_launches

CONVS = [(CONV, 5e3)]
ONCE = [(CONV, 900.0), (GEMM, 800.0), (SOFTMAX, 700.0), (ADD, 600.0), (MUL, 500.0)]
MM, ADD_OP, RELU, CLONE = (f"aten.{name}" for name in ("mm", "add", "relu", "clone"))
FORWARD, NET_NORM = "net.py:3 Net.forward a", "net.py:4 Net.norm a"
DOUBLE_MOMENTS, DOUBLE_MUL = (name.replace("float", "double") for name in (MOMENTS, MUL))
OPERATORS = verdict("operators")
LAYOUT_COPIES = verdict("layout_copies", unit="copies", baseline=0.0, measured=3.0, change=None)


def compiled(launches: int) -> KernelTable:
    """Kernels of no line, in a table in which others have theirs."""
    rows = [(CONV, 5_000.0, BLOCK), (GEMM, 900.0, ATTEND)]
    made = sited(*rows, *[(MUL, 500.0, "x x")] * launches)
    return replace(made, sites=(*made.sites[:2], CallSite("", "")))


KINDS: Cases = {
    "layout: layout": lambda: of(changed((BLOCK, before_each(TO_NHWC, 300.0))), step_time(0.03)),
    "repeated work: called twice": lambda: of(changed((ATTEND, again)), step_time(0.12)),
    "repeated work: called three times, as one module does": lambda: of(
        changed((f"{ATTEND} {MODULES[1]}", lambda row: [row] * 3)), step_time(0.12)
    ),
    "more launches: more launches": lambda: of(
        changed((BLOCK, before_each(MUL, 50.0))), step_time(0.006, 0.001)
    ),
    "more launches: an optimizer in a loop": lambda: of(
        changed((TRAIN, lambda row: [(MUL, 2.0, row[2])] * 1500)),
        step_time(0.3),
        idle=7_000.0,
        idle_at=[(TRAIN, 7_000.0)],
    ),
    "host synchronisation: item": lambda: of(
        (*STEP_ROWS, (DOWN, 1.5, ITEM)),
        step_time(0.026),
        calls=[("cudaStreamSynchronize", ITEM, 12)],
        idle=1500.0,
        idle_at=[(TRAIN, 1000.0), (ITEM, 500.0)],
    ),
    "transfer: transfer": lambda: of(
        changed((TRAIN, before_each(UP, 900.0))),
        step_time(0.045),
        more("copy_bytes_h2d_pageable", 0, 12 * 2**20),
    ),
    "memory: memory": lambda: of(
        STEP_ROWS,
        step_time(0.1),
        calls=[("cudaMalloc", f"{BLOCK} blocks.1", 4), ("cudaFree", f"{BLOCK} blocks.1", 4)],
        idle=3_000.0,
        idle_at=[(TRAIN, 1000.0), (f"{BLOCK} blocks.1", 2_000.0)],
    ),
    "recompilation: graph breaks": lambda: of(
        STEP_ROWS, step_time(0.0), more("graph_breaks", 1, 3), more("compiled_graphs", 2, 4)
    ),
    "slower kernels: slower": lambda: of(
        changed((NORM, lambda row: [(row[0], 1.3 * row[1], row[2])])), step_time(0.048)
    ),
    "unknown: unknown": lambda: of(STEP_ROWS, step_time(0.019)),
    "more launches: of no line": lambda: against(
        compiled(3), compiled(1), step_time(0.15, before=6.4)
    ),
    "recompilation: compiled graphs": lambda: of(
        STEP_ROWS, step_time(0.0), more("compiled_graphs", 2, 4)
    ),
    "precision: far from the trace": lambda: of(changed((NORM, in_double)), step_time(0.5)),
}


def in_other_format(*converting: str) -> Attribution:
    """Of one activation that was turned channels-last, as seen on an H200."""
    times = {ADD_STRIDED: 800.0, ADD: 200.0, CONV: 5_000.0}
    names = [TO_NHWC, CONV, TO_NHWC, ADD], [*converting, CONV, ADD_STRIDED]
    before, after = ([(name, times.get(name, 30.0)) for name in side] for side in names)
    return between(before, after, step_time(0.1))


def half_conversions(others: int) -> Attribution:
    before = [(TO_NHWC, 30.0), (CONV, 5_000.0), *[(ADD, 200.0), (REDUCE, 100.0)][:others]]
    after = [(COPY, 30.0), (CONV, 5_000.0), *[(ADD_STRIDED, 800.0), (SOFTMAX, 300.0)][:others]]
    return between(before, after)


def in_pieces(pieces: int) -> Attribution:
    rows = changed((TRAIN, lambda row: [(MUL, 200.0, row[2])] * pieces))
    return of(rows, step_time(0.1))


def lines_of_one_function() -> Attribution:
    lines = changed((NORM, lambda row: [(row[0], row[1], row[2].replace("45", "46"))]))
    rows = [*lines, (MUL, 60.0, f"{NORM} x"), (MUL, 90.0, "layers.py:47 GroupNorm32.forward x")]
    return of((*rows, (MUL, 100.0, "other.py:1 f")), step_time(0.01))


def named(*others: str) -> Attribution:
    """Three kernels that are new and take most by all their launches, and others."""
    fewer = [(name, 1.0) for name in others for _ in range(9)]
    return between(CONVS, [*CONVS, *fewer, (ADD, 80.0), *[(MUL, 30.0)] * 3, (REDUCE, 20.0)])


THREE = short(MUL, ADD, REDUCE)

WORK: Cases = {
    "layout: formats are converted otherwise": partial(in_other_format, COPY, COPY),
    "algorithm: formats are not converted any more": in_other_format,
    "layout: half of what changed are conversions": partial(half_conversions, 1),
    "algorithm: less than half are": partial(half_conversions, 2),
    "algorithm: kernels of a line are gone and others have come": lambda: of(
        changed((ATTEND, summed)), step_time(0.1)
    ),
    **{
        f"{kind.value}: {pieces} pieces in place of one kernel": partial(in_pieces, pieces)
        for pieces, kind in ((20, Kind.ALGORITHM), (21, Kind.LAUNCHES))
    },
    "more launches: several lines of a function are one change at the worst": lines_of_one_function,
    "more launches: three are named": named,
    "more launches: and one more": partial(named, MOMENTS),
    "more launches: and two more": partial(named, MOMENTS, SOFTMAX),
    "more launches: operators are named by their number": lambda: against(
        operators((MM, FORWARD), *((name, NET_NORM) for name in (ADD_OP, RELU, RELU))),
        operators((MM, FORWARD)),
    ),
    "more launches: a single operator": lambda: against(
        operators((MM, FORWARD), (ADD_OP, NET_NORM)), operators((MM, FORWARD)), OPERATORS
    ),
    "layout: operators that are gone make up for others": lambda: against(
        operators(
            (MM, FORWARD),
            (RELU, NET_NORM),
            (MM, FORWARD),
            *[(CLONE, NET_NORM)] * 3,
            (ADD_OP, NET_NORM),
        ),
        operators(*[(RELU, NET_NORM)] * 3, (MM, FORWARD), (RELU, NET_NORM), (MM, FORWARD)),
        LAYOUT_COPIES,
    ),
    "layout: of two conversions that are new the longer": partial(
        between, CONVS, [*CONVS, (COPY, 100.0), (TO_NHWC, 60.0)]
    ),
    "layout: a conversion that takes longer than the new ones together": partial(
        between, [*CONVS, (COPY, 1e3)], [*CONVS, (TO_NHWC, 300.0), (TO_NCHW, 300.0), (COPY, 1.4e3)]
    ),
    "layout: a long conversion on another grid that hardly takes longer": partial(
        between, [*CONVS, (COPY, 1e3)], [*CONVS, (f"{COPY}@8", 1.1e3), *[(TO_NHWC, 150.0)] * 2]
    ),
    "layout: a conversion that takes as long as before": partial(
        between, [*CONVS, (TO_NHWC, 1e3)], [*CONVS, (TO_NHWC, 1e3), *[(COPY, 100.0)] * 3]
    ),
    "slower kernels: slower by most, not the slowest": partial(
        between, [(CONV, 3e3), (REDUCE, 200.0)], [(CONV, 3.2e3), (REDUCE, 600.0)]
    ),
    "slower kernels: slower by most": partial(
        between, [(CONV, 3e3), (REDUCE, 200.0)], [(CONV, 4e3), (REDUCE, 250.0)]
    ),
    "algorithm: the algorithm that costs most, not the longest": partial(
        between, [*CONVS, (GEMM, 300.0)], [(CONV_TILE, 5.2e3), (GEMM_TILE, 900.0)]
    ),
    "algorithm: the algorithm that costs most": partial(
        between, [*CONVS, (GEMM, 300.0)], [(CONV_TILE, 7e3), (GEMM_TILE, 900.0)]
    ),
    "precision: without call sites": lambda: against(
        table((CONV, 5e3), (ADD, 10.0), (MOMENTS.replace("float", "half"), 300.0)),
        table((FUSED, 50.0), (CONV, 5e3), (ADD, 10.0)),
    ),
}


def in_type(
    place: str, turned: Callable[[tuple[str, float, str]], list[tuple[str, float, str]]]
) -> Attribution:
    return of(changed((place, turned)), step_time(0.1))


def new_in_float64(*usual: str) -> Attribution:
    """New work in float64, in a function that launches the usual kernels."""
    old = [(ADAM, 3_000.0, TRAIN), *((name, 100.0, ITEM) for name in usual)]
    return against(sited(*old, (DOUBLE_MUL, 500.0, ITEM)), sited(*old))


def operators_of_module(usual: str, new: str) -> Attribution:
    """An operator's name has no data type, whatever its module is called."""
    rows = [("aten.mul", f"net.py:4 Net.norm {usual}")]
    after = operators(*rows, (ADD_OP, f"net.py:4 Net.norm {new}"))
    return against(after, operators(*rows), OPERATORS)


TYPES: Cases = {
    "precision: of a family": partial(in_type, NORM, in_double),
    "precision: of convolutions": partial(in_type, BLOCK, lambda row: [(CONV_F32, 9e3, row[2])]),
    "precision: of the kernels that have another one": partial(in_type, ATTEND, in_double),
    "precision: a fifth of what changed": partial(
        between, [(CONV, 100.0)], [(CONV_F32, 1e3), (MUL, 3.9e3)]
    ),
    "more launches: less than a fifth": partial(
        between, [(CONV, 100.0)], [(CONV_F32, 1e3), (MUL, 4.1e3)]
    ),
    "more launches: a module called half": partial(operators_of_module, "half", "double"),
    "more launches: a module called f64": partial(operators_of_module, "x.f32", "x.f64"),
    "precision: most of the time, not of the launches": partial(
        between,
        [(MOMENTS, 100.0), *[(FUSED, 10.0)] * 2],
        [(DOUBLE_MOMENTS, 1e3), *[(f"{FUSED}@2", 10.0)] * 2],
    ),
    **{
        f"{kind}: new float64 where {name} is usual": partial(new_in_float64, *usual)
        for kind, name, usual in (
            ("precision", "tf32", [CONV]),
            ("precision", "tf32 or float32", [CONV, MOMENTS]),
            ("precision", "a fill beside tf32", [ZEROS, CONV]),
            ("more launches", "a fill", [ZEROS]),
            ("more launches", "float64", [CONV.replace("tf32", "bf16"), DOUBLE_MUL]),
            ("more launches", "nothing", []),
        )
    },
}


def called_again(*again: Launched) -> Attribution:
    return between(ONCE, [*ONCE, *again])


def of_ten(count: int) -> Attribution:
    ten = [(f"{CONV}@{blocks}", 100.0) for blocks in range(1, 11)]
    return between(ten, [*ten, *ten[:count]])


def thrice_and_other(other: int) -> Attribution:
    """Done three times, where one launch in ten or two are other ones than before."""
    before = [*ONCE, *[(MOMENTS, 10.0)] * 2]
    rest = [*[(f"{MOMENTS}@8", 10.0)] * other, *[(MOMENTS, 10.0)] * (2 - other)]
    return between(before, [*ONCE * 3, *rest])


def known_again(names: tuple[str, ...], us: float, at: str) -> Attribution:
    known = [(name, 900.0) for name in (CONV, GEMM, SOFTMAX)]
    before = [*known, *((f"{MOMENTS}@{blocks}", 10.0) for blocks in range(1, 9))]
    return between(before, [*before, *((name, 900.0) for name in names), (MUL, us)], at=at)


def operators_again(counts: tuple[int, ...], other: int) -> Attribution:
    """Operators of which some are called less often again than they were."""
    names = ("aten.mean", "aten.sub", "aten.mul")
    before = [(name, NET_NORM) for name in names for _ in range(4)]
    new = [(n, NET_NORM) for n, count in zip(names, counts, strict=True) for _ in range(count)]
    return against(operators(*before, *new, *[(RELU, NET_NORM)] * other), operators(*before))


def done_again_with_sums() -> Attribution:
    """Of its launches two fifths are a sum of both, and of its time next to nothing."""
    once = changed((BLOCK, lambda row: [(name, 900.0, row[2]) for name in (CONV, GEMM, SOFTMAX)]))
    twice = [made for row in once for made in ([row, row] if BLOCK in row[2] else [row])]
    extra = [(name, 9.0, f"{BLOCK} blocks.{n}") for n in range(2) for name in (ADD, MUL)]
    others = [(MOMENTS, 10.0, f"{BLOCK} blocks.{n}") for n in range(2)] * 6
    return against(sited(*twice, *extra, *others), sited(*once, *others), step_time(0.2))


THREE_ONCE = short(CONV, GEMM, SOFTMAX)
BACKWARD = "layers.py:9 Scale.backward scale backward"

AGAIN: Cases = {
    "repeated work: nine tenths of the launches": partial(called_again, *ONCE[:4], (MOMENTS, 10.0)),
    "repeated work: less than nine tenths": partial(
        called_again, *ONCE[:3], (MOMENTS, 10.0), (FUSED, 10.0)
    ),
    "repeated work: three times": partial(called_again, *ONCE, *ONCE),
    "repeated work: nine tenths of twice as many": partial(of_ten, 8),
    "more launches: fewer of twice as many": partial(of_ten, 7),
    "repeated work: the backward pass alone": partial(
        between, [(MUL, 500.0)], [(MUL, 500.0)] * 2, at=BACKWARD
    ),
    "repeated work: one in ten is another": partial(thrice_and_other, 1),
    "more launches: two in ten are others": partial(thrice_and_other, 2),
    **{
        f"{kind.value}: {len(names)} kernels and {us:g} us more, {place}": partial(
            known_again, names, us, at
        )
        for place, at in (("in a module", f"{BLOCK} blocks.0"), ("in none", TRAIN))
        for names, us, kind in (
            ((CONV, GEMM, SOFTMAX), 299.0, Kind.REPEATED),
            ((CONV, GEMM, SOFTMAX), 301.0, Kind.LAUNCHES),
            ((CONV, GEMM), 1.0, Kind.LAUNCHES),
        )
    },
    "repeated work: nine tenths of the new operators": partial(operators_again, (3, 3, 3), 1),
    "more launches: fewer of the new operators": partial(operators_again, (3, 3, 2), 2),
    "repeated work: with a sum of both": done_again_with_sums,
}

TWO = [(CONV, 3e3), (GEMM, 3e3)]
TEN = [(f"{CONV}@{n}", 3e3) for n in range(1, 11)]

MOST: Cases = {
    **{
        f"{kind.value}: am": partial(between, before, after)
        for name, before, after, kind in (
            ("slower", TWO, [(CONV, 3.3e3), (GEMM, 3.3e3), (MUL, 500.0)], Kind.SLOWER),
            ("new", TWO, [(CONV, 3.3e3), (GEMM, 3e3), (MUL, 500.0)], Kind.LAUNCHES),
            (
                "all slower by what noise may be",
                TEN,
                [*((name, 3.012e3) for name, _ in TEN), (MUL, 60.0)],
                Kind.LAUNCHES,
            ),
            (
                "another tile, hardly slower",
                CONVS,
                [(CONV_TILE, 5.2e3), (MUL, 900.0)],
                Kind.LAUNCHES,
            ),
            (
                "what is gone makes up for what has come",
                [*CONVS, (REDUCE, 450.0)],
                [*CONVS, (MUL, 500.0), (UP, 100.0)],
                Kind.TRANSFER,
            ),
            ("a product is gone", [*CONVS, (GEMM, 300.0)], [*CONVS, (TO_NHWC, 400.0)], Kind.LAYOUT),
            (
                "of as much the conversions",
                CONVS,
                [(TO_NHWC, 50.0), (TO_NCHW, 50.0), *CONVS, (MUL, 100.0)],
                Kind.LAYOUT,
            ),
            (
                "of as much the conversions, less what is gone",
                [(MUL, 100.0), (MUL, 100.0), *CONVS],
                [(MUL, 100.0), *CONVS, (TO_NHWC, 100.0), (REDUCE, 200.0)],
                Kind.LAYOUT,
            ),
            ("a fill", CONVS, [(ZEROS, 100.0), *CONVS], Kind.LAUNCHES),
            ("a copy", CONVS, [(ACROSS, 100.0), *CONVS], Kind.TRANSFER),
            (
                "a copy for a fill",
                [(ZEROS, 50.0), *CONVS],
                [(ACROSS, 100.0), *CONVS],
                Kind.TRANSFER,
            ),
            (
                "a fill for a copy",
                [(ACROSS, 50.0), *CONVS],
                [(ZEROS, 100.0), *CONVS],
                Kind.ALGORITHM,
            ),
        )
    },
    "slower kernels: slower although a launch is gone": partial(
        between, [*CONVS, (MUL, 30.0)], [(CONV, 5_040.0)]
    ),
    "slower kernels: other kernels that take exactly as long": partial(
        between, [(CONV, 3_000.0)], [(MUL, 1_000.0)] * 3
    ),
    "more launches: another shape that the host launches slowly": lambda: bound(
        changed((NORM, lambda row: [(f"{row[0]}@8", row[1] / 2, row[2])])),
        5_000.0,
        step_time(0.3, 0.29),
    ),
}


CASES: Cases = {**KINDS, **WORK, **TYPES, **AGAIN, **MOST}
EXPECTED = expected("kernels.txt")


@pytest.mark.parametrize("name", CASES)
def test_the_cause_of_a_loss(name: str) -> None:
    """Its kind, line and numbers, and the golden text of its sentence."""
    attribution = CASES[name]()
    assert cause(attribution).kind.value == name.partition(":")[0]
    assert said(attribution) == EXPECTED[name]


def test_what_did_not_regress_has_no_cause() -> None:
    slower = changed((NORM, in_double))
    assert of(slower, step_time(0.0)).cause is None
    assert of(slower).cause is not None
    assert of().cause is None
    assert of(changed((NORM, lambda row: [(row[0], row[1] / 2, row[2])]))).cause is None


# Steps of an H200


def test_attention_that_is_computed_twice_is_called_twice_in_four_modules() -> None:
    whole = counted("tf32-sites")
    forward = [at for at in launched(whole, "SelfAttention._attend") if not backward(whole, at)]
    order = sorted([*range(len(whole.launches)), *forward])
    twice = replace(
        whole,
        launches=tuple(whole.launches[i] for i in order),
        site_of=tuple(whole.site_of[i] for i in order),
    )
    told = cause(against(twice, whole, step_time(0.003, 0.001, 231.0)))
    assert (told.kind, told.times, len(told.modules)) == (Kind.REPEATED, 2, 4)
    assert told.line.startswith("suites/meddpm/model/layers.py:10")
    assert told.change == pytest.approx(0.693e6)


def launched(whole: KernelTable, function: str) -> list[int]:
    return [at for at, site in enumerate(whole.site_of) if whole.sites[site].function == function]


def backward(whole: KernelTable, at: int) -> bool:
    return whole.sites[whole.site_of[at]].backward


def test_one_norm_in_float64_is_told_by_its_line() -> None:
    whole = counted("tf32-sites")
    places = launched(whole, "GroupNorm32.forward")
    names = (*whole.names, *(name.replace("float", "double") for name in whole.names))
    launches = list(whole.launches)
    for at in places:
        launches[at] = replace(launches[at], name=launches[at].name + len(whole.names))
    norm = slowed(replace(with_launches(whole, launches), names=names), places, 2.0)
    told = cause(against(norm, whole, step_time(0.26, 0.002, 231.0)))
    assert (told.kind, told.what, told.formerly) == (Kind.PRECISION, "float64", "float32")
    assert (told.line, len(told.modules)) == ("suites/meddpm/model/layers.py:45", 39)


@pytest.mark.parametrize(
    ("measured", "baseline", "kind", "family"),
    [
        ("baseline", "tf32", Kind.PRECISION, "convolution-weight-gradient"),
        ("tf32", "bf16", Kind.PRECISION, "convolution-weight-gradient"),
        ("tf32_channels_last", "tf32", Kind.LAYOUT, "layout"),
        ("adam-foreach-off", "tf32", Kind.LAUNCHES, "elementwise"),
    ],
)
def test_without_call_sites_it_is_told_and_counted_by_the_family(
    measured: str, baseline: str, kind: Kind, family: str
) -> None:
    """Of conversions those that are named."""
    told = cause(against(traced(measured), traced(baseline)))
    assert (told.kind, told.family, told.line, told.function) == (kind, family, "", "")

    def counts(name: str) -> bool:
        if kind is Kind.LAYOUT:
            return kernel_families.short_name(name) == told.what
        return kernel_families.family(name) == family

    assert [told.before, told.after] == [
        sum(counts(step.names[launch.name]) for launch in step.launches)
        for step in (traced(baseline), traced(measured))
    ]


def test_identical_steps_have_no_cause() -> None:
    one, other = counted("tf32-core"), counted("tf32-core-1")
    assert attribute(other, one, NAMING).cause is None
    assert attribute(other, one, NAMING, [step_time(0.001)]).cause is None


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
    new = slowed(every, [most], 1 + share * 0.1 * sum(times) / (1.1 * times[most]))
    told = attribute(new, one, NAMING, verdicts=[step_time(0.1 * (1 + share))])
    assert told.shift == pytest.approx(0.1)
    assert (told.cause is not None) is named
    assert ("clocks, power or another GPU?" in sentence(told)) is not named


# Names of kernels


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (CONV, "tf32"),
        (CONV_F32, "float32"),
        (MOMENTS, "float32"),
        (DOUBLE_MOMENTS, "float64"),
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


if __name__ == "__main__":
    record("kernels.txt", CASES)
