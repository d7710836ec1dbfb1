"""The states of ranks that execute a step together, and which of them keeps the others waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

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
"""A rank's state after an event. Of others, as "enter" and "go on", a rank stays in its state."""
_GRACE = 5.0
"""Seconds that others may take to come out of the step once a rank has left."""
_APART = (
    "the ranks do not execute the step equally often. Let every rank measure the same step with "
    "the same phases. Run the tests in the same order on all ranks: a plugin that shuffles tests "
    "needs one seed for all"
)


@dataclass
class KnownRank:
    """The last report of one rank: its position, its value there, and the reason if it failed."""

    state: RankState = ABSENT
    pid: int = 0
    at: str = ""
    phase: str = ""
    value: Any = None
    last: bool = False
    enters: bool = False
    why: str = ""

    def happens(self, event: str, **fields: Any) -> None:
        """Notes an event, and what came with it."""
        self.state = _TRANSITIONS.get(event, {}).get(self.state, self.state)
        vars(self).update(fields)

    def doing(self) -> str:
        """The rank's last activity, as a phrase."""
        if not self.at:
            return "had not begun to measure"
        waits = "waited for the other ranks before" if self.state is WAITING else "was last in"
        return f"{waits} {self.at}" + (f', in phase "{self.phase}"' if self.phase else "")


class RankGroup:
    """Ranks that execute a step together. They hang when none gets on for `time_limit` seconds.

    `ended` says how a rank has ended that this process has started, "" of one that has not; such
    ranks are awaited from the beginning.
    """

    def __init__(
        self, count: int, time_limit: float, ended: Callable[[int], str] | None = None
    ) -> None:
        self.ranks = [KnownRank() for _ in range(count)]
        self.at_fault: list[int] = []
        self.hang = False
        self._awaited = ended is not None
        self._ended = ended or (lambda _: "")
        self._time_limit = time_limit
        self._moved = time.monotonic()

    def awaits(self, number: int) -> bool:
        """Whether this rank is one of them and has not joined yet."""
        return number < len(self.ranks) and self.ranks[number].state is ABSENT

    def goes_on(self) -> None:
        """Notes that one of them has got on."""
        self._moved = time.monotonic()

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
        self.hang = self._waited(INSIDE) and time.monotonic() > self._moved + self._time_limit
        named = ", ".join(f"rank {number}" for number in late)
        limit = f"{self._time_limit:.0f} s, the time limit"
        fault = f"{named} made no progress for {limit} (--gpuperf-time-limit SECONDS raises it)"
        return self._told(fault, late) if self.hang else ""

    def _fault(self, number: int) -> str:
        """The fault by which this rank stops the others; "" if there is none."""
        rank, how = self.ranks[number], self._ended(number)
        if rank.state is FAILED:
            return f"failed: {rank.why}"
        if rank.state is LEFT:
            # Others may wait inside the step for the rank that has left.
            stuck = self._waited(INSIDE) and time.monotonic() > self._moved + _GRACE
            return "ended its test without measuring" if stuck or self._waited() else ""
        return how or ("ended" if rank.state is GONE else "")

    def _waited(self, *besides: RankState) -> bool:
        """Whether any rank waits for the others, or is in one of these states."""
        return self._awaited or any(rank.state in (WAITING, *besides) for rank in self.ranks)

    def _told(self, fault: str, at_fault: list[int]) -> str:
        self.at_fault = at_fault
        each = enumerate(self.ranks)
        doing = (f"rank {n} (process {rank.pid}) {rank.doing()}" for n, rank in each)
        return "\n".join([fault, *doing])
