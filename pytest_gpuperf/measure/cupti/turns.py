"""The turns of a step's workers on a GPU: in which execution which of them counts, and how.

CUPTI counts in one process of a GPU at a time. So the test's own counters come first, and then each
worker has executions of the step of its own, in which it alone counts its block: in one range and
pass, and with the profiler open for no longer. What all of them launch is in traces, which are no
counters: they are taken at once.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from pytest_gpuperf.errors import CountersUnavailable, GpuperfError, MeasurementError
from pytest_gpuperf.measure import paper_window
from pytest_gpuperf.measure.attached_workers import CUPTI, TRACE, Counts, Workers
from pytest_gpuperf.measure.collector import Plan, Work, each
from pytest_gpuperf.measure.cupti import library
from pytest_gpuperf.measure.cupti.range_session import RangeSession
from pytest_gpuperf.measure.device import driver
from pytest_gpuperf.measure.execution import CudaTimer, Series, prepare
from pytest_gpuperf.measure.trace import host_calls
from pytest_gpuperf.measure.trace.activity import activities, values_of_step
from pytest_gpuperf.measure.trace.profile import STEP_RANGE, Profile, Spans
from pytest_gpuperf.model.measurement import STEP, Unsupported
from pytest_gpuperf.model.metric import Metric

_TOO_LATE = (
    "its block was the first of its process to use the GPU, and nothing of it was counted. Let the "
    "worker live on from one execution of the step to the next, or say so: "
    "attached(..., first_use=True)"
)


@dataclass(frozen=True)
class Turns:
    """The executions of a step in which its workers count."""

    work: Work
    workers: Workers
    timer: CudaTimer

    def add(self, plan: Plan, arch: str, series: Series, passes: int) -> tuple[Unsupported, ...]:
        """Adds what workers do to the step's values in `series`; what has none then, and why.

        `passes` are those that all counters of the plan took. Counts and times of all processes are
        added, rates made of the sums. Raises MeasurementError.
        """
        metrics = [m for m in plan.metrics if (STEP, m.name) in series]
        counted = [m for m in metrics if m.additive]
        # An execution is one pass in a worker.
        groups = [counted] if counted and passes == 1 else [[metric] for metric in counted]
        names = [{m.name: m.hardware_name(arch) or "" for m in group} for group in groups]
        lacking = self._add(series, metrics, partial(self.counters, names))
        traced = [m for m in plan.activity if m.additive and (STEP, m.name) in series]
        return lacking + self._add(series, traced, partial(self.traces, [m.name for m in traced]))

    def _add(
        self, series: Series, metrics: Sequence[Metric], take: Callable[[int], list[Counts]]
    ) -> tuple[Unsupported, ...]:
        own = {metric.name: series[STEP, metric.name] for metric in metrics}
        rounds = max(map(len, own.values()), default=0)
        if not rounds or not self.workers.turns():
            return ()
        reasons: dict[str, str] = {}
        try:
            theirs = take(rounds)
        except CountersUnavailable as error:
            reasons = dict.fromkeys(own, error.reason)
        else:
            self.workers.keep(theirs)
            for name in own:
                # What is counted in instrumented kernels has one round.
                values = [
                    _together(
                        name,
                        [{m: of[number % len(of)] for m, of in own.items()}, *others.values()],
                    )
                    for number, others in enumerate(theirs[: len(own[name])])
                ]
                series[STEP, name] = [value for value in values if not isinstance(value, str)]
                if said := [value for value in values if isinstance(value, str)]:
                    reasons[name] = said[0]
        for name in reasons:
            del series[STEP, name]
        return tuple(Unsupported(name, reason) for name, reason in reasons.items())

    def counters(self, groups: Sequence[Mapping[str, str]], rounds: int) -> list[Counts]:
        """NVIDIA's counters of each worker, by the catalogue's names: per round, by worker.

        `groups` are the metrics, by those names, that are counted in one pass. Executes the step
        `rounds` times for each group and worker. Raises CountersUnavailable where a worker cannot
        count, and MeasurementError for workers that cannot be told apart.
        """
        counted: list[Counts] = [{} for _ in range(rounds)]
        turns = [(name, group) for name in self.workers.turns() for group in groups]
        for name, group in turns:
            stage = f"counting in {name}, round"
            for number in each(self.work.progress, stage, rounds, after=None):
                how = {"by": CUPTI, "counters": dict(group)}
                of_round = counted[number - 1].setdefault(name, {})
                of_round.update(self._executed(how, only=name).get(name, {}))
        return counted

    def traces(self, metrics: Sequence[str], traces: int) -> list[Counts]:
        """What workers launch, copy and wait for: per trace, by worker. Raises as `counters`."""
        how = {"by": TRACE, "metrics": [*metrics]}
        numbers = each(self.work.progress, "tracing workers", traces, after=None)
        return [self._executed(how) for _ in numbers]

    def _executed(self, how: Mapping[str, Any], only: str = "") -> Counts:
        prepare(self.work, self.timer)
        with self.workers.counting(how, only) as counts:
            self.work.step()
            self.timer.synchronize()
        return counts


def _together(metric: str, processes: Sequence[Mapping[str, float]]) -> float | str:
    """The metric's value over what all of these processes have counted, or why it has none."""
    numbers = [{m: v for m, v in one.items() if math.isfinite(v)} for one in processes]
    at_work = [one for one in numbers if any(one.values())]
    total = paper_window.total(metric, at_work or numbers[:1])
    return "a rate of one process, and several do the step" if isinstance(total, str) else total


class BlockCounter:
    """Counts a block of this process, a worker, in one pass of the range profiler.

    `counters` are NVIDIA's names by the catalogue's. With `first_use`, the block may be the first
    to use the GPU. The rest is for tests.
    """

    def __init__(
        self,
        counters: Mapping[str, str],
        *,
        first_use: bool = False,
        cupti: library.Cupti | None = None,
        cuda: driver.Driver | None = None,
    ) -> None:
        self._counters = counters
        self._first_use = first_use
        self._cupti, self._cuda = cupti, cuda
        self._session: RangeSession | None = None
        self._held = ExitStack()

    def begin(self) -> None:
        """The block begins. Raises CountersUnavailable and MeasurementError."""
        with ExitStack() as held:
            if self._first_use:
                with suppress(ImportError):  # torch's CUPTI is the one that there may be
                    import torch  # noqa: F401
                held.enter_context((self._cuda or driver.load()).primary_context())
            cuda = _with_context(self._cuda)
            if cuda is not None:
                cuda.synchronize()
                names = tuple(self._counters.values())
                session = held.enter_context(RangeSession(names, cupti=self._cupti, cuda=cuda))
                if session.unsupported:
                    raise MeasurementError(session.unsupported[0].reason)
                session.begin()
                self._session = session
            self._held = held.pop_all()

    def end(self) -> dict[str, float]:
        """The block ends: what was counted. A process that does not use the GPU has counted 0."""
        with self._held:
            cuda = _with_context(self._cuda)
            if self._session is None:
                if cuda is not None:
                    raise MeasurementError(_TOO_LATE)
                return dict.fromkeys(self._counters, 0.0)
            if cuda is not None:
                cuda.synchronize()
            (values,) = self._session.end()
            return {name: values[hardware] for name, hardware in self._counters.items()}


class BlockTrace:
    """Traces a block of this process, a worker, and counts what it launches, by `metrics`."""

    def __init__(self, metrics: Sequence[str], *, first_use: bool = False) -> None:
        self._metrics = metrics
        self._first_use = first_use
        self._profile: Profile | None = None
        self._compilations = host_calls.Compilations()
        self._spans = Spans("")
        self._step = ExitStack()

    def begin(self) -> None:
        """The block begins. Raises CountersUnavailable."""
        if self._first_use:
            import torch

            initialize: Any = torch.cuda.init  # untyped
            initialize()
        if _torch_with_context() is None:
            return
        profile = Profile(host=self._compilations.any)
        profile.start()
        self._profile = profile
        self._step.enter_context(self._spans.named(STEP_RANGE))

    def end(self) -> dict[str, float]:
        """The block ends: what was traced. A process that does not use the GPU has launched 0."""
        torch = _torch_with_context()
        if self._profile is None:
            if torch is not None:
                raise MeasurementError(_TOO_LATE)
            return dict.fromkeys(self._metrics, 0.0)
        self._step.close()
        if torch is not None:
            torch.cuda.synchronize()
        events = self._spans.among(self._profile.stop()())
        values = values_of_step(activities(events))
        values |= host_calls.counted(name for _, name in host_calls.during(events))
        values |= self._compilations.counted(events)
        return {name: values[name] for name in self._metrics if name in values}


def _with_context(cuda: driver.Driver | None) -> driver.Driver | None:
    """The driver, where this thread uses a GPU; who was forked from a process that does cannot."""
    with suppress(GpuperfError):
        cuda = cuda or driver.load()
        return cuda if cuda.current_context() is not None else None
    return None


def _torch_with_context() -> Any:
    torch: Any = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None
