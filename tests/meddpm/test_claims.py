"""The claims about the configurations: consistent, and true of the runs recorded on an H200."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import recorded
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.expectation import ratio
from pytest_gpuperf.model.result import Outcome
from suites.meddpm.claims import CLAIMS
from suites.meddpm.optimizations import OPTIMIZATIONS, PAPER
from tests.claims import check


def test_a_claim_names_what_exists() -> None:
    for claim in CLAIMS:
        check(claim, OPTIMIZATIONS)
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)


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
