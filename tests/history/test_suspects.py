"""What differs between two nights, in the order in which it is listed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pytest_gpuperf.history.suspects import (
    Night,
    Surroundings,
    Suspect,
    SuspectKind,
    canary_moved,
    differences,
)

PLAIN = Surroundings(
    arch="sm90",
    slug="nvidia-h200",
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


def said(before: Night, now: Night) -> list[tuple[SuspectKind, str]]:
    return [(one.kind, one.what) for one in differences(before, now)]


@pytest.mark.parametrize(
    ("before", "now", "kind", "what"),
    [
        ({}, {"revision": "r1"}, SuspectKind.CODE, "r0..r1"),
        ({"revision": ""}, {}, SuspectKind.CODE, "unknown..r0"),
        ({}, {"revision": ""}, SuspectKind.CODE, "r0..unknown"),
        ({}, {"software": {"driver": "580"}}, SuspectKind.DRIVER, "driver 570 -> 580"),
        (
            {},
            {"software": {"torch": "2.12", "cudnn": ""}},
            SuspectKind.LIBRARIES,
            "torch 2.11 -> 2.12, cudnn 9.1 -> none",
        ),
        (
            {"software": {"timm": "0.9"}},
            {"software": {"timm": "1"}},
            SuspectKind.LIBRARIES,
            "timm 0.9 -> 1",
        ),
        ({}, {"software": {"python": "3.13"}}, SuspectKind.INTERPRETER, "python none -> 3.13"),
        ({}, {"software": {"gpuperf": "1"}}, SuspectKind.TOOL, "gpuperf none -> 1"),
        ({}, {"collector": "ncu"}, SuspectKind.TOOL, "collector cupti -> ncu"),
        ({"collector": ""}, {}, SuspectKind.TOOL, "collector none -> cupti"),
        (
            {},
            {"collector": "ncu", "software": {"ncu": "2026"}},
            SuspectKind.TOOL,
            "ncu none -> 2026",
        ),
        ({}, {"gpu": "bbbb"}, SuspectKind.GPU, "GPU aaaa -> bbbb"),
        ({}, {"gpu": ""}, SuspectKind.GPU, "GPU aaaa -> unknown"),
        ({}, {"machine": {"vbios": "1"}}, SuspectKind.GPU_KIND, "vbios 96.00 -> 1"),
        (
            {"machine": {"vbios": "1", "gpcs": 7, "ecc": False, "sm_map": "x"}},
            {"machine": {"vbios": "1", "ecc": True, "sm_map": "y"}},
            SuspectKind.GPU_KIND,
            "ecc False -> True",
        ),
        (
            {},
            {"gpu": "bbbb", "machine": {"vbios": "1"}},
            SuspectKind.GPU_KIND,
            "GPU aaaa -> bbbb: vbios 96.00 -> 1",
        ),
    ],
)
def test_what_differs_has_a_name(
    before: dict[str, Any], now: dict[str, Any], kind: SuspectKind, what: str
) -> None:
    assert said(night(0, **before), night(1, **now)) == [(kind, what)]


def test_what_seldom_differs_is_listed_first_and_the_code_after_it() -> None:
    now = night(
        1,
        revision="r1",
        collector="ncu",
        gpu="bbbb",
        software={"python": "3.13", "torch": "2.12", "driver": "580"},
    )
    listed = [one.kind.value for one in differences(night(0), now)]
    assert listed == ["driver", "libraries", "python or host", "measurement", "code", "GPU"]
    kinds: tuple[tuple[dict[str, Any], dict[str, float], SuspectKind], ...] = (
        ({"gpu": "bbbb", "machine": {"vbios": "1"}}, READ, SuspectKind.GPU_KIND),
        ({}, read(sm_clock_mhz=0.9), SuspectKind.MACHINE),
    )
    for changes, readings, kind in kinds:
        seen = differences(night(0), night(1, readings, revision="r1", **changes))
        assert [one.kind for one in seen] == [kind, SuspectKind.CODE]


def test_a_kind_that_stands_in_the_sentence_is_not_said_twice() -> None:
    for kind, what, sentence in (
        (SuspectKind.GPU_KIND, "GPU aa -> bb: vbios 1 -> 2", "kind of GPU aa -> bb: vbios 1 -> 2"),
        (SuspectKind.GPU_KIND, "vbios 1 -> 2", "kind of GPU vbios 1 -> 2"),
        (SuspectKind.GPU, "GPU aa -> bb", "GPU aa -> bb"),
        (SuspectKind.CODE, "r0..r1", "code r0..r1"),
    ):
        assert str(Suspect(kind, what)) == sentence


def test_nights_whose_tests_worked_on_other_things_are_alike() -> None:
    assert differences(night(0), night(1, workload={"size": 64})) == ()
    # Nor a library that only one of them has kept: older runs kept none.
    assert differences(night(0), night(1, software={"timm": "1"})) == ()


@pytest.mark.parametrize(("revision", "suspected"), [("r0", False), ("r0+dirty", True)])
def test_code_with_changes_that_are_not_committed_is_never_known_to_be_the_same(
    revision: str, suspected: bool
) -> None:
    expected = [(SuspectKind.CODE, f"{revision}..{revision}")] if suspected else []
    assert said(night(0, revision=revision), night(1, revision=revision)) == expected


@pytest.mark.parametrize("gpu", ["aaaa", "bbbb"])
@pytest.mark.parametrize("named", [0, 1])
def test_a_machine_that_one_night_does_not_name_is_not_another_kind(named: int, gpu: str) -> None:
    """Else the first night of a version that writes the facts down was a change of them all."""
    machines = [PLAIN.machine if at == named else {} for at in (0, 1)]
    before, now = night(0, machine=machines[0]), night(1, machine=machines[1], gpu=gpu)
    same = gpu == PLAIN.gpu
    assert said(before, now) == ([] if same else [(SuspectKind.GPU, "GPU aaaa -> bbbb")])


def test_another_gpu_on_which_the_canary_reads_otherwise_is_another_kind_and_says_why() -> None:
    now = night(1, read(l2_cycles=1.1, dram_cycles=1.05), gpu="bbbb")
    ((kind, what),) = said(night(0), now)
    assert kind is SuspectKind.GPU_KIND
    start, *others = what.split("; ")
    assert start.startswith("GPU aaaa -> bbbb: l2_cycles +10 % (1.8e+06 -> 1.98e+06)")
    assert [one.split(" suggests")[0] for one in others] == [
        "dram_cycles +5 % (3.8e+06 -> 3.99e+06)"
    ]


@pytest.mark.parametrize("driver", ["570", "580"])
def test_a_canary_that_moved_on_the_same_gpu_is_the_machine_or_the_driver(driver: str) -> None:
    now = night(1, read(l2_cycles=1.1, dram_cycles=1.05), software={"driver": driver})
    ((kind, what),) = said(night(0), now)
    if driver == "580":
        assert (kind, what) == (SuspectKind.DRIVER, "driver 570 -> 580")
    else:
        assert kind is SuspectKind.MACHINE
        assert [one.split()[0] for one in what.split("; ")] == ["l2_cycles", "dram_cycles"]


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


def test_readings_of_two_canaries_are_no_move() -> None:
    now = night(1, read(l2_cycles=2), canary="sm90-2")
    assert canary_moved(night(0), now) == ()
    assert said(night(0), now) == []
