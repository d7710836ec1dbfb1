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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from multiprocessing.connection import Client, Connection, wait
from threading import Thread
from typing import Any

from pytest_gpuperf.errors import UnsoundStep, UsageFailure

ENDED = "the process that coordinates the ranks has ended"
STOPPED = "all ranks stopped"
"""The start of the error when one rank stops all ranks."""
_TICK, _SETTLING = 0.1, 0.5
"""Seconds between two looks, and from the first complaint to the verdict: it may be of a rank that
is about to end."""
_GRACE, _PATIENCE = 5.0, 600.0
"""Seconds that a rank has to come out of the step, and that one waits for the session's end."""
VERDICT = "the verdict"
"""Where ranks wait for the one that judges, which may start fresh ranks: as long as it takes."""
_APART = (
    "the ranks do not execute the step equally often. Let every rank measure the same step with "
    "the same phases. Run the tests in the same order on all ranks: a plugin that shuffles tests "
    "needs one seed for all"
)
RankState = Enum("RankState", "ABSENT IDLE WAITING INSIDE FAILED LEFT GONE")
"""The reported state of a rank. The others do not wait for an idle rank."""
ABSENT, IDLE, WAITING, INSIDE, FAILED, LEFT, GONE = RankState
_LIVE = (IDLE, WAITING, INSIDE)
_TRANSITIONS: dict[str, dict[RankState, RankState]] = {
    "join": {ABSENT: IDLE},
    "arrive": dict.fromkeys(_LIVE, WAITING),
    "go": {WAITING: INSIDE},
    "rest": dict.fromkeys(_LIVE, IDLE),
    "fail": dict.fromkeys(_LIVE, FAILED),
    "leave": dict.fromkeys(_LIVE, LEFT),
    "end": {IDLE: LEFT, WAITING: GONE, INSIDE: GONE},
}
"""A rank's state after an event."""


@dataclass
class KnownRank:
    """The last report of one rank: its place, its value there, and the reason if it failed."""

    state: RankState = ABSENT
    pid: int = 0
    at: str = ""
    value: Any = None
    last: bool = False
    why: str = ""

    def happens(self, event: str, **fields: Any) -> None:
        """Notes an event, and what came with it."""
        self.state = _TRANSITIONS[event].get(self.state, self.state)
        vars(self).update(fields)

    def doing(self) -> str:
        """The rank's last activity, as a phrase."""
        if not self.at:
            return "had not begun to measure"
        waits = "waited for the other ranks before" if self.state is WAITING else "was last in"
        return f"{waits} {self.at}"


class RankGroup:
    """Ranks that execute a step together. They hang when none gets on for `time_limit` seconds.

    `ended` says how each rank has ended that this process has started, "" of one that has not; such
    ranks are awaited from the beginning.
    """

    def __init__(
        self, count: int, time_limit: float, ended: Sequence[Callable[[], str]] = ()
    ) -> None:
        self.ranks = [KnownRank() for _ in range(count)]
        self.at_fault: list[int] = []
        self.moved = time.monotonic()
        """When one of them last got on."""
        self._ended = ended
        self._time_limit = time_limit

    def awaits(self, number: int) -> bool:
        """Whether this rank is one of them and has not joined yet."""
        return number < len(self.ranks) and self.ranks[number].state is ABSENT

    def meet(self) -> bool:
        """Whether all have come to one barrier."""
        return {(rank.state, rank.at) for rank in self.ranks} == {(WAITING, self.ranks[0].at)}

    def problem(self) -> str:
        """The reason why all must stop, with each rank's last activity; "" if all is well.

        A rank that has ended is named before ranks that complain of it.
        """
        for state in (ABSENT, GONE, FAILED, LEFT):
            for number, rank in enumerate(self.ranks):
                if rank.state is state and (fault := self._fault(number)):
                    return self._told(f"rank {number} {fault}", [number])
        late = [number for number, rank in enumerate(self.ranks) if rank.state is not WAITING]
        if not late and not self.meet():
            return self._told(_APART, [])
        judged = any(rank.state is WAITING and rank.at == VERDICT for rank in self.ranks)
        if judged or not (self._waited(INSIDE) and self._stood(self._time_limit)):
            return ""
        named = ", ".join(f"rank {number}" for number in late)
        limit = f"{self._time_limit:.0f} s, the time limit"
        fault = f"{named} made no progress for {limit} (--gpuperf-time-limit SECONDS raises it)"
        return self._told(fault, late)

    def _fault(self, number: int) -> str:
        """The fault by which this rank stops the others; "" if there is none."""
        rank = self.ranks[number]
        if rank.state is FAILED:
            return f"failed: {rank.why}"
        if rank.state is LEFT:
            # Others may wait inside the step for the rank that has left.
            stuck = self._waited(INSIDE) and self._stood(_GRACE)
            return "ended its test without measuring" if stuck or self._waited() else ""
        how = self._ended[number]() if self._ended else ""
        return how or ("ended" if rank.state is GONE else "")

    def _stood(self, seconds: float) -> bool:
        return time.monotonic() > self.moved + seconds

    def _waited(self, *besides: RankState) -> bool:
        """Whether any rank waits for the others, or is in one of these states."""
        return bool(self._ended) or any(rank.state in (WAITING, *besides) for rank in self.ranks)

    def _told(self, fault: str, at_fault: list[int]) -> str:
        self.at_fault = at_fault
        each = enumerate(self.ranks)
        doing = (f"rank {n} (process {rank.pid}) {rank.doing()}" for n, rank in each)
        return "\n".join([fault, *doing])


class Rendezvous:
    """Holds ranks together; if they must stop, `problem` says why. See `RankGroup`.

    A rank may then be stuck inside the step, waiting for a process that has ended. With `tell`, the
    rendezvous tells the reason and ends that rank after a grace; without, its starter must end it.
    Raises UsageFailure if the name is taken.
    """

    def __init__(
        self, name: str, known: RankGroup, tell: Callable[[str], object] | None = None
    ) -> None:
        self.problem = ""
        self._known = known
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

    def brought(self) -> list[Any]:
        """The values of all ranks at the last barrier, in rank order.

        Raises UnsoundStep if the ranks stop.
        """
        while True:
            with suppress(queue.Empty):
                return self._brought.get(timeout=_TICK)
            if self.problem:
                raise UnsoundStep(f"{STOPPED} because {self.problem}")

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
                problem = self.problem or self._known.problem()
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
        if event == "join" and self._known.awaits(said["number"]):
            self._lines[line] = self._known.ranks[said["number"]]
        elif event in ("join", "end"):  # or a rank of another job
            self._lines.pop(line).happens("end")
            line.close()
            return
        self._lines[line].happens(event, **said)
        self._known.moved = time.monotonic()
        if self.problem:
            self._answer(why=self.problem)
        elif self._known.meet():
            first = self._known.ranks[0]
            if first.last:
                self._brought.put([rank.value for rank in self._known.ranks])
            for rank in self._known.ranks:
                rank.happens("rest" if first.last else "go")
            self._answer(value=None if first.last else first.value)

    def _answer(self, **answer: Any) -> None:
        for line in self._lines:
            with suppress(OSError):  # it has ended
                line.send_bytes(json.dumps(answer).encode())

    def _end_stuck(self) -> None:
        stuck = {r.pid for r in self._known.ranks if r.state is INSIDE}
        if stuck and self._tell is not None:
            self._tell(self.problem)
        for pid in stuck - {os.getpid()}:
            os.kill(pid, signal.SIGKILL)
        if os.getpid() in stuck:
            os._exit(1)


class RankClient:
    """A rank of a rendezvous. Raises UsageFailure where none answers for `patience` seconds."""

    def __init__(self, name: str, number: int, patience: float) -> None:
        self.why = ""
        """Why all are to stop, as far as this rank has heard."""
        self._line = _connected(name, patience)
        os.register_at_fork(after_in_child=self._line.close)  # a child that lives on is no rank
        self.says("join", number=number, pid=os.getpid())

    def says(self, event: str, **fields: Any) -> None:
        """Says that an event of the ranks has happened here."""
        with suppress(OSError):
            self._line.send_bytes(json.dumps([event, fields]).encode())

    def arrive(self, place: str, own: Any = None, *, last: bool = False) -> Any:
        """Returns rank 0's value at this barrier, when all ranks have arrived.

        Raises UnsoundStep if a rank is missing.
        """
        self.says("arrive", at=place, value=own, last=last)
        while not self.why:
            answer = self._heard()
            if "value" in answer:
                return answer["value"]
        raise UnsoundStep(f"{STOPPED} because {self.why}")

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
                raise UsageFailure(
                    f"the process that coordinates the ranks did not answer within {patience:.0f} "
                    f"s on the socket @{name} ({error.strerror}). It has ended, or it has not "
                    "started to measure"
                ) from error
        time.sleep(_TICK)
