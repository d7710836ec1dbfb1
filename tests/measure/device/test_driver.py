"""The CUDA driver: its context, its memory, and what is launched."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.measure.device import canary, driver
from pytest_gpuperf.measure.device.driver import Driver
from tests.measure.device.fake_gpu import FakeGpu


def test_a_primary_context_is_current_inside_the_block_only(gpu: FakeGpu) -> None:
    with gpu.cuda.primary_context() as context:
        assert gpu.cuda.current_context() == context
    assert gpu.cuda.current_context() is None
    assert gpu.log == ["retain", "release"]


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


def test_a_kernel_may_be_launched_again_and_again(gpu: FakeGpu) -> None:
    """Its arguments are kept: nobody else holds them."""
    with gpu.cuda.primary_context(), gpu.cuda.module(canary.machine_code("sm90")) as module:
        with gpu.cuda.memory(9 * 40) as stamps:
            launch = gpu.cuda.kernel(
                module,
                "arithmetic",
                8,
                1024,
                (ctypes.c_uint64(stamps), ctypes.c_float(1.0001)),
                shared_bytes=gpu.cuda.attribute(driver.SHARED_BYTES_OF_A_BLOCK),
            )
            launch()
            launch()
    assert gpu.launches("arithmetic") == 2


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
