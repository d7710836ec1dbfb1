"""The guard of the device: clocks, throttling and other processes, read through NVML.

`read` returns the state at one moment; `complaints` names the problems before and after a
measurement.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from pytest_gpuperf.measure import fresh_process
from pytest_gpuperf.measure.device import nvml
from pytest_gpuperf.model.measurement import Conditions, Reading

# Numbers of nvml.h, part of NVML's binary interface.
_CLOCK_SM, _CLOCK_MEMORY, _TEMPERATURE_GPU = 1, 2, 0

_SLOWING = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""NVML's clock-event reasons (`nvmlClocksEventReason...`) that slow the device below its user's
settings, and our words for them.

Idle (0x01), application clocks (0x02) and display clocks (0x100) are states chosen by the user, so
they are left out. Bits that NVML may add have no known meaning here."""

_ENDURED = ("software power cap", "sync boost")


class Siblings(NamedTuple):
    """The other workers of pytest-xdist in this session, which hold a GPU against each other."""

    controller: int
    """The pid of the process that started them and this one."""
    beside: int
    """The number of workers that share this process's GPU."""


def read(parent: int | None = None, siblings: Siblings | None = None) -> Reading:
    """The present state of the GPU that CUDA numbers 0.

    `parent` is the process that waits for this measurement. It may still hold memory of the device,
    does nothing there, and is not among the other processes. For a rank neither are the other ranks
    of that session, which torchrun started beside it. Processes started beside this one that
    wait for their turn are not either, nor are its `siblings` and their controller. A measuring
    process holds the GPU against them.

    Fields that the driver or the GPU lacks are None or empty; without NVML or a GPU all are. In a
    MIG instance, clocks, temperature and throttling are those of the whole GPU, and the processes
    those of the instance.
    """
    with nvml.open_session() as session:
        gpu = session.gpu()
        if gpu is None:
            return Reading()
        return Reading(
            sm_clock_mhz=session.integer("nvmlDeviceGetClockInfo", gpu.physical, _CLOCK_SM),
            memory_clock_mhz=session.integer("nvmlDeviceGetClockInfo", gpu.physical, _CLOCK_MEMORY),
            temperature_celsius=session.integer(
                "nvmlDeviceGetTemperatureV",
                gpu.physical,
                _TEMPERATURE_GPU,
                older="nvmlDeviceGetTemperature",
            ),
            power_watts=session.watts("nvmlDeviceGetPowerUsage", gpu.physical),
            throttle_reasons=_throttle_reasons(session, gpu.physical),
            other_processes=_other_processes(session, gpu.visible, parent, siblings),
        )


def complaints(conditions: Conditions) -> tuple[str, ...]:
    """Reasons why the device was unfit before or after the measurement, as sentences."""
    return (*_throttling(conditions), *_sharing(conditions))


def unfit(conditions: Conditions) -> tuple[str, ...]:
    """The complaints that make a number worthless, so that nothing is gated on it.

    A power cap and synchronised boost are not among them. Many GPUs run at their power cap all day,
    as they did when the baseline was recorded.
    """
    return (*_throttling(conditions, _ENDURED), *_sharing(conditions))


def _throttling(conditions: Conditions, endured: tuple[str, ...] = ()) -> Iterable[str]:
    before, after = (
        tuple(reason for reason in reading.throttle_reasons if reason not in endured)
        for reading in (conditions.before, conditions.after)
    )
    clocks = conditions.before.sm_clock_mhz, conditions.after.sm_clock_mhz
    change = "" if None in clocks else f" (SM clock {clocks[0]} -> {clocks[1]} MHz)"
    for moment, reasons in (
        ("at the beginning and the end", [reason for reason in before if reason in after]),
        ("at the beginning", [reason for reason in before if reason not in after]),
        ("at the end", [reason for reason in after if reason not in before]),
    ):
        if reasons:
            yield f"throttled {moment}: {', '.join(reasons)}{change}"


def _sharing(conditions: Conditions) -> Iterable[str]:
    # A process that came or went in between has disturbed the measurement too.
    pids = sorted({*conditions.before.other_processes, *conditions.after.other_processes})
    if pids:
        processes, ids = ("processes", "pids") if len(pids) > 1 else ("process", "pid")
        listed = ", ".join(map(str, pids))
        yield f"shared with {len(pids)} other {processes} ({ids} {listed})"


def _throttle_reasons(session: nvml.NvmlSession, handle: object) -> tuple[str, ...]:
    bits = session.integer(
        "nvmlDeviceGetCurrentClocksEventReasons",
        handle,
        older="nvmlDeviceGetCurrentClocksThrottleReasons",
    )
    return tuple(words for bit, words in _SLOWING.items() if bit & (bits or 0))


def _other_processes(
    session: nvml.NvmlSession, handle: object, parent: int | None, siblings: Siblings | None
) -> tuple[int, ...]:
    processes = session.ask("nvmlDeviceGetComputeRunningProcesses", handle)
    if not processes:
        return ()
    pids = sorted({int(process.pid) for process in processes})
    controller = siblings.controller if siblings else None
    started = fresh_process.beside()
    above = {pid: fresh_process.ancestors(pid) for pid in pids}
    launcher = fresh_process.ancestors(parent)[:1] if parent and "RANK" in os.environ else []
    starters = [one for one in (launcher, [controller]) if one]
    us = {os.getpid(), parent, controller, *started}
    us |= {pid for pid in pids if above[pid][:1] in starters or started & {*above[pid]}}
    if us & set(pids):
        return tuple(pid for pid in pids if pid not in us)
    # Who uses the GPU and is not listed under its own pid: NVML reports the pids of another
    # namespace, as it does in many containers. One of these is us. Which one cannot be told;
    # likelier are those that mean nothing here, and of them the youngest process. A parent that
    # measured before us came before us. Of processes beside us it cannot be told how many have
    # used the GPU yet: they pass for all.
    ours = _holds_cuda_context() + (parent is not None) + (siblings.beside if siblings else 0)
    ours += len(started)
    foreign = [pid for pid in pids if not Path(f"/proc/{pid}").exists()]
    youngest = sorted(foreign or pids)[-ours:] if ours else []
    return tuple(pid for pid in pids if pid not in youngest)


def _holds_cuda_context() -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())
