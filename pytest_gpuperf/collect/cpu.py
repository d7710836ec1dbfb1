"""The CPU collector: portable counts, wall time and, where the kernel allows it, CPU counters.

The counts (`dispatch.StepCounter`) depend on the step and on PyTorch, not on the machine, so they
can be gated anywhere. Counting costs tens of microseconds per operator: counts, times and CPU
counters come from separate executions.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from pytest_gpuperf.arch import portable_device
from pytest_gpuperf.collect import perf_events
from pytest_gpuperf.collect.base import Collected, Plan, Work, each, samples_of
from pytest_gpuperf.collect.components import HostTimes, checked
from pytest_gpuperf.collect.loss import Losses
from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.fingerprint import cpu_model
from pytest_gpuperf.model import STEP, Device, Unsupported

if TYPE_CHECKING:
    from pytest_gpuperf.collect.dispatch import StepCounter

_COUNTED_ROUNDS = 2
"""The counts are the same every time; the second round shows it where they are not."""

_CYCLES, _INSTRUCTIONS, _IPC = perf_events.CYCLES.name, perf_events.INSTRUCTIONS.name, "cpu_ipc"

_NO_TRACE = "there is no GPU whose activity could be traced"

_Series = dict[tuple[str, str], list[float]]


class CpuCollector:
    """Measures a step on the CPU. Implements `collect.base.Collector`.

    Hardware metrics in the plan are a GPU's and are passed over. Metrics from traces are
    unsupported; where they are asked for, components have their wall time.
    """

    name = "cpu"
    torch_device = "cpu"

    def device(self) -> Device:
        """The portable device: its baselines hold on every machine."""
        return portable_device()

    def software(self) -> dict[str, str]:
        """The model of the processor, which explains times and CPU counters."""
        return {"cpu": cpu_model()}

    def collect(self, work: Work, plan: Plan) -> Collected:
        """Warms up, times, reads CPU counters and counts, each in executions of its own.

        Raises MeasurementError if the step's phases or components differ from one execution to the
        next, UnsoundStep for a loss that is no number or not reproduced, and whatever the step
        raises.
        """
        import torch

        started = time.perf_counter()
        rounds = max(1, min(plan.rounds, _COUNTED_ROUNDS))
        after = plan.repetitions
        losses = Losses(work)
        # At least once: the first execution makes gradients and optimizer state.
        for _ in each(work.progress, "warming up", max(1, plan.warmup), rounds + 2 * after):
            work.reset()
            losses.add(work.step())
        series: _Series = {}
        _count(work, rounds, series, 2 * after)
        timed = each(work.progress, "timing", plan.repetitions, after)
        series[STEP, "wall_time"] = [_wall_time(work) for _ in timed]
        unsupported = tuple(Unsupported(metric.name, _NO_TRACE) for metric in plan.activity)
        components: tuple[str, ...] = ()
        if plan.activity:
            phases = {phase for phase, _ in series}
            times = _component_times(work, plan.repetitions)
            components = checked([list(once) for once in times], phases)
            for name in components:
                series[name, "wall_time"] = [once[name] for once in times]
        try:
            series |= _cpu_counters(work, plan.repetitions)
        except CountersUnavailable as why:
            unsupported += tuple(
                Unsupported(name, str(why)) for name in (_CYCLES, _INSTRUCTIONS, _IPC)
            )
        return Collected(
            samples_of(series),
            unsupported,
            {
                **losses.settings(),
                "threads": torch.get_num_threads(),
                "counted_rounds": rounds,
                "cost_s": round(time.perf_counter() - started, 3),
            },
            components=components,
        )


def _wall_time(work: Work) -> float:
    """Milliseconds of one execution."""
    work.reset()
    started = time.perf_counter_ns()
    work.step()
    return (time.perf_counter_ns() - started) / 1e6


def _component_times(work: Work, repetitions: int) -> list[dict[str, float]]:
    """Milliseconds of each component in so many executions; of one, where there are none."""
    found: list[dict[str, float]] = []
    for _ in each(work.progress, "timing components", repetitions, after=None):
        listener = HostTimes()
        work.reset()
        with work.components.heard_by(listener):
            work.step()
        found.append(listener.times)
        if not any(found):
            break
    return found


def _count(work: Work, rounds: int, series: _Series, after: int) -> None:
    """Appends the portable counts of `rounds` executions to `series`, whole step first.

    `after` executions follow.
    """
    phases: list[str] | None = None
    for _ in each(work.progress, "counting, round", rounds, after):
        counter = _counted(work)
        found = list(counter.phases)
        if phases is not None and found != phases:
            raise MeasurementError(
                f"the step's phases changed from {phases} to {found} between two executions. "
                "Give `measure` a `reset` after which the step does the same work again"
            )
        phases = found
        for phase, counts in {STEP: counter.step, **counter.phases}.items():
            for metric, value in asdict(counts).items():
                series.setdefault((phase, metric), []).append(float(value))
        series.setdefault((STEP, "peak_memory"), []).append(float(counter.memory.peak))


def _counted(work: Work) -> StepCounter:
    """One execution of the step, counted."""
    from pytest_gpuperf.collect.dispatch import StepCounter

    work.reset()
    counter = StepCounter()
    with _collection_paused(), work.phases.heard_by(counter), counter.watching():
        work.step()
    return counter


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Collects garbage now and not in the block, where it would free tensors at random moments."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _PhaseReader:
    """Sums CPU counters per phase; a `PhaseListener`."""

    def __init__(self, counters: perf_events.Counters) -> None:
        self._counters = counters
        self._at_start = counters.read()
        self.totals: dict[str, dict[str, float]] = {}

    def enter(self, phase: str) -> None:  # noqa: ARG002
        self._at_start = self._counters.read()

    def leave(self, phase: str) -> None:
        now = self._counters.read()
        totals = self.totals.setdefault(phase, dict.fromkeys(now, 0.0))
        for name, value in now.items():
            totals[name] += value - self._at_start[name]


def _cpu_counters(work: Work, rounds: int) -> _Series:
    """Cycles, instructions and IPC of `rounds` executions. Raises CountersUnavailable."""
    series: _Series = {}
    # Opened after the warm-up, which started the threads that are to be counted.
    with perf_events.counting() as counters:
        for _ in each(work.progress, "reading CPU counters", rounds):
            _append_cpu_counters(work, counters, series)
    return series


def _append_cpu_counters(work: Work, counters: perf_events.Counters, series: _Series) -> None:
    work.reset()
    phases, step = _PhaseReader(counters), _PhaseReader(counters)
    with work.phases.heard_by(phases):
        step.enter(STEP)
        work.step()
        step.leave(STEP)
    totals = step.totals[STEP]
    if not totals[_CYCLES]:
        raise CountersUnavailable(
            "the CPU's counters did not run", "End other profilers on this machine"
        )
    for phase, values in {**step.totals, **phases.totals}.items():
        for metric, value in values.items():
            series.setdefault((phase, metric), []).append(value)
    series.setdefault((STEP, _IPC), []).append(totals[_INSTRUCTIONS] / totals[_CYCLES])
