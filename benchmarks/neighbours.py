"""Whether a measurement notices the worker beside it, and that it is bound to some processors.

    python -m benchmarks.neighbours --record FOLDER [--seconds 300] [--beside ARG ...]
                                    -- PYTEST-ARGS
    python -m benchmarks.neighbours --from FOLDER

The first takes two GPUs, and what two workers of a session would have there. One session measures
the tests of PYTEST-ARGS on one of them, again and again. On the other, and on the other worker's
processors, sessions of --beside (default: both suites) begin one after the other. In an order drawn
by lot they go on or are halted while all the tests are measured once, and the measuring process is
bound to its share of the processors, as a worker among several is, or free, as a single one is.
Then, or with --from, it prints for each test and metric what either makes of the median and of the
spread. Exits with 1 where a median is another, or a spread wider, than chance makes it once in
twenty times over all that is printed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, stdev

import pytest
from scipy.stats import mannwhitneyu

from benchmarks.projects import ROOT, environment
from pytest_gpuperf.errors import GpuperfError
from pytest_gpuperf.measure.device import allotment, nvml
from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.storage import run_files

RUN = "measured.json.xz"
TIMES = ("kernel_time", "step_time")
HALTED, BESIDE = NEIGHBOUR = ("halted", "beside")
FREE, BOUND = PROCESSORS = ("free", "bound")
_TOLD = "GPUPERF_NEIGHBOURS"
"""The environment variable that tells the measuring process what it has to know."""
_MOST = 1000
"""More turns than there is time for."""
_BEGUN: pytest.StashKey[float] = pytest.StashKey()
_CHANCE = 0.05
_SEED = 23
_NOTHING = 4


@dataclass(frozen=True)
class Told:
    """What the measuring process has to know."""

    neighbour: int
    """The process group of the sessions on the other GPU."""
    seconds: float
    """No turn begins later, from the first on."""
    turns: int
    bound: Sequence[int]
    """The processors of one worker of two."""
    free: Sequence[int]
    """All of them."""


def turns(count: int) -> list[str]:
    """The names of so many turns: all four kinds, as often, in an order drawn by lot."""
    lot = random.Random(_SEED)
    kinds = list(itertools.product(NEIGHBOUR, PROCESSORS))
    drawn = [kind for _ in range(-(-count // 4)) for kind in lot.sample(kinds, 4)]
    return [f"{number}.{'.'.join(kind)}" for number, kind in enumerate(drawn[:count])]


def _told() -> Told:
    return Told(**json.loads(os.environ[_TOLD]))


@pytest.fixture(autouse=True, params=turns(_told().turns) if _TOLD in os.environ else [])
def _turn(request: pytest.FixtureRequest) -> None:
    """Halts the neighbour or has it go on, and binds this process or frees it."""
    told = _told()
    now = time.monotonic()
    if now - request.config.stash.setdefault(_BEGUN, now) > told.seconds:
        request.session.shouldstop = "the time is over"
        pytest.skip("the time is over")
    _, neighbour, processors = request.param.split(".")
    os.killpg(told.neighbour, signal.SIGSTOP if neighbour == HALTED else signal.SIGCONT)
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread.name), told.bound if processors == BOUND else told.free)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of a turn, and then those of the next."""
    items.sort(key=lambda item: int(_parts(item.nodeid)[1].split(".")[0]))


def record(
    folder: Path, seconds: float, beside: Sequence[str], args: Sequence[str], most: int = _MOST
) -> None:
    """Measures for so long, or in so many turns.

    Raises GpuperfError without two GPUs, and where a test of the sessions beside fails.
    """
    gpus = nvml.visible_gpus()[:2]
    if len(gpus) < 2:
        raise GpuperfError(f"two GPUs are needed, and {len(gpus)} are here")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as dealing:
        dealt = allotment.deal(gpus, 2, Path(dealing), allotment.own_cores())
    every = sorted(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    measuring, other = (
        ["taskset", "-c", ",".join(map(str, own.cpus or every)), *command] for own in dealt
    )
    measuring += ["-p", "benchmarks.neighbours", "--gpuperf-missing=warn"]
    other += ["--gpuperf-no-judge", *beside]
    variables = [
        {"CUDA_VISIBLE_DEVICES": own.own, "OMP_NUM_THREADS": str(own.threads or len(every))}
        for own in dealt
    ]
    with (folder / "beside.log").open("wb") as log:
        neighbour = subprocess.Popen(
            ["sh", "-c", 'while "$@"; do :; done', "sh", *other],
            cwd=ROOT,
            env=environment(**variables[1]),
            stdout=log,
            start_new_session=True,
        )
        try:
            told = Told(neighbour.pid, seconds, most, dealt[0].cpus or every, every)
            subprocess.run(
                [*measuring, f"--gpuperf-run={folder / RUN}", *args],
                cwd=ROOT,
                env=environment(**variables[0], **{_TOLD: json.dumps(asdict(told))}),
                check=False,
            )
            if neighbour.poll() is not None:
                raise GpuperfError(f"a session beside failed, see {log.name}")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(neighbour.pid, signal.SIGKILL)
            neighbour.wait()


@dataclass(frozen=True)
class Noticed:
    """A metric of a test with something, against the same without it."""

    change: float
    """Of the median, relative."""
    spreads: tuple[float, float]
    """Standard deviations of the logarithms, without it and with it."""
    chances: tuple[float, float]
    """How often chance makes such a change, and such a difference of spreads: by ranks, of what was
    measured and of its distance to the median, as a host holds up one step of a hundred by far more
    than others."""
    counts: tuple[int, int]

    def what(self, bound: float) -> str:
        """What is too seldom chance's: the median is another, or the spread is wider."""
        wider = self.chances[1] < bound and self.spreads[1] > self.spreads[0]
        return " and ".join(
            name for name, seen in (("median", self.chances[0] < bound), ("spread", wider)) if seen
        )


def noticed(run: Run) -> dict[tuple[str, str, str], Noticed]:
    """By test, metric, and what was there or not: the neighbour, or a share of the processors."""
    logs: dict[tuple[str, str, str], list[float]] = {}
    for test, metric, kinds, value in _measured(run):
        for kind in kinds:
            logs.setdefault((test, metric, kind), []).append(math.log(value))
    found = {}
    for test, metric in sorted({key[:2] for key in logs}):
        for pair in (NEIGHBOUR, PROCESSORS):
            without, having = (logs.get((test, metric, kind), []) for kind in pair)
            if min(len(without), len(having)) < 2 or len({*without, *having}) < 2:
                continue
            found[test, metric, pair[1]] = Noticed(
                change=math.expm1(median(having) - median(without)),
                spreads=(stdev(without), stdev(having)),
                chances=(
                    _chance(without, having),
                    _chance(*([abs(x - median(of)) for x in of] for of in (without, having))),
                ),
                counts=(len(without), len(having)),
            )
    return found


def _chance(one: Sequence[float], other: Sequence[float]) -> float:
    return float(mannwhitneyu(one, other).pvalue)


def _measured(run: Run) -> Iterator[tuple[str, str, list[str], float]]:
    """Test, metric, what was there, and the median."""
    for measurement in run.measurements:
        test, turn = _parts(measurement.test)
        for sample in measurement.samples:
            if sample.phase == STEP and sample.metric in TIMES:
                yield test, sample.metric, turn.split(".")[1:], median(sample.values)


def _parts(test: str) -> tuple[str, str]:
    """A test's name as it is without turns, and its turn's."""
    name, _, parameters = test.rpartition("::")[2].rstrip("]").partition("[")
    named = parameters.split("-")
    (turn,) = (part for part in named if part.count(".") == 2)
    others = "-".join(part for part in named if part != turn)
    return f"{name}[{others}]" if others else name, turn


def table(folder: Path) -> tuple[str, bool]:
    """What was recorded, as Markdown, and whether nothing was noticed. Raises UsageFailure."""
    found = noticed(run_files.load(folder / RUN))
    bound = _CHANCE / 2 / max(len(found), 1)
    heading = ("test", "metric", "", "median", "p", "spread", "without", "p", "noticed")
    lines = [f"| {' | '.join(heading)} |", "| --- | --- | --- |" + " ---: |" * 5 + " --- |"]
    for (test, metric, kind), of in found.items():
        cells = (
            test,
            f"`{metric}`",
            kind,
            f"{100 * of.change:+.2f} %",
            f"{of.chances[0]:.2g}",
            f"{100 * of.spreads[1]:.2g} %",
            f"{100 * of.spreads[0]:.2g} %",
            f"{of.chances[1]:.2g}",
            of.what(bound) or "nothing",
        )
        lines.append(f"| {' | '.join(cells)} |")
    counts = {count for of in found.values() for count in of.counts}
    lines += [
        "",
        f"Each {' to '.join(map(str, sorted({min(counts), max(counts)})))} times with it and "
        f"without; noticed is a p below {bound:.2g}."
        if counts
        else "Nothing varied.",
    ]
    return "\n".join(lines) + "\n", not any(of.what(bound) for of in found.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Records, or prints what was recorded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--record", type=Path, metavar="FOLDER", help="measure there")
    what.add_argument("--from", dest="folder", type=Path, metavar="FOLDER", help="print that")
    parser.add_argument("--seconds", type=float, default=300.0, help="to measure for")
    parser.add_argument(
        "--beside", action="append", metavar="ARG", help="of the sessions on the other GPU"
    )
    parser.add_argument("args", nargs="*", metavar="PYTEST-ARGS")
    options = parser.parse_args(arguments)
    try:
        if options.record:
            folder = options.record.resolve()
            record(folder, options.seconds, options.beside or ["suites"], options.args)
        lines, good = table(options.folder or options.record)
    except GpuperfError as error:
        print(error, file=sys.stderr)
        return _NOTHING
    print(lines, end="")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
