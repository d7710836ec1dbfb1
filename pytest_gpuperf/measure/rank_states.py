"""The states of ranks that execute a step together, and which of them keeps the others waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

SETTLING = 0.5
"""Seconds from the first complaint to the verdict: it may be of a rank that is about to end."""
_GRACE = 5.0
"""Seconds in which ranks may come out of a step, though one that took part has left."""


class RankState(Enum):
    """What a rank does, as far as it has said."""

    ABSENT = auto()
    IDLE = auto()
    """It is in no measurement: others do not wait for it, and it may take any time."""
    WAITING = auto()
    """At a barrier."""
    INSIDE = auto()
    """Past a barrier, in most cases in the step."""
    FAILED = auto()
    LEFT = auto()
    """It has said goodbye."""
    GONE = auto()
    """Its process has ended without a word."""


_LIVE = (RankState.IDLE, RankState.WAITING, RankState.INSIDE)
_TRANSITIONS: dict[str, dict[RankState, RankState]] = {
    "join": {RankState.ABSENT: RankState.IDLE},
    "arrive": dict.fromkeys(_LIVE, RankState.WAITING),
    "go": {RankState.WAITING: RankState.INSIDE},
    "rest": dict.fromkeys(_LIVE, RankState.IDLE),
    "fail": dict.fromkeys(_LIVE, RankState.FAILED),
    "leave": dict.fromkeys(_LIVE, RankState.LEFT),
    "end": dict.fromkeys(_LIVE, RankState.GONE),
}
"""A rank's state after an event. Of others, as "enter" and "go on", a rank stays in its state."""


@dataclass
class KnownRank:
    """What one rank has said."""

    state: RankState = RankState.ABSENT
    pid: int = 0
    at: str = ""
    """The barrier that it came to last, "" before the first."""
    phase: str = ""
    """The phase that it has entered since."""
    value: Any = None
    """What it brought to the barrier."""
    last: bool = False
    """Whether that is the last barrier of a measurement."""
    why: str = ""
    """Why it failed."""

    def happens(self, event: str, **fields: Any) -> None:
        """Notes an event, and what came with it."""
        self.state = _TRANSITIONS.get(event, {}).get(self.state, self.state)
        vars(self).update(fields)

    def doing(self) -> str:
        """What it did last, as a phrase."""
        if not self.at:
            return "it had not begun to measure"
        waits = self.state is RankState.WAITING
        phase = f', in phase "{self.phase}"' if self.phase else ""
        return f"{'waiting for the others before' if waits else 'last in'} {self.at}{phase}"


class RankGroup:
    """Ranks that execute a step together. They hang when none gets on for `time_limit` seconds.

    `ended` says how a rank has ended that this process has started, "" of one that has not; such
    ranks are waited for from the beginning.
    """

    def __init__(
        self, count: int, time_limit: float, ended: Callable[[int], str] | None = None
    ) -> None:
        self.ranks = [KnownRank() for _ in range(count)]
        self.at_fault: list[int] = []
        self.hang = False
        self.awaited = ended is not None
        """Whether what they bring in the end is waited for, even when none of them has begun."""
        self._ended = ended or (lambda _: "")
        self._time_limit = time_limit
        self._moved = time.monotonic()
        self.complained = 0.0
        """When a rank was first seen to keep the others waiting; 0.0 where all is well."""

    def has_come(self, number: int) -> bool:
        """Whether a process has come that is this rank."""
        return self.ranks[number].state is not RankState.ABSENT

    def goes_on(self) -> None:
        """Notes that one of them has got on."""
        self._moved = time.monotonic()

    def have(self, state: RankState) -> bool:
        """Whether any of them is in this state."""
        return any(rank.state is state for rank in self.ranks)

    def all_wait(self) -> bool:
        """Whether all have come to a barrier."""
        return all(rank.state is RankState.WAITING for rank in self.ranks)

    def apart(self) -> str:
        """What is wrong where they wait at different barriers; "" where they do not."""
        first = self.ranks[0].at
        for number, rank in enumerate(self.ranks):
            if rank.at != first:
                return (
                    f"the ranks do not execute the step equally often: rank 0 has come to {first}, "
                    f"and rank {number} to {rank.at}. Let every rank measure the same step, with "
                    "the same phases, and run tests in the same order: a plugin that shuffles them "
                    "needs one seed for all"
                )
        return ""

    def settled(self) -> str:
        """The `problem`, once it has been one for a moment."""
        problem = self.problem()
        self.complained = (self.complained or time.monotonic()) if problem else 0.0
        return problem if time.monotonic() > self.complained + SETTLING else ""

    def problem(self) -> str:
        """Why all have to stop: a rank has ended, failed, left or hangs; "" where all is well.

        One that has ended goes before those that complain of it.
        """
        for state in (RankState.ABSENT, RankState.GONE, RankState.FAILED, RankState.LEFT):
            for number, rank in enumerate(self.ranks):
                if rank.state is state and (fault := self._fault(number)):
                    self.at_fault = [number]
                    return f"rank {number}{fault}" + "".join(
                        f"\nrank {other}: {one.doing()}"
                        for other, one in enumerate(self.ranks)
                        if one is not rank
                    )
        return self._late()

    def _fault(self, number: int) -> str:
        """What this rank has done to the others."""
        rank, how = self.ranks[number], self._ended(number)
        process = f" (process {rank.pid})"
        if rank.state is RankState.ABSENT:
            return f" {how} before it began to measure" if how else ""
        if rank.state is RankState.GONE:
            return f"{process} {how or 'has ended'}; {rank.doing()}"
        if rank.state is RankState.FAILED:
            return f" failed, {rank.doing()}: {rank.why}"
        # Others in the step may wait there for the one that has left.
        inside = self.have(RankState.INSIDE) and time.monotonic() > self._moved + _GRACE
        if self.awaited or self.have(RankState.WAITING) or inside:
            return f"{process} has ended its test without measuring; {rank.doing()}"
        return ""

    def _late(self) -> str:
        """Who has not come to the barrier in time."""
        waits = self.have(RankState.WAITING) or self.have(RankState.INSIDE)
        in_time = time.monotonic() < self._moved + self._time_limit
        if in_time or not (self.awaited or waits):
            return ""
        self.hang, self.at_fault = True, []
        late, waiting = [], []
        for number, rank in enumerate(self.ranks):
            if rank.state is RankState.WAITING:
                waiting.append(f"rank {number} is {rank.doing()}")
                continue
            self.at_fault.append(number)
            out = f"(process {rank.pid}) does not come out, {rank.doing()}"
            absent = rank.state is RankState.ABSENT
            late.append(f"rank {number} {'has not begun to measure' if absent else out}")
        return (
            f"nobody got on for {self._time_limit:.0f} s, the time limit "
            "(--gpuperf-time-limit SECONDS allows more): " + "; ".join([*late, *waiting])
        )
