"""The launches of a kernel table, by kernel and by family, and their counts added up."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_gpuperf.collect.trace import COUNTED, GRAPH
from pytest_gpuperf.metrics import catalogue
from pytest_gpuperf.model import STEP, KernelTable, Launch

Family = Callable[[str], str]
"""What a kernel belongs to, by its name: `pytest_gpuperf.kernels.family`, or any other grouping."""


@dataclass(frozen=True, slots=True)
class Group:
    """Launches that are looked at together."""

    name: str
    """The kernel's name, the family, or STEP."""
    family: str
    """The kernel's, or the family itself; "" for all launches together."""
    launches: tuple[Launch, ...]


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts of some launches, added up."""

    values: dict[str, float]
    """By metric; without those that no launch of the table has."""
    left_out: int
    """Launches that are not in the sums: they lack a metric that others have."""


class Counters:
    """What a table counted, launch by launch."""

    def __init__(self, table: KernelTable) -> None:
        self._table = table
        self._launches = tuple(launch for launch in table.launches if launch.kind in COUNTED)
        self._index = {
            metric: position
            for position, metric in enumerate(table.metrics)
            if any(_at(launch, position) is not None for launch in self._launches)
        }

    def values(self, launch: Launch, metrics: Iterable[str]) -> dict[str, float]:
        """The launch's values of those of `metrics` that it has."""
        found = {}
        for metric in metrics:
            position = self._index.get(metric)
            value = None if position is None else _at(launch, position)
            if value is not None:
                found[metric] = value
        return found

    def totals(self, launches: Sequence[Launch], metrics: Iterable[str]) -> Totals:
        """The sums of those of `metrics` that were collected, over the launches that have all."""
        there = [metric for metric in metrics if metric in self._index]
        positions = [self._index[metric] for metric in there]
        rows = [[x.values[p] for p in positions] for x in launches if x.values or not positions]
        complete = [row for row in rows if None not in row]
        # Of no complete launch there are no columns, and no sums.
        columns = zip(*complete, strict=True)
        return Totals(
            values={
                metric: total(value for value in column if value is not None)
                for metric, column in zip(there, columns, strict=False)
            },
            left_out=len(launches) - len(complete),
        )

    def whole(self) -> Group:
        """All kernels and graphs: copies and fills have no counters."""
        return Group(STEP, "", self._launches)

    def by_kernel(self, family: Family) -> list[Group]:
        """A group per kernel name, of kernels and graphs, in order of their first launches."""
        found: dict[int, list[Launch]] = {}
        for launch in self._launches:
            found.setdefault(launch.name, []).append(launch)
        names = self._table.names
        return [Group(names[key], family(names[key]), tuple(own)) for key, own in found.items()]

    def by_family(self, family: Family) -> list[Group]:
        """A group per family, of kernels and graphs, in order of their first launches."""
        found: dict[str, list[Launch]] = {}
        for group in self.by_kernel(family):
            found.setdefault(group.family, []).extend(group.launches)
        return [Group(name, name, tuple(own)) for name, own in found.items()]

    def absent(self, *metrics: str) -> Iterator[str]:
        """A sentence that names those of `metrics` that no launch has; none where there are all.

        Where counters and trace do not fit together, it says that.
        """
        yield from self.mismatch() if self._table.mismatch else absent(metrics, self._index)

    def mismatch(self) -> Iterator[str]:
        """A sentence on why no launch has counters; none where that is not so."""
        if self._table.mismatch:
            yield f"no kernel has counters: {self._table.mismatch}"


def absent(metrics: Iterable[str], there: Container[str]) -> Iterator[str]:
    """A sentence that names those of `metrics` that are not `there`; none where all are."""
    lacking = [metric for metric in metrics if metric not in there]
    if lacking:
        yield f"not collected: {', '.join(lacking)}"


def existing(metrics: Iterable[str], arch: str) -> tuple[str, ...]:
    """Those of `metrics` that exist on that architecture, by the catalogue."""
    known = catalogue().metrics
    return tuple(m for m in metrics if m not in known or known[m].hardware_name(arch) is not None)


def left_out(count: int, of: int, why: str) -> Iterator[str]:
    """A sentence that says how many launches are not in a number, and why; none for 0."""
    if count:
        yield f"{count:,} of {of:,} launches left out: {why}"


def of_graphs(launches: Sequence[Launch]) -> Iterator[str]:
    """A sentence on the graphs among the launches; none where there are none."""
    count = sum(launch.kind == GRAPH for launch in launches)
    if count:
        yield f"CUDA graphs count as one kernel each: {count:,} of {len(launches):,} launches"


def _at(launch: Launch, position: int) -> float | None:
    return launch.values[position] if launch.values else None


def total(values: Iterable[float]) -> float:
    """Their sum; infinite where it is beyond what a float can hold."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # the latter of infinities of both signs
        return math.inf


def ratio(over: float, under: float) -> float | None:
    """`over` / `under`; None where that is no finite number."""
    if not under:
        return None
    found = over / under
    return found if math.isfinite(found) else None


def geometric_mean(values: Sequence[float]) -> float | None:
    """Of positive numbers: exp of the mean of their logarithms. None of none."""
    if not values:
        return None
    return math.exp(math.fsum(map(math.log, values)) / len(values))
