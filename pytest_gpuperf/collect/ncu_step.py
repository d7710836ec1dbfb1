"""The numbers of a whole step, from those of the kernels that ncu profiled one by one.

Counts add up. A rate does not: it is recomputed where the report has both its counts, and left out
where not. An average over kernels would weigh a kernel of 3 us like one of 3 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuperf.collect.ncu_report import WARPS_ACTIVE, Report, Row
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.metrics import catalogue
from pytest_gpuperf.model import STEP, KernelTable, Launch, Sample, Unsupported

_RATES = {"ipc": ("instructions", "active_cycles"), "active_warps": (WARPS_ACTIVE, "active_cycles")}
"""Numerator and denominator: names of the catalogue, or NVIDIA's of `Row.counts`."""
_TIME = "duration"


@dataclass(frozen=True, slots=True)
class Step:
    """What a report says of a step, executed once or several times."""

    samples: tuple[Sample, ...]
    """Of the whole step; a value per execution."""
    unsupported: tuple[Unsupported, ...]
    """Metrics that the report has for kernels, and that the step cannot have, with the reason."""
    kernels: KernelTable | None
    """The launches of the last execution. None for range replay, which does not see them, and
    without `duration`."""
    launches: int
    """Rows of the report per execution."""


def step_of(report: Report, executions: int = 1) -> Step:
    """The step that `report` is of, which profiled `executions` of it, one after the other.

    Raises UsageFailure for a report that is not that: of several processes, of several ranges, or
    where the kernels cannot be shared out.
    """
    rows = report.rows
    _check(report, executions)
    share = len(rows) // executions
    parts = [rows[at : at + share] for at in range(0, len(rows), share)]
    samples, unsupported = [], []
    for metric in report.metrics:
        found = [_value(metric, part) for part in parts]
        values = [value for value in found if isinstance(value, float)]
        reasons = [reason for reason in found if isinstance(reason, str)]
        if reasons:
            unsupported.append(Unsupported(metric, reasons[0]))
        else:
            samples.append(Sample(STEP, metric, tuple(values)))
    if not samples:
        core = catalogue().hardware_set("core")
        wanted = ",".join(filter(None, (metric.hardware_name(report.arch) for metric in core)))
        raise UsageFailure(
            f"{report.file}: has no metric that is known here for a whole step. Profile with "
            f"ncu --metrics {wanted}"
        )
    return Step(tuple(samples), tuple(unsupported), _table(report, parts[-1]), share)


def repeats(table: KernelTable) -> int:
    """How often the whole series of launches is one series repeated; 1 if it is not.

    A guess at the number of executions. One kernel over and over is not taken for many steps.
    """
    kernels = [(launch.name, launch.grid, launch.block) for launch in table.launches]
    for length in range(2, len(kernels) // 2 + 1):
        if len(kernels) % length == 0 and kernels == kernels[:length] * (len(kernels) // length):
            return len(kernels) // length
    return 1


def _check(report: Report, executions: int) -> None:
    rows = report.rows
    processes = list(dict.fromkeys(row.process for row in rows))
    if len(processes) > 1:
        raise UsageFailure(
            f"{report.file}: has kernels of the processes {', '.join(processes)}, and a step is "
            "one process's. Profile one of them"
        )
    if executions < 1 or len(rows) % executions:
        raise UsageFailure(
            f"{report.file}: {len(rows)} kernels or ranges are not {executions} executions of one "
            "step, which would be so many times the same"
        )
    share = len(rows) // executions
    ranges = [row for row in rows if row.kind == "range"]
    if ranges and (len(ranges) < len(rows) or share > 1):
        raise UsageFailure(
            f"{report.file}: has {len(ranges)} ranges and {len(rows) - len(ranges)} kernels, and "
            "one range is the whole step. If each range is one execution of it: --steps "
            f"{len(ranges)}"
        )
    for index, row in enumerate(rows):
        if row.name != rows[index % share].name:
            raise UsageFailure(
                f"{report.file}: not {executions} executions of one step: of {share} kernels each, "
                f"number {index % share + 1} is {rows[index % share].name} in the first and "
                f"{row.name} in number {index // share + 1}"
            )


def _value(metric: str, rows: Sequence[Row]) -> float | str:
    """The metric's value for these rows together, or why it has none."""
    missing = sum(metric not in row.values for row in rows)
    if len(rows) == 1 and not missing:
        return rows[0].values[metric]
    if metric in _RATES:
        over, under = (_sum(name, rows) for name in _RATES[metric])
        if over is not None and under:
            return over / under
        needed = " and ".join(_hardware(name) for name in _RATES[metric])
        return f"a rate: of several kernels it takes {needed}, which the report does not have"
    if not catalogue().metrics[metric].additive:
        return "a rate of single kernels, and the report has no counts to compute the step's from"
    if missing:
        return f"ncu has no value of it for {missing} of {len(rows)} kernels"
    return float(sum(row.values[metric] for row in rows))


def _sum(name: str, rows: Sequence[Row]) -> float | None:
    """The sum of a count, by the catalogue's name or NVIDIA's; None where a row lacks it."""
    found = [row.values.get(name, row.counts.get(name)) for row in rows]
    values = [value for value in found if value is not None]
    return sum(values) if len(values) == len(rows) else None


def _hardware(name: str) -> str:
    metric = catalogue().metrics.get(name)
    return name if metric is None else metric.hardware["default"]


def _table(report: Report, rows: Sequence[Row]) -> KernelTable | None:
    if any(row.kind == "range" or _TIME not in row.values for row in rows):
        return None
    names = tuple(dict.fromkeys(row.name for row in rows))
    launches = tuple(
        Launch(
            name=names.index(row.name),
            kind=row.kind,
            grid=row.grid,
            block=row.block,
            duration=row.values[_TIME],
            values=tuple(row.values.get(metric) for metric in report.metrics),
        )
        for row in rows
    )
    # ncu runs one kernel at a time and stops between them: what was idle is its own doing.
    return KernelTable(names, report.metrics, launches, idle=0.0)
