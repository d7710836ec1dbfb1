"""The claims about the configurations: consistent, and true of the runs recorded on an H200."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import recorded
from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.expectation import ratio
from pytest_gpuperf.model.result import Outcome
from suites.meddpm.claims import CLAIMS
from suites.meddpm.optimizations import OPTIMIZATIONS, PAPER
from tests.claims import applies, check


def test_a_claim_names_what_exists() -> None:
    for claim in CLAIMS:
        check(claim, OPTIMIZATIONS)
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)


def test_every_gpu_has_a_claim_of_tf32_and_of_channels_last_and_a_cpu_has_none() -> None:
    for name in architectures.ARCHITECTURES:
        metrics = {(claim.numerator, claim.metric) for claim in CLAIMS if applies(claim, name)}
        if name == architectures.CPU:
            assert not metrics
            continue
        assert {("tf32", "cycles"), ("channels_last", "cycles")} <= metrics, name
        assert ("tf32", "tensor_utilization") in metrics or name in ("sm70", "sm75")


def test_only_what_somebody_has_seen_is_verified() -> None:
    # The committed runs are of an H200, so nothing else is.
    assert {name for claim in CLAIMS for name in claim.verified} == {"sm90"}


@pytest.mark.parametrize(
    ("run", "configurations"),
    [
        ("h200-meddpm.json", PAPER),
        ("h200-paper.json.xz", PAPER),
        ("h200-optimizations.json.xz", tuple(OPTIMIZATIONS)),
    ],
)
def test_what_is_verified_on_sm90_holds_on_the_recorded_runs(
    run: str, configurations: tuple[str, ...]
) -> None:
    measured = recorded.run(f"docs/runs/{run}").measurements
    for claim in CLAIMS:
        if "sm90" not in claim.verified or not {claim.numerator, claim.denominator} <= {
            *configurations
        }:
            continue
        over, under = (
            [one for one in measured if one.configuration == side]
            for side in (claim.numerator, claim.denominator)
        )
        metric = catalogue().metrics[claim.metric]
        said = ratio(metric, over, under, above=claim.above, below=claim.below)
        # The set "core" does not have it.
        lacking = claim.metric == "tensor_utilization" and run != "h200-paper.json.xz"
        assert said.outcome is (Outcome.UNSUPPORTED if lacking else Outcome.HOLDS), said


@pytest.mark.parametrize("name", ["tf32_takes_fewer_cycles", "tf32_takes_fewer_instructions"])
def test_tf32_that_was_switched_off_breaks_its_claims(name: str) -> None:
    (claim,) = (claim for claim in CLAIMS if claim.name == name)
    over = recorded.run("docs/runs/h200-tf32-broken.json.xz").measurements
    (baseline,) = (
        measurement
        for measurement in recorded.run("docs/runs/h200-meddpm.json").measurements
        if measurement.configuration == "baseline"
    )
    # One process of the baseline was recorded beside it; three alike are enough to say so.
    under = [replace(baseline, process=process) for process in ("p1", "p2", "p3")]
    metric = catalogue().metrics[claim.metric]
    assert ratio(metric, over, under, below=claim.below).outcome is Outcome.BROKEN
