"""What a range session and a sampler have in common: how they open, and that they leave nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.measure.cupti.abi import ResultCode
from pytest_gpuperf.measure.cupti.range_session import Profiling, RangeSession
from pytest_gpuperf.measure.cupti.sampling import Sampler
from tests.measure.cupti.fake import Fake

CYCLES, MISSING, ACTIVE = "sm__cycles_elapsed.max", "sm__no_such.sum", "sm__cycles_active.sum"
Opened = Callable[..., Profiling]


def session(fake: Fake, *metrics: str) -> Profiling:
    return RangeSession(metrics or (CYCLES,), cupti=fake.cupti, cuda=fake.cuda)


def sampler(fake: Fake, *metrics: str) -> Profiling:
    return Sampler(metrics or (CYCLES,), 100_000, 10, cupti=fake.cupti, cuda=fake.cuda)


both = pytest.mark.parametrize("opened", [session, sampler])


def execute(profiling: Profiling, step: Callable[[], None]) -> None:
    """Runs a step in the one range that it marks, or samples it."""
    if isinstance(profiling, Sampler):
        profiling.sample(step)
        return
    assert isinstance(profiling, RangeSession)

    def marked() -> None:
        profiling.push("step")
        step()
        profiling.pop()

    profiling.round(["step"], marked)


@both
def test_it_opens_on_the_current_chip_and_closes(opened: Opened, fake: Fake) -> None:
    profiling = opened(fake)
    with profiling as entered:
        assert entered is profiling
        assert (entered.chip, entered.metrics, entered.unsupported) == ("GH100", (CYCLES,), ())
        assert fake.alive > 0
    assert fake.alive == 0
    assert (fake.log[0], fake.log[-1]) == ("ProfilerInitialize", "ProfilerDeInitialize")
    before = fake.log
    profiling.close()
    assert fake.log == before


@both
def test_a_metric_that_the_chip_lacks_costs_only_itself(opened: Opened, fake: Fake) -> None:
    fake.set("unknown", MISSING)
    with opened(fake, CYCLES, MISSING, ACTIVE) as profiling:
        execute(profiling, lambda: fake.work(1))
        assert profiling.metrics == (CYCLES, ACTIVE)
    (missing,) = profiling.unsupported
    assert (missing.metric, missing.reason) == (MISSING, f"{MISSING} does not exist on GH100")


@both
def test_with_no_metric_left_nothing_is_enabled(opened: Opened, fake: Fake) -> None:
    fake.set("unknown", CYCLES)
    with opened(fake) as profiling:
        assert profiling.metrics == ()
        with pytest.raises(MeasurementError, match="no metric"):
            execute(profiling, lambda: None)
    assert not any(call.endswith("Enable") for call in fake.log)


@both
def test_an_exception_of_the_step_comes_out_after_everything_is_closed(
    opened: Opened, fake: Fake
) -> None:
    fake.set("passes", 3 if opened is session else 1)
    error = ZeroDivisionError("the step's own")

    def run() -> None:
        fake.note("run")
        raise error

    with pytest.raises(ZeroDivisionError) as caught:
        with opened(fake) as profiling:
            execute(profiling, run)
    assert caught.value is error
    ranges = ["RangeProfilerPopRange", "RangeProfilerStop", "RangeProfilerDisable"]
    assert fake.log[fake.log.index("run") + 1 :] == [
        *(ranges if opened is session else ["PmSamplingStop", "PmSamplingDisable"]),
        *("ProfilerHostDeinitialize", "ProfilerDeInitialize"),
    ]


PRIVILEGES, UNKNOWN = ResultCode.ERROR_INSUFFICIENT_PRIVILEGES, ResultCode.ERROR_UNKNOWN
REFUSALS: dict[Opened, tuple[tuple[str, ResultCode], ...]] = {
    session: (
        ("ProfilerInitialize", PRIVILEGES),
        ("ProfilerGetCounterAvailability", ResultCode.ERROR_HARDWARE_BUSY),
        ("RangeProfilerEnable", PRIVILEGES),
        ("RangeProfilerEnable", UNKNOWN),
        ("RangeProfilerGetCounterDataSize", ResultCode.ERROR_INVALID_PARAMETER),
    ),
    sampler: (
        ("PmSamplingGetCounterAvailability", PRIVILEGES),
        ("PmSamplingEnable", PRIVILEGES),
        ("PmSamplingEnable", ResultCode.ERROR_HARDWARE_BUSY),
        ("PmSamplingEnable", ResultCode.ERROR_INVALID_OPERATION),
        ("PmSamplingSetConfig", ResultCode.ERROR_NOT_SUPPORTED),
        ("PmSamplingGetCounterDataSize", UNKNOWN),
    ),
}


def refused(opened: Opened, fake: Fake, *, match: str) -> None:
    """It does not open, for this reason and with a remedy."""
    with pytest.raises(CountersUnavailable, match=match) as caught:
        with opened(fake):
            pytest.fail("opened")
    assert caught.value.remedy
    fake.reset()


@both
def test_a_call_that_fails_while_it_opens_is_named_and_nothing_is_left(
    opened: Opened, fake: Fake
) -> None:
    for call, result in REFUSALS[opened]:
        fake.fail(f"cupti{call}", result)
        refused(opened, fake, match=rf"cupti{call}.*CUPTI_{result.name}")


@both
def test_where_it_cannot_begin_it_says_why(opened: Opened, fake: Fake) -> None:
    fake.set("context", 0)
    refused(opened, fake, match="no CUDA context is current in this thread")
    fake.set("chip", "")
    refused(opened, fake, match=r"CUPTI [\d.]+ .*does not know the chip of this GPU")
    fake.fail("cuptiProfilerInitialize", UNKNOWN)
    what = "the range profiler" if opened is session else "PM sampling"
    refused(opened, fake, match=f"^{what} cannot be opened: cuptiProfilerInitialize ")
    fake.fail("cuptiRangeProfilerEnable" if opened is session else "cuptiPmSamplingEnable", UNKNOWN)
    refused(opened, fake, match="; Windows Subsystem for Linux is unsupported")
