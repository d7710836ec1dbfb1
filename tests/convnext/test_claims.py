"""The claims about the ConvNeXt DDPM's configurations are about what the suite measures."""

from __future__ import annotations

import pytest

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.expectation import ratio
from pytest_gpuperf.model.result import Outcome
from pytest_gpuperf.storage import run_files
from suites.claim import Claim
from suites.convnext_ddpm.claims import CLAIMS
from suites.convnext_ddpm.configurations import CHAIN, CONFIGURATIONS, LOADINGS, TRAINING
from tests import ROOT
from tests.claims import applies, check

MEASURED = {
    *CONFIGURATIONS,
    *LOADINGS,
    *(f"{name}_chain" for name in CHAIN),
    *(f"{name}_training" for name in TRAINING),
}
"""The configurations as the suite's tests are marked."""
RECORDED = run_files.load(ROOT / "docs" / "runs" / "h200-convnext.json.xz")
each_claim = pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)


@each_claim
def test_a_claim_names_what_exists(claim: Claim) -> None:
    check(claim, MEASURED)


@each_claim
def test_both_sides_run_where_it_is_claimed(claim: Claim) -> None:
    for side in (claim.numerator, claim.denominator):
        found = CONFIGURATIONS.get(side.removesuffix("_chain")) or LOADINGS[side]
        for name in architectures.ARCHITECTURES:
            assert not (applies(claim, name) and found.unavailable(name))


def test_no_two_claims_have_one_name() -> None:
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)


def test_no_two_measurements_have_one_name() -> None:
    """Or it would not be clear which of them is compared."""
    count = len(CONFIGURATIONS) + len(LOADINGS) + len(CHAIN) + len(TRAINING)
    assert len(MEASURED) == count


@each_claim
def test_verified_is_what_holds_in_the_recorded_run(claim: Claim) -> None:
    """Over all of its processes; that a single one would have passed is not enough."""
    sides = (
        [m for m in RECORDED.measurements if m.configuration == name]
        for name in (claim.numerator, claim.denominator)
    )
    metric = catalogue().metrics[claim.metric]
    found = ratio(metric, *sides, above=claim.above, below=claim.below)
    assert found.outcome is (Outcome.HOLDS if claim.verified else Outcome.INCONCLUSIVE)
    assert claim.verified in ((), ("sm90",))


def test_each_of_the_reports_orders_is_claimed() -> None:
    orders = {(claim.numerator, claim.denominator) for claim in CLAIMS}
    assert orders >= {
        ("resident_chain", "copy_async_chain"),
        ("copy_async_chain", "copy_sync_chain"),
        ("resident_graph_chain", "copy_sync_chain"),
        ("tiled", "naive"),
        ("tiled", "naive_norm"),  # tiled has the norm by warp shuffles
        ("fused", "tiled"),
        ("preallocated_skip", "fused"),
        ("early_start", "load_async"),
    }
