"""The catalogue of metrics agrees with itself and with what the rest of the package relies on."""

from __future__ import annotations

import re

import pytest

from pytest_gpuperf import arch
from pytest_gpuperf.metrics import catalogue
from pytest_gpuperf.model import Direction, Metric, MetricClass
from pytest_gpuperf.options import METRIC_SETS

METRICS = catalogue().metrics
SETS = catalogue().sets
GPUS = [name for name in arch.ARCHITECTURES if name != arch.CPU]
STALLS = [name for name in METRICS if name.startswith("stall_")]


def pytest_id(metric: Metric) -> str:
    """A metric by its name."""
    return metric.name


every_metric = pytest.mark.parametrize("metric", METRICS.values(), ids=pytest_id)


def test_it_is_read_once() -> None:
    assert catalogue() is catalogue()


def test_the_sets_are_those_that_can_be_asked_for() -> None:
    assert tuple(SETS) == METRIC_SETS


@pytest.mark.parametrize("name", SETS)
def test_a_set_has_counters_only_each_once_in_the_order_of_the_catalogue(name: str) -> None:
    members = catalogue().hardware_set(name)
    assert len(members) == len(set(SETS[name]))
    assert all(metric.hardware for metric in members)
    orders = [catalogue().order(metric.name) for metric in members]
    assert orders == sorted(orders)


def test_the_paper_s_set_has_all_of_the_core_set() -> None:
    assert set(SETS["core"]) <= set(SETS["paper"])


def test_the_core_set_can_fail_a_test() -> None:
    assert {m.name for m in catalogue().hardware_set("core") if m.gated} == {
        "cycles",
        "instructions",
    }


def test_an_unknown_set_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="fastest"):
        catalogue().hardware_set("fastest")


@every_metric
def test_a_metric_is_named_described_and_has_a_unit(metric: Metric) -> None:
    assert METRICS[metric.name] is metric
    assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name)
    assert metric.summary.strip() == metric.summary != ""
    assert not metric.summary.endswith(".")
    assert metric.unit


@every_metric
def test_what_is_gated_has_a_better_direction(metric: Metric) -> None:
    if metric.gated:
        assert metric.direction is not Direction.NEUTRAL


@every_metric
def test_percentages_and_no_others_are_in_percent_and_do_not_add(metric: Metric) -> None:
    assert metric.percentage == (metric.unit == "%")
    if metric.percentage:
        assert metric.metric_class is MetricClass.RATIO


@every_metric
def test_ratios_do_not_add(metric: Metric) -> None:
    assert not (metric.additive and metric.metric_class is MetricClass.RATIO)


@every_metric
def test_a_counter_has_a_name_of_nvidia_s(metric: Metric) -> None:
    pattern = r"(sm|smsp|gpu|l1tex|lts|dram)__[a-z0-9_]+(\.[a-z_]+)+"
    for device, name in metric.hardware.items():
        assert device == "default" or device in GPUS
        assert name is None or re.fullmatch(pattern, name)


@pytest.mark.parametrize("metric", STALLS)
def test_stall_reasons_per_issue_do_not_exist_on_volta(metric: str) -> None:
    assert METRICS[metric].hardware_name("sm70") is None
    assert all(METRICS[metric].hardware_name(name) for name in GPUS if name != "sm70")


def test_all_else_that_is_a_counter_exists_on_every_gpu() -> None:
    counters = [m for m in METRICS.values() if m.hardware and m.name not in STALLS]
    assert STALLS
    assert all(metric.hardware_name(name) for metric in counters for name in GPUS)


def test_an_architecture_may_have_a_name_of_its_own() -> None:
    metric = METRICS["int_alu_utilization"]
    assert metric.hardware_name("sm90") != metric.hardware_name("sm80")
    assert metric.hardware_name("sm120") == metric.hardware_name("sm80")


@pytest.mark.parametrize("metric", ["step_time", "wall_time", "flops", "cpu_cycles"])
def test_what_is_no_counter_has_no_name_of_nvidia_s(metric: str) -> None:
    assert METRICS[metric].hardware_name("sm90") is None
