"""Totals of a kernel table's launches, by kernel and by family, and their instructions per cycle.

The paper (section 3) divides each profiled kernel's instructions by its cycles. The geometric mean
of these is its overall IPC, which weighs a kernel of 2 us like one of 20 ms. The step's own IPC,
all instructions over all cycles, weighs each by its cycles. They are kept apart.

Cycles are those in which an SM had a warp, summed over the SMs. An IPC is thus that of one SM (at
most 4 from Volta on), like Executed IPC Active in Nsight Compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import geometric_mean

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.measure.trace.profile import COUNTED
from pytest_gpuperf.model.measurement import STEP, KernelTable, grouped

INSTRUCTIONS, CYCLES, IPC = "instructions", "active_cycles", "ipc"
COUNTS = (INSTRUCTIONS, CYCLES)

Family = Callable[[str], str]
"""The group of a kernel by its name: `kernel_families.family`, or any other grouping."""


@dataclass(frozen=True, slots=True)
class Counted:
    """A launch of a kernel or a graph, with what was counted of it."""

    name: int
    """The position of the kernel's name in the table's names."""
    duration: float
    """Nanoseconds without counters."""
    values: Mapping[str, float]
    """By metric; without metrics that this launch does not have."""


@dataclass(frozen=True, slots=True)
class Group:
    """Launches that are looked at together."""

    name: str
    """The kernel's name, the family, or STEP."""
    family: str
    """The kernel's, or the family itself; "" for all launches together."""
    launches: tuple[Counted, ...]

    @property
    def time(self) -> float:
        """Nanoseconds of all launches, without counters."""
        return sum(one.duration for one in self.launches)

    @property
    def metrics(self) -> set[str]:
        """The metrics that any of the launches has."""
        return {metric for one in self.launches for metric in one.values}

    def sums(self, metrics: Iterable[str]) -> tuple[dict[str, float], int]:
        """The sums of `metrics` over the launches that have all of them, and how many have not."""
        wanted = tuple(metrics)
        have = [one.values for one in self.launches if all(m in one.values for m in wanted)]
        sums = {metric: sum(values[metric] for values in have) for metric in wanted}
        return sums if have else {}, len(self.launches) - len(have)


def whole(table: KernelTable) -> Group:
    """The group of all kernels and graphs of a table: copies and fills have no counters."""
    counted = (
        Counted(
            launch.name,
            launch.duration,
            {
                metric: value
                for metric, value in zip(table.metrics, launch.values, strict=False)
                if value is not None
            },
        )
        for launch in table.launches
        if launch.kind in COUNTED
    )
    return Group(STEP, "", tuple(counted))


def groups(table: KernelTable, family: Family, *, families: bool = False) -> list[Group]:
    """A group per kernel name, or per family, of kernels and graphs; the longest first."""
    known = [family(name) for name in table.names]
    names = known if families else table.names
    launches = grouped(whole(table).launches, lambda one: (names[one.name], known[one.name]))
    made = [Group(*key, tuple(own)) for key, own in launches.items()]
    return sorted(made, key=lambda group: -group.time)


def lacking(table: KernelTable, metrics: Iterable[str] = ()) -> Iterator[str]:
    """A sentence that names the `metrics` that no launch has, or why none has any; or nothing."""
    if table.mismatch:
        yield f"no kernel has counters, because {table.mismatch}"
    else:
        yield from absent(metrics, whole(table).metrics)


def absent(metrics: Iterable[str], there: Container[str]) -> Iterator[str]:
    """A sentence that names the `metrics` that are not `there`; none if all are."""
    without = [metric for metric in metrics if metric not in there]
    if without:
        yield f"not collected: {', '.join(without)}"


def existing(metrics: Iterable[str], arch: str) -> tuple[str, ...]:
    """The metrics that exist on that architecture, by the catalogue."""
    known = catalogue().metrics
    return tuple(m for m in metrics if m not in known or known[m].hardware_name(arch) is not None)


def left_out(count: int, of: int, why: str) -> Iterator[str]:
    """A sentence that says how many launches are not in a number, and why; none for 0."""
    if count:
        yield f"without {count:,} of {of:,} launches, because {why}"


def ratio(over: float, under: float) -> float | None:
    """`over` / `under`; None where that is no finite number."""
    quotient = over / under if under else math.inf
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

    step: KernelIpc
    """All launches: the paper's overall IPC is their geometric mean."""
    kernels: tuple[KernelIpc, ...]
    """The kernels with an IPC, the longest first."""
    missing: tuple[str, ...]


def of_kernels(table: KernelTable, family: Family) -> Ipc:
    """IPC by kernel, and over all kernels.

    Per launch: instructions / active_cycles, or the collected ipc if either is missing.
    geometric_mean = exp(sum(log(ipc)) / n) over the n launches with an IPC above 0; ipc =
    sum(instructions) / sum(active_cycles). Copies and fills execute nothing.
    """
    everything = whole(table)
    rates = [of_step(one.values) for one in everything.launches]
    missing = [*lacking(table, COUNTS)]
    missing += left_out(rates.count(None), len(rates), "they have no IPC")
    missing += left_out(rates.count(0), len(rates), "their IPC is 0, which has no logarithm")
    kernels = (_of(group) for group in groups(table, family))
    return Ipc(_of(everything), tuple(one for one in kernels if one.launches), tuple(missing))


def of_step(values: Mapping[str, float]) -> float | None:
    """The IPC of a launch, a step or a phase, from its own values: instructions / active_cycles.

    The collected ipc if one of these is missing; None without either. Never the kernels' mean.
    """
    if INSTRUCTIONS in values and CYCLES in values:
        return ratio(values[INSTRUCTIONS], values[CYCLES])
    return values.get(IPC)


def _of(group: Group) -> KernelIpc:
    rates = [(one.duration, of_step(one.values)) for one in group.launches]
    rated = [(duration, rate) for duration, rate in rates if rate and rate > 0]
    counts, _ = group.sums(COUNTS)
    return KernelIpc(
        name=group.name,
        family=group.family,
        launches=len(rated),
        nanoseconds=sum(duration for duration, _ in rated),
        ipc=of_step(counts),
        geometric_mean=geometric_mean(rate for _, rate in rated) if rated else None,
    )
