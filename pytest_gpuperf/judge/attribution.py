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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from statistics import fmean
from typing import Any

from pytest_gpuperf.judge.alignment import (
    CYCLES,
    INSTRUCTIONS,
    Key,
    LaunchSequence,
    Place,
    numbered,
    operator_of,
    pair,
    sequence_of,
)
from pytest_gpuperf.judge.headline import headline
from pytest_gpuperf.judge.loss import Evidence
from pytest_gpuperf.judge.noise import PRIOR_WEIGHT, WEAK_PRIOR_WEIGHT
from pytest_gpuperf.model.measurement import STEP, CallSite, KernelTable
from pytest_gpuperf.model.result import (
    Attribution,
    CallChange,
    Cause,
    ChangeKind,
    CountChange,
    FamilyChange,
    IdleChange,
    KernelChange,
    LaunchCounts,
    LineChange,
    ModuleChange,
    Outcome,
    StepChange,
    Verdict,
)

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
"""Of fewer kernels nobody can say what most of them did."""
FALSE_DISCOVERIES = 0.05
"""The share of the kernels found to differ that may be wrong (Benjamini and Hochberg)."""
KERNEL_SPREAD = 8e-3
"""s0 of a kernel by itself: the spread of its time between executions that is assumed."""
SHORT_SPREAD = 6.0
"""What comes on top for short ones: a variance of so many nanoseconds over the kernel's total. Two
tables of one step on an H200 differ as 4 to 5 would have it, from 2 us to 100 us; but with heavier
tails than Student's."""
GAP_SPREAD = 0.05
"""The same for the time between kernels, which the host's work decides."""
_LEAST = 1.0
"""Nanoseconds below which a time has no logarithm worth taking."""
DISAGREEMENT = 5e-3
"""The trace's interval misses the true change of the step this often, as a verdict's does."""
ALIKE = 0.25
"""Changes are the same for the purpose of naming a cause that differ by less of the larger."""
NO_MATTER = 5e-3
"""A disagreement over less of the step matters to nobody: no test fails for so little (delta0)."""
_TIMES = ("step_time", "wall_time")
"""Metrics of a step's time without a trace, in milliseconds, the best first."""
_MILLISECOND = 1e6


@dataclass(frozen=True, slots=True)
class Naming:
    """What is known of kernels by their names."""

    family: Callable[[str], str]
    """convolution-forward, gemm, normalization, elementwise, layout, optimizer, copy, other, ..."""
    short: Callable[[str], str]
    """A name that fits in a line."""


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
    where their number changed.

    `verdicts` are those on the step that was measured: the trace is held against its time, and what
    the host is counted to do more of is a cause too. Without them the trace is all there is.
    """
    tables = [measured] if isinstance(measured, KernelTable) else measured
    of_operators = any(table.of_operators for table in tables)
    if of_operators:
        # One is of no family: nothing but itself takes its place.
        naming = Naming(str, operator_of)
    new = sequence_of(tables)
    old = sequence_of([baseline] if isinstance(baseline, KernelTable) else baseline)
    said = [verdict for verdict in verdicts if verdict.phase == STEP]
    step = None if of_operators else _step(said)
    return _Comparison(new, old, naming, step, said).result()


def _step(verdicts: Sequence[Verdict]) -> StepChange | None:
    """The change of the step's time, as it was judged."""
    by_metric = {verdict.metric: verdict for verdict in verdicts}
    for metric in _TIMES:
        verdict = by_metric.get(metric)
        if verdict is None or verdict.baseline is None or verdict.measured is None:
            continue
        before, after = _MILLISECOND * verdict.baseline, _MILLISECOND * verdict.measured
        change = after - before
        known = verdict.low is not None and verdict.high is not None
        low = before * (verdict.low or 0.0) if known else change
        if verdict.outcome is Outcome.MACHINE:
            low = min(low, 0.0)  # all of it may be the machine's
        return StepChange(
            metric=metric,
            before=before,
            after=after,
            change=change,
            relative=verdict.change,
            low=low,
            high=before * (verdict.high or 0.0) if known else change,
        )
    return None


class _Comparison:
    def __init__(
        self,
        new: LaunchSequence,
        old: LaunchSequence,
        naming: Naming,
        step: StepChange | None,
        verdicts: Sequence[Verdict],
    ) -> None:
        self.new, self.old = new, old
        self.step, self.verdicts = step, verdicts
        self.family = cache(naming.family)
        self.short = cache(naming.short)
        self.names = tuple(dict.fromkeys(key[0] for key in (*new.keys, *old.keys)))
        self.position = {name: index for index, name in enumerate(self.names)}
        self.pairing = pair(new.keys, old.keys, (new.durations, old.durations), self.family)
        self.before = math.fsum((*old.durations, fmean(old.idle)))
        self.after = math.fsum((*new.durations, fmean(new.idle)))
        change = self.after - self.before
        self.whole = change if abs(change) > NEAR_ZERO * self.before else None
        self.located = bool(new.sites and old.sites)
        self.reliable = step is None or _agree(new, old, step)

    def result(self) -> Attribution:
        entries = [*self._matched(), *self._others(), self._gap()]
        families = [self._family(name) for name in dict.fromkeys(map(self.family, self.names))]
        entries.sort(key=lambda e: (-abs(e.change), -e.change, e.short, e.kind.value))
        families.sort(key=lambda f: (-abs(f.change), -f.change, f.family))
        pairing = self.pairing
        lines = self._lines(entries) if self.located else ()
        calls, idle = self._calls(), self._idle()
        shift = _shift(entries)
        return Attribution(
            before=self.before,
            after=self.after,
            change=self.after - self.before,
            relative=self.after / self.before - 1 if self.before else None,
            explained=self._share(math.fsum(e.change for e in entries if e.significant)),
            shift=shift,
            launched=LaunchCounts(
                changed=self.new.keys != self.old.keys,
                added=len(pairing.added),
                removed=len(pairing.removed),
                replaced=len(pairing.replaced),
                moved=len(pairing.moved),
            ),
            entries=tuple(entries),
            families=tuple(families),
            names=self.names,
            measured_tables=len(self.new.tables),
            baseline_tables=len(self.old.tables),
            odd_tables=self.new.odd + self.old.odd,
            lines=lines,
            modules=self._modules() if self.located else (),
            calls=calls,
            idle=idle,
            step=self.step,
            reliable=self.reliable,
            headline=headline(self._evidence(), entries, lines, calls, idle, shift),
        )

    def _evidence(self) -> Evidence:
        return Evidence(
            new=self.new,
            old=self.old,
            pairing=self.pairing,
            places=self.places if self.located else None,
            family=self.family,
            short=self.short,
            timed=bool(self.before or self.after),
            step=self.step,
            verdicts=tuple(self.verdicts),
        )

    def _lines(self, entries: Sequence[KernelChange]) -> tuple[LineChange, ...]:
        """The lines of code of all launches that were added, removed, replaced, or take longer."""
        pairing = self.pairing
        same, other = (*pairing.matched, *pairing.moved), pairing.replaced
        new, old = self.places
        lines: dict[Place, tuple[list[int], list[int]]] = {}
        for side, places in enumerate((new, old)):
            for place, where in enumerate(places):
                lines.setdefault(where, ([], []))[side].append(place)
        timed = {
            (self.names[entry.name or 0], entry.grid, entry.block)
            for entry in entries
            if entry.kind in (ChangeKind.SLOWER, ChangeKind.FASTER)
        }
        slower = (i for i, _ in same if self.new.keys[i] in timed)
        modules: dict[Place, dict[str, None]] = {}
        for i in sorted((*pairing.added, *(i for i, _ in other), *slower)):
            modules.setdefault(new[i], {})[self.new.sites[i].module] = None
        for j in pairing.removed:
            modules.setdefault(old[j], {})[self.old.sites[j].module] = None
        made = [self._line(*at, *lines[at], tuple(filter(None, of))) for at, of in modules.items()]
        # A kernel that takes longer at one line is launched at others too.
        least = LEAST_SHARE * self.before
        made = [one for one in made if one.kernels or abs(one.change) >= least]
        made.sort(key=lambda one: (-abs(one.change), -_other_launches(one), one.line))
        return tuple(made)

    @cached_property
    def _now(self) -> dict[Place, Place]:
        """Where the lines of the baseline are now: an edit above moves every line."""
        now: dict[Place, Counter[Place]] = {}
        for i, j in (*self.pairing.matched, *self.pairing.moved, *self.pairing.replaced):
            there = now.setdefault(_place(self.old.sites[j]), Counter())
            there[_place(self.new.sites[i])] += 1
        return {where: there.most_common(1)[0][0] for where, there in now.items()}

    @cached_property
    def places(self) -> tuple[list[Place], list[Place]]:
        """Where each launch comes from, of both sides, by the lines that there are now."""
        new = [_place(site) for site in self.new.sites]
        old = [self._now.get(_place(site), _place(site)) for site in self.old.sites]
        for i, j in (*self.pairing.matched, *self.pairing.moved, *self.pairing.replaced):
            old[j] = new[i]
        return new, old

    def _moved(self, site: CallSite) -> Place:
        """Where a line of the baseline is now that may launch nothing: as its nearest has moved."""
        where = _place(site)
        if where in self._now:
            return self._now[where]
        file, number = numbered(site.line)
        near = [
            (abs(number - numbered(line)[1]), line, now)
            for (line, _), (now, _) in self._now.items()
            if number and numbered(line)[0] == file
        ]
        if not near:
            return where
        _, line, now = min(near)
        other, there = numbered(now)
        return f"{other}:{number + there - numbered(line)[1]}", site.function

    def _modules(self) -> tuple[ModuleChange, ...]:
        """All launches by module, in the order of the step, what is gone last."""
        modules: dict[str, tuple[list[int], list[int]]] = {}
        for side, sequence in enumerate((self.new, self.old)):
            for place, site in enumerate(sequence.sites):
                modules.setdefault(site.module, ([], []))[side].append(place)
        made = []
        for module, (new, old) in modules.items():
            times = self._launches(new, old)
            made.append(ModuleChange(module=module, **{name: times[name] for name in _OF_LINES}))
        return tuple(made)

    def _calls(self) -> tuple[CallChange, ...]:
        """What the host calls more or less often than before, by line."""
        counts: dict[tuple[str, Place], list[int]] = {}
        modules: dict[tuple[str, Place], tuple[dict[str, None], dict[str, None]]] = {}
        if not (self.located and self.new.host and self.old.host):
            return ()
        for side, table in enumerate((self.old.host, self.new.host)):
            for call in table.calls:
                site = table.sites[call.site]
                key = call.name, _place(site) if side else self._moved(site)
                counts.setdefault(key, [0, 0])[side] += call.count
                if site.module:
                    modules.setdefault(key, ({}, {}))[side][site.module] = None
        made = []
        for (name, (line, function)), (before, after) in counts.items():
            if before != after:
                were, are = modules.get((name, (line, function)), ({}, {}))
                of = tuple(are if after else were)
                made.append(CallChange(name, line, function, of, before, after))
        return tuple(sorted(made, key=lambda c: (-abs(c.after - c.before), c.name, c.line)))

    def _idle(self) -> tuple[IdleChange, ...]:
        """Where the host was while nothing ran, by line."""
        times: dict[Place, list[list[float]]] = {}
        if not (self.located and self.new.host and self.old.host):
            return ()
        for side, table in enumerate((self.old.host, self.new.host)):
            for part in table.idle_at:
                site = table.sites[part.site]
                where = _place(site) if side else self._moved(site)
                times.setdefault(where, [[], []])[side].append(part.idle)
        made = []
        for (line, function), sides in times.items():
            before, after = map(math.fsum, sides)
            made.append(IdleChange(line, function, before, after, after - before))
        return tuple(sorted(made, key=lambda one: (-abs(one.change), -one.change, one.line)))

    def _line(
        self, line: str, function: str, new: list[int], old: list[int], modules: tuple[str, ...]
    ) -> LineChange:
        before, after = (
            Counter(self.short(keys[place][0]) for place in places)
            for keys, places in ((self.old.keys, old), (self.new.keys, new))
        )
        times = self._launches(new, old)
        return LineChange(
            line=line,
            function=function,
            modules=modules,
            **{name: times[name] for name in _OF_LINES},
            kernels=tuple(
                (name, before[name], after[name])
                for name in sorted({*before, *after})
                if before[name] != after[name]
            ),
        )

    def _matched(self) -> Iterator[KernelChange]:
        """One entry per kernel that is launched on both sides."""
        kernels: dict[Key, tuple[list[int], list[int]]] = {}
        for i, j in (*self.pairing.matched, *self.pairing.moved):
            new, old = kernels.setdefault(self.new.keys[i], ([], []))
            new.append(i)
            old.append(j)
        distances: dict[Key, Distance] = {}
        least = LEAST_SHARE * (self.before + self.after) / 2
        for key, (new, old) in kernels.items():
            after = [math.fsum(table[i] for i in new) for table in self.new.tables]
            before = [math.fsum(table[j] for j in old) for table in self.old.tables]
            size = (fmean(before) + fmean(after)) / 2
            if size >= least:
                spread = assumed(size)
                distances[key] = distance_of(after, before, spread)
        p_values = {key: distance.p_value for key, distance in distances.items()}
        discovered = dict(zip(p_values, discoveries([*p_values.values()]), strict=True))
        for key, (new, old) in kernels.items():
            test, kind, cause = None, ChangeKind.SAME, Cause.UNKNOWN
            if key in distances:
                test = distances[key].statistic, p_values[key]
            change = math.fsum(self.new.durations[i] for i in new) - math.fsum(
                self.old.durations[j] for j in old
            )
            if test is not None and discovered[key] and abs(change) >= least:
                kind = ChangeKind.SLOWER if change > 0 else ChangeKind.FASTER
                cause = _cause(self._counted(INSTRUCTIONS, new, old))
            significant = kind is not ChangeKind.SAME
            yield self._entry(kind, key, key, new, old, cause, test=test, significant=significant)

    def _others(self) -> Iterator[KernelChange]:
        """One entry per kernel that was added, removed, or replaced by another."""
        replaced: dict[tuple[Key, Key], tuple[list[int], list[int]]] = {}
        for i, j in self.pairing.replaced:
            new, old = replaced.setdefault((self.new.keys[i], self.old.keys[j]), ([], []))
            new.append(i)
            old.append(j)
        for (key, former), (new, old) in replaced.items():
            cause = Cause.SHAPE if key[0] == former[0] else Cause.ALGORITHM
            yield self._entry(ChangeKind.REPLACED, key, former, new, old, cause)
        calls_before = Counter(name for name, _, _ in self.old.keys)
        calls_after = Counter(name for name, _, _ in self.new.keys)
        for key, places in _by_key(self.new.keys, self.pairing.added).items():
            cause = Cause.MORE if calls_before[key[0]] else Cause.NEW
            yield self._entry(ChangeKind.ADDED, key, key, places, [], cause)
        for key, places in _by_key(self.old.keys, self.pairing.removed).items():
            cause = Cause.LESS if calls_after[key[0]] else Cause.GONE
            yield self._entry(ChangeKind.REMOVED, key, key, [], places, cause)

    def _gap(self) -> KernelChange:
        before, after = fmean(self.old.idle), fmean(self.new.idle)
        test = distance_of(self.new.idles, self.old.idles, _gap_spread((before + after) / 2))
        # A trace that the step contradicts has lost its time here: launches take what they take.
        significant = test.p_value <= FALSE_DISCOVERIES and self.reliable
        cause = Cause.WAITED if after > before else Cause.WAITED_LESS
        return KernelChange(
            kind=ChangeKind.GAP,
            cause=cause if significant else Cause.UNKNOWN,
            family="",
            name=None,
            replaces=None,
            short="gaps between kernels",
            formerly="",
            grid=(),
            block=(),
            launches_before=0,
            launches_after=0,
            **self._times(before, after),
            cycles=None,
            instructions=None,
            statistic=test.statistic,
            p_value=test.p_value,
            significant=significant,
        )

    def _entry(
        self,
        kind: ChangeKind,
        key: Key,
        former: Key,
        new: Sequence[int],
        old: Sequence[int],
        cause: Cause,
        *,
        test: tuple[float, float] | None = None,
        significant: bool = True,
    ) -> KernelChange:
        replaced = kind is ChangeKind.REPLACED
        return KernelChange(
            kind=kind,
            cause=cause,
            family=self.family(key[0]),
            name=self.position[key[0]],
            replaces=self.position[former[0]] if replaced else None,
            short=self.short(key[0]),
            formerly=self.short(former[0]) if replaced else "",
            grid=key[1],
            block=key[2],
            **self._launches(new, old),
            statistic=test[0] if test else None,
            p_value=test[1] if test else None,
            significant=significant,
        )

    def _family(self, family: str) -> FamilyChange:
        new = [i for i, key in enumerate(self.new.keys) if self.family(key[0]) == family]
        old = [j for j, key in enumerate(self.old.keys) if self.family(key[0]) == family]
        return FamilyChange(family=family, **self._launches(new, old))

    def _launches(self, new: Sequence[int], old: Sequence[int]) -> dict[str, Any]:
        """The fields of a change that count these launches."""
        before = math.fsum(self.old.durations[j] for j in old)
        after = math.fsum(self.new.durations[i] for i in new)
        return {
            "launches_before": len(old),
            "launches_after": len(new),
            **self._times(before, after),
            "cycles": self._counted(CYCLES, new, old),
            "instructions": self._counted(INSTRUCTIONS, new, old),
        }

    def _times(self, before: float, after: float) -> dict[str, Any]:
        """The fields of a change from `before` to `after` nanoseconds."""
        change = after - before
        return {
            "before": before,
            "after": after,
            "change": change,
            "share": self._share(change),
            "relative": after / before - 1 if before else None,
        }

    def _share(self, change: float) -> float | None:
        return None if self.whole is None else change / self.whole

    def _counted(self, metric: str, new: Sequence[int], old: Sequence[int]) -> CountChange | None:
        after = [self.new.counters[metric][i] for i in new]
        before = [self.old.counters[metric][j] for j in old]
        known_after = [value for value in after if value is not None]
        known_before = [value for value in before if value is not None]
        if len(known_after) < len(after) or len(known_before) < len(before):
            return None
        return CountChange(math.fsum(known_before), math.fsum(known_after))


def _place(site: CallSite) -> Place:
    return site.line, site.function


def _gap_spread(idle: float) -> float:
    """The spread that is assumed of so much time between kernels."""
    return math.hypot(GAP_SPREAD, assumed(idle))


def _agree(new: LaunchSequence, old: LaunchSequence, step: StepChange) -> bool:
    """Whether the change of the traces' whole time may be that of the step's.

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
    low, high = distance_of(new.totals, old.totals, spread).interval(DISAGREEMENT)
    return low <= _log_ratio(step.high, step) and high >= _log_ratio(step.low, step)


def _log_ratio(change: float, step: StepChange) -> float:
    return math.log(max(1 + change / step.before, 1e-9))


def _cause(instructions: CountChange | None) -> Cause:
    """Why a matched kernel takes another time, as far as counters can tell.

    Cycles follow the time whatever the reason, so that only instructions tell.
    """
    if instructions is None:
        return Cause.UNKNOWN
    moved = abs(instructions.after - instructions.before)
    size = max(abs(instructions.before), abs(instructions.after))
    return Cause.CODE if moved > INSTRUCTIONS_MOVED * size else Cause.MEMORY


_OF_LINES = ("launches_before", "launches_after", "before", "after", "change")


def _other_launches(line: LineChange) -> int:
    return sum(abs(after - before) for _, before, after in line.kernels)


def _by_key(keys: Sequence[Key], places: Sequence[int]) -> dict[Key, list[int]]:
    grouped: dict[Key, list[int]] = {}
    for place in places:
        grouped.setdefault(keys[place], []).append(place)
    return grouped


def _shift(entries: Sequence[KernelChange]) -> float | None:
    """The relative change that most of the matched kernels' time shares, or None.

    The median, weighted by time, where the quartiles are no further apart than it is from 0.
    Kernels that take more than an eighth of the time are left out: one does not speak for others.
    """
    every = [
        (e.relative, e.before)
        for e in entries
        if e.kind in (ChangeKind.SLOWER, ChangeKind.FASTER, ChangeKind.SAME)
        and e.relative is not None
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
    """How far a kernel's time has moved, in standard errors."""

    difference: float
    """d = mean ln(measured) - mean ln(baseline)."""
    error: float
    """s sqrt(1/m + 1/n)."""
    degrees_of_freedom: int

    @property
    def statistic(self) -> float:
        """The difference in standard errors, t."""
        return self.difference / self.error

    @property
    def p_value(self) -> float:
        """How likely a statistic at least as far from 0 is, on either side, without a change."""
        from scipy import special

        return float(2 * special.stdtr(self.degrees_of_freedom, -abs(self.statistic)))

    def interval(self, missed: float) -> tuple[float, float]:
        """Where the difference is, but for a share of `missed` of all times."""
        from scipy import special

        half = float(special.stdtrit(self.degrees_of_freedom, 1 - missed / 2)) * self.error
        return self.difference - half, self.difference + half


def assumed(total: float) -> float:
    """The spread that is assumed of a kernel that takes `total` nanoseconds in a step.

    sqrt(s0^2 + 6 ns / total): 0.8 % from a millisecond on, 1.4 % at 50 us, 5.5 % at 2 us.
    """
    return math.sqrt(KERNEL_SPREAD**2 + SHORT_SPREAD / max(total, _LEAST))


def distance_of(measured: Sequence[float], baseline: Sequence[float], spread: float) -> Distance:
    """How far one kernel has moved; both sides hold its total nanoseconds, once per table.

    s^2 = max((w s0^2 + SS) / (w + n), SS / n) as for whole steps (`noise.py`): SS is the sum of
    squares within the sides, n = tables - 2, s0 the assumed `spread`, and w is 20, or 2 where the
    kernel is more than twice as noisy as that. With one table per side s is s0.
    """
    new = [math.log(max(value, _LEAST)) for value in measured]
    old = [math.log(max(value, _LEAST)) for value in baseline]
    squares = math.fsum((x - fmean(side)) ** 2 for side in (new, old) for x in side)
    seen = len(new) + len(old) - 2
    own = squares / seen if seen else 0.0
    weight = WEAK_PRIOR_WEIGHT if own > 4 * spread**2 else PRIOR_WEIGHT
    variance = max((weight * spread**2 + squares) / (weight + seen), own)
    error = math.sqrt(variance * (1 / len(new) + 1 / len(old)))
    return Distance(fmean(new) - fmean(old), error, weight + seen)


def discoveries(p_values: Sequence[float]) -> list[bool]:
    """Which of these are significant together, at most 5 % of them falsely."""
    if not p_values:
        return []
    from scipy.stats import false_discovery_control

    return [bool(p <= FALSE_DISCOVERIES) for p in false_discovery_control(p_values)]
