"""What a range session and a sampler have in common: how they open, and that they leave nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_gpuperf.errors import CountersUnavailable
from pytest_gpuperf.measure.cupti.codes import ResultCode
from pytest_gpuperf.measure.cupti.range_session import Profiling, RangeSession
from pytest_gpuperf.measure.cupti.sampling import Sampler
from tests.measure.cupti.fake import Fake

METRICS = ("sm__cycles_elapsed.max",)


def session(fake: Fake) -> Profiling:
    return RangeSession(METRICS, cupti=fake.cupti, cuda=fake.cuda)


def sampler(fake: Fake) -> Profiling:
    return Sampler(METRICS, 100_000, 10, cupti=fake.cupti, cuda=fake.cuda)


def test_it_opens_on_the_current_chip_and_closes(fake: Fake) -> None:
    for kind in (session, sampler):
        fake.reset()
        profiling = kind(fake)
        with profiling as opened:
            assert opened is profiling
            assert (opened.chip, opened.metrics, opened.unsupported) == ("GH100", METRICS, ())
            assert fake.alive > 0
        assert fake.alive == 0
        assert (fake.log[0], fake.log[-1]) == ("ProfilerInitialize", "ProfilerDeInitialize")
        before = fake.log
        profiling.close()
        assert fake.log == before


def test_where_it_cannot_begin_it_says_why_and_leaves_nothing(fake: Fake) -> None:
    for kind, what in ((session, "the range profiler"), (sampler, "PM sampling")):
        cases: tuple[tuple[Callable[[], object], str], ...] = (
            (lambda: fake.set("context", 0), "no CUDA context is current in this thread"),
            (lambda: fake.set("chip", ""), r"CUPTI [\d.]+ .*does not know the chip of this GPU"),
            (
                lambda: fake.fail("cuptiProfilerInitialize", ResultCode.ERROR_UNKNOWN),
                f"^{what} cannot be opened: cuptiProfilerInitialize ",
            ),
        )
        for spoil, says in cases:
            fake.reset()
            spoil()
            with pytest.raises(CountersUnavailable, match=says) as caught:
                with kind(fake):
                    pytest.fail("opened")
            assert caught.value.remedy
            assert fake.alive == 0
