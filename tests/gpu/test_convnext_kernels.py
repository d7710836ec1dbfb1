"""The ConvNeXt suite's kernels on a real GPU: near to float64, and fit for a CUDA graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf.errors import UsageFailure
from tests.convnext import kernel_cases as cases
from tests.convnext.kernel_cases import BOUNDS, COMPOSITIONS, Case

if TYPE_CHECKING:
    from suites.convnext_ddpm.kernels.device import DeviceLauncher
    from suites.convnext_ddpm.kernels.operators import KernelOperators

pytestmark = pytest.mark.gpu

OF_BLOCKS = ("one kernel", "few kernels")
CASES = (*cases.CONVOLUTIONS, *cases.NORMS, *cases.OTHERS, *cases.LAYERS)
BLOCKS = (*cases.BLOCKS, *cases.LARGE_BLOCKS)
CALLS = [
    *((name, case) for name in COMPOSITIONS if name not in OF_BLOCKS for case in CASES),
    *((name, case) for name in OF_BLOCKS for case in BLOCKS),
]


@pytest.fixture(scope="module")
def launcher() -> DeviceLauncher:
    from suites.convnext_ddpm.kernels.device import DeviceLauncher

    return DeviceLauncher()


@pytest.mark.parametrize(
    ("name", "case"), CALLS, ids=[f"{name}-{case.name}" for name, case in CALLS]
)
def test_agrees_with_float64(launcher: DeviceLauncher, name: str, case: Case) -> None:
    given = cases.inputs(case)
    on_gpu = {key: tensor.cuda() for key, tensor in given.items()}
    result = case.call(composed(name, launcher), on_gpu)
    rounds = name == "im2col_bf16" and bool(case.rounded)
    bound = BOUNDS["bfloat16" if rounds else "float32"]
    assert cases.error(result, cases.expected(case, given)) < bound


@pytest.mark.parametrize("case", cases.CONVOLUTIONS, ids=lambda case: case.name)
def test_bfloat16_rounds_nothing_but_the_factors(launcher: DeviceLauncher, case: Case) -> None:
    given = cases.inputs(case)
    given |= {key: given[key].bfloat16().float() for key in case.rounded}
    on_gpu = {key: tensor.cuda() for key, tensor in given.items()}
    result = case.call(composed("im2col_bf16", launcher), on_gpu)
    assert cases.error(result, cases.expected(case, given)) < BOUNDS["float32"]


@pytest.mark.parametrize(
    ("name", "case"),
    [
        *((name, case) for name in ("naive, unfused", "tiled") for case in cases.LAYERS),
        *(("im2col_bf16", case) for case in cases.LAYERS),
        *((name, case) for name in OF_BLOCKS for case in cases.LARGE_BLOCKS),
    ],
    ids=lambda value: value.name if isinstance(value, Case) else value,
)
def test_a_graph_does_the_same_with_other_numbers(
    launcher: DeviceLauncher, name: str, case: Case
) -> None:
    import torch

    operators = composed(name, launcher)
    given = cases.inputs(case)
    on_gpu = {key: torch.zeros_like(tensor, device="cuda") for key, tensor in given.items()}
    case.call(operators, on_gpu)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = case.call(operators, on_gpu)
    for key, tensor in on_gpu.items():
        tensor.copy_(given[key])
    graph.replay()
    rounds = name == "im2col_bf16" and bool(case.rounded)
    bound = BOUNDS["bfloat16" if rounds else "float32"]
    assert cases.error(result, cases.expected(case, given)) < bound


def composed(name: str, launcher: DeviceLauncher) -> KernelOperators:
    """The composition on this device; skips where the device has not what it needs."""
    try:
        return COMPOSITIONS[name](launcher)
    except UsageFailure as reason:
        pytest.skip(str(reason))
