"""The paper's window, counted by the process that it is about."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import CountersUnavailable, GpuperfError, MeasurementError
from pytest_gpuperf.measure.collector import Phases, Plan, Work
from pytest_gpuperf.measure.cupti.paper_window import WindowCounter
from pytest_gpuperf.measure.replica import WINDOW, Task
from pytest_gpuperf.model.measurement import PAPER_WINDOW, Window
from tests.examples import H200
from tests.measure.cupti.fake import Fake

PLAN = Plan(catalogue().hardware_set("core"))
TEST = "tests/test_a.py::test_step"


def counter(fake: Fake) -> WindowCounter:
    """What stands in the collector's place, over the scripted CUPTI, once the test has begun."""
    window = WindowCounter(Task(TEST, WINDOW, "step"), fake.collector())
    assert (window.device(), window.software()) == (H200, {})
    window.begin()
    return window


def work(step: Callable[[], object], name: str = "step") -> Work:
    """A step of a test."""
    return Work(step, Phases(), test=TEST, name=name)


def counted(fake: Fake, step: Callable[[], object]) -> Window:
    """The window of a test that launches eight kernels in its fixtures, and others in its step."""
    window = counter(fake)
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


def test_another_measurement_of_the_test_is_passed_over(fake: Fake) -> None:
    executed: list[str] = []
    window = counter(fake)
    collected = window.collect(work(lambda: executed.append("."), "sampling"), PLAN)
    assert (collected.window, executed) == (None, [])
    assert window.collect(work(fake.launching(*range(11))), PLAN).window is not None


def test_a_process_that_launches_too_little_or_raises_has_no_window(fake: Fake) -> None:
    def broken() -> None:
        raise MeasurementError("out of memory")

    for step, says in ((fake.launching(9, 10), "at most 10 kernels"), (broken, "out of memory")):
        with pytest.raises(MeasurementError, match=says):
            counted(fake, step)
        fake.reset()  # nothing is left open


def test_what_cannot_be_counted_so_is_said_at_the_beginning(fake: Fake) -> None:
    def begins(kind: type[GpuperfError], says: str) -> None:
        with pytest.raises(kind, match=says):
            counter(fake)
        fake.reset()

    fake.set("passes", 2)
    begins(MeasurementError, "CUPTI needs 2 passes")
    fake.fail("cuptiRangeProfilerEnable", 35)
    begins(CountersUnavailable, "cuptiRangeProfilerEnable")
