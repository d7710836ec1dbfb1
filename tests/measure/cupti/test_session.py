"""A range session's calls, values and errors, through real ctypes calls into a scripted CUPTI."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.measure.cupti.codes import ResultCode
from pytest_gpuperf.measure.cupti.library import CuptiError
from pytest_gpuperf.measure.cupti.range_session import RangeSession
from tests.measure.cupti.fake import Fake

CYCLES, INSTRUCTIONS = "sm__cycles_elapsed.max", "smsp__inst_executed.sum"


def opened(fake: Fake, *metrics: str, max_ranges: int = 1) -> RangeSession:
    return RangeSession(metrics or (CYCLES,), max_ranges, cupti=fake.cupti, cuda=fake.cuda)


def marked(session: RangeSession, fake: Fake, **work: float) -> Callable[[], None]:
    """A step that does `work` in ranges of these names, and some outside of them."""

    def run() -> None:
        fake.work(1e6)
        for name, amount in work.items():
            session.push(name)
            fake.work(amount)
            session.pop()

    return run


def test_a_round_returns_each_metric_of_each_range(fake: Fake) -> None:
    with opened(fake, CYCLES, INSTRUCTIONS, max_ranges=2) as session:
        values = session.round(["a", "b"], marked(session, fake, a=3, b=5))
    assert values == {
        "a": {CYCLES: 3, INSTRUCTIONS: 6},
        "b": {CYCLES: 5, INSTRUCTIONS: 10},
    }
    assert session.chip == "GH100"
    assert session.unsupported == ()
    assert fake.alive == 0


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


def test_every_pass_is_prepared_and_run(fake: Fake) -> None:
    fake.set("passes", 3)
    with opened(fake) as session:
        assert session.passes == 3
        session.round(["step"], marked(session, fake, step=1), prepare=lambda: fake.note("prepare"))
    assert fake.log.count("prepare") == 3
    assert fake.log.count("push step") == 3
    assert fake.log.count("RangeProfilerDecodeData") == 1


def test_rounds_share_a_session_and_not_their_values(fake: Fake) -> None:
    with opened(fake, max_ranges=2) as session:
        first = session.round(["step"], marked(session, fake, step=1))
        second = session.round(["a", "b"], marked(session, fake, a=2, b=3))
    assert (first, second) == ({"step": {CYCLES: 1}}, {"a": {CYCLES: 2}, "b": {CYCLES: 3}})
    assert fake.log.count("RangeProfilerEnable") == 1
    assert session.reopened == 0


def test_a_profiler_that_cannot_be_configured_twice_is_opened_anew(fake: Fake) -> None:
    fake.set("renew", 1)
    with opened(fake) as session:
        values = [session.round(["step"], marked(session, fake, step=n)) for n in (1, 2, 3)]
    assert [value["step"][CYCLES] for value in values] == [1, 2, 3]
    assert session.reopened == 2
    assert fake.alive == 0


def test_a_metric_that_the_chip_lacks_costs_only_itself(fake: Fake) -> None:
    fake.set("unknown", "sm__no_such.sum")
    with opened(fake, CYCLES, "sm__no_such.sum", INSTRUCTIONS) as session:
        values = session.round(["step"], marked(session, fake, step=1))
    assert values == {"step": {CYCLES: 1, INSTRUCTIONS: 2}}
    assert [entry.metric for entry in session.unsupported] == ["sm__no_such.sum"]
    assert session.unsupported[0].reason == "sm__no_such.sum does not exist on GH100"
    assert fake.alive == 0


def test_with_no_metric_left_nothing_is_enabled(fake: Fake) -> None:
    fake.set("unknown", CYCLES)
    with opened(fake) as session:
        assert (session.metrics, session.passes) == ((), 0)
        with pytest.raises(MeasurementError, match="no metric"):
            session.round(["step"], lambda: None)
    assert "RangeProfilerEnable" not in fake.log
    assert fake.alive == 0


def test_an_exception_in_mid_pass_comes_out_after_everything_is_closed(fake: Fake) -> None:
    fake.set("passes", 3)
    error = ZeroDivisionError("the step's own")

    def run() -> None:
        session.push("step")
        raise error

    with pytest.raises(ZeroDivisionError) as caught:
        with opened(fake) as session:
            session.round(["step"], run)
    assert caught.value is error
    assert fake.log[-5:] == [
        "RangeProfilerPopRange",
        "RangeProfilerStop",
        "RangeProfilerDisable",
        "ProfilerHostDeinitialize",
        "ProfilerDeInitialize",
    ]
    assert fake.alive == 0


def test_a_session_is_usable_after_a_step_that_raised(fake: Fake) -> None:
    def run() -> None:
        session.push("step")
        raise KeyboardInterrupt

    with opened(fake) as session:
        with pytest.raises(KeyboardInterrupt):
            session.round(["step"], run)
        assert session.round(["step"], marked(session, fake, step=4)) == {"step": {CYCLES: 4}}


def test_a_session_that_cannot_open_says_so_and_leaves_nothing(fake: Fake) -> None:
    for call, result in (
        ("cuptiProfilerInitialize", ResultCode.ERROR_INSUFFICIENT_PRIVILEGES),
        ("cuptiProfilerGetCounterAvailability", ResultCode.ERROR_HARDWARE_BUSY),
        ("cuptiRangeProfilerEnable", ResultCode.ERROR_INSUFFICIENT_PRIVILEGES),
        ("cuptiRangeProfilerEnable", ResultCode.ERROR_UNKNOWN),
        ("cuptiRangeProfilerGetCounterDataSize", ResultCode.ERROR_INVALID_PARAMETER),
    ):
        fake.reset()
        fake.fail(call, result)
        with pytest.raises(CountersUnavailable, match=rf"{call}.*CUPTI_{result.name}") as caught:
            with opened(fake):
                pytest.fail("opened")
        assert caught.value.remedy
        assert fake.alive == 0


def test_a_refusal_without_a_name_is_explained_as_far_as_cupti_can(fake: Fake) -> None:
    fake.fail("cuptiRangeProfilerEnable", ResultCode.ERROR_UNKNOWN)
    with pytest.raises(CountersUnavailable, match="; Windows Subsystem for Linux is unsupported"):
        with opened(fake):
            pytest.fail("opened")


def test_a_failing_start_names_the_call_and_closes(fake: Fake) -> None:
    fake.fail("cuptiRangeProfilerStart", ResultCode.ERROR_UNKNOWN)
    with pytest.raises(CuptiError, match=r"cuptiRangeProfilerStart .*CUPTI_ERROR_UNKNOWN \(999\)"):
        with opened(fake) as session:
            session.round(["step"], marked(session, fake, step=1))
    assert fake.alive == 0


def test_dropped_ranges_are_an_error(fake: Fake) -> None:
    with opened(fake, max_ranges=1) as session:
        with pytest.raises(MeasurementError, match='dropped 1 of the ranges "a", "b"'):
            session.round(["a", "b"], marked(session, fake, a=1, b=1))


def test_missing_ranges_are_named(fake: Fake) -> None:
    fake.set("lose", "b")
    with opened(fake, max_ranges=2) as session:
        with pytest.raises(MeasurementError, match='no values for the ranges "b"'):
            session.round(["a", "b"], marked(session, fake, a=1, b=1))


def test_unexpected_ranges_are_named(fake: Fake) -> None:
    with opened(fake, max_ranges=2) as session:
        with pytest.raises(MeasurementError, match='not expected: "b"'):
            session.round(["a"], marked(session, fake, a=1, b=1))


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
    assert fake.alive == 0
