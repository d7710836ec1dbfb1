"""Reports in ncu's own format, through what opens them: NVIDIA's package, or an executable."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.measure.ncu import profiled_step, report_reader
from tests.corruption import refusal
from tests.measure import stand_in_ncu_report
from tests.measure.ncu_pages import KERNEL, KERNELS, LONGER, RANGE, page, written

Program = Callable[..., Path]
Package = Callable[..., None]

ATTRIBUTES = {
    **{
        f"launch__grid_dim_{axis}": size
        for axis, size in zip("xyz", ("1024", "2", "1"), strict=True)
    },
    **{
        f"launch__block_dim_{axis}": size
        for axis, size in zip("xyz", ("128", "1", "1"), strict=True)
    },
    "launch__device_id": "0",
    "device__attribute_compute_capability_major": "9",
    "device__attribute_compute_capability_minor": "0",
}


@pytest.fixture
def rep(tmp_path: Path) -> Path:
    """A report in ncu's own format."""
    file = tmp_path / "step.ncu-rep"
    file.write_bytes(b"NVR\0 not for us")
    return file


@pytest.fixture(autouse=True)
def no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of the PATH; and no package, whatever is installed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(report_reader, "PACKAGE", "no_such_package")
    return folder


@pytest.fixture
def program(no_program: Path) -> Program:
    """Makes an `ncu` that prints a page, on the PATH."""

    def make(text: str, code: int = 0) -> Path:
        (no_program / "page.csv").write_text(text, encoding="utf-8")
        script = no_program / "ncu"
        script.write_text(
            f'#!/bin/sh\necho "$@" >"{no_program}/words"\n'
            f'while IFS= read -r line; do printf "%s\\n" "$line"; done <"{no_program}/page.csv"\n'
            f"exit {code}\n",
            encoding="utf-8",
        )
        script.chmod(0o755)
        return script

    return make


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """Puts a package in place of NVIDIA's, which has these results of any file."""
    folder = tmp_path / "packages"
    folder.mkdir()
    shutil.copy(stand_in_ncu_report.__file__, folder / "ncu_report.py")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(report_reader, "PACKAGE", "ncu_report")

    def put(*results: dict[str, Any], fails: str = "") -> None:
        script = {"results": results, "fails": fails}
        (folder / "ncu_report.json").write_text(json.dumps(script), encoding="utf-8")

    return put


def result(cells: dict[str, str], workload: str = "kernel") -> dict[str, Any]:
    """A kernel or range, as the stand-in for NVIDIA's package has it."""
    metrics = {name: text for name, text in cells.items() if "__" in name}
    texts = {**metrics, **ATTRIBUTES, "device__attribute_architecture": "not asked for"}
    return {"name": cells["Kernel Name"], "workload": workload, "texts": texts}


# By an executable


def test_without_either_it_says_how_to_make_a_csv(rep: Path) -> None:
    said = refusal(profiled_step.read, rep, UsageFailure)
    assert "--import step.ncu-rep --csv --page raw --print-units base > step.csv" in said
    assert "pip install ncu-report" in said


def test_an_executable_on_the_path_or_that_is_named(
    rep: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = program(KERNELS.read_text(encoding="utf-8"))
    report = profiled_step.read(rep)
    assert report.file == rep
    assert report.rows == profiled_step.read(KERNELS).rows
    words = (script.parent / "words").read_text(encoding="utf-8").strip()
    assert words == f"--import {rep} --csv --page raw --print-units base"
    monkeypatch.setenv("PATH", "")
    assert profiled_step.read(rep, script).rows == report.rows


def test_executables_that_fail(rep: Path, program: Program) -> None:
    program("==ERROR== Failed to load report file\n", code=1)
    said = refusal(profiled_step.read, rep, BadFile)
    assert "did not open it: ncu failed with exit code 1: ==ERROR== Failed to load" in said
    program("Hello\n")
    assert "no raw page of ncu" in refusal(profiled_step.read, rep, BadFile)
    for name in ("missing", "step.ncu-rep"):
        with pytest.raises(UsageFailure, match="cannot be run"):
            profiled_step.read(rep, rep.with_name(name))


# By NVIDIA's package


def test_the_package_gives_what_the_csv_has(rep: Path, package: Package) -> None:
    # An average without a value is not a number.
    odd = {**LONGER, "l1tex__t_sector_hit_rate.pct": "nan"}
    package(result(KERNEL), result(odd), result(RANGE, "range"))
    read = profiled_step.read(rep)
    csv = profiled_step.read(written(rep.parent, page(KERNEL, odd, RANGE)))
    assert (read.arch, read.device, read.metrics) == (csv.arch, csv.device, csv.metrics)
    for row, same in zip(read.rows, csv.rows, strict=True):
        assert (row.name, row.kind, row.block) == (same.name, same.kind, same.block)
        assert (row.grid, row.gpu or "0") == (same.grid, same.gpu)
        assert row.values == same.values
        assert row.nvtx == ("gpuperf:step",)


def test_what_the_package_cannot_read_the_executable_does(
    rep: Path, package: Package, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = program(page(KERNEL))
    package(fails="crash")
    assert profiled_step.read(rep).rows[0].values["cycles"] == 5_000
    script.unlink()
    said = refusal(profiled_step.read, rep, BadFile)
    assert "ncu_report ended the process that read this (signal 9)" in said
    package(fails="bad magic")
    said = refusal(profiled_step.read, rep, BadFile)
    assert "(exit code 1: RuntimeError: bad magic: step.ncu-rep)" in said
    package()
    assert "has no kernel" in refusal(profiled_step.read, rep, BadFile)
    monkeypatch.setattr(report_reader, "_TIME_LIMIT_SECONDS", 0)
    assert "did not read this within 0 s" in refusal(profiled_step.read, rep, BadFile)
    stopped = written(rep.parent, "#!/bin/sh\nkill -STOP $$\n", "ncu")
    stopped.chmod(0o755)
    with pytest.raises(BadFile, match="did not open it within 0 s"):
        profiled_step.read(rep, stopped)


# The package's own process


def test_the_process_writes_the_rows(
    tmp_path: Path, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    package({**result(KERNEL), "texts": {"sm__cycles_elapsed.max": "5,000"}, "nvtx": False})
    monkeypatch.delitem(sys.modules, "ncu_report", raising=False)
    out = tmp_path / "rows.json"
    assert report_reader.main(["step.ncu-rep", str(out), "sm__cycles_elapsed.max,other"]) == 0
    ((fields, cells),) = json.loads(out.read_text(encoding="utf-8"))
    assert cells == {"sm__cycles_elapsed.max": 5000}
    assert (fields["grid"], fields["device"], fields["capability"]) == (None, "", ".")
    assert fields["nvtx"] == []
    monkeypatch.delitem(sys.modules, "ncu_report")
