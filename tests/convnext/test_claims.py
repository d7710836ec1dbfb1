"""The claims about the ConvNeXt DDPM's configurations are about what the suite measures."""

from __future__ import annotations

import pytest

from pytest_gpuperf import arch
from suites.claim import Claim
from suites.convnext_ddpm.claims import CLAIMS
from suites.convnext_ddpm.configurations import CHAIN, CONFIGURATIONS, LOADINGS, TRAINING
from tests.claims import applies, check

MEASURED = {
    *CONFIGURATIONS,
    *LOADINGS,
    *(f"{name}_chain" for name in CHAIN),
    *(f"{name}_training" for name in TRAINING),
}
"""The configurations as the suite's tests are marked."""
each_claim = pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)


@each_claim
def test_a_claim_names_what_exists(claim: Claim) -> None:
    check(claim, MEASURED)


@each_claim
def test_both_sides_run_where_it_is_claimed(claim: Claim) -> None:
    for side in (claim.numerator, claim.denominator):
        found = CONFIGURATIONS.get(side.removesuffix("_chain")) or LOADINGS[side]
        for name in arch.ARCHITECTURES:
            assert not (applies(claim, name) and found.unavailable(name))


def test_no_two_claims_have_one_name() -> None:
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)


def test_no_two_measurements_have_one_name() -> None:
    """Or it would not be clear which of them is compared."""
    count = len(CONFIGURATIONS) + len(LOADINGS) + len(CHAIN) + len(TRAINING)
    assert len(MEASURED) == count


def test_nobody_has_seen_them_yet() -> None:
    assert not any(claim.verified for claim in CLAIMS)


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
