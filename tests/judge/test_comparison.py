"""One measurement of two runs side by side: the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.comparison import DeviceRelation, Pair, pair
from pytest_gpuperf.model.measurement import Device, Measurement
from pytest_gpuperf.model.result import Verdict
from tests.examples import A100, H200, OTHER_H200, measurement, processes
from tests.kernel_steps import NAMING, table

SURE = ([437.8e6], [438e6], [438.2e6])
NOISY = ([400e6], [438e6], [480e6])


def compared(a: Sequence[Measurement], b: Sequence[Measurement]) -> Pair:
    return pair(tuple(a), tuple(b), catalogue().metrics, NAMING)


def only(a: Sequence[Measurement], b: Sequence[Measurement]) -> Verdict:
    (change,) = compared(a, b).result.verdicts
    return change


def on(device: Device, measurements: Sequence[Measurement]) -> list[Measurement]:
    return [
        replace(one, fingerprint=replace(one.fingerprint, device=device)) for one in measurements
    ]


# Changes


def test_metrics_of_one_side_have_no_change_and_the_step_goes_first() -> None:
    a = [measurement({"ipc": [1.0]}, phases={"forward": {"cycles": [2.0]}})]
    change = compared(a, [measurement({"cycles": [5.0]})]).result.verdicts
    assert [(c.phase, c.metric, c.baseline, c.measured, c.change) for c in change] == [
        ("step", "ipc", 1.0, None, None),
        ("step", "cycles", None, 5.0, None),
        ("forward", "cycles", 2.0, None, None),
    ]


# Intervals


def test_three_processes_of_each_side_make_an_interval_and_fewer_none() -> None:
    doubled = [[2 * value for value in process] for process in SURE]
    change = only(processes("cycles", SURE), processes("cycles", doubled))
    assert change.low is not None
    assert change.high is not None
    assert 0.99 < change.low < 1.0 < change.high < 1.01
    for a, b in ((2, 3), (3, 2), (1, 1)):
        change = only(processes("cycles", SURE[:a]), processes("cycles", SURE[:b]))
        assert change.change == pytest.approx(0, abs=0.01)
        assert (change.low, change.high) == (None, None), (a, b)


def width(change: Verdict) -> float:
    assert change.low is not None
    assert change.high is not None
    return change.high - change.low


def test_the_noise_of_either_side_makes_it_wide() -> None:
    sure, noisy = processes("cycles", SURE), processes("cycles", NOISY)
    assert width(only(sure, sure)) < 0.01
    assert width(only(sure, noisy)) > 0.5
    assert width(only(noisy, sure)) > 0.5


def test_between_gpus_of_one_name_it_is_wider_and_of_two_names_there_is_none() -> None:
    one, other = processes("cycles", SURE), on(OTHER_H200, processes("cycles", SURE))
    assert width(only(one, other)) > 3 * width(only(one, one))
    zeros = processes("layout_copies", [[0.0]] * 3)
    for change in (only(on(A100, one), one), only(zeros, zeros)):
        assert change.change is None or change.change == pytest.approx(0, abs=1e-6)
        assert (change.low, change.high) == (None, None)


def test_processes_that_lack_a_metric_do_not_count_for_it() -> None:
    a = [*processes("cycles", SURE[:2]), measurement({"ipc": [1.0]}, process="p3")]
    assert compared(a, processes("cycles", SURE)).result.verdicts[0].low is None


# What else differs


def test_devices() -> None:
    for a, b, devices in (
        (H200, H200, DeviceRelation.SAME),
        (H200, OTHER_H200, DeviceRelation.OTHER),
        (A100, H200, DeviceRelation.KINDS),
        (replace(H200, identity=""), replace(H200, identity=""), DeviceRelation.SAME),
    ):
        change = compared(on(a, [measurement()]), on(b, [measurement()]))
        assert change.devices is devices, (a, b)


def test_workload_software_and_settings() -> None:
    a = [measurement(settings={"rounds": 5, "cost_s": 20.5, "passes": 1, "seed": 7})]
    b = [
        measurement(
            workload={"size": 64},
            software={"torch": "2.13.0", "cuda": "13.1"},
            settings={"rounds": 3, "cost_s": 4.5, "passes": 2, "seed": 7},
        )
    ]
    assert tuple(compared(a, b).differing) == (
        ("workload", "size", "128", "64"),
        ("software", "torch", "2.12.0", "2.13.0"),
        ("software", "cuda", None, "13.1"),
        ("settings", "rounds", "5", "3"),
        ("settings", "passes", "1", "2"),
    )
    assert tuple(compared(a, a).differing) == ()


def test_all_processes_of_a_side_have_a_say() -> None:
    a = [measurement(software={"torch": t}, process=t) for t in ("2.12.0", "2.13.0")]
    assert tuple(compared(a, a[::-1]).differing) == ()
    assert tuple(compared(a, a[:1]).differing) == (
        ("software", "torch", "2.12.0, 2.13.0", "2.12.0"),
    )


# Kernels


def test_kernels_of_all_processes_that_have_them() -> None:
    a = [replace(m, kernels=table(("add", 100.0))) for m in processes("cycles", SURE)]
    b = [replace(m, kernels=table(("add", 200.0))) for m in processes("cycles", SURE)]
    attribution = compared(a, [*b[:2], replace(b[2], kernels=None)]).result.attribution
    assert attribution is not None
    assert (attribution.baseline_tables, attribution.measured_tables) == (3, 2)
    assert (attribution.before, attribution.after) == (100e3, 200e3)


def test_no_blame_without_kernels_or_where_nobody_asks() -> None:
    one = (replace(measurement(), kernels=table(("add", 100.0))),)
    assert compared(one, [measurement()]).result.attribution is None
    assert pair(one, one, catalogue().metrics, None).result.attribution is None
