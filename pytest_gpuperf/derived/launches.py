"""The launches of a kernel table, by kernel and by family, and their counts added up."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_gpuperf.collect.trace import COUNTED, GRAPH
from pytest_gpuperf.model import KernelTable, Launch
from pytest_gpuperf.progress import counted

Family = Callable[[str], str]
"""What a kernel belongs to, by its name: `pytest_gpuperf.kernels.family`, or any other grouping."""

STEP = "step"
"""The name of what is of all launches together."""


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
    """By metric; without those that the table does not have."""
    nanoseconds: float
    """The time of the launches in the sums."""
    launches: int
    """In the sums: those with a value of every metric that was asked for and that the table has."""
    left_out: int


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

    @property
    def metrics(self) -> Container[str]:
        """Those of which any launch has a value."""
        return self._index

    def value(self, launch: Launch, metric: str) -> float | None:
        """The launch's value of a metric; None where it has none."""
        position = self._index.get(metric)
        return None if position is None else _at(launch, position)

    def values(self, launch: Launch, metrics: Iterable[str]) -> dict[str, float]:
        """The launch's values of those of `metrics` that it has."""
        found = {metric: self.value(launch, metric) for metric in metrics}
        return {metric: value for metric, value in found.items() if value is not None}

    def totals(self, launches: Iterable[Launch], metrics: Iterable[str]) -> Totals:
        """The sums of those of `metrics` that were collected, over the launches that have all."""
        there = [metric for metric in metrics if metric in self._index]
        every = [(launch, self.values(launch, there)) for launch in launches]
        complete = [(launch, values) for launch, values in every if len(values) == len(there)]
        return Totals(
            values={
                metric: total(values[metric] for _, values in complete)
                for metric in (there if complete else ())
            },
            nanoseconds=total(launch.duration for launch, _ in complete),
            launches=len(complete),
            left_out=len(every) - len(complete),
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


def left_out(count: int, of: int, why: str) -> Iterator[str]:
    """A sentence that says how many launches are not in a number, and why; none for 0."""
    if count:
        yield f"{count:,} of {of:,} launches left out: {why}"


def of_graphs(launches: Iterable[Launch]) -> Iterator[str]:
    """A sentence on the graphs among the launches; none where there are none."""
    count = sum(launch.kind == GRAPH for launch in launches)
    if count:
        yield f"{counted(count, 'CUDA graph')}, each as one kernel: those in it are not told apart"


def _at(launch: Launch, position: int) -> float | None:
    return launch.values[position] if launch.values else None


def total(values: Iterable[float]) -> float:
    """Their sum; infinite where it is beyond what a float can hold."""
    try:
        return math.fsum(values)
    except OverflowError:
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
