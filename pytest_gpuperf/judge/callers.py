"""Who made a step do more: a line that costs more, or one that calls it more often, or otherwise.

Pure, as all of the judge. A launch that was added is the work of the innermost function that is
executed as often as before: what it calls is not. What costs more, and does not where others call
the same line, is its caller's work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from pytest_gpuperf.judge.alignment import AlignedLaunch, Frame, LaunchChange, Place
from pytest_gpuperf.model.measurement import Caller, last_engine
from pytest_gpuperf.model.result import ChangeKind

_Path = tuple[str, ...]
"""A function, and those that called it, the innermost first."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """What a line calls more often than before: a function, or autograd's engine."""

    function: str
    before: int
    after: int


class Blame:
    """Finds the line that made each change of a step."""

    def __init__(self, frame: Frame) -> None:
        # A function that is new may do what was done elsewhere: as often as now.
        same = (change.launch for change in frame.changes if change.former)
        self._executions = {path: one.executions for x in same for path, one in _nodes(x)}
        self._executions |= {
            path: one.executions for x in frame.old.launches for path, one in _nodes(x)
        }
        self._unchanged: dict[tuple[str, bool, Place], set[tuple[Place, ...]]] = defaultdict(set)
        for change in frame.changes:
            if change.former and not (change.cost or change.retyped):
                self._unchanged[_line(change.launch)].add(places_of(change.launch))

    def of(self, change: LaunchChange) -> tuple[Place, Repeat | None]:
        """The line and its function, with what it repeats where that is why."""
        launch = change.launch
        if change.kind is ChangeKind.ADDED:
            nodes, engine = [*_nodes(launch)], last_engine(launch.frames)
            for way in (nodes[:engine], nodes[engine:]):
                if found := self._repeating(way):
                    return found
        grown = change.kind is ChangeKind.ADDED or change.cost > 0
        places, others = places_of(launch), self._unchanged.get(_line(launch), set())
        if grown and others and places not in others:
            differs = max(_alike(places, other) for other in others)
            return places[min(differs, len(places) - 1)], None
        return launch.place, None

    def _repeating(self, way: Sequence[tuple[_Path, Caller]]) -> tuple[Place, Repeat] | None:
        """The first that is executed as often as before, where what it calls is not."""
        last: Repeat | None = None
        for path, one in way:
            before = self._executions.get(path, 0)
            if one.executions > before:
                last = Repeat(one.function, before, one.executions)
            elif last is None:
                return None
            elif one.line:
                return (one.line, one.function), last
        return None


def _nodes(launch: AlignedLaunch) -> Iterator[tuple[_Path, Caller]]:
    """Each function that it is called in, with its callers.

    Those of the backward pass are no callers of those that made what it is of.
    """
    functions, engine = launch.functions, last_engine(launch.frames)
    for number, one in enumerate(launch.frames):
        yield functions[number : engine if number < engine else None], one


def places_of(launch: AlignedLaunch) -> tuple[Place, ...]:
    """Its line and those of its callers, but for those of the backward pass."""
    forward = takewhile(lambda one: one.line, launch.frames[: last_engine(launch.frames)])
    return tuple((one.line, one.function) for one in forward)


def _line(launch: AlignedLaunch) -> tuple[str, bool, Place]:
    return launch.short, launch.backward, launch.place


def _alike(one: Sequence[Place], other: Sequence[Place]) -> int:
    """How many of both are the same, from the beginning on."""
    return len([*takewhile(lambda both: both[0] == both[1], zip(one, other, strict=False))])
