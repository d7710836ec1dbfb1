"""Our collectors against Nsight Compute, for the same metrics of the same step on one machine.

    python -m benchmarks.collectors --out DIR [-- PYTEST-ARGS]
    python -m benchmarks.collectors --from DIR

measures one test with the 17 metrics of the set `reference` by CUPTI (the step, and every kernel),
by ncu's range replay and by its kernel replay, and with the core metrics by its application-range
replay. Keeps the run files in DIR, where those that are there already are not made again, and
prints what each took and what it found. Costs are those of counting alone, warm and without any
start-up: for ncu, from cudaProfilerStart to cudaProfilerStop in the process that it profiles. Exits
with 1 when ours take more than their share of ncu's time, or counts differ by more than they may.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import GpuperfError, UsageFailure
from pytest_gpuperf.judge.interval import centre
from pytest_gpuperf.model.measurement import STEP, KernelTable, Measurement
from pytest_gpuperf.storage import run_files

DEFAULT = ("suites/meddpm", "-k", "test_training_step and tf32 and not channels_last")
COMMON = ("--gpuperf-metrics=reference", "--gpuperf-rounds=1", "--gpuperf-no-judge", "-q")
OURS, RANGE, KERNEL, AGAIN = "cupti", "ncu-range", "ncu-kernel", "ncu-app-range"
HOW = {
    OURS: ("--gpuperf-collector=cupti", "--gpuperf-kernels=always"),
    RANGE: ("--gpuperf-collector=ncu", "--gpuperf-ncu-replay=range", "--gpuperf-kernels=never"),
    AGAIN: (
        *("--gpuperf-collector=ncu", "--gpuperf-ncu-replay=app-range", "--gpuperf-kernels=never"),
        "--gpuperf-metrics=core",
    ),
    KERNEL: ("--gpuperf-collector=ncu", "--gpuperf-ncu-replay=kernel", "--gpuperf-kernels=always"),
}
"""Run files, by name, and the flags that make them."""

LEAST_RATIOS = {"the whole step": 15.0, "every kernel": 20.0}
"""How many times ours ncu's time has to be."""
AGREEING = ("cycles", "tensor_utilization", "l2_hit_rate", "dram_bytes")
WITHIN = 0.02
"""How far the step's values may be apart, as a share of ncu's."""
KERNEL_WITHIN, KERNEL_SHARE = 1e-3, 0.99
"""How far a kernel's instructions may be apart, and the share of all that has to be within."""


@dataclass(frozen=True)
class Row:
    """One line of the tables: a number of ours, and ncu's."""

    what: str
    ours: str
    ncu: str
    ratio: float
    wanted: str = ""
    good: bool = True


def measure(folder: Path, arguments: Sequence[str]) -> None:
    """Makes the runs that are missing. Raises CalledProcessError when one of them fails."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, flags in HOW.items():
        file = folder / f"{name}.json.xz"
        if file.exists():
            print(f"{name}: is there", flush=True)
            continue
        print(f"{name} ...", flush=True)
        command = [sys.executable, "-m", "pytest", *arguments, *COMMON, *flags]
        subprocess.run([*command, f"--gpuperf-run={file}"], check=True)


def loaded(folder: Path) -> dict[str, Measurement]:
    """The measurement of each run.

    Raises BadFile, and UsageFailure for runs that are not there or that are of several GPUs.
    """
    measured = {name: run_files.load(folder / f"{name}.json.xz").measurements[0] for name in HOW}
    devices = {measurement.fingerprint.device for measurement in measured.values()}
    if len(devices) > 1:
        said = ", ".join(sorted(f"{device.name} {device.identity}" for device in devices))
        raise UsageFailure(f"{folder}: the runs are of several GPUs, {said}. Measure all on one")
    return measured


def costs(measured: dict[str, Measurement]) -> Iterator[Row]:
    """Seconds of counting, ours and ncu's."""
    # ncu's range is the step alone: our passes over its phases are not part of the comparison.
    step_s = _seconds(measured[OURS], "counters_s") - _seconds(measured[OURS], "phases_s")
    for what, ours, ncu in (
        ("the whole step", step_s, measured[RANGE]),
        ("every kernel", _seconds(measured[OURS], "kernels_s"), measured[KERNEL]),
    ):
        theirs = _seconds(ncu, "profiled_s")
        ratio, least = theirs / ours, LEAST_RATIOS[what]
        yield Row(
            what, f"{ours:.1f} s", f"{theirs:.1f} s", ratio, f"at least {least:g}", ratio >= least
        )


def values(measured: dict[str, Measurement]) -> Iterator[Row]:
    """The whole step, counted as one range by both."""
    ours, ranged, again = (_step(measured[name]) for name in (OURS, RANGE, AGAIN))
    for name, metric in catalogue().metrics.items():
        if name in ours and name in ranged and metric.hardware:
            wanted = WITHIN if name in AGREEING else None
            yield _compared(name, ours[name], ranged[name], metric.unit, wanted)
    for name in ("cycles", "active_cycles", "instructions", "duration"):
        if name in ours and name in again:
            what, unit = f"{name}, application-range replay", catalogue().metrics[name].unit
            yield _compared(what, ours[name], again[name], unit)
    for what, theirs in (("range", ranged), ("application-range", again)):
        one, other = _stretched(ours), _stretched(theirs)
        if one and other:
            label = f"duration / unprofiled step time, {what} replay"
            yield Row(label, f"{one:.4f}", f"{other:.4f}", one / other)


def _stretched(step: dict[str, float]) -> float:
    """How many times as long as without counters the step took while it was counted, or 0."""
    return step["duration"] / 1e6 / step["step_time"] if {"duration", "step_time"} <= {*step} else 0


def _compared(what: str, ours: float, theirs: float, unit: str, within: float | None = None) -> Row:
    ratio = ours / theirs if theirs else math.nan
    wanted = f"within {within:.0%}" if within else ""
    good = within is None or abs(ratio - 1) <= within
    return Row(what, units.value(ours, unit), units.value(theirs, unit), ratio, wanted, good)


def kernels(measured: dict[str, Measurement]) -> Iterator[Row]:
    """Kernel by kernel, in the order of their launch."""
    ours, theirs = measured[OURS].kernels, measured[KERNEL].kernels
    if ours is None or theirs is None:
        return
    for name in ("instructions", "active_cycles", "cycles", "dram_bytes"):
        one, other = _counts(ours, name), _counts(theirs, name)
        if not one or len(one) != len(other):
            yield Row(f"{name}, kernels", str(len(one)), str(len(other)), math.nan, "", False)
            continue
        what, unit = f"{name}, sum over {len(one)} kernels", catalogue().metrics[name].unit
        wanted = WITHIN if name in AGREEING else None
        yield _compared(what, math.fsum(one), math.fsum(other), unit, wanted)
        if name == "instructions":
            near = math.fsum(a for a, b in zip(one, other, strict=True) if _near(a, b))
            share = near / math.fsum(one)
            yield Row(
                f"{name} of kernels within {KERNEL_WITHIN:.1%} of ncu's",
                f"{share:.2%}",
                "",
                share,
                f"at least {KERNEL_SHARE:.0%}",
                share >= KERNEL_SHARE,
            )


def markdown(folder: Path) -> str:
    """The rows that something is wanted of, as a table of the documentation."""
    measured = loaded(folder)
    rows = [
        *((row, f"1/{row.ratio:.1f}") for row in costs(measured)),
        *((row, f"{row.ratio:.4f}") for row in (*values(measured), *kernels(measured))),
    ]
    lines = ["| | ours | ncu | ratio | wanted |", "| --- | ---: | ---: | ---: | --- |"]
    for row, ratio in rows:
        if row.wanted:
            cells = (row.what, row.ours, row.ncu, ratio, row.wanted)
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Measures and prints; see the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, metavar="DIR", help="measure, and keep the runs here")
    parser.add_argument("--from", type=Path, dest="folder", metavar="DIR", help="runs made before")
    parser.add_argument("pytest_args", nargs="*", metavar="PYTEST-ARGS")
    options = parser.parse_args(arguments)
    folder = options.out or options.folder
    if folder is None:
        parser.error("--out DIR or --from DIR is needed")
    try:
        if options.out:
            measure(folder, options.pytest_args or DEFAULT)
        measured = loaded(folder)
    except subprocess.CalledProcessError as error:
        print(f"a measurement failed (exit code {error.returncode})", file=sys.stderr)
        return 1
    except GpuperfError as error:
        print(error, file=sys.stderr)
        return 4
    every = [*costs(measured), *values(measured), *kernels(measured)]
    wide = [max(len(cell) for cell in column) for column in zip(*map(_cells, every), strict=True)]
    for row in every:
        what, *cells = _cells(row)
        padded = [cell.rjust(width) for cell, width in zip(cells, wide[1:], strict=True)]
        print("  ".join([what.ljust(wide[0]), *padded]).rstrip())
    return int(not all(row.good for row in every))


def _cells(row: Row) -> tuple[str, ...]:
    verdict = "" if row.good else "  NOT REACHED"
    return row.what, row.ours, row.ncu, f"{row.ratio:.4f}", row.wanted + verdict


def _seconds(measurement: Measurement, key: str) -> float:
    return float(measurement.fingerprint.settings[key])


def _step(measurement: Measurement) -> dict[str, float]:
    return {s.metric: centre([s.values]) for s in measurement.samples if s.phase == STEP}


def _counts(table: KernelTable, metric: str) -> list[float]:
    """The metric of every kernel that was counted."""
    if metric not in table.metrics:
        return []
    at = table.metrics.index(metric)
    values = (launch.values[at] for launch in table.launches if launch.values)
    return [value for value in values if value is not None]


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= KERNEL_WITHIN * one


if __name__ == "__main__":
    sys.exit(main())
