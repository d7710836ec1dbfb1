"""Executions of a step: what each of them takes, the loss it returns, and the clocks.

The clocks are CUDA events on torch's current stream; torch is imported at the first use.
"""

from __future__ import annotations

import gc
import inspect
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Integral, Real
from statistics import median
from typing import Any

from pytest_gpuperf.errors import UnsoundStep
from pytest_gpuperf.measure.collector import PhaseNames, Plan, Work, check_alike, each, no_reset
from pytest_gpuperf.measure.device.memory import CudaMemory, give_back
from pytest_gpuperf.measure.trace.host_calls import Compilations
from pytest_gpuperf.model.measurement import COMPILING, STEP, Scalar

Series = dict[tuple[str, str], list[float]]
"""(phase, metric name) -> one value per round or repetition."""

REPETITIONS = 3
"""Executions only for times, if the counted ones have none."""
MOST_COMPILED = 8
"""The most executions in a row in which torch.compile compiles. It makes this many graphs of one
function; then it gives up, and the step runs without."""
_LATE = 0.02
"""The share of wall-clock time outside the device's time, above which work may be on streams that
the timer does not wait for."""
_IDLE_MS = 0.05
"""A device that is idle is waited for in some microseconds."""


class CudaTimer:
    """Waits for the device, and times work on it."""

    late = False
    """Whether the last run ended later by the wall's clock than by the device's."""
    unjoined_ms = 0.0
    """Time that the device still worked in the last run, `apart`, after its stream ended."""

    def synchronize(self) -> None:
        """Returns when the device has done all its work, in all streams."""
        import torch

        torch.cuda.synchronize()

    def synchronize_all(self) -> None:
        """Waits for every GPU that has tensors; the others need not have a context."""
        import torch

        self.synchronize()
        for number in range(1, torch.cuda.device_count()):
            if torch.cuda.memory_allocated(number):
                torch.cuda.synchronize(number)

    def timed(self, run: Callable[[], object], *, apart: bool = False) -> tuple[float, float]:
        """Calls `run` and waits for the device: device time and wall-clock time, in ms.

        The first is that between two events around `run`, the second up to synchronisation. `apart`
        waits for the current stream and then for all others, which takes waits of its own.
        """
        import torch

        event: Any = torch.cuda.Event  # untyped in some releases
        start, end = event(enable_timing=True), event(enable_timing=True)
        before = time.perf_counter()
        start.record()
        run()
        end.record()
        if apart:
            end.synchronize()
        joined = time.perf_counter()
        torch.cuda.synchronize()
        done = time.perf_counter()
        device, wall = float(start.elapsed_time(end)), 1e3 * (done - before)
        self.late = wall - device > _LATE * wall
        if apart:
            torch.cuda.synchronize()  # its own cost without pending work
            idle = time.perf_counter() - done
            self.unjoined_ms = 1e3 * (done - joined - idle)
        return device, wall


class Stopwatch:
    """Seconds since the last lap, and in total, to the millisecond."""

    def __init__(self) -> None:
        self._begun = self._last = time.perf_counter()
        self.laps: dict[str, Scalar] = {}
        """Seconds by the names that laps were given."""

    def lap(self, name: str) -> None:
        """Keeps the seconds since the last lap."""
        before, self._last = self._last, time.perf_counter()
        self.laps[name] = round(self._last - before, 3)

    def total(self) -> float:
        """Seconds from the beginning."""
        return round(time.perf_counter() - self._begun, 3)


def prepare(work: Work, timer: CudaTimer) -> None:
    """Puts the step's state back, and waits until the device has done so, on every rank."""
    # Cycles that the last execution left can hold device memory. They are in the youngest
    # generation, which takes far less time than the heap of an imported torch.
    gc.collect(0)
    work.reset()
    timer.synchronize()
    work.barrier()


@dataclass(eq=False)
class Executions:
    """Whole executions of one step in order, each after a reset.

    Each is timed, with its memory peak and loss read afterwards; the first ones are discarded. The
    peak is the allocator's own count: reading it takes no device time.
    """

    work: Work
    timer: CudaTimer
    memory: CudaMemory
    series: Series = field(default_factory=dict)
    """Times in ms, and peaks in bytes, of those that count."""
    phases: tuple[str, ...] = ()
    """The phases in order of occurrence, with repetitions."""
    warm_ups: int = 0
    """Executions that were discarded."""

    def __post_init__(self) -> None:
        self._losses = Losses(self.work)
        self._compiling: dict[str, Scalar] = {}

    def warm_up(self, plan: Plan) -> None:
        """Executes the step as `warm_ups` has it, on a device that was cleared.

        Raises MeasurementError for phases that change from one execution to the next, and
        UnsoundStep for a loss that is no number or does.
        """
        give_back()
        for number in warm_ups(self.work, plan, self._compiling):
            self.warm_ups = number
            prepare(self.work, self.timer)
            listener = PhaseNames()
            with self.work.phases.heard_by(listener):
                returned = self.work.step()
            self.timer.synchronize()
            self._losses.add(returned)
            del returned  # a loss may hold all that the step kept for its backward pass
            if number > 1:
                check_alike("phases", self.phases, tuple(listener.names))
            self.phases = tuple(listener.names)

    def execute(self, *, timed: bool = True, ended: Callable[[], object] | None = None) -> None:
        """Runs the step and waits for the device; then calls `ended`.

        Not `timed` leaves the series as they are. Raises UnsoundStep for a loss that is no number,
        or not that of the executions before.
        """
        returned: list[object] = []
        self.memory.begin()
        device_ms, wall_ms = self.timer.timed(lambda: returned.append(self.work.step()))
        if ended:
            ended()
        peak = self.memory.peak()
        self._losses.add(returned.pop())
        if timed:
            self.series.setdefault((STEP, "step_time"), []).append(device_ms)
            self.series.setdefault((STEP, "wall_time"), []).append(wall_ms)
            if peak is not None:
                self.series.setdefault((STEP, "peak_memory"), []).append(float(peak))

    def repeat(self, count: int | None) -> None:
        """Runs `count` executions for their times alone, by default REPETITIONS."""
        for _ in each(self.work.progress, "timing", count or REPETITIONS):
            prepare(self.work, self.timer)
            self.execute()

    def end_with_all_streams(self) -> None:
        """Makes the step's times end with its kernels, if its stream does not wait for all of them.

        If that is possible, one more execution decides, and another rules out an interruption of
        the host. Ranks skip this, because they execute equally often.
        """
        beside = 0.0
        for _ in range(0 if self.work.together or not self.timer.late else 2):
            prepare(self.work, self.timer)
            device, wall = self.timer.timed(self.work.step, apart=True)
            if self.timer.unjoined_ms < _IDLE_MS:
                return
            beside = wall - device - self.timer.unjoined_ms
        if beside:
            walls = self.series[STEP, "wall_time"]
            self.series[STEP, "step_time"] = [max(wall - beside, 0.0) for wall in walls]

    @property
    def wall_ms(self) -> float:
        """The median of the wall times so far; 0 without one."""
        return median(self.series.get((STEP, "wall_time"), [0.0]))

    def settings(self) -> dict[str, Scalar]:
        """The step's loss, if it returns one, and its compilations, if they are too many."""
        return {**self._losses.settings(), **self._compiling}


def warm_ups(work: Work, plan: Plan, said: dict[str, Scalar]) -> Iterator[int]:
    """The numbers from 1 of the executions that warm a step up: as planned, at least one.

    More follow while torch.compile compiles in them, as for a number that changes in the second.
    Ranks skip this, because they execute equally often. `said` gets how many it compiled, if these
    are too many.
    """
    planned = max(plan.warmup, 1)
    most = planned if work.together else max(planned, MOST_COMPILED + 1)
    compiled = number = 0
    for number in range(1, most + 1):
        work.progress.begins("warming up", f"{number} of {max(planned, number)}")
        compilations = Compilations()
        yield number
        anew = compilations.counted(None)["recompilations"] > 0
        compiled += anew
        if number >= planned and not anew:
            break
    if compiled > MOST_COMPILED / 2:  # a function may have had some of its graphs before
        said[COMPILING] = f"{compiled} of {number}"


@contextmanager
def garbage_kept() -> Iterator[None]:
    """Collects garbage once, and switches the automatic collection off inside the block.

    A collection within a measured step would be counted and timed.
    """
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Losses:
    """The losses that the executions of one step returned, each after a reset.

    A loss is a float, or a tensor of floats; for several elements (a sampled volume) the root of
    their mean square. Any other return value has no loss. Reading it waits for the device, so it is
    read after an execution has been timed.
    """

    def __init__(self, work: Work) -> None:
        self._compared = work.reset is not no_reset and work.reproducible is not None
        self._allowed = work.reproducible or 0.0
        self._reset = "" if work.reset is no_reset else " after reset"
        self._seen: list[float] = []

    def add(self, returned: object) -> None:
        """Takes the return value of one more execution.

        Raises UnsoundStep for a coroutine or generator, whose work did not run, and for a loss that
        is NaN or infinite. With a reset it also raises for a loss too far from the first.
        """
        _check_executed(returned)
        loss = _number(returned)
        if loss is None:
            return
        if not math.isfinite(loss):
            raise UnsoundStep(
                f"the loss is {loss}{self._reset}, so performance counters of this step mean "
                "nothing. Check the input, the weights, and overflows in half precision. "
                "torch.autograd.set_detect_anomaly(True) names the operation"
            )
        self._seen.append(loss)
        first = self._seen[0]
        apart = _apart(first, loss)
        if self._compared and apart > self._allowed:
            raise UnsoundStep(
                f"two executions after reset gave the losses {first:.9g} and {loss:.9g}, "
                f"{100 * apart:.2g} % apart (allowed: {100 * self._allowed:.2g} %). The step does "
                "different work each time. Let reset restore all that the step changes: weights, "
                "optimizer, random generators. If only rounding differs, allow it by "
                "gpuperf.measure(..., reproducible=0.01). reproducible=False switches this check "
                "off"
            )

    def settings(self) -> dict[str, Scalar]:
        """The first loss and, where there was a second, the largest distance of any to it."""
        if not self._seen:
            return {}
        first, *others = self._seen
        settings: dict[str, Scalar] = {"loss": _rounded(first)}
        if others:
            settings["loss_apart"] = _rounded(max(_apart(first, other) for other in others))
        return settings


def _check_executed(returned: object) -> None:
    """Raises UnsoundStep where the step returned its work in place of doing it."""
    later = (inspect.isawaitable, inspect.isgenerator, inspect.isasyncgen)
    if not any(is_one(returned) for is_one in later):
        return
    if inspect.iscoroutine(returned):
        returned.close()  # Python would warn that it was never awaited
    raise UnsoundStep(
        f"the step returns an object of type {type(returned).__name__}, and did no work: its work "
        "runs when the caller awaits it or iterates over it. Give measure a step that does its "
        "work, for example lambda: asyncio.run(step()) or lambda: list(step())"
    )


def _number(returned: object) -> float | None:
    """The loss as a number, also from a mapping as Hugging Face's models return; else None."""
    if isinstance(returned, Mapping):
        returned = returned.get("loss")
    if isinstance(returned, Real) and not isinstance(returned, Integral):
        return float(returned)
    torch: Any = sys.modules.get("torch")  # without it loaded, nothing is a tensor
    if torch is None or not isinstance(returned, torch.Tensor):
        return None
    if not returned.is_floating_point() or not returned.numel():
        return None
    if returned.numel() == 1:
        return float(returned.detach().item())
    # Without a copy: a volume may fill most of the device memory.
    norm = torch.linalg.vector_norm(returned.detach())
    return float(norm) / math.sqrt(returned.numel())


def _apart(first: float, second: float) -> float:
    """The difference, relative to the larger; 0 where both are 0."""
    largest = max(abs(first), abs(second))
    return abs(first - second) / largest if largest else 0.0


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
