"""The attribution of a change in a step's time to kernels, and what speaks for the reason.

Pure, and by design not a verdict: whether a test fails is decided on the whole step; this says
where to look. Times are of traces without counters; a step's time is the sum over its launches and
the time in which nothing ran. Where kernels overlap, the sum is longer than the step took. What a
trace says of the whole step is held against the time that was judged, which nobody traced: where
the two disagree beyond both spreads, the trace is not believed, and least of all its gaps.

A kernel by itself is noisier than a step: 0.8 % between executions for one of a millisecond and
more, and several per cent for one of microseconds, whose start-up and place in the caches matter.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import fmean
from typing import Any, TypeVar

from pytest_gpuperf.judge.alignment import (
    COSTS,
    INSTRUCTIONS,
    AlignedLaunch,
    Frame,
    Key,
    LaunchChange,
    LaunchSequence,
    Place,
    by_side,
    cost_of,
    frame_of,
    operator_of,
    sequence_of,
    type_of,
)
from pytest_gpuperf.judge.candidates import AS_BEFORE
from pytest_gpuperf.judge.cause import cause_of
from pytest_gpuperf.judge.noise import PRIOR_WEIGHT, Variance, squares_of
from pytest_gpuperf.judge.stragglers import changed_rank, of_rank
from pytest_gpuperf.model.measurement import STEP, HostCall, IdleTime, KernelTable, grouped
from pytest_gpuperf.model.result import (
    Attribution,
    CallChange,
    ChangeKind,
    ChangeReason,
    IdleChange,
    KernelChange,
    LaunchCounts,
    LineChange,
    Outcome,
    StepChange,
    Verdict,
)

_Done = TypeVar("_Done", HostCall, IdleTime)
_Sides = tuple[list[AlignedLaunch], list[AlignedLaunch]]
"""Launches now, and launches before."""

NEAR_ZERO = 1e-3
"""A change of less than this share of the step's time has no shares: parts that cancel would be
many times the whole. No verdict comes from so little (delta0 is 0.5 %)."""
LEAST_SHARE = 5e-4
"""Matched kernels that take less of the step are not asked: even doubled, one would not make a step
fail. That leaves a quarter of the kernels, and with fewer questions each answer can be surer.
Those whose time changed by less of the step are not named, however sure the change: it is a tenth
of the smallest that a step fails for. Between executions of one step on an H200 a kernel moves by
up to 3.5e-4 of it once in a while, far beyond what a Student's t allows."""
INSTRUCTIONS_MOVED = 5e-3
"""From this relative change on, a kernel executes other code. Those of identical code vary by 0.2 %
where they depend on data."""
_MANY = 8
"""The smallest number of kernels from which a shift of most of them is told."""
FALSE_DISCOVERIES = 0.05
"""The share of the kernels found to differ that may be wrong (Benjamini and Hochberg)."""
KERNEL_SPREAD = 8e-3
"""The spread s0 of one kernel's time between executions that is assumed."""
SHORT_SPREAD = 6.0
"""The extra noise of short kernels: a variance of so many nanoseconds over the kernel's total. Two
tables of one step on an H200 differ as 4 to 5 would have it, from 2 us to 100 us; but with heavier
tails than Student's."""
GAP_SPREAD = 0.05
"""The relative spread, between executions, that is assumed of the time between kernels."""
_LEAST = 1.0
"""The nanoseconds below which a time has no logarithm worth taking."""
DISAGREEMENT = 5e-3
"""The rate at which the trace's interval misses the true change of the step, as a verdict's."""
ALIKE = 0.25
"""The share of the larger change by which changes may differ and still name the same cause."""
NO_MATTER = 5e-3
"""The share of the step below which a disagreement is ignored: no test fails for it (delta0)."""
_TIMES = ("step_time", "wall_time")
"""The metrics of a step's time without a trace, in milliseconds, the best first."""
_MILLISECOND = 1e6


@dataclass(frozen=True, slots=True)
class Naming:
    """The facts that names of kernels tell."""

    family: Callable[[str], str]
    """convolution-forward, gemm, normalization, elementwise, layout, optimizer, copy, other, ..."""
    short: Callable[[str], str]
    """The short name, which fits in a line."""
    dtype: Callable[[str], str]
    """The data type: float32, bfloat16, ...; "" if the name does not say."""


def attribute(
    measured: KernelTable | Sequence[KernelTable],
    baseline: KernelTable | Sequence[KernelTable],
    naming: Naming,
    verdicts: Sequence[Verdict] = (),
) -> Attribution:
    """Attributes the difference in time between `baseline` and `measured` to kernels.

    Several tables of a side are executions of the same code, such as one per process: times are
    their means, and their spread counts in the tests. With one on each side, what is known of small
    kernels is the noise (`assumed`). Operators of a CPU have no times: what is said of them is
    where their number changed. Of a step of several ranks it is the one that changed most.

    `verdicts` are those on the step that was measured: the trace is held against its time, and what
    the host is counted to do more of is a cause too. Without them the trace is all there is.
    """
    tables = [measured] if isinstance(measured, KernelTable) else measured
    before = [baseline] if isinstance(baseline, KernelTable) else baseline
    rank, alone = changed_rank(tables, before)
    tables, before = ([of_rank(table, rank) for table in side] for side in (tables, before))
    of_operators = any(table.of_operators for table in tables)
    if of_operators:
        # One is of no family: nothing but itself takes its place.
        naming = Naming(str, operator_of, type_of)
    said = [verdict for verdict in verdicts if verdict.phase == STEP]
    explained = _explained(tables, before, said) if of_operators else None
    names = naming.family, naming.short, naming.dtype
    new, old = (sequence_of(side, *names, explained) for side in (tables, before))
    step = None if of_operators else _step(said)
    reliable = step is None or _agree(new, old, step)
    frame = _tested(frame_of(new, old, explained))
    counts = Counter(change.kind for change in frame.changes)
    alike = grouped(
        frame.changes, lambda one: (one.kind, one.launch.key, one.former and one.former.key)
    )
    entries = [_entry(frame, changes) for changes in alike.values()]
    entries.append(_gap(frame, reliable=reliable))
    entries.sort(key=lambda e: (-abs(e.change), -e.change, e.short, e.kind.value))
    found = Attribution(
        before=frame.old.time,
        after=frame.new.time,
        change=frame.new.time - frame.old.time,
        relative=frame.new.time / frame.old.time - 1 if frame.old.time else None,
        explained=_share(frame, math.fsum(e.change for e in entries if e.significant)),
        shift=_shift(entries),
        launched=LaunchCounts(
            changed=[one.key for one in new.launches] != [one.key for one in old.launches],
            added=counts[ChangeKind.ADDED],
            removed=counts[ChangeKind.REMOVED],
            replaced=counts[ChangeKind.REPLACED],
            moved=sum(change.moved for change in frame.changes),
        ),
        entries=tuple(entries),
        measured_tables=len(new.idle),
        baseline_tables=len(old.idle),
        odd_tables=new.odd + old.odd,
        lines=tuple(_lines(frame)),
        calls=tuple(_calls(frame)),
        idle=tuple(_idle(frame)),
        step=step,
        reliable=reliable,
        rank=rank if alone else None,
    )
    return replace(found, cause=cause_of(frame, found, said))


def _explained(
    new: Sequence[KernelTable], old: Sequence[KernelTable], verdicts: Sequence[Verdict]
) -> str:
    """The costliest metric of COSTS that regressed, that all tables hold, and whose total grew.

    "" if no metric qualifies: then the number of operators is explained.
    """
    worse = {verdict.metric for verdict in verdicts if verdict.outcome is Outcome.REGRESSED}
    for metric in COSTS:
        known = all(metric in table.metrics for table in (*new, *old))
        if known and (metric in worse or not verdicts):
            after, before = (fmean(table.total(metric) for table in side) for side in (new, old))
            if after > before:
                return metric
    return ""


def _step(verdicts: Sequence[Verdict]) -> StepChange | None:
    """The judged change of the step's time; None if no time was judged."""
    judged = [one for metric in _TIMES for one in verdicts if one.metric == metric]
    for verdict in judged:
        if verdict.baseline is None or verdict.measured is None:
            continue
        before, after = _MILLISECOND * verdict.baseline, _MILLISECOND * verdict.measured
        low = high = after - before
        if verdict.low is not None and verdict.high is not None:
            low, high = before * verdict.low, before * verdict.high
        if verdict.outcome is Outcome.MACHINE:
            low = min(low, 0.0)  # all of it may be the machine's
        change, relative = after - before, verdict.change
        return StepChange(verdict.metric, before, after, change, relative, low, high)
    return None


def _tested(frame: Frame) -> Frame:
    """The frame with launches marked slower or faster, whose kernels' times are tested."""
    from scipy.stats import false_discovery_control

    matched = [one for one in frame.changes if one.kind is ChangeKind.SAME]
    same = grouped(matched, lambda one: one.launch.key)
    least = LEAST_SHARE * (frame.old.time + frame.new.time) / 2
    tests: dict[Key, float] = {}
    for key, own in same.items():
        after, before = (
            [math.fsum(times) for times in zip(*(launch.times for launch in side), strict=True)]
            for side in _sides(own)
        )
        size = (fmean(before) + fmean(after)) / 2
        if size >= least:
            tests[key] = distance_of(after, before, assumed(size)).p_value
    kinds: dict[Key, ChangeKind] = {}
    found = false_discovery_control([*tests.values()]) if tests else ()
    for key, p_value in zip(tests, found, strict=True):
        change = _launches(_sides(same[key]))["change"]
        if p_value <= FALSE_DISCOVERIES and abs(change) >= least:
            kinds[key] = ChangeKind.SLOWER if change > 0 else ChangeKind.FASTER
    changes = (
        replace(one, kind=kinds[one.launch.key])
        if one.kind is ChangeKind.SAME and one.launch.key in kinds
        else one
        for one in frame.changes
    )
    return replace(frame, changes=tuple(changes))


def _entry(frame: Frame, changes: Sequence[LaunchChange]) -> KernelChange:
    """An entry for launches of one kernel with the same fate."""
    kind, launch = changes[0].kind, changes[0].launch
    former = changes[0].former if kind is ChangeKind.REPLACED else None
    sides = _sides(changes)
    launched = _launches(sides)
    return KernelChange(
        kind=kind,
        cause=_reason(frame, changes[0], _counted(INSTRUCTIONS, sides)),
        family=launch.family,
        short=launch.short,
        formerly=former.short if former else "",
        **launched,
        share=_share(frame, launched["change"]),
        significant=kind is not ChangeKind.SAME,
    )


def _reason(
    frame: Frame, change: LaunchChange, instructions: tuple[float, float] | None
) -> ChangeReason:
    """The reason for other launches, or for another time of launches, as far as counters tell.

    Cycles follow the time whatever the reason, so that only instructions tell.
    """
    kind, name, former = change.kind, change.launch.name, change.former
    if kind is ChangeKind.REPLACED:
        alike = former is not None and former.name == name
        return ChangeReason.SHAPE if alike else ChangeReason.ALGORITHM
    still, known = (name in names for names in frame.kernels)
    if kind is ChangeKind.ADDED:
        return ChangeReason.MORE if known else ChangeReason.NEW
    if kind is ChangeKind.REMOVED:
        return ChangeReason.LESS if still else ChangeReason.GONE
    if kind is ChangeKind.SAME or instructions is None:
        return ChangeReason.UNKNOWN
    before, after = instructions
    moved = abs(after - before) > INSTRUCTIONS_MOVED * max(before, after)
    return ChangeReason.CODE if moved else ChangeReason.MEMORY


def _gap(frame: Frame, *, reliable: bool) -> KernelChange:
    before, after = fmean(frame.old.idle), fmean(frame.new.idle)
    test = distance_of(frame.new.idles, frame.old.idles, _gap_spread((before + after) / 2))
    # A trace that the step contradicts has lost its time here: launches take what they take.
    significant = test.p_value <= FALSE_DISCOVERIES and reliable
    reason = ChangeReason.WAITED if after > before else ChangeReason.WAITED_LESS
    return KernelChange(
        kind=ChangeKind.GAP,
        cause=reason if significant else ChangeReason.UNKNOWN,
        short="gaps between kernels",
        **_times(before, after),
        share=_share(frame, after - before),
        significant=significant,
    )


def _lines(frame: Frame) -> list[LineChange]:
    """The lines of code of all launches that were added, removed, replaced, or take longer."""
    if not frame.located:
        return []
    sides = by_side(frame.launches, lambda launch: launch.place)
    changed = {
        one.launch
        for one in frame.changes
        if one.kind is not ChangeKind.SAME or one.retyped or (one.cost and not frame.timed)
    }
    retyped = [(one.launch.place, one.retyped) for one in frame.changes if one.retyped]
    modules: dict[Place, dict[str, None]] = {}
    for launch in (launch for side in frame.launches for launch in side if launch in changed):
        modules.setdefault(launch.place, {})[launch.module] = None
    made = [
        LineChange(
            *place,
            tuple(filter(None, of)),
            **_launches(sides[place]),
            kernels=_recounted(sides[place]),
            counts=tuple(
                (metric, *counted)
                for metric in COSTS
                if (counted := _counted(metric, sides[place])) and counted[0] != counted[1]
            ),
            types=tuple(dict.fromkeys(types for at, types in retyped if at == place)),
        )
        for place, of in modules.items()
    ]
    # A kernel that takes longer at one line is launched at others too.
    least = LEAST_SHARE * frame.old.time
    made = [o for o in made if o.kernels or o.counts or o.types or abs(o.change) > least]
    costs = {at: cost_of(now) - cost_of(then) for at, (now, then) in sides.items()}

    def order(one: LineChange) -> tuple[float, float, int, str]:
        """The largest change first. Operators take no time: then their cost, then their number."""
        other = sum(abs(after - before) for _, before, after in one.kernels)
        return -abs(one.change), -costs[one.line, one.function], -other, one.line

    return sorted(made, key=order)


def _recounted(sides: _Sides) -> tuple[tuple[str, int, int], ...]:
    """The kernels whose number of launches changed, with that number before and now."""
    after, before = (Counter(launch.short for launch in side) for side in sides)
    names = sorted({*before, *after})
    return tuple((n, before[n], after[n]) for n in names if before[n] != after[n])


def _calls(frame: Frame) -> list[CallChange]:
    """The calls that the host makes more or less often than before, by line."""
    sides = by_side(_on_host(frame, lambda table: table.calls), lambda at: (at[2].name, at[0]))
    made = []
    for (name, place), (now, then) in sides.items():
        after, before = (sum(call.count for *_, call in side) for side in (now, then))
        if before != after:
            modules = dict.fromkeys(module for _, module, _ in (now if after else then))
            made.append(CallChange(name, *place, tuple(filter(None, modules)), before, after))
    return sorted(made, key=lambda c: (-abs(c.after - c.before), c.name, c.line))


def _idle(frame: Frame) -> list[IdleChange]:
    """The idle time of the GPU by the line at which the host was."""
    made = []
    sides = by_side(_on_host(frame, lambda table: table.idle_at), lambda at: at[0])
    for place, (now, then) in sides.items():
        after, before = (math.fsum(part.idle for *_, part in side) for side in (now, then))
        made.append(IdleChange(*place, **_times(before, after)))
    return sorted(made, key=lambda one: (-abs(one.change), -one.change, one.line))


def _on_host(
    frame: Frame, what: Callable[[KernelTable], Sequence[_Done]]
) -> tuple[list[tuple[Place, str, _Done]], ...]:
    """The host's activity now and before: where its line is now, the line's module, and what."""
    now, then = frame.new.host, frame.old.host
    if not (now and then):
        return [], []
    sites = [[(table.sites[one.site], one) for one in what(table)] for table in (now, then)]
    return (
        [((site.line, site.function), site.module, one) for site, one in sites[0]],
        [(frame.place_now(site), site.module, one) for site, one in sites[1]],
    )


def _sides(changes: Sequence[LaunchChange]) -> _Sides:
    """The launches of these changes, those now and those before."""
    now, then = ([c.now for c in changes], [c.then for c in changes])
    return [one for one in now if one], [one for one in then if one]


# The fields of changes


def _launches(sides: _Sides) -> dict[str, Any]:
    after, before = (math.fsum(launch.duration for launch in side) for side in sides)
    now, then = map(len, sides)
    return {"launches_before": then, "launches_after": now, **_times(before, after)}


def _times(before: float, after: float) -> dict[str, Any]:
    return {"before": before, "after": after, "change": after - before}


def _share(frame: Frame, change: float) -> float | None:
    """The share of `change` in the step's change; None if parts would be many times the whole."""
    whole = frame.new.time - frame.old.time
    return change / whole if abs(whole) > NEAR_ZERO * frame.old.time else None


def _counted(metric: str, sides: _Sides) -> tuple[float, float] | None:
    """The metric's sums before and after; None if a launch has no count."""
    counts = [[launch.counts[metric] for launch in side] for side in reversed(sides)]
    known = [[count for count in side if count is not None] for side in counts]
    before, after = map(math.fsum, known)
    return (before, after) if known == counts else None


def _gap_spread(idle: float) -> float:
    """The spread that is assumed of `idle` nanoseconds between kernels."""
    return math.hypot(GAP_SPREAD, assumed(idle))


def _agree(new: LaunchSequence, old: LaunchSequence, step: StepChange) -> bool:
    """Whether the change of the traces' whole time may equal that of the step's time.

    In nanoseconds, or else in logarithms: tracing makes both sides longer by about the same share.
    Of the launches and the gaps of a trace the spreads are assumed that one kernel and the gaps
    have by themselves, unless several traces are further apart.
    """
    before, after = fmean(old.totals), fmean(new.totals)
    apart = abs(after - before - step.change)
    larger = max(abs(after - before), abs(step.change))
    if apart <= max(ALIKE * larger, NO_MATTER * step.before) or step.before <= 0:
        return True
    idle, total = fmean((*new.idles, *old.idles)), max((before + after) / 2, _LEAST)
    spread = math.hypot(KERNEL_SPREAD * (total - idle), _gap_spread(idle) * idle) / total
    distance = distance_of(new.totals, old.totals, spread)
    half = distance.variance.reach(DISAGREEMENT / 2)
    low, high = (math.log(max(1 + end / step.before, 1e-9)) for end in (step.low, step.high))
    return distance.difference - half <= high and distance.difference + half >= low


def _shift(entries: Sequence[KernelChange]) -> float | None:
    """The relative change that most of the matched kernels' time shares, or None.

    The median, weighted by time, where the quartiles are no further apart than it is from 0.
    Kernels that take more than an eighth of the time are left out: one does not speak for others.
    """
    every = [
        (e.after / e.before - 1, e.before) for e in entries if e.kind in AS_BEFORE and e.before
    ]
    most = math.fsum(before for _, before in every) / _MANY
    matched = sorted(entry for entry in every if entry[1] <= most)
    if len(matched) < _MANY:
        return None
    reached = list(accumulate(before for _, before in matched))
    first, middle, third = (
        matched[bisect_left(reached, share * reached[-1])][0] for share in (0.25, 0.5, 0.75)
    )
    return middle if third - first <= abs(middle) else None


@dataclass(frozen=True)
class Distance:
    """The change of a kernel's time, in standard errors."""

    difference: float
    """d = mean ln(measured) - mean ln(baseline)."""
    variance: Variance
    """s^2 (1/m + 1/n)."""

    @property
    def p_value(self) -> float:
        """The probability of a t at least as far from 0 without a change, two-sided."""
        from scipy import special

        return float(
            2 * special.stdtr(self.variance.degrees, -abs(self.difference) / self.variance.root)
        )


def assumed(total: float) -> float:
    """The spread that is assumed of a kernel that takes `total` nanoseconds in a step.

    sqrt(s0^2 + 6 ns / total): 0.8 % from a millisecond on, 1.4 % at 50 us, 5.5 % at 2 us.
    """
    return math.sqrt(KERNEL_SPREAD**2 + SHORT_SPREAD / max(total, _LEAST))


def distance_of(measured: Sequence[float], baseline: Sequence[float], spread: float) -> Distance:
    """The change of one kernel; both sides hold its total nanoseconds, once per table.

    Pooled as for whole steps (`Variance.seen`): s0 is the assumed `spread`, SS the sum of squares
    within the sides, and n = tables - 2. With one table per side s is s0.
    """
    new = [math.log(max(value, _LEAST)) for value in measured]
    old = [math.log(max(value, _LEAST)) for value in baseline]
    own = Variance(spread**2, PRIOR_WEIGHT).seen(squares_of([new, old]), len(new) + len(old) - 2)
    return Distance(fmean(new) - fmean(old), own.times(1 / len(new) + 1 / len(old)))
