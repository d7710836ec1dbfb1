"""Pairs of processes with known changes: simulated ones in place of those that ran on a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import live_pairs
from benchmarks.live_pairs import EFFECTS, SIDES
from benchmarks.pairs import noises, pairs_of
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.stopping import LOOKS
from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.model.metric import MetricClass
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.storage import run_files


def scaled(measurement: Measurement, share: float, of: MetricClass) -> Measurement:
    """The same with so much more of every metric of a class."""
    metrics = catalogue().metrics
    samples = (
        replace(s, values=tuple(value * (1 + share) for value in s.values))
        if metrics[s.metric].metric_class is of
        else s
        for s in measurement.samples
    )
    return replace(measurement, samples=tuple(samples))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Nine rounds, of a GPU that is still."""
    pairs = pairs_of(noises()[0], "identical", "still", np.random.default_rng(1))
    for number, (one, other) in enumerate(pairs):
        sides = {
            "as-is": one,
            "longer": scaled(other, 0.005, MetricClass.CYCLE),
            "again": other,
            "instructions": scaled(one, 0.0005, MetricClass.DETERMINISTIC),
            "longest": scaled(one, 0.01, MetricClass.CYCLE),
        }
        assert {*sides} == {*SIDES}
        for side, measurement in sides.items():
            save(tmp_path / f"{side}-{number}.json.xz", measurement)
    return tmp_path


def save(file: Path, measurement: Measurement) -> None:
    run_files.save(Run(1, "2026-03-01T00:00:00Z", "", (measurement,)), file)


def test_what_is_changed_is_found_and_what_is_not_is_left_alone(folder: Path) -> None:
    for effect in EFFECTS:
        said, looks = live_pairs.trials(folder, effect, 3)
        assert (effect.name, said["right"], said["wrong"]) == (effect.name, 3, 0)
        assert {*looks} <= {*LOOKS}


def test_a_trial_sees_only_what_its_change_is_about(folder: Path) -> None:
    """A kernel more is a launch more, which is exact, and would decide all trials by itself."""
    for file in folder.glob("longer-*"):
        (measurement,) = run_files.load(file).measurements
        save(file, scaled(measurement, 0.05, MetricClass.DETERMINISTIC))
    cycles = next(effect for effect in EFFECTS if effect.after == "longer")
    alone, _ = live_pairs.trials(folder, cycles, 3)
    assert alone == {"right": 3, "regressed": 3}
    nothing, _ = live_pairs.trials(folder, replace(cycles, after="again"), 3)
    assert nothing["regressed"] == 0


def test_a_round_that_went_on_on_another_gpu_is_no_pair(folder: Path) -> None:
    for number in range(8):
        file = folder / f"again-{number}.json.xz"
        (measurement,) = run_files.load(file).measurements
        device = replace(measurement.fingerprint.device, identity="another")
        there = replace(measurement.fingerprint, device=device)
        save(file, replace(measurement, fingerprint=there))
    _, looks = live_pairs.trials(folder, EFFECTS[0], 3)
    assert {*looks} == {1}


def test_with_nothing_measured_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert live_pairs.main(["--from", str(tmp_path)]) == 4
    assert "no round has both sides on one GPU" in capsys.readouterr().err
