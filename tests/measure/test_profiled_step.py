"""Reports of ncu as metrics of the catalogue: real ones of an H200, and made-up ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuperf.errors import BadFile
from pytest_gpuperf.measure.ncu import profiled_step
from pytest_gpuperf.measure.ncu.profiled_step import Report
from tests.measure.ncu_reports import (
    CYCLES,
    KERNEL,
    KERNELS,
    MAJOR,
    MINOR,
    NAME,
    RANGES,
    page,
    read_here,
    without,
    written,
)


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
        # ncu gives it the largest grid and block of its kernels.
        assert (row.name, row.kind, row.grid, row.block) == ("range", "range", None, None)
        assert row.values["instructions"] == 44_626_337
        assert "tensor_utilization" not in report.metrics


# What results say


def test_the_architecture_is_the_compute_capability(tmp_path: Path) -> None:
    pairs = {"7.0": "sm70", "8.9": "sm89", "10.0": "sm100", "12.0": "sm120"}
    for said, arch in pairs.items():
        major, minor = said.split(".")
        assert of(tmp_path, {**KERNEL, MAJOR: major, MINOR: minor}).arch == arch
    for kernel, says in (
        ({**KERNEL, MAJOR: "5"}, r"result 0: sm50 \(compute capability 5.0\) is not"),
        (without(KERNEL, MAJOR, MINOR), 'result 0: "." is not a compute capability'),
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
        (
            {MAJOR: "8"},
            "result 1: the report has kernels of several architectures: sm90 before, sm80 here",
        ),
        ({NAME: "NVIDIA H100"}, "result 1: the report has kernels of several devices"),
        (
            {"launch__device_id": "1"},
            "result 1: the report has kernels of several GPUs: 0 before, 1 here",
        ),
    ):
        with pytest.raises(BadFile, match=said):
            of(tmp_path, KERNEL, {**KERNEL, **other})
