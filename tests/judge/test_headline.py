"""Of what kind a loss is, and whose it is: realistic kernels, a line each, and real steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from pytest_gpuperf.catalogue import kernel_families
from pytest_gpuperf.judge.attribution import Naming, attribute
from pytest_gpuperf.judge.headline import precision
from pytest_gpuperf.model.measurement import STEP, CallSite, KernelTable
from pytest_gpuperf.model.result import Attribution, Headline, LossKind, Outcome, Verdict
from pytest_gpuperf.report.text.kernel_lines import sentence
from tests import ROOT
from tests.examples import verdict
from tests.kernel_steps import (
    Sited,
    counted,
    operators,
    sited,
    slowed,
    table,
    traced,
    with_launches,
)

NAMING = Naming(kernel_families.family, kernel_families.short_name)

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
WINOGRAD = "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(cudnn::winograd)"
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
    idle_at: Sequence[tuple[str, float]] = (),
    idle: float = 1000.0,
) -> Attribution:
    """What is said of these rows against the step as it was."""
    after = sited(*rows, calls=calls, idle_at=idle_at, idle=idle)
    before = sited(*STEP_ROWS, idle_at=[(f"{TRAIN}", 1000.0)], idle=1000.0)
    return attribute(after, before, NAMING, verdicts)


def cause(attribution: Attribution) -> Headline:
    assert attribution.headline is not None
    return attribution.headline


def in_double(row: Sited) -> list[Sited]:
    return [(row[0].replace("float", "double"), 2 * row[1], row[2])]


def before_each(name: str, us: float, *, times: int = 1) -> Callable[[Sited], list[Sited]]:
    """Another kernel put in before each of the rows."""
    return lambda row: [*[(name, us, row[2])] * times, row]


def again(row: Sited) -> list[Sited]:
    return [row] if "backward" in row[2] else [row, row]


ITEM = "layers.py:77 ResidualBlock.forward blocks.0"

KINDS = {
    "float64": (
        of(changed((NORM, in_double)), step_time(0.16)),
        LossKind.PRECISION,
        "+3.2 ms (+16.00 %): layers.py:45 GroupNorm32.forward runs in float64 (2 modules); "
        "was float32",
    ),
    "no tf32": (
        of(changed((BLOCK, lambda row: [(CONV_F32, 9_000.0, row[2])])), step_time(0.4)),
        LossKind.PRECISION,
        "+8 ms (+40.00 %): layers.py:75 ResidualBlock.forward runs in float32 (2 modules); "
        "was tf32",
    ),
    "layout": (
        of(changed((BLOCK, before_each(TO_NHWC, 300.0))), step_time(0.03)),
        LossKind.LAYOUT,
        "+0.6 ms (+3.00 %): layers.py:75 ResidualBlock.forward converts the layout (2 modules): "
        "nchwToNhwcKernel f32x3 F T, 2 launches; none before",
    ),
    "called twice": (
        of(changed((ATTEND, again)), step_time(0.12)),
        LossKind.REPEATED,
        "+2.4 ms (+12.00 %): layers.py:118 SelfAttention._attend is called twice (2 modules); "
        "was once",
    ),
    "called three times, as one module does": (
        of(changed((f"{ATTEND} {MODULES[1]}", lambda row: [row] * 3)), step_time(0.12)),
        LossKind.REPEATED,
        "+2.4 ms (+12.00 %): layers.py:118 SelfAttention._attend is called 3 times "
        "(middle.attention); was once",
    ),
    "another algorithm": (
        of(changed((BLOCK, lambda row: [(WINOGRAD, 7_000.0, row[2])])), step_time(0.2)),
        LossKind.PRECISION,
        "+4 ms (+20.00 %): layers.py:75 ResidualBlock.forward runs in float32 (2 modules); "
        "was tf32",
    ),
    "another tile": (
        of(
            changed((BLOCK, lambda row: [(row[0].replace("64x64x32", "32x32x32"), 7e3, row[2])])),
            step_time(0.2),
        ),
        LossKind.ALGORITHM,
        "+4 ms (+20.00 %): layers.py:75 ResidualBlock.forward uses sm90_xmma_fprop tf32 32x32x32 "
        "(2 modules); was sm90_xmma_fprop tf32 64x64x32",
    ),
    "more launches": (
        of(changed((BLOCK, before_each(MUL, 50.0))), step_time(0.006, 0.001)),
        LossKind.LAUNCHES,
        "+0.12 ms (+0.60 %): layers.py:75 ResidualBlock.forward launches 2 more kernels "
        "(vectorized_elementwise Binary Mul f32, 2 modules); were 2",
    ),
    "an optimizer in a loop": (
        of(
            changed((TRAIN, lambda row: [(MUL, 2.0, row[2])] * 1500)),
            step_time(0.3),
            idle=7_000.0,
            idle_at=[(TRAIN, 7_000.0)],
        ),
        LossKind.LAUNCHES,
        "+6 ms (+30.00 %): training.py:95 Training.step launches 1,499 more kernels "
        "(vectorized_elementwise Binary Mul f32); were 1",
    ),
    "item": (
        of(
            (*STEP_ROWS, (DOWN, 1.5, ITEM)),
            step_time(0.026),
            calls=[("cudaStreamSynchronize", ITEM, 12)],
            idle=1500.0,
            idle_at=[(TRAIN, 1000.0), (ITEM, 500.0)],
        ),
        LossKind.SYNCHRONISATION,
        "+0.52 ms (+2.60 %): layers.py:77 ResidualBlock.forward waits for the GPU 12 times "
        "(cudaStreamSynchronize, blocks.0); never before",
    ),
    "item, where nobody counts calls": (
        of((*STEP_ROWS, *[(DOWN, 1.5, ITEM)] * 3), more("copies", 0, 3), step_time(0.0)),
        LossKind.SYNCHRONISATION,
        "layers.py:77 ResidualBlock.forward waits for the GPU 3 times "
        "(Memcpy DtoH (Device -> Pageable), blocks.0); never before",
    ),
    "transfer": (
        of(
            changed((TRAIN, before_each(UP, 900.0))),
            step_time(0.045),
            more("copy_bytes_h2d_pageable", 0, 12 * 2**20),
        ),
        LossKind.TRANSFER,
        "+0.9 ms (+4.50 %): training.py:95 Training.step copies 12.000 MiB more to the device "
        "(pageable) once; never before",
    ),
    "memory": (
        of(
            STEP_ROWS,
            step_time(0.1),
            calls=[("cudaMalloc", f"{BLOCK} blocks.1", 4), ("cudaFree", f"{BLOCK} blocks.1", 4)],
            idle=3_000.0,
            idle_at=[(TRAIN, 1000.0), (f"{BLOCK} blocks.1", 2_000.0)],
        ),
        LossKind.MEMORY,
        "+2 ms (+10.00 %): layers.py:75 ResidualBlock.forward asks the driver for memory 8 times "
        "(cudaFree, blocks.1); never before",
    ),
    "recompilation": (
        of(STEP_ROWS, step_time(0.0), more("recompilations", 0, 2)),
        LossKind.RECOMPILATION,
        "the step is compiled again twice; never before",
    ),
    "graph breaks": (
        of(STEP_ROWS, step_time(0.0), more("graph_breaks", 1, 3), more("compiled_graphs", 2, 4)),
        LossKind.RECOMPILATION,
        "the step breaks its graph 3 times; was 1",
    ),
    "copies, where nobody knows which": (
        of(STEP_ROWS, step_time(0.0), more("copies", 2, 5)),
        LossKind.TRANSFER,
        "the step copies 5 times; was 2",
    ),
    "bytes": (
        of(
            STEP_ROWS,
            step_time(0.0),
            replace(more("copy_bytes_h2d_pageable", 0, 2**20), unit="bytes"),
        ),
        LossKind.TRANSFER,
        "the step copies 1.0000 MiB more to the device (pageable)",
    ),
    "host time": (
        of(
            STEP_ROWS,
            step_time(0.25),
            idle=6_000.0,
            idle_at=[(TRAIN, 1000.0), ("data.py:8 Volumes.load", 5_000.0)],
        ),
        LossKind.HOST,
        "+5 ms (+25.00 %): the GPU waits for data.py:8 Volumes.load",
    ),
    "slower": (
        of(changed((NORM, lambda row: [(row[0], 1.3 * row[1], row[2])])), step_time(0.048)),
        LossKind.SLOWER,
        "+0.96 ms (+4.80 %): layers.py:45 GroupNorm32.forward takes longer with the same kernels "
        "(RowwiseMomentsCUDAKernel f32, 2 modules)",
    ),
    "unknown": (
        of(STEP_ROWS, step_time(0.019)),
        LossKind.UNKNOWN,
        "+0.38 ms (+1.90 %): no kernel stands out from the noise",
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_loss_is_told_by_its_kind_its_line_and_the_time_of_the_step(name: str) -> None:
    attribution, kind, says = KINDS[name]
    assert sentence(attribution) == says
    assert cause(attribution).kind is kind


def test_every_kind_of_loss_is_told() -> None:
    assert {kind for _, kind, _ in KINDS.values()} == {*LossKind}


@pytest.mark.parametrize(
    ("converting", "kind"), [((COPY, COPY), LossKind.LAYOUT), ((), LossKind.ALGORITHM)]
)
def test_where_formats_are_converted_otherwise_that_is_why_there_are_other_kernels(
    converting: Sequence[str], kind: LossKind
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
    assert of(slower, step_time(0.0)).headline is None
    assert of(slower).headline is not None
    assert of().headline is None
    assert of(changed((NORM, lambda row: [(row[0], row[1] / 2, row[2])]))).headline is None


def test_what_the_host_is_counted_to_do_is_the_cause_where_the_time_is_as_it_was() -> None:
    """And where the time is not, what costs it."""
    rows = changed((NORM, in_double))
    waits = more("stream_synchronizations", 0, 12)
    calls = [("cudaStreamSynchronize", ITEM, 12)]
    same = cause(of(rows, step_time(0.0), waits, calls=calls))
    assert (same.kind, same.line, same.change) == (LossKind.SYNCHRONISATION, ITEM.split()[0], None)
    assert (same.before, same.after) == (0, 12)
    slower = cause(of(rows, step_time(0.16), waits, calls=calls))
    assert (slower.kind, slower.function) == (LossKind.PRECISION, "GroupNorm32.forward")


def test_a_loss_that_the_trace_does_not_see_is_that_of_new_calls() -> None:
    """Profiled, the host is slow anyway: that it waits is in no gap."""
    rows = changed((BLOCK, before_each(MUL, 50.0)))
    told = cause(of(rows, step_time(0.1), calls=[("cudaDeviceSynchronize", ITEM, 2)]))
    assert told.kind is LossKind.SYNCHRONISATION
    seen = cause(of(rows, step_time(0.01), calls=[("cudaDeviceSynchronize", ITEM, 2)]))
    assert seen.kind is LossKind.LAUNCHES


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


# The time of the step


def test_of_a_trace_that_the_step_contradicts_only_the_launches_are_believed() -> None:
    """Seen on an H200: the headline was +196 ms (+84.84 %), gaps between kernels."""
    whole = counted("tf32-sites")
    unlucky = replace(whole, idle=whole.idle + 196e6)
    verdicts = [step_time(0.005, 0.001, before=231.0)]
    attribution = attribute(unlucky, whole, NAMING, verdicts)
    assert not attribution.reliable
    assert cause(attribution).kind is LossKind.UNKNOWN
    assert cause(attribution).change == pytest.approx(1.155e6)
    assert not any(entry.significant for entry in attribution.entries)
    assert attribute(unlucky, whole, NAMING).reliable  # nobody contradicts it
    assert attribution.step is not None
    assert attribution.step.relative == 0.005


def test_a_step_that_got_faster_contradicts_a_gap_that_grew() -> None:
    """Seen under cudnn.benchmark: +173 ms of gaps beside a step that was 6 % faster."""
    whole = counted("tf32-sites")
    unlucky = replace(whole, idle=whole.idle + 173e6)
    faster = [step_time(-0.06, 0.001, before=231.0), verdict("peak_memory")]
    attribution = attribute(unlucky, whole, NAMING, faster)
    assert not attribution.reliable
    assert attribution.headline is None


@pytest.mark.parametrize(
    ("traces", "reliable"), [((0.2, 9.0, 0.1), True), ((9.0, 9.1, 8.9), False)]
)
def test_a_gap_counts_beyond_its_spread_over_the_traces(
    traces: tuple[float, ...], reliable: bool
) -> None:
    """Milliseconds in which nothing ran. One unlucky trace of three moves no median far."""
    rows = [("fprop", 10_000.0), ("add", 10_000.0)]
    idles = tuple(1e6 * idle for idle in traces)
    median = sorted(idles)[1]
    now = replace(table(*rows), idle=median, idles=idles, busy=(20e6,) * 3)
    then = replace(table(*rows), idle=1e5, idles=(1e5,) * 3, busy=(20e6,) * 3)
    attribution = attribute(now, then, NAMING, [step_time(0.005, 0.001)])
    assert attribution.reliable is reliable
    assert not any(entry.significant for entry in attribution.entries)


def test_a_gap_that_the_step_has_too_is_the_cause() -> None:
    whole = counted("tf32-sites")
    waits = replace(whole, idle=whole.idle + 12e6)
    attribution = attribute(waits, whole, NAMING, [step_time(0.05, 0.004, before=231.0)])
    assert attribution.reliable
    told = cause(attribution)
    assert (told.kind, told.line) == (LossKind.HOST, "")
    assert told.change == pytest.approx(11.55e6)
    assert told.traced == pytest.approx(12e6)


# Steps that the host bounds


def bound(rows: Sequence[Sited], idle: float, *verdicts: Verdict) -> Headline:
    """What is said where the GPU waits for the host for so many more microseconds.

    It waits at other lines than before: where the host is late is another place in each execution.
    """
    return cause(
        of(
            rows,
            *verdicts,
            idle=1_000.0 + idle,
            idle_at=[(f"{ATTEND} {MODULES[0]}", 1_000.0 + idle)],
        )
    )


@pytest.mark.parametrize(
    ("place", "change", "kind"),
    [
        (BLOCK, before_each(COPY, 2.0, times=20), LossKind.LAYOUT),
        (BLOCK, before_each(MUL, 2.0, times=20), LossKind.LAUNCHES),
        (NORM, lambda row: [(MUL, 2.0, row[2]), *in_double(row)], LossKind.PRECISION),
    ],
    ids=["layout", "launches", "precision"],
)
def test_a_gpu_that_waits_for_the_host_waits_for_the_launches_that_are_new(
    place: str, change: Callable[[Sited], Sequence[Sited]], kind: LossKind
) -> None:
    told = bound(changed((place, change)), 5_000.0, step_time(0.3, 0.29))
    assert (told.kind, f"{told.line} {told.function}") == (kind, place)


@pytest.mark.parametrize(("launches", "blamed"), [(20, LossKind.LAUNCHES), (19, LossKind.HOST)])
def test_no_launch_takes_the_host_longer_than_a_tenth_of_a_millisecond(
    launches: int, blamed: LossKind
) -> None:
    """4 ms were lost at least, and there are two blocks."""
    rows = changed((BLOCK, before_each(MUL, 2.0, times=launches)))
    assert bound(rows, 4_200.0, step_time(0.22, 0.0201)).kind is blamed


def test_a_gap_that_is_not_beyond_the_steps_noise_is_nobodys() -> None:
    noisy = step_time(0.2, 0.21), more("launches", 12, 14)
    told = bound(changed((BLOCK, before_each(MUL, 50.0))), 4_000.0, *noisy)
    assert (told.kind, told.function) == (LossKind.LAUNCHES, "ResidualBlock.forward")


def test_a_gap_of_python_alone_is_at_the_line_that_python_was_at() -> None:
    """What has gone from other lines does not come on top of it."""
    idle_at = [("data.py:8 Volumes.load", 5_000.0), (TRAIN, 0.0), (f"{NORM} blocks.0.norm", 500.0)]
    told = cause(of(STEP_ROWS, step_time(0.22), idle=5_500.0, idle_at=idle_at))
    assert (told.kind, told.line) == (LossKind.HOST, "data.py:8")


# Work that is done otherwise


def summed(row: Sited) -> list[Sited]:
    """A product of matrices, by multiplying and adding up."""
    return [(MUL, 600.0, row[2]), (REDUCE, 300.0, row[2])] if row[0] == GEMM else [row]


def test_a_line_whose_kernels_are_gone_and_others_have_come_does_it_otherwise() -> None:
    told = cause(of(changed((ATTEND, summed)), step_time(0.1)))
    assert (told.kind, told.function) == (LossKind.ALGORITHM, "SelfAttention._attend")
    names = tuple(map(kernel_families.short_name, (MUL, GEMM)))
    assert (told.what, told.formerly) == names


@pytest.mark.parametrize(("pieces", "kind"), [(20, LossKind.ALGORITHM), (21, LossKind.LAUNCHES)])
def test_what_one_kernel_did_piece_by_piece_is_more_launches(pieces: int, kind: LossKind) -> None:
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
    assert (told.kind, told.function) == (LossKind.REPEATED, "ResidualBlock.forward")


# What the host waits for, and asks for


@pytest.mark.parametrize(("waits", "kind"), [(1, LossKind.TRANSFER), (2, LossKind.SYNCHRONISATION)])
def test_who_sends_from_pageable_memory_waits_for_that_alone(waits: int, kind: LossKind) -> None:
    told = cause(
        of(
            (*STEP_ROWS, (UP, 40.0, ITEM)),
            step_time(0.0),
            more("stream_synchronizations", 0, waits),
            calls=[("cudaStreamSynchronize", ITEM, waits)],
        )
    )
    assert (told.kind, told.line) == (kind, ITEM.split()[0])


def test_memory_is_asked_for_anew_where_it_was_given_back() -> None:
    """By the lines that come after; what is to be mended is the one before."""
    given, asked = "net.py:9 Net.forward net", [f"{BLOCK} blocks.{n}" for n in range(2)]
    calls = [("cudaFree", given, 1), *(("cudaMalloc", place, 4) for place in asked)]
    told = cause(of(STEP_ROWS, step_time(0.0), more("driver_allocations", 0, 8), calls=calls))
    assert (told.kind, told.line, told.what) == (LossKind.MEMORY, "net.py:9", "cudaFree")


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
    assert (told.kind, told.times, len(told.modules)) == (LossKind.REPEATED, 2, 4)
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
    assert (told.kind, told.what, told.formerly) == (LossKind.PRECISION, "float64", "float32")
    assert (told.line, len(told.modules)) == ("suites/meddpm/model/layers.py:45", 39)


@pytest.mark.parametrize(
    ("measured", "baseline", "kind", "family"),
    [
        ("baseline", "tf32", LossKind.PRECISION, "convolution-weight-gradient"),
        ("tf32", "bf16", LossKind.PRECISION, "convolution-weight-gradient"),
        ("tf32_channels_last", "tf32", LossKind.LAYOUT, "layout"),
        ("adam-foreach-off", "tf32", LossKind.LAUNCHES, "elementwise"),
    ],
)
def test_without_call_sites_it_is_told_by_the_family(
    measured: str, baseline: str, kind: LossKind, family: str
) -> None:
    told = cause(attribute(traced(measured), traced(baseline), NAMING))
    assert (told.kind, told.family, told.line, told.function) == (kind, family, "", "")


def test_identical_steps_have_no_headline() -> None:
    one, other = counted("tf32-core"), counted("tf32-core-1")
    assert attribute(other, one, NAMING).headline is None
    unchanged = [step_time(0.001)]
    assert attribute(other, one, NAMING, unchanged).headline is None
    assert all(verdict.phase == STEP for verdict in unchanged)


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
