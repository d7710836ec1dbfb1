"""Executing a step on a GPU: warm-up, unprofiled repetitions for the times, a stopwatch."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pytest_gpuperf.collect.base import PhaseNames, Plan, Work, each
from pytest_gpuperf.collect.cupti.timing import DeviceTimer
from pytest_gpuperf.collect.loss import Losses
from pytest_gpuperf.collect.memory import DeviceMemory
from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.model import STEP, Scalar

Series = dict[tuple[str, str], list[float]]
"""(phase, metric name) -> one value per round or repetition."""


def prepare(work: Work, timer: DeviceTimer) -> None:
    """Puts the step's state back, and waits until the device has done so."""
    # Cycles that the last execution left can hold device memory. They are in the youngest
    # generation, which takes far less time than the heap of an imported torch.
    gc.collect(0)
    work.reset()
    timer.synchronize()


@dataclass(frozen=True)
class WarmedUp:
    """What the first executions of a step have shown."""

    phases: tuple[str, ...]
    """In the order in which they occur, repetitions included."""
    settings: dict[str, Scalar]
    """The step's loss, where it returns one."""


def warm_up(work: Work, plan: Plan, timer: DeviceTimer, memory: DeviceMemory) -> WarmedUp:
    """Executes the step `plan.warmup` times, at least once, on a device that was cleared.

    Raises MeasurementError for phases that change from one execution to the next, and UnsoundStep
    for a loss that is no number or does.
    """
    heard: list[tuple[str, ...]] = []
    losses = Losses(work)
    memory.clear()
    for _ in each(work.progress, "warming up", max(plan.warmup, 1), after=None):
        prepare(work, timer)
        listener = PhaseNames()
        with work.phases.heard_by(listener):
            returned = work.step()
        timer.synchronize()
        losses.add(returned)
        del returned  # a loss may hold all that the step kept for its backward pass
        heard.append(tuple(listener.names))
        if heard[-1] != heard[0]:
            raise MeasurementError(
                "the phases of the step change from one execution to the next: "
                f"first {list(heard[0])}, then {list(heard[-1])}"
            )
    return WarmedUp(heard[0], losses.settings())


def times(work: Work, plan: Plan, timer: DeviceTimer, memory: DeviceMemory) -> Series:
    """Device and wall-clock times of `plan.repetitions` executions, in ms, and their peak memory.

    The peak is the allocator's own count: reading it takes no time of the device.
    """
    series: Series = {}
    for _ in each(work.progress, "timing", plan.repetitions, after=None):
        prepare(work, timer)
        memory.begin()
        device_ms, wall_ms = timer.timed(work.step)
        peak = memory.peak()
        series.setdefault((STEP, "step_time"), []).append(device_ms)
        series.setdefault((STEP, "wall_time"), []).append(wall_ms)
        if peak is not None:
            series.setdefault((STEP, "peak_memory"), []).append(float(peak))
    return series


@contextmanager
def garbage_kept() -> Iterator[None]:
    """Collects garbage once, and switches the automatic collection off inside the block.

    What is collected within a measured step would be counted and timed.
    """
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Stopwatch:
    """Seconds since the last lap, and in total, to the millisecond."""

    def __init__(self) -> None:
        self._begun = self._last = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap."""
        before, self._last = self._last, time.perf_counter()
        return round(self._last - before, 3)

    def total(self) -> float:
        """Seconds from the beginning to the last lap."""
        return round(self._last - self._begun, 3)
