"""IPC of kernels, their geometric mean, and of the step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpuperf.analysis import launch_totals
from pytest_gpuperf.catalogue import kernel_families as naming
from tests.analysis.tables import family, kernels, recorded, step, table


def counts(instructions: float, cycles: float) -> dict[str, float]:
    return {"instructions": instructions, "active_cycles": cycles}


# Instructions over cycles: 400 / 200 = 2, 100 / 200 = 0.5, 600 / 200 = 3, 600 / 600 = 1
STEP = table(
    ("conv a", 50.0, counts(400, 200)),
    ("norm a", 10.0, counts(100, 200)),
    ("conv a", 70.0, counts(600, 200)),
    ("copy HtoD", 900.0),
    ("norm b", 30.0, counts(600, 600)),
)


def test_the_geometric_mean_is_over_launches_and_the_step_weighed_by_cycles() -> None:
    ipc = launch_totals.of_kernels(STEP, family)
    assert ipc.step.geometric_mean == pytest.approx((2 * 0.5 * 3 * 1) ** (1 / 4))
    assert ipc.missing == ()
    assert ipc.step.ipc == pytest.approx((400 + 100 + 600 + 600) / (200 + 200 + 200 + 600))
    first, *others = ipc.kernels
    assert (first.name, first.family, first.launches) == ("conv a", "conv", 2)
    assert first.nanoseconds == 120_000
    assert first.ipc == pytest.approx((400 + 600) / (200 + 200))
    assert first.geometric_mean == pytest.approx((2 * 3) ** 0.5)
    assert [other.name for other in others] == ["norm b", "norm a"]  # those that take longest first


def test_without_counts_the_collected_ipc_is_taken() -> None:
    ipc = launch_totals.of_kernels(
        table(("a", 1.0, {"ipc": 2.0}), ("a", 1.0, {"ipc": 0.5})), family
    )
    assert ipc.step.geometric_mean == pytest.approx(1.0)
    assert (ipc.step.ipc, ipc.kernels[0].ipc) == (None, None)
    assert ipc.missing == ("not collected: instructions, active_cycles",)


def test_launches_without_ipc_are_left_out_and_graphs_are_one_kernel_each() -> None:
    ipc = launch_totals.of_kernels(
        table(
            ("a", 1.0, counts(4, 2)),
            ("a", 1.0, {"instructions": 4}),
            ("b", 1.0),
            ("a", 1.0, counts(0, 5)),
            ("a", 1.0, counts(5, 0)),
            ("graph of 9", 1.0, counts(4, 2)),
        ),
        family,
    )
    assert ipc.step.geometric_mean == pytest.approx(2.0)
    assert ipc.step.ipc == pytest.approx(13 / 9)
    assert [(one.name, one.launches) for one in ipc.kernels] == [("a", 1), ("graph of 9", 1)]
    assert ipc.missing == (
        "without 3 of 6 launches, because they have no IPC",
        "without 1 of 6 launches, because their IPC is 0, which has no logarithm",
    )


def test_without_counters_there_is_no_ipc() -> None:
    for rows in ((), (("copy HtoD", 5.0),), (("a", 5.0),)):
        ipc = launch_totals.of_kernels(table(*rows), family)
        assert (ipc.step.geometric_mean, ipc.step.ipc, ipc.kernels) == (None, None, ()), rows
        assert ipc.missing[0] == "not collected: instructions, active_cycles", rows
    ipc = launch_totals.of_kernels(replace(table(("a", 5.0)), mismatch="3 kernels and 4"), family)
    assert ipc.missing[0] == "no kernel has counters, because 3 kernels and 4"


def test_the_step_by_its_own_values_and_what_exists_on_an_architecture() -> None:
    # Operations by their shapes are no hardware counter.
    assert launch_totals.existing(("cycles", "flops"), "sm90") == ("cycles",)
    for values, expected in (
        (counts(300, 200), 1.5),
        ({**counts(300, 200), "ipc": 9.0}, 1.5),
        ({"ipc": 1.25}, 1.25),
        ({"instructions": 300.0}, None),
        (counts(300, 0), None),
        ({}, None),
    ):
        assert launch_totals.of_step(values) == expected, values


# Recorded on an H200


def test_a_recorded_step() -> None:
    ipc = launch_totals.of_kernels(kernels(), naming.family)
    assert ipc.missing == ()
    assert sum(kernel.launches for kernel in ipc.kernels) == 1548
    # Kernels of microseconds have a low IPC, and count as much as the convolutions.
    assert ipc.step.geometric_mean == pytest.approx(0.69, abs=0.01)
    values = step(recorded())
    assert launch_totals.of_step(values) == pytest.approx(values["ipc"], rel=1e-4)
    assert ipc.step.ipc == pytest.approx(values["ipc"], rel=0.01)
