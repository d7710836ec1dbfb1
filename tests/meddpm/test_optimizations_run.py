"""The run of all configurations on H200s, judged by baselines made of its other processes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks import recorded
from pytest_gpuperf import __main__
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.storage import baseline_files, run_files
from suites.meddpm.optimizations import CHAIN, OPTIMIZATIONS, sampled_by
from suites.meddpm.tolerances import of_sampling, of_training
from tests import ROOT

TRAINING = "suites/meddpm/test_training.py"
SAMPLING = "suites/meddpm/test_sampling.py"
TESTS = [
    *(f"{TRAINING}::test_training_step[{name}]" for name in OPTIMIZATIONS),
    *(
        f"{SAMPLING}::test_sampling_step[{name}]"
        for name, optimization in OPTIMIZATIONS.items()
        if sampled_by(optimization) is None
    ),
    *(f"{SAMPLING}::test_sampling_chain[{name}]" for name in CHAIN),
]


def of(run: Run, *, newest: bool) -> Run:
    """What the newest process measured, which measured everything, or all others.

    Kernels' tables take time, and nobody asks.
    """
    process = run.measurements[-1].process
    kept = (m for m in run.measurements if (m.process == process) is newest)
    return replace(run, measurements=tuple(replace(m, kernels=None) for m in kept))


def test_every_baseline_is_of_five_processes_and_has_what_is_held() -> None:
    """Time, memory and counts; and the time of kernels where that is held."""
    accepted = baseline_files.load(ROOT / "baselines" / "sm90" / "nvidia-h200" / "meddpm.yaml")
    assert accepted is not None
    for test in TESTS:
        entry = accepted.tests[test]["step"]
        assert len(entry.gpus) >= 5, test
        assert {"cycles", "instructions", "step_time", "peak_memory"} <= {*entry.samples["step"]}
        tolerances = of_training if test.startswith(TRAINING) else of_sampling
        configuration = test.partition("[")[2].removesuffix("]")
        held = "kernel_time" in tolerances(configuration).get("tolerance", {})
        assert ("kernel_time" in entry.samples["step"]) == held, test


def test_a_process_that_did_not_make_the_baselines_passes(tmp_path: Path) -> None:
    run = recorded.run("docs/runs/h200-optimizations.json.xz")
    others, measured = tmp_path / "others.json", tmp_path / "measured.json"
    run_files.save(of(run, newest=False), others)
    run_files.save(of(run, newest=True), measured)
    shutil.copytree(ROOT / "baselines", tmp_path, dirs_exist_ok=True)  # with its tolerances
    accept = ["--baselines", str(tmp_path), "--reason", "a test", "--force", "--yes"]
    assert __main__.main(["update-baseline", str(others), *accept]) == 0
    command = [sys.executable, "-m", "pytest", "--gpu-arch", "sm90", "-q", "-p", "no:cacheprovider"]
    command += [TRAINING, SAMPLING, "--gpuperf-replay", str(measured)]
    command += ["--gpuperf-baselines", str(tmp_path)]
    command += ["--meddpm-data", "synthetic", "--meddpm-size", "16"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
    assert f"\n{len(TESTS)} unchanged on NVIDIA H200 (sm90)" in result.stdout
