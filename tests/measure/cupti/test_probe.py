"""What `gpuperf doctor` learns about CUPTI."""

from __future__ import annotations

from typing import NoReturn

import pytest

from pytest_gpuperf.errors import CountersUnavailable
from pytest_gpuperf.measure.cupti import library
from pytest_gpuperf.measure.device import driver
from pytest_gpuperf.measure.device.checks import Check, counters
from tests.measure.cupti.fake import Fake


def missing() -> NoReturn:
    raise CountersUnavailable("it was not found", "Install it")


def test_all_is_well(fake: Fake) -> None:
    there, read = counters()
    assert (there.ok, read.ok) == (True, True)
    assert there.detail == f"13.0.1 (API 130001), {fake.cupti.path}"
    assert "GH100" in read.detail
    assert "RangeProfilerDecodeData" in fake.log
    assert fake.log[-1] == "release"
    fake.set("lose", "step")  # an empty range may be left out
    assert counters()[1].ok


def test_counters_that_cannot_be_read_are_a_no_with_a_remedy(fake: Fake) -> None:
    for call, result, detail, remedy in (
        ("Enable", 35, "may not read", "CAP_SYS_ADMIN"),
        ("DecodeData", 999, "cuptiRangeProfilerDecodeData", "Report it"),
    ):
        fake.fail(f"cuptiRangeProfiler{call}", result)
        there, read = counters()
        assert (there.ok, read.ok) == (True, False)
        assert detail in read.detail
        assert remedy in read.remedy
        assert fake.log[-1] == "release"


@pytest.mark.usefixtures("fake")
def test_no_cupti_and_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "load", missing)
    _, read = counters()
    assert read == Check("hardware counters", False, "it was not found", "Install it")
    monkeypatch.setattr(library, "load", missing)
    there, read = counters()
    assert there == Check("CUPTI", False, "it was not found", "Install it")
    assert not read.ok
