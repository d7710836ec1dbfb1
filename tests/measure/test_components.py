"""Marks of components: what may be inside what, how they are told apart, and the time of each."""

from __future__ import annotations

import time

import pytest

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.measure.collector import Collected, Components, Phases, Plan, Work
from pytest_gpuperf.measure.cpu.cpu_collector import CpuCollector, HostTimes
from pytest_gpuperf.measure.trace.activity import checked
from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.model.metric import Metric
from tests.heard_progress import Heard

ACTIVITY = tuple(catalogue().metrics[name] for name in catalogue().sets["activity"])


def test_the_host_s_time_belongs_to_the_innermost(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0, 10, 15, 35, 100, 103])  # ms
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(moments) * 1_000_000)
    components, times = Components(), HostTimes()
    with components.heard_by(times):
        with components.mark("block"), components.mark("conv2d"):
            pass
        with components.mark("block"):
            pass
    # block from 0 to 10, conv2d to 15, block to 35; nothing to 100; block to 103.
    assert times.times == {"block": 10 + 20 + 3, "conv2d": 5}


def test_components_are_named_once_in_the_order_of_their_appearance_or_refused() -> None:
    for heard, names in (([], ()), ([[]], ()), ([["b", "a", "b"], ["a", "b"]], ("b", "a"))):
        assert checked(heard, ()) == names
    for heard, phases, message in (
        ([["a", "b"], ["b", "a", "c"]], [], r"first \['a', 'b'\], then \['b', 'a', 'c'\]"),
        ([["a"], []], [], r"first \['a'\], then \[\]"),
        ([["a", "forward"]], ["forward"], '"forward" is both a phase and a component'),
    ):
        with pytest.raises(MeasurementError, match=message):
            checked(heard, phases)


# On the CPU


class Step:
    """A step with these components in a phase; notes its executions."""

    def __init__(self, *names: str) -> None:
        self.phases, self.components = Phases(), Components()
        self.names = names
        self.executions = 0
        self.heard = Heard()

    def __call__(self) -> None:
        self.executions += 1
        with self.phases.mark("forward"):
            for name in self.names:
                with self.components.mark(name):
                    sum(range(100))

    def collected(self, activity: tuple[Metric, ...] = ACTIVITY) -> Collected:
        work = Work(self, self.phases, progress=self.heard, components=self.components)
        plan = Plan(
            metrics=(),
            rounds=1,
            repetitions=2,
            warmup=1,
            activity=activity,
            components=bool(activity),
        )
        return CpuCollector().collect(work, plan)


def test_on_the_cpu_components_have_their_wall_time() -> None:
    collected = Step("conv2d", "gelu", "conv2d").collected()
    assert collected.components == ("conv2d", "gelu")
    times = {s.phase: s.values for s in collected.samples if s.metric == "wall_time"}
    assert list(times) == [STEP, "conv2d", "gelu"]
    assert all(len(values) == 2 and min(values) > 0 for values in times.values())


def test_on_the_cpu_nothing_of_a_trace_is_supported_and_the_reason_is_given() -> None:
    collected = Step().collected()
    assert collected.components == ()
    reasons = {entry.metric: entry.reason for entry in collected.unsupported}
    portable = {"copies", "compiled_graphs", "graph_breaks", "recompilations"}
    assert {metric.name for metric in ACTIVITY} == {*reasons, *portable}
    measured = {sample.metric for sample in collected.samples}
    assert portable <= measured
    assert reasons["kernel_time"] == "there is no GPU to trace"


def test_components_take_executions_of_their_own_where_activity_is_asked_for() -> None:
    plain = Step("a")
    plain.collected(activity=())
    assert not any("timing components" in said for said in plain.heard.said)
    for step, more in ((Step("a"), 2), (Step(), 1)):
        step.collected()
        assert step.executions == plain.executions + more
        assert sum("timing components" in said for said in step.heard.said) >= more


def test_a_component_with_a_phase_s_name_is_refused() -> None:
    with pytest.raises(MeasurementError, match="both a phase and a component"):
        Step("forward").collected()
