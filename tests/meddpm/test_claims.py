"""The claims about the configurations: consistent, and true of the runs recorded on an H200."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import recorded
from pytest_gpuperf.model.result import Outcome
from suites.meddpm.claims import CLAIMS
from suites.meddpm.optimizations import OPTIMIZATIONS, PAPER
from tests.claims import check_all, held_against


def test_a_claim_names_what_exists() -> None:
    check_all(CLAIMS, OPTIMIZATIONS)


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
        said = held_against(claim, measured)
        # The set "core" does not have it.
        lacking = claim.metric == "tensor_utilization" and run != "h200-paper.json.xz"
        assert said.outcome is (Outcome.UNSUPPORTED if lacking else Outcome.HOLDS), said


@pytest.mark.parametrize("name", ["tf32_takes_fewer_cycles", "tf32_takes_fewer_instructions"])
def test_tf32_that_was_switched_off_breaks_its_claims(name: str) -> None:
    (claim,) = (claim for claim in CLAIMS if claim.name == name)
    broken = recorded.run("docs/runs/h200-tf32-broken.json.xz").measurements
    (baseline,) = (
        measurement
        for measurement in recorded.run("docs/runs/h200-meddpm.json").measurements
        if measurement.configuration == "baseline"
    )
    # One process of the baseline was recorded beside it; three alike are enough to say so.
    under = [replace(baseline, process=process) for process in ("p1", "p2", "p3")]
    assert held_against(claim, [*broken, *under]).outcome is Outcome.BROKEN
