"""A host with several GPUs, all of them scripted, in this process and in those that it starts."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pytest_gpuperf.measure.instrument import STAND_IN
from tests.plugin.projects import Project
from tests.plugin.scripted import A100
from tests.scripted_nvml import Gpu, Library

HOST = """
import json, os, sys
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from tests.scripted_nvml import Gpu, Library

class Host(Library):
    # Every process that this one's parent has started is on every GPU.
    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        handle.processes = []
        for file in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has ended meanwhile
                name, _, of = file.read_text().rpartition(")")
                if int(of.split()[1]) == os.getppid():
                    handle.processes.append(int(name.split()[0]))
        return super().nvmlDeviceGetComputeRunningProcesses(handle)

sys.modules["pynvml"] = Host([
    Gpu(uuid, name="NVIDIA A100-SXM4-80GB", capability=(8, 0))
    for uuid in ("GPU-a", "GPU-b", "GPU-c")
])
VISIBLE = os.environ.get("CUDA_VISIBLE_DEVICES")
"""
"""At the end of a conftest file, which sees its environment as it is when it is imported."""


def has_gpus(project: Project, more: str = "") -> None:
    """The project's device is several, as `HOST` has them; `more` of the conftest file follows."""
    project.device()
    project.conftest(HOST)
    project.conftest(more)


def gpu(uuid: str, **others: Any) -> Gpu:
    return Gpu(uuid, **{"name": A100["name"], "capability": (8, 0), **others})


def on_three_gpus(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The project on a host with three GPUs, one of another kind."""
    hopper = Gpu("GPU-h", name="NVIDIA H200", capability=(9, 0))
    library = Library([gpu("GPU-a"), hopper, gpu("GPU-b")])
    monkeypatch.setitem(sys.modules, "pynvml", library)
    for variable in ("CUDA_VISIBLE_DEVICES", "PYTEST_XDIST_AUTO_NUM_WORKERS", STAND_IN):
        monkeypatch.delenv(variable, raising=False)
    return project
