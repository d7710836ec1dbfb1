"""What `gpuperf doctor` learns about CUPTI."""

from __future__ import annotations

from pytest_gpuperf.errors import CountersUnavailable
from pytest_gpuperf.measure.cupti.codes import ResultCode
from pytest_gpuperf.measure.cupti.driver import Driver
from pytest_gpuperf.measure.cupti.library import Cupti
from pytest_gpuperf.measure.device.checks import Check, counters
from tests.measure.cupti.fake import Fake


def run(fake: Fake) -> list[Check]:
    return counters(load_cupti=lambda: fake.cupti, load_driver=lambda: fake.cuda)


def test_all_is_well(fake: Fake) -> None:
    found, read = run(fake)
    assert (found.ok, read.ok) == (True, True)
    assert found.detail.startswith("13.0.1 (API 130001), /")
    assert found.detail.endswith("libcupti.so.13")
    assert "GH100" in read.detail
    assert "RangeProfilerDecodeData" in fake.log
    assert fake.log[-1] == "release"
    assert fake.alive == 0


def test_an_empty_range_may_be_left_out(fake: Fake) -> None:
    fake.set("lose", "step")
    assert run(fake)[1].ok


def test_no_permission(fake: Fake) -> None:
    fake.fail("cuptiRangeProfilerEnable", ResultCode.ERROR_INSUFFICIENT_PRIVILEGES)
    found, read = run(fake)
    assert (found.ok, read.ok) == (True, False)
    assert "may not read" in read.detail
    assert "CAP_SYS_ADMIN" in read.remedy
    assert fake.log[-1] == "release"
    assert fake.alive == 0


def test_a_failure_that_nobody_expected(fake: Fake) -> None:
    fake.fail("cuptiRangeProfilerDecodeData", ResultCode.ERROR_UNKNOWN)
    read = run(fake)[1]
    assert not read.ok
    assert "cuptiRangeProfilerDecodeData" in read.detail
    assert read.remedy


def test_no_cupti() -> None:
    def missing() -> Cupti:
        raise CountersUnavailable("CUPTI was not found", "Install it")

    found, read = counters(load_cupti=missing)
    assert found == Check("CUPTI", False, "CUPTI was not found", "Install it")
    assert not read.ok
    assert read.remedy


def test_no_driver(fake: Fake) -> None:
    def missing() -> Driver:
        raise CountersUnavailable("no CUDA driver", "Install it")

    found, read = counters(load_cupti=lambda: fake.cupti, load_driver=missing)
    assert found.ok
    assert read == Check("hardware counters", False, "no CUDA driver", "Install it")
