"""How a range session opens, and that it leaves nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.measure.cupti.abi import ResultCode
from pytest_gpuperf.measure.cupti.range_session import RangeSession
from tests.measure.cupti.fake import Fake

CYCLES, MISSING, ACTIVE = "sm__cycles_elapsed.max", "sm__no_such.sum", "sm__cycles_active.sum"


def opened(fake: Fake, *metrics: str) -> RangeSession:
    return RangeSession(metrics or (CYCLES,), cupti=fake.cupti, cuda=fake.cuda)


def execute(session: RangeSession, step: Callable[[], None]) -> None:
    """Runs a step in the one range that it marks."""

    def marked() -> None:
        session.push("step")
        step()
        session.pop()

    session.round(["step"], marked)


def test_it_opens_on_the_current_chip_and_closes(fake: Fake) -> None:
    session = opened(fake)
    with session as entered:
        assert entered is session
        assert (entered.chip, entered.metrics, entered.unsupported) == ("GH100", (CYCLES,), ())
        assert fake.alive > 0
    assert fake.alive == 0
    assert (fake.log[0], fake.log[-1]) == ("ProfilerInitialize", "ProfilerDeInitialize")
    before = fake.log
    session.close()
    assert fake.log == before


def test_a_metric_that_the_chip_lacks_costs_only_itself(fake: Fake) -> None:
    fake.set("unknown", MISSING)
    with opened(fake, CYCLES, MISSING, ACTIVE) as session:
        execute(session, lambda: fake.work(1))
        assert session.metrics == (CYCLES, ACTIVE)
    (missing,) = session.unsupported
    assert (missing.metric, missing.reason) == (MISSING, f"{MISSING} does not exist on GH100")


def test_with_no_metric_left_nothing_is_enabled(fake: Fake) -> None:
    fake.set("unknown", CYCLES)
    with opened(fake) as session:
        assert session.metrics == ()
        with pytest.raises(MeasurementError, match="no metric"):
            execute(session, lambda: None)
    assert not any(call.endswith("Enable") for call in fake.log)


def test_an_exception_of_the_step_comes_out_after_everything_is_closed(fake: Fake) -> None:
    fake.set("passes", 3)
    error = ZeroDivisionError("the step's own")

    def run() -> None:
        fake.note("run")
        raise error

    with pytest.raises(ZeroDivisionError) as caught:
        with opened(fake) as session:
            execute(session, run)
    assert caught.value is error
    assert fake.log[fake.log.index("run") + 1 :] == [
        *("RangeProfilerPopRange", "RangeProfilerStop", "RangeProfilerDisable"),
        *("ProfilerHostDeinitialize", "ProfilerDeInitialize"),
    ]


PRIVILEGES, UNKNOWN = ResultCode.ERROR_INSUFFICIENT_PRIVILEGES, ResultCode.ERROR_UNKNOWN
REFUSALS = (
    ("ProfilerInitialize", PRIVILEGES),
    ("ProfilerGetCounterAvailability", ResultCode.ERROR_HARDWARE_BUSY),
    ("RangeProfilerEnable", PRIVILEGES),
    ("RangeProfilerEnable", UNKNOWN),
    ("RangeProfilerGetCounterDataSize", ResultCode.ERROR_INVALID_PARAMETER),
)


def refused(fake: Fake, *, match: str) -> None:
    """It does not open, for this reason and with a remedy."""
    with pytest.raises(CountersUnavailable, match=match) as caught:
        with opened(fake):
            pytest.fail("opened")
    assert caught.value.remedy
    fake.reset()


def test_a_call_that_fails_while_it_opens_is_named_and_nothing_is_left(fake: Fake) -> None:
    for call, result in REFUSALS:
        fake.fail(f"cupti{call}", result)
        refused(fake, match=rf"cupti{call}.*CUPTI_{result.name}")


def test_where_it_cannot_begin_it_says_why(fake: Fake) -> None:
    fake.set("context", 0)
    refused(fake, match="no CUDA context is current in this thread")
    fake.set("chip", "")
    refused(fake, match=r"CUPTI [\d.]+ .*does not know the chip of this GPU")
    fake.fail("cuptiProfilerInitialize", UNKNOWN)
    refused(fake, match="^the range profiler cannot be opened: cuptiProfilerInitialize ")
