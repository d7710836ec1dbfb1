"""A recorded run in place of a device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.measure.collector import Phases, Plan, Work
from pytest_gpuperf.measure.instrument import RecordedRun, Subject
from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.storage import run_files
from tests.corruption import refusal
from tests.examples import A100, H200, OTHER_H200, TEST, measurement, run

ONE = measurement(process="p1", device=H200)
OTHER = measurement(process="p2", device=OTHER_H200)
SAMPLING = measurement(name="sampling")


def recorded(folder: Path, *measurements: Measurement) -> RecordedRun:
    """A run of these measurements, saved and opened."""
    run_files.save(run(measurements), folder / "run.json")
    return RecordedRun(folder / "run.json")


def never() -> None:
    """A step that is not to be run."""
    raise AssertionError("a recorded run needs no step")


def test_all_processes_of_a_test_are_replayed_without_running_the_step(tmp_path: Path) -> None:
    instrument = recorded(tmp_path, ONE, SAMPLING, OTHER)
    assert (instrument.device, instrument.torch_device) == (H200, "cpu")
    subject = Subject(TEST, "step", "meddpm", "", {}, "core")
    work = Work(never, Phases(), never)
    plan = Plan(metrics=())
    assert instrument.measure(subject, work, plan) == (ONE, OTHER)
    assert instrument.measure(replace(subject, name="sampling"), work, plan) == (SAMPLING,)
    instrument.begin()
    instrument.check_window()
    assert instrument.with_kernels(ONE, work, plan) is ONE
    assert instrument.with_timeline(ONE, work) is ONE
    assert instrument.with_window(ONE, work) is ONE


def test_a_test_that_was_not_recorded_is_a_usage_failure(tmp_path: Path) -> None:
    instrument = recorded(tmp_path, ONE)
    subject = Subject("a.py::test", "sampling", "meddpm", "", {}, "core")
    with pytest.raises(UsageFailure, match=r'run\.json has no measurement "sampling" of a\.py::te'):
        instrument.measure(subject, Work(never, Phases()), Plan(metrics=()))


def test_a_run_without_measurements_is_a_usage_failure(tmp_path: Path) -> None:
    with pytest.raises(UsageFailure, match=r"run\.json: this run has no measurements"):
        recorded(tmp_path)


def test_a_run_of_two_kinds_of_device_is_a_usage_failure(tmp_path: Path) -> None:
    with pytest.raises(UsageFailure, match=r"H200 \(sm90\) and on NVIDIA A100.* \(sm80\)"):
        recorded(tmp_path, ONE, measurement(device=A100))


def test_a_damaged_run_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text("{")
    refusal(RecordedRun, file, BadFile)
