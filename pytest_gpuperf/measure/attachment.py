"""Workers: other processes that do a part of the step, and whose counts join the test's.

A worker surrounds its work with `with attached("loader"):`, which does nothing unless a test waits
for it: `with gpuperf.workers():` tells the processes that are started inside, by a variable of
their environment. What a worker does between the beginning and the end of a counted execution of
the step is counted in the worker and added to the step.
"""

from __future__ import annotations

import atexit
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from threading import Lock, Thread
from types import TracebackType

from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.measure.meeting import Connection, accept, connect, listen, refuse
from pytest_gpuperf.model.measurement import STEP, Device, Peer, Sample

VARIABLE = "GPUPERF_WORKERS"
"""The environment variable with the name of the socket at which a test waits for its workers."""

_ANSWER_S = 60.0
"""Seconds after which a worker goes on without a test that does not answer."""
_PATIENCE = 5.0
_NAME, _BEGINS, _ENDS = "name", "begins", "ends"


class Workers:
    """The side of the test: a block in which processes are started that may be workers."""

    def __init__(self) -> None:
        self._socket = f"gpuperf-{os.getuid()}-{uuid.uuid4().hex}"
        self._listening = listen(self._socket)
        self._lock = Lock()
        self._counting = False
        self._at_work: list[str] = []
        self._lost: list[str] = []
        self._names: list[str] = []
        self._now: dict[str, dict[str, float]] = {}
        self._rounds: list[dict[str, dict[str, float]]] = []
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

    def begin(self) -> None:
        """A measurement begins: what was counted before is another's."""
        with self._lock:
            self._rounds = []

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Has workers count what they do within the block, which executes the step once.

        Raises MeasurementError for work that was begun before, or is not done at the end: nobody
        can say to which execution it belongs.
        """
        with self._lock:
            self._check("was at work already when the step began")
            self._counting, self._now = True, {}
        try:
            yield
            with self._lock:
                self._check("was still at work when the step ended")
                self._rounds.append(self._now)
        finally:
            with self._lock:
                self._counting = False

    def counted(self) -> dict[str, float]:
        """What all workers have counted in the last execution, by metric."""
        total: dict[str, float] = {}
        for counts in self._rounds[-1].values() if self._rounds else ():
            for metric, value in counts.items():
                total[metric] = total.get(metric, 0.0) + value
        return total

    def peers(self, device: Device) -> tuple[Peer, ...]:
        """The workers that have counted anything, each with a value per counted execution."""
        names = dict.fromkeys(name for counted in self._rounds for name in counted)
        return tuple(
            Peer(
                name,
                device,
                tuple(
                    Sample(
                        STEP,
                        metric,
                        tuple(counted.get(name, {}).get(metric, 0.0) for counted in self._rounds),
                    )
                    for metric in dict.fromkeys(
                        metric for counted in self._rounds for metric in counted.get(name, {})
                    )
                ),
            )
            for name in sorted(names)
        )

    def _check(self, what: str) -> None:
        if self._lost:
            raise MeasurementError(
                f"the worker {self._lost[0]} ended in the middle of its work: what it did was not "
                "counted"
            )
        if self._at_work:
            raise MeasurementError(
                f"the worker {self._at_work[0]} {what}: let the step ask for all that its workers "
                "do, and wait for all of it. A DataLoader that reads ahead does that over a whole "
                "pass through it"
            )

    def _hear(self, line: Connection) -> None:
        first = line.receive()
        if first is None or _NAME not in first:
            return
        with self._lock:
            name = self._named(str(first[_NAME]))
        while (message := line.receive()) is not None:
            with self._lock:
                if message["is"] == _BEGINS:
                    self._at_work.append(name)
                    answer = {"count": self._counting}
                else:
                    self._at_work.remove(name)
                    self._add(name, message["counts"])
                    answer = {}
            line.send(answer)
        with self._lock:
            if name in self._at_work:
                self._at_work.remove(name)
                self._lost.append(name)
        line.close()

    def _named(self, asked: str) -> str:
        """The name of one more worker: "loader", "loader 2" and so on."""
        number, name = 1, asked
        while name in self._names:
            number += 1
            name = f"{asked} {number}"
        self._names.append(name)
        return name

    def _add(self, name: str, counts: dict[str, float]) -> None:
        known = self._now.setdefault(name, {}) if counts else {}
        for metric, value in counts.items():
            known[metric] = known.get(metric, 0.0) + value


_lines: dict[tuple[int, str, str], Connection | None] = {}
"""By process, which may have been forked since, socket and name; None where nobody answered."""


@contextmanager
def attached(name: str = "worker") -> Iterator[None]:
    """A block whose work is a part of what a test measures; around it goes what a worker does.

    For free where no test waits, as in production. A block inside another is a part of that.
    """
    line = _line(name)
    if line is None or line in _open:
        yield
        return
    line.send({"is": _BEGINS})
    told = line.receive()
    counts: dict[str, float] = {}
    _open.append(line)
    try:
        if told is not None and told["count"]:
            from pytest_gpuperf.measure.cpu.dispatch import StepCounter

            counter = StepCounter()
            with counter.watching():
                yield
            counter.memory.end()
            counts = {metric: float(value) for metric, value in asdict(counter.step).items()}
        else:
            yield
    finally:
        _open.remove(line)
        line.send({"is": _ENDS, "counts": counts})
        line.receive()


_open: list[Connection] = []
"""Of which a block is open."""


def _line(name: str) -> Connection | None:
    socket = os.environ.get(VARIABLE)
    if socket is None:
        return None
    key = os.getpid(), socket, name
    if key not in _lines:
        try:
            line = connect(socket, _PATIENCE)
        except MeasurementError:  # the test is over, and the worker lives on
            _lines[key] = None
        else:
            line.give_up_after(_ANSWER_S)
            line.send({_NAME: name})
            _lines[key] = line
            atexit.register(line.close)
    return _lines[key]
