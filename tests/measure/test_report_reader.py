"""Reports in ncu's own format, by NVIDIA's module in a process of its own."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.measure.ncu import ncu_command, profiled_step, report_reader
from tests.measure.ncu_reports import KERNEL, KERNELS, LONGER, RANGE, module, page, written


@pytest.fixture(autouse=True)
def nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a package nor an ncu, whatever is installed."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(ncu_command, "find", lambda: None)


@pytest.fixture
def ncu(tmp_path: Path) -> Path:
    """The program of an Nsight Compute that has the module."""
    module(tmp_path / "2025.3.1" / "extras" / "python")
    return written(tmp_path / "2025.3.1", "", "ncu")


def test_what_the_module_reads_comes_out_of_its_process(tmp_path: Path, ncu: Path) -> None:
    # An average without a value is not a number.
    odd = {**LONGER, "l1tex__t_sector_hit_rate.pct": "nan"}
    file = written(tmp_path, page(KERNEL, odd, RANGE))
    report = profiled_step.read(file, ncu)
    assert (report.file, report.arch, report.device) == (file, "sm90", "NVIDIA H200")
    first, second, third = report.rows
    assert [row.kind for row in report.rows] == ["kernel", "kernel", "range"]
    assert (first.where, first.name) == ("result 0", "add(int, float)")
    assert (first.grid, first.block, first.gpu) == ((1024, 2, 1), (128, 1, 1), "0")
    assert (third.grid, third.block) == (None, None)
    assert (first.values["l1_hit_rate"], "l1_hit_rate" in second.values) == (50.25, False)
    assert report_reader.load(KERNELS, ncu, ["dram__bytes.sum"])[0].values == {
        "dram__bytes.sum": 2_066_688
    }


def test_the_module_of_the_named_program_goes_first_then_the_package_then_one_that_is_found(
    tmp_path: Path, ncu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = [str(ncu.parent / "extras" / "python")]
    other = written(tmp_path, "", "ncu")
    for named, package, found, places in (
        (ncu, True, None, beside),
        (other, True, ncu, []),
        (None, True, ncu, []),
        (other, False, ncu, beside),
        (None, False, ncu, beside),
    ):
        there = object() if package else None
        monkeypatch.setattr(importlib.util, "find_spec", lambda _, it=there: it)
        monkeypatch.setattr(ncu_command, "find", lambda it=found: it)
        assert report_reader._module(KERNELS, named) == places


def test_a_toolkit_s_program_has_the_module_of_its_newest_nsight_compute(tmp_path: Path) -> None:
    for version in ("2025.3.1", "2024.10.0"):
        module(tmp_path / f"nsight-compute-{version}" / "extras" / "python")
    (tmp_path / "bin").mkdir()
    program = written(tmp_path / "bin", "", "ncu")
    assert ncu_command.module_of(program) == (
        tmp_path / "nsight-compute-2025.3.1" / "extras" / "python"
    )


def test_without_a_module_or_a_report_it_says_what_is_needed(tmp_path: Path) -> None:
    for file, says in (
        (KERNELS, r"pip install 'ncu-report>=2026\.2'.*--ncu FILE"),
        (tmp_path / "step.csv", r"is not a \.ncu-rep"),
        (tmp_path / "step.ncu-rep", "no such file"),
    ):
        with pytest.raises(UsageFailure, match=says):
            profiled_step.read(file)


def test_a_module_that_fails_or_finds_nothing(tmp_path: Path, ncu: Path) -> None:
    for text, says in (
        (page(fails="KILL"), "ncu_report failed while it read .* process pool was terminated"),
        (page(fails="bad magic"), r"\(bad magic: step.ncu-rep\)"),
        (page(), "has no kernel"),
    ):
        with pytest.raises(BadFile, match=says):
            profiled_step.read(written(tmp_path, text), ncu)
