"""What every suite's claims have to be."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.expectation import Ratio, check_bounds, ratio
from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.model.result import Expectation
from suites.claim import Claim

if TYPE_CHECKING:
    from tests.plugin.projects import Project


def applies(claim: Claim, architecture: str) -> bool:
    """Whether it is claimed there."""
    return any(architectures.matches(pattern, architecture) for pattern in claim.architectures)


def held_against(claim: Claim, measured: Iterable[Measurement]) -> Expectation:
    """What these measurements say of it."""
    sides: dict[str, list[Measurement]] = {claim.numerator: [], claim.denominator: []}
    for one in measured:
        sides.get(one.configuration, []).append(one)
    metric = catalogue().metrics[claim.metric]
    over, under = claim.numerator, claim.denominator
    asked = Ratio(claim.name, "", metric, over, under, claim.above, claim.below)
    return ratio(asked, sides[over], sides[under])


def groups_of(checkout: Project, suite: str) -> dict[str, set[str]]:
    """The suite's tests by what pytest-xdist keeps in one worker; "" for those that are free."""
    items, _ = checkout.pytester.inline_genitems(suite, "--everything")
    groups: dict[str, set[str]] = {}
    for item in items:
        marker = item.get_closest_marker("xdist_group")
        groups.setdefault(marker.args[0] if marker else "", set()).add(item.name)
    return groups


def check_all(claims: Collection[Claim], configurations: Collection[str]) -> None:
    """That each has a name of its own, is about what exists, and complete."""
    assert len({claim.name for claim in claims}) == len(claims)
    for claim in claims:
        _check(claim, configurations)


def _check(claim: Claim, configurations: Collection[str]) -> None:
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
