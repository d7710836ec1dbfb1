"""The barriers of ranks that execute a step together, through one socket.

One process holds it, and each rank is a client of that, all on one machine. The socket has an
abstract name: no file is left of it, and the end of a process is seen at once.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Client, Connection, wait
from threading import Condition, Event, Lock, Thread
from typing import Any

from pytest_gpuperf.errors import MeasurementError, UnsoundStep, UsageFailure
from pytest_gpuperf.measure.rank_states import SETTLING, KnownRank, RankGroup

ENDED = "the process that holds the ranks together has ended"
STOPPED = "the ranks stopped"
"""How the error begins where all ranks stop for one of them."""
_POLL, _TICK = 0.02, 1.0
_GRACE, _PATIENCE = 5.0, 600.0
"""Seconds that a rank has to come out of the step, and that one waits for the session's end."""


class Rendezvous:
    """Holds ranks together; when they are to stop, `problem` says why. See `RankGroup`."""

    def __init__(
        self, name: str, count: int, time_limit: float, ended: Callable[[int], str] | None = None
    ) -> None:
        self.problem = ""
        self.known = RankGroup(count, time_limit, ended)
        self._lines: dict[Connection, KnownRank] = {}
        self._brought: queue.Queue[list[Any]] = queue.Queue()
        self._closing = False
        self._listening = socket.socket(socket.AF_UNIX)
        try:
            self._listening.bind(f"\0{name}")
        except OSError as error:
            self._listening.close()
            raise UsageFailure(
                f"the socket @{name} cannot be had ({error.strerror}): another job on this machine "
                "has the same MASTER_PORT. Start torchrun with another --master-port, or "
                "--standalone"
            ) from error
        self._listening.listen(128)
        self._thread = Thread(target=self._serve, name="gpuperf-rendezvous", daemon=True)
        self._thread.start()

    def brought(self, tick: Callable[[], object] = str) -> list[Any]:
        """What all ranks bring to the last barrier, in their order; `tick` is called meanwhile.

        Raises UnsoundStep where they stop.
        """
        while True:
            with suppress(queue.Empty):
                return self._brought.get(timeout=_TICK)
            if self.problem:
                raise UnsoundStep(f"{STOPPED}: {self.problem}")
            tick()

    def close(self) -> None:
        """Ends it, of which the ranks hear."""
        self._closing = True
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _serve(self) -> None:
        with self._listening:
            while not self._closing:
                timeout = _POLL if self.known.complained else _TICK
                for ready in wait([self._listening, *self._lines], timeout):
                    self._accept() if ready is self._listening else self._hear(ready)
                if not self.problem and (problem := self.known.settled()):
                    self._stop(problem)
        for line in self._lines:
            line.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            line, _ = self._listening.accept()
            pid_uid_gid = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            if struct.unpack("3i", pid_uid_gid)[1] == os.getuid():  # anybody knows the name
                self._lines[Connection(line.detach())] = KnownRank()  # none before it joins

    def _hear(self, line: Any) -> None:
        try:
            event, said = json.loads(line.recv_bytes())
        except (EOFError, OSError):
            event, said = "end", {}
        if event == "join" and self.known.has_come(said["number"]):  # the same of another job
            event = "end"
        elif event == "join":
            self._lines[line] = self.known.ranks[said["number"]]
        self._lines[line].happens(event, **said)
        if event == "end":
            self._lines.pop(line)
            line.close()
            return
        if event != "enter":
            self.known.goes_on()
        if self.problem:
            _send(line, why=self.problem)
        elif self.known.all_wait():
            self._let_go()

    def _let_go(self) -> None:
        if apart := self.known.apart():
            self._stop(apart)
            return
        first = self.known.ranks[0]
        if first.last:
            self.known.awaited = False
            self._brought.put([rank.value for rank in self.known.ranks])
        for line, rank in self._lines.items():
            rank.happens("go")
            _send(line, value=None if first.last else first.value)

    def _stop(self, problem: str) -> None:
        self.problem = problem
        for line in self._lines:
            _send(line, why=problem)


def _send(line: Connection, **answer: Any) -> None:
    with suppress(OSError):  # it has ended
        line.send_bytes(json.dumps(answer).encode())


class RankClient:
    """A rank of a rendezvous.

    When all are to stop while this one is inside the step, perhaps waiting there for a process that
    is gone, it is ended after a grace, once `tell` was told why. Without `tell` the process that
    has started it does that. Raises MeasurementError where none answers for `patience` seconds.
    """

    def __init__(
        self, name: str, number: int, patience: float, tell: Callable[[str], object] | None = None
    ) -> None:
        self.number = number
        self.why = ""
        """Why all are to stop."""
        self._tell = tell
        self._line = _connected(name, patience)
        os.register_at_fork(after_in_child=self._line.close)  # a child that lives on is no rank
        self._sending = Lock()
        self._answers: list[Any] = []
        self._changed = Condition()
        self._outside = Event()
        self._outside.set()
        self.says("join", number=number, pid=os.getpid())
        Thread(target=self._hear, name="gpuperf-rank", daemon=True).start()

    def says(self, event: str, **fields: Any) -> None:
        """Says that something has happened here: an event of `rank_states`."""
        if event != "enter":
            self._outside.set()
        with suppress(OSError), self._sending:
            self._line.send_bytes(json.dumps([event, fields]).encode())

    def arrive(
        self, place: str, own: Any = None, *, last: bool = False, enters: bool = False
    ) -> Any:
        """Returns what rank 0 brings to this barrier, when all have come there.

        A rank that `enters` the step may be stuck in it from then on. Raises MeasurementError where
        not all come.
        """
        self.says("arrive", at=place, phase="", value=own, last=last)
        with self._changed:
            self._changed.wait_for(lambda: self._answers or self.why)
            if not self._answers or (enters and self.why):
                raise MeasurementError(self.why)
            if enters:
                self._outside.clear()
            return self._answers.pop(0)

    def fails(self, error: BaseException) -> str:
        """Says that the step failed here; returns why all of them stop, which may be another's."""
        self.says("fail", why=f"{type(error).__name__}: {error}")
        return self.stops(_GRACE)

    def leaves(self, *, wait: bool) -> None:
        """Says goodbye; and `wait`s until all stop, or the session ends that holds them."""
        self.says("leave")
        self.stops(_PATIENCE if wait else 0)

    def stops(self, patience: float = 2 * (_TICK + SETTLING)) -> str:
        """Why all are to stop, which may take a moment to be known; "" where they are not."""
        with self._changed:
            self._changed.wait_for(lambda: self.why, patience)
            return self.why

    def _hear(self) -> None:
        why = ENDED
        with suppress(EOFError, OSError):
            while "why" not in (answer := json.loads(self._line.recv_bytes())):
                with self._changed:
                    self._answers.append(answer["value"])
                    self._changed.notify_all()
            why = answer["why"]
        with self._changed:
            self.why = why
            self._changed.notify_all()
        if self._tell is not None and not self._outside.wait(_GRACE):
            self._tell(why)
            os._exit(1)


def _connected(name: str, patience: float) -> Any:
    end = time.monotonic() + patience
    while True:
        try:
            return Client(f"\0{name}", "AF_UNIX")
        except OSError as error:
            if time.monotonic() > end:
                raise MeasurementError(
                    f"nobody answered at the socket @{name} within {patience:.0f} s "
                    f"({error.strerror}): the process that holds the measurement together has "
                    "ended, or has not come so far"
                ) from error
        time.sleep(_POLL)
