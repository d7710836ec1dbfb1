"""The CPU collector: portable counts and wall time.

The counts (`dispatch.StepCounter`) depend on the step and on PyTorch, not on the machine, so they
can be gated anywhere. Counting costs tens of microseconds per operator: counts and times come from
separate executions.
"""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.measure.collector import Collected, Plan, Work, check_alike, each, samples_of
from pytest_gpuperf.measure.device.fingerprint import cpu_model
from pytest_gpuperf.measure.device.nvml import portable_device
from pytest_gpuperf.measure.execution import Losses, Series, Stopwatch, garbage_kept, warm_ups
from pytest_gpuperf.measure.trace import profile
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

        watch = Stopwatch()
        rounds = max(1, min(plan.rounds, _COUNTED_ROUNDS))
        losses = Losses(work)
        # At least once: the first execution makes gradients and optimizer state.
        repetitions = plan.repetitions or _REPETITIONS
        compiling: dict[str, Scalar] = {}
        for _ in warm_ups(work, plan, compiling):
            work.begin()
            losses.add(work.step())
        series, unsupported, differing = _count(work, rounds, losses)
        timed = each(work.progress, "timing", repetitions)
        series[STEP, "wall_time"] = [_wall_ms(work) for _ in timed]
        if plan.activity:
            # One more execution, if anything was compiled.
            compilations = Compilations()
            counts = compilations.counted(_traced(work) if compilations.any else None)
            series |= {(STEP, metric): [count] for metric, count in counts.items()}
        if plan.components:
            untraced = (metric.name for metric in plan.activity if not metric.portable)
            unsupported += tuple(Unsupported(name, "there is no GPU to trace") for name in untraced)
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
                "cost_s": watch.total(),
            },
        )

    def kernels(self, work: Work, metrics: Sequence[Metric]) -> KernelTable:  # noqa: ARG002
        """The operators of one more execution, with the lines of code that they come from."""
        from pytest_gpuperf.measure.cpu.dispatch import Operators

        operators = Operators(self._root)
        _counted(work, Losses(work), operators)
        return operators.table(graph_breaks(_traced(work)) if Compilations().any else ())


def _traced(work: Work) -> profile.Trace:
    """The trace of one execution, with torch's operators and annotations."""
    work.begin()
    return profile.trace(work.step, lambda: None, host=True)


def _wall_ms(work: Work) -> float:
    """Milliseconds of one execution."""
    work.begin()
    started = time.perf_counter()
    work.step()
    return 1e3 * (time.perf_counter() - started)


def _count(
    work: Work, rounds: int, losses: Losses
) -> tuple[Series, tuple[Unsupported, ...], dict[str, Scalar]]:
    """The portable counts of `rounds` executions, and the metrics that could not be counted.

    The settings returned name differences between executions and uncounted parts.
    """
    from pytest_gpuperf.measure.cpu.dispatch import part_unseen

    watched = [_counted(work, losses) for _ in each(work.progress, "counting, round", rounds)]
    counters = [unseen.counter for unseen in watched]
    lost = {metric: why for counter in counters for metric, why in counter.uncounted.items()}
    series: Series = {}
    for counter in counters:
        check_alike("phases", [*counters[0].phases], [*counter.phases])
        for phase, counts in counter.counts():
            for metric, value in counts.items():
                if metric not in lost:
                    series.setdefault((phase, metric), []).append(float(value))
    said = {
        UNEQUAL: _unequal(counters[0].work, counters[-1].work),
        UNSEEN: part_unseen(watched),
    }
    settings: dict[str, Scalar] = {name: words for name, words in said.items() if words}
    return series, tuple(Unsupported(*one) for one in sorted(lost.items(), reverse=True)), settings


def _unequal(first: Counter[tuple[object, str]], last: Counter[tuple[object, str]]) -> str:
    """Differences between two executions, as "aten.mm 12 and 14 calls"; "" if they are equal."""
    said: dict[object, str] = {}
    for operator, unit in first | last:
        one, other = first[operator, unit], last[operator, unit]
        if one != other:
            said.setdefault(operator, f"{operator} {one:,} and {other:,} {unit}")
    more = len(said) - _NAMED
    return ", ".join([*said.values()][:_NAMED]) + (f", and {more} others" if more > 0 else "")


def _counted(work: Work, losses: Losses, operators: Operators | None = None) -> Unseen:
    """One counted execution of the step."""
    from torch import distributed

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
            grouped = distributed.is_available() and distributed.is_initialized()
            others = PEAK in counter.uncounted or grouped
            counter.memory.end(_LETTING_GO_S if others else 0.0)
    return unseen
