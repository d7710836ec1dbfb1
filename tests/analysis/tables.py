"""Kernel tables with counters to derive from: made by hand, or recorded on an H200."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from statistics import median

from pytest_gpuperf.model.measurement import STEP, KernelTable, Launch, Measurement
from pytest_gpuperf.storage import run_files
from tests import ROOT

COPY = "copy"


def family(name: str) -> str:
    """What stands before the first space: "norm b" is of the family norm."""
    return name.partition(" ")[0]


def launch(name: int, microseconds: float, kind: str = "kernel") -> Launch:
    """A launch without counters."""
    shape = (1, 1, 1) if kind != COPY else None
    return Launch(name, kind, shape, shape, 1000 * microseconds)


def table(*rows: tuple[str, float, Mapping[str, float]] | tuple[str, float]) -> KernelTable:
    """A table of launches: name, microseconds, and the values of those that were counted.

    "copy ..." is a copy of the driver's and "graph ..." a CUDA graph. A metric that a launch does
    not have is None there.
    """
    names = tuple(dict.fromkeys(row[0] for row in rows))
    metrics = tuple(dict.fromkeys(metric for row in rows if len(row) > 2 for metric in row[2]))
    launches = []
    for row in rows:
        kind = family(row[0]) if family(row[0]) in (COPY, "graph") else "kernel"
        made = launch(names.index(row[0]), row[1], kind)
        if len(row) > 2:
            made = replace(made, values=tuple(row[2].get(metric) for metric in metrics))
        launches.append(made)
    return KernelTable(names, metrics, tuple(launches), 0.0)


@cache
def recorded() -> Measurement:
    """One TF32 step of Med-DDPM on an H200: 1548 kernels, each with the paper's 17 metrics."""
    (taken,) = run_files.load(ROOT / "docs/runs/collectors/cupti.json.xz").measurements
    return taken


def kernels() -> KernelTable:
    """The kernels of `recorded`."""
    made = recorded().kernels
    assert made is not None
    return made


@cache
def _paper_run() -> tuple[Measurement, ...]:
    return run_files.load(ROOT / "docs/runs/h200-paper.json.xz").measurements


@cache
def paper_set() -> dict[str, dict[str, float]]:
    """Steps of Med-DDPM on an H200 by configuration: the medians of the paper's metrics."""
    return {measurement.configuration: step(measurement) for measurement in _paper_run()}


def step(measurement: Measurement) -> dict[str, float]:
    """The whole step's medians."""
    return {s.metric: median(s.values) for s in measurement.samples if s.phase == STEP}
