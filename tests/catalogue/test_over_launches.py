"""What several launches have together: counts add, rates are recomputed or refused."""

from __future__ import annotations

from pytest_gpuperf.catalogue.metric_catalogue import WARPS_ACTIVE, catalogue, over_launches

COUNTERS = [metric for metric in catalogue().metrics.values() if metric.hardware]
COUNTS = [metric.name for metric in COUNTERS if metric.additive]
UTILIZATIONS = ("tensor_utilization", "fma_utilization", "int_alu_utilization")
RECOMPUTED = ("ipc", "active_warps", *UTILIZATIONS)
RATES = [m.name for m in COUNTERS if not m.additive and m.name not in RECOMPUTED]


def test_a_count_is_the_sum_of_the_launches() -> None:
    for name in COUNTS:
        assert over_launches(name, [{name: 3.0}, {name: 4.0}, {name: 0.0}]) == 7.0
        assert over_launches(name, [{name: 3.0}, {}]) == "the value is missing for 1 of 2 kernels"


def test_rates_with_their_counts_are_recomputed() -> None:
    launches = [
        {"instructions": 10.0, "active_cycles": 10.0, WARPS_ACTIVE: 80.0, "fma_utilization": 20.0},
        {"instructions": 50.0, "active_cycles": 30.0, WARPS_ACTIVE: 120.0, "fma_utilization": 60.0},
    ]
    assert over_launches("ipc", launches) == 1.5
    assert over_launches("active_warps", launches) == 5.0
    assert over_launches("fma_utilization", launches) == 50.0


def test_a_rate_of_several_launches_without_its_counts_is_refused() -> None:
    for name in (*RATES, *RECOMPUTED):
        assert over_launches(name, [{name: 10.0}]) == 10.0
        lacks = (
            "sm__cycles_active.sum"
            if name in RECOMPUTED
            else "this rate is known for single kernels"
        )
        assert lacks in str(over_launches(name, [{name: 10.0}, {name: 30.0}]))
