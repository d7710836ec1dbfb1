"""The benchmark of workers holds several against one: time, verdicts, and what is apart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import projects, workers
from pytest_gpuperf.model.measurement import Measurement, Sample
from pytest_gpuperf.model.result import Outcome, Run
from pytest_gpuperf.storage import run_files
from tests import ROOT
from tests.plugin.test_conditions import AT_NIGHT

RECORDED = ROOT / "docs" / "runs" / "h200-meddpm.json"


def scaled(run: Run, factor: float) -> Run:
    """With so many times the values, of one verdict each."""

    def of(sample: Sample) -> Sample:
        return replace(sample, values=tuple(factor * value for value in sample.values))

    def measured(one: Measurement) -> Measurement:
        return replace(one, samples=tuple(map(of, one.samples)), kernels=None)

    return replace(run, measurements=tuple(map(measured, run.measurements)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two sessions of one worker that are 0.2 % apart, two of two workers that are 0.1 %."""
    run = run_files.load(RECORDED)
    seconds = {}
    for name, factor, took in (
        ("alone-0", 1.0, 100.0),
        ("alone-1", 1.002, 102.0),
        ("beside-0", 1.0, 54.0),
        ("beside-1", 1.001, 55.0),
    ):
        file = tmp_path / f"{name}.json.xz"
        run_files.save(scaled(run, factor), file)
        seconds[file.name] = took
    (tmp_path / workers.TIMES).write_text(json.dumps(seconds))
    return tmp_path


def change(folder: Path, name: str, run: Run) -> None:
    run_files.save(run, folder / f"{name}.json.xz")


def test_half_the_time_and_the_same_verdicts_are_good(folder: Path) -> None:
    said, good = workers.table(folder, 2)
    assert "-n 2: 54.5 s of 2 sessions, -n 1: 101.0 s of 2; share 0.540, at most 0.55 is" in said
    assert "with 2 workers 0 metrics with an alarm, 0 measurements that were not judged" in said
    assert "\n0 of " in said
    assert "cycles between sessions: 7.07e-04 apart on one GPU, and 1.41e-03 with" in said
    assert good


def test_another_verdict_is_named(folder: Path) -> None:
    run = run_files.load(folder / "beside-1.json.xz")
    at = next(i for i, v in enumerate(run.verdicts) if v.metric == "cycles")
    said_now = list(run.verdicts)
    said_now[at] = replace(said_now[at], outcome=Outcome.REGRESSED)
    change(folder, "beside-1", replace(run, verdicts=tuple(said_now)))
    said, good = workers.table(folder, 2)
    assert "cycles: unchanged, and regressed or unchanged" in said
    assert "1 metrics with an alarm" in said
    assert not good


def test_what_is_wider_beside_each_other_is_not_good(folder: Path) -> None:
    run = run_files.load(folder / "beside-1.json.xz")
    first, *others = run.measurements
    slower = scaled(replace(run, measurements=(first,)), 1.01).measurements
    change(folder, "beside-1", replace(run, measurements=(*slower, *others)))
    assert not workers.table(folder, 2)[1]


@AT_NIGHT
def test_sessions_are_judged_by_a_baseline_that_is_recorded_before(tmp_path: Path) -> None:
    """Twice: what is there is not recorded again."""
    summing = "def test_sum(gpuperf):\n    gpuperf.measure(lambda: sum(range(10_000)) and None)\n"
    tests = projects.project(tmp_path / "project", summing) / "test_it.py"
    folder = tmp_path / "recorded"
    arguments = [str(tests), f"--rootdir={tests.parent}", f"-c{tests.parent / 'pytest.ini'}"]
    measuring = ("--gpu-arch=cpu", "--gpuperf-processes=1")
    counts = {workers.BASELINE: 1, workers.ALONE: 1, workers.BESIDE: 0}
    times = []
    for _ in range(2):
        workers.record(folder, counts, 1, ("",), [*arguments, *measuring])
        times.append((folder / workers.TIMES).read_bytes())
    assert times[0] == times[1]
    said = {verdict.outcome for verdict in run_files.load(folder / "alone-0.json.xz").verdicts}
    assert Outcome.UNCHANGED in said
    assert Outcome.NO_BASELINE not in said
