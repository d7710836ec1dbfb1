"""Our collectors against ncu: the table, made of what both counted of one step on one H200."""

from __future__ import annotations

import json
import lzma
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import collectors
from benchmarks.collectors import AGAIN, KERNEL, OURS, RANGE
from pytest_gpuperf.measure.ncu import profiled_step
from pytest_gpuperf.model.measurement import KernelTable, Measurement, Scalar
from pytest_gpuperf.storage import files, run_files
from tests import ROOT
from tests.examples import H200, measurement, run

RUNS = ROOT / "docs" / "runs" / "collectors"
DATA = ROOT / "tests" / "data" / "ncu" / "tf32-step"


def report(name: str, folder: Path) -> profiled_step.ProfiledStep:
    """What ncu said of the step."""
    file = folder / f"{name}.csv"
    file.write_bytes(lzma.decompress((DATA / f"{name}.csv.xz").read_bytes()))
    return profiled_step.step_of(profiled_step.read(file))


def table(launches: int) -> KernelTable:
    """What we counted, as far as kernel replay came."""
    text = lzma.decompress((DATA / "kernels.json.xz").read_bytes()).decode()
    whole = files.adapter(KernelTable).validate_json(text)
    counted = [launch for launch in whole.launches if launch.values]
    return replace(whole, launches=tuple(counted[:launches]))


def made(values: Mapping[str, float], **settings: Scalar) -> Measurement:
    """A measurement of the step with these values, measured so."""
    one = measurement({name: [value] for name, value in values.items()}, device=H200)
    return replace(one, fingerprint=replace(one.fingerprint, settings=settings))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The three runs of the benchmark."""
    tmp_path = tmp_path_factory.mktemp("measured")
    ranged, kernels = report("range-replay", tmp_path), report("kernel-replay", tmp_path)
    values = {sample.metric: sample.values[0] for sample in ranged.samples}
    ours = json.loads((DATA / "step.json").read_text(encoding="utf-8"))
    runs = {
        OURS: replace(
            made(
                {k: v for k, v in ours.items() if k in values},
                counters_s=5.2,
                phases_s=2.5,
                kernels_s=21.4,
            ),
            kernels=table(1117),
        ),
        RANGE: made(values, profiled_s=64.5),
        KERNEL: replace(made({}, profiled_s=436.0), kernels=kernels.kernels),
        AGAIN: made({"instructions": values["instructions"]}),
    }
    for name, one in runs.items():
        run_files.save(run([one]), tmp_path / f"{name}.json.xz")
    return tmp_path


@pytest.fixture
def folder(measured: Path, tmp_path: Path) -> Path:
    """The same for one test, which may change them."""
    return shutil.copytree(measured, tmp_path, dirs_exist_ok=True)


def test_what_was_reached_and_what_was_not(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # ncu's range begins and ends on the host, which is 5 % of this step.
    assert collectors.main(["--from", str(folder)]) == 1
    rows = {line.split("  ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert rows["the whole step"].split() == [
        *(["the", "whole", "step", "2.7", "s", "64.5", "s", "23.8889", "at", "least", "15"]),
    ]
    assert "NOT REACHED" not in rows["every kernel"]
    assert {what for what, row in rows.items() if "NOT REACHED" in row} == {"cycles"}
    near = rows["instructions of kernels within 0.1% of ncu's"]
    assert float(re.findall(r"([\d.]+)%", near)[1]) > 99.9


def test_all_that_was_measured_on_one_h200(capsys: pytest.CaptureFixture[str]) -> None:
    assert collectors.main(["--from", str(RUNS)]) == 1
    said = capsys.readouterr().out.splitlines()
    # ncu's range is 6 % longer than the step, and so are the cycles elapsed in it.
    assert [row.split()[0] for row in said if "NOT REACHED" in row] == ["cycles"]
    assert sum("within 2%" in row or "at least" in row for row in said) == 9


def test_a_cost_beyond_its_share_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / f"{KERNEL}.json.xz"
    (slow,) = run_files.load(file).measurements
    settings = {**slow.fingerprint.settings, "profiled_s": 400.0}
    fingerprint = replace(slow.fingerprint, settings=settings)
    run_files.save(run([replace(slow, fingerprint=fingerprint)]), file)
    assert collectors.main(["--from", str(folder)]) == 1
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "every kernel" in line]
    assert row.endswith("at least 20  NOT REACHED")


def test_another_number_of_kernels_is_not_compared(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / f"{OURS}.json.xz"
    (ours,) = run_files.load(file).measurements
    run_files.save(run([replace(ours, kernels=table(1000))]), file)
    assert collectors.main(["--from", str(folder)]) == 1
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "nan" in line]
    assert {tuple(row[2:]) for row in rows} == {("1000", "1117", "nan", "NOT", "REACHED")}


def test_the_documentation_has_the_same_rows(folder: Path) -> None:
    lines = collectors.markdown(folder).splitlines()
    assert lines[2] == "| the whole step | 2.7 s | 64.5 s | 1/23.9 | at least 15 |"
    assert len({line.count("|") for line in lines}) == 1


def test_runs_of_several_gpus_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / f"{RANGE}.json.xz"
    (one,) = run_files.load(file).measurements
    elsewhere = replace(one.fingerprint, device=replace(H200, identity="another"))
    run_files.save(run([replace(one, fingerprint=elsewhere)]), file)
    assert collectors.main(["--from", str(folder)]) == 4
    assert "the runs are of several GPUs" in capsys.readouterr().err


def test_what_was_measured_is_not_measured_again(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert collectors.main(["--out", str(folder)]) == 1
    said = capsys.readouterr().out
    assert [name for name in collectors.HOW if f"{name}: is there" in said] == [*collectors.HOW]


def test_missing_runs_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert collectors.main(["--from", str(tmp_path)]) == 4
    assert "cupti.json.xz: no such run file" in capsys.readouterr().err
