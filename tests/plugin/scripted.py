"""A scripted device. Written into a project as its conftest.py, it answers in a GPU's place.

`device.json` in the root directory says what the device is called and what its counters read. The
step is really run, once per measurement, on the CPU; only the numbers are made up.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from pytest_gpuperf import arch
from pytest_gpuperf.collect.base import Collected, PhaseNames, Plan, Work
from pytest_gpuperf.errors import CountersUnavailable
from pytest_gpuperf.model import STEP, Device, Sample, Unsupported

A100: dict[str, Any] = {
    "name": "NVIDIA A100-SXM4-80GB",
    "arch": "sm80",
    "counters": {
        "cycles": 400_000_000,
        "active_cycles": 43_000_000_000,
        "instructions": 9_000_000_000,
        "ipc": 0.84,
        "duration": 285_000_000,
        "step_time": 284.5,
        "wall_time": 286.1,
    },
    "factors": {},  # {"part of a test's id": {"cycles": 5}, "": {"cycles/backward": 9}}
    "unsupported": {},  # {"cycles": "the reason"}
    "unavailable": "",  # why no counter can be read at all
}
_RATIOS = ("ipc",)


class ScriptedCollector:
    """Runs the step once and returns what the script says. A `collect.base.Collector`."""

    name = "scripted"
    torch_device = "cpu"

    def __init__(self, script: dict[str, Any]) -> None:
        self._script = script

    def device(self) -> Device:
        name: str = self._script["name"]
        return Device(self._script["arch"], name, arch.slug(name), "scripted")

    def software(self) -> dict[str, str]:
        return {"driver": "580.65"}

    def collect(self, work: Work, plan: Plan) -> Collected:
        if self._script["unavailable"]:
            raise CountersUnavailable(self._script["unavailable"], "Ask for permission")
        heard = PhaseNames()
        work.reset()
        with work.phases.heard_by(heard):
            work.step()
        factors = self._factors()
        samples = []
        for metric, value in self._script["counters"].items():
            if metric in self._script["unsupported"]:
                continue
            parts = {
                phase: value
                * factors.get(f"{metric}/{phase}", factors.get(metric, 1))
                / (1 if metric in _RATIOS else len(heard.names))
                for phase in heard.names
            }
            whole = sum(parts.values()) if parts and metric not in _RATIOS else None
            parts[STEP] = value * factors.get(metric, 1) if whole is None else whole
            samples += [
                Sample(phase, metric, (float(part),) * plan.rounds) for phase, part in parts.items()
            ]
        return Collected(
            tuple(samples),
            tuple(Unsupported(*entry) for entry in self._script["unsupported"].items()),
            {"asked": " ".join(metric.name for metric in plan.metrics)},
        )

    def _factors(self) -> dict[str, float]:
        test = os.environ["PYTEST_CURRENT_TEST"]
        found: dict[str, float] = {}
        for part, factors in self._script["factors"].items():
            if part in test:
                found |= factors
        return found


def pytest_gpuperf_collector(config: pytest.Config) -> ScriptedCollector | None:
    """Offers the scripted device where `device.json` describes one."""
    file = config.rootpath / "device.json"
    if not file.exists():
        return None
    return ScriptedCollector({**A100, **json.loads(file.read_text(encoding="utf-8"))})
