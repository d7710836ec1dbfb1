"""The CPU collector: portable counts and wall time.

The counts (`dispatch.StepCounter`) depend on the step and on PyTorch, not on the machine, so they
can be gated anywhere. Counting costs tens of microseconds per operator: counts and times come from
separate executions.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.measure.collector import Collected, Plan, Work, each, samples_of
from pytest_gpuperf.measure.device.fingerprint import cpu_model
from pytest_gpuperf.measure.device.nvml import portable_device
from pytest_gpuperf.measure.execution import Losses, Series, garbage_kept, warm_ups
from pytest_gpuperf.measure.trace import profile
from pytest_gpuperf.measure.trace.activity import Collectives, host_collectives
from pytest_gpuperf.measure.trace.host_calls import Compilations, graph_breaks
from pytest_gpuperf.model.measurement import (
    STEP,
    UNEQUAL,
    UNSEEN,
    WALL,
    Device,
    KernelTable,
    Scalar,
    Unsupported,
)
from pytest_gpuperf.model.metric import Metric

if TYPE_CHECKING:
    from pytest_gpuperf.measure.cpu.dispatch import Operators, Unseen


_COUNTED_ROUNDS = 2
"""Rounds of counting: counts should be equal, and a second round shows if they are not."""
_REPETITIONS = 2
"""The times are not judged, because they depend on the processor."""

_NAMED = 4
"""Operators that are named of those that differ."""

_LETTING_GO_S = 0.05
"""Other threads, as gloo's are, let go of a result a moment after the step has it."""

_NO_TRACE = "there is no GPU to trace"


class CpuCollector:
    """Measures a step on the CPU. Implements `Collector` and `KernelCollector`, for operators.

    Files of code are named relative to `root`, by default the current folder.

    It sets OMP_WAIT_POLICY, unless set already. If torch is not loaded yet, and in child processes,
    waiting threads then free the processor. Beside two busy processes on two cores a step takes
    half the time, and alone the same.

    Hardware metrics in the plan belong to GPUs and are skipped. Of the metrics from traces, those
    that exist on a CPU are collected. If others beyond the set core are requested, they are
    unsupported.
    """

    name = "cpu"
    torch_device = "cpu"

    def __init__(self, root: Path | None = None) -> None:
        self._root = root or Path.cwd()
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")

    def device(self) -> Device:
        """The portable device: its baselines hold on every machine."""
        return portable_device()

    def software(self) -> dict[str, str]:
        """The model of the processor, which explains times."""
        return {"cpu": cpu_model()}

    def collect(self, work: Work, plan: Plan) -> Collected:
        """Warms up, counts and times, each in executions of its own.

        Raises MeasurementError if the step's phases differ from one execution to the next,
        UnsoundStep for a loss that is no number or not reproduced, and whatever the step raises.
        """
        import torch

        started = time.perf_counter()
        rounds = max(1, min(plan.rounds, _COUNTED_ROUNDS))
        losses = Losses(work)
        # At least once: the first execution makes gradients and optimizer state.
        repetitions = plan.repetitions or _REPETITIONS
        compiling: dict[str, Scalar] = {}
        for _ in warm_ups(work, plan, compiling, rounds + repetitions):
            work.begin()
            losses.add(work.step())
        series: Series = {}
        unsupported, differing = _count(work, rounds, series, losses, repetitions)
        timed = each(work.progress, "timing", repetitions)
        times = [_times(work) for _ in timed]
        series[STEP, "wall_time"] = [wall for wall, _ in times]
        collectives: tuple[Collectives, ...] = ()
        if work.together:
            series[STEP, "own_time"] = [own for _, own in times]
            traced = [_collectives(work) for _ in each(work.progress, "tracing", repetitions)]
            series[STEP, "collective_time"] = [taken for taken, _ in traced]
            collectives = tuple(durations for _, durations in traced)
        if plan.activity:
            for metric, value in _compiled(work).items():
                series[STEP, metric] = [value]
        if plan.components:
            unsupported += tuple(
                Unsupported(metric.name, _NO_TRACE)
                for metric in plan.activity
                if not metric.portable
            )
        return Collected(
            samples_of(series),
            unsupported,
            {
                **losses.settings(),
                **compiling,
                "threads": torch.get_num_threads(),
                "counted_rounds": rounds,
                WALL: round(min(series[STEP, "wall_time"]), 3),
                **differing,
                "cost_s": round(time.perf_counter() - started, 3),
            },
            collectives=collectives,
        )

    def kernels(self, work: Work, metrics: Sequence[Metric]) -> KernelTable:  # noqa: ARG002
        """The operators of one more execution, with the lines of code that they come from."""
        from pytest_gpuperf.measure.cpu.dispatch import Operators

        operators = Operators(self._root)
        _counted(work, Losses(work), operators)
        if not Compilations().any:
            return operators.table()
        return operators.table(graph_breaks(_traced(work)))


def _compiled(work: Work) -> dict[str, float]:
    """The work of torch.compile in the step, from one more execution if anything was compiled."""
    compilations = Compilations()
    if not compilations.any:
        return compilations.counted(None)
    return compilations.counted(_traced(work))


def _collectives(work: Work) -> tuple[float, Collectives]:
    """Nanoseconds of one execution with a collective under way; and those of each collective."""
    return host_collectives(_traced(work))


def _traced(work: Work) -> profile.Trace:
    """The trace of one execution, with torch's operators and annotations."""
    work.begin()
    return profile.trace(work.step, lambda: None, host=True)


def _times(work: Work) -> tuple[float, float]:
    """Milliseconds of one execution, and nanoseconds of this thread's processor time."""
    work.begin()
    own, started = time.thread_time_ns(), time.perf_counter_ns()
    work.step()
    return (time.perf_counter_ns() - started) / 1e6, float(time.thread_time_ns() - own)


def _count(
    work: Work, rounds: int, series: Series, losses: Losses, after: int
) -> tuple[tuple[Unsupported, ...], dict[str, Scalar]]:
    """Appends the portable counts of `rounds` executions to `series`, whole step first.

    `after` executions follow. Returns the metrics that could not be counted. The settings returned
    name differences between executions and uncounted parts.
    """
    from pytest_gpuperf.measure.cpu.dispatch import PEAK, part_unseen

    phases: list[str] | None = None
    watched: list[Unseen] = []
    for _ in each(work.progress, "counting, round", rounds, after):
        unseen, kept = _counted(work, losses)
        watched.append(unseen)
        counter = unseen.counter
        names = list(counter.phases)
        if phases is not None and names != phases:
            raise MeasurementError(
                f"the phases of the step change between executions: first {phases}, then {names}. "
                "Give `measure` a `reset` after which the step does the same work again"
            )
        phases = names
        for phase, counts in {STEP: counter.step, **counter.phases}.items():
            for metric, value in asdict(counts).items():
                series.setdefault((phase, metric), []).append(float(value))
        series.setdefault((STEP, "kept_memory"), []).append(float(kept))
        series.setdefault((STEP, PEAK), []).append(float(counter.memory.peak))
    lost = {metric: why for one in watched for metric, why in one.counter.uncounted.items()}
    for metric in lost:
        for phase in (STEP, *(phases or ())):
            series.pop((phase, metric), None)
    said = {
        UNEQUAL: _unequal(watched[0].counter.work, watched[-1].counter.work),
        UNSEEN: part_unseen(watched),
    }
    settings: dict[str, Scalar] = {name: words for name, words in said.items() if words}
    return tuple(Unsupported(*one) for one in sorted(lost.items(), reverse=True)), settings


def _unequal(first: Counter[tuple[object, str]], last: Counter[tuple[object, str]]) -> str:
    """Differences between two executions, as "aten.mm 12 and 14 calls"; "" if they are equal."""
    said: dict[object, str] = {}
    for operator, unit in first | last:
        one, other = first[operator, unit], last[operator, unit]
        if one != other:
            said.setdefault(operator, f"{operator} {one:,} and {other:,} {unit}")
    more = len(said) - _NAMED
    return ", ".join([*said.values()][:_NAMED]) + (f", and {more} others" if more > 0 else "")


def _counted(work: Work, losses: Losses, operators: Operators | None = None) -> tuple[Unseen, int]:
    """One counted execution of the step, and the bytes it made that outlive it."""
    from pytest_gpuperf.measure.cpu.dispatch import PEAK, StepCounter, Unseen

    work.reset()
    counter = StepCounter(operators)
    unseen = Unseen(counter)
    with garbage_kept():
        try:
            work.barrier()
            with work.phases.heard_by(counter), unseen.watching(), counter.watching():
                returned = work.step()
            losses.add(returned)
            del returned
            # Cycles are garbage, which the next collection would free anyway.
            gc.collect(0)
        finally:
            others = PEAK in counter.uncounted or _has_process_group()
            kept = counter.memory.end(_LETTING_GO_S if others else 0.0)
    return unseen, kept


def _has_process_group() -> bool:
    distributed: Any = sys.modules.get("torch.distributed")
    return bool(distributed and distributed.is_available() and distributed.is_initialized())
