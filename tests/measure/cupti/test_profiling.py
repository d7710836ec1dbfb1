"""What a range session and a sampler have in common: how they open, and that they leave nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_gpuperf.errors import CountersUnavailable
from pytest_gpuperf.measure.cupti.codes import Result
from pytest_gpuperf.measure.cupti.range_session import Profiling, RangeSession
from pytest_gpuperf.measure.cupti.sampling import Sampler
from tests.measure.cupti.fake import Fake

METRICS = ("sm__cycles_elapsed.max",)


def session(fake: Fake) -> Profiling:
    return RangeSession(METRICS, cupti=fake.cupti, cuda=fake.cuda)


def sampler(fake: Fake) -> Profiling:
    return Sampler(METRICS, 100_000, 10, cupti=fake.cupti, cuda=fake.cuda)


both = pytest.mark.parametrize("kind", [session, sampler])
Kind = Callable[[Fake], Profiling]


@both
def test_it_opens_on_the_current_chip_and_closes(fake: Fake, kind: Kind) -> None:
    profiling = kind(fake)
    with profiling as opened:
        assert opened is profiling
        assert (opened.chip, opened.metrics, opened.unsupported) == ("GH100", METRICS, ())
        assert fake.alive > 0
    assert fake.alive == 0
    assert fake.log[0] == "ProfilerInitialize"
    assert fake.log[-1] == "ProfilerDeInitialize"


@both
def test_closing_again_does_nothing(fake: Fake, kind: Kind) -> None:
    with kind(fake) as profiling:
        pass
    before = fake.log
    profiling.close()
    assert fake.log == before


@both
@pytest.mark.parametrize(
    ("what", "value", "says"),
    [
        ("context", 0, "no CUDA context is current in this thread"),
        ("chip", "", r"CUPTI [\d.]+ .*does not know the chip of this GPU"),
    ],
)
def test_where_it_cannot_begin_it_says_why_and_leaves_nothing(
    fake: Fake, kind: Kind, what: str, value: int | str, says: str
) -> None:
    fake.set(what, value)
    with pytest.raises(CountersUnavailable, match=says) as caught:
        with kind(fake):
            pytest.fail("opened")
    assert caught.value.remedy
    assert fake.alive == 0


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (session, "the range profiler cannot be opened: cuptiProfilerInitialize "),
        (sampler, "PM sampling cannot be opened: cuptiProfilerInitialize "),
    ],
)
def test_what_is_refused_is_named(fake: Fake, kind: Kind, says: str) -> None:
    fake.fail("cuptiProfilerInitialize", Result.ERROR_UNKNOWN)
    with pytest.raises(CountersUnavailable, match=f"^{says}"):
        with kind(fake):
            pytest.fail("opened")
    assert fake.alive == 0
