"""PM sampling's calls, samples and errors, through real ctypes calls into a scripted CUPTI."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from pytest_gpuperf.errors import CountersUnavailable
from pytest_gpuperf.measure.cupti.abi import ResultCode
from pytest_gpuperf.measure.cupti.library import CuptiError
from pytest_gpuperf.measure.cupti.sampling import Sampler, SamplesLost
from tests.measure.cupti.conftest import compiled
from tests.measure.cupti.fake import Fake

SMS, TENSOR, DRAM = "sm__cycles_active", "sm__pipe_tensor_cycles_active", "dram__throughput"
INTERVAL = 20_000
MOST = 100


def opened(fake: Fake, *metrics: str, most: int = MOST) -> Sampler:
    return Sampler(metrics or (SMS,), INTERVAL, most, cupti=fake.cupti, cuda=fake.cuda)


def test_samples_follow_each_other_and_have_the_means_over_their_intervals(fake: Fake) -> None:
    def run() -> None:
        fake.elapse(0.015, 100)
        fake.elapse(0.025, 0)
        fake.elapse(0.04, 60)

    with opened(fake, SMS, TENSOR) as sampler:
        samples = sampler.sample(run)
    assert {sample.end - sample.begin for sample in samples} == {INTERVAL}
    assert all(one.end == following.begin for one, following in pairwise(samples))
    # The second metric has half.
    assert [sample.values for sample in samples] == [(75, 37.5), (0, 0), (60, 30), (60, 30)]


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


def test_chips_that_cannot_wait_for_a_time_wait_for_cycles(fake: Fake) -> None:
    for chip in ("TU102", "GA100"):
        fake.set("chip", chip)
        with opened(fake) as sampler:
            samples = sampler.sample(lambda: fake.elapse(0.08, 60))
        assert {sample.end - sample.begin for sample in samples} == {16_000}  # at 1.25 GHz


def test_as_many_samples_as_there_is_room_for_are_decoded_and_one_more_is_too_many(
    fake: Fake,
) -> None:
    for reason in (0, 2):
        fake.reset()
        fake.set("reason", reason)
        with opened(fake, most=2500) as sampler:
            samples = sampler.sample(lambda: fake.elapse(2500 * INTERVAL / 1e6, 10))
        assert len(samples) == len({sample.begin for sample in samples}) == 2500
    with opened(fake) as sampler:
        with pytest.raises(SamplesLost, match=r"every 20 us are too many.* more than 100"):
            sampler.sample(lambda: fake.elapse((MOST + 1) * INTERVAL / 1e6, 10))


def test_room_that_needs_too_much_memory_is_not_asked_for(fake: Fake) -> None:
    with pytest.raises(SamplesLost, match=r"100000 of them need 6866 MiB of 4096 MiB"):
        with opened(fake, most=100_000):
            pytest.fail("opened")


def test_a_full_buffer_is_said_also_where_it_is_an_error_code(fake: Fake) -> None:
    fake.set("buffer", 3)
    with opened(fake) as sampler:
        with pytest.raises(SamplesLost, match=r"every 20 us are too many.*512 MiB was full"):
            sampler.sample(lambda: fake.elapse(0.1, 60))
    fake.fail("cuptiPmSamplingDecodeData", ResultCode.ERROR_OUT_OF_MEMORY)
    with opened(fake) as sampler:
        with pytest.raises(SamplesLost, match="was full"):
            sampler.sample(lambda: None)


def test_any_other_error_of_decoding_names_its_call(fake: Fake) -> None:
    fake.fail("cuptiPmSamplingDecodeData", ResultCode.ERROR_UNKNOWN)
    with opened(fake) as sampler:
        with pytest.raises(CuptiError, match=r"cuptiPmSamplingDecodeData .*ERROR_UNKNOWN"):
            sampler.sample(lambda: None)


def test_what_does_not_fit_into_one_pass_is_left_out_from_the_last_on(fake: Fake) -> None:
    for room in (2, 0):
        fake.set("room", room)
        with opened(fake, SMS, TENSOR, DRAM) as sampler:
            assert sampler.metrics == (SMS, TENSOR, DRAM)[:room]
            missing = {entry.metric: entry.reason for entry in sampler.unsupported}
        assert set(missing) == {SMS, TENSOR, DRAM} - set(sampler.metrics)
        assert room == 0 or f"together with {SMS}, {TENSOR} on GH100" in missing[DRAM]


def test_a_cupti_without_pm_sampling_is_used_for_all_else(tmp_path: Path) -> None:
    other = Fake(compiled(tmp_path, "-DWITHOUT_SAMPLING"))
    with pytest.raises(
        CountersUnavailable, match=r"CUPTI 13.0.1 .*has no cuptiPmSamplingGetCounterAvailability"
    ):
        with opened(other):
            pytest.fail("opened")
    assert other.alive == 0
