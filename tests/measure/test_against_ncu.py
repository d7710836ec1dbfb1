"""Our counters against those of Nsight Compute 2025.3.1, of one tf32 training step on one H200.

Recorded one after the other on one machine, 17 metrics each, clocks and caches left alone. Kernel
replay was stopped after 330 s, when it had counted 1117 of the step's 1548 kernels; ours took 21 s
for all of them, and 2.7 s for the whole step, for which ncu's range replay took 80 s.
"""

from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path

import pytest

from pytest_gpuperf.measure.ncu.profiled_rows import Report, read
from pytest_gpuperf.model.measurement import KernelTable, Launch
from pytest_gpuperf.storage import files
from tests import ROOT

DATA = ROOT / "tests" / "data" / "ncu" / "tf32-step"


def report(name: str, folder: Path) -> Report:
    """What ncu said."""
    file = folder / f"{name}.csv"
    file.write_bytes(lzma.decompress((DATA / f"{name}.csv.xz").read_bytes()))
    return read(file)


@cache
def kernels() -> KernelTable:
    """What we counted."""
    text = lzma.decompress((DATA / "kernels.json.xz").read_bytes()).decode()
    return files.adapter(KernelTable).validate_json(text)


def counted() -> list[Launch]:
    """The launches that have counters, in order."""
    return [launch for launch in kernels().launches if launch.values]


def test_the_same_kernels_in_the_same_order(tmp_path: Path) -> None:
    rows = report("kernel-replay", tmp_path).rows
    assert len(rows) == 1117
    pairs = list(zip(counted(), rows, strict=False))
    assert all((ours.grid, ours.block) == (row.grid, row.block) for ours, row in pairs)


def test_instructions_of_each_kernel_agree_to_a_tenth_of_a_percent(tmp_path: Path) -> None:
    at = kernels().metrics.index("instructions")
    agreeing = every = 0.0
    for launch, row in zip(counted(), report("kernel-replay", tmp_path).rows, strict=False):
        ours, theirs = launch.values[at], row.values["instructions"]
        assert ours is not None
        every += ours
        agreeing += ours if abs(ours - theirs) <= 1e-3 * ours else 0
    assert agreeing >= 0.99 * every


@pytest.mark.parametrize(
    ("metric", "within"),
    [
        ("instructions", 1e-4),
        ("active_cycles", 1e-3),
        ("tensor_utilization", 1e-3),
        ("l2_hit_rate", 0.02),
        ("dram_bytes", 0.02),
        # ncu's range begins and ends on the host: 5 % more time in which no SM is active.
        ("cycles", 0.06),
        ("duration", 0.06),
    ],
)
def test_the_whole_step_agrees_with_range_replay(
    metric: str, within: float, tmp_path: Path
) -> None:
    (row,) = report("range-replay", tmp_path).rows
    ours = json.loads((DATA / "step.json").read_text(encoding="utf-8"))
    assert row.values[metric] == pytest.approx(ours[metric], rel=within)
