"""On an H200 that the baseline has no process of, by the campaign on both kinds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import unmet, unmet_rates
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.noise import ALIKE, SLOPES
from pytest_gpuperf.judge.tolerance import tolerance_for
from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.model.result import Outcome
from tests import ROOT

CYCLES = catalogue().metrics["cycles"]
Tests = dict[str, dict[str, list[Measurement]]]


@pytest.fixture(scope="module")
def campaign() -> Tests:
    return unmet.load(sorted(unmet.FOLDER.glob("*.json.xz")))


def test_identical_code_is_unchanged_and_the_tolerance_a_third_of_that_without_a_canary(
    campaign: Tests,
) -> None:
    first = next(unmet.rows(campaign, canary=True))
    blind = next(unmet.rows(campaign, canary=False))
    assert (first.loss, first.regressed, first.undecided) == (0.0, 0, 0)
    assert first.tolerance < min(0.006, blind.tolerance / 3)


def test_one_per_cent_is_found_on_every_gpu_that_was_left_out(campaign: Tests) -> None:
    found = {row.loss: (row.regressed, row.trials) for row in unmet.rows(campaign, canary=True)}
    assert found[0.01] == (found[0.01][1],) * 2
    assert found[0.01][1] >= 33


def test_of_a_kind_that_the_baseline_lacks_nothing_is_passed_nor_said_of_the_code(
    campaign: Tests,
) -> None:
    said = unmet.other_kind(campaign)
    assert [*said] == [Outcome.MACHINE]
    assert said.total() >= 64


def test_a_lowered_power_limit_is_the_machine_s(campaign: Tests) -> None:
    said = unmet.power_limit(campaign)
    assert [*said] == [Outcome.MACHINE]
    assert said.total() >= 33


def test_the_constants_of_the_rule_are_the_likeliest(campaign: Tests) -> None:
    dram, l2 = (slope * tolerance_for(CYCLES).between_gpus for slope in SLOPES)
    alike = 100 * ALIKE * tolerance_for(CYCLES).between_gpus
    assert unmet.fit(campaign) == f"slopes {dram:g} and {l2:g}, alike {alike:g} %: of 10 series\n"


def test_runs_are_gathered_by_gpu_and_none_twice(tmp_path: Path) -> None:
    files = sorted(unmet.FOLDER.glob("*.json.xz"))[:3]
    for _ in range(2):
        unmet.gather(files, tmp_path)
    assert unmet.load(sorted(tmp_path.glob("*"))) == unmet.load(files)


def test_simulated_gpus_are_judged_as_often_rightly_as_the_committed_rates_say() -> None:
    """A few of the same trials, each of which is always the same."""
    made = json.loads((ROOT / "docs" / "runs" / "unmet-rates.json").read_text())
    rates = {(row["loss"], row["canary"]): row for row in made}
    assert unmet_rates.TESTS * rates[0.0, True]["regressed"] <= 1e-3 * rates[0.0, True]["trials"]
    assert rates[0.01, True]["at_least"] >= 0.99
    assert rates[0.01, False]["at_most"] <= 0.01
    few = unmet_rates.counted(0.01, range(40))
    assert few[True, Outcome.REGRESSED] >= 38
    assert few[False, Outcome.REGRESSED] == 0
    assert unmet_rates.counted(0.0, range(40))[True, Outcome.UNCHANGED] == 40
