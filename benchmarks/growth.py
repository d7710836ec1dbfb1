"""A thousand measurements in one process: what grows, and what becomes slower.

    python -m benchmarks.growth [--tests 1000] [--gpu-arch auto] [--rows FILE] [--with FILE ...]

A session of so many tests, each of which measures a small step; on a GPU products of matrices. By
hundreds: the median time of a test, its processor time, that of two fixed pieces of work between
the tests, and what the process has of the host's memory and of the device's after the last of them.
The first hundred loads what is loaded once, and after each test of a session's first second of
drafts the run is written; so memory after the last is held against that after the second hundred,
and `trend` is that of the tests after it. Exits with 1 where memory grew by more than 1 %, or where
it is not excluded, with 97.5 %, that a test takes 2 % longer or 2 % more of the processor. The
sessions whose rows are given besides count too: their trends are pooled with this one's, by their
intervals.

Some of it is nobody's leak: what a process keeps of each test, pytest's reports above all, lies
between the blocks of the heap, and code that asks for many blocks becomes slower, CUPTI's planning
of metrics for example, also after tests that measure nothing.
"""

from __future__ import annotations

import argparse
import csv
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt
from scipy import stats

from benchmarks.projects import environment, project

HUNDRED = 100
FEWEST = 4 * HUNDRED
BLOCK = 20
"""Tests whose middle half, by its mean, is a point of a trend: what disturbs one does not show."""
Floats = npt.NDArray[np.float64]
_ROUNDING = 1e-24
"""A sum of squares of so many shares is no noise."""

_CONFTEST = """
import mmap, os, sys, time, zlib

import pytest


def device_bytes():
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free


TEXT = b"".join(b"%d" % (n * 7919 % 10007) for n in range(20_000))
NUMBERS = [n * 7919 % 10007 for n in range(10_000)]


def fixed_work():
    # Asks for hardly any objects: a heap that has grown makes it no slower.
    begun = time.perf_counter()
    zlib.compress(TEXT)
    sorted(NUMBERS)
    sum(range(100_000))
    return time.perf_counter() - begun


def fixed_pages():
    # The driver prepares memory for a profiler's records: most of a test's time is the kernel's.
    begun = time.perf_counter()
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    mmap.mmap(-1, 2**23, flags=flags).close()
    return time.perf_counter() - begun


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol():
    fixed, pages = fixed_work(), fixed_pages()
    cpu, begun = time.process_time(), time.perf_counter()
    yield
    took, used = time.perf_counter() - begun, time.process_time() - cpu
    fixed, pages = (fixed + fixed_work()) / 2, (pages + fixed_pages()) / 2
    with open("/proc/self/statm") as file:
        host_bytes = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    with open("rows", "a") as rows:
        print(took, used, fixed, pages, host_bytes, device_bytes(), file=rows)
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
    gpuperf.measure(lambda: None if step_on(gpuperf.torch_device.type)() else None)
"""


@dataclass(frozen=True)
class Row:
    """One test."""

    seconds: float
    cpu_seconds: float
    """Of the process, all its threads, in user and system mode."""
    fixed_seconds: float
    """Of a fixed piece of work just before and after: the mean."""
    pages_seconds: float
    """Likewise of 8 MiB that the kernel fills with zeroes."""
    host_bytes: float
    device_bytes: float


class SessionFailed(Exception):
    """The session did not end well; all its hundreds may be there."""


MOST_BYTES, MOST_SECONDS = 0.01, 0.02
"""Shares."""


@dataclass(frozen=True)
class Trend:
    """What the last test takes more than the first, as a share; with 95 % within `half`."""

    share: float
    half: float

    def __str__(self) -> str:
        return f"{self.share:+.2%} +- {self.half:.2%}"


def trend(seconds: Sequence[float] | Floats, *fixed: Sequence[float] | Floats) -> Trend:
    """The straight line through the points of blocks of tests, over all of them.

    Machines that others use are faster in one minute than in another: hundreds of tests that take
    330 ms were seen to differ by 5 %, without one being later than another. So what fixed pieces of
    work between them take is in the regression, by as much as it explains: least squares over
    position and those. The standard error is widened for what neighbours share (of first order:
    Bretherton et al. 1999, "The effective number of spatial degrees of freedom", eq. 31).
    """
    blocks = len(seconds) // BLOCK
    times, *works = (
        stats.trim_mean(np.reshape(values[-blocks * BLOCK :], (blocks, BLOCK)), 0.25, axis=1)
        for values in (seconds, *fixed)
    )
    times = times / np.median(times)
    position = np.linspace(-0.5, 0.5, blocks)
    design = np.column_stack(
        [np.ones(blocks), position, *(work / work.mean() - 1 for work in works)]
    )
    # Work that takes always the same explains nothing, and is no column of its own.
    inverse = np.linalg.pinv(design.T @ design)
    slopes = inverse @ design.T @ times
    rest = times - design @ slopes
    squares = float(rest @ rest)
    if squares < _ROUNDING:
        return Trend(float(slopes[1]), 0.0)
    shared = max(0.0, float(rest[1:] @ rest[:-1]) / squares)
    free = blocks * (1 - shared) / (1 + shared) - design.shape[1]
    if free < 1:
        return Trend(float(slopes[1]), math.inf)
    error = math.sqrt(squares / free * float(inverse[1, 1]))
    return Trend(float(slopes[1]), float(stats.t.ppf(0.975, free)) * error)


def pooled(trends: Sequence[Trend]) -> Trend:
    """The trend of several sessions, each weighed by w = 1 / half^2."""
    weights = np.array([max(one.half, _ROUNDING) ** -2 for one in trends])
    share = float(weights @ [one.share for one in trends] / weights.sum())
    return Trend(share, float(weights.sum() ** -0.5))


def hundreds(tests: int, arch: str) -> Iterator[list[Row]]:
    """Runs the session in a folder of its own; each hundred as soon as it is there.

    Raises SessionFailed after the last of them.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = project(Path(name), _TESTS.format(tests=tests), _CONFTEST)
        (folder / "rows").touch()
        command = [sys.executable, "-m", "pytest", "-q", "--gpuperf-no-judge", "--gpu-arch", arch]
        with (
            (folder / "log").open("w+") as log,
            subprocess.Popen(
                command, cwd=folder, env=environment(), stdout=log, stderr=log
            ) as session,
        ):
            seen = 0
            while seen < tests:
                ended = session.poll() is not None
                lines = (folder / "rows").read_text().splitlines()
                for first in range(seen, len(lines) - HUNDRED + 1, HUNDRED):
                    yield [Row(*map(float, line.split())) for line in lines[first:][:HUNDRED]]
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
    parser.add_argument(
        "--tests", type=int, default=1000, help=f"a multiple of {HUNDRED}, from {FEWEST} on"
    )
    parser.add_argument("--gpu-arch", default="auto")
    parser.add_argument("--rows", type=Path, help="a file for what each test took, as CSV")
    parser.add_argument(
        "--with",
        dest="others",
        type=Path,
        nargs="+",
        default=[],
        help="such files of other sessions, whose trends are pooled with this one's",
    )
    options = parser.parse_args(arguments)
    others = [read(file) for file in options.others]
    print("| tests | ms per test | processor | fixed work | pages | host, MiB | device, MiB |")
    print(f"|{' ---: |' * 7}")
    rows: list[Row] = []
    failure: SessionFailed | None = None
    with kept(options.rows) as keep:
        try:
            for ones in hundreds(options.tests, options.gpu_arch):
                rows += ones
                keep(ones)
                print(f"| {len(rows)} | {line(ones)} |", flush=True)
        except SessionFailed as error:
            failure = error
    if len(rows) < FEWEST:
        sys.exit(str(failure or f"fewer than {FEWEST} tests have no trend"))
    said, good = judged(rows, *others)
    print(said)
    if failure:
        sys.exit(str(failure))
    return int(not good)


@contextmanager
def kept(file: Path | None) -> Iterator[Callable[[Sequence[Row]], None]]:
    """Writes rows into `file` as they come: a session that is cut off has not run in vain."""
    if file is None:
        yield lambda _: None
        return
    with file.open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(field.name for field in fields(Row))

        def keep(rows: Sequence[Row]) -> None:
            table.writerows(map(astuple, rows))
            stream.flush()

        yield keep


def line(rows: Sequence[Row]) -> str:
    """The cells of a hundred."""
    times = zip(*(astuple(one)[:4] for one in rows), strict=True)
    sizes = (rows[-1].host_bytes, rows[-1].device_bytes)
    cells = [f"{1e3 * median(values):.4g}" for values in times]
    return " | ".join([*cells, *(f"{size / 2**20:.1f}" for size in sizes)])


def read(file: Path) -> list[Row]:
    """The rows that a session has left."""
    with file.open(newline="") as lines:
        rows = csv.DictReader(lines)
        return [Row(**{name: float(cell) for name, cell in row.items()}) for row in rows]


def judged(*sessions: Sequence[Row]) -> tuple[str, bool]:
    """What grew and what became slower, in a sentence, and whether that is within the bounds.

    Memory as in the session in which it grew most.
    """
    host, device = (
        max(grown) for grown in zip(*(growth_of(rows) for rows in sessions), strict=True)
    )
    by_session = [trends_of(rows) for rows in sessions]
    trends = [pooled(ones) for ones in zip(*by_session, strict=True)]
    said = f"host {host:+.2%}, device {device:+.2%}, time {trends[0]}, of the processor {trends[1]}"
    if len(sessions) > 1:
        each = "; ".join(f"time {time}, of the processor {cpu}" for time, cpu in by_session)
        said += f"\neach of {len(sessions)} sessions: {each}"
    slower = any(one.share + one.half > MOST_SECONDS for one in trends)
    return said, not (slower or max(host, device) > MOST_BYTES)


def growth_of(rows: Sequence[Row]) -> tuple[float, float]:
    """What the host's and the device's memory grew by after the second hundred, as shares."""
    second, last = rows[2 * HUNDRED - 1], rows[-1]
    device = last.device_bytes / second.device_bytes - 1 if second.device_bytes else 0.0
    return last.host_bytes / second.host_bytes - 1, device


def trends_of(rows: Sequence[Row]) -> tuple[Trend, Trend]:
    """Of a test's time, and of its processor time."""
    later = rows[2 * HUNDRED :]
    fixed = [one.fixed_seconds for one in later], [one.pages_seconds for one in later]
    time, cpu = [one.seconds for one in later], [one.cpu_seconds for one in later]
    return trend(time, *fixed), trend(cpu, *fixed)


if __name__ == "__main__":
    sys.exit(main())
