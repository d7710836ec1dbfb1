"""Counters of every kernel of a step: automatic ranges, named by a trace of the same step.

CUPTI numbers the launches and does not name them, so a trace of another execution lends the names,
in order. The two are only put together when they agree: in number, and, where counters have the
time, in which launches are long.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_gpuperf.collect.trace import COUNTED, Trace
from pytest_gpuperf.model import KernelTable, Launch, Metric

DURATION = "duration"
"""The catalogue's metric that both the trace and the counters know."""
LEAST_CORRELATION = 0.95
"""Of the logarithms of both durations over the launches. Shifted by one launch it falls far below;
in step it is 0.993 to 0.998 for five steps recorded on an H200 (tests/data/h200-tables)."""
_FEW = 8
"""Launches below which a correlation says nothing."""


def table(
    trace: Trace, metrics: Sequence[Metric], arch: str, counted: Sequence[Mapping[str, float]]
) -> KernelTable:
    """The kernel table of a step.

    `counted` are the values per launch, by NVIDIA's names, in order. Where they do not fit the
    trace, the table has names and times only, and says why in `mismatch`: a shifted name is worse
    than none.
    """
    mismatch = _mismatch(trace, metrics, arch, counted)
    if mismatch:
        return uncounted(trace, mismatch)
    return assembled(trace, metrics, arch, dict(zip(trace.counted, counted, strict=True)))


def uncounted(trace: Trace, mismatch: str) -> KernelTable:
    """The table of a step whose kernels could not be counted, with the reason."""
    return replace(assembled(trace, (), "", {}), mismatch=mismatch)


def assembled(
    trace: Trace,
    metrics: Sequence[Metric],
    arch: str,
    counted: Mapping[int, Mapping[str, float]],
) -> KernelTable:
    """The table of a trace, whose entries at some positions were counted; others have no values."""
    names = tuple(dict.fromkeys(entry.name for entry in trace.entries))
    index = {name: number for number, name in enumerate(names)}
    return KernelTable(
        names=names,
        metrics=tuple(metric.name for metric in metrics),
        launches=tuple(
            Launch(
                name=index[entry.name],
                kind=entry.kind,
                grid=entry.grid,
                block=entry.block,
                duration=entry.duration,
                values=_values(metrics, arch, counted.get(position, {}))
                if entry.kind in COUNTED
                else (),
            )
            for position, entry in enumerate(trace.entries)
        ),
        idle=trace.idle,
    )


def _values(
    metrics: Sequence[Metric], arch: str, found: Mapping[str, float]
) -> tuple[float | None, ...]:
    """In the order of `metrics`; None where a launch has no value (a hit rate without accesses)."""
    numbers = (found.get(metric.hardware_name(arch) or "") for metric in metrics)
    return tuple(n if n is not None and math.isfinite(n) else None for n in numbers)


def _mismatch(
    trace: Trace, metrics: Sequence[Metric], arch: str, counted: Sequence[Mapping[str, float]]
) -> str:
    if len(trace.counted) != len(counted):
        return (
            f"the trace has {len(trace.counted)} kernels and the counters {len(counted)}: the step "
            "does not launch the same kernels every time"
        )
    hardware = next((m.hardware_name(arch) for m in metrics if m.name == DURATION), None)
    if hardware is None or len(counted) < _FEW:
        return ""
    correlation = _correlation(
        [math.log(max(trace.entries[i].duration, 1.0)) for i in trace.counted],
        [math.log(max(values.get(hardware, 1.0), 1.0)) for values in counted],
    )
    if correlation >= LEAST_CORRELATION:
        return ""
    return (
        f"the durations of the {len(counted)} kernels in the trace and in the counters do not go "
        f"together (correlation {correlation:.3f}): the step launches its kernels in another order"
    )


def _correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Pearson's; 1 where one of both does not vary."""
    first, second = math.fsum(one) / len(one), math.fsum(other) / len(other)
    covariance = math.fsum((a - first) * (b - second) for a, b in zip(one, other, strict=True))
    variances = math.fsum((a - first) ** 2 for a in one) * math.fsum(
        (b - second) ** 2 for b in other
    )
    return covariance / math.sqrt(variances) if variances else 1.0
