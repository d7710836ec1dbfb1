"""Candidates for the cause of a loss: functions, or families of kernels where no line is known.

Pure, as all of the judge. A candidate is a function whose launches, idle times or calls of the host
changed; `cause` says the kind of its loss. A launch that was added is the work of the
innermost function that is executed as often as before: what it calls is not. What costs more, and
does not where others call the same line, is its caller's work.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import takewhile

from pytest_gpuperf.judge.alignment import (
    AlignedLaunch,
    Frame,
    LaunchChange,
    Place,
    numbered,
)
from pytest_gpuperf.model.measurement import Caller
from pytest_gpuperf.model.result import Attribution, CallChange, ChangeKind

_Path = tuple[str, ...]
"""A function and its callers, the innermost first."""
CONFIRMED = 0.5
"""The part of a gap's change that the step has to have lost, at its worst, to confirm it."""
_LAUNCHED = 1e5
"""Nanoseconds that the host takes at most for one launch, with all that torch does for it. A GPU
that waits no longer than that for each that is another one waits for them."""
FREES = re.compile(r"Free|MemRelease|MemUnmap|HostUnregister")
"""Calls that give memory back to the driver."""

_LITTLE = 1e-6
"""The weight of an operator that costs nothing."""
AS_BEFORE = (ChangeKind.SAME, ChangeKind.SLOWER, ChangeKind.FASTER)
"""The kinds of launches that are the same as before, whatever time they take."""
_OTHERS = (ChangeKind.ADDED, ChangeKind.REMOVED, ChangeKind.REPLACED)
"""The kinds of launches that came, went, or are others."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """A function, or autograd's engine, that a line calls more often than before."""

    function: str
    before: int
    after: int
    backward: bool = False
    """Whether the function is executed in the backward pass, which computes it again."""


@dataclass
class Candidate:
    """A change at one function, or in one family if no line is known."""

    line: str = ""
    function: str = ""
    family: str = ""
    modules: tuple[str, ...] = ()
    change: float = 0.0
    """The change of launches in nanoseconds; of operators, in the metric that is explained."""
    idle: float = 0.0
    """Nanoseconds in which nothing ran while the host was there."""
    changes: list[LaunchChange] = field(default_factory=list)
    """The fate of each of the candidate's launches."""
    calls: list[CallChange] = field(default_factory=list)
    repeats: dict[Repeat, float] = field(default_factory=lambda: defaultdict(float))
    """The functions called more often than before, each with the share of changes that repeats."""
    called: bool = False
    """Whether changes of functions that the candidate calls are its own."""
    bound: bool = False
    """Whether the idle time comes from the launches: the host needs that time to launch them."""

    @property
    def score(self) -> tuple[float, int, int]:
        """The time that the candidate costs. If equal, the calls decide, then the launches."""
        return (
            self.change + self.idle,
            self.more,
            len(self.added) - len(self.of(ChangeKind.REMOVED)),
        )

    @property
    def more(self) -> int:
        """The number of additional calls that the host makes at the candidate."""
        return sum(call.after - call.before for call in self.calls)

    def of(self, *kinds: ChangeKind) -> list[LaunchChange]:
        """The candidate's changes of these kinds."""
        return [change for change in self.changes if change.kind in kinds]

    @property
    def added(self) -> list[AlignedLaunch]:
        """The candidate's added launches."""
        return [change.launch for change in self.of(ChangeKind.ADDED)]

    @property
    def new(self) -> list[AlignedLaunch]:
        """The candidate's launches that were added, or replace others."""
        return [change.launch for change in self.of(ChangeKind.ADDED, ChangeKind.REPLACED)]

    @property
    def gone(self) -> list[AlignedLaunch]:
        """The candidate's launches that were removed or replaced."""
        changes = self.of(ChangeKind.REMOVED, ChangeKind.REPLACED)
        return [change.then for change in changes if change.then]


def candidates_of(frame: Frame, found: Attribution) -> list[Candidate]:
    """All functions, or families, for which `found` has a change."""
    candidates = _by_function(frame, found) if frame.located else _by_family(frame, found)
    for call in found.calls:
        _at(candidates, call.line, call.function, call.modules).calls.append(call)
    _blame_gap(candidates, found)
    return list(candidates.values())


def _by_function(frame: Frame, found: Attribution) -> dict[Place, Candidate]:
    """The changes by function: several lines of one function are one change, at the worst line."""
    candidates: dict[Place, Candidate] = {}
    changed: dict[Place, Candidate] = {}
    for line in sorted(found.lines, key=lambda one: -one.change):
        one = _at(candidates, line.line, line.function, line.modules)
        one.change += line.change
        changed[line.line, line.function] = one
    blame = Blame(frame)
    weights: dict[Place, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for change in frame.changes:
        if change.launch.place not in changed:
            continue
        one = changed[change.launch.place]
        place, repeat = blame.of(change)
        if place != change.launch.place:
            one.change -= change.cost if frame.timed else 0.0
            one = _at(candidates, *place)
            one.called = True
            one.change += change.cost if frame.timed else 0.0
        one.changes.append(change)
        one.change += 0.0 if frame.timed else change.cost
        weight = change.cost + _LITTLE * (change.kind is not ChangeKind.SAME)
        weights[numbered(place[0])[0], place[1]][place[0]] += weight
        if repeat:
            one.repeats[repeat] += weight
    for key, one in candidates.items():
        if one.called:
            one.line = max(weights[key], key=weights[key].__getitem__)
    return candidates


def _by_family(frame: Frame, found: Attribution) -> dict[Place, Candidate]:
    """The changes by family, if tables do not say where launches come from."""
    candidates: dict[Place, Candidate] = {}
    for change in frame.changes:
        family = change.launch.family
        candidates.setdefault(("", family), Candidate(family=family)).changes.append(change)
    for entry in found.entries:
        if entry.significant and ("", entry.family) in candidates:
            candidates["", entry.family].change += entry.change
    return candidates


def _at(
    candidates: dict[Place, Candidate], line: str, function: str, modules: Iterable[str] = ()
) -> Candidate:
    """The candidate of the function that this line is in."""
    key = numbered(line)[0], function
    one = candidates.setdefault(key, Candidate(line, function))
    one.modules = tuple(dict.fromkeys((*one.modules, *modules)))
    return one


def _blame_gap(candidates: dict[Place, Candidate], found: Attribution) -> None:
    """Adds the gaps' change, where the step confirms it, to what made the host late.

    Where the host calls more than before, that is at the lines that it was at, and at those calls.
    Else, where it launches others, at those: the GPU is idle at another line in each trace of a
    step that the host bounds, and launches are counted. Only then at the lines alone.
    """
    (gap,) = (entry for entry in found.entries if entry.kind is ChangeKind.GAP)
    step = found.step
    confirmed = step is None or (step.slower and step.high >= CONFIRMED * gap.change)
    if not (gap.significant and confirmed and gap.change > 0):
        return
    known = list(candidates.values())
    calling = max(known, key=lambda one: one.more, default=None)
    late = calling if calling and calling.more > 0 else None
    if late is None:
        others = max(known, key=lambda one: (len(one.of(*_OTHERS)), one.change), default=None)
        least = step.low if step else gap.change
        if others and least <= _LAUNCHED * len(others.of(*_OTHERS)):
            others.idle += gap.change
            others.bound = True
            return
    for part in found.idle:
        _at(candidates, part.line, part.function).idle += part.change
    rest = gap.change - math.fsum(part.change for part in found.idle if part.change > 0)
    if rest > 0:
        late = late or candidates.setdefault(("", ""), Candidate())
        late.idle += rest


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
