"""Reports of ncu as a step: real ones of an H200, and made-up ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.measure.ncu import profiled_step
from pytest_gpuperf.measure.ncu.profiled_step import ProfiledStep, Report
from tests.measure.ncu_reports import (
    CYCLES,
    KERNEL,
    KERNELS,
    LONGER,
    MAJOR,
    MINOR,
    NAME,
    NVTX,
    RANGE,
    RANGES,
    TIME,
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


def values(step: ProfiledStep) -> dict[str, tuple[float, ...]]:
    return {sample.metric: sample.values for sample in step.samples}


# The real reports


def test_kernels_of_an_h200_add_up_and_each_is_kept() -> None:
    report = profiled_step.read(KERNELS)
    assert (report.arch, report.device) == ("sm90", "NVIDIA H200")
    assert report.metrics == (
        *("cycles", "instructions", "duration"),
        *("tensor_utilization", "l2_hit_rate", "dram_bytes"),
    )
    step = profiled_step.step_of(report)
    assert values(step) == {
        "cycles": (116_663.0 + 13_106 + 6_621 + 12_270,),
        "instructions": (41_498_112.0 + 2_318_336 + 200_704 + 609_185,),
        "duration": (59_744.0 + 6_720 + 3_392 + 6_240,),
        "dram_bytes": (2_066_688.0 + 308_992 + 16_896 + 65_280,),
    }
    reasons = {entry.metric: entry.reason for entry in step.unsupported}
    assert set(reasons) == {"tensor_utilization", "l2_hit_rate"}
    assert "for single kernels only" in reasons["l2_hit_rate"]
    assert step.kernels is not None
    assert step.kernels.metrics == report.metrics
    assert [launch.name for launch in step.kernels.launches] == [0, 1, 2, 3]
    assert step.kernels.names[0].startswith("sm80_xmma_gemm_f32f32")
    norm = step.kernels.launches[1]
    assert (norm.kind, norm.grid, norm.block) == ("kernel", (1024, 1, 1), (32, 4, 1))
    assert norm.values == (13_106, 2_318_336, norm.duration, 1.64, 99.29, 308_992)
    # ncu reads hits and accesses in different passes.
    assert report.rows[-1].values["l2_hit_rate"] == 110.29


def test_a_range_is_the_step_itself() -> None:
    for file in RANGES:
        report = profiled_step.read(file)
        (row,) = report.rows
        # ncu gives it the largest grid and block of its kernels.
        assert (row.name, row.kind, row.grid, row.block) == ("range", "range", None, None)
        step = profiled_step.step_of(report)
        assert values(step)["instructions"] == (44_626_337,)
        assert step.kernels is None


def test_executions_of_a_step_are_rounds(tmp_path: Path) -> None:
    four = profiled_step.read(NVTX)
    step = profiled_step.step_of(four, 4)
    assert values(step)["instructions"] == (44_626_337.0,) * 4
    assert step.kernels is not None
    assert len(step.kernels.launches) == 4
    assert values(profiled_step.step_of(four))["instructions"] == (4 * 44_626_337.0,)
    ranges = of(tmp_path, RANGE, {**RANGE, CYCLES: "50001"})
    assert values(profiled_step.step_of(ranges, 2))["cycles"] == (50_000.0, 50_001.0)


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
    report = of(tmp_path, KERNEL, LONGER, {**KERNEL, CYCLES: "nan"})
    assert "cycles" not in report.rows[2].values
    table = profiled_step.step_of(report).kernels
    assert table is not None
    assert [launch.name for launch in table.launches] == [0, 1, 0]
    assert table.launches[2].values[table.metrics.index("cycles")] is None
    assert "cycles" not in of(tmp_path, {**KERNEL, CYCLES: "nan"}).metrics
    assert profiled_step.step_of(of(tmp_path, without(KERNEL, TIME), LONGER)).kernels is None


def test_a_graph_is_counted_as_one_and_has_no_size(tmp_path: Path) -> None:
    (row,) = of(tmp_path, {**KERNEL, "name": "CUDA Graph 3", "workload": "graph"}).rows
    assert (row.kind, row.grid, row.block) == ("graph", None, None)
    (row,) = of(tmp_path, without(KERNEL, "launch__block_dim_x")).rows
    assert (row.grid, row.block) == ((1024, 2, 1), None)


def test_a_report_is_of_one_device_whose_name_it_may_lack(tmp_path: Path) -> None:
    assert of(tmp_path, without(KERNEL, NAME)).device == ""
    for other, said in (
        ({NAME: "NVIDIA H100"}, r"NVIDIA H100 \(0\)"),
        ({"launch__device_id": "1"}, r"NVIDIA H200 \(1\)"),
    ):
        with pytest.raises(BadFile, match=f"result 1: the report has .* several GPUs, .* {said}"):
            of(tmp_path, KERNEL, {**KERNEL, **other})


def test_what_is_not_one_step(tmp_path: Path) -> None:
    nothing = without(KERNEL, *(name for name in KERNEL if "." in name))
    for kernels, executions, said in (
        ([KERNEL, LONGER, KERNEL], 2, "3 kernels or ranges cannot be divided into 2"),
        ([KERNEL], 0, "into 0 executions"),
        ([KERNEL], -1, "into -1 executions"),
        ([KERNEL, LONGER] * 2, 4, "kernel 1 is add.* in execution 1, but mul in execution 2"),
        ([RANGE, RANGE], 1, "--steps 2"),
        ([RANGE, KERNEL], 2, "1 ranges and 1 kernels"),
        ([nothing], 1, "--metrics sm__cycles_elapsed.max,sm__cycles_active.sum,"),
    ):
        with pytest.raises(UsageFailure, match=said):
            profiled_step.step_of(of(tmp_path, *kernels), executions)
