"""Barriers for ranks that execute a step together, through one socket.

One process holds the socket, and each rank is a client; all run on one machine. The socket has an
abstract name, so no file is left, and the end of a process is noticed at once.
"""

from __future__ import annotations

import json
import math
import os
import queue
import signal
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Client, Connection, wait
from threading import Thread
from typing import Any

from pytest_gpuperf.errors import MeasurementError, UnsoundStep, UsageFailure
from pytest_gpuperf.measure.rank_states import INSIDE, KnownRank, RankGroup

ENDED = "the process that coordinates the ranks has ended"
STOPPED = "all ranks stopped"
"""The start of the error when one rank stops all ranks."""
_TICK, _SETTLING = 0.1, 0.5
"""Seconds between two looks, and from the first complaint to the verdict: it may be of a rank that
is about to end."""
_GRACE, _PATIENCE = 5.0, 600.0
"""Seconds that a rank has to come out of the step, and that one waits for the session's end."""


class Rendezvous:
    """Holds ranks together; if they must stop, `problem` says why. See `RankGroup`.

    A rank may then be stuck inside the step, waiting for a process that has ended. With `tell`, the
    rendezvous tells the reason and ends that rank after a grace; without, its starter must end it.
    Raises UsageFailure if the name is taken.
    """

    def __init__(
        self,
        name: str,
        count: int,
        time_limit: float,
        ended: Callable[[int], str] | None = None,
        tell: Callable[[str], object] | None = None,
    ) -> None:
        self.problem = ""
        self.known = RankGroup(count, time_limit, ended)
        self._tell = tell
        self._lines: dict[Any, KnownRank] = {}
        self._brought: queue.Queue[list[Any]] = queue.Queue()
        self._closing = False
        self._listening = socket.socket(socket.AF_UNIX)
        try:
            self._listening.bind(f"\0{name}")
        except OSError as error:
            self._listening.close()
            raise UsageFailure(
                f"cannot open the socket @{name} ({error.strerror}): another job on this machine "
                "has the same MASTER_PORT. Start torchrun with another --master-port, or "
                "--standalone"
            ) from error
        self._listening.listen(128)
        self._thread = Thread(target=self._serve, name="gpuperf-rendezvous", daemon=True)
        self._thread.start()

    def brought(self, tick: Callable[[], object] = str) -> list[Any]:
        """The values of all ranks at the last barrier, in rank order; `tick` is called meanwhile.

        Raises UnsoundStep if the ranks stop.
        """
        while True:
            with suppress(queue.Empty):
                return self._brought.get(timeout=_TICK)
            if self.problem:
                raise UnsoundStep(f"{STOPPED} because {self.problem}")
            tick()

    def stops(self) -> str:
        """The reason why all ranks must stop, possibly after a short wait; "" if they need not."""
        end = time.monotonic() + 4 * _SETTLING
        while not self.problem and time.monotonic() < end:
            time.sleep(_TICK)
        return self.problem

    def close(self) -> None:
        """Ends it, of which the ranks hear."""
        self._closing = True
        self._thread.join()

    def _serve(self) -> None:
        complained = math.inf
        with self._listening:
            while not self._closing:
                for ready in wait([self._listening, *self._lines], _TICK):
                    self._accept() if ready is self._listening else self._hear(ready)
                problem = self.problem or self.known.problem()
                complained = min(complained, time.monotonic()) if problem else math.inf
                since = time.monotonic() - complained
                if not self.problem and since > _SETTLING:
                    self.problem = problem
                    self._answer(why=problem)
                if self._tell is not None and since > _SETTLING + _GRACE:
                    self._end_stuck()
        for line in self._lines:
            line.close()

    def _accept(self) -> None:
        line, _ = self._listening.accept()
        pid_uid_gid = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if struct.unpack("3i", pid_uid_gid)[1] == os.getuid():  # other users may know the name
            self._lines[Connection(line.detach())] = KnownRank()  # none before it joins

    def _hear(self, line: Any) -> None:
        try:
            event, said = json.loads(line.recv_bytes())
        except (EOFError, OSError):
            event, said = "end", {}
        if event == "join" and self.known.awaits(said["number"]):
            self._lines[line] = self.known.ranks[said["number"]]
        elif event in ("join", "end"):  # or a rank of another job
            self._lines.pop(line).happens("end")
            line.close()
            return
        self._lines[line].happens(event, **said)
        self.known.goes_on()
        if self.problem:
            self._answer(why=self.problem)
        elif self.known.meet():
            first = self.known.ranks[0]
            if first.last:
                self._brought.put([rank.value for rank in self.known.ranks])
            for rank in self.known.ranks:
                rank.happens("rest" if first.last else "go")
            self._answer(value=None if first.last else first.value)

    def _answer(self, **answer: Any) -> None:
        for line in self._lines:
            with suppress(OSError):  # it has ended
                line.send_bytes(json.dumps(answer).encode())

    def _end_stuck(self) -> None:
        stuck = {r.pid for r in self.known.ranks if r.enters and r.state is INSIDE}
        if stuck and self._tell is not None:
            self._tell(self.problem)
        for pid in stuck - {os.getpid()}:
            os.kill(pid, signal.SIGKILL)
        if os.getpid() in stuck:
            os._exit(1)


class RankClient:
    """A rank of a rendezvous. Raises MeasurementError where none answers for `patience` seconds."""

    def __init__(self, name: str, number: int, patience: float) -> None:
        self.why = ""
        """Why all are to stop, as far as this rank has heard."""
        self._line = _connected(name, patience)
        os.register_at_fork(after_in_child=self._line.close)  # a child that lives on is no rank
        self.says("join", number=number, pid=os.getpid())

    def says(self, event: str, **fields: Any) -> None:
        """Says that something has happened here: an event of `rank_states`."""
        with suppress(OSError):
            self._line.send_bytes(json.dumps([event, fields]).encode())

    def arrive(
        self, place: str, own: Any = None, *, last: bool = False, enters: bool = False
    ) -> Any:
        """Returns rank 0's value at this barrier, when all ranks have arrived.

        A rank that `enters` the step may be stuck in it from then on. Raises MeasurementError if a
        rank is missing.
        """
        self.says("arrive", at=place, phase="", value=own, last=last, enters=enters)
        while not self.why:
            answer = self._heard()
            if "value" in answer:
                return answer["value"]
        raise MeasurementError(self.why)

    def fails(self, error: BaseException) -> str:
        """Says that the step failed here; returns why all of them stop, which may be another's."""
        self.says("fail", why=f"{type(error).__name__}: {error}")
        return self.stops(_GRACE)

    def leaves(self, *, wait: bool) -> None:
        """Says goodbye; and `wait`s until all stop, or the session ends that holds them."""
        self.says("leave")
        self.stops(_PATIENCE if wait else 0)

    def stops(self, patience: float = 0.0) -> str:
        """The reason why all ranks must stop, if it arrives within `patience` seconds; else ""."""
        if not self.why and self._line.poll(patience):
            self._heard()
        return self.why

    def _heard(self) -> dict[str, Any]:
        answer: dict[str, Any] = {"why": ENDED}
        with suppress(EOFError, OSError):
            answer = json.loads(self._line.recv_bytes())
        self.why = answer.get("why", "")
        return answer


def _connected(name: str, patience: float) -> Any:
    end = time.monotonic() + patience
    while True:
        try:
            return Client(f"\0{name}", "AF_UNIX")
        except OSError as error:
            if time.monotonic() > end:
                raise MeasurementError(
                    f"the process that coordinates the ranks did not answer within {patience:.0f} "
                    f"s on the socket @{name} ({error.strerror}). It has ended, or it has not "
                    "started to measure"
                ) from error
        time.sleep(_TICK)
