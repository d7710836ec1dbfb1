"""The canary on a scripted GPU, and its machine code, which is checked without one."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import metadata

import pytest

from pytest_gpuperf.catalogue.architectures import ARCHITECTURES, CPU
from pytest_gpuperf.errors import CountersUnavailable
from pytest_gpuperf.measure.device import canary, driver
from pytest_gpuperf.measure.device.driver import Driver
from tests import ROOT
from tests.measure.device.fake_gpu import FakeGpu

READINGS = (
    *("arithmetic_cycles", "sm_clock_mhz", "tensor_cycles", "tensor_clock_mhz"),
    *("l2_cycles", "dram_cycles", "dram_ns"),
    *("time_share", "launch_us", "host_ms"),
)


# The machine code


def sm_of(image: bytes) -> int:
    """The architecture that machine code is for; Blackwell's files have it one byte further on."""
    flags: int = struct.unpack_from("<I", image, 48)[0]
    return flags >> (8 if image[8] == 8 else 0) & 0xFF


@pytest.mark.parametrize("arch", [arch for arch in ARCHITECTURES if arch != CPU])
def test_every_architecture_has_machine_code_of_its_own(arch: str) -> None:
    image = canary.machine_code(arch)
    number = int(arch.removeprefix("sm"))
    assert image[:4] == b"\x7fELF"
    assert struct.unpack_from("<H", image, 18) == (190,)  # EM_CUDA
    assert sm_of(image) == number
    for kernel in ("arithmetic", "tensor", "l2", "dram", "nothing"):
        assert f"\0.text.{kernel}\0".encode() in image
    assert len(image) < 50_000


def test_a_canary_is_named_after_its_machine_code_and_its_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {canary.code(arch) for arch in ARCHITECTURES if arch != CPU}
    assert len(names) == len(ARCHITECTURES) - 1
    assert canary.code("sm90").startswith("sm90-")
    before = canary.code("sm90")
    monkeypatch.setattr(canary, "_WORK", (1, 2, 3))
    canary.code.cache_clear()
    assert canary.code("sm90") != before
    canary.code.cache_clear()


def test_the_machine_code_is_what_the_source_compiles_to() -> None:
    """By the compiler of the test extra; without that one nothing is fetched here."""
    try:
        version = metadata.version("nvidia-cuda-nvrtc-cu12")
    except metadata.PackageNotFoundError:
        version = "none"
    if version != "12.9.86":
        pytest.skip(f"needs NVRTC 12.9.86, and here is {version}")
    command = [sys.executable, str(ROOT / "script" / "canary"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


# Its readings


def test_every_reading_is_of_repeats_and_nothing_is_left_behind(gpu: FakeGpu) -> None:
    gpu.takes("arithmetic", 2_100_000)
    gpu.takes("dram", 4_000_000)
    read = canary.read("sm90")
    assert (read.code, read.obstacle) == (canary.code("sm90"), "")
    assert tuple(read.readings) == tuple(read.spreads) == READINGS
    assert read.readings["arithmetic_cycles"] == 2_100_000
    assert read.readings["sm_clock_mhz"] == read.readings["tensor_clock_mhz"] == 2000
    assert (read.readings["tensor_cycles"], read.readings["l2_cycles"]) == (2e6, 3e6)
    # 2 ms, and the last of eight SMs began 70 ns after the first.
    assert (read.readings["dram_cycles"], read.readings["dram_ns"]) == (4e6, 2_000_070)
    assert read.readings["launch_us"] > 0
    assert read.readings["host_ms"] > 0
    assert read.readings["time_share"] == 1
    assert set(list(read.spreads.values())[:8]) == {0}
    assert (gpu.launches("arithmetic"), gpu.launches("dram")) == (8 + 17, 8)
    assert gpu.launches("nothing") == 1000
    assert (gpu.launches("l2"), gpu.places("l2"), gpu.places("dram")) == (17, 17, 1)
    assert gpu.cuda.current_context() is None
    assert gpu.log[-1] == "release"


def test_what_moves_a_reading_and_what_does_not(gpu: FakeGpu) -> None:
    cases: tuple[tuple[Callable[[], object], dict[str, float]], ...] = (
        # What warms up does not count, and one slow repeat moves no median.
        (lambda: gpu.slow(1, 1.5), {"dram_cycles": 4e6, "l2_cycles": 3e6}),
        # Of 16 places in the L2 the mean is kept: readings of one place repeat in no other.
        (lambda: gpu.slow(5, 1.5), {"dram_cycles": 4e6, "l2_cycles": 3e6 * (1 + 0.5 / 16)}),
        # The second SM is another process's; the mean over the seven that are left shows it.
        (gpu.shared, {"arithmetic_cycles": 8 / 7 * 1e6}),
        # The GPU is another process's between our kernels, as a queue of them shows.
        (
            lambda: gpu.turns(2.5),
            {"time_share": 0.4, "arithmetic_cycles": 1e6, "dram_ns": 2_000_070},
        ),
    )
    for script, expected in cases:
        gpu.reset()
        script()
        read = canary.read("sm90")
        assert {n: read.readings[n] for n in expected} == pytest.approx(expected, rel=1e-6)
        assert read.spreads["dram_cycles"] == 0


def test_what_cannot_be_read_is_left_out_with_the_reason(gpu: FakeGpu) -> None:
    cases: tuple[tuple[Callable[[], object], Sequence[str], str], ...] = (
        (lambda: gpu.room(2**29 - 1), READINGS[4:7], "memory: cuMemAlloc_v2 failed with CUDA_E"),
        (
            lambda: gpu.l2(1000),
            READINGS[4:7],
            "memory: this GPU has 550 bytes of L2, and the canary needs 262,144",
        ),
        (lambda: gpu.takes("l2", 0), READINGS[4:7], "memory: the GPU's clock measured 0"),
        (
            lambda: gpu.takes("arithmetic", 0),
            (*READINGS[:2], "time_share"),
            "arithmetic: the GPU's clock measured 0",
        ),
        (lambda: gpu.fail("cuLaunchKernelEx", 700), READINGS[:9], "arithmetic: launching arithme"),
        (lambda: gpu.fail("cuModuleLoadData", 200), READINGS, "cuModuleLoadData failed with CUDA"),
        (lambda: gpu.fail("cuModuleUnload", 4), READINGS, "cuModuleUnload failed with CUDA error"),
    )
    for script, lacking, obstacle in cases:
        gpu.reset()
        script()
        read = canary.read("sm90")
        assert set(READINGS) - set(read.readings) == set(lacking), obstacle
        assert set(read.spreads) == set(read.readings), obstacle
        assert read.obstacle.startswith(obstacle), read.obstacle


def test_without_a_driver_or_machine_code_nothing_is_read(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_driver() -> Driver:
        raise CountersUnavailable("no CUDA driver: not there", "Install it")

    with monkeypatch.context() as without:
        without.setattr(driver, "load", no_driver)
        read = canary.read("sm90")
    assert (read.readings, read.obstacle) == ({}, "no CUDA driver: not there")
    assert canary.read("sm121").obstacle == "gpuperf has no reference kernels (canary) for sm121"
    assert gpu.log == []
    # One without clusters has a canary.
    assert set(canary.read("sm75").readings) == set(READINGS)
