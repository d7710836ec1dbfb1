"""`gpuperf doctor`: its answers as text, and its exit code."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from pytest_gpuperf import __main__, errors
from pytest_gpuperf.measure.device import canary, checks
from pytest_gpuperf.measure.device.checks import Check
from pytest_gpuperf.model.measurement import Canary
from tests import ROOT
from tests.scripted_nvml import Gpu, Library

FIT = Check("driver", True, "580.159", "Install it")
LACKING = Check("Nsight Compute", False, "ncu was not found", "Install it", optional=True)
BROKEN = Check("GPU", False, "none is visible", "Look for one")


MACHINE = """\
yes  driver: 580.159

Properties of this GPU:
  vbios                       96.00.A5.00.1A
  board_part                  692-2G520-0282-001
  inforom                     G520.0282.02.02
  memory_bytes                150754820096
  ecc                         True
  mig                         False
  power_limit_watts           700.0
  enforced_power_limit_watts  600.0
Speed of reference kernels (canary, sm90-0123456789ab):
  arithmetic_cycles     2,100,000.500  +- 0.001%
  sm_clock_mhz              1,980.000  +- 0.020%
  not measured: dram: no room
"""


def in_json(capsys: pytest.CaptureFixture[str], code: int = errors.OK) -> Any:
    """What it says to programs, which is as its schema has it."""
    assert __main__.main(["doctor", "--format", "json"]) == code
    said = json.loads(capsys.readouterr().out)
    schema = ROOT / "docs" / "schema" / "doctor.schema.json"
    jsonschema.validate(said, json.loads(schema.read_text(encoding="utf-8")))
    return said


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
    said = in_json(capsys, errors.FAILED)
    assert [(one["name"], one["ok"]) for one in said["checks"]] == [
        ("driver", True),
        ("Nsight Compute", False),
        ("GPU", False),
    ]
    assert (said["measurable"], said["device"], said["canary"]) == (False, None, None)


def test_what_the_gpu_is_beyond_its_name_and_its_canary(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", Library([Gpu(limits=(700_000, 600_000), pcie=None)]))
    monkeypatch.setattr(checks, "examine", lambda: [FIT])
    readings = {"arithmetic_cycles": 2_100_000.5, "sm_clock_mhz": 1980.0}
    spreads = {"arithmetic_cycles": 0.00001, "sm_clock_mhz": 0.0002}
    read = Canary("sm90-0123456789ab", readings, spreads, "dram: no room")
    monkeypatch.setattr(canary, "read", lambda _: read)
    assert __main__.main(["doctor"]) == errors.OK
    assert capsys.readouterr().out == MACHINE
    said = in_json(capsys)
    assert (said["device"]["name"], said["machine"]["vbios"]) == ("NVIDIA H200", "96.00.A5.00.1A")
    assert said["canary"]["readings"] == readings
    # Nothing is said of what was read in full.
    monkeypatch.setattr(canary, "read", lambda _: replace(read, obstacle=""))
    assert __main__.main(["doctor"]) == errors.OK
    rest = [line for line in MACHINE.splitlines() if "not measured" not in line]
    assert capsys.readouterr().out.splitlines() == rest


def test_without_a_gpu_it_fails_and_says_where_it_looked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(checks, "counters", list)
    assert __main__.main(["doctor"]) == errors.FAILED
    said = capsys.readouterr().out
    assert "yes  torch: " in said
    assert "no   driver: no NVIDIA driver found" in said
    assert "no   GPU: none is visible, so tests measure portable counts on the CPU" in said
