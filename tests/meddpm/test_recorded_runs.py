"""The runs that were recorded on an H200, judged again against its committed baseline."""

from __future__ import annotations

import subprocess
import sys

import pytest

from suites.meddpm.optimizations import OPTIMIZATIONS, PAPER
from tests import ROOT

RUNS = ROOT / "docs" / "runs"


def replay(run: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Judges a recorded run in this checkout. The steps are built, small, and never executed."""
    command = [sys.executable, "-m", "pytest", "--gpu-arch", "sm90"]
    command += ["suites/meddpm/test_training.py"]
    command += ["--gpuperf-replay", str(RUNS / run), "-p", "no:cacheprovider"]
    command += ["--meddpm-data", "synthetic", "--meddpm-size", "16", *arguments]
    # They were recorded before there were others than the paper's.
    later = (name for name in OPTIMIZATIONS if name not in PAPER)
    step = "suites/meddpm/test_training.py::test_training_step"
    command += [f"--deselect={step}[{name}]" for name in later]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_a_run_that_did_not_make_the_baseline_passes() -> None:
    judged = replay("h200-meddpm.json")
    assert judged.returncode == 0, judged.stdout
    # 4 steps, and the claims about them; others' claims need what this run has not
    assert "7 passed, 7 skipped" in judged.stdout
    assert judged.stdout.count("unchanged") == 4 * 3


@pytest.fixture(scope="module")
def broken() -> subprocess.CompletedProcess[str]:
    """A run in which TF32 had no effect, judged."""
    return replay("h200-tf32-broken.json.xz", "-k", "tf32 and not channels")


def test_tf32_broken_on_purpose_fails_and_says_what_and_by_how_much(
    broken: subprocess.CompletedProcess[str],
) -> None:
    assert broken.returncode == 1, broken.stdout
    assert "configuration: tf32" in broken.stdout
    (row,) = (
        line.split()
        for line in broken.stdout.split("= gpuperf =")[0].splitlines()
        if line.startswith("  instructions ")
    )
    change = ["61.606", "G", "519.80", "G", "x8.44"]
    assert row == ["instructions", *change, "0.01", "%", "0.011", "%", "regressed"]


def test_its_message_ends_with_the_kernels_that_did_it(
    broken: subprocess.CompletedProcess[str],
) -> None:
    said = broken.stdout.split("= gpuperf =")[0].splitlines()
    begin = next(number for number, line in enumerate(said) if line.startswith("kernels: "))
    end = next(number for number, line in enumerate(said) if line.startswith("If the change"))
    assert said[begin] == "kernels: +835 ms (x4.62) in a step, 100 % of it explained:"
    assert said[begin + 1].split() == [
        *("+302", "ms", "36", "%", "sm80_xmma_wgrad", "f32", "32x32x8", "idx")
    ]
    assert "replaced sm90_xmma_wgrad tf32" in said[begin + 2]
    assert end - begin <= 12


def test_it_is_a_run_of_sm90_whatever_is_asked_for() -> None:
    judged = replay("h200-meddpm.json", "--gpu-arch", "sm80")
    assert judged.returncode == 4
    assert "sm80" in judged.stderr
    assert "NVIDIA H200 (sm90)" in judged.stderr
