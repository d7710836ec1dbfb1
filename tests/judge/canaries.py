"""Processes of a scripted step, with what a canary read beside them."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_gpuperf.model.measurement import Canary, Conditions, Device, Measurement, Reading
from tests.examples import H200, measurement

CODE = "sm90-a88008dc1c46"
READ = {
    "arithmetic_cycles": 2160956.0,
    "sm_clock_mhz": 1978.8,
    "tensor_cycles": 1541000.0,
    "tensor_clock_mhz": 1797.6,
    "l2_cycles": 1816000.0,
    "dram_cycles": 3927000.0,
    "dram_ns": 1999900.0,
    "time_share": 1.0,
    "launch_us": 3.3,
    "host_ms": 0.29,
}
STEP_MS, KERNELS_NS = 1.15, 1_044_000.0
BASELINE: Mapping[str, float] = {
    "cycles": 2_584_000.0,
    "step_time": STEP_MS,
    "kernel_time": KERNELS_NS,
    "instructions": 228_350_000.0,
}


def reading(**changes: float) -> Reading:
    """A state of the device with this canary; each change is a factor."""
    values = {name: value * changes.get(name, 1.0) for name, value in READ.items()}
    return Reading(canary=Canary(CODE, values))


def measured(
    changes: Mapping[str, float],
    canary: Mapping[str, float],
    *,
    processes: int = 3,
    device: Device = H200,
    after: Mapping[str, float] | None = None,
) -> list[Measurement]:
    """Processes whose metrics and canary are those of the baseline times these factors."""
    before = reading(**canary)
    conditions = Conditions(before, before if after is None else reading(**after))
    series = {name: [value * changes.get(name, 1.0)] for name, value in BASELINE.items()}
    return [
        measurement(series, process=f"p{number}", conditions=conditions, device=device)
        for number in range(processes)
    ]
