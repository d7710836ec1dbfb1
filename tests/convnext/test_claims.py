"""The claims about the ConvNeXt DDPM's configurations are about what the suite measures."""

from __future__ import annotations

import pytest

from benchmarks import recorded
from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.model.result import Outcome
from suites.convnext_ddpm.claims import CLAIMS
from suites.convnext_ddpm.configurations import CHAIN, CONFIGURATIONS, LOADINGS, TRAINING
from tests.claims import applies, check_all, groups_of, held_against
from tests.plugin.projects import Project

MEASURED = {
    *CONFIGURATIONS,
    *LOADINGS,
    *(f"{name}_chain" for name in CHAIN),
    *(f"{name}_training" for name in TRAINING),
}
"""The configurations as the suite's tests are marked."""


def test_a_claim_names_what_exists_and_both_sides_run_where_it_is_claimed() -> None:
    check_all(CLAIMS, MEASURED)
    for claim in CLAIMS:
        for side in (claim.numerator, claim.denominator):
            one = CONFIGURATIONS.get(side.removesuffix("_chain")) or LOADINGS[side]
            for name in architectures.ARCHITECTURES:
                assert not (applies(claim, name) and one.unavailable(name)), claim.name


def test_no_two_measurements_have_one_name() -> None:
    """Or it would not be clear which of them is compared."""
    count = len(CONFIGURATIONS) + len(LOADINGS) + len(CHAIN) + len(TRAINING)
    assert len(MEASURED) == count


def test_verified_is_what_holds_in_the_recorded_run() -> None:
    """Over all of its processes; that a single one would have passed is not enough."""
    measured = recorded.run("docs/runs/h200-convnext.json.xz").measurements
    for claim in CLAIMS:
        said = held_against(claim, measured)
        assert said.outcome is (Outcome.HOLDS if claim.verified else Outcome.INCONCLUSIVE), said
        assert claim.verified in ((), ("sm90",))


def test_the_suites_tests_of_one_claim_are_a_group(checkout: Project) -> None:
    groups = groups_of(checkout, "suites/convnext_ddpm")
    assert groups["convnext_ddpm: early_start"] >= {
        *("test_loading[load_async]", "test_loading[load_sync]", "test_loading[early_start]"),
        "test_claim[an_asynchronous_load_is_faster_than_a_synchronous_one]",
    }
    assert not any(name.startswith("test_claim") for name in groups[""])


@pytest.mark.parametrize(
    ("asked", "chains"),
    [
        ((), False),
        (("-k", "not naive"), False),
        (("-k", " not naive and  not tiled"), False),
        (("-k", "not (naive or tiled)"), False),
        (("-m", "not gpus"), False),
        (("-k", "not naive", "-m", "gpu or beyond"), True),
        (("-k", "graph"), True),
        (("-k", "graph and not naive"), True),
        (("-k", "not naive or graph"), True),
        (("-k", "not (naive) or (graph)"), True),
        (("--everything",), True),
    ],
)
def test_what_only_leaves_tests_out_asks_for_no_more_of_the_suite(
    checkout: Project, asked: tuple[str, ...], chains: bool
) -> None:
    _, heard = checkout.pytester.inline_genitems("suites/convnext_ddpm", *asked)
    names = {item.name for item in heard.getcall("pytest_collection_finish").session.items}
    assert ("test_chain[graph]" in names) is chains
    assert ("test_time_step[graph]" in names) or "-m" in asked
