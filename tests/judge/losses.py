"""Steps that lost something: realistic kernels, a line each, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

from pytest_gpuperf.catalogue import kernel_families
from pytest_gpuperf.judge.attribution import Naming, attribute
from pytest_gpuperf.model.measurement import KernelTable
from pytest_gpuperf.model.result import Attribution, Cause, Outcome, Verdict
from pytest_gpuperf.report.text.kernel_lines import sentence
from tests import ROOT
from tests.examples import verdict
from tests.kernel_steps import Sited, sited

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
UP_PINNED, DOWN_PINNED = UP.replace("Pageable", "Pinned"), DOWN.replace("Pageable", "Pinned")
ACROSS, ZEROS = "Memcpy DtoD (Device -> Device)", "Memset (Device)"
TO_NCHW = TO_NHWC.replace("nchwToNhwc", "nhwcToNchw")
CONV_TILE, GEMM_TILE = CONV.replace("64x64x32", "32x32x32"), GEMM.replace("128x64x32", "64x64x32")

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


def said(attribution: Attribution) -> str:
    """All fields of a cause that say something, and the sentence on it."""
    told = cause(attribution)
    known = {field.name: getattr(told, field.name) for field in fields(told)}
    texts = {
        name: f"{value:.6g}" if isinstance(value, float) else str(value)
        for name, value in {**known, "kind": told.kind.value}.items()
        if value not in (None, "", ())
    }
    numbers = ", ".join(f"{name} {text}" for name, text in texts.items())
    return f"{numbers}\n{sentence(attribution)}".strip()


CAUSES = ROOT / "tests" / "data" / "causes"


def expected(name: str) -> dict[str, str]:
    """What has to be said of each loss, by a file of tests/data/causes."""
    blocks = (CAUSES / name).read_text("utf-8").strip().split("\n\n")
    return {name: said for name, _, said in (block.partition("\n") for block in blocks)}


def record(name: str, cases: Cases) -> None:
    """Writes such a file anew."""
    blocks = [f"{case}\n{said(made())}\n" for case, made in cases.items()]
    (CAUSES / name).write_text("\n".join(blocks), "utf-8")


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


def short(*names: str) -> str:
    return ", ".join(map(kernel_families.short_name, names))


def summed(row: Sited) -> list[Sited]:
    """A product of matrices, by multiplying and adding up."""
    return [(MUL, 600.0, row[2]), (REDUCE, 300.0, row[2])] if row[0] == GEMM else [row]
