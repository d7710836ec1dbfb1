"""The paper's window, counted by the process that it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import CountersUnavailable, GpuperfError, MeasurementError
from pytest_gpuperf.measure.collector import Phases, Plan, Work
from pytest_gpuperf.measure.cupti.paper_window import WindowCounter
from pytest_gpuperf.measure.trace.profile import Trace, Traced, Tracer
from pytest_gpuperf.model.measurement import PAPER_WINDOW, Window
from tests.examples import H200
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


@contextmanager
def counter(fake: Fake, kernels: int = 13) -> Iterator[WindowCounter]:
    """What stands in the collector's place, over the scripted CUPTI; afterwards nothing traces."""
    tracer = ScriptedTracer(kernels)
    try:
        yield WindowCounter(
            H200,
            "step",
            timer=FakeTimer(fake),
            tracer=tracer,
            cupti=fake.cupti,
            cuda=fake.cuda,
        )
    finally:
        assert not tracer.on


def work(step: Callable[[], object], name: str = "step") -> Work:
    """A step of a test."""
    return Work(step, Phases(), test=TEST, name=name)


def counted(fake: Fake, step: Callable[[], object], kernels: int = 13) -> Window:
    """The window of a test that launches eight kernels in its fixtures, and others in its step."""
    with counter(fake, kernels) as window:
        fake.launching(*range(1, 9))()
        counted = window.collect(work(step), PLAN).window
    assert counted is not None
    return counted


def test_it_counts_from_the_beginning_of_the_test(fake: Fake) -> None:
    executed: list[str] = []

    def step() -> None:
        executed.append(".")
        fake.launching(9, 10, 11, 12, 13)()

    window = counted(fake, step)
    assert (window.skipped, window.counted, window.collector) == (10, 3, "cupti")
    values = {sample.metric: sample.values for sample in window.samples}
    assert values["cycles"] == (11 + 12 + 13,)  # the first metric counts the work
    assert values["instructions"] == (3 * (11 + 12 + 13),)
    assert {sample.phase for sample in window.samples} == {PAPER_WINDOW}
    assert len(executed) == 1


def test_the_trace_of_the_same_execution_names_its_launches_if_it_fits(fake: Fake) -> None:
    step = fake.launching(9, 10, 11, 12, 13)
    table = counted(fake, step).kernels
    assert table is not None
    assert table.mismatch == ""
    names = [table.names[launch.name] for launch in table.launches]
    assert names == ["kernel_0", "kernel_1", "kernel_0"]
    at = table.metrics.index("cycles")
    assert [launch.values[at] for launch in table.launches] == [11, 12, 13]
    fake.reset()
    window = counted(fake, step, kernels=14)
    assert window.kernels is not None
    assert "the trace has 14 kernels and the counters 13" in window.kernels.mismatch
    assert {sample.metric for sample in window.samples} >= {"cycles", "instructions"}


def test_another_measurement_of_the_test_is_passed_over(fake: Fake) -> None:
    executed: list[str] = []
    with counter(fake) as window:
        collected = window.collect(work(lambda: executed.append("."), "sampling"), PLAN)
        assert (collected.window, executed) == (None, [])
        assert window.collect(work(fake.launching(*range(11))), PLAN).window is not None


def test_a_process_that_launches_too_little_has_no_window(fake: Fake) -> None:
    with pytest.raises(MeasurementError, match="no more than the 10 kernels before"):
        counted(fake, fake.launching(9, 10))


def test_a_step_that_raises_leaves_nothing_open(fake: Fake) -> None:
    def broken() -> None:
        raise RuntimeError("out of memory")

    with counter(fake) as window:
        with pytest.raises(RuntimeError, match="out of memory"):
            window.collect(work(broken), PLAN)


def test_what_cannot_be_counted_so_is_said_at_the_beginning(fake: Fake) -> None:
    def begins(kind: type[GpuperfError], says: str) -> None:
        with pytest.raises(kind, match=says), counter(fake):
            pytest.fail("begun")
        fake.reset()

    fake.set("passes", 2)
    begins(MeasurementError, "2 passes are needed")
    fake.fail("cuptiRangeProfilerEnable", 35)
    begins(CountersUnavailable, "cuptiRangeProfilerEnable")
