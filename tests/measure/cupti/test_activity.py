"""Activity through the collector: what is executed when, and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.measure.collector import Collected, Components, Phases, Plan, Work
from pytest_gpuperf.measure.cupti.cupti_collector import CuptiCollector
from pytest_gpuperf.measure.trace.activity import NOTHING
from pytest_gpuperf.measure.trace.profile import Event
from pytest_gpuperf.model.measurement import STEP, Device
from pytest_gpuperf.model.metric import Metric
from tests.heard_progress import Heard
from tests.measure.cupti.fake import Fake, FakeTimer
from tests.measure.traces import call, component, copy, kernel, launched

HOPPER = Device("sm90", "NVIDIA H200", "nvidia-h200")
METRICS = catalogue().metrics
ACTIVITY = tuple(METRICS[name] for name in catalogue().sets["activity"])
STEP_EVENTS = [
    *launched(10, 4, 1),
    *launched(20, 6, 2),
    call(30, 3, "cudaMemcpyAsync"),
    copy(40, 5, "HtoD (Pinned -> Device)", 4096, 3),
]
"""Kernels in [10, 14) and [20, 26), a copy in [40, 45)."""
MARKS = [component(0, 8, "0"), component(12, 40, "1")]
"""Those of the first component and of the second.

The first kernel was launched at 5, the second at 15, the copy at 30.
"""


class Step:
    """A step of two components; notes its executions."""

    def __init__(self, *names: str) -> None:
        self.phases, self.components = Phases(), Components()
        self.names = list(names)
        self.executions = 0

    def __call__(self) -> None:
        self.executions += 1
        with self.phases.mark("forward"):
            for name in self.names:
                with self.components.mark(name):
                    pass

    def work(self, heard: Heard | None = None) -> Work:
        return Work(self, self.phases, progress=heard or Heard(), components=self.components)


class Script:
    """Traces that are known beforehand, in place of torch.profiler; notes what it was asked for."""

    def __init__(
        self, events: Sequence[Event] = STEP_EVENTS, marks: Sequence[Event] = MARKS
    ) -> None:
        self.events, self.marks = list(events), list(marks)
        self.host: list[bool] = []

    def __call__(
        self, step: Callable[[], object], synchronize: Callable[[], None], *, host: bool = False
    ) -> list[Event]:
        self.host.append(host)
        step()
        synchronize()
        return [*self.events, *self.marks] if host else self.events


def collected(
    fake: Fake,
    timer: FakeTimer,
    script: Script,
    step: Step,
    *,
    asked: tuple[Metric, ...] = ACTIVITY,
    heard: Heard | None = None,
) -> Collected:
    collector = CuptiCollector(
        HOPPER,
        timer=timer,
        load_cupti=lambda: fake.cupti,
        load_driver=lambda: fake.cuda,
        traced=script,
    )
    plan = Plan((METRICS["cycles"],), rounds=1, repetitions=1, warmup=1, activity=asked)
    return collector.collect(step.work(heard), plan)


def values(found: Collected) -> dict[tuple[str, str], tuple[float, ...]]:
    return {(s.phase, s.metric): s.values for s in found.samples}


def test_the_metrics_of_the_step_one_value_per_trace(fake: Fake, timer: FakeTimer) -> None:
    found = values(collected(fake, timer, Script(), Step("conv2d", "gelu")))
    assert found[STEP, "kernel_time"] == (10_000.0,) * 3
    assert found[STEP, "launches"] == (2.0,) * 3
    assert found[STEP, "copy_bytes_h2d_pinned"] == (4096.0,) * 3
    assert found[STEP, "copy_time_h2d"] == (5000.0,) * 3
    assert found[STEP, "gpu_span"] == (35_000.0,) * 3
    assert found[STEP, "copy_overlap"] == (0.0,) * 3


def test_the_metrics_of_each_component_by_where_the_launch_was(
    fake: Fake, timer: FakeTimer
) -> None:
    collect = collected(fake, timer, Script(), Step("conv2d", "gelu"))
    assert collect.components == ("conv2d", "gelu")
    found = values(collect)
    assert found["conv2d", "kernel_time"] == (4000.0,) * 3
    assert found["gelu", "kernel_time"] == (6000.0,) * 3
    assert (found["conv2d", "launches"], found["gelu", "copies"]) == ((1.0,) * 3, (1.0,) * 3)
    assert ("conv2d", "gpu_idle") not in found
    assert ("conv2d", "launch_gaps") not in found


@pytest.mark.parametrize(
    ("names", "traces"),
    [((), [True, False, False, False]), (("conv2d", "gelu"), [True] * 3 + [False] * 3)],
)
def test_components_are_traced_apart_since_a_trace_of_the_host_slows_it(
    fake: Fake, timer: FakeTimer, names: tuple[str, ...], traces: list[bool]
) -> None:
    script, plain, step, heard = Script(), Step(), Step(*names), Heard()
    collected(fake, timer, Script(), plain, asked=())
    found = collected(fake, timer, script, step, heard=heard)
    assert script.host == traces
    assert step.executions == plain.executions + len(traces)
    assert heard.said[-3:] == ["tracing 1 of 3", "tracing 2 of 3", "tracing 3 of 3"]
    settings = found.settings or {}
    assert settings["traces"] == 3
    assert "activity_s" in settings


def test_nothing_is_traced_that_nobody_asked_for(fake: Fake, timer: FakeTimer) -> None:
    script = Script()
    found = collected(fake, timer, script, Step("conv2d"), asked=())
    assert script.host == []
    assert "activity_s" not in (found.settings or {})
    assert found.components == ()


def test_only_what_was_asked_for_comes_back(fake: Fake, timer: FakeTimer) -> None:
    asked = (METRICS["launches"], METRICS["gpu_idle"])
    found = values(collected(fake, timer, Script(), Step("conv2d", "gelu"), asked=asked))
    assert {metric for _, metric in found} & set(catalogue().sets["activity"]) == {
        "launches",
        "gpu_idle",
    }


def test_a_share_that_a_trace_lacks_is_left_out(fake: Fake, timer: FakeTimer) -> None:
    found = values(collected(fake, timer, Script([kernel(0, 5)]), Step()))
    assert (STEP, "kernel_time") in found
    assert (STEP, "copy_overlap") not in found


def test_an_empty_trace_is_no_zero(fake: Fake, timer: FakeTimer) -> None:
    found = collected(fake, timer, Script([call(1, 1)]), Step())
    assert {s.metric for s in found.samples} == {"step_time", "wall_time", "cycles"}
    assert {(u.metric, u.reason) for u in found.unsupported} == {
        (metric.name, NOTHING) for metric in ACTIVITY
    }


def test_a_component_in_which_nothing_is_launched_has_no_launches(
    fake: Fake, timer: FakeTimer
) -> None:
    graph = [call(50, 1, "cudaGraphLaunch"), kernel(60, 5, 1)]
    found = values(collected(fake, timer, Script(graph, MARKS), Step("conv2d", "gelu")))
    assert found["conv2d", "launches"] == (0.0,) * 3
    assert found[STEP, "graph_launches"] == (1.0,) * 3


def test_a_component_with_a_phase_s_name_is_refused(fake: Fake, timer: FakeTimer) -> None:
    with pytest.raises(MeasurementError, match='"forward" is both a phase and a component'):
        collected(fake, timer, Script(), Step("forward"))


def test_components_that_change_are_refused(fake: Fake, timer: FakeTimer) -> None:
    step = Step("conv2d")
    step.names = []

    def growing() -> None:
        step.names.append(f"part{step.executions}")
        Step.__call__(step)

    work = Work(growing, step.phases, components=step.components)
    collector = CuptiCollector(
        HOPPER,
        timer=timer,
        load_cupti=lambda: fake.cupti,
        load_driver=lambda: fake.cuda,
        traced=Script(),
    )
    with pytest.raises(MeasurementError, match="the components of the step change"):
        collector.collect(work, Plan((), repetitions=1, warmup=1, activity=ACTIVITY))
