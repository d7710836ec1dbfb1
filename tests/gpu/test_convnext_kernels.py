"""The ConvNeXt suite's kernels on a real GPU: near to float64, and fit for a CUDA graph."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pytest_gpuperf.errors import UsageFailure
from suites.convnext_ddpm.kernels.device import DeviceLauncher
from suites.convnext_ddpm.kernels.operators import KernelOperators
from tests.convnext import kernel_cases as cases
from tests.convnext.kernel_cases import BOUNDS, COMPOSITIONS, Case, Inputs, bound, error

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
    return DeviceLauncher()


def on_gpu(given: Inputs) -> dict[str, Tensor]:
    return {key: tensor.cuda() for key, tensor in given.items()}


@pytest.mark.parametrize(
    ("name", "case"), CALLS, ids=[f"{name}-{case.name}" for name, case in CALLS]
)
def test_agrees_with_float64(launcher: DeviceLauncher, name: str, case: Case) -> None:
    given = cases.inputs(case)
    result = case.call(composed(name, launcher), on_gpu(given))
    assert error(case, given, result) < bound(name, case)


@pytest.mark.parametrize("case", cases.CONVOLUTIONS, ids=lambda case: case.name)
def test_bfloat16_rounds_nothing_but_the_factors(launcher: DeviceLauncher, case: Case) -> None:
    given = cases.rounded(case)
    result = case.call(composed("im2col_bf16", launcher), on_gpu(given))
    assert error(case, given, result) < BOUNDS["float32"]


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
    operators = composed(name, launcher)
    given = cases.inputs(case)
    zeros = on_gpu({key: torch.zeros_like(tensor) for key, tensor in given.items()})
    case.call(operators, zeros)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = case.call(operators, zeros)
    for key, tensor in zeros.items():
        tensor.copy_(given[key])
    graph.replay()
    assert error(case, given, result) < bound(name, case)


def composed(name: str, launcher: DeviceLauncher) -> KernelOperators:
    """The composition on this device; skips where the device has not what it needs."""
    try:
        return COMPOSITIONS[name](launcher)
    except UsageFailure as reason:
        pytest.skip(str(reason))
