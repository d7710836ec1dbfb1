"""What several launches have together: counts add, rates are recomputed or refused."""

from __future__ import annotations

import pytest

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.measure.ncu import raw_page
from pytest_gpuperf.measure.paper_window import WARPS_ACTIVE, total
from pytest_gpuperf.model.metric import Metric

COUNTERS = [metric for metric in catalogue().metrics.values() if metric.hardware]
COUNTS = [metric.name for metric in COUNTERS if metric.additive]
RECOMPUTED = [
    *("ipc", "active_warps"),
    *("tensor_utilization", "fma_utilization", "int_alu_utilization"),
]
RATES = [m.name for m in COUNTERS if not m.additive and m.name not in RECOMPUTED]


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_is_the_sum_of_the_launches(name: str) -> None:
    assert total(name, [{name: 3.0}, {name: 4.0}, {name: 0.0}]) == 7.0


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_that_a_launch_lacks_is_not_the_sum_of_the_others(name: str) -> None:
    assert total(name, [{name: 3.0}, {}]) == "there is no value of it for 1 of 2 kernels"


@pytest.mark.parametrize("name", RATES)
def test_a_rate_without_its_counts_is_refused(name: str) -> None:
    assert "a rate of single kernels" in str(total(name, [{name: 10.0}, {name: 30.0}]))


@pytest.mark.parametrize("name", [*RATES, *RECOMPUTED])
def test_a_rate_of_one_launch_is_its_own(name: str) -> None:
    assert total(name, [{name: 10.0}]) == 10.0


def test_rates_with_their_counts_are_recomputed() -> None:
    launches = [
        {"instructions": 10.0, "active_cycles": 10.0, WARPS_ACTIVE: 80.0, "fma_utilization": 20.0},
        {"instructions": 50.0, "active_cycles": 30.0, WARPS_ACTIVE: 120.0, "fma_utilization": 60.0},
    ]
    assert total("ipc", launches) == 1.5
    assert total("active_warps", launches) == 5.0
    assert total("fma_utilization", launches) == 50.0


@pytest.mark.parametrize("name", RECOMPUTED)
def test_a_rate_says_which_counts_it_lacks(name: str) -> None:
    said = str(total(name, [{name: 1.0}, {name: 2.0}]))
    assert "sm__cycles_active.sum" in said


@pytest.mark.parametrize("metric", COUNTERS, ids=lambda metric: metric.name)
def test_ncu_has_a_unit_for_every_counter(metric: Metric) -> None:
    written = {"%": "%", "ns": "ns", "bytes": "byte", "cycles": "cycle", "warps/issue": "inst"}
    rates = {"instructions/cycle": "inst/cycle", "warps/cycle": "warp"}
    unit = {**written, **rates}.get(metric.unit, "inst")
    assert raw_page.factor(metric.unit, unit) == 1.0
