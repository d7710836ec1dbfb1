"""Reports of ncu as runs: `gpuperf import`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf import __main__, errors
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.commands import import_ncu
from pytest_gpuperf.commands.import_ncu import ImportRequest
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.model.measurement import STEP, Measurement
from pytest_gpuperf.storage import run_files
from tests.measure.ncu_reports import (
    CYCLES,
    KERNEL,
    KERNELS,
    LONGER,
    MAJOR,
    NAME,
    NVTX,
    RANGE,
    TIME,
    page,
    read_here,
    without,
    written,
)

if TYPE_CHECKING:
    from tests.plugin.projects import Project


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads reports in this process."""
    read_here(monkeypatch)


def imported(file: Path, **request: object) -> Measurement:
    """The measurement that one report is."""
    (made,) = import_ncu.imported_run([file], ImportRequest(**request)).measurements  # type: ignore[arg-type]
    return made


def values(measurement: Measurement) -> dict[str, tuple[float, ...]]:
    return {sample.metric: sample.values for sample in measurement.samples}


# What the numbers are


def test_counts_of_the_kernels_add_up_and_each_launch_is_kept() -> None:
    measurement = imported(KERNELS)
    assert (measurement.test, measurement.name) == ("imported/kernel-replay::step", "step")
    assert (measurement.suite, measurement.configuration) == ("imported", "")
    assert imported(KERNELS, test="tests/perf/test_a.py::test_b[c]").suite == "perf"
    device = measurement.fingerprint.device
    assert (device.arch, device.name, device.slug) == ("sm90", "NVIDIA H200", "nvidia-h200")
    assert measurement.fingerprint.settings == {
        "collector": "ncu",
        "imported": "kernel-replay.ncu-rep",
        "replay": "kernel",
        "kernels": 4,
    }
    assert values(measurement) == {
        "cycles": (116_663.0 + 13_106 + 6_621 + 12_270,),
        "instructions": (41_498_112.0 + 2_318_336 + 200_704 + 609_185,),
        "duration": (59_744.0 + 6_720 + 3_392 + 6_240,),
        "dram_bytes": (2_066_688.0 + 308_992 + 16_896 + 65_280,),
    }
    assert {sample.phase for sample in measurement.samples} == {STEP}
    reasons = {left_out.metric: left_out.reason for left_out in measurement.unsupported}
    assert set(reasons) == {"tensor_utilization", "l2_hit_rate"}
    assert "for single kernels only" in reasons["l2_hit_rate"]
    table = measurement.kernels
    assert table is not None
    assert (len(table.names), len(table.launches), table.mismatch) == (4, 4, "")
    assert table.metrics[:3] == ("cycles", "instructions", "duration")
    norm = table.launches[1]
    assert (norm.kind, norm.grid, norm.block) == ("kernel", (1024, 1, 1), (32, 4, 1))
    assert norm.values == (13_106, 2_318_336, norm.duration, 1.64, 99.29, 308_992)


def test_a_range_is_the_step_itself(tmp_path: Path) -> None:
    measurement = imported(written(tmp_path, page(RANGE)))
    assert values(measurement)["ipc"] == (2.0,)
    assert values(measurement)["cycles"] == (50_000.0,)
    assert measurement.kernels is None
    assert measurement.fingerprint.settings == {
        "collector": "ncu",
        "imported": "step.ncu-rep",
        "replay": "range",
    }


def test_executions_of_a_step_are_rounds(tmp_path: Path) -> None:
    measurement = imported(NVTX, executions=4)
    assert len(values(measurement)["cycles"]) == 4
    assert values(measurement)["instructions"] == (44_626_337.0,) * 4
    assert measurement.kernels is not None
    assert len(measurement.kernels.launches) == 4
    assert measurement.fingerprint.settings["rounds"] == 4
    assert values(imported(NVTX))["instructions"] == (4 * 44_626_337.0,)
    # Ranges may be executions too.
    file = written(tmp_path, page(RANGE, {**RANGE, CYCLES: "50001"}))
    assert values(imported(file, executions=2))["cycles"] == (50_000.0, 50_001.0)


# What goes with them


def test_a_table_has_each_name_once_and_durations(tmp_path: Path) -> None:
    file = written(tmp_path, page(KERNEL, LONGER, {**KERNEL, CYCLES: "nan"}))
    table = imported(file).kernels
    assert table is not None
    assert [launch.name for launch in table.launches] == [0, 1, 0]
    assert table.launches[2].values[table.metrics.index("cycles")] is None
    untimed = page(without(KERNEL, TIME), LONGER)
    assert imported(written(tmp_path, untimed)).kernels is None


def test_several_reports_are_several_processes_a_copy_is_the_same(tmp_path: Path) -> None:
    copy = written(tmp_path, KERNELS.read_text(encoding="utf-8"), "copy.ncu-rep")
    assert imported(KERNELS).process == imported(copy).process
    request = ImportRequest(test="a.py::b")
    run = import_ncu.imported_run([KERNELS, written(tmp_path, page(KERNEL))], request)
    assert len({measurement.process for measurement in run.measurements}) == 2
    assert {m.test for m in run.measurements} == {"a.py::b"}


# What is refused


def refused(*files: Path, **request: object) -> str:
    with pytest.raises(UsageFailure) as caught:
        import_ncu.imported_run(files, ImportRequest(**request))  # type: ignore[arg-type]
    return str(caught.value)


def test_a_device_has_one_name_and_is_asked_for_it(tmp_path: Path) -> None:
    file = written(tmp_path, page(without(KERNEL, NAME)))
    assert "--device-name" in refused(file)
    assert "--device-name" in refused(file, device_name="  ")
    assert imported(file, device_name="NVIDIA H200").fingerprint.device.slug == "nvidia-h200"
    assert "made on NVIDIA H200" in refused(KERNELS, device_name="NVIDIA H100")
    assert imported(KERNELS, device_name="NVIDIA H200")


def test_several_reports_are_different_ones_of_one_test_on_one_device(tmp_path: Path) -> None:
    assert "--test" in refused(KERNELS, written(tmp_path, page(KERNEL)))
    assert "the same report as kernel-replay.ncu-rep" in refused(KERNELS, KERNELS, test="a.py::b")
    other = written(tmp_path, page({**KERNEL, MAJOR: "8", NAME: "NVIDIA A100"}))
    assert "NVIDIA H200 (sm90) and NVIDIA A100 (sm80)" in refused(KERNELS, other, test="a.py::b")


def test_a_test_has_an_id() -> None:
    for test in ("test_b", "test_a.py::", "::test_b", "tests/"):
        assert f"--test {test} is not the id" in refused(KERNELS, test=test)


def test_what_is_not_one_step(tmp_path: Path) -> None:
    for kernels, executions, said in (
        ([KERNEL, LONGER, KERNEL], 2, "3 kernels or ranges cannot be divided into 2"),
        ([KERNEL], 0, "into 0 equal executions"),
        ([KERNEL], -1, "into -1 equal executions"),
        (
            [KERNEL, LONGER, LONGER, KERNEL],
            2,
            "kernel 1 is add(int, float) in execution 1, but mul",
        ),
        ([RANGE, RANGE], 1, "--steps 2"),
        ([RANGE, KERNEL], 2, "1 ranges and 1 kernels"),
    ):
        assert said in refused(written(tmp_path, page(*kernels)), executions=executions)


def test_a_report_without_any_of_our_metrics(tmp_path: Path) -> None:
    bare = [
        without(kernel, *(name for name in kernel if "." in name)) for kernel in (KERNEL, LONGER)
    ]
    said = refused(written(tmp_path, page(*bare)))
    assert "--metrics sm__cycles_elapsed.max,sm__cycles_active.sum," in said


# The command


def run_import(*words: str | Path) -> int:
    return __main__.main(["import", *map(str, words)])


def test_the_run_is_saved_and_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a name with the other runs."""
    monkeypatch.chdir(tmp_path)
    assert run_import(KERNELS) == errors.OK
    assert run_files.load(run_files.newest(tmp_path)).measurements
    out = tmp_path / "run.json"
    assert run_import(KERNELS, "--run", out) == errors.OK
    said = capsys.readouterr().out
    assert (
        "kernel-replay.ncu-rep: 4 kernels on NVIDIA H200 (sm90), as imported/kernel-replay" in said
    )
    assert "has cycles, instructions, duration, dram_bytes" in said
    assert "without l2_hit_rate: this rate" in said
    assert f"run saved: {out}" in said
    assert "note" not in said
    (measurement,) = run_files.load(out).measurements
    assert measurement == imported(KERNELS)
    order = [*catalogue().metrics].index
    assert [s.metric for s in measurement.samples] == sorted(values(measurement), key=order)


def test_kernels_that_repeat_are_pointed_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_import(NVTX, "--run", tmp_path / "a.json") == errors.OK
    assert "the step repeats the same kernels 4 times" in capsys.readouterr().out
    assert run_import(NVTX, "--run", tmp_path / "b.json", "--steps", "2") == errors.OK
    assert "2 times. If those are separate executions, pass --steps 4" in (capsys.readouterr().out)
    assert run_import(NVTX, "--run", tmp_path / "c.json", "--steps", "4") == errors.OK
    said = capsys.readouterr().out
    assert "4 kernels, 4 executions, on" in said
    assert "note" not in said


def test_a_run_that_exists_is_left_alone_and_bad_files_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = written(tmp_path, "mine", "run.json")
    assert run_import(KERNELS, "--run", out) == errors.BAD_CONFIGURATION
    assert "exists" in capsys.readouterr().err
    assert out.read_text(encoding="utf-8") == "mine"
    file = written(tmp_path, page({**KERNEL, MAJOR: "5"}))
    assert run_import(file, "--run", tmp_path / "other.json") == errors.BAD_CONFIGURATION
    assert f"{file}: result 0: sm50" in capsys.readouterr().err
    assert not (tmp_path / "other.json").exists()


def test_an_imported_run_is_judged(project: Project) -> None:
    project.tests("def test_step(gpuperf): gpuperf.measure(lambda: None)")
    for name, kernel in (("good", KERNEL), ("bad", LONGER)):
        reports = [
            written(project.root, page({**kernel, "seen": str(number)}), f"{name}-{number}.ncu-rep")
            for number in range(3)
        ]
        test = ("--test", "test_steps.py::test_step")
        assert run_import(*reports, *test, "--run", project.root / f"{name}.json") == errors.OK
    assert project.update("good.json") == 0
    result = project.run("--gpuperf-replay=good.json", "--gpu-arch=sm90")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["NVIDIA H200 (sm90)", "test_step  cycles *5000 *0 % *unchanged"])
    result = project.run("--gpuperf-replay=bad.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*cycles*5000*50000*x10*regressed"])
