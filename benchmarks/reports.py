"""What the two reports on a 2D diffusion model found, beside the same ratios of a run of ours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from benchmarks.medians import ABSENT, of_processes
from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.model.result import Run


@dataclass(frozen=True)
class Side:
    """One side of a ratio: the sum of some metrics of a configuration."""

    configuration: str
    metrics: tuple[str, ...] = ("wall_time",)
    part: str = STEP

    def values(self, run: Run) -> dict[str, float]:
        """By process; only those that measured all of the metrics."""
        series = [
            of_processes(run, self.configuration, metric, self.part) for metric in self.metrics
        ]
        return {
            process: math.fsum(values[process] for values in series)
            for process in series[0]
            if all(process in values for values in series)
        }


@dataclass(frozen=True)
class Finding:
    """A ratio that a report has numbers for."""

    what: str
    report: str
    theirs: float | None
    """None where the report says no more than `report`."""
    numerator: Side
    denominator: Side


_KERNELS = ("kernel_time",)
_COPIES = ("copy_time_h2d", "copy_time_d2h")


def _worst(configuration: str) -> Side:
    return Side(configuration, ("wall_time_worst",))


def _mean(configuration: str) -> Side:
    return Side(configuration, ("wall_time_mean",))


FINDINGS = (
    Finding(
        "`copy_async` / `copy_sync`, whole sampling",
        "B: 5.3 s / 6.8 s",
        5.3 / 6.8,
        Side("copy_async_chain"),
        Side("copy_sync_chain"),
    ),
    Finding(
        "`resident` / `copy_async`, whole sampling",
        "B: 2.5 s / 5.3 s",
        2.5 / 5.3,
        Side("resident_chain"),
        Side("copy_async_chain"),
    ),
    Finding(
        "`resident` / `copy_sync`, whole sampling",
        "B: 2.5 s / 6.8 s",
        2.5 / 6.8,
        Side("resident_chain"),
        Side("copy_sync_chain"),
    ),
    Finding(
        "`resident_graph` / `copy_sync`, whole sampling",
        "not in the reports",
        None,
        Side("resident_graph_chain"),
        Side("copy_sync_chain"),
    ),
    Finding(
        "`early_start` / `load_async`, worst of 20",
        "B: 366.6 ms / 1092.4 ms",
        366.6 / 1092.4,
        _worst("early_start"),
        _worst("load_async"),
    ),
    Finding(
        "`early_start` / `load_sync`, worst of 20",
        "B: 366.6 ms / 497.7 ms",
        366.6 / 497.7,
        _worst("early_start"),
        _worst("load_sync"),
    ),
    Finding(
        "`early_start` / `load_sync`, mean of 20",
        "B: 266.4 ms / 345.7 ms",
        266.4 / 345.7,
        _mean("early_start"),
        _mean("load_sync"),
    ),
    Finding(
        "`load_async` / `load_sync`, mean of 20",
        "B: 425.0 ms / 345.7 ms",
        425.0 / 345.7,
        _mean("load_async"),
        _mean("load_sync"),
    ),
    Finding(
        "tiles in shared memory / naive loops, all kernels (the report's loops ran on a CPU)",
        "A: 76.03 s / 383.03 s",
        76.03 / 383.03,
        Side("tiled", _KERNELS),
        Side("naive", _KERNELS),
    ),
    Finding(
        "tiles / naive loops, convolutions (the same)",
        "A: 37.7 s / 348.01 s",
        37.7 / 348.01,
        Side("tiled", _KERNELS, "conv2d"),
        Side("naive", _KERNELS, "conv2d"),
    ),
    Finding(
        "layer norm by warp shuffles / naive",
        "A: 5.74 s / 9.42 s",
        5.74 / 9.42,
        Side("tiled", _KERNELS, "layer_norm"),
        Side("naive_norm", _KERNELS, "layer_norm"),
    ),
    Finding(
        "fused / each operation a kernel, all kernels",
        "both fuse, without a number",
        None,
        Side("fused", _KERNELS),
        Side("tiled", _KERNELS),
    ),
    Finding(
        "blocks in one kernel / in five, all kernels (the report compares with a CPU)",
        "A: 52.4 us / 32.5 ms",
        52.4e-3 / 32.5,
        Side("fused_block", _KERNELS),
        Side("fused", _KERNELS),
    ),
    Finding(
        "copies to and from the device / kernels, convolutions",
        "A: 19.3 us / 27.6 us",
        19.3 / 27.6,
        Side("copy_sync", _COPIES, "conv2d"),
        Side("copy_sync", _KERNELS, "conv2d"),
    ),
    Finding(
        "im2col and matrix products, share of the kernels",
        "B: about 17 %, over 50 %",
        None,
        Side("im2col_bf16", _KERNELS, "conv2d"),
        Side("im2col_bf16", _KERNELS),
    ),
)
"""In the order of the table. A is the report of an RTX 3080, B that of a Jetson Orin Nano."""


def table(run: Run) -> str:
    """A row per finding: the report's ratio, and ours with its range over processes."""
    rows = ["| what | report | here |", "| --- | --- | ---: |"]
    return "\n".join((*rows, *(row(finding, run) for finding in FINDINGS))) + "\n"


def row(finding: Finding, run: Run) -> str:
    """One line of the table."""
    theirs = finding.report
    if finding.theirs is not None:
        theirs = f"{finding.report.partition(':')[0]}: {finding.theirs:.2g}"
    return f"| {finding.what} | {theirs} | {_here(finding, run)} |"


def _here(finding: Finding, run: Run) -> str:
    above, below = finding.numerator.values(run), finding.denominator.values(run)
    ratios = [above[process] / below[process] for process in above if below.get(process)]
    if not ratios:
        return ABSENT
    least, most = f"{min(ratios):.2g}", f"{max(ratios):.2g}"
    middle = f"{median(ratios):.2g}"
    return middle if least == most else f"{middle} ({least} to {most})"
