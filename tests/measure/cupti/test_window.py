"""The paper's window, counted by the process that it is about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.measure.collector import Beginning, Phases, Plan, Work
from pytest_gpuperf.measure.cupti.cupti_collector import CuptiCollector, WindowCounter
from pytest_gpuperf.measure.fresh_process import Finished
from pytest_gpuperf.measure.replica import WINDOW, Replicas, Task
from pytest_gpuperf.measure.trace.profile import Trace, Traced, Tracer
from pytest_gpuperf.model.measurement import PAPER_WINDOW, Measurement, Sample, Window
from tests.examples import H200, measurement, run
from tests.measure.cupti.fake import Fake, FakeTimer

PLAN = Plan(catalogue().hardware_set("core"))
TEST = "tests/test_a.py::test_step"


class ScriptedTracer(Tracer):
    """A trace of so many kernels of alternating names, and a copy between the first two.

    CUPTI's own kernels come with them, one before each.
    """

    def __init__(self, kernels: int = 13) -> None:
        self.on = False
        self._kernels = kernels

    def start(self) -> None:
        assert not self.on
        self.on = True

    def stop(self) -> Callable[[], Trace]:
        assert self.on
        self.on = False
        names = [f"kernel_{place % 2}" for place in range(self._kernels)]
        entries = [
            Traced(name, "kernel", (1, 1, 1), (32, 1, 1), 0.0, 2000.0)
            for kernel in names
            for name in ("WaitNs", kernel)
        ]
        entries.insert(2, Traced("Memcpy HtoD", "copy", None, None, 0.0, 900.0))
        return lambda: Trace(tuple(entries))


def counter(fake: Fake, timer: FakeTimer, tracer: ScriptedTracer | None = None) -> WindowCounter:
    """What stands in the collector's place, over the scripted CUPTI."""
    return WindowCounter(
        H200,
        "step",
        timer=timer,
        tracer=tracer or ScriptedTracer(),
        load_cupti=lambda: fake.cupti,
        load_driver=lambda: fake.cuda,
    )


def work(step: Callable[[], object], name: str = "step") -> Work:
    """A step of a test."""
    return Work(step, Phases(), test=TEST, name=name)


def launching(fake: Fake, *amounts: float) -> Callable[[], None]:
    """Launches kernels of these amounts of work."""

    def run() -> None:
        for amount in amounts:
            fake.work(amount)

    return run


def test_it_counts_from_the_beginning_of_the_test(fake: Fake, timer: FakeTimer) -> None:
    window = counter(fake, timer)
    assert isinstance(window, Beginning)
    window.begin()
    launching(fake, *range(1, 9))()  # what fixtures launch counts as well
    executed: list[str] = []

    def step() -> None:
        executed.append(".")
        launching(fake, 9, 10, 11, 12, 13)()

    found = window.collect(work(step), PLAN).window
    assert found is not None
    assert (found.skipped, found.counted, found.collector) == (10, 3, "cupti")
    values = {sample.metric: sample.values for sample in found.samples}
    assert values["cycles"] == (11 + 12 + 13,)  # the first metric counts the work
    assert values["instructions"] == (3 * (11 + 12 + 13),)
    assert {sample.phase for sample in found.samples} == {PAPER_WINDOW}
    assert len(executed) == 1
    assert fake.alive == 0


def test_the_trace_of_the_same_execution_names_its_launches(fake: Fake, timer: FakeTimer) -> None:
    tracer = ScriptedTracer()
    window = counter(fake, timer, tracer)
    window.begin()
    found = window.collect(work(launching(fake, *range(1, 14))), PLAN).window
    assert found is not None
    table = found.kernels
    assert table is not None
    assert table.mismatch == ""
    assert [table.names[launch.name] for launch in table.launches] == [
        *("kernel_0", "kernel_1", "kernel_0")
    ]
    at = table.metrics.index("cycles")
    assert [launch.values[at] for launch in table.launches] == [11, 12, 13]
    assert not tracer.on


def test_names_that_do_not_fit_are_not_given(fake: Fake, timer: FakeTimer) -> None:
    window = counter(fake, timer, ScriptedTracer(kernels=14))
    window.begin()
    found = window.collect(work(launching(fake, *range(1, 14))), PLAN).window
    assert found is not None
    assert found.kernels is not None
    assert "the trace has 14 kernels and the counters 13" in found.kernels.mismatch
    assert {sample.metric for sample in found.samples} >= {"cycles", "instructions"}


def test_another_measurement_of_the_test_is_passed_over(fake: Fake, timer: FakeTimer) -> None:
    window = counter(fake, timer)
    window.begin()
    executed: list[str] = []
    found = window.collect(work(lambda: executed.append("."), "sampling"), PLAN)
    assert (found.window, executed) == (None, [])
    window.close()
    assert fake.alive == 0


def test_a_process_that_launches_too_little_has_no_window(fake: Fake, timer: FakeTimer) -> None:
    window = counter(fake, timer)
    window.begin()
    with pytest.raises(MeasurementError, match="no more than the 10 kernels before"):
        window.collect(work(launching(fake, *[1.0] * 10)), PLAN)
    assert fake.alive == 0


def test_a_step_that_raises_leaves_nothing_open(fake: Fake, timer: FakeTimer) -> None:
    def broken() -> None:
        raise RuntimeError("out of memory")

    tracer = ScriptedTracer()
    window = counter(fake, timer, tracer)
    window.begin()
    with pytest.raises(RuntimeError, match="out of memory"):
        window.collect(work(broken), PLAN)
    assert fake.alive == 0
    assert not tracer.on


def test_metrics_that_take_several_passes_cannot_be_counted_so(
    fake: Fake, timer: FakeTimer
) -> None:
    fake.set("passes", 2)
    tracer = ScriptedTracer()
    with pytest.raises(MeasurementError, match="2 passes are needed"):
        counter(fake, timer, tracer).begin()
    assert fake.alive == 0
    assert not tracer.on


def test_a_machine_without_counters_says_so(fake: Fake, timer: FakeTimer) -> None:
    fake.fail("cuptiRangeProfilerEnable", 35)
    tracer = ScriptedTracer()
    with pytest.raises(CountersUnavailable):
        counter(fake, timer, tracer).begin()
    assert fake.alive == 0
    assert not tracer.on


# The process that asks for it


class Failing(Replicas):
    """Fresh processes that make this measurement, and then end with an error."""

    def __init__(self, made: Measurement | None) -> None:
        self._made = made

    def run(self, task: Task, **_: object) -> Finished:
        assert task == Task(TEST, WINDOW, "step")
        return Finished(run([self._made]) if self._made else None, 3, "no GPU today", 1.0)


def asking(fake: Fake, timer: FakeTimer, made: Measurement | None) -> CuptiCollector:
    """A collector whose fresh process makes this measurement."""
    return CuptiCollector(
        H200,
        replicas=Failing(made),
        timer=timer,
        load_cupti=lambda: fake.cupti,
        load_driver=lambda: fake.cuda,
    )


def test_the_window_is_brought_back(fake: Fake, timer: FakeTimer) -> None:
    window = Window(10, 100, "cupti", (Sample(PAPER_WINDOW, "cycles", (5.0,)),))
    made = replace(measurement(test=TEST), window=window)
    assert asking(fake, timer, made).window(work(lambda: None)) == window


@pytest.mark.parametrize("measured", [False, True])
def test_a_process_that_fails_is_quoted(measured: bool, fake: Fake, timer: FakeTimer) -> None:
    made = measurement(test=TEST) if measured else None
    with pytest.raises(MeasurementError, match="exit code 3:\nno GPU today"):
        asking(fake, timer, made).window(work(lambda: None))


def test_outside_of_a_session_no_test_can_be_run_again() -> None:
    with pytest.raises(MeasurementError, match="by a pytest session only"):
        CuptiCollector(H200).window(work(lambda: None))
