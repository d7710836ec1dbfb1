"""The CUDA driver: its context, its memory, and what is launched."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.measure.device import canary
from pytest_gpuperf.measure.device.driver import Driver
from tests.measure.device.fake_gpu import FakeGpu


def test_memory_and_machine_code_are_given_back_when_something_fails(gpu: FakeGpu) -> None:
    def fails() -> None:
        image = canary.machine_code("sm90")
        with gpu.cuda.primary_context(), gpu.cuda.module(image), gpu.cuda.memory(64) as address:
            gpu.cuda.fill(address, 7, 64)
            assert len(gpu.cuda.copied(address, 64)) == 64
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert gpu.log[-3:] == ["cuMemFree_v2", "cuModuleUnload", "release"]


def test_driver_errors_are_named(gpu: FakeGpu, tmp_path: Path) -> None:
    with pytest.raises(CountersUnavailable, match="no CUDA driver"):
        Driver(tmp_path / "libcuda.so.1")
    gpu.room(100)
    with gpu.cuda.primary_context():
        with pytest.raises(MeasurementError, match=r"cuMemAlloc_v2 .* CUDA_ERROR_OUT_OF_MEMORY"):
            with gpu.cuda.memory(101):
                pass
        with gpu.cuda.module(canary.machine_code("sm80")) as module:
            with pytest.raises(MeasurementError, match=r"GetFunction failed with CUDA error 500"):
                gpu.cuda.kernel(module, "placed", 1, 32)
            gpu.fail("cuLaunchKernelEx", 700)
            with pytest.raises(MeasurementError, match=r"nothing .*ILLEGAL_ADDRESS \(700\)"):
                gpu.cuda.kernel(module, "nothing", 1, 32)()
