"""A thousand measurements in one process: what grows, and what becomes slower.

    python -m benchmarks.growth [--tests 1000] [--gpu-arch auto]

A session of so many tests, each of which measures a small step; on a GPU products of matrices. By
hundreds: the median time of a test, and what the process has of the host's memory and of the
device's after the last of them. The first hundred loads what is loaded once, so all is held against
the second. Exits with 1 where memory grew by more than 1 %, or a test takes 2 % longer.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import median

HUNDRED = 100
ROOT = Path(__file__).resolve().parent.parent

_CONFTEST = """
import os, sys, time

import pytest
from pytest_gpuperf.plugin import hooks


def pytest_addoption(pluginmanager):
    if not pluginmanager.has_plugin("gpuperf"):
        pluginmanager.register(hooks, "gpuperf")


def device_bytes():
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol():
    begun = time.perf_counter()
    yield
    took = time.perf_counter() - begun
    with open("/proc/self/statm") as file:
        host_bytes = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    with open("rows", "a") as rows:
        print(took, host_bytes, device_bytes(), file=rows)
    return True
"""
_TESTS = """
from functools import lru_cache

import pytest


@lru_cache
def step_on(device):
    if device == "cpu":
        return lambda: sum(range(100_000))
    import torch

    factor = torch.rand(1024, 1024, device=device)
    return lambda: [factor @ factor for _ in range(50)]


@pytest.mark.parametrize("number", range({tests}))
def test_step(gpuperf, number):
    gpuperf.measure(lambda: None if step_on(gpuperf.torch_device)() else None)
"""


@dataclass(frozen=True)
class Hundred:
    """Tests that ran one after the other."""

    seconds: float
    """Of a test, the median."""
    host_bytes: float
    device_bytes: float

    def over(self, other: Hundred) -> dict[str, float]:
        """By how much each is more than of `other`, as a share."""
        mine, theirs = astuple(self), astuple(other)
        return {
            field.name: one / two - 1 if two else 0.0
            for field, one, two in zip(fields(self), mine, theirs, strict=True)
        }


MOST = Hundred(seconds=0.02, host_bytes=0.01, device_bytes=0.01)
"""As shares of what the second hundred had."""


def hundreds(tests: int, arch: str) -> list[Hundred]:
    """Runs the session in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("conftest", _CONFTEST), ("test_growth", _TESTS)):
            Path(folder, f"{name}.py").write_text(text.replace("{tests}", str(tests)))
        Path(folder, "pytest.ini").write_text("[pytest]\n")
        command = [sys.executable, "-m", "pytest", "-q", "--gpuperf-no-judge", "--gpu-arch", arch]
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        ended = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": paths},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if ended.returncode:
            sys.exit(ended.stdout[-2000:])
        rows = [
            tuple(map(float, line.split()))
            for line in Path(folder, "rows").read_text().splitlines()
        ]
    made = []
    for first in range(0, len(rows) - len(rows) % HUNDRED, HUNDRED):
        times, host, device = zip(*rows[first : first + HUNDRED], strict=True)
        made.append(Hundred(median(times), host[-1], device[-1]))
    return made


def main(arguments: list[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tests", type=int, default=1000)
    parser.add_argument("--gpu-arch", default="auto")
    options = parser.parse_args(arguments)
    made = hundreds(options.tests, options.gpu_arch)
    print("| tests | ms per test | host, MiB | device, MiB |")
    print("| ---: | ---: | ---: | ---: |")
    for number, one in enumerate(made, 1):
        sizes = f"{one.host_bytes / 2**20:.1f} | {one.device_bytes / 2**20:.1f}"
        print(f"| {number * HUNDRED} | {1e3 * one.seconds:.1f} | {sizes} |")
    grown = made[-1].over(made[1])
    print("of the last over the second:", ", ".join(f"{k} {v:+.2%}" for k, v in grown.items()))
    return int(any(grown[field.name] > getattr(MOST, field.name) for field in fields(MOST)))


if __name__ == "__main__":
    sys.exit(main())
