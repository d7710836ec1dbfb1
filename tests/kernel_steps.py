"""Kernel tables to compare: made by hand, or of steps that were recorded on an H200."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

from pytest_gpuperf.catalogue import kernel_families
from pytest_gpuperf.judge.alignment import COSTS
from pytest_gpuperf.judge.attribution import Naming
from pytest_gpuperf.model.measurement import (
    MADE_BYTES,
    OPERATOR,
    Caller,
    CallSite,
    HostCall,
    IdleTime,
    KernelTable,
    Launch,
)
from pytest_gpuperf.storage import files
from tests import ROOT

_DATA = ROOT / "tests" / "data"
_FAMILIES = (
    ("Mem(cpy|set)", "copy"),
    ("wgrad", "convolution-weight-gradient"),
    ("dgrad", "convolution-data-gradient"),
    ("fprop|conv", "convolution-forward"),
    ("gemm", "gemm"),
    ("multi_tensor|adam", "optimizer"),
    ("Moments|norm|Gradients|GroupNorm", "normalization"),
    ("nchw|nhwc|direct_copy|layout", "layout"),
    ("reduce", "reduction"),
    ("elementwise|add|silu", "elementwise"),
)


def _family(name: str) -> str:
    return next((family for pattern, family in _FAMILIES if re.search(pattern, name)), "other")


def _short(name: str) -> str:
    text = (
        name.replace("void ", "").replace("at::native::", "").replace("(anonymous namespace)", "")
    )
    return re.sub(r"_implicit_gemm|_execute.*|<.*|\(.*", "", text).strip(":")[:60]


NAMING = Naming(_family, _short, kernel_families.data_type)
"""Enough of a naming for these tables; the package's own is tested by itself."""

Row = tuple[str, float] | tuple[str, float, float]
"""A kernel's name, perhaps with a shape ("conv@8": 8 blocks), its microseconds, and perhaps its
instructions."""


def operators(*rows: tuple[str, str], counts: bool = False, **of: float) -> KernelTable:
    """Operators of a CPU, each with its place: ("mm", "model.py:3 Net.forward layers.0").

    With who calls that, and how often each is executed, "model.py:3 Net.forward@2 < train.py:9
    step@1"; autograd's engine is "backward@1". With `counts` what each that is named costs of a
    metric: `mm_flops=8`; of the others 0.
    """
    names = tuple(dict.fromkeys(name for name, _ in rows))
    places = tuple(dict.fromkeys(place for _, place in rows))
    metrics = (*COSTS, MADE_BYTES) if counts else ()

    def values(name: str) -> tuple[float, ...]:
        short = name.partition(" ")[0].removeprefix("aten.")
        return tuple(of.get(f"{short}_{metric}", 0.0) for metric in metrics)

    return KernelTable(
        names=names,
        metrics=metrics,
        launches=tuple(
            Launch(names.index(name), OPERATOR, None, None, 0.0, values(name)) for name, _ in rows
        ),
        idle=0.0,
        sites=tuple(map(_site, places)),
        site_of=tuple(places.index(place) for _, place in rows),
    )


def _site(place: str) -> CallSite:
    first, *outer = place.split(" < ")
    line, function, *module = first.split()
    callers = tuple(Caller(at, *_executed(of)) for at, _, of in (o.rpartition(" ") for o in outer))
    function, executions = _executed(function)
    backward = bool(callers) and not all(one.line for one in callers)
    return CallSite(
        *(line, function, "".join(module), backward), executions=executions, callers=callers
    )


def _executed(function: str) -> tuple[str, int]:
    name, _, executions = function.partition("@")
    return name, int(executions or 0)


Sited = tuple[str, float, str]
"""A kernel's name, its microseconds, and its place: "model.py:3 Net.forward layers.0". "backward"
stands behind that where it is of that pass."""


def sited(
    *rows: Sited,
    calls: Sequence[tuple[str, str, int]] = (),
    idle_at: Sequence[tuple[str, float]] = (),
    idle: float = 0.0,
) -> KernelTable:
    """Launches with the lines that they come from, and what the host did at lines beside that.

    `calls` are names, places and counts; `idle_at` places and microseconds.
    """
    places = (*(row[2] for row in rows), *(at for _, at, _ in calls), *(at for at, _ in idle_at))
    known = tuple(dict.fromkeys(places))
    sites = []
    for place in known:
        line, function, *rest = place.split()
        module = " ".join(word for word in rest if word != "backward")
        sites.append(CallSite(line, function, module, "backward" in rest))
    return replace(
        table(*((name, us) for name, us, _ in rows), idle=idle),
        sites=tuple(sites),
        site_of=tuple(known.index(place) for _, _, place in rows),
        calls=tuple(HostCall(name, known.index(at), count) for name, at, count in calls),
        idle_at=tuple(IdleTime(known.index(at), 1000 * us) for at, us in idle_at),
    )


def table(*rows: Row, idle: float = 0.0) -> KernelTable:
    """A table of these launches, in this order; `idle` in microseconds.

    Where rows have instructions, cycles are as at 2 GHz.
    """
    names = tuple(dict.fromkeys(row[0].partition("@")[0] for row in rows))
    counted = any(len(row) > 2 for row in rows)
    return KernelTable(
        names=names,
        metrics=("cycles", "instructions") if counted else (),
        launches=tuple(
            Launch(
                name=names.index(row[0].partition("@")[0]),
                kind="kernel",
                grid=(int(row[0].partition("@")[2] or 1), 1, 1),
                block=(128, 1, 1),
                duration=1000 * row[1],
                values=(2000 * row[1], row[2]) if len(row) > 2 else (),
            )
            for row in rows
        ),
        idle=1000 * idle,
    )


@cache
def traced(name: str) -> KernelTable:
    """A step of tests/data/h200-kernels: names, shapes and durations, without counters."""
    data = json.loads(lzma.decompress((_DATA / "h200-kernels" / f"{name}.json.xz").read_bytes()))
    launches, idle, end = [], 0.0, 0.0
    for index, kind, grid, block, start, duration, _ in data["launches"]:
        blocks, threads = (tuple(grid), tuple(block)) if grid else (None, None)
        launches.append(Launch(index, kind, blocks, threads, 1000 * duration))
        idle += max(start - end, 0.0)
        end = max(end, start + duration)
    return KernelTable(tuple(data["names"]), (), tuple(launches), 1000 * idle)


@cache
def counted(name: str) -> KernelTable:
    """A step of tests/data/h200-tables: as the collector made it, with counters."""
    text = lzma.decompress((_DATA / "h200-tables" / f"{name}.json.xz").read_bytes()).decode()
    return files.adapter(KernelTable).validate_json(text)


def with_launches(whole: KernelTable, launches: Iterable[Launch]) -> KernelTable:
    """The same table with other launches."""
    return replace(whole, launches=tuple(launches))


def slowed(whole: KernelTable, positions: Sequence[int], factor: float) -> KernelTable:
    """The same table with some launches taking `factor` times as long."""
    chosen = set(positions)
    return with_launches(
        whole,
        (
            replace(launch, duration=factor * launch.duration) if index in chosen else launch
            for index, launch in enumerate(whole.launches)
        ),
    )
