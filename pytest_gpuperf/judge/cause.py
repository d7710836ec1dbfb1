"""The cause of a loss: the one that fits in a sentence, and of what kind it is.

Pure, as all of the judge. Of the candidates the one that costs most time is the cause. Its kind is
that of the first rule in a table that applies. How much the step lost is what was judged, never
what the trace says.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from pytest_gpuperf.judge.alignment import (
    AlignedLaunch,
    Frame,
    LaunchChange,
    cost_of,
    numbered,
)
from pytest_gpuperf.judge.candidates import AS_BEFORE, FREES, Candidate, candidates_of, places_of
from pytest_gpuperf.judge.verdict import NO_WORK, NOT_COMPILED
from pytest_gpuperf.model.measurement import BACKWARD, GRAPH_BREAK
from pytest_gpuperf.model.result import (
    Attribution,
    CallChange,
    Cause,
    CauseKind,
    ChangeKind,
    Outcome,
    StepChange,
    Verdict,
)

TOLD = 0.25
"""The least share of the step's change that a cause must explain, if a call of the host may
be the cause."""
LAYOUT, COPY = "layout", "copy"
"""Families of kernels that compute nothing."""
_AGAIN = 0.9
"""The least share of a function's launches that repeat earlier launches, if it is called again."""
_DISTINCT = 3
"""The least number of kernels that is reported as repeated work; one kernel is just one more."""
_CAST = "aten._to_copy"
_PRECISE = 0.2
"""The share of the change that has another data type, if precision is the cause: casts follow."""
_UNFUSED = 20
"""So many launches in place of one that is gone are the same work, launched piece by piece."""
_NAMED = 3
"""The number of kernels that are named."""
_WAITS = re.compile(r"Synchronize|^(cuda|cu)Memcpy(?!.*Async)")
_ALLOCATES = re.compile(r"Malloc|Free|MemCreate|MemMap|MemAlloc|HostAlloc|HostRegister")
_COUNTED = (
    (re.compile(r"synchronizations$"), CauseKind.SYNCHRONISATION),
    (re.compile(r"^(copies$|copy_bytes_)"), CauseKind.TRANSFER),
    (re.compile(r"allocations$"), CauseKind.MEMORY),
    (re.compile(r"^(recompilations|graph_breaks|compiled_graphs)$"), CauseKind.RECOMPILATION),
)
"""The metrics of the host's work, the most telling first."""
_OF_CALLS = (CauseKind.SYNCHRONISATION, CauseKind.MEMORY, CauseKind.HOST, CauseKind.RECOMPILATION)
"""The kinds of calls of the host, the most telling first."""
_NOTHING = (0.0, 0, 0)
"""The score of a candidate that costs nothing."""
_MORE = (CauseKind.LAUNCHES, CauseKind.LAYOUT, CauseKind.COUNT)
MOVED = 0.01
"""The relative change from which a common shift of most kernels is mentioned."""
MOST_TOGETHER = 0.75
"""The common share of a loss above which no line is named for more than the rest of the loss."""
_SENT = "HtoD (Pageable"
"""A part of the name of a copy that the host waits for, and does not ask for."""


Fields = dict[str, Any]
"""The fields of a cause that differ from the suspect's usual fields."""


def cause_of(frame: Frame, found: Attribution, verdicts: Sequence[Verdict]) -> Cause | None:
    """The cause of the step's loss; None if the given verdicts show no loss.

    None as well where no code did: all kernels take so much longer, `found.shift`, as clocks have
    them. What the host is counted to do more of comes first where the step's time has not changed
    beyond its noise.
    """
    if verdicts and not any(verdict.outcome is Outcome.REGRESSED for verdict in verdicts):
        return None
    cause = _blamed(Case(frame, found.step, verdicts, candidates_of(frame, found)))
    slower = cause is not None and cause.kind is CauseKind.SLOWER
    return None if slower and _together(found) else cause


def _together(found: Attribution) -> bool:
    """Whether the shift that all kernels share is most of the loss."""
    if found.shift is None or found.shift < MOVED:
        return False
    lost = math.fsum(entry.change for entry in found.entries)
    return lost * MOST_TOGETHER <= found.shift * math.fsum(e.before for e in found.entries)


@dataclass(frozen=True)
class Case:
    """A loss, its suspect, and the evidence."""

    frame: Frame
    step: StepChange | None
    verdicts: Sequence[Verdict]
    candidates: Sequence[Candidate]
    suspect: Candidate = field(default_factory=Candidate)

    def copied(self, candidate: Candidate, way: str = "") -> list[AlignedLaunch]:
        """The copies that are new, or others than before, of the kernel that takes most.

        Of those that go one `way`, where it is given.
        """
        copies = [
            one
            for one in candidate.new
            if way in one.name and self.reason(one) is CauseKind.TRANSFER
        ]
        most = _largest((one.name, 1 + one.duration) for one in copies) if copies else ""
        return [launch for launch in copies if launch.name == most]

    @cached_property
    def main(self) -> CauseKind:
        """The reason for most of the suspect's change: of nanoseconds, or of operators."""
        parts = dict.fromkeys(_OF_MAIN, 0.0)
        for change in self.suspect.changes:
            if change.kind is not ChangeKind.SAME or not self.frame.timed:
                parts[self._reason_of(change)] += change.cost
        kind = max(parts, key=lambda one: parts[one])
        if parts[kind] > 0:
            return kind
        return CauseKind.LAUNCHES if self.suspect.bound else CauseKind.SLOWER

    def _reason_of(self, change: LaunchChange) -> CauseKind:
        if change.kind in (ChangeKind.SLOWER, ChangeKind.FASTER):
            return CauseKind.SLOWER
        if change.kind is ChangeKind.SAME:
            return CauseKind.COUNT
        kind = self.reason(change.launch)
        if change.former and kind is CauseKind.LAUNCHES:
            alike = change.launch.name == change.former.name
            return CauseKind.SLOWER if alike else CauseKind.ALGORITHM
        return kind

    def reason(self, launch: AlignedLaunch) -> CauseKind:
        """The reason for another number of launches of this kernel."""
        if launch.family == COPY and "memset" not in launch.name.lower():
            return CauseKind.TRANSFER
        copying = launch.family == LAYOUT or launch.counts["layout_copies"]
        return CauseKind.LAYOUT if copying else CauseKind.LAUNCHES

    @cached_property
    def modules(self) -> set[str]:
        """The modules of the suspect's changes; "" is outside of all, which lines do not name."""
        changed = (one for one in self.suspect.changes if one.kind is not ChangeKind.SAME)
        return {*self.suspect.modules, *(one.launch.module for one in changed)} or {""}

    @cached_property
    def within(self) -> list[list[AlignedLaunch]]:
        """All launches of the function in the modules where it changed, now and before."""
        return [[one for one in side if self._is_its(one)] for side in self.frame.launches]

    def _is_its(self, launch: AlignedLaunch) -> bool:
        if not self.frame.located:
            return launch.family == self.suspect.family
        if self.phase and not launch.backward:
            return False
        suspect = numbered(self.suspect.line)[0], self.suspect.function
        if self.suspect.called:
            return suspect in [(numbered(line)[0], of) for line, of in places_of(launch)]
        place = numbered(launch.place[0])[0], launch.place[1]
        return place == suspect and launch.module in self.modules

    @cached_property
    def phase(self) -> str:
        """BACKWARD if the additional cost is in the backward pass alone."""
        more = [one for one in self.suspect.changes if one.cost > 0]
        return BACKWARD if more and all(one.launch.backward for one in more) else ""

    @cached_property
    def repeat(self) -> Fields:
        """The function called more often, if that is most of the suspect's additional work."""
        repeats = self.suspect.repeats
        more = math.fsum(one.cost for one in self.suspect.changes if one.cost > 0)
        most = max(repeats, key=lambda one: repeats[one], default=None)
        if most is None or 2 * sum(repeats.values()) < more:
            return {}
        phase = BACKWARD if most.backward else ""
        return {"callee": most.function, "executions": (most.before, most.after), "phase": phase}

    @cached_property
    def types(self) -> Fields:
        """The data types now and before, and the family of the kernels whose type changed."""
        if not self.frame.timed:
            return self._retyped()
        now, then = _types(self.suspect.new), _types(self.suspect.gone)
        total = math.fsum(weight for types in now.values() for _, weight in types)
        usual = {one.then.dtype for one in self.suspect.of(*AS_BEFORE) if one.then} - {""}
        found = []
        for family, types in now.items():
            told = _largest(types)
            before = _largest(then[family]) if family in then else ""
            if not before and told == "float64" and told not in usual:
                before = min(usual, default="")
            weight = math.fsum(weight for one, weight in types if one == told)
            if told and before and told != before and weight >= _PRECISE * total:
                found.append((weight, told, before, family))
        if not found:
            return {}
        _, told, before, family = max(found)
        return {"what": told, "formerly": before, "family": family}

    def _retyped(self) -> Fields:
        """The types of the first operator whose result has another type, and casts to that type."""
        changes = self.frame.changes
        casts = [
            one for one in changes if one.kind is ChangeKind.ADDED and one.launch.short == _CAST
        ]
        found = []
        for types in {one.retyped for one in changes if one.retyped}:
            its = [one for one in changes if one.retyped == types]
            its += [one for one in casts if one.launch.dtype == types[1]]
            found.append((cost_of(its), types, its))
        grown, (then, now), its = max(found, key=lambda one: one[:2], default=(0.0, ("", ""), []))
        if grown <= 0 or grown < _PRECISE * cost_of(changes):
            return {}
        first = min((one.launch for one in its), key=lambda launch: launch.position)
        return {
            "line": first.place[0],
            "function": first.place[1],
            "modules": (first.module,) * bool(first.module),
            "what": now,
            "formerly": then,
        }

    @cached_property
    def times(self) -> int | None:
        """The factor by which the suspect repeats its work; None if the work is different."""
        if not self.suspect.function or self.suspect.of(ChangeKind.REPLACED):
            return None
        # What is computed twice need not be differentiated twice.
        forward = [[one for one in side if not one.backward] for side in self.within]
        new, old = forward if all(forward) and self.frame.timed else self.within
        after, before = (Counter(launch.key for launch in side) for side in (new, old))
        times = round(len(new) / len(old)) if old else 0
        if times < 2:
            return None
        alike = sum(min(after[key], times * count) for key, count in before.items())
        return times if alike >= _AGAIN * max(len(new), times * len(old)) else None

    @property
    def again(self) -> bool:
        """Whether most of the added launches are launches that the modules already make."""
        added, replaced = self.suspect.added, self.suspect.of(ChangeKind.REPLACED)
        if not (self.frame.timed and self.suspect.function) or len(replaced) > len(added) / 10:
            return False
        same = (one.launch for one in self.frame.changes if one.kind in AS_BEFORE)
        known = {launch.key for launch in same if launch.module in self.modules}
        again = [launch for launch in added if launch.key in known]
        mine, every = (math.fsum(one.cost for one in side) for side in (again, added))
        distinct = {launch.name for launch in again}
        return len(distinct) >= _DISTINCT and mine >= _AGAIN * every > 0

    @cached_property
    def instead(self) -> Fields:
        """The kernel that does most of what another kernel did, and that other kernel.

        A line does it otherwise where all its kernels of a family are gone, and others have come.
        """
        still = {(launch.place, launch.family) for launch in self.frame.launches[0]}
        left = (one.launch for one in self.suspect.of(ChangeKind.REMOVED) if _computes(one.launch))
        gone = [launch for launch in left if (launch.place, launch.family) not in still]
        come = [launch for launch in self.suspect.added if _computes(launch)]
        # Of operators views cost nothing, and backward only follows.
        many = self.suspect.added if self.frame.timed else come
        few = len(many) <= _UNFUSED * len(gone)
        come, gone = ([o for o in side if not o.backward] or side for side in (come, gone))
        if not (self.frame.located and gone and come and few):
            return {}
        now, then = (_largest((one.short, one.cost) for one in side) for side in (come, gone))
        new, old = ({one.short for one in side} for side in self.within)
        # There are few operators: one is used for another only where it was not used before.
        alike = now == then or (not self.frame.timed and (now in old or then in new))
        return {} if alike else {"what": now, "formerly": then}


def _blamed(case: Case) -> Cause | None:
    """The cause that is blamed; None if nothing stands out and the step is not slower."""
    # Work that is gone is at no line of the step as it is now.
    regressed = [
        verdict
        for verdict in case.verdicts
        if verdict.outcome is Outcome.REGRESSED and verdict.reason != NO_WORK
    ]
    for lost in (verdict for verdict in regressed if verdict.reason == NOT_COMPILED):
        return _by_count(case, CauseKind.RECOMPILATION, lost)
    counts = [(kind, v) for says, kind in _COUNTED for v in regressed if says.search(v.metric)]
    if not case.frame.timed:
        counts = [one for one in counts if one[0] is CauseKind.RECOMPILATION]
    first = counts[0] if counts else None
    step, slower = case.step, bool(case.step and case.step.slower)
    alone = step or not case.frame.timed or len(counts) == len(regressed)
    if first and not slower and alone:
        return _by_count(case, *first)
    worst = max(case.candidates, key=lambda one: one.score, default=case.suspect)
    if worst.score <= _NOTHING:
        for counted in (v.metric for v in regressed if not case.frame.timed):
            if all(any(x.counts.get(counted) is not None for x in s) for s in case.frame.launches):
                return _cause(case, CauseKind.UNKNOWN, {"what": counted})
        if first:
            return _by_count(case, *first)
        return _cause(case, CauseKind.UNKNOWN, {}) if slower else None
    if step and slower and worst.score[0] < TOLD * step.change:
        # The trace does not see the loss; a call that is new may be it.
        calling = max(case.candidates, key=lambda one: (one.more, one.score))
        if calling.more > 0:
            return _by_calls(case, calling)
        if first:
            return _by_count(case, *first)
    if worst.more > 0 and (worst.idle >= worst.change or _only_copies(worst)):
        return _by_calls(case, worst)
    case = replace(case, suspect=worst)
    known = [one for one in counts if one[0] is not CauseKind.TRANSFER]
    return _by_count(case, *known[0]) if known and _waited_for(case) else _by_trace(case)


def _by_calls(
    case: Case, suspect: Candidate, counted: CauseKind = CauseKind.SYNCHRONISATION
) -> Cause:
    """The host waits, or asks for memory; of both the one that was `counted`, where known."""
    case = replace(case, suspect=suspect)
    called = {kind: _calls_of(suspect, kind) for kind in (counted, *_OF_CALLS)}
    kind = next(kind for kind, calls in called.items() if calls)
    if kind is CauseKind.SYNCHRONISATION and _sends(suspect, called[kind]):
        return _cause(case, CauseKind.TRANSFER, _of_copies(case, _SENT))
    return _cause(case, kind, _of_calls(case, called[kind]))


def _by_count(case: Case, kind: CauseKind, count: Verdict) -> Cause:
    """A metric counts more, at the line that does it, where one is known."""
    calling = max(
        case.candidates, key=lambda one: _more(_calls_of(one, kind)), default=case.suspect
    )
    if _calls_of(calling, kind):
        return _by_calls(case, calling, kind)
    copying = max(case.candidates, key=lambda one: len(case.copied(one)), default=case.suspect)
    if kind is CauseKind.TRANSFER and case.copied(copying):
        case = replace(case, suspect=copying)
        return _cause(case, kind, _of_copies(case))
    before, after = (round(value or 0.0) for value in (count.baseline, count.measured))
    said: Fields = {"what": count.metric, "before": before, "after": after}
    if count.unit == "bytes":
        said |= {"before": 0, "after": 0, "bytes": float(after - before)}
    return _cause(case, kind, said)


def _by_trace(case: Case) -> Cause:
    """What the suspect's launches and idle times show, by the first rule that applies."""
    kind, fields = next((kind, fields) for applies, kind, fields in _RULES if applies(case))
    return _cause(case, kind or case.main, fields(case))


def _sends(candidate: Candidate, waits: Sequence[CallChange]) -> bool:
    """Whether the host waits because it sends data to the GPU out of pageable memory."""
    sent = [
        change
        for change in candidate.of(ChangeKind.ADDED, ChangeKind.REPLACED)
        # Out of memory that was pinned before as well.
        if _SENT in change.launch.name and not (change.former and _SENT in change.former.name)
    ]
    return _more(waits) <= len(sent)


def _only_copies(candidate: Candidate) -> bool:
    """Whether all additional launches are copies, and no launch is replaced."""
    copies = bool(candidate.added) and all(one.family == COPY for one in candidate.added)
    return copies and not candidate.of(ChangeKind.REPLACED)


def _waited_for(case: Case) -> bool:
    """Whether the GPU waits for the host at the suspect, and not for launches."""
    return case.suspect.idle > case.suspect.change and not case.suspect.bound


def _reformats(case: Case) -> bool:
    """Whether most of what changed are conversions of formats: some come, and others go."""
    sides = case.suspect.new, case.suspect.gone
    converted = [sum(case.reason(x) is CauseKind.LAYOUT for x in side) for side in sides]
    return all(converted) and 2 * sum(converted) >= sum(map(len, sides))


def _cause(case: Case, kind: CauseKind, fields: Fields) -> Cause:
    suspect = case.suspect
    step = case.step if case.step and case.step.slower else None
    new, old = ([], []) if kind in (CauseKind.HOST, CauseKind.UNKNOWN) else case.within
    known: Fields = {
        "line": suspect.line,
        "function": suspect.function,
        "modules": suspect.modules,
        "family": suspect.family,
        "before": len(old),
        "after": len(new),
        "change": step.change if step else None,
        "relative": step.relative if step else None,
        "traced": suspect.change + suspect.idle if case.frame.timed else None,
        "phase": case.phase,
    }
    return Cause(kind=kind, **{**known, **fields})


def _of_calls(case: Case, calls: Sequence[CallChange]) -> Fields:
    """The call that increased most; for memory, a call that gives memory back."""
    most = max(calls, key=lambda call: (bool(FREES.search(call.name)), call.after - call.before))
    modules = tuple(dict.fromkeys(module for call in calls for module in call.modules))
    return {
        "line": most.line or case.suspect.line,
        "modules": modules or case.suspect.modules,
        "what": most.name,
        "before": sum(call.before for call in calls),
        "after": sum(call.after for call in calls),
    }


def _of_copies(case: Case, way: str = "") -> Fields:
    """The suspect's copies that take most, of those that go one `way`, where it is given."""
    name = case.copied(case.suspect, way)[0].name
    after, before = (sum(launch.name == name for launch in side) for side in case.within)
    return {"what": name, "family": COPY, "before": before, "after": after}


def _of_layout(case: Case) -> Fields:
    """The kernel that converts most to another memory format."""
    what = _largest(
        (change.launch.short, change.cost)
        for change in case.suspect.changes
        if change.kind not in (ChangeKind.SAME, ChangeKind.REMOVED)
        and case.reason(change.launch) is CauseKind.LAYOUT
    )
    after, before = (sum(launch.short == what for launch in side) for side in case.within)
    return {"what": what, "before": before, "after": after, "family": LAYOUT}


def _of_algorithms(case: Case) -> Fields:
    """The kernel whose cost exceeds most that of the kernel it replaces."""
    now, then = _largest(
        ((change.launch.name, change.former.name), change.cost)
        for change in case.suspect.of(ChangeKind.REPLACED)
        if change.former and change.launch.name != change.former.name
    )
    short = {one.name: one.short for side in case.frame.launches for one in side}
    return {"what": short[now], "formerly": short[then]}


def _of_added(case: Case) -> Fields:
    """The short names of the new kernels, the longest first; of operators, those that compute."""
    totals = _sums((launch.short, launch.cost) for launch in case.suspect.added)
    sizes = {launch.short: [-(x or 0.0) for x in launch.size] for launch in case.suspect.added}
    names = sorted(totals, key=lambda name: (sizes[name], -totals[name], name))
    more = len(names) - _NAMED
    return {"what": ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")}


def _of_repeat(case: Case) -> Fields:
    """The function called more often, and the number of additional launches from that."""
    removed = len(case.suspect.of(ChangeKind.REMOVED))
    return {**_of_added(case), **case.repeat, "before": removed, "after": len(case.suspect.added)}


def _of_count(case: Case) -> Fields:
    """The count that grew at the line, with the repeated function if that is the reason."""
    where, called = (case.suspect.line, case.suspect.function), case.suspect.called
    its = [
        one
        for one in case.frame.changes
        if where == one.launch.place or (called and where in places_of(one.launch))
        if one.launch.backward or not case.phase
    ]
    sides = ([one.now for one in its], [one.then for one in its])
    after, before = (round(cost_of(filter(None, side))) for side in sides)
    larger = (change.launch for change in case.frame.changes if _larger(change))
    first = min(larger, key=lambda launch: launch.position, default=None)
    elsewhere = first and any(map(_larger, its)) and where[1] not in first.functions
    since = " ".join(first.place) if first and elsewhere else ""
    return {"what": case.frame.explained, "before": before, "after": after, "since": since}


def _larger(change: LaunchChange) -> bool:
    """Whether the launch is the same operator, with more to do."""
    if not change.former or change.launch.backward:
        return False
    sizes = zip(change.launch.size, change.former.size, strict=True)
    return any((now or 0.0) > (then or 0.0) for now, then in sizes)


def _of_slower(case: Case) -> Fields:
    """The kernel whose time grew most."""
    changes = case.suspect.of(*AS_BEFORE, ChangeKind.REPLACED)
    longer = [(change.launch.short, change.cost) for change in changes]
    return {"what": _largest(longer) if longer else ""}


_OF_MAIN: dict[CauseKind, Callable[[Case], Fields]] = {
    CauseKind.LAYOUT: _of_layout,
    CauseKind.TRANSFER: _of_copies,
    CauseKind.ALGORITHM: _of_algorithms,
    CauseKind.LAUNCHES: _of_added,
    CauseKind.COUNT: _of_count,
    CauseKind.SLOWER: _of_slower,
}
"""The fields by the reason for most of a change; if several reasons tie, the first."""
_RULES: tuple[tuple[Callable[[Case], object], CauseKind | None, Callable[[Case], Fields]], ...] = (
    (_waited_for, CauseKind.HOST, lambda _: {}),
    (lambda c: c.types, CauseKind.PRECISION, lambda c: c.types),
    (lambda c: c.repeat, CauseKind.LAUNCHES, _of_repeat),
    (lambda c: c.times, CauseKind.REPEATED, lambda c: {**_of_added(c), "times": c.times}),
    (lambda c: c.main in _MORE and c.instead, CauseKind.ALGORITHM, lambda c: c.instead),
    # Kernels for tensors in another format come with it.
    (lambda c: c.main is CauseKind.ALGORITHM and _reformats(c), CauseKind.LAYOUT, _of_layout),
    (lambda c: c.main is CauseKind.LAUNCHES and c.again, CauseKind.REPEATED, _of_added),
    (lambda _: True, None, lambda c: _OF_MAIN[c.main](c)),
)
"""The kind and fields of a cause, by the first condition that applies. None is the reason for most
of the change."""


def _types(launches: Iterable[AlignedLaunch]) -> dict[str, list[tuple[str, float]]]:
    """The data types of these launches by family, each with its time; without mere copies."""
    types: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for launch in filter(_computes, launches):
        types[launch.family].append((launch.dtype, launch.duration))
    return types


def _computes(launch: AlignedLaunch) -> bool:
    """Whether a launch is no mere copy; for operators, whether it has floating-point operations."""
    return launch.family not in (LAYOUT, COPY) and bool(launch.duration or launch.counts["flops"])


_N = TypeVar("_N", bound="str | tuple[str, str]")


def _sums(weighted: Iterable[tuple[_N, float]]) -> dict[_N, float]:
    totals: dict[_N, float] = defaultdict(float)
    for name, weight in weighted:
        totals[name] += weight
    return totals


def _largest(weighted: Iterable[tuple[_N, float]]) -> _N:
    """The name with the largest sum of weights."""
    totals = _sums(weighted)
    return max(totals, key=lambda name: (totals[name], name))


def _kind_of_call(name: str) -> CauseKind:
    if name.startswith(GRAPH_BREAK):
        return CauseKind.RECOMPILATION
    if _WAITS.search(name):
        return CauseKind.SYNCHRONISATION
    return CauseKind.MEMORY if _ALLOCATES.search(name) else CauseKind.HOST


def _calls_of(candidate: Candidate, kind: CauseKind) -> list[CallChange]:
    """The candidate's calls of this kind that are made more often."""
    more = [call for call in candidate.calls if call.after > call.before]
    return [call for call in more if _kind_of_call(call.name) is kind]


def _more(calls: Iterable[CallChange]) -> int:
    return sum(call.after - call.before for call in calls)
