"""The catalogue of metrics agrees with itself and with what the rest of the package relies on."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.metric_catalogue import catalogue, impossible
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.model.metric import Direction, MetricClass
from pytest_gpuperf.model.settings import METRIC_SETS

METRICS = catalogue().metrics
SETS = catalogue().sets
GPUS = [name for name in architectures.ARCHITECTURES if name != architectures.CPU]


def test_it_is_read_once_and_has_the_sets_that_can_be_asked_for() -> None:
    assert catalogue() is catalogue()
    assert tuple(SETS) == METRIC_SETS
    assert not set(SETS) & set(METRICS)
    members = [set(SETS[name]) for name in catalogue().counter_sets]
    assert all(small < large for small, large in pairwise(members))
    counted = {metric.name for metric in METRICS.values() if metric.hardware}
    assert members[-1] == counted | {*SETS["core"]}
    with pytest.raises(KeyError, match="fastest"):
        catalogue().hardware_set("fastest")


def test_a_set_is_of_one_kind_each_metric_once_in_the_order_of_the_catalogue() -> None:
    for name in SETS:
        members = [METRICS[metric] for metric in SETS[name]]
        assert len(members) == len(set(SETS[name])), name
        assert all(bool(metric.hardware) is not metric.traced for metric in members), name
        counted = any(metric.hardware for metric in members)
        assert counted == (name not in ("host", "activity"))
        orders = [[*METRICS].index(metric.name) for metric in members]
        assert orders == sorted(orders), name


PORTABLE = {"copies", "compiled_graphs", "graph_breaks", "recompilations"}


def test_what_comes_from_a_trace_exists_on_every_gpu_and_not_on_a_cpu() -> None:
    for metric in map(METRICS.__getitem__, SETS["activity"]):
        assert all(metric.exists_on(gpu) for gpu in GPUS), metric.name
        assert metric.exists_on(architectures.CPU) == (metric.name in PORTABLE), metric.name
        assert all(metric.hardware_name(gpu) is None for gpu in GPUS), metric.name


def test_of_a_trace_counts_and_the_kernels_time_are_gated() -> None:
    """What else it has depends on how fast the host is."""
    gated = {name: METRICS[name].metric_class for name in SETS["activity"] if METRICS[name].gated}
    assert gated.pop("kernel_time") is MetricClass.CYCLE
    assert {*gated} == {*SETS["host"]} - {"graph_launches"}
    assert {*gated.values()} == {MetricClass.DETERMINISTIC}


COUNTED = tuple(name for name in SETS["core"] if METRICS[name].hardware)
TRACED = tuple(name for name in SETS["core"] if METRICS[name].traced)


def test_sets_and_metrics_are_selected_by_name() -> None:
    for wanted, members in (
        ("core", SETS["core"]),
        ("l2_hit_rate", (*COUNTED, "l2_hit_rate", *TRACED)),
        ("pipe_lsu,l2_hit_rate,cycles", (*COUNTED, "l2_hit_rate", "pipe_lsu", *TRACED)),
        ("l2_hit_rate , core", (*COUNTED, "l2_hit_rate", *TRACED)),
        ("core,cycles,core", SETS["core"]),
        ("core,paper", SETS["paper"]),
        ("activity", (*COUNTED, *SETS["activity"])),
        ("copy_overlap,launches", (*SETS["core"], "copy_overlap")),
    ):
        assert tuple(metric.name for metric in catalogue().selected(wanted)) == members, wanted


def test_what_cannot_be_selected_is_named() -> None:
    for wanted, said in (
        ("papers", '"papers" is neither a set nor a metric. Did you mean "paper"?'),
        (
            "core,l2_hitrate",
            '"l2_hitrate" is neither a set nor a metric. Did you mean "l2_hit_rate"?',
        ),
        ("core,", '"" is neither a set nor a metric.'),
        ("", '"" is neither a set nor a metric.'),
        ("fastest", "Sets are host, core, reference, paper, full"),
        ("core,step_time", '"step_time" is not a hardware counter'),
    ):
        with pytest.raises(UsageFailure) as caught:
            catalogue().selected(wanted)
        assert said in str(caught.value), wanted


def test_the_paper_s_set_has_what_each_figure_shows() -> None:
    for figure, ingredients in (
        ("2, 5 and 6 to 9", "ipc duration cycles instructions sm_throughput l1_throughput"),
        ("4, 7 and 9, by pipe", "pipe_fma pipe_alu pipe_lsu pipe_cbu pipe_uniform"),
        ("4, 7 and 9, by SASS class", "sass_fp32 sass_integer sass_memory sass_control sass_misc"),
        ("10, utilisation", "tensor_utilization fma_utilization int_alu_utilization"),
        ("11 and 12", "l1_hit_rate l2_hit_rate dram_throughput memory_throughput active_warps"),
        ("13, stalls", "stall_long_scoreboard stall_math_pipe_throttle stall_branch_resolving"),
        ("roofline", "sass_ffma sass_hfma sass_dfma tensor_ops_tf32 dram_bytes duration"),
    ):
        assert set(ingredients.split()) <= set(SETS["paper"]), figure


def test_a_metric_is_described_and_what_is_gated_has_a_better_direction() -> None:
    for metric in METRICS.values():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name), metric.name
        assert re.fullmatch(r"\S(.*[^.\s])?", metric.summary), metric.name
        assert metric.unit, metric.name
        assert not (metric.gated and metric.direction is Direction.NEUTRAL), metric.name
        assert metric.percentage == (metric.unit == "%"), metric.name
        # No ratio adds.
        ratio = metric.metric_class is MetricClass.RATIO
        assert ratio or not metric.percentage, metric.name
        assert not (metric.additive and ratio), metric.name


def test_a_counter_has_a_name_of_nvidia_s() -> None:
    for metric in METRICS.values():
        pattern = r"(sm|smsp|gpu|l1tex|lts|dram)__[a-z0-9_]+(\.[a-z_]+)+"
        for device, name in metric.hardware.items():
            assert device == "default" or device in GPUS, metric.name
            assert name is None or re.fullmatch(pattern, name), metric.name


def test_what_tells_where_work_goes_is_reported_and_not_gated() -> None:
    for metric in METRICS.values():
        if metric.name.startswith(("pipe_", "sass_", "tensor_ops_", "thread_")):
            assert metric.additive, metric.name
            assert (metric.direction, metric.gated) == (Direction.NEUTRAL, False), metric.name
            assert metric.metric_class is MetricClass.DETERMINISTIC, metric.name


@pytest.mark.parametrize(
    ("launches", "collectives", "wrong"), [(3, 0, True), (3, 2, True), (3, 3, False), (0, 0, False)]
)
def test_a_step_that_launches_kernels_takes_time_and_one_of_collectives_alone_may_not(
    launches: float, collectives: float, wrong: bool
) -> None:
    series = {"launches": [launches], "collectives": [collectives], "kernel_time": [0.0]}
    said = dict(impossible(STEP, series))
    assert said == (
        {"kernel_time": "0 ns, which is impossible for an executed step"} if wrong else {}
    )
