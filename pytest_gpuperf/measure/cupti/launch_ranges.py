"""Counters of every kernel of a step, with names from a trace of the same step.

CUPTI makes a range of every launch and numbers it, without a name. The names come from a trace of
another execution, in order. They are joined only if both agree: in number, and, if counters have
the time, in which launches are long.

Automatic ranges fail for steps that launch CUDA graphs: on an H200 with CUPTI 13.0,
cuptiRangeProfilerStop returns CUPTI_ERROR_UNKNOWN. Their kernels have only names and times.

A range for every launch is also slow: 1 ms for each when a pass begins, and 1 ms more at its launch
(H100, CUPTI 13.0; 1550 launches take 5 s instead of 0.1 s).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import sub

from pytest_gpuperf.measure.trace.profile import Trace
from pytest_gpuperf.model.measurement import KernelTable, Launch
from pytest_gpuperf.model.metric import Metric

DURATION = "duration"
"""The catalogue's metric that both the trace and the counters know."""
LEAST_CORRELATION = 0.95
"""The least correlation of the logarithms of both durations over the launches. After a shift by one
it is far below; else 0.993 to 0.998 for five H200 recordings (tests/data/h200-tables)."""
ALIKE = 0.3
"""The spread of logarithmic ratios up to which all launches take so nearly the same time that the
correlation is noise (0.2 to 0.3 for the same steps, 1.8 to 2.9 shifted)."""
_FEW = 8
"""Launches below which a correlation says nothing."""


def kernel_table(
    trace: Trace, metrics: Sequence[Metric], arch: str, counted: Sequence[Mapping[str, float]]
) -> KernelTable:
    """The kernel table of a step.

    `counted` are the values per launch, by NVIDIA's names, in order. Where they do not fit the
    trace, the table has names and times only, and says why in `mismatch`: a shifted name is worse
    than none.
    """
    mismatch = _mismatch(trace, metrics, arch, counted)
    table = uncounted(trace, mismatch)
    if mismatch:
        return table
    launches = list(table.launches)
    for position, values in zip(trace.counted, counted, strict=True):
        launches[position] = replace(launches[position], values=_values(metrics, arch, values))
    named = tuple(metric.name for metric in metrics)
    return replace(table, metrics=named, launches=tuple(launches))


def uncounted(trace: Trace, mismatch: str = "") -> KernelTable:
    """The table of a step whose kernels were not counted; `mismatch` is why not, if they can be."""
    names = tuple(dict.fromkeys(entry.name for entry in trace.entries))
    index = {name: number for number, name in enumerate(names)}
    launches = (
        Launch(index[entry.name], entry.kind, entry.grid, entry.block, entry.duration)
        for entry in trace.entries
    )
    return KernelTable(names, (), tuple(launches), trace.idle, mismatch=mismatch)


def with_times(table: KernelTable, traces: Sequence[Trace]) -> KernelTable:
    """The table of the first trace, with the medians of the times over all traces.

    Only traces with the same launches as the first count. A single execution says little about the
    time between kernels, which the host decides.
    """
    first = [entry.name for entry in traces[0].entries]
    alike = [trace for trace in traces if [entry.name for entry in trace.entries] == first]
    every = zip(*([entry.duration for entry in trace.entries] for trace in alike), strict=True)
    return replace(
        table,
        launches=tuple(
            replace(launch, duration=statistics.median(durations))
            for launch, durations in zip(table.launches, every, strict=True)
        ),
        idle=statistics.median(trace.idle for trace in alike),
        busy=tuple(math.fsum(entry.duration for entry in trace.entries) for trace in alike),
        idles=tuple(trace.idle for trace in alike),
    )


def _values(
    metrics: Sequence[Metric], arch: str, values: Mapping[str, float]
) -> tuple[float | None, ...]:
    """The values in the order of `metrics`; None if undefined (a hit rate without accesses)."""
    numbers = (values.get(metric.hardware_name(arch) or "") for metric in metrics)
    return tuple(n if n is not None and math.isfinite(n) else None for n in numbers)


def _mismatch(
    trace: Trace, metrics: Sequence[Metric], arch: str, counted: Sequence[Mapping[str, float]]
) -> str:
    if len(trace.counted) != len(counted):
        return (
            f"the trace has {len(trace.counted)} kernels, the counters have {len(counted)}: the "
            "step launches other kernels in each execution"
        )
    hardware = next((m.hardware_name(arch) for m in metrics if m.name == DURATION), None)
    if hardware is None or len(counted) < _FEW:
        return ""
    traced = [math.log(max(trace.entries[i].duration, 1.0)) for i in trace.counted]
    measured = [math.log(max(values.get(hardware, 1.0), 1.0)) for values in counted]
    correlation = _correlation(traced, measured)
    if correlation >= LEAST_CORRELATION or statistics.stdev(map(sub, traced, measured)) <= ALIKE:
        return ""
    return (
        f"the durations of the {len(counted)} kernels in trace and counters do not match "
        f"(correlation {correlation:.3f}), so the step changes the order of its kernels"
    )


def _correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Pearson's correlation; 1 if a series is constant."""
    try:
        return statistics.correlation(one, other)
    except statistics.StatisticsError:
        return 1.0
