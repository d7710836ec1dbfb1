"""Instructions per cycle: of each kernel, their geometric mean, and of the step as a whole.

The paper (section 3) divides each profiled kernel's instructions by its cycles, and calls the
geometric mean of these its overall IPC. That weighs a kernel of 2 us like one of 20 ms; the step's
own IPC, all instructions over all cycles, weighs each by its cycles. Both are here, never mixed.

Cycles are those in which an SM had a warp, summed over the SMs, so that an IPC is one of an SM (at
most 4 from Volta on): what Nsight Compute calls Executed IPC Active.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_gpuperf.derived.launches import (
    Counters,
    Family,
    Group,
    geometric_mean,
    left_out,
    of_graphs,
    ratio,
    total,
)
from pytest_gpuperf.model import KernelTable, Launch

INSTRUCTIONS, CYCLES, IPC = "instructions", "active_cycles", "ipc"
COUNTS = (INSTRUCTIONS, CYCLES)
UNIT = "instructions/cycle"


@dataclass(frozen=True, slots=True)
class KernelIpc:
    """The IPC of one kernel, by its name."""

    name: str
    family: str
    launches: int
    """With an IPC."""
    nanoseconds: float
    """Their time, without counters."""
    ipc: float | None
    """Of its launches together: instructions over cycles. None where these were not counted."""
    geometric_mean: float | None
    """Over its launches, as the paper has it over kernels."""


@dataclass(frozen=True, slots=True)
class Ipc:
    """The IPC of a step's kernels."""

    unit: str
    """Of every IPC in here."""
    geometric_mean: float | None
    """Over all launches: the paper's overall IPC."""
    whole: float | None
    """Of all launches together: instructions over cycles."""
    launches: int
    """In `geometric_mean`."""
    kernels: tuple[KernelIpc, ...]
    """Those with an IPC; those that take longest first."""
    missing: tuple[str, ...]


def of_kernels(table: KernelTable, family: Family) -> Ipc:
    """IPC by kernel, and over all of them.

    Of a launch: instructions / active_cycles, or the collected ipc where one of them is not there.
    geometric_mean = exp(sum(log(ipc)) / n) over the n launches with an IPC above 0;
    whole = sum(instructions) / sum(active_cycles). Copies and fills execute nothing.
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
        unit=UNIT,
        geometric_mean=step.geometric_mean,
        whole=step.ipc,
        launches=step.launches,
        kernels=tuple(
            sorted((found for found in kernels if found.launches), key=lambda k: -k.nanoseconds)
        ),
        missing=tuple(missing),
    )


def of_step(values: Mapping[str, float]) -> float | None:
    """The IPC of a whole step or phase, from its own values: instructions / active_cycles.

    The collected ipc where one of these is not there; None without either. Never the kernels' mean.
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
    counts = counters.totals(group.launches, COUNTS).values
    return KernelIpc(
        name=group.name,
        family=group.family,
        launches=len(rated),
        nanoseconds=total(launch.duration for launch, _ in rated),
        ipc=of_step(counts),
        geometric_mean=geometric_mean([rate for _, rate in rated]),
    )


def _rate(counters: Counters, launch: Launch) -> float | None:
    return of_step(counters.values(launch, (*COUNTS, IPC)))
