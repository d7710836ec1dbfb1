"""The meeting of processes that execute a step together: who has arrived where, and who is missing.

One process holds it, the others are its participants, all on one machine. They talk through a
socket of Linux's abstract names: no file is left of it, whatever happens, and the end of a process
is seen at once, also of one that was killed. What each of them did last is known when it is gone.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Condition, Event, Lock, Thread
from typing import Any

from pytest_gpuperf.errors import MeasurementError, UnsoundStep, UsageFailure

Message = dict[str, Any]

NOBODY_HOLDS = "the process that holds the ranks together has ended"
STOPPED = "the ranks stopped"
"""How the error begins of whatever one of them has stopped for."""
_POLL = 0.02
_TICK = 1.0
_SETTLING = 0.5
"""Seconds after a first failure: a process that has died is found out a moment after the others
have lost their connection to it, and is the better reason."""
_GRACE = 5.0
"""Seconds that a participant has to come out of a step in which it waits for one that is gone."""
_PATIENCE = 600.0
"""Seconds that who has done its part waits for the rest of a session."""
_CREDENTIALS = struct.Struct("3i")
"""pid, uid and gid, as SO_PEERCRED has them."""
_JOINED, _AT, _IN, _ON, _SAID, _FAILED, _LEFT = "joined", "at", "in", "on", "said", "failed", "left"
_RESTS = "rests"
_GO, _STOP = "go", "stop"


class Connection:
    """One end of a connection: messages in, messages out. Sending is for any thread."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._read = connected.makefile("rb")
        self._sending = Lock()

    def send(self, message: Message) -> None:
        """Sends one message. To who is gone, nothing is said."""
        with suppress(OSError), self._sending:
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Message | None:
        """The next message; None once the other end is gone."""
        try:
            line = self._read.readline()
        except (OSError, ValueError):  # closed here, meanwhile
            return None
        message: Message | None = json.loads(line) if line.endswith(b"\n") else None
        return message

    def give_up_after(self, seconds: float) -> None:
        """Takes the other end for gone where it lets this one wait longer."""
        self._socket.settimeout(seconds)

    def pid(self) -> int:
        """The other end's process."""
        return self._credentials()[0]

    def is_ours(self) -> bool:
        """Whether the other end is a process of the same user: names of sockets are anybody's."""
        return self._credentials()[1] == os.getuid()

    def hang_up(self) -> None:
        """Ends the connection: who waits for a message at either end gets none any more."""
        with suppress(OSError):  # the other end was first
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Gives it back, where nobody waits for a message."""
        self.hang_up()
        self._read.close()
        self._socket.close()

    def _credentials(self) -> tuple[int, int, int]:
        size = _CREDENTIALS.size
        told = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        pid, uid, gid = _CREDENTIALS.unpack(told)
        return pid, uid, gid


def listen(name: str) -> socket.socket:
    """A socket of this abstract name. Raises UsageFailure where another process has it."""
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(f"\0{name}")
    except OSError as error:
        listening.close()
        raise UsageFailure(
            f"the socket @{name} cannot be had ({error.strerror}): another job on this machine has "
            "the same MASTER_PORT. Start torchrun with another --master-port, or --standalone"
        ) from error
    listening.listen(128)
    return listening


def accept(listening: socket.socket, hear: Callable[[Connection], object]) -> None:
    """Has `hear` have a line to each of our own that comes, in a thread of its own; until `refuse`.

    Whoever else comes is sent away.
    """
    while True:
        try:
            connected, _ = listening.accept()
        except OSError:  # closed
            return
        line = Connection(connected)
        if line.is_ours():
            Thread(target=hear, args=(line,), daemon=True).start()
        else:
            line.close()


def refuse(listening: socket.socket) -> None:
    """Ends a socket of `listen`, and whoever waits at it for somebody to come."""
    with suppress(OSError):
        listening.shutdown(socket.SHUT_RDWR)
    listening.close()


def connect(name: str, patience: float) -> Connection:
    """A line to who listens there, waited for. Raises MeasurementError after `patience` seconds."""
    end = time.monotonic() + patience
    while True:
        connecting = socket.socket(socket.AF_UNIX)
        try:
            connecting.connect(f"\0{name}")
        except OSError as error:
            connecting.close()
            if time.monotonic() > end:
                raise MeasurementError(
                    f"nobody answered at the socket @{name} within {patience:.0f} s "
                    f"({error.strerror}): the process that holds the measurement together has "
                    "ended, or has not come so far"
                ) from error
            time.sleep(_POLL)
            continue
        line = Connection(connecting)
        if not line.is_ours():
            line.close()
            raise MeasurementError(f"the socket @{name} is another user's")
        return line


@dataclass
class _Place:
    """What is known of one participant."""

    line: Connection
    pid: int
    at: str = ""
    """The execution that it has arrived at, or is in; "" before the first."""
    inside: str = ""
    """The phase that it has entered last since."""
    waits: bool = False
    rests: bool = True
    """Whether it is in no measurement."""
    value: Any = None
    """What it has arrived with."""
    said: list[Any] = field(default_factory=list)
    failed: str = ""
    left: bool = False
    left_at: float = 0.0
    gone: bool = False
    """Whether its line is closed, and all that it said was heard."""
    ended: float | None = None
    """When its process was first seen to have ended."""

    def is_gone(self) -> bool:
        """Whether it says nothing any more.

        What its process has forked may keep the line open. What it said last is heard meanwhile.
        """
        if not self.gone and self.ended is None and is_gone(self.pid):
            self.ended = time.monotonic()
        return self.gone or (self.ended is not None and time.monotonic() > self.ended + _SETTLING)

    def doing(self) -> str:
        """What it did last, as a phrase."""
        if not self.at:
            return "it had not begun to measure"
        inside = f', in phase "{self.inside}"' if self.inside else ""
        return f"{'waiting for the others before' if self.waits else 'last in'} {self.at}{inside}"


class Meeting:
    """Holds `count` participants together, numbered from 0 on.

    After `time_limit` seconds in which nobody got on, and when one fails or is gone, all are told
    to stop and `problem` says why. `ended` says how a process has ended that is this one's child.
    """

    def __init__(
        self,
        name: str,
        count: int,
        time_limit: float,
        *,
        ended: Callable[[int], str] = lambda number: "",  # noqa: ARG005
    ) -> None:
        self.problem = ""
        self.at_fault: tuple[int, ...] = ()
        """Whose fault the problem may be."""
        self.hangs = False
        """Whether that is because they do not get on."""
        self._count = count
        self._time_limit = time_limit
        self._ended = ended
        self._places: dict[int, _Place] = {}
        self._changed = Condition()
        self._moved = time.monotonic()
        self._asked = False
        """Whether what all have said is waited for."""
        self._closing = False
        self._listening = listen(name)
        for act in (partial(accept, self._listening, self._hear), self._watch):
            Thread(target=act, name="gpuperf-meeting", daemon=True).start()

    def said(self, tick: Callable[[], object] = str) -> list[Any]:
        """What all have said, by their numbers, once they have; raises UnsoundStep else.

        `tick` is called about every second of waiting.
        """
        with self._changed:
            self._asked = True
            while not (self.problem or self._all(lambda place: bool(place.said))):
                tick()
                self._changed.wait(_TICK)
            if self.problem:
                raise UnsoundStep(f"{STOPPED}: {self.problem}")
            self._asked = False
            return [self._places[number].said.pop(0) for number in range(self._count)]

    def close(self) -> None:
        """Ends it: whoever comes later is alone."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        refuse(self._listening)
        for place in self._places.values():
            place.line.hang_up()

    def _all(self, holds: Callable[[_Place], bool]) -> bool:
        return len(self._places) == self._count and all(map(holds, self._places.values()))

    def _hear(self, line: Connection) -> None:
        first = line.receive()
        if first is None or first.get("is") != _JOINED or first["number"] in self._places:
            line.close()
            return
        place = _Place(line, line.pid())
        with self._changed:
            if self._closing:  # whoever comes after the end would wait for ever
                line.close()
                return
            self._places[first["number"]] = place
            self._got_on()
            if self.problem:
                line.send({"is": _STOP, "why": self.problem})
        while (message := line.receive()) is not None:
            with self._changed:
                self._take(place, message)
        with self._changed:
            place.gone = True
            self._changed.notify_all()
        line.close()

    def _take(self, place: _Place, message: Message) -> None:
        kind = message["is"]
        if kind == _IN:
            place.inside = message["phase"]
            return
        if kind == _AT:
            place.at, place.inside, place.waits = message["place"], "", True
            place.rests = False
            place.value = message.get("value")
        elif kind == _SAID:
            place.said.append(message["what"])
        elif kind == _FAILED:
            place.failed = message["why"]
        elif kind == _LEFT:
            place.left, place.left_at = True, time.monotonic()
        elif kind == _RESTS:
            place.rests = True
        self._got_on()
        if self._all(lambda one: one.waits):
            self._let_go()

    def _let_go(self) -> None:
        """All have arrived: at the same place, or else it is no step of theirs together."""
        places = [self._places[number] for number in range(self._count)]
        first = places[0]
        for number, other in enumerate(places):
            if other.at != first.at:
                self._stop(
                    f"the ranks do not execute the step equally often: rank 0 has come to "
                    f"{first.at}, and rank {number} to {other.at}. Let every rank measure the same "
                    "step, with the same phases, and run tests in the same order: a plugin that "
                    "shuffles them needs one seed for all"
                )
                return
        for place in places:
            place.waits = False
            place.line.send({"is": _GO, "value": first.value})

    def _got_on(self) -> None:
        self._moved = time.monotonic()
        self._changed.notify_all()

    def _watch(self) -> None:
        """Looks for who has failed, is gone, or does not get on."""
        with self._changed:
            while not (self._closing or self.problem):
                if self._fault() or self._late():
                    # The first to complain is often one whose peer is gone.
                    self._changed.wait_for(self._gone, _SETTLING)
                    self._wait_for_codes()
                    if problem := self._fault() or self._late():
                        self._stop(problem)
                        return
                self._changed.wait(_TICK)

    def _wait_for_codes(self) -> None:
        """How a child has ended is known a moment after its connection is lost."""
        end = time.monotonic() + _SETTLING
        while self._gone() and not any(map(self._ended, self._gone())):
            if time.monotonic() > end:
                return
            self._changed.wait(_POLL)

    def _gone(self) -> dict[int, _Place]:
        return {n: p for n, p in self._places.items() if not (p.left or p.failed) and p.is_gone()}

    def _fault(self) -> str:
        """Who has ended, or failed, and what the others did meanwhile."""
        for number in range(self._count):
            how = "" if number in self._places else self._ended(number)
            if how:
                self.at_fault = (number,)
                return f"rank {number} {how} before it began to measure"
        for number, place in sorted(self._gone().items()):
            self.at_fault = (number,)
            how = self._ended(number) or "has ended"
            return f"rank {number} (process {place.pid}) {how}; {place.doing()}" + self._others(
                number
            )
        for number, place in sorted(self._places.items()):
            if place.failed:
                self.at_fault = (number,)
                return f"rank {number} failed, {place.doing()}: {place.failed}" + self._others(
                    number
                )
        for number, place in sorted(self._places.items()):
            if place.left and not place.said and self._awaited(number):
                self.at_fault = (number,)
                return (
                    f"rank {number} (process {place.pid}) has ended its test without measuring; "
                    f"{place.doing()}" + self._others(number)
                )
        return ""

    def _awaited(self, number: int) -> bool:
        """Whether anybody waits for this one: who has asked what all say, or another rank.

        One that is inside may wait there; or it is about to say that the measurement is over.
        """
        others = [place for other, place in self._places.items() if other != number]
        if self._asked or any(place.waits for place in others):
            return True
        inside = any(not (place.rests or place.said or place.left) for place in others)
        return inside and time.monotonic() > self._places[number].left_at + _GRACE

    def _late(self) -> str:
        """Who has not arrived although the time is over; "" where all is well."""
        if time.monotonic() - self._moved < self._time_limit:
            return ""
        if self._all(lambda place: place.left or bool(place.said)) or not self._places:
            return ""
        if not self._asked and all(place.rests for place in self._places.values()):
            return ""  # they do something that is not ours
        missing = [number for number in range(self._count) if number not in self._places]
        behind = [n for n, place in sorted(self._places.items()) if not (place.waits or place.said)]
        self.at_fault, self.hangs = (*missing, *behind), True
        said = [f"rank {number} has not begun to measure" for number in missing]
        said += [
            f"rank {n} (process {self._places[n].pid}) does not come out, {self._places[n].doing()}"
            for n in behind
        ]
        arrived = [n for n in sorted(self._places) if n not in behind]
        waiting = [f"rank {number} is {self._places[number].doing()}" for number in arrived]
        return (
            f"nobody got on for {self._time_limit:.0f} s, the time limit "
            "(--gpuperf-time-limit SECONDS allows more): " + "; ".join([*said, *waiting])
        )

    def _others(self, but: int) -> str:
        others = [
            f"\nrank {number}: {place.doing()}"
            for number, place in sorted(self._places.items())
            if number != but
        ]
        return "".join(others)

    def _stop(self, problem: str) -> None:
        if self.problem or self._closing:
            return
        self.problem = problem
        for place in self._places.values():
            place.line.send({"is": _STOP, "why": problem})
        self._changed.notify_all()


class Participant:
    """One process of a meeting. `number` is its rank.

    When all are to stop while this one is inside the step, perhaps waiting there for a process that
    is gone, it is ended after a grace, once `tell` was told why: nothing else gets it out. Without
    a `tell`, whoever has started it ends it.
    """

    def __init__(
        self,
        name: str,
        number: int,
        patience: float,
        tell: Callable[[str], object] | None = None,
    ) -> None:
        self.number = number
        self._tell = tell
        self._line = connect(name, patience)
        self._line.send({"is": _JOINED, "number": number})
        self._answers: list[Message] = []
        self._changed = Condition()
        self.why = ""
        """Why all are to stop."""
        self._inside = False
        self._out = Event()
        Thread(target=self._hear, name="gpuperf-participant", daemon=True).start()

    def arrive(self, place: str) -> None:
        """Returns when all have arrived at this place, to execute or to make the step.

        Raises MeasurementError where they do not arrive there.
        """
        self._arrived(place)
        self._inside = True

    def agreed(self, place: str, own: Any) -> Any:
        """What rank 0 says of it, on every rank; for the rest see `arrive`."""
        return self._arrived(place, own if self.number == 0 else None)

    def goes_on(self) -> None:
        """Says that this one waits for something else, and for good reason."""
        self._line.send({"is": _ON})

    def rests(self) -> None:
        """Says that a measurement is over: until the next one nobody waits for this one."""
        self._outside()
        self._line.send({"is": _RESTS})

    def entered(self, phase: str) -> None:
        """Says that the step is in this phase, for who asks later what it did last."""
        self._line.send({"is": _IN, "phase": phase})

    def say(self, what: object) -> None:
        """Says something to the process that holds the meeting."""
        self._outside()
        self._line.send({"is": _SAID, "what": what})

    def failed(self, error: BaseException) -> str:
        """Says that the step failed here; returns why all of them stop, which may be another's."""
        self._outside()
        if not self.why:
            self._line.send({"is": _FAILED, "why": f"{type(error).__name__}: {error}"})
        with self._changed:
            self._changed.wait_for(lambda: self.why, _GRACE)
        return self.why

    def leave(self, *, wait: bool = False) -> None:
        """Says goodbye: from now on nobody misses it; `wait`s for the end of the meeting.

        But not where that has stopped: then another rank may be waiting for this one to end.
        """
        self._outside()
        self._line.send({"is": _LEFT})
        with self._changed:
            self._changed.wait_for(lambda: self.why or not wait, _PATIENCE)
        self._line.hang_up()

    def stops(self) -> str:
        """Why all are to stop, which may take a moment to be known; "" where they are not."""
        with self._changed:
            self._changed.wait_for(lambda: self.why, 2 * (_TICK + _SETTLING))
            return self.why

    def _outside(self) -> None:
        self._inside = False
        self._out.set()

    def _arrived(self, place: str, value: Any = None) -> Any:
        self._outside()
        self._line.send({"is": _AT, "place": place, "value": value})
        with self._changed:
            self._changed.wait_for(lambda: self._answers or self.why)
            if not self._answers:
                raise MeasurementError(self.why)
            self._out.clear()
            return self._answers.pop(0)["value"]

    def _hear(self) -> None:
        while (message := self._line.receive()) is not None:
            with self._changed:
                if message["is"] == _STOP:
                    self.why = message["why"]
                else:
                    self._answers.append(message)
                self._changed.notify_all()
            if message["is"] == _STOP:
                self._end_where_stuck()
        with self._changed:
            self.why = self.why or NOBODY_HOLDS
            self._changed.notify_all()
        self._end_where_stuck()
        self._line.close()

    def _end_where_stuck(self) -> None:
        if self._tell is None or not self._inside or self._out.wait(_GRACE):
            return
        self._tell(self.why)
        os._exit(1)


def is_gone(pid: int) -> bool:
    """Whether a process has ended, whoever has noticed."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"  # its name may have blanks and brackets
