"""The benchmark of workers holds several against one: time, verdicts, and what is apart."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import projects, workers
from pytest_gpuperf.measure.device import nvml
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


def test_where_nothing_was_judged_times_are_compared(folder: Path) -> None:
    for name in ("alone-0", "alone-1", "beside-0", "beside-1"):
        change(folder, name, replace(run_files.load(folder / f"{name}.json.xz"), verdicts=()))
    said, good = workers.table(folder, 2)
    assert "share 0.540" in said
    assert "\nnothing was judged\n" in said
    assert "alarm" not in said
    assert good


def test_a_session_that_takes_longer_is_not(folder: Path) -> None:
    seconds = json.loads((folder / workers.TIMES).read_bytes())
    (folder / workers.TIMES).write_text(json.dumps({**seconds, "beside-0.json.xz": 60.0}))
    said, good = workers.table(folder, 2)
    assert "share 0.569" in said
    assert not good


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


@pytest.mark.parametrize(("sessions", "good"), [(2, True), (8, False)])
def test_a_clock_that_moves_takes_sessions_to_show(
    folder: Path, sessions: int, *, good: bool
) -> None:
    """All tests of one share it: two sessions are one difference, however many tests they have."""
    seconds = json.loads((folder / workers.TIMES).read_bytes())
    for number in range(sessions):
        for kind, apart in ((workers.ALONE, 1e-4), (workers.BESIDE, 1e-2)):
            name = f"{kind}-{number}"
            change(folder, name, scaled(run_files.load(RECORDED), 1 + apart * (number % 2)))
            seconds.setdefault(f"{name}.json.xz", seconds[f"{kind}-0.json.xz"])
    (folder / workers.TIMES).write_text(json.dumps(seconds))
    assert workers.table(folder, 2)[1] is good


def test_sessions_without_a_test_in_common_on_a_gpu_have_nothing_between_them() -> None:
    run = run_files.load(RECORDED)
    one, two = (replace(run, measurements=run.measurements[at : at + 2]) for at in (0, 2))
    compared = workers.apart([one, one, two, two], [run, run, run])
    assert {where for _, where in compared} == {workers.WITHIN}
    assert compared["cycles", workers.WITHIN].one.freedom == 2


@pytest.mark.parametrize(("tolerance", "good"), [("any", True), ("100%", True), ("99%", False)])
def test_what_may_double_is_the_host_s_time_and_not_compared(
    folder: Path, tolerance: str, *, good: bool
) -> None:
    free = dict.fromkeys(workers.SPREAD, tolerance)
    for name in ("alone-0", "alone-1", "beside-0", "beside-1"):
        run = run_files.load(folder / f"{name}.json.xz")
        first, *others = run.measurements
        if name == "beside-1":
            (first,) = scaled(replace(run, measurements=(first,)), 1.01).measurements
        free_first = replace(first, tolerance=free)
        change(folder, name, replace(run, measurements=(free_first, *others)))
    assert workers.table(folder, 2)[1] is good


@pytest.mark.parametrize(("apart", "good"), [(1e-6, True), (1e-5, False)])
def test_a_spread_that_the_judge_does_not_know_from_none_is_none(
    folder: Path, apart: float, *, good: bool
) -> None:
    """Of counts a tenth of 2e-5. One worker's are equal."""
    run = run_files.load(RECORDED)
    first, *others = run.measurements
    more = scaled(replace(run, measurements=(first,)), 1 + apart).measurements
    for name in ("alone-0", "alone-1", "beside-0"):
        change(folder, name, scaled(run, 1.0))
    change(folder, "beside-1", scaled(replace(run, measurements=(*more, *others)), 1.0))
    compared = workers.apart(
        *(
            [run_files.load(folder / f"{kind}-{number}.json.xz") for number in range(2)]
            for kind in (workers.ALONE, workers.BESIDE)
        )
    )
    assert compared["instructions", workers.WITHIN].wider is not good


def test_one_kind_alone_says_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / workers.TIMES).write_text(json.dumps({"alone-0.json.xz": 100.0}))
    assert workers.main(["--from", str(folder)]) == 4
    assert "sessions of one worker and of several are needed" in capsys.readouterr().err


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


@pytest.mark.parametrize(
    ("limit", "failed", "recorded", "says"),
    [
        # The first of a kind has no longest before it.
        (15.0, False, ["first", "baseline-0"], "baseline-1.json.xz: no time is left for it"),
        (25.0, False, ["first", "baseline-0", "baseline-1"], "alone-1.json.xz: no time is left"),
        (99.0, True, ["first"], "baseline-0.json.xz: a test failed"),
    ],
)
def test_the_recording_ends_where_time_does_and_with_a_baseline_of_failures(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: float,
    failed: bool,
    recorded: list[str],
    says: str,
) -> None:
    """Sessions of 10 s each, on a clock that stands still but for them."""
    now = [0.0]

    def session(run: Path, *_: object) -> tuple[float, bool]:
        now[0] += 10 if run.name.startswith(workers.BASELINE) else 0
        return 10.0, failed

    monkeypatch.setattr(workers, "_session", session)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    counts = {workers.BASELINE: 2, workers.ALONE: 2, workers.BESIDE: 1}
    with pytest.raises(workers.Ended, match=says):
        workers.record(tmp_path, counts, 2, ("",), (), limit)
    times = json.loads((tmp_path / workers.TIMES).read_bytes())
    assert [name.partition(".")[0] for name in times][: len(recorded)] == recorded


def test_what_is_there_is_printed_of_a_recording_that_ended_and_is_not_good(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(*_: object) -> None:
        raise workers.Ended("beside-2.json.xz: no time is left for it")

    monkeypatch.setattr(workers, "record", ended)
    monkeypatch.setattr(nvml, "visible_gpus", lambda: [SimpleNamespace(uuid="GPU-a")])
    recording = ["--record", str(folder), "--workers", "2"]
    assert workers.main(["--from", str(folder), "--workers", "2"]) == 0
    assert workers.main(recording) == 1
    said = capsys.readouterr()
    assert "no time is left" in said.err
    assert said.out.count("share 0.540") == 2


def test_where_nothing_was_measured_twice_on_a_gpu_no_spread_is_compared(folder: Path) -> None:
    times = json.loads((folder / workers.TIMES).read_bytes())
    del times["alone-1.json.xz"]
    (folder / workers.TIMES).write_text(json.dumps(times))
    assert "spreads are not compared" in workers.table(folder, 2)[0]


def test_what_has_no_baseline_is_counted_by_itself(folder: Path) -> None:
    """Whether that fails is for --gpuperf-missing to say."""
    for name in ("alone-0", "alone-1", "beside-0", "beside-1"):
        run = run_files.load(folder / f"{name}.json.xz")
        unknown = [
            replace(verdict, outcome=Outcome.NO_BASELINE)
            if verdict.test == run.measurements[0].test
            else verdict
            for verdict in run.verdicts
        ]
        change(folder, name, replace(run, verdicts=tuple(unknown)))
    said, good = workers.table(folder, 2)
    assert "0 measurements that were not judged, and 2 without a baseline\n" in said
    assert good
