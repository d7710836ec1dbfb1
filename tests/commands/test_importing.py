"""Reports of ncu as runs: `gpuperf import`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf import __main__, errors
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.commands.import_ncu import imported_run
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.storage import run_files
from tests.measure.ncu_reports import (
    KERNEL,
    KERNELS,
    LONGER,
    MAJOR,
    NAME,
    NVTX,
    RANGE,
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


def imported(file: Path, **options: Any) -> Measurement:
    """The measurement that one report is."""
    (made,) = imported_run([file], **options).measurements
    return made


def test_a_report_is_a_measurement_of_a_test(tmp_path: Path) -> None:
    of_kernels = imported(KERNELS)
    assert (of_kernels.test, of_kernels.name) == ("imported/kernel-replay::step", "step")
    assert (of_kernels.suite, of_kernels.configuration) == ("imported", "")
    assert imported(KERNELS, test="tests/perf/test_a.py::test_b[c]").suite == "perf"
    device = of_kernels.fingerprint.device
    assert (device.arch, device.name, device.slug) == ("sm90", "NVIDIA H200", "nvidia-h200")
    of_range = imported(written(tmp_path, page(RANGE)))
    for made, file, replay in (
        (of_kernels, "kernel-replay.ncu-rep", "kernel"),
        (of_range, "step.ncu-rep", "range"),
    ):
        settings = {"collector": "ncu", "imported": file, "replay": replay}
        assert made.fingerprint.settings == settings


def test_several_reports_are_several_processes_a_copy_is_the_same(tmp_path: Path) -> None:
    copy = written(tmp_path, KERNELS.read_text(encoding="utf-8"), "copy.ncu-rep")
    assert imported(KERNELS).process == imported(copy).process
    run = imported_run([KERNELS, written(tmp_path, page(KERNEL))], "a.py::b")
    assert len({measurement.process for measurement in run.measurements}) == 2
    assert {m.test for m in run.measurements} == {"a.py::b"}


def test_reports_are_different_ones_of_one_test_on_one_device(tmp_path: Path) -> None:
    another = written(tmp_path, page({**KERNEL, MAJOR: "8", NAME: "NVIDIA A100"}), "b.ncu-rep")
    unnamed = written(tmp_path, page(without(KERNEL, NAME)))
    for files, test, says in (
        ([KERNELS, another], "", "which needs a name: --test"),
        ([KERNELS, KERNELS], "a.py::b", "the same report as kernel-replay.ncu-rep"),
        ([KERNELS, another], "a.py::b", r"NVIDIA H200 \(sm90\) and NVIDIA A100 \(sm80\)"),
        ([unnamed], "", "does not name its GPU"),
        *(
            ([KERNELS], test, f"--test {test} is not the id")
            for test in ("test_b", "test_a.py::", "::test_b", "tests/")
        ),
    ):
        with pytest.raises(UsageFailure, match=says):
            imported_run(files, test)


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
    assert "kernel-replay.ncu-rep: a step on NVIDIA H200 (sm90), as imported/kernel" in said
    assert "has cycles, instructions, duration, dram_bytes" in said
    assert "without l2_hit_rate: this rate" in said
    assert f"run saved: {out}" in said
    (measurement,) = run_files.load(out).measurements
    assert measurement == imported(KERNELS)
    metrics = [sample.metric for sample in measurement.samples]
    assert metrics == sorted(metrics, key=[*catalogue().metrics].index)
    assert run_import(NVTX, "--run", tmp_path / "four.json", "--steps", "4") == errors.OK
    (four,) = run_files.load(tmp_path / "four.json").measurements
    assert {len(sample.values) for sample in four.samples} == {4}


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
    result = project.run("--gpuperf-replay=bad.json", "--gpu-arch=sm90")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*cycles*5000*50000*x10*regressed", "NVIDIA H200 (sm90)"])
