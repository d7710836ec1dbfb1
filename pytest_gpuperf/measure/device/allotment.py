"""An allotment: the GPU of a session's worker, and how the workers share what the session has.

The controller of pytest-xdist makes one for each worker. A worker's test holds the GPU, or several,
against its siblings, from before its fixtures to after them: beside a measurement nothing of the
same session runs on its GPU. Against other sessions a measurement holds the device's node.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pytest_gpuperf.measure.device.nvml import VisibleGpu
from pytest_gpuperf.storage import files

VARIABLE = "GPUPERF_ALLOTMENT"
"""The environment variable that tells a worker."""

_SEVERAL = "several"
"""What is held by who collects several GPUs: one test at a time holds some and waits for others,
so that no two wait for each other."""
_NEXT = ".next"
"""After a GPU's name: what is held by who will have it next."""
_POLL_S = 0.05
_CORES = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


@dataclass(frozen=True)
class Allotment:
    """What one worker has of its session's GPUs."""

    gpus: tuple[str, ...]
    """UUIDs of the session's GPUs, the worker's own first, then those of no worker."""
    folder: str
    """The session's, with the files that are held in the GPUs' place."""
    controller: int
    """The pid of the process whose children the workers are."""
    beside: int = 0
    """How many other workers have the same GPU."""
    cpus: tuple[int, ...] = ()
    """The processors that the worker's threads run on; none: wherever they like."""
    threads: int = 0
    """The cores among them."""
    held: bool = False
    """Whether who started this process holds the GPUs for it, all of them."""

    @property
    def own(self) -> str:
        """The UUID of the GPU that CUDA shows to the worker."""
        return self.gpus[0]

    def to_text(self) -> str:
        """As a variable of the environment holds it."""
        return json.dumps(asdict(self))

    def passed_on(self, gpus: Sequence[str]) -> Allotment:
        """That of a process which is started by a test that holds these."""
        return replace(self, gpus=tuple(gpus), held=True)

    @contextmanager
    def holding(self, count: int = 1) -> Iterator[tuple[str, ...]]:
        """Holds the worker's GPU and as many others as make `count`, and says which.

        Waits for siblings, as long as that takes: for the own GPU first, in the order of who waits
        for it, and then for the first others that are free. What a worker held that died is free.
        """
        if self.held:
            yield self.gpus[:count]
            return
        with ExitStack() as held:
            self._take_own(held)
            others: tuple[str, ...] = ()
            while len(others) < count - 1:
                with ExitStack() as collecting:
                    if _tried(collecting, self._place(_SEVERAL)):
                        others = self._take_others(held, count - 1)
                        break
                held.close()  # who collects may want this one
                time.sleep(_POLL_S)
                self._take_own(held)
            yield (self.own, *others)

    def _take_own(self, held: ExitStack) -> None:
        with files.locked(self._place(f"{self.own}{_NEXT}"), patience=math.inf):
            held.enter_context(files.locked(self._place(self.own), patience=math.inf))

    def _take_others(self, held: ExitStack, count: int) -> tuple[str, ...]:
        """Holds so many other GPUs, each as soon as it is free and before it goes to anybody else.

        Until there are enough it is the next for all of them.
        """
        taken: list[str] = []
        with ExitStack() as collecting:
            first_in_line: dict[str, ExitStack] = {}
            while True:
                for uuid in self.gpus[1:]:
                    if uuid in taken:
                        continue
                    if uuid not in first_in_line:
                        line = ExitStack()
                        if not _tried(line, self._place(f"{uuid}{_NEXT}")):
                            continue
                        first_in_line[uuid] = collecting.enter_context(line)
                    if _tried(held, self._place(uuid)):
                        taken.append(uuid)
                        first_in_line.pop(uuid).close()
                    if len(taken) == count:
                        return tuple(taken)
                time.sleep(_POLL_S)

    def _place(self, name: str) -> Path:
        return place(Path(self.folder), name)


def _tried(held: ExitStack, place: Path) -> bool:
    try:
        held.enter_context(files.locked(place, patience=0))
    except files.Locked:
        return False
    return True


def place(folder: Path, name: str) -> Path:
    """The file in a session's folder that is held for the GPU of this UUID."""
    return folder / name.replace("/", "_")  # instances of MIG, before driver 470


def own() -> Allotment | None:
    """What this process was told; None where nobody shares GPUs with it.

    Takes it out of the environment: processes that a test starts are not meant.
    """
    return read(os.environ.pop(VARIABLE, None))


def read(text: str | None) -> Allotment | None:
    """What the variable says; None where there is none."""
    if text is None:
        return None
    told = json.loads(text)
    return Allotment(**{**told, "gpus": tuple(told["gpus"]), "cpus": tuple(told["cpus"])})


def deal(
    gpus: Sequence[VisibleGpu], workers: int, folder: Path, cores: Sequence[frozenset[int]]
) -> list[Allotment]:
    """The allotments of so many workers: each has the next GPU, and after the last the first again.

    Makes the files in `folder` that they hold. `cores` are the processors that the session may use,
    those of one core together: they are split among the workers whose GPUs are beside them. A
    single worker has them all, and so have workers of whom there are more than cores.
    """
    uuids = [gpu.uuid for gpu in gpus]
    for name in (_SEVERAL, *uuids, *(f"{uuid}{_NEXT}" for uuid in uuids)):
        place(folder, name).touch()
    by_gpu = [[core for core in cores if core & gpu.cpus] for gpu in gpus]
    # Where one GPU has none beside it, as far as anybody knows, no GPU has any to itself.
    near = [by_gpu[number % len(gpus)] if all(by_gpu) else cores for number in range(workers)]
    dealt = []
    for number in range(workers):
        own = number % len(gpus)
        neighbours = [other for other in range(workers) if near[other] == near[number]]
        rank, among = neighbours.index(number), len(neighbours)
        size = len(near[number])
        share = near[number][rank * size // among : (rank + 1) * size // among]
        bounded = workers > 1 and among <= size
        dealt.append(
            Allotment(
                # Who takes several begins with those that no worker has.
                gpus=tuple(dict.fromkeys((uuids[own], *uuids[workers:], *uuids))),
                folder=str(folder),
                controller=os.getpid(),
                beside=len(range(own, workers, len(gpus))) - 1,
                cpus=tuple(sorted(frozenset().union(*share))) if bounded else (),
                threads=len(share) if bounded else 0,
            )
        )
    return dealt


def own_cores() -> list[frozenset[int]]:
    """The processors that this process may use, those of one core together."""
    allowed = os.sched_getaffinity(0)
    cores: dict[str, set[int]] = {}
    for number in sorted(allowed):
        try:
            core = Path(_CORES.format(number)).read_text(encoding="ascii").strip()
        except OSError:
            core = str(number)
        cores.setdefault(core, set()).add(number)
    return [frozenset(core) for core in cores.values()]
