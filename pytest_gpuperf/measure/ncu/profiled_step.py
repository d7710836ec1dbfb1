"""A step that ncu (Nsight Compute) profiled: a report of its kernels, and its numbers from theirs.

Needs no GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.metric_catalogue import WARPS_ACTIVE, catalogue, over_launches
from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.measure.ncu import report_reader
from pytest_gpuperf.measure.ncu.report_reader import REMEDY, ProfiledRow
from pytest_gpuperf.model.measurement import STEP, KernelTable, Launch, Sample, Unsupported

_TIME = "duration"


@dataclass(frozen=True, slots=True)
class ProfiledStep:
    """A report's data on a step, executed once or several times."""

    samples: tuple[Sample, ...]
    """Samples of the whole step; a value per execution."""
    unsupported: tuple[Unsupported, ...]
    """Metrics that the report has for kernels, and that the step cannot have, with the reason."""
    kernels: KernelTable | None
    """The launches of the last execution. None for range replay, which does not see them, and
    without `duration`."""


def step_of(report: Report, executions: int = 1) -> ProfiledStep:
    """The step in `report`, which profiled `executions` of it, one after the other.

    Raises UsageFailure for other reports: of several processes, of several ranges, or with kernels
    that cannot be divided evenly.
    """
    rows = report.rows
    _check(report, executions)
    share = len(rows) // executions
    parts = [rows[at : at + share] for at in range(0, len(rows), share)]
    samples, unsupported = [], []
    for metric in report.metrics:
        totals = [over_launches(metric, [row.values for row in part]) for part in parts]
        values = [value for value in totals if isinstance(value, float)]
        reasons = [reason for reason in totals if isinstance(reason, str)]
        if reasons:
            unsupported.append(Unsupported(metric, reasons[0]))
        else:
            samples.append(Sample(STEP, metric, tuple(values)))
    if not samples:
        core = catalogue().hardware_set("core")
        wanted = ",".join(filter(None, (metric.hardware_name(report.arch) for metric in core)))
        raise UsageFailure(
            f"{report.file} has no metric that gpuperf knows for a whole step. Profile again with "
            f"ncu --metrics {wanted}"
        )
    return ProfiledStep(tuple(samples), tuple(unsupported), table(report, parts[-1]))


def _check(report: Report, executions: int) -> None:
    rows = report.rows
    if executions < 1 or len(rows) % executions:
        raise UsageFailure(
            f"{report.file}: its {len(rows)} kernels or ranges cannot be divided into {executions} "
            "executions of the step, each with equally many. If the program executed the step N "
            "times under ncu, pass --steps N"
        )
    share = len(rows) // executions
    ranges = [row for row in rows if row.kind == "range"]
    if ranges and (len(ranges) < len(rows) or share > 1):
        raise UsageFailure(
            f"{report.file} has {len(ranges)} ranges and {len(rows) - len(ranges)} kernels, but "
            "gpuperf needs one range around the whole step. If each range is one execution, pass "
            f"--steps {len(ranges)}"
        )
    for index, row in enumerate(rows):
        if row.name != rows[index % share].name:
            raise UsageFailure(
                f"{report.file} does not have {executions} executions of one step of {share} "
                f"kernels: kernel {index % share + 1} is {rows[index % share].name} in execution "
                f"1, but {row.name} in execution {index // share + 1}"
            )


def table(report: Report, rows: Sequence[ProfiledRow]) -> KernelTable | None:
    """The launches in these rows; None for ranges, and if one has no duration."""
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
    # ncu runs one kernel at a time and stops between them, so idle time is an artefact.
    return KernelTable(names, report.metrics, launches, idle=0.0)


@contextmanager
def marked() -> Iterator[None]:
    """The block, with its work on the device, between cudaProfilerStart and cudaProfilerStop."""
    import torch

    cuda: Any = torch.cuda  # untyped in some releases
    cuda.synchronize()
    cuda.profiler.start()
    yield
    cuda.synchronize()
    cuda.profiler.stop()


@dataclass(frozen=True, slots=True)
class Report:
    """The data of one report for one device."""

    file: Path
    arch: str
    device: str
    """The marketing name, "NVIDIA H200"; "" where the report does not have it."""
    metrics: tuple[str, ...]
    """The metrics of the catalogue in the report, in catalogue order, for this architecture."""
    rows: tuple[ProfiledRow, ...]
    """The rows in launch order, with values by the catalogue's names and units. Parts of rates have
    NVIDIA's names (WARPS_ACTIVE)."""


def read(file: Path, ncu: Path | None = None) -> Report:
    """The report in `file`; `ncu` is the program that wrote it, if known.

    Raises BadFile for a file that cannot be trusted, and UsageFailure for one that is missing or
    cannot be opened on this machine. The file is never changed.
    """
    known = catalogue().metrics
    anywhere = {name for one in known.values() for name in one.hardware.values() if name}
    rows = report_reader.load(file, ncu, sorted(anywhere | {WARPS_ACTIVE}))
    first = rows[0]
    for row in rows:
        if (row.gpu, row.device) != (first.gpu, first.device):
            gpus = f"{first.device} ({first.gpu}) and {row.device} ({row.gpu})"
            problem = f"the report has kernels of several GPUs, {gpus}"
            remedy = "Profile one GPU at a time: ncu --devices 0 ..."
            raise BadFile(file, row.where, problem, remedy)
    arch = _arch(file, first)
    there = {name for row in rows for name in row.values}
    names = {metric.hardware_name(arch): name for name, metric in known.items()}
    named = {name: names.get(name, name) for name in there if name in {*names, WARPS_ACTIVE}}
    renamed = tuple(
        replace(row, values={named[n]: v for n, v in row.values.items() if n in named})
        for row in rows
    )
    metrics = tuple(name for name in known if name in named.values())
    return Report(file, arch, first.device, metrics, renamed)


def _arch(file: Path, row: ProfiledRow) -> str:
    """The architecture of the device that a kernel ran on: sm90 for compute capability 9.0."""
    capability = re.fullmatch(r"(\d+)\.(\d+)", row.capability)
    if capability is None:
        problem = f'"{row.capability}" is not a compute capability'
        raise BadFile(file, row.where, problem, REMEDY)
    name = f"sm{int(capability[1])}{int(capability[2])}"
    if name not in architectures.ARCHITECTURES:
        known = ", ".join(architectures.ARCHITECTURES)
        problem = f"{name} (compute capability {row.capability}) is not an architecture"
        raise BadFile(file, row.where, f"{problem} that gpuperf knows", f"It knows {known}")
    return name
