"""The line that made a step do more: it costs more, or calls another more often, or otherwise.

Pure, as all of the judge. A launch that was added is the work of the innermost function that is
executed as often as before: what it calls is not. What costs more, and does not where others call
the same line, is its caller's work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile

from pytest_gpuperf.judge.alignment import AlignedLaunch, Frame, LaunchChange, Place
from pytest_gpuperf.model.measurement import Caller
from pytest_gpuperf.model.result import ChangeKind

_Path = tuple[str, ...]
"""A function and its callers, the innermost first."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """A function, or autograd's engine, that a line calls more often than before."""

    function: str
    before: int
    after: int
    backward: bool = False
    """Whether the function is executed in the backward pass, which computes it again."""


class Blame:
    """Finds the line that made each change of a step."""

    def __init__(self, frame: Frame) -> None:
        self._timed = frame.timed
        self._executions: dict[_Path, int] = {}
        self._unchanged: dict[tuple[str, bool, Place], set[tuple[Place, ...]]] = defaultdict(set)
        for change in frame.changes:
            if change.former:
                # What calls it may be new, and a function too that does what was done elsewhere.
                former = {one.function: one.executions for one in reversed(change.former.frames)}
                for path, one in _nodes(change.launch):
                    self._executions[path] = former.get(one.function, one.executions)
                if not (change.cost or change.retyped):
                    self._unchanged[_line(change.launch)].add(places_of(change.launch))
        before = {path: one.executions for old in frame.old.launches for path, one in _nodes(old)}
        self._executions |= before
        self._has_executions = any(before.values())
        """Whether the old side's tables have them: those of older baselines do not."""

    def of(self, change: LaunchChange) -> tuple[Place, Repeat | None]:
        """The line and its function, with the repeated function if a repeat is the reason."""
        launch = change.launch
        is_new = change.kind is ChangeKind.ADDED and self._has_executions
        if is_new and (found := self._repeating(launch)):
            return found
        places, others = places_of(launch), self._unchanged.get(_line(launch), set())
        if change.cost > 0 and others and places not in others:
            both = (zip(places, other, strict=False) for other in others)
            alike = max(len([*takewhile(lambda at: at[0] == at[1], way)]) for way in both)
            return places[min(alike, len(places) - 1)], None
        return launch.place, None

    def _repeating(self, launch: AlignedLaunch) -> tuple[Place, Repeat] | None:
        """The first function that is executed as often as before, while its callee is not.

        Of the backward pass that may be who made what it is of, or else who ran the engine.
        """
        last: Repeat | None = None
        as_before = False
        for path, one in _nodes(launch):
            before = self._executions.get(path, 0)
            if one.line and as_before:
                continue  # and so are those that call it
            if self._timed and not before:
                last = None  # it may have been there, and launched nothing
                continue
            as_before = one.executions <= before
            if as_before and last and one.line:
                return (one.line, one.function), last
            if as_before:
                last = None
            elif one.line or not last:
                last = Repeat(one.function, before, one.executions)
            else:
                last = replace(last, backward=True)
        return None


def _nodes(launch: AlignedLaunch) -> Iterator[tuple[_Path, Caller]]:
    """Each function in which the launch is called, with its callers up to autograd's engine."""
    ends = [number for number, one in enumerate(launch.frames) if not one.line]
    for number, one in enumerate(launch.frames):
        end = next((end for end in ends if end > number), None)
        yield launch.functions[number:end], one


def places_of(launch: AlignedLaunch) -> tuple[Place, ...]:
    """The launch's line and the lines of its callers, up to autograd's engine."""
    return tuple((o.line, o.function) for o in takewhile(lambda one: one.line, launch.frames))


def _line(launch: AlignedLaunch) -> tuple[str, bool, Place]:
    return launch.short, launch.backward, launch.place
