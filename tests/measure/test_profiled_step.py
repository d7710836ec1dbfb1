"""Reports of ncu as metrics of the catalogue: real ones of an H200, and made-up ones."""

from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path

import pytest

from pytest_gpuperf.errors import BadFile
from pytest_gpuperf.measure.ncu import profiled_step, report_reader
from pytest_gpuperf.measure.ncu.profiled_step import Report
from pytest_gpuperf.model.measurement import KernelTable
from pytest_gpuperf.storage import files
from tests.measure.ncu_pages import (
    COLUMNS,
    DATA,
    KERNEL,
    KERNELS,
    NAME,
    NVTX,
    RANGE,
    RANGES,
    page,
)

TF32_STEP = DATA / "tf32-step"


def of(text: str) -> Report:
    """The report that a page is."""
    return profiled_step.report_of(report_reader.parse_page(text.encode(), Path("step.csv")))


# The real pages


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
    assert (first.process, first.grid, first.block) == ("601", (8, 16, 1), (128, 1, 1))
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
    content = lzma.decompress((TF32_STEP / f"{name}.csv.xz").read_bytes())
    return profiled_step.report_of(report_reader.parse_page(content, TF32_STEP / name))


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


# What columns say


def test_the_alu_has_another_name_on_sm90() -> None:
    ours = "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_active"
    others = "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active"
    text = page(
        {**KERNEL, ours: "12.50", others: "none"}, units={**COLUMNS, ours: "%", others: "-"}
    )
    assert of(text).rows[0].values["int_alu_utilization"] == 12.5


def test_the_architecture_is_the_compute_capability() -> None:
    pairs = {"7.0": "sm70", "8.9": "sm89", "10.0": "sm100", "12.0": "sm120"}
    assert {cc: of(page({**KERNEL, "CC": cc})).arch for cc in pairs} == pairs


def test_values_are_in_the_unit_of_the_catalogue_or_missing() -> None:
    for unit, factor in (("ns", 1), ("us", 10**3), ("ms", 10**6)):
        units = {**COLUMNS, "gpu__time_duration.sum": unit}
        text = page({**KERNEL, "gpu__time_duration.sum": "1,234"}, units=units)
        assert of(text).rows[0].values["duration"] == 1234 * factor
    report = of(page({**KERNEL, "sm__cycles_elapsed.max": "n/a"}))
    assert "cycles" in report.metrics
    assert "cycles" not in report.rows[0].values
    assert report.rows[0].values["instructions"] == 200_000


def test_older_reports_have_attributes_in_place_of_columns() -> None:
    attributes = {
        "device__attribute_compute_capability_major": "8",
        "device__attribute_compute_capability_minor": "0",
        **{f"launch__grid_dim_{axis}": "1,024" for axis in "xyz"},
    }
    absent = ("CC", "Grid Size", "Block Size")
    units = {name: unit for name, unit in COLUMNS.items() if name not in absent}
    report = of(page({**KERNEL, **attributes}, units={**units, **dict.fromkeys(attributes, "")}))
    assert report.arch == "sm80"
    assert (report.rows[0].grid, report.rows[0].block) == ((1024, 1024, 1024), None)


def test_what_has_no_grid_is_a_range_or_a_graph() -> None:
    units = {**COLUMNS, "launch__grid_dim_x": ""}
    for name, size, kind in (
        ("range", "1,024", "range"),
        ("step", "", "range"),
        ("CUDA Graph 3", "1", "graph"),
    ):
        text = page({**RANGE, "Kernel Name": name, "launch__grid_dim_x": size}, units=units)
        assert of(text).rows[0].kind == kind, name


def test_a_report_is_of_one_device_whose_name_it_may_lack() -> None:
    assert of(page({**KERNEL, NAME: ""})).device == ""
    assert of(page({**KERNEL, NAME: ""}, KERNEL)).device == "NVIDIA H200"
    for other, said in (
        ({"CC": "8.0"}, "line 4: kernels of several architectures: sm90 before, sm80 here"),
        ({NAME: "NVIDIA H100"}, "line 4: kernels of several devices"),
        ({"Device": "1"}, "line 4: kernels of several GPUs: 0 before, 1 here"),
    ):
        with pytest.raises(BadFile, match=said):
            of(page(KERNEL, {**KERNEL, **other}))
