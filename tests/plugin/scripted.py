"""A scripted device. Where a project's conftest.py takes it in, it answers in a GPU's place.

`device.json` in the root directory says what the device is called and what its counters read. The
step is really run, once per measurement, on the CPU; only the numbers are made up.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.errors import CountersUnavailable
from pytest_gpuperf.measure.collector import Collected, PhaseNames, Plan, Work
from pytest_gpuperf.model.measurement import STEP, Device, KernelTable, Launch, Sample, Unsupported
from pytest_gpuperf.model.metric import Metric

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
    "kernels": [],  # [["conv", 900, 5e6]]: name, microseconds, instructions; else one did it all
    "torch": False,  # whether fresh processes may import it
    "processes": [],  # [{"": {"cycles": 2}}, {}]: more factors for the first process, the second
}
_RATIOS = ("ipc",)
_FILE = Path("device.json")


class _NoTorch:
    """Keeps torch out of fresh processes: it would tell its version, and takes seconds to load."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        """Refuses torch, leaves everything else to others."""
        if name == "torch":
            raise ModuleNotFoundError(name)


if _FILE.exists() and not json.loads(_FILE.read_text(encoding="utf-8")).get("torch"):
    sys.meta_path.insert(0, _NoTorch())


class ScriptedCollector:
    """Runs the step once and returns what the script says. A `measure.collector.Collector`."""

    name = "scripted"
    torch_device = "cpu"

    def __init__(self, script: dict[str, Any]) -> None:
        self._script = script
        self._number = _number_of_this_process() if script["processes"] else 0

    def device(self) -> Device:
        name: str = self._script["name"]
        return Device(self._script["arch"], name, architectures.slug(name), "scripted")

    def software(self) -> dict[str, str]:
        return {"driver": "580.65"}

    def collect(self, work: Work, plan: Plan) -> Collected:
        if self._script["unavailable"]:
            raise CountersUnavailable(self._script["unavailable"], "Ask for permission")
        heard = PhaseNames()
        work.progress.begins("counting", "round 1 of 1, pass 1 of 1")
        work.reset()
        work.barrier()
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

    def kernels(self, work: Work, metrics: tuple[Metric, ...]) -> KernelTable:
        """The launches of the script, or one, which did all of the step."""
        work.reset()
        work.step()
        if self._script["kernels"]:
            return self._scripted_kernels(metrics)
        counters = self._script["counters"]
        values = tuple(float(counters[metric.name]) for metric in metrics)
        launch = Launch(0, "kernel", (1, 1, 1), (32, 1, 1), float(counters["duration"]), values)
        return KernelTable(("step_kernel",), tuple(m.name for m in metrics), (launch,), 0.0)

    def _scripted_kernels(self, metrics: tuple[Metric, ...]) -> KernelTable:
        names = tuple(dict.fromkeys(name for name, _, _ in self._script["kernels"]))
        launches = []
        for name, microseconds, instructions in self._script["kernels"]:
            counted = {"cycles": 2000.0 * microseconds, "instructions": float(instructions)}
            values = tuple(counted.get(metric.name) for metric in metrics)
            shape = ((8, 1, 1), (128, 1, 1))
            launches.append(
                Launch(names.index(name), "kernel", *shape, 1000.0 * microseconds, values)
            )
        return KernelTable(names, tuple(metric.name for metric in metrics), tuple(launches), 0.0)

    def _factors(self) -> dict[str, float]:
        test = os.environ["PYTEST_CURRENT_TEST"]
        own = self._script["processes"][self._number] if self._script["processes"] else {}
        factors: dict[str, float] = {}
        for part, of_part in (*self._script["factors"].items(), *own.items()):
            if part in test:
                factors |= of_part
        return factors


def _number_of_this_process() -> int:
    """0 in the first process that asks, 1 in the second, and so on."""
    for number in count():
        try:
            Path(f"process-{number}").touch(exist_ok=False)
        except FileExistsError:
            continue
        return number
    raise AssertionError


def pytest_gpuperf_collector(config: pytest.Config) -> ScriptedCollector | None:
    """Offers the scripted device where `device.json` describes one."""
    file = config.rootpath / "device.json"
    if not file.exists():
        return None
    return ScriptedCollector({**A100, **json.loads(file.read_text(encoding="utf-8"))})
