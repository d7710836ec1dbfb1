"""What differs between two nights, in the order in which it is listed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pytest_gpuperf.history.suspects import (
    Night,
    Surroundings,
    SuspectKind,
    canary_moved,
    differences,
)

PLAIN = Surroundings(
    device="NVIDIA H200",
    gpu="aaaa",
    revision="r0",
    software={"driver": "570", "torch": "2.11", "cudnn": "9.1"},
    machine={"vbios": "96.00"},
    workload={},
    collector="cupti",
    canary="sm90-1",
)
READ = {"l2_cycles": 1.8e6, "dram_cycles": 3.8e6, "sm_clock_mhz": 1980.0}


def night(day: int, readings: Mapping[str, float] = READ, **changes: Any) -> Night:
    """A night like all others, but for what is given; software is added to the usual."""
    if "software" in changes:
        changes["software"] = {**PLAIN.software, **changes["software"]}
    return Night(day, replace(PLAIN, **changes), readings)


def read(**factors: float) -> dict[str, float]:
    """The usual readings of the canary, some of them times a factor."""
    return {name: value * factors.get(name, 1) for name, value in READ.items()}


def said(before: Night, now: Night) -> list[str]:
    return [str(one) for one in differences(before, now)]


@pytest.mark.parametrize(
    ("before", "now", "what"),
    [
        ({}, {"revision": "r1"}, "code r0..r1"),
        ({"revision": ""}, {}, "code unknown..r0"),
        ({}, {"revision": ""}, "code r0..unknown"),
        # What is not committed is never known to be the same.
        ({"revision": "r0+dirty"}, {"revision": "r0+dirty"}, "code r0+dirty..r0+dirty"),
        ({}, {"software": {"driver": "580"}}, "driver 570 -> 580"),
        (
            {},
            {"software": {"torch": "2.12", "cudnn": ""}},
            "software torch 2.11 -> 2.12, cudnn 9.1 -> none",
        ),
        ({"software": {"timm": "0.9"}}, {"software": {"timm": "1"}}, "software timm 0.9 -> 1"),
        ({}, {"software": {"python": "3.13"}}, "software python none -> 3.13"),
        ({}, {"software": {"gpuperf": "1"}}, "software gpuperf none -> 1"),
        ({}, {"collector": "ncu"}, "software collector cupti -> ncu"),
        ({"collector": ""}, {}, "software collector none -> cupti"),
        (
            {},
            {"collector": "ncu", "software": {"ncu": "2026"}},
            "software ncu none -> 2026, collector cupti -> ncu",
        ),
        ({}, {"gpu": "bbbb"}, "GPU aaaa -> bbbb"),
        ({}, {"gpu": ""}, "GPU aaaa -> unknown"),
        ({}, {"machine": {"vbios": "1"}}, "kind of GPU vbios 96.00 -> 1"),
        (
            {"machine": {"vbios": "1", "ecc": False}},
            {"machine": {"vbios": "1", "ecc": True}},
            "kind of GPU ecc False -> True",
        ),
        (
            {},
            {"gpu": "bbbb", "machine": {"vbios": "1"}},
            "kind of GPU aaaa -> bbbb: vbios 96.00 -> 1",
        ),
        # A machine that one night does not name is not another kind.
        ({"machine": {}}, {"gpu": "bbbb"}, "GPU aaaa -> bbbb"),
        ({}, {"gpu": "bbbb", "machine": {}}, "GPU aaaa -> bbbb"),
    ],
)
def test_what_differs_has_a_name(before: dict[str, Any], now: dict[str, Any], what: str) -> None:
    assert said(night(0, **before), night(1, **now)) == [what]


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({}, {"workload": {"size": 64}}),
        # A library that only one of them has kept: older runs kept none.
        ({}, {"software": {"timm": "1"}}),
        ({"machine": {}}, {}),
        ({}, {"machine": {}}),
        ({}, {"readings": read(l2_cycles=2), "canary": "sm90-2"}),
    ],
)
def test_nights_that_are_alike_differ_in_nothing(
    before: dict[str, Any], now: dict[str, Any]
) -> None:
    assert said(night(0, **before), night(1, **now)) == []


def test_what_seldom_differs_is_listed_first_and_the_code_after_it() -> None:
    now = night(
        1,
        revision="r1",
        collector="ncu",
        gpu="bbbb",
        software={"python": "3.13", "torch": "2.12", "driver": "580"},
    )
    listed = [one.kind.value for one in differences(night(0), now)]
    assert listed == ["driver", "software", "code", "GPU"]
    kinds: tuple[tuple[dict[str, Any], dict[str, float], SuspectKind], ...] = (
        ({"gpu": "bbbb", "machine": {"vbios": "1"}}, READ, SuspectKind.GPU_KIND),
        ({}, read(sm_clock_mhz=0.9), SuspectKind.MACHINE),
    )
    for changes, readings, kind in kinds:
        seen = differences(night(0), night(1, readings, revision="r1", **changes))
        assert [one.kind for one in seen] == [kind, SuspectKind.CODE]


def test_another_gpu_on_which_the_canary_reads_otherwise_is_another_kind_and_says_why() -> None:
    now = night(1, read(l2_cycles=1.1, dram_cycles=1.05), gpu="bbbb")
    (what,) = said(night(0), now)
    start, *others = what.split("; ")
    assert start.startswith("kind of GPU aaaa -> bbbb: l2_cycles +10 % (1.8e+06 -> 1.98e+06)")
    assert [one.split(" suggests")[0] for one in others] == [
        "dram_cycles +5 % (3.8e+06 -> 3.99e+06)"
    ]


@pytest.mark.parametrize("driver", ["570", "580"])
def test_a_canary_that_moved_on_the_same_gpu_is_the_machine_or_the_driver(driver: str) -> None:
    now = night(1, read(l2_cycles=1.1, dram_cycles=1.05), software={"driver": driver})
    (what,) = said(night(0), now)
    if driver == "580":
        assert what == "driver 570 -> 580"
    else:
        readings = [one.split()[0] for one in what.removeprefix("machine ").split("; ")]
        assert readings == ["l2_cycles", "dram_cycles"]


@pytest.mark.parametrize(
    ("before", "now", "moved"),
    [
        ({"l2_cycles": 100.0, "time_share": 1.0}, {"l2_cycles": 200.0}, ["l2_cycles"]),
        ({"l2_cycles": 100.0, "time_share": 0.0}, {"time_share": 1.0}, []),
        ({"l2_cycles": 100.0, "time_share": 1.0}, {"time_share": 0.0}, []),
        ({"time_share": 0.5}, {"time_share": 1.0}, ["time_share"]),
        ({"time_share": 0.99}, {"time_share": 1.0}, []),
        ({"time_share": 1.0}, {"time_share": 0.97}, ["time_share"]),
        ({}, {"l2_cycles": 200.0}, []),
    ],
)
def test_only_what_the_canary_read_on_both_nights_can_have_moved(
    before: dict[str, float], now: dict[str, float], moved: list[str]
) -> None:
    """What is 0 was not read: a share of the time or a clock is never none."""
    assert [one.reading for one in canary_moved(night(0, before), night(1, now))] == moved
