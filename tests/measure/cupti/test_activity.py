"""Activity through the collector: what is executed when, and what comes back."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace

import pytest

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import CountersUnavailable, UnsoundStep
from pytest_gpuperf.measure.collector import Collected, Components, Phases, Plan, Work
from pytest_gpuperf.measure.trace import activity
from pytest_gpuperf.measure.trace.activity import ENOUGH_NS, ENOUGH_WALL_MS, MOST, NOTHING, PHASE
from pytest_gpuperf.measure.trace.profile import STEP_RANGE, Event, Spans, Trace
from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.model.metric import Metric
from tests.heard_progress import Heard
from tests.measure.cupti.fake import Fake, FakeTimer
from tests.measure.stand_ins import values
from tests.measure.traces import annotated, call, component, copy, kernel, launched, on_gpu

METRICS = catalogue().metrics
HOST = catalogue().sets["core"]
ACTIVITY = tuple(METRICS[name] for name in catalogue().sets["activity"])
HOST_ONLY = tuple(METRICS[name] for name in HOST if METRICS[name].traced)
ENOUGH_US = ENOUGH_NS / 1e3
STEP_EVENTS = (
    *launched(10, 4, 1),
    *launched(20, 6, 2),
    call(30, 3, "cudaMemcpyAsync"),
    copy(40, 5, "HtoD (Pinned -> Device)", 4096, 3),
)
"""Kernels in [10, 14) and [20, 26), a copy in [40, 45)."""
MARKS = [component(0, 8, "conv2d"), component(12, 40, "gelu")]
"""Those of two components.

The first kernel was launched at 5, the second at 15, the copy at 30.
"""


class Step:
    """A step of components whose traces are these events; notes what is executed and traced."""

    def __init__(self, *names: str, events: tuple[Event, ...] = STEP_EVENTS) -> None:
        self.phases, self.components = Phases(), Components()
        self.names = list(names)
        self.events = events
        self.executions = 0
        self.of_parts: list[bool] = []
        """Per trace, whether components were noted in it."""
        self.heard = Heard()

    def __call__(self) -> None:
        self.executions += 1
        with self.phases.mark("forward"):
            for name in self.names:
                with self.components.mark(name):
                    pass

    def traced(
        self,
        step: Callable[[], object],
        synchronize: Callable[[], None],
        *,
        host: bool = False,
        spans: Spans | None = None,
    ) -> Trace:
        """In place of torch.profiler."""
        assert not host
        step()
        synchronize()
        self.of_parts.append(bool(spans and self.names and {*self.names} == {*spans.names}))
        return Trace([*self.events, *(MARKS if self.of_parts[-1] else ())])

    def collected(
        self,
        fake: Fake,
        asked: tuple[Metric, ...] = ACTIVITY,
        rounds: int = 5,
        wall_ms: float = FakeTimer.wall_ms,
    ) -> Collected:
        work = Work(self, self.phases, progress=self.heard, components=self.components)
        plan = Plan(
            (METRICS["cycles"],),
            rounds=rounds,
            repetitions=1,
            warmup=1,
            activity=asked,
            components=any(metric.name not in HOST for metric in asked),
        )
        timer = FakeTimer(fake, wall_ms)
        return fake.collector(timer=timer, traced=self.traced).collect(work, plan)


def test_the_step_and_each_component_have_a_value_per_trace(fake: Fake) -> None:
    collected = Step("conv2d", "gelu").collected(fake)
    assert collected.components == ("conv2d", "gelu")
    expected = {
        (STEP, "kernel_time"): 10_000.0,
        (STEP, "launches"): 2.0,
        (STEP, "copy_bytes_h2d_pinned"): 4096.0,
        (STEP, "copy_time_h2d"): 5000.0,
        (STEP, "gpu_span"): 35_000.0,
        (STEP, "copy_overlap"): 0.0,
        ("conv2d", "kernel_time"): 4000.0,
        ("conv2d", "launches"): 1.0,
        ("gelu", "kernel_time"): 6000.0,
        ("gelu", "copies"): 1.0,
    }
    of = values(collected)
    assert {key: of[key] for key in expected} == {key: (v,) * 3 for key, v in expected.items()}
    assert ("conv2d", "gpu_idle") not in of


def test_components_are_traced_apart_since_their_borders_take_time(fake: Fake) -> None:
    """And not more often than the step is counted."""
    plain = Step("conv2d")
    assert plain.collected(fake, asked=()).components == ()
    assert plain.of_parts == []
    for names, rounds, traces in (((), 5, 3), (("conv2d",), 5, 3), (("conv2d",), 2, 2)):
        step = Step(*names)
        plain.executions = 0
        plain.collected(fake, asked=(), rounds=rounds)
        collected = step.collected(fake, rounds=rounds)
        assert step.of_parts == [bool(names), *[True] * traces * len(names), *[False] * traces]
        assert step.executions == plain.executions + len(step.of_parts)
        assert step.heard.said[-1] == f"tracing {traces} of {traces}"
        assert (collected.settings or {})["traces"] == traces
        assert values(collected)[STEP, "launches"] == (2.0,) * traces


def test_a_step_that_works_on_another_gpu_is_refused_with_what_ran_there(fake: Fake) -> None:
    """Whatever counters and times say of it: they are of one GPU and of all."""
    here, there = kernel(0, 4, 1), on_gpu(1, kernel(10, 4, 2))
    elsewhere = on_gpu(3, copy(5, 1, "HtoD", 8))
    for events, said in (
        ((here, there), "1 ran on cuda:1, of 2 kernels, copies and fills of the step, but "),
        ((here, elsewhere, there), "1 ran on cuda:1 and 1 ran on cuda:3, of 3 "),
        ((on_gpu(0, here), on_gpu(0, there, context=2)), "1 of 2 kernels .* in a second CUDA"),
    ):
        with pytest.raises(UnsoundStep, match=said):
            Step(events=events).collected(fake)
        assert fake.alive == 0
    assert values(Step(events=(on_gpu(0, here),)).collected(fake))[STEP, "launches"] == (1.0,) * 3


def test_a_trace_that_saw_nothing_is_no_zero_and_one_without_a_launch_is(fake: Fake) -> None:
    collected = Step(events=()).collected(fake)
    assert {metric for _, metric in values(collected)} == {"step_time", "wall_time", "cycles"}
    reasons = {entry.metric: entry.reason for entry in collected.unsupported}
    assert reasons == {metric.name: NOTHING for metric in ACTIVITY}
    of = values(Step(events=(call(1, 1, "cudaDeviceSynchronize"),)).collected(fake))
    assert of[STEP, "launches"] == (0.0,) * 3


@pytest.mark.parametrize(
    ("kernel_us", "wall_ms", "traces"),
    [
        (ENOUGH_US, 50.0, 1),
        # An odd number of times.
        (ENOUGH_US / 2, 30.0, 1),
        (ENOUGH_US / 2 - 1, 30.0, 3),
        (1.0, 1.0, MOST),
        (1.0, 0.0, MOST),
        # A short step on the GPU that takes the host long.
        (1.0, 0.24 * ENOUGH_WALL_MS, 3),
        (0.0, 1.0, 1),
    ],
)
def test_what_is_always_measured_takes_one_execution_more_and_of_a_short_step_several(
    fake: Fake, kernel_us: float, wall_ms: float, traces: int
) -> None:
    events = tuple(launched(10, kernel_us, 1)) if kernel_us else (call(1, 1, "cudaMalloc"),)
    plain, step = Step("conv2d", events=events), Step("conv2d", events=events)
    plain.collected(fake, asked=(), wall_ms=wall_ms)
    collected = step.collected(fake, asked=HOST_ONLY, wall_ms=wall_ms)
    assert step.executions == plain.executions + traces
    assert (step.of_parts, collected.components) == ([False] * traces, ())
    assert values(collected)[STEP, "launches"] == (float(bool(kernel_us)),) * traces
    assert (collected.settings or {})["traces"] == traces


def test_a_step_that_takes_long_to_reset_is_traced_less_often(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = count(0, 0.06)  # seconds from one look at the clock to the next
    monkeypatch.setattr(activity, "time", SimpleNamespace(perf_counter=lambda: next(now)))
    step = Step(events=tuple(launched(10, 1.0, 1)))
    step.collected(fake, asked=HOST_ONLY, wall_ms=1.0)
    assert len(step.of_parts) == 3


def test_where_counters_cannot_be_read_three_traces_are_left_with_the_verdict(fake: Fake) -> None:
    fake.fail("cuptiProfilerInitialize", 35)
    step = Step(events=tuple(launched(10, ENOUGH_US, 1)))
    of = values(step.collected(fake, asked=HOST_ONLY))
    assert step.heard.said[-4:] == [f"tracing {number} of 4" for number in (1, 2, 3, 4)]
    assert of[STEP, "kernel_time"] == (ENOUGH_NS,) * 3


def test_what_the_host_does_is_counted_by_call_and_by_phase(fake: Fake) -> None:
    """As `Spans` leaves them: the step from 0 to 100, its only phase from 10 to 60."""
    calls = (
        *((5, "StreamSynchronize"), (15, "StreamSynchronize"), (16, "EventSynchronize")),
        *((59, "DeviceSynchronize"), (61, "Malloc"), (99, "HostAlloc"), (99, "StreamIsCapturing")),
        (101, "DeviceSynchronize"),  # after the step: ours
    )
    waits = [call(at, 20 + at, f"cuda{name}") for at, name in calls]
    ranges = [annotated(0, 100, STEP_RANGE), annotated(10, 60, f"{PHASE}forward")]
    nccl = [call(20, 9), kernel(70, 5, 9, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL")]
    events = (*waits, *ranges, *nccl, *launched(80, 2, 10, at=70))
    of = values(Step(events=events).collected(fake, asked=HOST_ONLY))
    counts = {
        "stream_synchronizations": (2.0, 1.0),
        "event_synchronizations": (1.0, 1.0),
        "device_synchronizations": (1.0, 1.0),
        "driver_allocations": (2.0, 0.0),
        "launches": (2.0, 1.0),
        "collectives": (1.0, 1.0),
    }
    assert {n: (of[STEP, n][0], of["forward", n][0]) for n in counts} == counts
    assert {*of[STEP, "recompilations"], *of[STEP, "compiled_graphs"]} == {0.0}


def test_where_torch_cannot_trace_the_rest_is_measured(fake: Fake) -> None:
    class Refused(Step):
        def traced(self, *_: object, **__: object) -> Trace:
            raise CountersUnavailable("torch.profiler cannot record: busy", "End it")

    collected = Refused().collected(fake, asked=HOST_ONLY)
    assert {metric for _, metric in values(collected)} == {"step_time", "wall_time", "cycles"}
    (reason,) = {entry.reason for entry in collected.unsupported}
    assert reason == "torch.profiler cannot record: busy. End it"


def test_what_was_launched_comes_back_where_all_executions_launch_it(fake: Fake) -> None:
    step = Step(events=(kernel(0, 4, 1), kernel(10, 4, 2), copy(20, 1, "HtoD", 8)))
    (name,), once = step.collected(fake).launched, Step(events=(kernel(0, 4, 1),)).collected(fake)
    assert (name, name in once.launched) == ("k", True)
    assert once.launched != step.collected(fake).launched
    own = kernel(0, 4, 1, name="void at::native::vectorized_elementwise_kernel<4>()")
    assert Step(events=(own,)).collected(fake).launched == {}
    names = count()
    with_other_names = Step()
    with_other_names.traced = lambda *_, **__: Trace([kernel(0, 4, 1, name=f"k{next(names)}")])  # type: ignore[method-assign]
    assert with_other_names.collected(fake).launched == {}
