"""The kernels compute what they should: run on the CPU, thread by thread, against float64."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.convnext import kernel_cases as cases
from tests.convnext.emulation import Emulator, Recorder
from tests.convnext.kernel_cases import BOUNDS, COMPOSITIONS, bound, error

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

FEW, MANY = 1, 10**6
"""Processors: with few, tiles are as large as they get, with many as small."""

CALLS = [
    *(
        (name, case, processors)
        for name in ("naive", "naive, unfused", "tiled", "im2col_bf16")
        for case in cases.CONVOLUTIONS
        for processors in ((FEW,) if name.startswith("naive") else (FEW, MANY))
    ),
    *((name, case, FEW) for name in ("naive", "tiled", "im2col_bf16") for case in cases.NORMS),
    *((name, case, FEW) for name in ("naive, unfused", "tiled") for case in cases.OTHERS),
    *((name, case, MANY) for name in ("one kernel", "few kernels") for case in cases.BLOCKS),
]


@pytest.fixture(scope="session")
def emulators(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Emulator]:
    """An emulated device of so many processors, which has every kernel of CALLS."""
    recorders = {processors: Recorder(processors) for processors in (FEW, MANY)}
    for name, case, processors in CALLS:
        case.call(COMPOSITIONS[name](recorders[processors]), cases.inputs(case))
    launches = [launch for recorder in recorders.values() for launch in recorder.launches]
    emulator = Emulator(launches, tmp_path_factory, FEW)

    def of(processors: int) -> Emulator:
        emulator.processors = processors
        return emulator

    return of


@pytest.fixture(params=[False, True], ids=["ascending", "descending"])
def emulator(
    emulators: Callable[[int], Emulator], request: pytest.FixtureRequest
) -> Callable[[int], Emulator]:
    def of(processors: int) -> Emulator:
        device = emulators(processors)
        device.descending = request.param
        return device

    return of


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_agrees_with_float64(emulator: Callable[[int], Emulator], name: str) -> None:
    for case, processors in ((case, count) for called, case, count in CALLS if called == name):
        given = {key: guarded(tensor) for key, tensor in cases.inputs(case).items()}
        result = case.call(COMPOSITIONS[name](emulator(processors)), given)
        assert error(case, given, result) < bound(name, case), (case.name, processors)


def test_bfloat16_rounds_nothing_but_the_factors(emulator: Callable[[int], Emulator]) -> None:
    """Of factors rounded before, the result is as exact as in float32."""
    for case in cases.CONVOLUTIONS:
        given = cases.rounded(case)
        result = case.call(COMPOSITIONS["im2col_bf16"](emulator(FEW)), given)
        assert error(case, given, result) < BOUNDS["float32"], case.name


@pytest.mark.parametrize("name", ["naive", "tiled", "im2col_bf16"])
def test_norm_keeps_its_precision_far_off_centre(
    emulator: Callable[[int], Emulator], name: str
) -> None:
    """A mean of a thousand standard deviations: what float32 keeps of the input is 6e-5 of it."""
    case = cases.OFF_CENTRE
    given = cases.inputs(case)
    result = case.call(COMPOSITIONS[name](emulator(FEW)), given)
    given["x"] = (given["x"] + 1000) - 1000
    assert error(case, given, result) < 2e-4


def test_a_block_that_fits_is_one_kernel(emulator: Callable[[int], Emulator]) -> None:
    for case in cases.BLOCKS:
        device = emulator(MANY)
        device.launched.clear()
        case.call(COMPOSITIONS["one kernel"](device), cases.inputs(case))
        assert [launch.source for launch in device.launched] == ["block.cu"], case.name


def guarded(tensor: Tensor) -> Tensor:
    """The same elements with others around them that are not numbers, to be read by mistake."""
    around = torch.full((tensor.numel() + 512,), torch.nan)
    inner = around[256:-256].view(tensor.shape)
    return inner.copy_(tensor)
