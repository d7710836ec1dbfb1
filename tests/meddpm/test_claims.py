"""The claims about the configurations: consistent, and true of the runs recorded on an H200."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.expectation import ratio
from pytest_gpuperf.model.result import Expectation, Outcome
from pytest_gpuperf.storage import run_files
from suites.claim import Claim
from suites.meddpm.claims import CLAIMS
from suites.meddpm.optimizations import OPTIMIZATIONS, PAPER
from tests import ROOT
from tests.claims import applies, check
from tests.meddpm.test_recorded_runs import RUNS, replay

each_claim = pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)


def judged(claim: Claim, run: str) -> Expectation:
    """A claim on the configurations of a committed run."""
    measurements = run_files.load(RUNS / run).measurements
    over, under = (
        [measurement for measurement in measurements if measurement.configuration == side]
        for side in (claim.numerator, claim.denominator)
    )
    return ratio(
        catalogue().metrics[claim.metric], over, under, above=claim.above, below=claim.below
    )


@each_claim
def test_a_claim_names_what_exists(claim: Claim) -> None:
    check(claim, OPTIMIZATIONS)


def test_no_two_claims_have_one_name() -> None:
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)


@pytest.mark.parametrize(
    "name", [name for name in architectures.ARCHITECTURES if name != architectures.CPU]
)
def test_every_gpu_has_a_claim_of_tf32_and_of_channels_last(name: str) -> None:
    metrics = {(claim.numerator, claim.metric) for claim in CLAIMS if applies(claim, name)}
    assert {("tf32", "cycles"), ("channels_last", "cycles")} <= metrics
    assert ("tf32", "tensor_utilization") in metrics or name in ("sm70", "sm75")


def test_a_cpu_has_no_claim() -> None:
    assert not any(applies(claim, architectures.CPU) for claim in CLAIMS)


def test_only_what_somebody_has_seen_is_verified() -> None:
    # The committed runs are of an H200, so nothing else is.
    assert {name for claim in CLAIMS for name in claim.verified} == {"sm90"}


BEYOND = "h200-optimizations.json.xz"
"""The run that has more than the paper's configurations."""


@pytest.mark.parametrize("run", ["h200-meddpm.json", "h200-paper.json.xz", BEYOND])
@pytest.mark.parametrize(
    "claim", [claim for claim in CLAIMS if "sm90" in claim.verified], ids=lambda claim: claim.name
)
def test_what_is_verified_on_sm90_holds_on_the_recorded_runs(claim: Claim, run: str) -> None:
    if run != BEYOND and not {claim.numerator, claim.denominator} <= {*PAPER}:
        pytest.skip(f"{run} has the paper's configurations only")
    found = judged(claim, run)
    if claim.metric == "tensor_utilization" and run != "h200-paper.json.xz":
        assert found.outcome is Outcome.UNSUPPORTED  # the set "core" does not have it
    else:
        assert found.outcome is Outcome.HOLDS, found


def test_a_replay_of_the_recorded_run_judges_them(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    result = replay("h200-meddpm.json", "--gpuperf-report", str(report), "-k", "claim or step")
    assert result.returncode == 0, result.stdout
    found = run_files.load(report).expectations
    assert [entry.outcome for entry in found] == [Outcome.HOLDS] * 3
    assert all(entry.verified for entry in found)
    assert "expected of cycles: tf32 / baseline below 0.35: 0.1771 (" in result.stdout


@pytest.mark.parametrize("name", ["tf32_takes_fewer_cycles", "tf32_takes_fewer_instructions"])
def test_tf32_that_was_switched_off_breaks_its_claims(name: str) -> None:
    (claim,) = (claim for claim in CLAIMS if claim.name == name)
    over = run_files.load(RUNS / "h200-tf32-broken.json.xz").measurements
    (baseline,) = (
        measurement
        for measurement in run_files.load(RUNS / "h200-meddpm.json").measurements
        if measurement.configuration == "baseline"
    )
    # One process of the baseline was recorded beside it; three alike are enough to say so.
    under = [replace(baseline, process=process) for process in ("p1", "p2", "p3")]
    metric = catalogue().metrics[claim.metric]
    assert ratio(metric, over, under, below=claim.below).outcome is Outcome.BROKEN


def test_on_a_cpu_they_are_skipped_with_the_reason() -> None:
    command = [sys.executable, "-m", "pytest", "--gpu-arch", "cpu", "suites/meddpm", "-rs"]
    command += ["-k", "test_claim", "-p", "no:cacheprovider"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
    assert f"{len(CLAIMS)} skipped" in result.stdout
    assert "only on sm80+; this device is cpu" in result.stdout
    assert "expected of" not in result.stdout
