"""A thousand measurements in one process: what grows, and what becomes slower.

    python -m benchmarks.growth [--tests 1000] [--gpu-arch auto]

A session of so many tests, each of which measures a small step; on a GPU products of matrices. By
hundreds: the median time of a test, and what the process has of the host's memory and of the
device's after the last of them. The first hundred loads what is loaded once, so all is held against
the second: memory as it is after the last, and the time that the trend of all of them comes to
there, by the median of the slopes between any two (Theil 1950, Sen 1968): hundreds of tests on a
machine that others use were seen to differ by 5 % either way, without one being later than another.
Exits with 1 where memory grew by more than 1 %, or a test takes 2 % longer.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from scipy.stats import theilslopes

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
    return lambda: [factor @ factor for _ in range(10)]


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


class SessionFailed(Exception):
    """The session did not end well; all its hundreds may be there."""


MOST = Hundred(seconds=0.02, host_bytes=0.01, device_bytes=0.01)
"""As shares of what the second hundred had."""


def grown(made: Sequence[Hundred]) -> Hundred:
    """By how much the last is more than the second, as shares; seconds by the trend of all."""
    second, last = made[1], made[-1]
    seconds = [one.seconds for one in made[1:]]
    rise = float(theilslopes(seconds).slope) * (len(seconds) - 1)
    return Hundred(
        rise / median(seconds),
        last.host_bytes / second.host_bytes - 1,
        last.device_bytes / second.device_bytes - 1 if second.device_bytes else 0.0,
    )


def hundreds(tests: int, arch: str) -> Iterator[Hundred]:
    """Runs the session in a folder of its own; each hundred as soon as it is there.

    Raises SessionFailed after the last of them.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for module, text in (("conftest", _CONFTEST), ("test_growth", _TESTS)):
            (folder / f"{module}.py").write_text(text.replace("{tests}", str(tests)))
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "rows").touch()
        command = [sys.executable, "-m", "pytest", "-q", "--gpuperf-no-judge", "--gpu-arch", arch]
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": paths}
        with (
            (folder / "log").open("w+") as log,
            subprocess.Popen(
                command, cwd=folder, env=environment, stdout=log, stderr=log
            ) as session,
        ):
            seen = 0
            while seen < tests:
                ended = session.poll() is not None
                lines = (folder / "rows").read_text().splitlines()
                for first in range(seen, len(lines) - HUNDRED + 1, HUNDRED):
                    rows = [tuple(map(float, line.split())) for line in lines[first:][:HUNDRED]]
                    times, host, device = zip(*rows, strict=True)
                    yield Hundred(median(times), host[-1], device[-1])
                    seen = first + HUNDRED
                if ended:
                    break
                time.sleep(1)
            if code := session.wait():
                log.seek(0)
                raise SessionFailed(f"{log.read()[-2000:]}\nthe session ended with {code}")


def main(arguments: list[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tests", type=int, default=1000, help="a multiple of 100, from 300 on")
    parser.add_argument("--gpu-arch", default="auto")
    options = parser.parse_args(arguments)
    print("| tests | ms per test | host, MiB | device, MiB |")
    print("| ---: | ---: | ---: | ---: |")
    made: list[Hundred] = []
    failure: SessionFailed | None = None
    try:
        for one in hundreds(options.tests, options.gpu_arch):
            made.append(one)
            sizes = f"{one.host_bytes / 2**20:.1f} | {one.device_bytes / 2**20:.1f}"
            print(f"| {len(made) * HUNDRED} | {1e3 * one.seconds:.1f} | {sizes} |", flush=True)
    except SessionFailed as error:
        failure = error
    if len(made) < 3:
        sys.exit(str(failure or "fewer than 300 tests have no trend"))
    rise = asdict(grown(made))
    print("from the second to the last:", ", ".join(f"{k} {v:+.2%}" for k, v in rise.items()))
    if failure:
        sys.exit(str(failure))
    return int(any(rise[name] > most for name, most in asdict(MOST).items()))


if __name__ == "__main__":
    sys.exit(main())
