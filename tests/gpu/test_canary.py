"""The canary on a real GPU: it repeats, leaves nothing behind, and does what it says."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf.measure.device import canary, driver, fingerprint, nvml
from pytest_gpuperf.model.measurement import Canary

pytestmark = pytest.mark.gpu

REPEATABLE = {
    "arithmetic_cycles": 5e-5,
    "tensor_cycles": 2e-4,
    "l2_cycles": 2e-2,
    "dram_cycles": 5e-3,
    "dram_ns": 5e-3,
}
"""How far two readings of a GPU that nobody else uses may be apart."""


def arch() -> str:
    device = nvml.detect_device()
    assert device is not None
    return device.arch


def read() -> Canary:
    """One reading, in a process that torch has a context in."""
    torch.zeros(1, device="cuda")
    return canary.read(arch())


def test_every_reading_is_there_and_repeats() -> None:
    first, second = read(), read()
    assert (first.obstacle, second.obstacle) == ("", "")
    assert first.code == second.code == canary.code(arch())
    apart = {name: abs(first.readings[name] / second.readings[name] - 1) for name in first.readings}
    assert {n: apart[n] for n, most in REPEATABLE.items() if apart[n] > most} == {}, apart


def test_arithmetic_takes_the_cycles_that_it_must() -> None:
    """2000 x 128 multiply-adds of 1024 threads, at 128 or 64 lanes per SM, and little more."""
    lanes = 64 if arch() in ("sm70", "sm75", "sm80") else 128
    least = 2000 * 128 * 1024 / lanes
    assert least < read().readings["arithmetic_cycles"] < 1.1 * least


def test_memory_is_read_no_faster_than_it_can_be() -> None:
    """DRAM is slower than the L2, and no GPU has 20 TB/s of it."""
    sms = driver.load().attribute(driver.SM_COUNT)
    readings = read().readings
    per_sm = 2**26 if arch() in ("sm70", "sm80", "sm90", "sm100", "sm103") else 2**24
    assert readings["dram_cycles"] / per_sm > readings["l2_cycles"] / 2**26
    assert 1e2 < sms * per_sm / readings["dram_ns"] < 2e4  # GB/s


def test_torch_sees_nothing_of_it() -> None:
    before = read(), torch.cuda.memory_stats(), torch.cuda.mem_get_info()
    canary.read(arch())
    assert torch.cuda.memory_stats() == before[1]
    assert torch.cuda.mem_get_info() == before[2]
    assert torch.ones(3, device="cuda").sum().item() == 3


def test_the_driver_says_what_the_gpu_is() -> None:
    machine = fingerprint.machine()
    assert machine is not None
    assert machine.vbios
    assert machine.memory_bytes
