"""Workers that begin at once, again and again: no GPU is ever held by two of them.

`python -m tests.allotting 1000` starts four workers a thousand times, in processes of their own on
hosts of one to eight scripted GPUs. Each runs tests that hold one GPU or several, and leaves a file
under the name of each GPU for as long: who finds one there has been given a GPU twice. Now and then
one is killed in the middle of a test. Prints what was done, and exits with 1 where a GPU was given
twice or a worker did not end.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from pytest_gpuperf.measure.device import allotment
from pytest_gpuperf.measure.device.nvml import VisibleGpu
from pytest_gpuperf.model.measurement import Device
from tests import ROOT

WORKERS = 4
TESTS = 4
DEVICE = Device("sm90", "NVIDIA H200", "nvidia-h200", "scripted")
TWICE, KILLED = 7, 9
"""Exit codes."""
_PATIENCE_S = 60.0


def gpus(count: int) -> list[VisibleGpu]:
    """So many of them."""
    return [VisibleGpu(f"GPU-{number}", DEVICE, frozenset()) for number in range(count)]


def work(own: allotment.Allotment, wanted: Sequence[int], dies: bool) -> None:
    """What a worker does: a test for each number of GPUs that is wanted, and dies in the last."""
    folder = Path(own.folder)
    for number, count in enumerate(wanted):
        with own.holding(count) as held:
            if held[0] != own.own or len({*held}) != count:
                os._exit(TWICE)
            if dies and number == len(wanted) - 1:
                os._exit(KILLED)
            used = [folder / f"{uuid}.used" for uuid in held]
            try:
                for file in used:
                    file.touch(exist_ok=False)
            except FileExistsError:
                os._exit(TWICE)
            os.sched_yield()
            for file in used:
                file.unlink()
    os._exit(0)


def start(seed: int) -> list[int | None]:
    """Starts four workers at once, and their exit codes; None of one that did not end."""
    drawn = random.Random(seed)
    host = gpus(drawn.randint(1, 8))
    fork = multiprocessing.get_context("fork")
    with TemporaryDirectory() as folder:
        workers = []
        for own in allotment.deal(host, WORKERS, Path(folder), [frozenset({0})]):
            wanted = [drawn.choice((1, 1, 2, 4, 8)) for _ in range(TESTS)]
            fitting = [min(count, len(host)) for count in wanted]
            workers.append(fork.Process(target=work, args=(own, fitting, drawn.random() < 0.1)))
        for worker in workers:
            worker.start()
        end = time.monotonic() + _PATIENCE_S
        for worker in workers:
            worker.join(max(end - time.monotonic(), 0))
        codes = [worker.exitcode for worker in workers]
        for worker in workers:
            worker.kill()
    return codes


def main(arguments: Sequence[str]) -> int:
    """Prints how many starts there were, and how many of them went wrong."""
    count = int(arguments[0]) if arguments else 1000
    begun = time.monotonic()
    every = [start(seed) for seed in range(count)]
    died = sum(code == KILLED for codes in every for code in codes)
    wrong = [seed for seed, codes in enumerate(every) if not {*codes} <= {0, KILLED}]
    print(
        f"{count} starts of {WORKERS} workers, {TESTS} tests each, in "
        f"{time.monotonic() - begun:.0f} s; {died} workers were killed; GPUs given twice, or "
        f"workers that did not end, in {len(wrong)} starts{f': {wrong[:20]}' if wrong else ''}"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1:]))
