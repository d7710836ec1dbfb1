"""What `gpuperf doctor` asks, on scripted machines."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_gpuperf.measure.device import checks
from pytest_gpuperf.measure.ncu import ncu_command
from tests.scripted_nvml import Gpu, Install, Library

FAR = 2**22 + 7
"""A pid that no process here has."""


@pytest.fixture(autouse=True)
def no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUPTI is asked elsewhere."""
    monkeypatch.setattr(checks, "counters", list)


def examined() -> dict[str, tuple[bool, str]]:
    """What it finds out, by name."""
    return {check.name: (check.ok, check.detail) for check in checks.examine()}


def test_a_machine_that_can_be_measured_but_for_others(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(Library([Gpu(processes=[FAR])]))
    monkeypatch.setattr(ncu_command, "find", lambda: Path("/opt/ncu"))
    monkeypatch.setattr(ncu_command, "version", lambda _: "2025.3")
    answers = examined()
    assert answers["driver"] == (True, "580.159")
    assert answers["GPU"] == (True, "NVIDIA H200 (sm90)")
    assert answers["Nsight Compute"] == (True, "/opt/ncu, 2025.3")
    assert answers["GPU not shared"] == (False, f"other compute processes: {FAR}")


def test_a_machine_without_torch_driver_gpu_or_ncu(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(None)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(ncu_command, "find", lambda: None)
    answers = examined()
    assert [name for name, (ok, _) in answers.items() if ok] == []
    assert list(answers) == ["torch", "driver", "GPU", "Nsight Compute"]
    assert answers["torch"][1].endswith("; torch is not installed")


def test_a_gpu_that_is_not_known_here_and_alone(install: Install) -> None:
    install(Library([Gpu(capability=(99, 0))]))
    answers = examined()
    assert answers["GPU"] == (False, "NVIDIA H200 (sm990)")
    assert answers["GPU not shared"] == (True, "no other compute process")
