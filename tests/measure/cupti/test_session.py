"""A range session's calls, values and errors, through real ctypes calls into a scripted CUPTI."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.measure.cupti.range_session import RangeSession
from tests.measure.cupti.fake import Fake

CYCLES, INSTRUCTIONS = "sm__cycles_elapsed.max", "smsp__inst_executed.sum"
IPC, MISSING = "sm__inst_executed.avg.per_cycle_active", "sm__no_such.sum"


def opened(*metrics: str, max_ranges: int = 2, automatic: bool = False) -> RangeSession:
    return RangeSession(metrics or (CYCLES,), max_ranges, automatic=automatic)


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
    with opened() as session:
        assert (session.chip, session.metrics, session.unsupported) == ("GH100", (CYCLES,), ())
        session.round(["step"], marked(session, fake, step=1), prepare=lambda: fake.note("prepare"))
    session.close()  # which it is
    assert fake.alive == 0
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
    # Which counters there are is asked once of each context.
    with opened():
        assert fake.log.count("RangeProfilerEnable") == 2
    assert fake.log.count("ProfilerGetCounterAvailability") == 2  # its size, and then it


def test_rounds_share_a_session_and_not_their_values(fake: Fake) -> None:
    with opened(CYCLES, INSTRUCTIONS) as session:
        for step in ({"step": 1}, {"a": 2, "b": 3}):
            of = session.round([*step], marked(session, fake, **step))
            assert of == {name: {CYCLES: n, INSTRUCTIONS: 2 * n} for name, n in step.items()}
    assert fake.log.count("RangeProfilerEnable") == 1


def test_a_metric_that_the_chip_lacks_costs_only_itself(fake: Fake) -> None:
    fake.set("unknown", MISSING)
    with opened(CYCLES, MISSING, INSTRUCTIONS) as session:
        of = session.round(["step"], marked(session, fake, step=1))
        assert of == {"step": {CYCLES: 1, INSTRUCTIONS: 2}}
    (missing,) = session.unsupported
    assert (missing.metric, missing.reason) == (MISSING, f"{MISSING} does not exist on GH100")
    fake.reset()
    fake.set("unknown", CYCLES)
    with opened() as session:
        assert session.metrics == ()
        with pytest.raises(MeasurementError, match="no metric"):
            session.round(["step"], marked(session, fake, step=1))
    assert not any(call.endswith("Enable") for call in fake.log)


def test_after_an_exception_of_the_step_a_session_is_usable_and_is_closed(fake: Fake) -> None:
    fake.set("passes", 3)
    session, error = opened(), KeyboardInterrupt()

    def run() -> None:
        session.push("step")
        fake.note("run")
        raise error

    def twice() -> None:
        with session:
            with pytest.raises(KeyboardInterrupt):
                session.round(["step"], run)
            assert session.round(["step"], marked(session, fake, step=4)) == {"step": {CYCLES: 4}}
            session.round(["step"], run)

    with pytest.raises(KeyboardInterrupt) as caught:
        twice()
    assert caught.value is error
    *_, last = (at for at, call in enumerate(fake.log) if call == "run")
    assert fake.log[last + 1 :] == [
        *("RangeProfilerPopRange", "RangeProfilerStop", "RangeProfilerDisable"),
        *("ProfilerHostDeinitialize", "ProfilerDeInitialize"),
    ]


def test_ranges_that_are_dropped_or_missing_are_named(fake: Fake) -> None:
    for room, lost, expected, says in (
        (1, "", "ab", 'dropped 1 of the ranges "a", "b"'),
        (2, "b", "ab", 'no values for the ranges "b"'),
    ):
        fake.reset()
        fake.set("lose", lost)
        with opened(max_ranges=room) as session:
            with pytest.raises(MeasurementError, match=says):
                session.round([*expected], marked(session, fake, a=1, b=1))


def test_passes_have_an_end(fake: Fake) -> None:
    fake.set("passes", 2)
    fake.set("never_done", 1)
    with opened() as session:
        with pytest.raises(MeasurementError, match="announced 2 passes"):
            session.round(["step"], marked(session, fake, step=1))


# Where it does not open


UNKNOWN, DENIED, BUSY, INVALID = 999, 35, 26, 1


def test_where_it_cannot_begin_it_says_why_and_leaves_nothing(fake: Fake) -> None:
    def fails(call: str, code: int) -> tuple[Callable[[], None], str]:
        return lambda: fake.fail(f"cupti{call}", code), rf"cupti{call}.*CUPTI_ERROR_"

    for script, says in (
        fails("ProfilerInitialize", DENIED),
        fails("ProfilerGetCounterAvailability", BUSY),
        fails("RangeProfilerEnable", DENIED),
        fails("RangeProfilerEnable", UNKNOWN),
        fails("RangeProfilerGetCounterDataSize", INVALID),
        (fails("ProfilerInitialize", UNKNOWN)[0], "^the range profiler cannot be opened: cuptiPr"),
        (lambda: fake.set("context", 0), "no CUDA context is current in this thread"),
        (lambda: fake.set("chip", ""), r"CUPTI [\d.]+ .*does not know the chip of this GPU"),
    ):
        script()
        with pytest.raises(CountersUnavailable, match=says) as caught, opened():
            pytest.fail("opened")
        assert caught.value.remedy
        fake.reset()


# Automatic ranges


def test_every_launch_has_its_values_in_the_order_of_launching(fake: Fake) -> None:
    fake.set("passes", 3)
    prepared: list[str] = []
    with opened(CYCLES, INSTRUCTIONS, max_ranges=8, automatic=True) as session:
        launches = session.launches(fake.launching(3, 5, 4), prepare=lambda: prepared.append("."))
    assert [(of[CYCLES], of[INSTRUCTIONS]) for of in launches] == [(3, 6), (5, 10), (4, 8)]
    assert len(prepared) == session.passes == 3


def test_launches_without_room_are_an_error_and_a_ratio_without_a_value_is_no_number(
    fake: Fake,
) -> None:
    with opened(automatic=True) as session:
        with pytest.raises(MeasurementError, match=r"dropped 1 of the launches: .* room for 2"):
            session.launches(fake.launching(1, 2, 3))
    fake.reset()
    with opened(IPC, automatic=True) as session:
        (values,) = session.launches(fake.launching(0))
    assert math.isnan(values[IPC])
