"""Attached workers, as the test sees them: who is there, who is at work, and what they counted.

The other side is `attachment.py`, in the worker. They talk through a socket whose name is in the
environment of the processes that the test starts. Whether a block is counted the test says, and
how.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from threading import Lock, Thread
from types import TracebackType
from typing import Any

from pytest_gpuperf.errors import CountersUnavailable, UnsoundStep
from pytest_gpuperf.measure.meeting import Connection, accept, is_gone, listen, refuse
from pytest_gpuperf.model.measurement import STEP, Device, Peer, Sample

VARIABLE = "GPUPERF_WORKERS"
"""The environment variable with the name of the socket at which a test waits for its workers."""
CPU, CUPTI, TRACE = "cpu", "cupti", "trace"
"""By what a worker counts: torch's operators, NVIDIA's counters, or a trace of what it launches."""
NAME, BEGINS, ENDS = "name", "begins", "ends"
"""What a worker says: how it is called, and that a block begins and ends."""
_ON_A_CPU: Mapping[str, Any] = {"by": CPU}

Counts = dict[str, dict[str, float]]
"""What workers have counted in one execution: by worker and metric."""


class Workers:
    """The side of the test: a block in which processes are started that may be workers."""

    def __init__(self) -> None:
        self._socket = f"gpuperf-{os.getuid()}-{uuid.uuid4().hex}"
        self._listening = listen(self._socket)
        self._lock = Lock()
        self._how: Mapping[str, Any] | None = None
        """How workers count now; None while they do not."""
        self._only = ""
        self._at_work: list[str] = []
        self._lost: list[str] = []
        self._there: dict[str, tuple[str, int]] = {}
        """Of each worker that is there, by name: what it calls itself, and its pid."""
        self._known: set[str] = set()
        """The names of all that there were since the measurement began."""
        self._seen: dict[str, None] = {}
        """Who has worked since then."""
        self._came_again: set[str] = set()
        """Names, as workers call themselves, that another one had before."""
        self._several: set[str] = set()
        """Those that two had at once."""
        self._now: Counts = {}
        self._problem = ""
        self._rounds: list[Counts] = []
        self._before: str | None = None

    def __enter__(self) -> Workers:
        self._before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = self._socket
        whoever = (self._listening, self._hear)
        Thread(target=accept, args=whoever, name="gpuperf-workers", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = self._before
        refuse(self._listening)

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that are there."""
        with self._lock:
            return tuple(pid for _, pid in self._there.values())

    def begin(self) -> None:
        """A measurement begins: what was counted before is another's."""
        with self._lock:
            self._rounds, self._seen, self._known = [], {}, {*self._there}
            self._came_again, self._several = set(), set()
            # Nor does it concern this one who died at work before.
            self._lost = []
            self._at_work = [name for name in self._at_work if not is_gone(self._there[name][1])]

    @contextmanager
    def counting(self, how: Mapping[str, Any] = _ON_A_CPU, only: str = "") -> Iterator[Counts]:
        """Has workers count what they do within the block, which executes the step once.

        `how` is what a worker makes its counter of; one of them alone counts, if named. The result
        is complete after the block. Raises UnsoundStep for work that was begun before, or is
        not done at the end: nobody can say to which execution it belongs; CountersUnavailable where
        a worker cannot count.
        """
        with self._lock:
            self._check("was at work already when the step began")
            self._how, self._only, self._now, self._problem = how, only, {}, ""
        counted = self._now
        try:
            yield counted
            with self._lock:
                self._check("was still at work when the step ended")
                if self._problem:
                    raise CountersUnavailable(
                        self._problem, "Without its block, a worker's work is not counted at all"
                    )
                if only and only not in counted:
                    raise UnsoundStep(
                        f"the worker {only} did nothing in the execution of the step in which it "
                        "was to be counted. Give `measure` a `reset` after which the step does the "
                        "same work again"
                    )
        finally:
            with self._lock:
                self._how = None

    def turns(self) -> tuple[str, ...]:
        """Who has worked since the measurement began, for who counts one after the other.

        Raises UnsoundStep for several workers of one name that came and went: which of them is
        which in the next execution, nobody can say.
        """
        with self._lock:
            if unknown := sorted(self._came_again & self._several):
                raise UnsoundStep(
                    f'several workers "{unknown[0]}" come and go, and on a GPU each of them is '
                    "counted in an execution of its own. Let them live on (a DataLoader with "
                    "persistent_workers=True), or give each a name of its own"
                )
            return tuple(self._seen)

    def keep(self, rounds: Sequence[Counts]) -> None:
        """Takes what was counted for the measurement, round by round."""
        with self._lock:
            self._rounds += rounds

    def counted(self) -> dict[str, float]:
        """What all workers have counted in the last execution, by metric."""
        total: dict[str, float] = {}
        for counts in self._rounds[-1].values() if self._rounds else ():
            for metric, value in counts.items():
                total[metric] = total.get(metric, 0.0) + value
        return total

    def peers(self, device: Device) -> tuple[Peer, ...]:
        """The workers that have counted anything, each with a value per counted execution.

        Of executions in which a metric was counted by anybody.
        """
        names = dict.fromkeys(name for counted in self._rounds for name in counted)
        rounds: dict[str, list[Counts]] = {}
        for counted in self._rounds:
            for metric in dict.fromkeys(chain.from_iterable(counted.values())):
                rounds.setdefault(metric, []).append(counted)
        return tuple(
            Peer(
                name,
                device,
                tuple(
                    Sample(
                        STEP,
                        metric,
                        tuple(counted.get(name, {}).get(metric, 0.0) for counted in rounds[metric]),
                    )
                    for metric in dict.fromkeys(
                        metric for counted in self._rounds for metric in counted.get(name, {})
                    )
                ),
            )
            for name in sorted(names)
        )

    def _check(self, what: str) -> None:
        # Its end is seen before its connection is lost, which another thread hears.
        ended = [name for name in self._at_work if is_gone(self._there[name][1])]
        if lost := [*self._lost, *ended]:
            raise UnsoundStep(
                f"the worker {lost[0]} ended in the middle of its work: what it did was not counted"
            )
        if self._at_work:
            raise UnsoundStep(
                f"the worker {self._at_work[0]} {what}: let the step ask for all that its workers "
                "do, and wait for all of it. A DataLoader that reads ahead does that over a whole "
                "pass through it"
            )

    def _hear(self, line: Connection) -> None:
        first = line.receive()
        if first is None or NAME not in first:
            return
        pid = line.pid()
        with self._lock:
            asked = str(first[NAME])
            name = self._named(asked)
            self._there[name] = asked, pid
        while (message := line.receive()) is not None:
            with self._lock:
                if message["is"] == BEGINS:
                    answer = {"count": self._begun(name, pid)}
                else:
                    self._at_work.remove(name)
                    self._add(name, message)
                    answer = {}
            line.send(answer)
        with self._lock:
            if name in self._at_work:
                self._at_work.remove(name)
                self._lost.append(name)
            del self._there[name]
        line.close()

    def _begun(self, name: str, pid: int) -> Mapping[str, Any] | None:
        """A block of this worker begins: how it is to be counted, None where it is not.

        A CPU's work is counted by thread, a GPU's by process: that of the test's own process is in
        the test's counts, and of two blocks that one process has open at once nobody can say whose
        it is.
        """
        beside = [other for other in self._at_work if self._there[other][1] == pid]
        self._at_work.append(name)
        by_thread = self._how is not None and self._how["by"] == CPU
        if pid == os.getpid() and not by_thread:
            return None
        self._seen[name] = None
        if self._how is not None and beside and not by_thread:
            self._problem = (
                f"the workers {beside[0]} and {name} are threads of one process at work at once, "
                "and what a GPU does is counted by process"
            )
        return self._how if self._only in ("", name) else None

    def _named(self, asked: str) -> str:
        """The name of one more worker: "loader", "loader 2" and so on; of one that ended, again."""
        number, name = 1, asked
        while name in self._there:
            number += 1
            name = f"{asked} {number}"
        if any(theirs == asked for theirs, _ in self._there.values()):
            self._several.add(asked)
        if name in self._known:
            self._came_again.add(asked)
        self._known.add(name)
        return name

    def _add(self, name: str, message: Mapping[str, Any]) -> None:
        if message.get("problem"):
            self._problem = f"the worker {name} cannot count: {message['problem']}"
        counts: Mapping[str, float] = message["counts"]
        known = self._now.setdefault(name, {}) if counts else {}
        for metric, value in counts.items():
            known[metric] = known.get(metric, 0.0) + value
