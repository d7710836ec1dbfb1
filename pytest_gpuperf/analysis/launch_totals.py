"""Totals of a kernel table's launches, by kernel and by family, and their instructions per cycle.

The paper (section 3) divides each profiled kernel's instructions by its cycles. The geometric mean
of these is its overall IPC, which weighs a kernel of 2 us like one of 20 ms. The step's own IPC,
all instructions over all cycles, weighs each by its cycles. They are kept apart.

Cycles are those in which an SM had a warp, summed over the SMs. An IPC is thus that of one SM (at
most 4 from Volta on), like Executed IPC Active in Nsight Compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.measure.trace.profile import COUNTED, GRAPH
from pytest_gpuperf.model.measurement import STEP, KernelTable, Launch

INSTRUCTIONS, CYCLES, IPC = "instructions", "active_cycles", "ipc"
COUNTS = (INSTRUCTIONS, CYCLES)

Family = Callable[[str], str]
"""The group of a kernel by its name: `kernel_families.family`, or any other grouping."""


@dataclass(frozen=True, slots=True)
class Group:
    """Launches that are looked at together."""

    name: str
    """The kernel's name, the family, or STEP."""
    family: str
    """The kernel's, or the family itself; "" for all launches together."""
    launches: tuple[Launch, ...]


class Counters:
    """The counts of a table, by launch."""

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
        there = ((name, _at(launch, self._index[name])) for name in metrics if name in self._index)
        return {metric: value for metric, value in there if value is not None}

    def totals(
        self, launches: Sequence[Launch], metrics: Iterable[str]
    ) -> tuple[dict[str, float], int]:
        """The sums of those of `metrics` that any launch of the table has, and what they leave out.

        That is the number of launches without one of these metrics.
        """
        there = [metric for metric in metrics if metric in self._index]
        every = [self.values(launch, there) for launch in launches]
        complete = [values for values in every if len(values) == len(there)]
        sums = {metric: total(values[metric] for values in complete) for metric in there}
        return sums if complete else {}, len(launches) - len(complete)

    def whole(self) -> Group:
        """The group of all kernels and graphs: copies and fills have no counters."""
        return Group(STEP, "", self._launches)

    def by_kernel(self, family: Family) -> list[Group]:
        """A group per kernel name, of kernels and graphs, in order of their first launches."""
        by_name: dict[int, list[Launch]] = {}
        for launch in self._launches:
            by_name.setdefault(launch.name, []).append(launch)
        names = self._table.names
        return [Group(names[key], family(names[key]), tuple(own)) for key, own in by_name.items()]

    def by_family(self, family: Family) -> list[Group]:
        """A group per family, of kernels and graphs, in order of their first launches."""
        own: dict[str, list[Launch]] = {}
        for group in self.by_kernel(family):
            own.setdefault(group.family, []).extend(group.launches)
        return [Group(name, name, tuple(own)) for name, own in own.items()]

    def absent(self, *metrics: str) -> Iterator[str]:
        """A sentence that names the `metrics` that no launch has; none if all are there.

        If counters and trace do not match, it says that.
        """
        yield from self.mismatch() if self._table.mismatch else absent(metrics, self._index)

    def mismatch(self) -> Iterator[str]:
        """A sentence on why no launch has counters; none where that is not so."""
        if self._table.mismatch:
            yield f"no kernel has counters, because {self._table.mismatch}"


def absent(metrics: Iterable[str], there: Container[str]) -> Iterator[str]:
    """A sentence that names the `metrics` that are not `there`; none if all are."""
    lacking = [metric for metric in metrics if metric not in there]
    if lacking:
        yield f"not collected: {', '.join(lacking)}"


def existing(metrics: Iterable[str], arch: str) -> tuple[str, ...]:
    """The metrics that exist on that architecture, by the catalogue."""
    known = catalogue().metrics
    return tuple(m for m in metrics if m not in known or known[m].hardware_name(arch) is not None)


def left_out(count: int, of: int, why: str) -> Iterator[str]:
    """A sentence that says how many launches are not in a number, and why; none for 0."""
    if count:
        yield f"without {count:,} of {of:,} launches, because {why}"


def of_graphs(launches: Sequence[Launch]) -> Iterator[str]:
    """A sentence on the graphs among the launches; none where there are none."""
    count = sum(launch.kind == GRAPH for launch in launches)
    if count:
        yield f"{count:,} of {len(launches):,} launches are CUDA graphs, each counted as one kernel"


def _at(launch: Launch, position: int) -> float | None:
    return launch.values[position] if launch.values else None


def total(values: Iterable[float]) -> float:
    """The sum of the values; infinite if a float cannot hold it."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # the latter of infinities of both signs
        return math.inf


def ratio(over: float, under: float) -> float | None:
    """`over` / `under`; None where that is no finite number."""
    if not under:
        return None
    quotient = over / under
    return quotient if math.isfinite(quotient) else None


@dataclass(frozen=True, slots=True)
class KernelIpc:
    """The IPC of one kernel, by its name."""

    name: str
    family: str
    launches: int
    """Launches with an IPC."""
    nanoseconds: float
    """Their time without counters."""
    ipc: float | None
    """Instructions over cycles for all its launches; None if these were not counted."""
    geometric_mean: float | None
    """Over its launches, as the paper has it over kernels."""


@dataclass(frozen=True, slots=True)
class Ipc:
    """The IPC of a step's kernels, in instructions per cycle."""

    geometric_mean: float | None
    """Over all launches: the paper's overall IPC."""
    whole: float | None
    """Instructions over cycles for all launches."""
    kernels: tuple[KernelIpc, ...]
    """The kernels with an IPC, the longest first."""
    missing: tuple[str, ...]


def of_kernels(table: KernelTable, family: Family) -> Ipc:
    """IPC by kernel, and over all kernels.

    Per launch: instructions / active_cycles, or the collected ipc if either is missing.
    geometric_mean = exp(sum(log(ipc)) / n) over the n launches with an IPC above 0; whole =
    sum(instructions) / sum(active_cycles). Copies and fills execute nothing.
    """
    counters = Counters(table)
    everything = counters.whole()
    step = _of(counters, everything)
    rates = [_rate(counters, launch) for launch in everything.launches]
    missing = [*counters.absent(*COUNTS)]
    missing += left_out(rates.count(None), len(rates), "they have no IPC")
    missing += left_out(rates.count(0), len(rates), "their IPC is 0, which has no logarithm")
    missing += of_graphs(everything.launches)
    kernels = [_of(counters, group) for group in counters.by_kernel(family)]
    return Ipc(
        geometric_mean=step.geometric_mean,
        whole=step.ipc,
        kernels=tuple(
            sorted((kernel for kernel in kernels if kernel.launches), key=lambda k: -k.nanoseconds)
        ),
        missing=tuple(missing),
    )


def of_step(values: Mapping[str, float]) -> float | None:
    """The IPC of a whole step or phase, from its own values: instructions / active_cycles.

    The collected ipc if one of these is missing; None without either. Never the kernels' mean.
    """
    if INSTRUCTIONS in values and CYCLES in values:
        return ratio(values[INSTRUCTIONS], values[CYCLES])
    return values.get(IPC)


def _of(counters: Counters, group: Group) -> KernelIpc:
    rated = [
        (launch, rate)
        for launch in group.launches
        if (rate := _rate(counters, launch)) is not None and rate > 0
    ]
    counts, _ = counters.totals(group.launches, COUNTS)
    return KernelIpc(
        name=group.name,
        family=group.family,
        launches=len(rated),
        nanoseconds=total(launch.duration for launch, _ in rated),
        ipc=of_step(counts),
        geometric_mean=geometric_mean(rate for _, rate in rated) if rated else None,
    )


def _rate(counters: Counters, launch: Launch) -> float | None:
    return of_step(counters.values(launch, (*COUNTS, IPC)))
