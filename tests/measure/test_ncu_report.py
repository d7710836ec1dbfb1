"""Reports of ncu: the raw page as CSV, and .ncu-rep files through what opens them."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.measure.ncu import profiled_rows, raw_page
from pytest_gpuperf.measure.ncu.profiled_rows import Report
from tests.corruption import refusal, unreadable
from tests.measure import stand_in_ncu_report
from tests.measure.ncu_pages import (
    COLUMNS,
    DATA,
    KERNEL,
    KERNELS,
    LONGER,
    NAME,
    NVTX,
    RANGE,
    RANGES,
    page,
    written,
)


def of(text: str) -> Report:
    """The report that a page is."""
    return profiled_rows.report_of(raw_page.parse_csv(text.encode(), Path("step.csv")))


def refused(tmp_path: Path, text: str) -> str:
    """Why this page is refused."""
    return refusal(profiled_rows.read, written(tmp_path, text), BadFile)


# The real pages


def test_kernels_of_an_h200() -> None:
    report = profiled_rows.read(KERNELS)
    assert (report.arch, report.device) == ("sm90", "NVIDIA H200")
    assert report.metrics == (
        *("cycles", "instructions", "duration"),
        *("tensor_utilization", "l2_hit_rate", "dram_bytes"),
    )
    assert [row.kind for row in report.rows] == ["kernel"] * 4
    first, norm = report.rows[:2]
    assert first.name.startswith("sm80_xmma_gemm_f32f32")
    assert (first.process, first.stream) == ("601", "7")
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


def test_a_hit_rate_beyond_100_is_kept() -> None:
    # ncu reads hits and accesses in different passes.
    assert profiled_rows.read(KERNELS).rows[3].values["l2_hit_rate"] == 110.29


@pytest.mark.parametrize("file", RANGES, ids=lambda file: str(file.stem))
def test_a_range_is_not_taken_for_a_kernel(file: Path) -> None:
    report = profiled_rows.read(file)
    (row,) = report.rows
    assert (row.name, row.kind) == ("range", "range")
    # ncu gives it the largest grid and block of its kernels.
    assert (row.grid, row.block, row.stream) == (None, None, "")
    assert row.values["instructions"] == 44_626_337
    assert "tensor_utilization" not in report.metrics


def test_nvtx_ranges_may_have_colons_in_their_names() -> None:
    report = profiled_rows.read(NVTX)
    assert len(report.rows) == 16
    assert {row.nvtx for row in report.rows} == {("gpuperf:step",)}


def test_what_was_printed_around_the_page_is_skipped(tmp_path: Path) -> None:
    notices = (DATA / "kernel.txt").read_text(encoding="utf-8")
    lines = KERNELS.read_text(encoding="utf-8").splitlines(keepends=True)
    between = [*lines[:3], "==WARNING== one, two\n", "\n", *lines[3:]]
    text = "\ufeff" + 'epoch "1\n' + notices + "".join(between) + "\n==PROF== Disconnected\n"
    read = profiled_rows.read(written(tmp_path, text.replace("\n", "\r\n")))
    assert read.rows == profiled_rows.read(KERNELS).rows


# What columns say


def test_the_alu_has_another_name_on_sm90() -> None:
    units = {
        **COLUMNS,
        "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_active": "%",
        "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active": "parsec",
    }
    kernel = {
        **KERNEL,
        "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_active": "12.50",
        "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active": "no number",
    }
    assert of(page(kernel, units=units)).rows[0].values["int_alu_utilization"] == 12.5


@pytest.mark.parametrize(
    ("capability", "arch"), [("7.0", "sm70"), ("8.9", "sm89"), ("10.0", "sm100"), ("12.0", "sm120")]
)
def test_the_architecture_is_the_compute_capability(capability: str, arch: str) -> None:
    assert of(page({**KERNEL, "CC": capability})).arch == arch


def test_older_reports_have_attributes_in_place_of_columns() -> None:
    attributes = {
        "device__attribute_compute_capability_major": "8",
        "device__attribute_compute_capability_minor": "0",
        **{f"launch__grid_dim_{axis}": "1,024" for axis in "xyz"},
    }
    units = {name: unit for name, unit in COLUMNS.items() if name not in ("CC", "Grid Size")}
    report = of(page({**KERNEL, **attributes}, units={**units, **dict.fromkeys(attributes, "")}))
    assert report.arch == "sm80"
    assert report.rows[0].grid == (1024, 1024, 1024)


def test_what_has_no_grid_is_a_range_or_a_graph() -> None:
    units = {**COLUMNS, "launch__grid_dim_x": ""}
    kinds = [
        of(page({**RANGE, "Kernel Name": name, "launch__grid_dim_x": size}, units=units))
        for name, size in (("range", "1,024"), ("step", ""), ("CUDA Graph 3", "1"))
    ]
    assert [kind.rows[0].kind for kind in kinds] == ["range", "range", "graph"]


@pytest.mark.parametrize("written", ["", "n/a", "(!) n/a", "nan", "-nan"])
def test_a_cell_without_a_value_is_missing(written: str) -> None:
    row = of(page({**KERNEL, "sm__cycles_elapsed.max": written})).rows[0]
    assert "cycles" not in row.values
    assert row.values["instructions"] == 200_000


def test_a_report_may_lack_the_name_of_the_device() -> None:
    assert of(page({**KERNEL, NAME: ""})).device == ""
    assert of(page({**KERNEL, NAME: ""}, KERNEL)).device == "NVIDIA H200"


# Numbers and units


@given(st.integers(0, 10**15))
def test_whole_numbers_are_read_with_and_without_separators(value: int) -> None:
    assert raw_page.number(f"{value:,}") == raw_page.number(str(value)) == value


@given(st.floats(0, 1e12))
def test_fractions_are_read(value: float) -> None:
    assert raw_page.number(f"{value:,.2f}") == float(f"{value:.2f}")
    assert raw_page.number(repr(value)) == value


@pytest.mark.parametrize(
    "text", ["-5", "1.980.000", "1 980", "1,98", "12,34,567", ",5", "1e999", "inf", "7 (1; 2)", "x"]
)
def test_other_numbers_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"number|floats"):
        raw_page.number(text)


@given(st.text())
def test_any_text_is_a_number_or_refused(text: str) -> None:
    try:
        value = raw_page.number(text)
    except ValueError:
        return
    assert value is None or value >= 0


@pytest.mark.parametrize(
    ("unit", "written", "factor"),
    [
        *(("ns", text, 1.0) for text in ("ns", "nsecond")),
        *(("ns", text, 1e3) for text in ("us", "usecond")),
        *(("ns", text, 1e6) for text in ("ms", "msecond")),
        *(("ns", text, 1e9) for text in ("s", "second")),
        *zip(["bytes"] * 4, ["byte", "Kbyte", "Mbyte", "Gbyte"], [1.0, 1e3, 1e6, 1e9], strict=True),
        ("%", "%", 1.0),
        ("cycles", "cycle", 1.0),
        ("instructions", "inst", 1.0),
        ("instructions/cycle", "inst/cycle", 1.0),
        ("ns", "byte", None),
        ("bytes", "KiB", None),
        ("bytes", "kbyte", None),
        ("%", "", None),
        ("thread instructions", "inst", 1.0),
        ("thread instructions", "Ginst", 1e9),
        *(("FLOP", text, 1.0) for text in ("", "op", "math_op", "inst")),
        *(("FLOP", text, 1e12) for text in ("T", "Top", "Tmath_op")),
        ("FLOP", "byte", None),
    ],
)
def test_units(unit: str, written: str, factor: float | None) -> None:
    assert raw_page.factor(unit, written) == factor


@given(st.integers(1, 10**9), st.sampled_from([("ns", 1), ("us", 10**3), ("ms", 10**6)]))
def test_values_are_in_the_unit_of_the_catalogue(value: int, unit: tuple[str, int]) -> None:
    units = {**COLUMNS, "gpu__time_duration.sum": unit[0]}
    text = page({**KERNEL, "gpu__time_duration.sum": f"{value:,}"}, units=units)
    assert of(text).rows[0].values["duration"] == value * unit[1]


# Files that cannot be trusted


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        ({"sm__cycles_elapsed.max": "5.000,0"}, 'line 3 column sm__cycles_elapsed.max: "5.000,0"'),
        ({"sm__cycles_elapsed.max": "-5"}, 'line 3 column sm__cycles_elapsed.max: "-5"'),
        ({"CC": "nine"}, 'line 3 column CC: "nine" is no compute capability'),
        ({"CC": "5.2"}, "line 3 column CC: sm52 (compute capability 5.2) is not"),
        ({"CC": ""}, 'line 3 column device__attribute_compute_capability_major: "."'),
        ({"Grid Size": "8 x 8"}, 'line 3 column Grid Size: "8 x 8" is not the size of a grid'),
        ({"Block Size": "(1.5, 1, 1)"}, "line 3 column Block Size"),
    ],
)
def test_cells(kernel: dict[str, str], said: str, tmp_path: Path) -> None:
    assert said in refused(tmp_path, page({**KERNEL, **kernel}))


def test_lines_are_those_of_the_file(tmp_path: Path) -> None:
    wrong = {**KERNEL, "sm__cycles_elapsed.max": "?"}
    text = "==PROF== one\n==PROF== two\n" + page({**KERNEL, "Kernel Name": "a\nb"}, wrong)
    assert "line 7 column sm__cycles_elapsed.max" in refused(tmp_path, text)


def test_an_unknown_unit(tmp_path: Path) -> None:
    said = refused(tmp_path, page(KERNEL, units={**COLUMNS, "gpu__time_duration.sum": "hour"}))
    assert 'line 2 column gpu__time_duration.sum: the unit "hour" is not known for ns' in said


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"CC": "8.0"}, "line 4: kernels of several architectures: sm90 before, sm80 here"),
        ({NAME: "NVIDIA H100"}, "line 4: kernels of several devices"),
        ({"Device": "1"}, "line 4: kernels of several GPUs: 0 before, 1 here"),
    ],
)
def test_several_devices(other: dict[str, str], said: str, tmp_path: Path) -> None:
    assert said in refused(tmp_path, page(KERNEL, {**KERNEL, **other}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no raw page of ncu"),
        ("a,b,c\n1,2,3\n", "no raw page of ncu"),
        (page(), "has no kernel"),
        (page().splitlines()[0], "ends after its header"),
        (page(KERNEL).replace("\n", "\n0,", 1), "cells where the header has"),
        (page(KERNEL).replace('"', "", 1), "no raw page of ncu"),
        (page(KERNEL)[:-20], "not CSV"),
        (page(KERNEL) + page(KERNEL).splitlines()[2][:80] + '"\n', "may be cut off"),
        (page(KERNEL) + "Traceback (most recent call last)\n", "line 4: 1 cells where"),
        (page(KERNEL).replace('"Device"', '"Stream"'), 'line 1: the column "Stream" is there twic'),
        ("\n".join(page(KERNEL, KERNEL).splitlines()[::2]), "line 2: expected the row of units"),
        ('"ID","Process ID","Metric Name","Metric Value"\n', "line 1: this is ncu's details page"),
    ],
)
def test_pages(text: str, said: str, tmp_path: Path) -> None:
    assert said in refused(tmp_path, text)


def test_a_log_without_a_page_says_what_ncu_said(tmp_path: Path) -> None:
    said = refused(tmp_path, (DATA / "bad-none.txt").read_text(encoding="utf-8"))
    assert "no CSV but an error of ncu: no kernel was profiled" in said


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"\x89PNG\r\n\x1a\n\x00\x00\xff"])
def test_bytes_that_are_no_text(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "step.csv"
    file.write_bytes(content)
    assert "not UTF-8 text" in refusal(profiled_rows.read, file, BadFile)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for name in ("step.csv", "step.ncu-rep"):
        with pytest.raises(UsageFailure, match="no such file"):
            profiled_rows.read(tmp_path / name)
    with pytest.raises(UsageFailure, match="cannot be read"):
        profiled_rows.read(tmp_path)


def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    file = written(tmp_path, page(KERNEL))
    with unreadable(file), pytest.raises(UsageFailure, match="cannot be read"):
        profiled_rows.read(file)


@given(st.data())
def test_a_damaged_page_is_read_or_refused(data: st.DataObject) -> None:
    content = bytearray(page(KERNEL, LONGER).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=3))
    # Nothing but BadFile is raised.
    with suppress(BadFile):
        table = raw_page.parse_csv(bytes(content), Path("step.csv"))
        assert profiled_rows.report_of(table).rows


# .ncu-rep, by an executable


REP = b"NVR\0 not for us"


@pytest.fixture
def rep(tmp_path: Path) -> Path:
    """A report in ncu's own format."""
    file = tmp_path / "step.ncu-rep"
    file.write_bytes(REP)
    return file


Program = Callable[..., Path]


@pytest.fixture
def no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def program(no_program: Path) -> Program:
    """Makes an `ncu` that prints a page, on the PATH."""
    folder = no_program

    def make(text: str, code: int = 0) -> Path:
        (folder / "page.csv").write_text(text, encoding="utf-8")
        script = folder / "ncu"
        script.write_text(
            f"#!{sys.executable}\n"
            "import sys\nfrom pathlib import Path\n"
            f"here = Path({str(folder)!r})\n"
            "(here / 'words').write_text(' '.join(sys.argv[1:]))\n"
            "sys.stdout.write((here / 'page.csv').read_text())\n"
            f"sys.exit({code})\n",
            encoding="utf-8",
        )
        script.chmod(0o755)
        return script

    return make


@pytest.mark.usefixtures("no_program")
def test_without_nsight_compute_it_says_how_to_make_a_csv(rep: Path) -> None:
    said = refusal(profiled_rows.read, rep, UsageFailure)
    assert "--import step.ncu-rep --csv --page raw --print-units base > step.csv" in said
    assert "extras/python" in said


def test_an_executable_on_the_path(rep: Path, program: Program) -> None:
    script = program(KERNELS.read_text(encoding="utf-8"))
    report = profiled_rows.read(rep)
    assert report.file == rep
    assert report.rows == profiled_rows.read(KERNELS).rows
    words = (script.parent / "words").read_text(encoding="utf-8")
    assert words == f"--import {rep} --csv --page raw --print-units base"


def test_an_executable_that_is_named(
    rep: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = program(page(KERNEL))
    monkeypatch.setenv("PATH", "")
    assert profiled_rows.read(rep, script).rows[0].values["cycles"] == 5_000


def test_an_executable_that_fails(rep: Path, program: Program) -> None:
    program("==ERROR== Failed to load report file\n", code=1)
    said = refusal(profiled_rows.read, rep, BadFile)
    assert "did not open it: ncu failed with exit code 1: ==ERROR== Failed to load" in said


def test_an_executable_that_prints_something_else(rep: Path, program: Program) -> None:
    program("Hello\n")
    assert "no raw page of ncu" in refusal(profiled_rows.read, rep, BadFile)


@pytest.mark.usefixtures("no_program")
@pytest.mark.parametrize("name", ["missing", "step.ncu-rep"])
def test_an_executable_that_is_none(name: str, rep: Path) -> None:
    with pytest.raises(UsageFailure, match="cannot be run"):
        profiled_rows.read(rep, rep.with_name(name))


# .ncu-rep, by NVIDIA's module


Module = Callable[..., None]


def result(cells: dict[str, str], workload: str = "kernel") -> dict[str, Any]:
    """A kernel or range, as the stand-in for NVIDIA's module has it."""
    sizes = {"grid": (1024, 2, 1), "block": (128, 1, 1)}
    attributes = {
        f"launch__{what}_dim_{axis}": str(number)
        for what, size in sizes.items()
        for axis, number in zip("xyz", size, strict=True)
    }
    attributes["launch__stream_id"] = "7"
    capability = {"major": "9", "minor": "0"}
    attributes |= {f"device__attribute_compute_capability_{k}": v for k, v in capability.items()}
    attributes["device__attribute_architecture"] = "not asked for"
    metrics = {name: text for name, text in cells.items() if "__" in name}
    return {
        "name": cells["Kernel Name"],
        "workload": workload,
        "texts": {**metrics, **attributes},
        "units": {name: COLUMNS[name] for name in metrics if name in COLUMNS},
    }


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Module:
    """Puts a module in place of NVIDIA's, which has these results of any file."""
    folder = tmp_path / "extras"
    folder.mkdir()
    shutil.copy(stand_in_ncu_report.__file__, folder / "ncu_report.py")
    monkeypatch.syspath_prepend(folder)

    def put(*results: dict[str, Any], fails: str = "") -> None:
        script = {"results": results, "fails": fails}
        (folder / "ncu_report.json").write_text(json.dumps(script), encoding="utf-8")

    return put


def test_the_module_gives_what_the_csv_has(rep: Path, module: Module) -> None:
    module(result(KERNEL), result(LONGER))
    report, expected = profiled_rows.read(rep), of(page(KERNEL, LONGER))
    assert (report.arch, report.device, report.metrics) == (
        expected.arch,
        expected.device,
        expected.metrics,
    )
    for row, same in zip(report.rows, expected.rows, strict=True):
        assert (row.name, row.kind, row.grid, row.block) == (
            *(same.name, same.kind, same.grid, same.block),
        )
        assert (row.values, row.counts, row.stream) == (same.values, same.counts, same.stream)
        assert row.nvtx == ("gpuperf:step",)


def test_the_module_knows_ranges(rep: Path, module: Module) -> None:
    module(result(RANGE, "range"))
    assert profiled_rows.read(rep).rows[0].kind == "range"


def test_units_that_differ_between_results(rep: Path, module: Module) -> None:
    other = result(LONGER)
    other["units"]["gpu__time_duration.sum"] = "us"
    module(result(KERNEL), other)
    said = refusal(profiled_rows.read, rep, BadFile)
    assert 'the unit of gpu__time_duration.sum is "us" here, "ns" there' in said


def test_whatever_the_module_raises(rep: Path, module: Module) -> None:
    module(fails="bad magic")
    said = refusal(profiled_rows.read, rep, BadFile)
    assert "ncu_report did not open it: bad magic: step.ncu-rep" in said


def test_a_report_without_results(rep: Path, module: Module) -> None:
    module()
    assert "has no kernel" in refusal(profiled_rows.read, rep, BadFile)


def test_where_the_module_crashes_the_executable_is_asked(
    rep: Path, module: Module, program: Program
) -> None:
    module(fails="crash")
    program(page(KERNEL))
    assert profiled_rows.read(rep).rows[0].values["cycles"] == 5_000


@pytest.mark.usefixtures("no_program")
def test_where_the_module_crashes_and_there_is_no_executable(rep: Path, module: Module) -> None:
    module(fails="crash")
    said = refusal(profiled_rows.read, rep, BadFile)
    assert "ncu_report ended the process that read this (signal 9)" in said


def test_a_module_that_does_not_load_is_as_none(
    rep: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(page(KERNEL))
    broken = rep.parent / "modules"
    broken.mkdir()
    (broken / "ncu_report.py").write_text("raise OSError('libgcc_s.so')", encoding="utf-8")
    monkeypatch.syspath_prepend(broken)
    assert profiled_rows.read(rep).rows


def test_the_made_up_page_has_the_form_of_the_real_one() -> None:
    real = next(csv.reader(io.StringIO(KERNELS.read_text(encoding="utf-8"))))
    identity = [name for name in COLUMNS if "__" not in name]
    assert [name for name in real if name in identity] == identity
