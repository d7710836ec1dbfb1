"""The kernels compute what they should: run on the CPU, thread by thread, against float64."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from suites.convnext_ddpm.kernels.launches import Launcher
from suites.convnext_ddpm.kernels.operators import KernelOperators
from tests.convnext import kernel_cases as cases
from tests.convnext.emulation import Emulator, Recorder
from tests.convnext.kernel_cases import BOUNDS, Case

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

FEW, MANY = 1, 10**6
"""Processors: with few, tiles are as large as they get, with many as small."""

Composition = Callable[[Launcher], KernelOperators]
COMPOSITIONS: dict[str, Composition] = {
    "naive": lambda on: KernelOperators(on, convolution="naive", norm="naive"),
    "naive, unfused": lambda on: KernelOperators(
        on, convolution="naive", norm="naive", fused=False
    ),
    "tiled": lambda on: KernelOperators(on, convolution="tiled", norm="warp_shuffle"),
    "im2col_bf16": lambda on: KernelOperators(on, convolution="im2col_bf16", norm="three_kernel"),
}
CALLS = [
    *(
        (name, case, processors)
        for name in COMPOSITIONS
        for case in cases.CONVOLUTIONS
        for processors in ((FEW,) if name.startswith("naive") else (FEW, MANY))
    ),
    *((name, case, FEW) for name in ("naive", "tiled", "im2col_bf16") for case in cases.NORMS),
    *((name, case, FEW) for name in ("naive, unfused", "tiled") for case in cases.OTHERS),
]


@pytest.fixture(scope="session")
def emulators(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Emulator]:
    """An emulated device of so many processors, which has every kernel of CALLS."""
    recorders = {processors: Recorder(processors) for processors in (FEW, MANY)}
    for name, case, processors in CALLS:
        case.call(COMPOSITIONS[name](recorders[processors]), cases.inputs(case))
    launches = [launch for recorder in recorders.values() for launch in recorder.launches]
    base: Path = tmp_path_factory.getbasetemp()
    emulator = Emulator(launches, base.parent if base.name.startswith("popen") else base, FEW)

    def found(processors: int) -> Emulator:
        emulator.processors = processors
        return emulator

    return found


@pytest.fixture(params=[False, True], ids=["ascending", "descending"])
def emulator(
    emulators: Callable[[int], Emulator], request: pytest.FixtureRequest
) -> Callable[[int], Emulator]:
    def found(processors: int) -> Emulator:
        device = emulators(processors)
        device.descending = request.param
        return device

    return found


@pytest.mark.parametrize(
    ("name", "case", "processors"),
    CALLS,
    ids=[f"{name}-{case.name}-{processors}" for name, case, processors in CALLS],
)
def test_agrees_with_float64(
    emulator: Callable[[int], Emulator], name: str, case: Case, processors: int
) -> None:
    given = {key: guarded(tensor) for key, tensor in cases.inputs(case).items()}
    result = case.call(COMPOSITIONS[name](emulator(processors)), given)
    rounds = name == "im2col_bf16" and bool(case.rounded)
    wanted = cases.expected(case, given)
    assert cases.error(result, wanted) < BOUNDS["bfloat16" if rounds else "float32"]


def guarded(tensor: Tensor) -> Tensor:
    """The same elements with others around them that are not numbers, to be read by mistake."""
    around = torch.full((tensor.numel() + 512,), torch.nan)
    inner = around[256:-256].view(tensor.shape)
    return inner.copy_(tensor)
