"""The alignment of two steps: which launches are the same ones, and what became of the others.

The alignment is a longest common subsequence, found exactly and bit-parallel: one row of the usual
table is one integer, so that aligning n with m launches costs n additions of m bits, whatever the
sequences look like. Methods that follow matches (Hunt and Szymanski, difflib) are quadratic where
few kernels make up most launches, and those that follow differences (Myers) where all changed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum, isqrt
from statistics import fmean
from typing import TypeVar

from pytest_gpuperf.model.measurement import (
    MADE_BYTES,
    OPERATOR,
    Caller,
    CallSite,
    KernelTable,
    Launch,
)
from pytest_gpuperf.model.result import ChangeKind

Key = tuple[str, tuple[int, ...], tuple[int, ...]]
"""The key by which launches are the same kernel: name, grid and block (empty if there is none)."""

Pair = tuple[int, int]
"""A position in the measured sequence, and one in the baseline's."""

NEAR = 1
"""Gaps with no more matched launches between them are one place: algorithms differ in the helpers
they launch before and after, and one of these may match. Without it, a quarter of what replaces
convolutions between two recorded steps of an H200 would stand as removed here and added there."""

Place = tuple[str, str]
"""A line of code, and the function that it is in."""

_PLACE = " in "
_T = TypeVar("_T")
_K = TypeVar("_K", bound=Hashable)

INSTRUCTIONS = "instructions"
"""The catalogue's metric that says why a kernel's time changed."""

COSTS = (
    *("flops", "saved_bytes", "kept_memory", "layout_copy_bytes", "layout_copies", "copies"),
    "peak_memory",
)
"""The counts of operators, the costliest first. What was alive at the peak is asked last: when that
is, and so all that is alive then, changes with anything."""


@dataclass(frozen=True, slots=True, eq=False)
class AlignedLaunch:
    """A launch of a step."""

    position: int
    """The position of the launch in its step, from 0 on."""
    key: Key
    family: str
    short: str
    """The kernel's name, short enough for a line."""
    times: tuple[float, ...]
    """The time of the launch per table, in nanoseconds; the mean if a table lacks the launch."""
    duration: float
    """The duration in nanoseconds: the mean over the tables that have the launch."""
    cost: float
    """The cost for the step: nanoseconds, or of an operator, without time, its part of the metric
    that is explained."""
    counts: dict[str, float | None]
    """The mean count by metric, over the tables that count the metric; None if no table does."""
    dtype: str
    """The data type of the computation, or of an operator's result; "" if unknown."""
    place: Place
    module: str
    backward: bool
    frames: tuple[Caller, ...] = ()
    """The line and function of the launch, and then its callers."""

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions in which the launch is called, the innermost first."""
        return tuple(one.function for one in self.frames)

    @property
    def name(self) -> str:
        """The whole name of the kernel."""
        return self.key[0]

    @property
    def size(self) -> tuple[float | None, ...]:
        """The size of an operator's work; for an operator that computes, whatever its data type."""
        return self.counts.get("flops"), self.counts.get(MADE_BYTES)


@dataclass(frozen=True, slots=True)
class LaunchChange:
    """The fate of one launch."""

    kind: ChangeKind
    launch: AlignedLaunch
    """The launch that exists now, or that was removed."""
    former: AlignedLaunch | None = None
    """The earlier launch that `launch` is the same as, or replaces."""
    moved: bool = False
    """Whether the launch is the same but stands at another place of the sequence."""

    @property
    def now(self) -> AlignedLaunch | None:
        """The launch that exists now; None if it was removed."""
        return None if self.kind is ChangeKind.REMOVED else self.launch

    @property
    def then(self) -> AlignedLaunch | None:
        """The launch that existed before; None if the launch was added."""
        return self.launch if self.kind is ChangeKind.REMOVED else self.former

    @property
    def retyped(self) -> tuple[str, str] | None:
        """The data types of the same operator's result, before and now; None if they are equal."""
        now, then = self.launch.dtype, self.former.dtype if self.former else ""
        other = self.kind is ChangeKind.SAME and now and then and now != then
        return (then, now) if other else None

    @property
    def cost(self) -> float:
        """The cost that the change adds to the step."""
        now, then = (one.cost if one else 0.0 for one in (self.now, self.then))
        return now - then


def cost_of(some: Iterable[AlignedLaunch | LaunchChange]) -> float:
    """The cost that these launches or changes add to the step together."""
    return fsum(one.cost for one in some)


LaunchPair = tuple[AlignedLaunch, AlignedLaunch]
"""A launch now and a launch before."""


def pair(new: Sequence[AlignedLaunch], old: Sequence[AlignedLaunch]) -> list[LaunchChange]:
    """The fate of each launch: added, removed, replaced, or the same.

    First come kernels that are equal in the same order. Between two neighbours of those, what is
    left is paired as replaced: by name (another shape), then by family (another algorithm), there
    also with what is left in the next gap, one launch away; each in order. Where one side has more
    of a kind, its longest are paired: an algorithm brings small helpers of its own. What is equal
    has moved, one launch or, when nothing else is left to be paired, any number of them. Exchanging
    the two sides exchanges the launches in each pair, and nothing else.
    """
    matched = _matched([launch.key for launch in new], [launch.key for launch in old])
    replaced: list[LaunchPair] = []
    places: list[tuple[list[AlignedLaunch], list[AlignedLaunch]]] = []
    end = -1
    for ours, theirs, start in _gaps(matched, new, old):
        pairs, ours, theirs = _alike(ours, theirs, lambda launch: launch.name)
        replaced += pairs
        if not places or start - end > NEAR:
            places.append(([], []))
        places[-1][0].extend(ours)
        places[-1][1].extend(theirs)
        end = start
    moved: list[LaunchPair] = []
    added: list[AlignedLaunch] = []
    removed: list[AlignedLaunch] = []
    for ours, theirs in places:
        # Two neighbours that changed places: neither replaces itself.
        equal, ours, theirs = _alike(ours, theirs, lambda launch: launch.key)
        pairs, ours, theirs = _alike(ours, theirs, lambda launch: launch.family)
        moved += equal
        replaced += pairs
        added += ours
        removed += theirs
    equal, added, removed = _alike(added, removed, lambda launch: launch.key)
    moved += equal
    for pairs in (replaced, moved):
        pairs.sort(key=lambda both: both[0].position)
    return [
        *(LaunchChange(ChangeKind.ADDED, launch) for launch in added),
        *(LaunchChange(ChangeKind.REMOVED, launch) for launch in removed),
        *(LaunchChange(ChangeKind.REPLACED, now, then) for now, then in replaced),
        *(LaunchChange(ChangeKind.SAME, new[i], old[j]) for i, j in matched),
        *(LaunchChange(ChangeKind.SAME, now, then, moved=True) for now, then in moved),
    ]


def pair_operators(
    new: Sequence[AlignedLaunch], old: Sequence[AlignedLaunch]
) -> list[LaunchChange]:
    """The fate of each operator: added, removed, or the same, perhaps at another place.

    There are few operators, which every module uses: first those are the same that have one caller,
    called by the same, and one size; between these those of one caller and size; then those of one
    size, whose caller has another name; then those of one caller; then any. None stands in place of
    another.
    """
    kinds: Sequence[Callable[[AlignedLaunch], Hashable]] = (
        lambda one: (one.key, one.size, one.functions),
        lambda one: (one.key, one.size),
        lambda one: (one.short, one.backward, one.size),
        lambda one: one.key,
        lambda one: (one.short, one.backward),
    )
    same = _in_turn(new, old, kinds)
    paired = {launch for both in same for launch in both}
    added, removed = ([one for one in side if one not in paired] for side in (new, old))
    moved: list[LaunchPair] = []
    for kind in kinds[:-1]:
        equal, added, removed = _alike(added, removed, kind)
        moved += equal
    return [
        *(LaunchChange(ChangeKind.ADDED, launch) for launch in added),
        *(LaunchChange(ChangeKind.REMOVED, launch) for launch in removed),
        *(LaunchChange(ChangeKind.SAME, now, then) for now, then in same),
        *(LaunchChange(ChangeKind.SAME, now, then, moved=True) for now, then in moved),
    ]


def _in_turn(
    new: Sequence[AlignedLaunch],
    old: Sequence[AlignedLaunch],
    kinds: Sequence[Callable[[AlignedLaunch], Hashable]],
) -> list[LaunchPair]:
    """The pairs that are alike in the same order: of the first kind, then of the next in gaps."""
    if not (new and old and kinds):
        return []
    matched = common([kinds[0](one) for one in new], [kinds[0](one) for one in old])
    pairs = [(new[i], old[j]) for i, j in matched]
    for ours, theirs, _ in _gaps(matched, new, old):
        pairs += _in_turn(ours, theirs, kinds[1:])
    return pairs


def _matched(new: Sequence[Key], old: Sequence[Key]) -> list[Pair]:
    """A longest common subsequence: the same choice whichever of the two sides is which."""
    if (len(old), *old) < (len(new), *new):
        return [(i, j) for j, i in common(old, new)]
    return common(new, old)


def common(one: Sequence[Hashable], other: Sequence[Hashable]) -> list[Pair]:
    """A longest common subsequence of both, as ascending pairs of positions.

    Time grows with len(one) * len(other) / 64, memory with its square root times len(other): every
    so manieth row is kept, and those between are computed again on the way back.
    """
    shortest = min(len(one), len(other))
    head = 0
    while head < shortest and one[head] == other[head]:
        head += 1
    tail = 0
    while tail < shortest - head and one[-1 - tail] == other[-1 - tail]:
        tail += 1
    middle = _common(one[head : len(one) - tail], other[head : len(other) - tail])
    ends = range(tail, 0, -1)
    return [
        *((i, i) for i in range(head)),
        *((head + i, head + j) for i, j in middle),
        *((len(one) - back, len(other) - back) for back in ends),
    ]


def _common(one: Sequence[Hashable], other: Sequence[Hashable]) -> list[Pair]:
    """A longest common subsequence of sequences without a common beginning or end."""
    if not one or not other:
        return []
    places: dict[Hashable, int] = defaultdict(int)
    for j, item in enumerate(other):
        places[item] |= 1 << j
    full = (1 << len(other)) - 1
    stride = isqrt(len(one)) + 1
    kept = [full]
    for start in range(0, len(one), stride):
        kept.append(_rows(one[start : start + stride], kept[-1], places, full)[-1])
    pairs: list[Pair] = []
    i, j = len(one), len(other)
    for start in reversed(range(0, len(one), stride)):
        rows = _rows(one[start : start + stride], kept[start // stride], places, full)
        while i > start and j:
            # Bit j - 1 of row i is 0 where other[j - 1] makes the subsequence longer. Where it is 0
            # in row i and 1 above, one[i - 1] is what made it so: these two are a pair.
            if rows[i - start] >> (j - 1) & 1:
                j -= 1
            elif rows[i - start - 1] >> (j - 1) & 1:
                i -= 1
                j -= 1
                pairs.append((i, j))
            else:
                i -= 1
    return pairs[::-1]


def _rows(
    items: Sequence[Hashable], row: int, places: Mapping[Hashable, int], full: int
) -> list[int]:
    """The initial `row`, and a further row for each of `items` (Hyyrö 2004)."""
    rows = [row]
    for item in items:
        hits = row & places.get(item, 0)
        if hits:
            row = (row + hits | row - hits) & full
        rows.append(row)
    return rows


def _gaps(
    matched: Sequence[Pair], new: Sequence[AlignedLaunch], old: Sequence[AlignedLaunch]
) -> Iterator[tuple[Sequence[AlignedLaunch], Sequence[AlignedLaunch], int]]:
    """The unmatched launches between matched neighbours, and how many are matched before them."""
    i, j = -1, -1
    for count, (next_i, next_j) in enumerate([*matched, (len(new), len(old))]):
        gap = new[i + 1 : next_i], old[j + 1 : next_j]
        if any(gap):
            yield *gap, count
        i, j = next_i, next_j


def _alike(
    new: Sequence[AlignedLaunch],
    old: Sequence[AlignedLaunch],
    kind: Callable[[AlignedLaunch], Hashable],
) -> tuple[list[LaunchPair], list[AlignedLaunch], list[AlignedLaunch]]:
    """The launches of one kind paired in order, the longest first to find one; and the rest."""
    pairs: list[LaunchPair] = []
    for ours, theirs in by_side((new, old), kind).values():
        count = min(len(ours), len(theirs))
        pairs += zip(_longest(ours, count), _longest(theirs, count), strict=True)
    paired = {launch for both in pairs for launch in both}
    left = [[launch for launch in side if launch not in paired] for side in (new, old)]
    return pairs, left[0], left[1]


def by_side(
    items: Sequence[Sequence[_T]], key: Callable[[_T], _K]
) -> dict[_K, tuple[list[_T], list[_T]]]:
    """What is now and what was before by `key`, each apart."""
    sides: dict[_K, tuple[list[_T], list[_T]]] = {}
    for side, own in enumerate(items):
        for item in own:
            sides.setdefault(key(item), ([], []))[side].append(item)
    return sides


def _longest(launches: Sequence[AlignedLaunch], count: int) -> list[AlignedLaunch]:
    """The `count` longest of these launches, in order."""
    longest = sorted(launches, key=lambda launch: -launch.duration)[:count]
    return sorted(longest, key=lambda launch: launch.position)


@dataclass(frozen=True)
class LaunchSequence:
    """The launches that the tables of one side agree on."""

    launches: tuple[AlignedLaunch, ...]
    host: KernelTable | None
    """The table that says where launches come from, and what the host did beside launching; None
    where none does."""
    idle: tuple[float, ...]
    """The idle time per table, in nanoseconds."""
    idles: tuple[float, ...]
    """The idle time per trace, in nanoseconds: a table may be of several traces."""
    totals: tuple[float, ...]
    """The time of launches and gaps per trace, in nanoseconds."""
    odd: int
    """The number of tables whose sequence of launches is not that of most tables."""

    @cached_property
    def time(self) -> float:
        """The time of all launches and gaps, in nanoseconds."""
        return fsum((*(launch.duration for launch in self.launches), fmean(self.idle)))


def sequence_of(
    tables: Sequence[KernelTable],
    family: Callable[[str], str],
    short: Callable[[str], str],
    dtype: Callable[[str], str],
    explained: str | None = None,
) -> LaunchSequence:
    """The step that `tables`, of one or several executions of the same code, describe.

    Its launches are those of the sequence that most tables have (the first of them, where several
    are as frequent). The others are aligned with it, and their further launches left out. `family`,
    `short` and `dtype` are of kernels by their names; `explained` is the one of COSTS of which
    operators have a part, "" for their number; None of kernels.
    """
    sequences = [keys(table) for table in tables]
    usual, count = Counter(sequences).most_common(1)[0]
    places = [_places(usual, sequence) for sequence in sequences]
    host, sites = _sites(tables, places)
    launches: list[AlignedLaunch] = []
    for key, site, own in zip(usual, sites, zip(*places, strict=True), strict=True):
        known = {n: tables[n].launches[at] for n, at in enumerate(own) if at is not None}
        first, one = next(iter(known.items()))
        duration = fmean(launch.duration for launch in known.values())
        counts = {
            metric: _count([(tables[n].metrics, one) for n, one in known.items()], metric)
            for metric in (INSTRUCTIONS, *COSTS, MADE_BYTES)
        }
        launch = AlignedLaunch(
            position=len(launches),
            key=key,
            family=family(key[0]),
            short=short(key[0]),
            times=tuple(known[n].duration if n in known else duration for n in range(len(own))),
            duration=duration,
            cost=duration if explained is None else counts.get(explained, 1.0) or 0.0,
            counts=counts,
            dtype=dtype(tables[first].names[one.name]),
            place=(site.line, site.function),
            module=site.module,
            backward=site.backward,
            frames=(Caller(site.line, site.function, site.executions), *site.callers),
        )
        launches.append(launch)
    traces = [trace for table in tables for trace in table.traces]
    return LaunchSequence(
        launches=tuple(launches),
        host=host,
        idle=tuple(table.idle for table in tables),
        idles=tuple(idle for _, idle in traces),
        totals=tuple(busy + idle for busy, idle in traces),
        odd=len(tables) - count,
    )


def keys(table: KernelTable) -> tuple[Key, ...]:
    """The launches of a table, by the key that makes two launches the same kernel.

    An operator is the same where it has the same place in the code, whatever the line's number:
    there are few operators, which every module uses.
    """
    if table.of_operators and table.site_of:
        ways = [f"{'backward of ' * s.backward}{s.function} {s.module}" for s in table.sites]
        return tuple(
            (f"{operator_of(table.names[launch.name])}{_PLACE}{ways[at].strip()}", (), ())
            for launch, at in zip(table.launches, table.site_of, strict=True)
        )
    return tuple(
        (table.names[launch.name], launch.grid or (), launch.block or ())
        for launch in table.launches
    )


def operator_of(name: str) -> str:
    """The operator that a key names, or a table with the data type."""
    return name.partition(" ")[0]


def type_of(name: str) -> str:
    """The data type of an operator's result, as a table names it; "" where it does not."""
    return name.partition(" ")[2]


def numbered(line: str) -> tuple[str, int]:
    """The file and number of a line; 0 if the line has no number."""
    file, _, number = line.rpartition(":")
    return file, int(number) if number.isdecimal() else 0


def _sites(
    tables: Sequence[KernelTable], places: Sequence[Sequence[int | None]]
) -> tuple[KernelTable | None, list[CallSite]]:
    """The first table that has a call site for every launch, and its sites; else blank sites."""
    for table, own in zip(tables, places, strict=True):
        known = [place for place in own if place is not None]
        if table.site_of and known and len(known) == len(own):
            return table, [table.sites[table.site_of[place]] for place in known]
    return None, [CallSite("", "")] * len(places[0])


def _places(usual: Sequence[Key], sequence: Sequence[Key]) -> list[int | None]:
    """The position in `sequence` of each launch of `usual`."""
    if sequence == usual:
        return list(range(len(usual)))
    aligned = dict(common(usual, sequence))
    return [aligned.get(position) for position in range(len(usual))]


def _count(launches: Sequence[tuple[Sequence[str], Launch]], metric: str) -> float | None:
    """The mean count of one launch, over the tables that count this metric."""
    values = (
        launch.values[metrics.index(metric)] if launch.values else 0.0
        for metrics, launch in launches
        if (launch.values or launch.kind == OPERATOR) and metric in metrics
    )
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


@dataclass(frozen=True)
class Frame:
    """Two steps, launch by launch."""

    new: LaunchSequence
    old: LaunchSequence
    launches: tuple[tuple[AlignedLaunch, ...], tuple[AlignedLaunch, ...]]
    """All launches now, and all launches before, at the lines of the code now."""
    changes: tuple[LaunchChange, ...]
    """The fate of each launch: added, removed, replaced, or the same."""
    relocated: Mapping[Place, Place]
    """The line now of each line of the baseline: an edit above moves every line."""
    explained: str | None = None
    """The metric of which operators have a part, "" for their number; None of kernels."""

    @property
    def located(self) -> bool:
        """Whether the lines of code of launches are known, on both sides."""
        return self.new.host is not None and self.old.host is not None

    @property
    def timed(self) -> bool:
        """Whether launches have times: operators have none."""
        return self.explained is None

    @cached_property
    def kernels(self) -> tuple[set[str], set[str]]:
        """The whole names of the kernels, now and before."""
        now, then = self.launches
        return {launch.name for launch in now}, {launch.name for launch in then}

    def place_now(self, site: CallSite) -> Place:
        """The place now of a baseline's line that may launch nothing, moved as its nearest line."""
        where = site.line, site.function
        if where in self.relocated:
            return self.relocated[where]
        file, number = numbered(site.line)
        moved = [(*numbered(line), now) for (line, _), (now, _) in self.relocated.items()]
        near = [(abs(number - at), at, now) for of, at, now in moved if number and of == file]
        if not near:
            return where
        _, at, now = min(near)
        other, there = numbered(now)
        return f"{other}:{number + there - at}", site.function


def frame_of(new: LaunchSequence, old: LaunchSequence, explained: str | None = None) -> Frame:
    """Both steps, with the fate of each launch."""
    changes = (pair if explained is None else pair_operators)(new.launches, old.launches)
    places: dict[AlignedLaunch, Place] = {}
    there: dict[Place, Counter[Place]] = defaultdict(Counter)
    for change in sorted(changes, key=lambda change: change.kind is ChangeKind.REPLACED):
        if change.former:
            places[change.former] = change.launch.place
            there[change.former.place][change.launch.place] += 1
    relocated = {place: counts.most_common(1)[0][0] for place, counts in there.items()}
    now_at = {
        launch: replace(launch, place=places.get(launch, relocated.get(launch.place, launch.place)))
        for launch in old.launches
    }
    changes = [
        replace(change, launch=now_at[change.launch])
        if change.kind is ChangeKind.REMOVED
        else replace(change, former=change.former and now_at[change.former])
        for change in changes
    ]
    launches = new.launches, tuple(now_at.values())
    return Frame(new, old, launches, tuple(changes), relocated, explained)
