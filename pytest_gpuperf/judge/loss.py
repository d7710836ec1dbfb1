"""Who may have made a step worse: functions, or families of kernels where no line is known.

Pure, as all of the judge. A candidate is a function whose launches, idle times or calls of the host
changed; of what kind its loss is, `headline` says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from pytest_gpuperf.judge.alignment import LaunchSequence, Pair, Pairing, Place, numbered
from pytest_gpuperf.model.result import (
    CallChange,
    ChangeKind,
    IdleChange,
    KernelChange,
    LineChange,
    StepChange,
    Verdict,
)

CONFIRMED = 0.5
"""The part of a gap's change that the step has to have lost, at its worst, to confirm it."""
_LAUNCHED = 1e5
"""Nanoseconds that the host takes at most for one launch, with all that torch does for it. A GPU
that waits no longer than that for each that is another one waits for them."""
FREES = re.compile(r"Free|MemRelease|MemUnmap|HostUnregister")
"""Calls that give memory back to the driver."""


@dataclass(frozen=True)
class Evidence:
    """Two steps that were compared, launch by launch."""

    new: LaunchSequence
    old: LaunchSequence
    pairing: Pairing
    places: tuple[Sequence[Place], Sequence[Place]] | None
    """Where each launch comes from, now and before, by the lines that there are now; None where
    nobody looked."""
    family: Callable[[str], str]
    short: Callable[[str], str]
    timed: bool
    """Whether launches have times: operators have none."""
    step: StepChange | None
    verdicts: Sequence[Verdict]
    """On the step."""

    def weight(self, i: int | None, j: int | None) -> float:
        """What a launch takes longer than the one that it stands for, or than none."""
        if not self.timed:
            return float(i is not None) - float(j is not None)
        after = 0.0 if i is None else self.new.durations[i]
        return after - (0.0 if j is None else self.old.durations[j])


@dataclass
class Candidate:
    """What changed at one function, or in one family where nobody knows the lines."""

    line: str = ""
    function: str = ""
    family: str = ""
    modules: tuple[str, ...] = ()
    change: float = 0.0
    """Nanoseconds of its launches."""
    idle: float = 0.0
    """Nanoseconds in which nothing ran while the host was there."""
    added: list[int] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    replaced: list[Pair] = field(default_factory=list)
    same: list[Pair] = field(default_factory=list)
    calls: list[CallChange] = field(default_factory=list)
    bound: bool = False
    """Whether the idle time is that of its launches: the host takes it to launch them."""

    @property
    def score(self) -> tuple[float, int, int]:
        """The time that it costs; of what takes none its calls and launches."""
        return self.change + self.idle, self.more, self.launched

    @property
    def launched(self) -> int:
        """How many more launches there are."""
        return len(self.added) - len(self.removed)

    @property
    def others(self) -> int:
        """How many launches came, went, or are others."""
        return len(self.added) + len(self.removed) + len(self.replaced)

    @property
    def freed(self) -> int:
        """How many more calls give memory back to the driver, which is then asked for it anew."""
        calls = (call for call in self.calls if FREES.search(call.name))
        return sum(call.after - call.before for call in calls)

    @property
    def more(self) -> int:
        """How many more calls the host makes there."""
        return sum(call.after - call.before for call in self.calls)


def candidates_of(
    evidence: Evidence,
    entries: Sequence[KernelChange],
    lines: Sequence[LineChange],
    calls: Sequence[CallChange],
    idle: Sequence[IdleChange],
) -> list[Candidate]:
    """Who may be it."""
    located = evidence.places is not None
    candidates = _by_function(evidence, lines) if located else _by_family(evidence, entries)
    for call in calls:
        _at(candidates, call.line, call.function, call.modules).calls.append(call)
    _blame_gap(evidence, candidates, entries, idle)
    return list(candidates.values())


def _by_function(evidence: Evidence, lines: Sequence[LineChange]) -> dict[Place, Candidate]:
    """What changed by function: several lines of one are one change, at the worst of them."""
    candidates: dict[Place, Candidate] = {}
    changed: dict[Place, Candidate] = {}
    for line in sorted(lines, key=lambda one: -one.change):
        one = _at(candidates, line.line, line.function, line.modules)
        one.change += line.change
        changed[line.line, line.function] = one
    _distribute(
        evidence,
        lambda i: changed.get(evidence.places[0][i]) if evidence.places else None,
        lambda j: changed.get(evidence.places[1][j]) if evidence.places else None,
    )
    return candidates


def _by_family(evidence: Evidence, entries: Sequence[KernelChange]) -> dict[Place, Candidate]:
    """What changed by family, where tables do not say where launches come from."""
    candidates: dict[Place, Candidate] = {}

    def of(name: str) -> Candidate:
        family = evidence.family(name)
        return candidates.setdefault(("", family), Candidate(family=family))

    _distribute(
        evidence,
        lambda i: of(evidence.new.keys[i][0]),
        lambda j: of(evidence.old.keys[j][0]),
    )
    for entry in entries:
        if entry.significant and entry.family in {family for _, family in candidates}:
            candidates["", entry.family].change += entry.change
    return candidates


def _distribute(
    evidence: Evidence,
    now: Callable[[int], Candidate | None],
    then: Callable[[int], Candidate | None],
) -> None:
    """Gives each launch to whom it belongs: `now` and `then` say so of both sides' positions."""
    pairing = evidence.pairing
    for i in pairing.added:
        if one := now(i):
            one.added.append(i)
    for j in pairing.removed:
        if one := then(j):
            one.removed.append(j)
    for i, j in pairing.replaced:
        if one := now(i):
            one.replaced.append((i, j))
    for i, j in (*pairing.matched, *pairing.moved):
        if one := now(i):
            one.same.append((i, j))


def _at(
    candidates: dict[Place, Candidate], line: str, function: str, modules: Iterable[str] = ()
) -> Candidate:
    """The candidate of the function that this line is in."""
    key = numbered(line)[0], function
    one = candidates.setdefault(key, Candidate(line, function))
    one.modules = tuple(dict.fromkeys((*one.modules, *modules)))
    return one


def _blame_gap(
    evidence: Evidence,
    candidates: dict[Place, Candidate],
    entries: Sequence[KernelChange],
    idle: Sequence[IdleChange],
) -> None:
    """Lays the gaps' change, where the step confirms it, at what made the host late.

    Where the host calls more than before that is at the lines that it was at, and at those calls.
    Else, where it launches others, at those: the GPU is idle at another line in each trace of a
    step that the host bounds, and launches are counted. Only then at the lines alone.
    """
    (gap,) = (entry for entry in entries if entry.kind is ChangeKind.GAP)
    step = evidence.step
    confirmed = step is None or (step.slower and step.high >= CONFIRMED * gap.change)
    if not (gap.significant and confirmed and gap.change > 0):
        return
    known = list(candidates.values())
    calling = max(known, key=lambda one: one.more, default=None)
    late = calling if calling and calling.more > 0 else None
    if late is None:
        others = max(known, key=lambda one: (one.others, one.change), default=None)
        least = step.low if step else gap.change
        if others and least <= _LAUNCHED * others.others:
            others.idle += gap.change
            others.bound = True
            return
    for part in idle:
        _at(candidates, part.line, part.function).idle += part.change
    rest = gap.change - math.fsum(part.change for part in idle if part.change > 0)
    if rest > 0:
        late = late or candidates.setdefault(("", ""), Candidate())
        late.idle += rest
