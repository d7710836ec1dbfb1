"""The alignment of two steps: which launches are the same ones, and what became of the others.

The alignment is a longest common subsequence, found exactly and bit-parallel: one row of the usual
table is one integer, so that aligning n with m launches costs n additions of m bits, whatever the
sequences look like. Methods that follow matches (Hunt and Szymanski, difflib) are quadratic where
few kernels make up most launches, and those that follow differences (Myers) where all changed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import fsum, isqrt
from statistics import fmean

from pytest_gpuperf.model.measurement import CallSite, KernelTable

Key = tuple[str, tuple[int, ...], tuple[int, ...]]
"""What makes two launches the same kernel: name, grid and block (empty where there is none)."""

Pair = tuple[int, int]
"""A position in the measured sequence, and one in the baseline's."""

NEAR = 1
"""Gaps with no more matched launches between them are one place: algorithms differ in the helpers
they launch before and after, and one of these may match. Without it, a quarter of what replaces
convolutions between two recorded steps of an H200 would stand as removed here and added there."""

Place = tuple[str, str]
"""A line of code, and the function that it is in."""

_PLACE = " in "

CYCLES, INSTRUCTIONS = "cycles", "instructions"
"""The catalogue's metrics that say why a kernel's time changed."""


@dataclass(frozen=True)
class Pairing:
    """What became of each launch; every position of both sequences is in exactly one place."""

    matched: tuple[Pair, ...]
    """The same kernel, in the same order."""
    moved: tuple[Pair, ...]
    """The same kernel, at another place of the sequence."""
    replaced: tuple[Pair, ...]
    """Another kernel of the same family at the same place: between the same matched neighbours, or
    next to that."""
    added: tuple[int, ...]
    removed: tuple[int, ...]


def pair(
    measured: Sequence[Key],
    baseline: Sequence[Key],
    durations: tuple[Sequence[float], Sequence[float]],
    family: Callable[[str], str],
) -> Pairing:
    """Pairs the launches of two steps; `durations` are the times of both, in the same order.

    First come kernels that are equal in the same order. Between two neighbours of those, what is
    left is paired as replaced: by name (another shape), then by family (another algorithm), there
    also with what is left in the next gap, one launch away; each in order. Where one side has more
    of a kind, its longest are paired: an algorithm brings small helpers of its own. What is equal
    has moved, one launch or, when nothing else is left to be paired, any number of them. Exchanging
    the two sides exchanges the positions in each pair, and nothing else.
    """
    # Where several alignments are longest, the choice must not depend on which side is which.
    if (len(baseline), *baseline) < (len(measured), *measured):
        matched = [(i, j) for j, i in common(baseline, measured)]
    else:
        matched = common(measured, baseline)
    names = [key[0] for key in measured], [key[0] for key in baseline]
    families = [family(name) for name in names[0]], [family(name) for name in names[1]]
    replaced: list[Pair] = []
    places: list[tuple[list[int], list[int]]] = []
    end = -1
    for new, old, start in _gaps(matched, len(measured), len(baseline)):
        pairs, new, old = _alike(new, old, names, durations)
        replaced += pairs
        if not places or start - end > NEAR:
            places.append(([], []))
        places[-1][0].extend(new)
        places[-1][1].extend(old)
        end = start
    moved: list[Pair] = []
    added: list[int] = []
    removed: list[int] = []
    for new, old in places:
        # Two neighbours that changed places: neither replaces itself.
        equal, new, old = _alike(new, old, (measured, baseline), durations)
        moved += equal
        pairs, new, old = _alike(new, old, families, durations)
        replaced += pairs
        added += new
        removed += old
    equal, added, removed = _alike(added, removed, (measured, baseline), durations)
    return Pairing(
        tuple(matched),
        tuple(sorted(moved + equal)),
        tuple(sorted(replaced)),
        tuple(added),
        tuple(removed),
    )


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
    """The same for sequences without a common beginning or end."""
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
    """`row` and one more for each of `items` (Hyyrö 2004)."""
    rows = [row]
    for item in items:
        hits = row & places.get(item, 0)
        if hits:
            row = (row + hits | row - hits) & full
        rows.append(row)
    return rows


def _gaps(
    matched: Sequence[Pair], new: int, old: int
) -> Iterator[tuple[list[int], list[int], int]]:
    """What is left over between matched neighbours, and how many are matched before that."""
    before = (-1, -1)
    for count, after in enumerate(chain(matched, [(new, old)])):
        gap = list(range(before[0] + 1, after[0])), list(range(before[1] + 1, after[1]))
        if gap[0] or gap[1]:
            yield *gap, count
        before = after


def _alike(
    new: Sequence[int],
    old: Sequence[int],
    kinds: tuple[Sequence[Hashable], Sequence[Hashable]],
    durations: tuple[Sequence[float], Sequence[float]],
) -> tuple[list[Pair], list[int], list[int]]:
    """Launches of one kind paired in order, the longest first to find one; and what is left.

    `kinds` and `durations` are of every launch of both sides, at its position.
    """
    by_kind: dict[Hashable, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, places in enumerate((new, old)):
        for place in places:
            by_kind[kinds[side][place]][side].append(place)
    pairs: list[Pair] = []
    for of_kind in by_kind.values():
        count = min(map(len, of_kind))
        longest = (
            _longest(side, all_, count) for side, all_ in zip(of_kind, durations, strict=True)
        )
        pairs += zip(*longest, strict=True)
    paired_new, paired_old = {i for i, _ in pairs}, {j for _, j in pairs}
    return (
        pairs,
        [i for i in new if i not in paired_new],
        [j for j in old if j not in paired_old],
    )


def _longest(places: Sequence[int], durations: Sequence[float], count: int) -> list[int]:
    """The `count` longest of these launches, in order."""
    return sorted(sorted(places, key=lambda place: (-durations[place], place))[:count])


@dataclass(frozen=True)
class LaunchSequence:
    """The launches that the tables of one side agree on, each with its mean over the tables."""

    keys: tuple[Key, ...]
    durations: tuple[float, ...]
    """Per launch, nanoseconds: the mean over the tables that have it."""
    counters: dict[str, tuple[float | None, ...]]
    """Per metric and launch, the mean over the tables that count it; None where none does."""
    tables: tuple[tuple[float, ...], ...]
    """Per table, the durations of the launches; the mean where a table lacks one."""
    idle: tuple[float, ...]
    """Per table, nanoseconds."""
    idles: tuple[float, ...]
    """Per trace, nanoseconds: a table may be of several."""
    totals: tuple[float, ...]
    """Per trace, launches and gaps."""
    sites: tuple[CallSite, ...]
    """Per launch; empty where no table says where its launches come from."""
    host: KernelTable | None
    """The table that the sites are of: what the host did beside launching is of the same."""
    odd: int
    """Tables with another sequence of launches than the one that most have."""


def sequence_of(tables: Sequence[KernelTable]) -> LaunchSequence:
    """The step that `tables`, of one or several executions of the same code, describe.

    Its launches are those of the sequence that most tables have (the first of them, where several
    are as frequent). The others are aligned with it, and their further launches left out.
    """
    sequences = [keys(table) for table in tables]
    usual, count = Counter(sequences).most_common(1)[0]
    places = [_places(usual, sequence) for sequence in sequences]
    rows = [
        [None if place is None else table.launches[place].duration for place in own]
        for table, own in zip(tables, places, strict=True)
    ]
    durations = [_mean(column) or 0.0 for column in zip(*rows, strict=True)]
    traces = [trace for table in tables for trace in _traces(table)]
    host, sites = _sites(tables, places)
    return LaunchSequence(
        keys=usual,
        durations=tuple(durations),
        counters={
            metric: tuple(
                _mean(column)
                for column in zip(
                    *(_values(t, p, metric) for t, p in zip(tables, places, strict=True)),
                    strict=True,
                )
            )
            for metric in (CYCLES, INSTRUCTIONS)
        },
        tables=tuple(
            tuple(mean if x is None else x for x, mean in zip(row, durations, strict=True))
            for row in rows
        ),
        idle=tuple(table.idle for table in tables),
        idles=tuple(idle for _, idle in traces),
        totals=tuple(busy + idle for busy, idle in traces),
        sites=sites,
        host=host,
        odd=len(tables) - count,
    )


def keys(table: KernelTable) -> tuple[Key, ...]:
    """The launches of a table, by what makes them the same kernel.

    An operator is the same where it has the same place in the code, whatever the line's number:
    there are few operators, which every module uses.
    """
    if table.of_operators and table.site_of:
        return tuple(
            (f"{table.names[launch.name]}{_PLACE}{_place(table.sites[at])}", (), ())
            for launch, at in zip(table.launches, table.site_of, strict=True)
        )
    return tuple(
        (table.names[launch.name], launch.grid or (), launch.block or ())
        for launch in table.launches
    )


def operator_of(name: str) -> str:
    """The operator that a key names."""
    return name.partition(_PLACE)[0]


def numbered(line: str) -> tuple[str, int]:
    """File and number of a line; 0 where it has none."""
    file, _, number = line.rpartition(":")
    return file, int(number) if number.isdecimal() else 0


def _place(site: CallSite) -> str:
    way = "backward of " if site.backward else ""
    return f"{way}{site.function} {site.module}".strip()


def _traces(table: KernelTable) -> list[tuple[float, float]]:
    """Launches and gaps of each trace that a table is of, nanoseconds."""
    if table.busy and len(table.busy) == len(table.idles):
        return list(zip(table.busy, table.idles, strict=True))
    return [(fsum(launch.duration for launch in table.launches), table.idle)]


def _sites(
    tables: Sequence[KernelTable], places: Sequence[Sequence[int | None]]
) -> tuple[KernelTable | None, tuple[CallSite, ...]]:
    """Those of the first table that has them for every launch, and that table."""
    for table, own in zip(tables, places, strict=True):
        known = [place for place in own if place is not None]
        if table.site_of and len(known) == len(own):
            return table, tuple(table.sites[table.site_of[place]] for place in known)
    return None, ()


def _places(usual: Sequence[Key], sequence: Sequence[Key]) -> list[int | None]:
    """Where in `sequence` each launch of `usual` is."""
    if sequence == usual:
        return list(range(len(usual)))
    aligned = dict(common(usual, sequence))
    return [aligned.get(position) for position in range(len(usual))]


def _values(table: KernelTable, places: Sequence[int | None], metric: str) -> list[float | None]:
    if metric not in table.metrics:
        return [None] * len(places)
    index = table.metrics.index(metric)
    launches = [None if place is None else table.launches[place] for place in places]
    return [launch.values[index] if launch and launch.values else None for launch in launches]


def _mean(column: Sequence[float | None]) -> float | None:
    known = [value for value in column if value is not None]
    return fmean(known) if known else None
