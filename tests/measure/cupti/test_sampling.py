"""PM sampling's calls, samples and errors, through real ctypes calls into a scripted CUPTI."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.measure.cupti.codes import ResultCode
from pytest_gpuperf.measure.cupti.library import CuptiError
from pytest_gpuperf.measure.cupti.sampling import Sampler, SamplesLost
from tests.measure.cupti.conftest import compiled
from tests.measure.cupti.fake import Fake

SMS, TENSOR, DRAM = "sm__cycles_active", "sm__pipe_tensor_cycles_active", "dram__throughput"
INTERVAL = 20_000
MOST = 100


def opened(fake: Fake, *metrics: str, interval: int = INTERVAL, most: int = MOST) -> Sampler:
    return Sampler(metrics or (SMS,), interval, most, cupti=fake.cupti, cuda=fake.cuda)


def test_samples_follow_each_other_at_the_interval(fake: Fake) -> None:
    with opened(fake, SMS, TENSOR) as sampler:
        samples = sampler.sample(lambda: fake.elapse(0.08, 60))
    assert len(samples) == 4
    assert {sample.end - sample.begin for sample in samples} == {INTERVAL}
    assert all(one.end == following.begin for one, following in pairwise(samples))
    assert [sample.values for sample in samples] == [(60, 30)] * 4  # the second metric has half
    assert sampler.chip == "GH100"
    assert fake.alive == 0


def test_a_sample_has_the_mean_over_its_interval(fake: Fake) -> None:
    def run() -> None:
        fake.elapse(0.015, 100)
        fake.elapse(0.025, 0)

    with opened(fake) as sampler:
        assert [sample.values for sample in sampler.sample(run)] == [(75,), (0,)]


def test_the_order_of_calls(fake: Fake) -> None:
    with opened(fake) as sampler:
        sampler.sample(lambda: fake.note("run"))
    assert fake.log == [
        "ProfilerInitialize",
        "DeviceGetChipName",
        "PmSamplingGetCounterAvailability",
        "PmSamplingGetCounterAvailability",
        "ProfilerHostInitialize",
        "ProfilerHostConfigAddMetrics",
        "ProfilerHostGetConfigImageSize",
        "ProfilerHostGetConfigImage",
        "ProfilerHostGetNumOfPasses",
        "PmSamplingEnable",
        "PmSamplingSetConfig",
        "PmSamplingGetCounterDataSize",
        "PmSamplingCounterDataImageInitialize",
        "PmSamplingStart",
        "run",
        "PmSamplingStop",
        "PmSamplingDecodeData",
        "PmSamplingGetCounterDataInfo",
        "PmSamplingDisable",
        "ProfilerHostDeinitialize",
        "ProfilerDeInitialize",
    ]


def test_as_many_samples_as_there_is_room_for_are_decoded(fake: Fake) -> None:
    for reason in (
        0,
        2,
    ):
        fake.reset()
        fake.set("reason", reason)
        with opened(fake, most=2500) as sampler:
            samples = sampler.sample(lambda: fake.elapse(2500 * INTERVAL / 1e6, 10))
        assert len(samples) == 2500
        assert len({sample.begin for sample in samples}) == 2500


def test_one_more_sample_than_there_is_room_for_is_said(fake: Fake) -> None:
    with opened(fake) as sampler:
        with pytest.raises(SamplesLost, match=r"every 20 us are too many.* more than 100"):
            sampler.sample(lambda: fake.elapse((MOST + 1) * INTERVAL / 1e6, 10))
    assert fake.alive == 0


def test_room_that_needs_too_much_memory_is_not_asked_for(fake: Fake) -> None:
    with pytest.raises(SamplesLost, match=r"100000 of them need 6866 MiB of 4096 MiB"):
        with opened(fake, most=100_000):
            pytest.fail("opened")
    assert fake.alive == 0


def test_chips_that_cannot_wait_for_a_time_wait_for_cycles(fake: Fake) -> None:
    for chip in (
        "TU102",
        "GA100",
    ):
        fake.reset()
        fake.set("chip", chip)
        with opened(fake) as sampler:
            samples = sampler.sample(lambda: fake.elapse(0.08, 60))
        assert {sample.end - sample.begin for sample in samples} == {16_000}  # at 1.25 GHz


def test_a_full_buffer_is_said(fake: Fake) -> None:
    fake.set("buffer", 3)
    with opened(fake) as sampler:
        with pytest.raises(SamplesLost, match=r"every 20 us are too many.*512 MiB was full"):
            sampler.sample(lambda: fake.elapse(0.1, 60))
    assert fake.alive == 0


def test_a_full_buffer_may_be_an_error_code(fake: Fake) -> None:
    fake.fail("cuptiPmSamplingDecodeData", ResultCode.ERROR_OUT_OF_MEMORY)
    with opened(fake) as sampler:
        with pytest.raises(SamplesLost, match="was full"):
            sampler.sample(lambda: None)


def test_any_other_error_of_decoding_names_its_call(fake: Fake) -> None:
    fake.fail("cuptiPmSamplingDecodeData", ResultCode.ERROR_UNKNOWN)
    with opened(fake) as sampler:
        with pytest.raises(CuptiError, match=r"cuptiPmSamplingDecodeData .*ERROR_UNKNOWN"):
            sampler.sample(lambda: None)
    assert fake.alive == 0


def test_what_does_not_fit_into_one_pass_is_left_out_from_the_last_on(fake: Fake) -> None:
    fake.set("room", 2)
    with opened(fake, SMS, TENSOR, DRAM) as sampler:
        assert sampler.metrics == (SMS, TENSOR)
    assert [entry.metric for entry in sampler.unsupported] == [DRAM]
    assert f"together with {SMS}, {TENSOR} on GH100" in sampler.unsupported[0].reason


def test_a_metric_that_the_chip_lacks_costs_only_itself(fake: Fake) -> None:
    fake.set("unknown", TENSOR)
    with opened(fake, SMS, TENSOR, DRAM) as sampler:
        assert sampler.metrics == (SMS, DRAM)
    assert [entry.metric for entry in sampler.unsupported] == [TENSOR]


def test_with_no_metric_left_nothing_is_enabled(fake: Fake) -> None:
    for what, value in (
        ("room", 0),
        ("unknown", SMS),
    ):
        fake.reset()
        fake.set(what, value)
        with opened(fake) as sampler:
            assert sampler.metrics == ()
            with pytest.raises(MeasurementError, match="no metric"):
                sampler.sample(lambda: None)
        assert "PmSamplingEnable" not in fake.log
        assert fake.alive == 0


def test_an_exception_of_the_step_comes_out_after_everything_is_closed(fake: Fake) -> None:
    error = ZeroDivisionError("the step's own")

    def run() -> None:
        raise error

    with pytest.raises(ZeroDivisionError) as caught:
        with opened(fake) as sampler:
            sampler.sample(run)
    assert caught.value is error
    assert "PmSamplingDecodeData" not in fake.log
    assert fake.alive == 0


def test_a_sampler_that_cannot_open_says_so_and_leaves_nothing(fake: Fake) -> None:
    for call, result in (
        ("cuptiPmSamplingGetCounterAvailability", ResultCode.ERROR_INSUFFICIENT_PRIVILEGES),
        ("cuptiPmSamplingEnable", ResultCode.ERROR_INSUFFICIENT_PRIVILEGES),
        ("cuptiPmSamplingEnable", ResultCode.ERROR_HARDWARE_BUSY),
        ("cuptiPmSamplingEnable", ResultCode.ERROR_INVALID_OPERATION),
        ("cuptiPmSamplingSetConfig", ResultCode.ERROR_NOT_SUPPORTED),
        ("cuptiPmSamplingGetCounterDataSize", ResultCode.ERROR_UNKNOWN),
    ):
        fake.reset()
        fake.fail(call, result)
        with pytest.raises(CountersUnavailable, match=rf"{call}.*CUPTI_{result.name}") as caught:
            with opened(fake):
                pytest.fail("opened")
        assert caught.value.remedy
        assert fake.alive == 0


def test_a_cupti_without_pm_sampling_is_used_for_all_else(tmp_path: Path) -> None:
    other = Fake(compiled(tmp_path, "-DWITHOUT_SAMPLING"))
    with pytest.raises(
        CountersUnavailable, match=r"CUPTI 13.0.1 .*has no cuptiPmSamplingGetCounterAvailability"
    ):
        with opened(other):
            pytest.fail("opened")
    assert other.alive == 0
