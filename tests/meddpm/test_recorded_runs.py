"""The runs that were recorded on an H200, judged again against its committed baseline."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pytest_gpuperf.model.result import Outcome
from pytest_gpuperf.storage import run_files
from suites.meddpm.optimizations import OPTIMIZATIONS, PAPER
from tests import ROOT


def replay(run: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Judges a recorded run in this checkout. The steps are built, small, and never executed."""
    command = [sys.executable, "-m", "pytest", "--gpu-arch", "sm90"]
    command += ["suites/meddpm/test_training.py"]
    command += ["--gpuperf-replay", str(ROOT / "docs" / "runs" / run), "-p", "no:cacheprovider"]
    command += ["--meddpm-data", "synthetic", "--meddpm-size", "16", *arguments]
    # They were recorded before there were others than the paper's.
    later = (name for name in OPTIMIZATIONS if name not in PAPER)
    step = "suites/meddpm/test_training.py::test_training_step"
    command += [f"--deselect={step}[{name}]" for name in later]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_a_run_that_did_not_make_the_baseline_passes_and_its_claims_hold(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    judged = replay("h200-meddpm.json", "--gpuperf-report", str(report))
    assert judged.returncode == 0, judged.stdout
    # 4 steps, and the claims about them; others' claims need what this run has not
    assert "7 passed, 7 skipped" in judged.stdout
    assert judged.stdout.count("unchanged") == 4 * 3
    assert "expected of cycles: tf32 / baseline below 0.35: 0.1771 (" in judged.stdout
    expected = run_files.load(report).expectations
    assert [entry.outcome for entry in expected] == [Outcome.HOLDS] * 3
    assert all(entry.verified for entry in expected)


def test_tf32_broken_on_purpose_fails_and_says_what_by_how_much_and_which_kernels() -> None:
    """A run in which TF32 had no effect."""
    judged = replay("h200-tf32-broken.json.xz", "-k", "tf32 and not channels")
    assert judged.returncode == 1, judged.stdout
    said = judged.stdout.split("= gpuperf =")[0].splitlines()
    assert "configuration: tf32" in said
    (row,) = (line.split() for line in said if line.startswith("  instructions "))
    change = ["61.606", "G", "519.80", "G", "x8.44"]
    assert row == ["instructions", *change, "0.01", "%", "0.011", "%", "regressed"]
    begin = next(number for number, line in enumerate(said) if line.startswith("kernels: "))
    end = next(number for number, line in enumerate(said) if line.startswith("If the change"))
    assert said[begin] == "kernels: +835 ms (x4.62) in a step, 100 % of it explained:"
    assert said[begin + 1].split() == [
        *("+302", "ms", "36", "%", "sm80_xmma_wgrad", "f32", "32x32x8", "idx")
    ]
    assert "replaced sm90_xmma_wgrad tf32" in said[begin + 2]
    assert end - begin <= 12
