"""What every suite's claims have to be."""

from __future__ import annotations

from collections.abc import Collection

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.expectation import check_bounds
from suites.claim import Claim


def applies(claim: Claim, architecture: str) -> bool:
    """Whether it is claimed there."""
    return any(architectures.matches(pattern, architecture) for pattern in claim.architectures)


def check(claim: Claim, configurations: Collection[str]) -> None:
    """That it is about what exists, and complete."""
    assert claim.metric in catalogue().metrics
    assert claim.numerator in configurations
    assert claim.denominator in configurations
    assert claim.numerator != claim.denominator
    check_bounds(claim.above, claim.below)
    assert claim.summary
    assert claim.source
    assert claim.architectures
    # A claim is verified only where it is made.
    for architecture in claim.verified:
        assert applies(claim, architectures.validate(architecture))
