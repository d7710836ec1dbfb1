"""The attribution of a change in a step's time to kernels, and what speaks for the reason.

Pure, and by design not a verdict: whether a test fails is decided on the whole step; this says
where to look. Times are of traces without counters; a step's time is the sum over its launches and
the time in which nothing ran. Where kernels overlap, the sum is longer than the step took.

A kernel by itself is noisier than a step: 0.8 % between executions for one of a millisecond and
more, and several per cent for one of microseconds, whose start-up and place in the caches matter.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from statistics import fmean
from typing import Any

from pytest_gpuperf.judge.alignment import (
    CYCLES,
    INSTRUCTIONS,
    Key,
    LaunchSequence,
    operator_of,
    pair,
    sequence_of,
)
from pytest_gpuperf.judge.noise import PRIOR_WEIGHT, WEAK_PRIOR_WEIGHT
from pytest_gpuperf.model.measurement import KernelTable
from pytest_gpuperf.model.result import (
    Attribution,
    Cause,
    ChangeKind,
    CountChange,
    FamilyChange,
    KernelChange,
    LaunchCounts,
    LineChange,
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
) -> Attribution:
    """Attributes the difference in time between `baseline` and `measured` to kernels.

    Several tables of a side are executions of the same code, such as one per process: times are
    their means, and their spread counts in the tests. With one on each side, what is known of small
    kernels is the noise (`assumed`). Operators of a CPU have no times: what is said of them is
    where their number changed.
    """
    if any(t.of_operators for t in ([measured] if isinstance(measured, KernelTable) else measured)):
        # One is of no family: nothing but itself takes its place.
        naming = Naming(str, operator_of)
    new = sequence_of([measured] if isinstance(measured, KernelTable) else measured)
    old = sequence_of([baseline] if isinstance(baseline, KernelTable) else baseline)
    return _Comparison(new, old, naming).result()


class _Comparison:
    def __init__(self, new: LaunchSequence, old: LaunchSequence, naming: Naming) -> None:
        self.new, self.old = new, old
        self.family = cache(naming.family)
        self.short = cache(naming.short)
        self.names = tuple(dict.fromkeys(key[0] for key in (*new.keys, *old.keys)))
        self.position = {name: index for index, name in enumerate(self.names)}
        self.pairing = pair(new.keys, old.keys, (new.durations, old.durations), self.family)
        self.before = math.fsum((*old.durations, fmean(old.idle)))
        self.after = math.fsum((*new.durations, fmean(new.idle)))
        change = self.after - self.before
        self.whole = change if abs(change) > NEAR_ZERO * self.before else None

    def result(self) -> Attribution:
        entries = [*self._matched(), *self._others(), self._gap()]
        families = [self._family(name) for name in dict.fromkeys(map(self.family, self.names))]
        entries.sort(key=lambda e: (-abs(e.change), -e.change, e.short, e.kind.value))
        families.sort(key=lambda f: (-abs(f.change), -f.change, f.family))
        pairing = self.pairing
        return Attribution(
            before=self.before,
            after=self.after,
            change=self.after - self.before,
            relative=self.after / self.before - 1 if self.before else None,
            explained=self._share(math.fsum(e.change for e in entries if e.significant)),
            shift=_shift(entries),
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
            lines=self._lines(entries) if self.new.sites and self.old.sites else (),
        )

    def _lines(self, entries: Sequence[KernelChange]) -> tuple[LineChange, ...]:
        """The lines of code of all launches that were added, removed, replaced, or take longer."""
        pairing = self.pairing
        same, other = (*pairing.matched, *pairing.moved), pairing.replaced
        new = [(site.line, site.function) for site in self.new.sites]
        old = [(site.line, site.function) for site in self.old.sites]
        # What was there before is looked for where it is now: an edit above moves every line.
        now: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
        for i, j in (*same, *other):
            now.setdefault(old[j], Counter())[new[i]] += 1
        old = [now[where].most_common(1)[0][0] if where in now else where for where in old]
        for i, j in (*same, *other):
            old[j] = new[i]
        lines: dict[tuple[str, str], tuple[list[int], list[int]]] = {}
        for side, places in enumerate((new, old)):
            for place, where in enumerate(places):
                lines.setdefault(where, ([], []))[side].append(place)
        timed = {
            (self.names[entry.name or 0], entry.grid, entry.block)
            for entry in entries
            if entry.kind in (ChangeKind.SLOWER, ChangeKind.FASTER)
        }
        slower = (i for i, _ in same if self.new.keys[i] in timed)
        modules: dict[tuple[str, str], dict[str, None]] = {}
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
        test = distance_of(
            self.new.idle,
            self.old.idle,
            math.hypot(GAP_SPREAD, assumed((before + after) / 2)),
        )
        significant = test.p_value <= FALSE_DISCOVERIES
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

    statistic: float
    """t = d / (s sqrt(1/m + 1/n)), d = mean ln(measured) - mean ln(baseline)."""
    degrees_of_freedom: int

    @property
    def p_value(self) -> float:
        """How likely a statistic at least as far from 0 is, on either side, without a change."""
        from scipy import special

        return float(2 * special.stdtr(self.degrees_of_freedom, -abs(self.statistic)))


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
    return Distance((fmean(new) - fmean(old)) / error, weight + seen)


def discoveries(p_values: Sequence[float]) -> list[bool]:
    """Which of these are significant together, at most 5 % of them falsely."""
    if not p_values:
        return []
    from scipy.stats import false_discovery_control

    return [bool(p <= FALSE_DISCOVERIES) for p in false_discovery_control(p_values)]
