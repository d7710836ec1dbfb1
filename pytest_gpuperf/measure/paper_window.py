"""The protocol of the ICPE '26 paper: 100 kernel launches, after the first 10 of a process.

The paper profiles `ncu --set full --launch-skip 10 --launch-count 100` (section 4). What falls into
that window depends on what a program does first: the conversion of its weights, say.

Of several launches together, counts add up. A rate does not: it is recomputed where its counts are
there, and left out where not. An average over launches would weigh a kernel of 3 us like one of
3 ms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.measure.trace.profile import COUNTED as COUNTED_KINDS
from pytest_gpuperf.model.measurement import PAPER_WINDOW, KernelTable, Sample, Window

SKIPPED = 10
COUNTED = 100
WARPS_ACTIVE = "sm__warps_active.sum"
"""Warp-cycles: the numerator of `active_warps`, which is no metric of its own."""
_RATES = {"ipc": ("instructions", "active_cycles"), "active_warps": (WARPS_ACTIVE, "active_cycles")}
"""Numerator and denominator: names of the catalogue, or NVIDIA's."""
_WHILE_ACTIVE = ("tensor_utilization", "fma_utilization", "int_alu_utilization")
"""Shares of a peak per active cycle: weighed by those cycles, they are the share of the whole."""


def window(launches: Sequence[Mapping[str, float]], collector: str, kernels: KernelTable) -> Window:
    """The window among the `launches` of a process, counted from its start.

    A launch is its values by the catalogue's names, and `kernels` the table of all of them. Raises
    MeasurementError where the process launched nothing after the first 10.
    """
    inside = launches[SKIPPED : SKIPPED + COUNTED]
    return window_of(inside, collector, _within(kernels))


def window_of(
    launches: Sequence[Mapping[str, float]], collector: str, kernels: KernelTable | None = None
) -> Window:
    """The window that these launches are. Raises MeasurementError for none."""
    if not launches:
        raise MeasurementError(
            f"the process launched no more than the {SKIPPED} kernels before the paper's window"
        )
    known = {name for launch in launches for name in launch}
    totals = {name: total(name, launches) for name in catalogue().metrics if name in known}
    samples = tuple(
        Sample(PAPER_WINDOW, name, (value,))
        for name, value in totals.items()
        if not isinstance(value, str)
    )
    return Window(SKIPPED, len(launches), collector, samples, kernels)


def total(metric: str, launches: Sequence[Mapping[str, float]]) -> float | str:
    """The metric's value over all `launches`, or why it has none.

    A launch is its values, by the catalogue's names, and counts by NVIDIA's.
    """
    missing = sum(metric not in launch for launch in launches)
    if len(launches) == 1 and not missing:
        return launches[0][metric]
    if metric in _RATES:
        over, under = (_sum(name, launches) for name in _RATES[metric])
        if over is not None and under:
            return over / under
        needed = " and ".join(_hardware(name) for name in _RATES[metric])
        return f"a rate: of several kernels it takes {needed}, which are not there"
    if metric in _WHILE_ACTIVE:
        return _weighed(metric, launches)
    if not catalogue().metrics[metric].additive:
        return "a rate of single kernels, and there are no counts to compute that of all from"
    if missing:
        return f"there is no value of it for {missing} of {len(launches)} kernels"
    return math.fsum(launch[metric] for launch in launches)


def _within(kernels: KernelTable) -> KernelTable:
    """The launches of the window among those of the process; copies and fills are not counted."""
    launches = [launch for launch in kernels.launches if launch.kind in COUNTED_KINDS]
    inside = launches[SKIPPED : SKIPPED + COUNTED]
    names = tuple(dict.fromkeys(kernels.names[launch.name] for launch in inside))
    return replace(
        kernels,
        names=names,
        launches=tuple(replace(x, name=names.index(kernels.names[x.name])) for x in inside),
        # What is idle before the first step is the host's set-up.
        idle=0.0,
    )


def _weighed(metric: str, launches: Sequence[Mapping[str, float]]) -> float | str:
    cycles = [launch.get("active_cycles") for launch in launches]
    shares = [launch.get(metric) for launch in launches]
    known = [(c, s) for c, s in zip(cycles, shares, strict=True) if c is not None and s is not None]
    weight = math.fsum(c for c, _ in known)
    if len(known) < len(launches) or not weight:
        return f"a rate: of several kernels it takes {_hardware('active_cycles')} of each"
    return math.fsum(c * s for c, s in known) / weight


def _sum(name: str, launches: Sequence[Mapping[str, float]]) -> float | None:
    """The sum of a count; None where a launch lacks it."""
    values = [launch[name] for launch in launches if name in launch]
    return math.fsum(values) if len(values) == len(launches) else None


def _hardware(name: str) -> str:
    metric = catalogue().metrics.get(name)
    return name if metric is None else metric.hardware["default"] or name
