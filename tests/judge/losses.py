"""Steps that lost something: realistic kernels, a line each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from pytest_gpuperf.catalogue import kernel_families
from pytest_gpuperf.judge.attribution import Naming, attribute
from pytest_gpuperf.model.measurement import GRAPH_BREAK, CallSite, HostCall, KernelTable
from pytest_gpuperf.model.result import Attribution, Cause, Outcome, Verdict
from pytest_gpuperf.model.result import CauseKind as Kind
from tests.examples import verdict
from tests.kernel_steps import Sited, operators, sited, table

NAMING = Naming(*kernel_families.NAMING)

MOMENTS = "void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<float>(long, float)"
FUSED = "void at::native::(anonymous namespace)::ComputeFusedParamsCUDAKernel<float>(long, long)"
CONV = (
    "sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x64x32_"
    "warpgroupsize1x1x1_g1_execute_segment_k_off_kernel__5x_cudnn"
)
CONV_F32 = (
    "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize256x64x8_"
    "stage3_warpsize2x2x1_g1_ffma_aligna4_alignc4_execute_kernel__5x_cudnn"
)
TO_NHWC = "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, false, true>(int)"
COPY = (
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::"
    "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}>(at::TensorIteratorBase&)"
)
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
ADD_STRIDED = (
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::"
    "CUDAFunctor_add<float> >(at::TensorIteratorBase&, at::native::CUDAFunctor_add<float> const&)"
)
GEMM = (
    "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x64x32_warpgroupsize1x1x1_"
    "execute_segment_k_off_kernel__5x_cublas"
)
SOFTMAX = (
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, false>(f)"
)
MUL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, "
    "float, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int)"
)
ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
    "namespace)::TensorListMetadata<3>, at::native::(anonymous namespace)::FusedAdam<float> >(int)"
)
REDUCE = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::"
    "func_wrapper_t<float, at::native::sum_functor<float, float, float> >, unsigned int> >(int)"
)
UP, DOWN = "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pageable)"
UP_PINNED = UP.replace("Pageable", "Pinned")
ACROSS, ZEROS = "Memcpy DtoD (Device -> Device)", "Memset (Device)"
CONV_TILE = CONV.replace("64x64x32", "32x32x32")

NORM, ATTEND = "layers.py:45 GroupNorm32.forward", "layers.py:118 SelfAttention._attend"
BLOCK, TRAIN = "layers.py:75 ResidualBlock.forward", "training.py:95 Training.step"
MODULES = ("downs.0.attention", "middle.attention")

STEP_ROWS: tuple[Sited, ...] = (
    *((CONV, 5_000.0, f"{BLOCK} blocks.{n}") for n in range(2)),
    *((name, 800.0, f"{NORM} blocks.{n}.norm") for n in range(2) for name in (MOMENTS, FUSED)),
    *((name, 400.0, f"{ATTEND} {m}") for m in MODULES for name in (GEMM, SOFTMAX, GEMM)),
    (GEMM, 900.0, f"{ATTEND} {MODULES[0]} backward"),
    (ADAM, 3_000.0, f"{TRAIN}"),
)
"""A step of some 20 ms."""


def step_time(change: float, half: float = 0.002, before: float = 20.0) -> Verdict:
    """The verdict on the step's time, whose change is known to within `half`."""
    regressed = change > half
    made = verdict(
        "step_time",
        Outcome.REGRESSED if regressed else Outcome.UNCHANGED,
        unit="ms",
        baseline=before,
        measured=before * (1 + change),
        change=change,
    )
    return replace(made, low=change - half, high=change + half)


def more(metric: str, before: float, after: float) -> Verdict:
    """A metric that is counted and regressed."""
    change = after / before - 1 if before else None
    return verdict(metric, unit="calls", baseline=before, measured=after, change=change)


def changed(*changes: tuple[str, Callable[[Sited], Sequence[Sited]]]) -> tuple[Sited, ...]:
    """The step's rows, those of a function (by part of its place) turned into others."""
    rows: list[Sited] = []
    for row in STEP_ROWS:
        made: Sequence[Sited] = [row]
        for part, turned in changes:
            made = turned(row) if part in row[2] else made
        rows += made
    return tuple(rows)


def of(
    rows: Sequence[Sited] = STEP_ROWS,
    *verdicts: Verdict,
    calls: Sequence[tuple[str, str, int]] = (),
    called: Sequence[tuple[str, str, int]] = (),
    idle_at: Sequence[tuple[str, float]] = (),
    idle: float = 1000.0,
) -> Attribution:
    """What is said of these rows against the step as it was, when it `called` these."""
    after = sited(*rows, calls=calls, idle_at=idle_at, idle=idle)
    before = sited(*STEP_ROWS, calls=called, idle_at=[(f"{TRAIN}", 1000.0)], idle=1000.0)
    return attribute(after, before, NAMING, verdicts)


def cause(attribution: Attribution) -> Cause:
    assert attribution.cause is not None
    return attribution.cause


Cases = dict[str, Callable[[], Attribution]]
"""Losses by the kind of their cause, and what is special about each."""


def against(after: KernelTable, before: KernelTable, *verdicts: Verdict) -> Attribution:
    return attribute(after, before, NAMING, verdicts)


Launched = tuple[str, float]
"""A kernel's name, "@8" behind it for a grid of 8, and its microseconds."""


def between(
    before: Sequence[Launched], after: Sequence[Launched], *verdicts: Verdict, at: str = ""
) -> Attribution:
    """What is said of a step of a single function that launched other kernels before."""
    place = at or f"{BLOCK} blocks.0"
    now, then = (sited(*((name, us, place) for name, us in side)) for side in (after, before))
    return against(now, then, *verdicts)


def in_double(row: Sited) -> list[Sited]:
    return [(row[0].replace("float", "double"), 2 * row[1], row[2])]


def before_each(name: str, us: float, *, times: int = 1) -> Callable[[Sited], list[Sited]]:
    """Another kernel put in before each of the rows."""
    return lambda row: [*[(name, us, row[2])] * times, row]


def again(row: Sited) -> list[Sited]:
    return [row] if "backward" in row[2] else [row, row]


ITEM = "layers.py:77 ResidualBlock.forward blocks.0"


def bound(rows: Sequence[Sited], idle: float, *verdicts: Verdict) -> Attribution:
    """What is said where the GPU waits for the host for so many more microseconds.

    It waits at other lines than before: where the host is late is another place in each execution.
    """
    return of(
        rows,
        *verdicts,
        idle=1_000.0 + idle,
        idle_at=[(f"{ATTEND} {MODULES[0]}", 1_000.0 + idle)],
    )


# Losses of kernels

CONVS = [(CONV, 5e3)]
ONCE = [(CONV, 900.0), (GEMM, 800.0), (SOFTMAX, 700.0), (ADD, 600.0), (MUL, 500.0)]
MM, ADD_OP, RELU, CLONE = (f"aten.{name}" for name in ("mm", "add", "relu", "clone"))
FORWARD, NET_NORM = "net.py:3 Net.forward a", "net.py:4 Net.norm a"
DOUBLE_MOMENTS, DOUBLE_MUL = (name.replace("float", "double") for name in (MOMENTS, MUL))
OPERATORS = verdict("operators")
LAYOUT_COPIES = verdict("layout_copies", unit="copies", baseline=0.0, measured=3.0, change=None)


KINDS: Cases = {
    "layout: layout": lambda: of(changed((BLOCK, before_each(TO_NHWC, 300.0))), step_time(0.03)),
    "repeated work: called twice": lambda: of(changed((ATTEND, again)), step_time(0.12)),
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
}


def half_conversions(others: int) -> Attribution:
    before = [(TO_NHWC, 30.0), (CONV, 5_000.0), *[(ADD, 200.0), (REDUCE, 100.0)][:others]]
    after = [(COPY, 30.0), (CONV, 5_000.0), *[(ADD_STRIDED, 800.0), (SOFTMAX, 300.0)][:others]]
    return between(before, after)


def in_pieces(pieces: int) -> Attribution:
    rows = changed((TRAIN, lambda row: [(MUL, 200.0, row[2])] * pieces))
    return of(rows, step_time(0.1))


WORK: Cases = {
    "layout: half of what changed are conversions": partial(half_conversions, 1),
    "algorithm: less than half are": partial(half_conversions, 2),
    **{
        f"{kind.value}: {pieces} pieces in place of one kernel": partial(in_pieces, pieces)
        for pieces, kind in ((20, Kind.ALGORITHM), (21, Kind.LAUNCHES))
    },
    "layout: operators that are gone make up for others": lambda: against(
        operators(
            (MM, FORWARD),
            (RELU, NET_NORM),
            (MM, FORWARD),
            *[(CLONE, NET_NORM)] * 3,
            (ADD_OP, NET_NORM),
            counts=True,
            clone_layout_copies=1,
        ),
        operators(*[(RELU, NET_NORM)] * 3, (MM, FORWARD), (RELU, NET_NORM), (MM, FORWARD)),
        LAYOUT_COPIES,
    ),
    "precision: without call sites": lambda: against(
        table((CONV, 5e3), (ADD, 10.0), (MOMENTS.replace("float", "half"), 300.0)),
        table((FUSED, 50.0), (CONV, 5e3), (ADD, 10.0)),
    ),
}


def new_in_float64(*usual: str) -> Attribution:
    """New work in float64, in a function that launches the usual kernels."""
    old = [(ADAM, 3_000.0, TRAIN), *((name, 100.0, ITEM) for name in usual)]
    return against(sited(*old, (DOUBLE_MUL, 500.0, ITEM)), sited(*old))


TYPES: Cases = {
    "precision: a fifth of what changed": partial(
        between, [(CONV, 100.0)], [(CONV_F32, 1e3), (MUL, 3.9e3)]
    ),
    "more launches: less than a fifth": partial(
        between, [(CONV, 100.0)], [(CONV_F32, 1e3), (MUL, 4.1e3)]
    ),
    **{
        f"{kind}: new float64 where {name} is usual": partial(new_in_float64, *usual)
        for kind, name, usual in (
            ("precision", "tf32 or float32", [CONV, MOMENTS]),
            ("more launches", "float64", [CONV.replace("tf32", "bf16"), DOUBLE_MUL]),
        )
    },
}


def thrice_and_other(other: int) -> Attribution:
    """Done three times, where one launch in ten or two are other ones than before."""
    before = [*ONCE, *[(MOMENTS, 10.0)] * 2]
    rest = [*[(f"{MOMENTS}@8", 10.0)] * other, *[(MOMENTS, 10.0)] * (2 - other)]
    return between(before, [*ONCE * 3, *rest])


def known_again(names: tuple[str, ...], us: float) -> Attribution:
    known = [(name, 900.0) for name in (CONV, GEMM, SOFTMAX)]
    before = [*known, *((f"{MOMENTS}@{blocks}", 10.0) for blocks in range(1, 9))]
    return between(before, [*before, *((name, 900.0) for name in names), (MUL, us)])


def operators_again(count: int) -> Attribution:
    """Operators that were called twice each, and are called so often."""
    rows = [(name, NET_NORM) for name in ("aten.mean", "aten.sub", "aten.mul")]
    return against(operators(*rows * count), operators(*rows * 2), OPERATORS)


def costing(*rows: tuple[str, str], **of: float) -> KernelTable:
    """Operators of which the matrix product costs, and what `of` says."""
    return operators(*rows, counts=True, **{"mm_flops": 64.0, "bmm_flops": 80.0, **of})


VIEW, BMM, CAST = "aten.view", "aten.bmm", "aten._to_copy"
ONE = ((MM, FORWARD), (RELU, NET_NORM))
ENGINE = " backward@1 < train.py:9 step@1"


def left_at_a_line(*verdicts: Verdict) -> Attribution:
    breaks = HostCall(f"{GRAPH_BREAK}: dynamo knows no print", 1, 2)
    return against(replace(costing(*ONE), calls=(breaks,)), costing(*ONE), *verdicts, OPERATORS)


FLOPS = verdict("flops", unit="FLOP")
SAVED, KEPT = (verdict(metric, unit="bytes") for metric in ("saved_bytes", "kept_memory"))
OPERATORS_COST: Cases = {
    "more of a count: a wider layer": lambda: against(
        costing(*ONE, mm_flops=128), costing(*ONE), FLOPS, SAVED
    ),
    "more of a count: what is kept, not what is called otherwise": lambda: against(
        costing((VIEW, FORWARD), *ONE, relu_kept_memory=8),
        costing(*ONE, (VIEW, NET_NORM)),
        KEPT,
    ),
    "algorithm: operators that compute, of which there was none": lambda: against(
        costing((VIEW, FORWARD), (BMM, FORWARD), ONE[1]), costing(*ONE), FLOPS
    ),
    "more launches: a product that was there already": lambda: against(
        costing((BMM, FORWARD), (BMM, FORWARD), ONE[1]), costing((BMM, FORWARD), *ONE), FLOPS
    ),
    "precision: operators, by the first that has another type": lambda: against(
        costing((f"{MM} float64", FORWARD), (f"{RELU} float64", NET_NORM), relu_saved_bytes=8),
        costing((f"{MM} float32", FORWARD), (f"{RELU} float32", NET_NORM), relu_saved_bytes=4),
        SAVED,
    ),
    "precision: with the cast that comes along": lambda: against(
        costing(ONE[0], (f"{CAST} float64", NET_NORM), (f"{RELU} float64", NET_NORM)),
        costing(ONE[0], (f"{RELU} float32", NET_NORM)),
        OPERATORS,
    ),
    "more of a count: where operators have more to do from another function on": lambda: against(
        costing((ADD_OP, "data.py:2 padded"), *ONE, add_made_bytes=8, mm_flops=128),
        costing((ADD_OP, "data.py:2 padded"), *ONE, add_made_bytes=4),
        FLOPS,
    ),
    "repeated work: operators of the backward pass alone": lambda: against(
        costing(*ONE, (MM, f"{FORWARD} < {ENGINE}"), (MM, f"{FORWARD} < {ENGINE}")),
        costing(*ONE, (MM, f"{FORWARD} < {ENGINE}")),
        FLOPS,
    ),
    "unknown: no operator has more of it": lambda: against(costing(*ONE), costing(*ONE), SAVED),
    "recompilation: a graph is left at a line": partial(
        left_at_a_line, verdict("compiled_graphs", unit="graphs", baseline=1.0, measured=3.0)
    ),
    "recompilation: and no metric counts it": left_at_a_line,
}

BACKWARD = "layers.py:9 Scale.backward scale backward"

AGAIN: Cases = {
    "repeated work: the backward pass alone": partial(
        between, [(MUL, 500.0)], [(MUL, 500.0)] * 2, at=BACKWARD
    ),
    "repeated work: one in ten is another": partial(thrice_and_other, 1),
    "more launches: two in ten are others": partial(thrice_and_other, 2),
    **{
        f"{kind.value}: {len(names)} kernels and {us:g} us more, in a module": partial(
            known_again, names, us
        )
        for names, us, kind in (
            ((CONV, GEMM, SOFTMAX), 299.0, Kind.REPEATED),
            ((CONV, GEMM, SOFTMAX), 301.0, Kind.LAUNCHES),
            ((CONV, GEMM), 1.0, Kind.LAUNCHES),
        )
    },
    "more launches: operators that are known": partial(operators_again, 3),
}

TEN = [(f"{CONV}@{n}", 3e3) for n in range(1, 11)]

MOST: Cases = {
    **{
        f"{kind.value}: {name}": partial(between, before, after)
        for name, before, after, kind in (
            (
                "all slower by what noise may be",
                TEN,
                [*((name, 3.012e3) for name, _ in TEN), (MUL, 60.0)],
                Kind.LAUNCHES,
            ),
            ("a fill", CONVS, [(ZEROS, 100.0), *CONVS], Kind.LAUNCHES),
        )
    },
    "more launches: another shape that the host launches slowly": lambda: bound(
        changed((NORM, lambda row: [(f"{row[0]}@8", row[1] / 2, row[2])])),
        5_000.0,
        step_time(0.3, 0.29),
    ),
}


# Losses of the host

LOAD, ASK = "data.py:8 Volumes.load", "net.py:9 Net.forward net"
"""Lines that launch nothing."""
WAIT, ALLOC, FREE = "cudaStreamSynchronize", "cudaMalloc", "cudaFree"
SYNC_ALL = "cudaDeviceSynchronize"
WAITS, ALLOCATES = "stream_synchronizations", "driver_allocations"
SAME_TIME = step_time(0.0)


def two_blocks(launches: int) -> tuple[Sited, ...]:
    """A step with so many more launches in each of its two blocks."""
    return changed((BLOCK, before_each(MUL, 2.0, times=launches)))


def compiled_code(longer: float) -> Attribution:
    """Compiled code of no line takes 0.5 ms longer; the host is somewhere for 0.7 ms more."""

    def step(compiled: float, norm: float, idle: float) -> KernelTable:
        rows = [(CONV, 5e3, BLOCK), (MUL, compiled, "x x"), (MOMENTS, norm, NORM)]
        made = sited(*rows, idle=idle, idle_at=[(NORM, 100.0)])
        return replace(
            made, sites=tuple(CallSite("", "") if s.line == "x" else s for s in made.sites)
        )

    lost = (500.0 + longer + 700.0) / 7_100.0
    after, before = step(1_500.0, 1_000.0 + longer, 800.0), step(1_000.0, 1_000.0, 100.0)
    return against(after, before, step_time(lost, before=7.1))


GAP: Cases = {
    "host time: 19 launches": partial(bound, two_blocks(19), 4_200.0, step_time(0.22, 0.0201)),
    "more launches: 20 launches, the step not judged": partial(bound, two_blocks(20), 4e3),
    "more launches: not beyond the step's noise": partial(
        bound,
        changed((BLOCK, before_each(MUL, 50.0))),
        4e3,
        step_time(0.2, 0.21),
        more("launches", 12, 14),
    ),
    "host synchronisation: a single new call": partial(
        of,
        two_blocks(20),
        step_time(0.3, 0.29),
        calls=[(WAIT, ASK, 1)],
        idle=6e3,
        idle_at=[(TRAIN, 2e3)],
    ),
    "host time: at no line, with what is known of none": partial(compiled_code, 1_100.0),
}


# Copies


def unpinned(former: str, waits: int) -> Attribution:
    """Sent out of pageable memory, in place of another copy, where the host waits so often."""
    after = sited(*STEP_ROWS, (UP, 40.0, ITEM), calls=[(WAIT, ITEM, waits)])
    return against(after, sited(*STEP_ROWS, (former, 40.0, ITEM)), SAME_TIME, more(WAITS, 0, waits))


def uncompiled_copies() -> Attribution:
    """Kernels of no line are not those that copy."""
    made = sited(*STEP_ROWS, (MUL, 50.0, "x x"))
    compiled = replace(made, sites=(*made.sites[:-1], CallSite("", "")))
    return against(compiled, compiled, SAME_TIME, DOWN_PINNED)


MANAGED = UP.replace("-> Device", "-> Managed")

DOWN_PINNED = verdict("copy_bytes_d2h_pinned", unit="bytes", baseline=3e6, measured=7e6)
COPIES: Cases = {
    "transfer: once more than before": partial(
        of,
        (*STEP_ROWS, (UP, 40.0, ITEM)),
        SAME_TIME,
        more(WAITS, 4, 5),
        called=[(WAIT, ITEM, 4)],
        calls=[(WAIT, ITEM, 5)],
    ),
    "transfer: no longer pinned": partial(unpinned, UP_PINNED, 1),
    "host synchronisation: waited for before as well": partial(unpinned, MANAGED, 1),
    "transfer: counted, of the function that copies most often": partial(
        of,
        [*STEP_ROWS, *[(UP, 40.0, f"{NORM} x")] * 2, *[(DOWN, 1.5, ITEM)] * 3],
        SAME_TIME,
        more("copies", 0, 5),
    ),
    "transfer: counted in bytes, without a count": uncompiled_copies,
}

# What the host is counted to do

COMPILED = more("recompilations", 0, 2)
COPIED, WAITED = more("copies", 2, 5), more(WAITS, 3, 9)
LOST = replace(more("compiled_graphs", 1, 0), reason="not-compiled")
WAITS_AT_ITEM = [(WAIT, ITEM, 12)]
AT_LOAD = [(TRAIN, 1_000.0), (LOAD, 5_000.0)]
ONE_MORE = changed((BLOCK, before_each(MUL, 50.0)))
IN_DOUBLE = changed((NORM, in_double))

COUNTS: Cases = {
    "host synchronisation: the time is not judged, alone": partial(
        of, IN_DOUBLE, more(WAITS, 0, 12), calls=WAITS_AT_ITEM
    ),
    "precision: the time is not judged, beside others": partial(
        of, IN_DOUBLE, more(WAITS, 0, 12), verdict("cycles"), calls=WAITS_AT_ITEM
    ),
    "host synchronisation: the time is as it was, beside others": partial(
        of, IN_DOUBLE, SAME_TIME, more(WAITS, 0, 12), verdict("cycles"), calls=WAITS_AT_ITEM
    ),
    "recompilation: a loss that the trace does not see": partial(
        of, ONE_MORE, step_time(0.1), COMPILED
    ),
    "recompilation: a loss of which it sees nothing": partial(
        of, STEP_ROWS, step_time(0.01), COMPILED
    ),
    "host synchronisation: a single new call at another function": partial(
        of, changed((NORM, before_each(MUL, 50.0))), step_time(0.1), calls=[(SYNC_ALL, ITEM, 1)]
    ),
    **{
        f"{kind.value}: while the GPU waits: {metric}": partial(
            of, STEP_ROWS, step_time(0.25), more(metric, 1, 4), idle=6e3, idle_at=AT_LOAD
        )
        for metric, kind in (
            (ALLOCATES, Kind.MEMORY),
            ("copies", Kind.HOST),
        )
    },
    "more launches: a loss of which the trace sees little": partial(of, ONE_MORE, step_time(0.1)),
    "recompilation: torch.compile is lost": partial(of, ONE_MORE, step_time(0.25), LOST, COPIED),
}

# Calls


def launching(count: int, *rows: tuple[str, float]) -> Attribution:
    """New launches where the host waits."""
    new = [(name, us, ITEM) for name, us in rows]
    return of((*STEP_ROWS, *new), step_time(0.045), calls=[(WAIT, ITEM, count)])


def in_blocks(turned: Callable[[Sited], Sequence[Sited]]) -> Attribution:
    """The host waits where kernels are others or take longer."""
    return of(changed((BLOCK, turned)), step_time(0.05), calls=[(WAIT, ITEM, 3)])


ASKED = more(ALLOCATES, 0, 8)
SAME_FUNCTION = "layers.py:79 ResidualBlock.forward blocks.0"

CALLS: Cases = {
    "host synchronisation: a copy alone comes with them": partial(launching, 1, (DOWN, 900.0)),
    "transfer: where kernels are others": partial(
        in_blocks, lambda row: [(CONV_TILE, 5_100.0, row[2]), (UP, 400.0, row[2])]
    ),
    "host synchronisation: of one kind together, at the line with most new ones": partial(
        of,
        STEP_ROWS,
        SAME_TIME,
        more(WAITS, 100, 107),
        called=[(WAIT, ITEM, 100)],
        calls=[
            (WAIT, ITEM, 102),
            (SYNC_ALL, "layers.py:79 ResidualBlock.forward blocks.1", 5),
            (ALLOC, f"{BLOCK} blocks.2", 3),
        ],
    ),
    "memory: who asks for memory may wait besides": partial(
        of, STEP_ROWS, SAME_TIME, ASKED, calls=[(ALLOC, ITEM, 8), (WAIT, ITEM, 1)]
    ),
    "memory: the one that gives it back, not the most": partial(
        of, STEP_ROWS, SAME_TIME, ASKED, calls=[(ALLOC, ITEM, 5), (FREE, SAME_FUNCTION, 2)]
    ),
    "host time: of neither kind": partial(
        of,
        STEP_ROWS,
        step_time(0.25),
        calls=[("cudaGraphLaunch", TRAIN, 5)],
        idle=6e3,
        idle_at=[(TRAIN, 6e3)],
    ),
}


LOSSES: dict[str, Cases] = {
    "kernels.txt": {**KINDS, **WORK, **TYPES, **AGAIN, **MOST},
    "host.txt": {**GAP, **COPIES, **COUNTS, **CALLS},
    "operators.txt": OPERATORS_COST,
}
"""By the file of tests/data/causes that has what is said of them."""
