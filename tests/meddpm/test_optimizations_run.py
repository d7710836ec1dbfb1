"""The run of all configurations on H200s, judged by baselines made of its other processes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuperf import cli, runs
from pytest_gpuperf.model import Run
from suites.meddpm.optimizations import OPTIMIZATIONS

ROOT = Path(__file__).resolve().parents[2]
RECORDED = runs.load(ROOT / "docs" / "runs" / "h200-optimizations.json.xz")
TRAINING = "suites/meddpm/test_training.py"
PROCESSES = Counter(measurement.test for measurement in RECORDED.measurements)
NEWEST = RECORDED.measurements[-1].process
"""One that measured everything."""


def of(run: Run, *, newest: bool) -> Run:
    """What that process measured, or all others. Kernels' tables take time, and nobody asks."""
    kept = (m for m in run.measurements if (m.process == NEWEST) is newest)
    return replace(run, measurements=tuple(replace(m, kernels=None) for m in kept))


@pytest.mark.parametrize("name", OPTIMIZATIONS)
def test_every_configuration_was_trained_in_five_processes(name: str) -> None:
    assert PROCESSES[f"{TRAINING}::test_training_step[{name}]"] >= 5


def test_a_process_that_did_not_make_the_baselines_passes(tmp_path: Path) -> None:
    others, measured = tmp_path / "others.json.xz", tmp_path / "measured.json.xz"
    runs.save(of(RECORDED, newest=False), others)
    runs.save(of(RECORDED, newest=True), measured)
    shutil.copytree(ROOT / "baselines", tmp_path, dirs_exist_ok=True)  # with its tolerances
    accepted = ["--baselines", str(tmp_path), "--reason", "a test", "--force", "--yes"]
    assert cli.main(["update-baseline", str(others), *accepted]) == 0
    command = [sys.executable, "-m", "pytest", "--gpu-arch", "sm90", "-q", "-p", "no:cacheprovider"]
    command += [TRAINING, "--gpuperf-replay", str(measured), "--gpuperf-baselines", str(tmp_path)]
    command += ["--meddpm-data", "synthetic", "--meddpm-size", "16"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
    for name in OPTIMIZATIONS:
        assert f"\ntest_training_step[{name}] on NVIDIA H200 (sm90)\n" in result.stdout
