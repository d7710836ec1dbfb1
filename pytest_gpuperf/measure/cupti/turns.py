"""The turns of a step's workers on a GPU: in which execution which of them counts.

CUPTI counts in one process of a GPU at a time. So the test's own counters come first, and then each
worker has executions of the step of its own, in which it alone counts. What all of them launch is
in traces, which are no counters: they are taken at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pytest_gpuperf.errors import CountersUnavailable
from pytest_gpuperf.measure import paper_window
from pytest_gpuperf.measure.attached_workers import CUPTI, TRACE, Counts, Workers
from pytest_gpuperf.measure.collector import Plan, Work, each
from pytest_gpuperf.measure.execution import CudaTimer, Series, prepare
from pytest_gpuperf.model.measurement import STEP, Unsupported
from pytest_gpuperf.model.metric import Metric


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
