"""Reports of ncu as metrics of the catalogue: real ones of an H200, and made-up ones."""

from __future__ import annotations

import json
import lzma
import tempfile
from functools import cache
from pathlib import Path

import pytest

from pytest_gpuperf.errors import BadFile
from pytest_gpuperf.measure.ncu import profiled_step
from pytest_gpuperf.measure.ncu.profiled_step import Report
from pytest_gpuperf.model.measurement import KernelTable
from pytest_gpuperf.storage import files
from tests.measure.ncu_reports import (
    CYCLES,
    DATA,
    KERNEL,
    KERNELS,
    MAJOR,
    MINOR,
    NAME,
    NVTX,
    RANGES,
    page,
    read_here,
    without,
    written,
)

TF32_STEP = DATA / "tf32-step"


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads reports in this process."""
    read_here(monkeypatch)


def of(folder: Path, *kernels: dict[str, str]) -> Report:
    """The report that these kernels are."""
    return profiled_step.read(written(folder, page(*kernels)))


# The real reports


def test_kernels_of_an_h200() -> None:
    report = profiled_step.read(KERNELS)
    assert (report.arch, report.device) == ("sm90", "NVIDIA H200")
    assert report.metrics == (
        *("cycles", "instructions", "duration"),
        *("tensor_utilization", "l2_hit_rate", "dram_bytes"),
    )
    assert [row.kind for row in report.rows] == ["kernel"] * 4
    first, norm, _, last = report.rows
    assert first.name.startswith("sm80_xmma_gemm_f32f32")
    assert (first.grid, first.block) == ((8, 16, 1), (128, 1, 1))
    assert first.nvtx == ()
    assert norm.values == {
        "cycles": 13_106,
        "instructions": 2_318_336,
        "duration": 6_720,
        "tensor_utilization": 1.64,
        "l2_hit_rate": 99.29,
        "dram_bytes": 308_992,
    }
    # ncu reads hits and accesses in different passes.
    assert last.values["l2_hit_rate"] == 110.29


def test_a_range_is_not_taken_for_a_kernel() -> None:
    for file in RANGES:
        report = profiled_step.read(file)
        (row,) = report.rows
        assert (row.name, row.kind) == ("range", "range")
        # ncu gives it the largest grid and block of its kernels.
        assert (row.grid, row.block) == (None, None)
        assert row.values["instructions"] == 44_626_337
        assert "tensor_utilization" not in report.metrics


def test_nvtx_ranges_may_have_colons_in_their_names() -> None:
    report = profiled_step.read(NVTX)
    assert len(report.rows) == 16
    assert {row.nvtx for row in report.rows} == {("gpuperf:step",)}


# One tf32 training step, counted on one H200 by Nsight Compute 2025.3.1 and by our own collector,
# one after the other, 17 metrics each, clocks and caches left alone. Kernel replay was stopped at
# 330 s, when it had counted 1117 of the step's 1548 kernels; ours took 21 s for all of them, and
# 2.7 s for the whole step, for which ncu's range replay took 80 s.


@cache
def recorded(name: str) -> Report:
    """What ncu said of that step."""
    content = lzma.decompress((TF32_STEP / f"{name}.json.xz").read_bytes())
    with tempfile.TemporaryDirectory() as folder:
        return profiled_step.read(written(Path(folder), content.decode()))


def test_kernels_and_their_instructions_are_those_that_we_count() -> None:
    text = lzma.decompress((TF32_STEP / "kernels.json.xz").read_bytes()).decode()
    table = files.adapter(KernelTable).validate_json(text)
    counted = [launch for launch in table.launches if launch.values]
    rows = recorded("kernel-replay").rows
    assert len(rows) == 1117
    agreeing = every = 0.0
    for launch, row in zip(counted, rows, strict=False):
        assert (launch.grid, launch.block) == (row.grid, row.block)
        ours, theirs = (
            launch.values[table.metrics.index("instructions")],
            row.values["instructions"],
        )
        assert ours is not None
        every += ours
        agreeing += ours if abs(ours - theirs) <= 1e-3 * ours else 0
    assert agreeing >= 0.99 * every


def test_the_whole_step_agrees_with_range_replay() -> None:
    (row,) = recorded("range-replay").rows
    ours = json.loads((TF32_STEP / "step.json").read_text(encoding="utf-8"))
    for metric, within in (
        ("instructions", 1e-4),
        ("active_cycles", 1e-3),
        ("tensor_utilization", 1e-3),
        ("l2_hit_rate", 0.02),
        ("dram_bytes", 0.02),
        # ncu's range begins and ends on the host: 5 % more time in which no SM is active.
        ("cycles", 0.06),
        ("duration", 0.06),
    ):
        assert row.values[metric] == pytest.approx(ours[metric], rel=within), metric


# What results say


def test_the_alu_has_another_name_on_sm90(tmp_path: Path) -> None:
    ours = "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_active"
    others = "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active"
    report = of(tmp_path, {**KERNEL, ours: "12.50", others: "99"})
    assert report.rows[0].values["int_alu_utilization"] == 12.5


def test_the_architecture_is_the_compute_capability(tmp_path: Path) -> None:
    pairs = {"7.0": "sm70", "8.9": "sm89", "10.0": "sm100", "12.0": "sm120"}
    for said, arch in pairs.items():
        major, minor = said.split(".")
        assert of(tmp_path, {**KERNEL, MAJOR: major, MINOR: minor}).arch == arch
    for kernel, says in (
        ({**KERNEL, MAJOR: "5"}, r"result 0: sm50 \(compute capability 5.0\) is not"),
        (without(KERNEL, MAJOR, MINOR), 'result 0: "." is no compute capability'),
    ):
        with pytest.raises(BadFile, match=says):
            of(tmp_path, kernel)


def test_what_ncu_could_not_collect_is_missing(tmp_path: Path) -> None:
    report = of(tmp_path, {**KERNEL, CYCLES: "nan"}, KERNEL)
    assert "cycles" in report.metrics
    assert "cycles" not in report.rows[0].values
    assert report.rows[0].values["instructions"] == 200_000
    assert "cycles" not in of(tmp_path, {**KERNEL, CYCLES: "nan"}).metrics


def test_a_graph_is_counted_as_one_and_has_no_size(tmp_path: Path) -> None:
    (row,) = of(tmp_path, {**KERNEL, "name": "CUDA Graph 3", "workload": "graph"}).rows
    assert (row.kind, row.grid, row.block) == ("graph", None, None)
    (row,) = of(tmp_path, without(KERNEL, "launch__block_dim_x")).rows
    assert (row.grid, row.block) == ((1024, 2, 1), None)


def test_a_report_is_of_one_device_whose_name_it_may_lack(tmp_path: Path) -> None:
    assert of(tmp_path, without(KERNEL, NAME)).device == ""
    assert of(tmp_path, without(KERNEL, NAME), KERNEL).device == "NVIDIA H200"
    for other, said in (
        ({MAJOR: "8"}, "result 1: kernels of several architectures: sm90 before, sm80 here"),
        ({NAME: "NVIDIA H100"}, "result 1: kernels of several devices"),
        ({"launch__device_id": "1"}, "result 1: kernels of several GPUs: 0 before, 1 here"),
    ):
        with pytest.raises(BadFile, match=said):
            of(tmp_path, KERNEL, {**KERNEL, **other})
