"""A range session's calls, values and errors, through real ctypes calls into a scripted CUPTI."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.measure.cupti.range_session import RangeSession
from tests.measure.cupti.fake import Fake

CYCLES, INSTRUCTIONS = "sm__cycles_elapsed.max", "smsp__inst_executed.sum"
IPC = "sm__inst_executed.avg.per_cycle_active"


def opened(fake: Fake, *metrics: str, max_ranges: int = 2, automatic: bool = False) -> RangeSession:
    return RangeSession(
        metrics or (CYCLES,), max_ranges, automatic=automatic, cupti=fake.cupti, cuda=fake.cuda
    )


def marked(session: RangeSession, fake: Fake, **work: float) -> Callable[[], None]:
    """A step that does `work` in ranges of these names, and some outside of them."""

    def run() -> None:
        fake.work(1e6)
        for name, amount in work.items():
            session.push(name)
            fake.work(amount)
            session.pop()

    return run


def test_the_order_of_calls(fake: Fake) -> None:
    with opened(fake) as session:
        session.round(["step"], marked(session, fake, step=1), prepare=lambda: fake.note("prepare"))
    assert fake.log == [
        "ProfilerInitialize",
        "DeviceGetChipName",
        "ProfilerGetCounterAvailability",
        "ProfilerGetCounterAvailability",
        "ProfilerHostInitialize",
        "ProfilerHostConfigAddMetrics",
        "ProfilerHostGetConfigImageSize",
        "ProfilerHostGetConfigImage",
        "ProfilerHostGetNumOfPasses",
        "RangeProfilerEnable",
        "RangeProfilerGetCounterDataSize",
        "RangeProfilerCounterDataImageInitialize",
        "RangeProfilerSetConfig",
        "prepare",
        "RangeProfilerStart",
        "RangeProfilerPushRange",
        "push step",
        "RangeProfilerPopRange",
        "RangeProfilerStop",
        "RangeProfilerDecodeData",
        "RangeProfilerGetCounterDataInfo",
        "RangeProfilerCounterDataGetRangeInfo",
        "ProfilerHostEvaluateToGpuValues",
        "RangeProfilerDisable",
        "ProfilerHostDeinitialize",
        "ProfilerDeInitialize",
    ]


def test_which_counters_there_are_is_asked_once_of_each_context(fake: Fake) -> None:
    for _ in range(2):
        with opened(fake) as session:
            assert session.metrics
    assert fake.log.count("ProfilerGetCounterAvailability") == 2  # its size, and then it
    assert fake.log.count("RangeProfilerEnable") == 2


def test_rounds_share_a_session_and_not_their_values(fake: Fake) -> None:
    with opened(fake, CYCLES, INSTRUCTIONS) as session:
        assert session.round(["step"], marked(session, fake, step=1)) == {
            "step": {CYCLES: 1, INSTRUCTIONS: 2}
        }
        assert session.round(["a", "b"], marked(session, fake, a=2, b=3)) == {
            "a": {CYCLES: 2, INSTRUCTIONS: 4},
            "b": {CYCLES: 3, INSTRUCTIONS: 6},
        }
    assert fake.log.count("RangeProfilerEnable") == 1


def test_a_session_is_usable_after_a_step_that_raised(fake: Fake) -> None:
    def run() -> None:
        session.push("step")
        raise KeyboardInterrupt

    with opened(fake) as session:
        with pytest.raises(KeyboardInterrupt):
            session.round(["step"], run)
        assert session.round(["step"], marked(session, fake, step=4)) == {"step": {CYCLES: 4}}


def test_ranges_that_are_dropped_or_missing_are_named(fake: Fake) -> None:
    for room, lost, expected, says in (
        (1, "", "ab", 'dropped 1 of the ranges "a", "b"'),
        (2, "b", "ab", 'no values for the ranges "b"'),
    ):
        fake.reset()
        fake.set("lose", lost)
        with opened(fake, max_ranges=room) as session:
            with pytest.raises(MeasurementError, match=says):
                session.round([*expected], marked(session, fake, a=1, b=1))


def test_values_that_are_no_numbers_are_named(fake: Fake) -> None:
    fake.set("undefined", INSTRUCTIONS)
    with opened(fake, CYCLES, INSTRUCTIONS) as session:
        run = marked(session, fake, step=1)
        with pytest.raises(MeasurementError, match=f"no number for {INSTRUCTIONS} of step"):
            session.round(["step"], run)
        assert session.round(["step"], run, undefined=True)["step"][CYCLES] == 1


def test_passes_have_an_end(fake: Fake) -> None:
    fake.set("passes", 2)
    fake.set("never_done", 1)
    with opened(fake) as session:
        with pytest.raises(MeasurementError, match="announced 2 passes"):
            session.round(["step"], marked(session, fake, step=1))


# Automatic ranges


def test_every_launch_has_its_values_in_the_order_of_launching(fake: Fake) -> None:
    fake.set("passes", 3)
    prepared: list[str] = []
    with opened(fake, CYCLES, INSTRUCTIONS, max_ranges=8, automatic=True) as session:
        assert session.passes == 3
        launches = session.launches(fake.launching(3, 5, 4), prepare=lambda: prepared.append("."))
    assert [values[CYCLES] for values in launches] == [3, 5, 4]
    assert [values[INSTRUCTIONS] for values in launches] == [6, 10, 8]
    assert len(prepared) == 3


def test_more_launches_than_there_is_room_for_are_an_error(fake: Fake) -> None:
    with opened(fake, automatic=True) as session:
        with pytest.raises(MeasurementError, match=r"dropped 1 of the launches: .* opened for 2"):
            session.launches(fake.launching(1, 2, 3))


def test_a_ratio_without_a_value_is_no_number(fake: Fake) -> None:
    with opened(fake, IPC, automatic=True) as session:
        (values,) = session.launches(fake.launching(0))
    assert math.isnan(values[IPC])
