"""How much of a step's processor time goes where no operator is counted, and where that is.

By the system's clocks of threads and processes, so on Linux alone. A library's own threads, as
OpenMP's are, belong to whoever called it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import active_children
from pathlib import Path
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from pytest_gpuperf.errors import UnsoundStep
from pytest_gpuperf.measure.cpu.dispatch import StepCounter, replaced

OUTSIDE = "code outside of PyTorch"
THREADS = "threads that the step did not start"
PROCESSES = "other processes"
LOADERS = "a DataLoader's workers"
NOTHING = "all of it, since it calls no operator of PyTorch"

_LEAST_NS = 10_000_000
"""Less than this is nobody's step."""
_NOTED = {OUTSIDE: 0.5, THREADS: 0.1, PROCESSES: 0.1, LOADERS: 0.1}
"""The share of the step's time from which on a place is said. Outside of PyTorch is Python too,
which takes 25 to 40 % of a small step by itself while operators are counted."""
_REFUSED = 0.9
"""The share that makes a step unsound: of what is left no slowdown would be seen."""


@dataclass
class Unseen:
    """The processor time of one execution that `counter` counts, in nanoseconds."""

    counter: StepCounter
    total: int = 0
    places: dict[str, int] = field(default_factory=dict)
    """What was not seen."""
    loads: bool = False
    """Whether a DataLoader was asked: its work is a part of many steps, here or by workers."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """What is used in the block is the step's."""
        if sys.platform != "linux":
            yield
            return
        take = _BaseDataLoaderIter.__next__

        def taken(loader: Any) -> Any:
            self.loads = True
            return take(loader)

        before, threads = _used(), _threads()
        with replaced(_BaseDataLoaderIter, "__next__", taken):
            yield
        after = _used()
        own = self.counter.own_ns
        elsewhere = sum(
            max(0, used - threads.get(thread, 0) - own.get(thread, 0))
            for thread, used in _threads().items()
            if thread != threading.get_native_id()
        )
        counted = sum(own.values())
        here, processes = (now - then for now, then in zip(after, before, strict=True))
        # What is left of the process's time are the threads of libraries, by who may call them.
        each = here / max(1, counted + elsewhere)
        self.total = here + processes
        self.places = {
            OUTSIDE: int(each * max(0, counted - self.counter.inside_ns)),
            THREADS: int(each * elsewhere),
            LOADERS if self.loads else PROCESSES: processes,
        }

    @property
    def is_most(self) -> bool:
        """Whether too little is left to be judged alone.

        Python between operators is no reason: what interprets them takes most of many small steps.
        """
        alone = self.counter.step.operators > 0
        lost = sum(ns for at, ns in self.places.items() if not (alone and at == OUTSIDE))
        return not self.loads and lost >= max(_LEAST_NS, _REFUSED * self.total)

    @property
    def noted(self) -> list[str]:
        """The places that are to be said."""
        least = {place: max(_LEAST_NS, share * self.total) for place, share in _NOTED.items()}
        return [place for place, ns in self.places.items() if ns >= least[place]]

    def __str__(self) -> str:
        into = [f"{ns / 1e6:.3g} ms in {at}" for at, ns in self.places.items() if ns > _LEAST_NS]
        return f"of {self.total / 1e6:.3g} ms of processor time, {' and '.join(into)}"


def part_unseen(rounds: Sequence[Unseen]) -> str:
    """The places where every round has a part of its time that was not seen, or "".

    Raises UnsoundStep where that is most of it. What calls no operator and takes no time is a stub.
    """
    last = rounds[-1]
    if all(unseen.is_most for unseen in rounds):
        raise UnsoundStep(
            f"most of the step is not seen: {last}, where no operator is counted. A slowdown there "
            "would fail no test. On a CPU what counts is the operators of PyTorch that the step "
            "calls itself, or in threads and pools that it gives work to. Give measure a step that "
            "computes with them"
        )
    if not last.counter.step.operators:
        return NOTHING
    return ", ".join(place for place in last.noted if all(place in one.noted for one in rounds))


def _threads() -> dict[int, int]:
    """What each thread of Python's has used, by its number in the system."""
    numbers = [thread.native_id for thread in threading.enumerate()]
    return {number: _clock(number, 6) for number in numbers if number}


def _used() -> tuple[int, int]:
    """What this process has used, and what all have that it started."""
    import resource

    children = {process.pid for process in active_children()}
    for file in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # a thread that ended
            children |= {*map(int, file.read_text(encoding="ascii").split())}
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended_ns = int((ended.ru_utime + ended.ru_stime) * 1e9)
    return time.process_time_ns(), ended_ns + sum(_clock(pid, 2) for pid in children if pid)


def _clock(number: int, kind: int) -> int:
    """Linux numbers the clock of a thread (6) or process (2) by its own number."""
    with suppress(OSError):  # it has ended
        return time.clock_gettime_ns(~number << 3 | kind)
    return 0
