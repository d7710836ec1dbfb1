"""`gpuperf doctor`: its answers as text, and its exit code."""

from __future__ import annotations

import sys

import pytest

from pytest_gpuperf import __main__, errors
from pytest_gpuperf.measure.device import checks
from pytest_gpuperf.measure.device.checks import Check

FIT = Check("driver", True, "580.159", "Install it")
LACKING = Check("Nsight Compute", False, "ncu was not found", "Install it", optional=True)
BROKEN = Check("GPU", False, "none is visible", "Look for one")


def test_every_no_has_a_remedy_and_what_is_needed_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for answers, code in (([FIT, LACKING], errors.OK), ([FIT, LACKING, BROKEN], errors.FAILED)):
        monkeypatch.setattr(checks, "examine", lambda answers=answers: answers)
        assert __main__.main(["doctor"]) == code
    assert capsys.readouterr().out.splitlines()[-5:] == [
        "yes  driver: 580.159",
        "no   Nsight Compute: ncu was not found",
        "     -> Install it",
        "no   GPU: none is visible",
        "     -> Look for one",
    ]


def test_without_a_gpu_it_fails_and_says_where_it_looked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(checks, "counters", list)
    assert __main__.main(["doctor"]) == errors.FAILED
    said = capsys.readouterr().out
    assert "yes  torch: " in said
    assert "no   driver: no NVIDIA driver answers" in said
    assert "no   GPU: none is visible, so suites measure portable counts on the CPU" in said
