"""Who is suspected of a change: what else was another thing that night, likeliest first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpuperf.judge.suspects import (
    Event,
    Night,
    Surroundings,
    SuspectKind,
    differences,
    ranked,
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
NIGHTS = 40


def year(driver: int = -1, machine: int = -1, canary: int = -1) -> list[Night]:
    """Nights of which each has code of its own; the rest is another thing from a night on."""
    nights = []
    for night in range(NIGHTS):
        here = replace(PLAIN, revision=f"r{night}")
        if 0 <= driver <= night:
            here = replace(here, software={**here.software, "driver": "580"})
        readings = dict(READ)
        if 0 <= machine <= night:
            here = replace(here, gpu="bbbb", machine={"vbios": "96.01"})
            readings["dram_cycles"] *= 1.03
        if 0 <= canary <= night:
            readings["sm_clock_mhz"] *= 0.9
        nights.append(Night(night, here, readings))
    return nights


def event(device: int, night: int, counts: bool = False) -> Event:
    return Event(device, night - 1, night, frozenset({"test"}), counts)


def first(devices: list[list[Night]], events: list[Event]) -> SuspectKind:
    """The kind of the first suspect of the first event."""
    return ranked(devices, events)[0][0].kind


def test_code_that_changed_levels_on_every_device_is_suspected() -> None:
    devices = [year(driver=20), year(), year()]
    assert first(devices, [event(n, 20) for n in range(3)]) is SuspectKind.CODE


def test_the_driver_is_suspected_where_only_its_device_changed() -> None:
    assert first([year(driver=20), year(), year()], [event(0, 20)]) is SuspectKind.DRIVER


def test_a_driver_of_all_devices_is_suspected_before_the_code_of_one_night_of_many() -> None:
    devices = [year(driver=20)] * 3
    assert first(devices, [event(n, 20) for n in range(3)]) is SuspectKind.DRIVER


def test_counts_that_moved_speak_for_the_code() -> None:
    devices = [year(driver=20), year(), year()]
    shares = [
        next(s.share for s in ranked(devices, [event(0, 20, counts)])[0] if s.kind.value == "code")
        for counts in (False, True)
    ]
    assert shares[1] > 2 * shares[0]


def test_another_kind_of_gpu_is_told_by_its_facts_and_by_the_canary() -> None:
    (suspect, *_) = ranked([year(machine=20), year()], [event(0, 20)])[0]
    assert suspect.kind is SuspectKind.GPU_KIND
    assert "vbios 96.00 -> 96.01" in suspect.what


def test_the_machine_is_suspected_where_the_canary_moved_on_the_same_gpu() -> None:
    (suspect, *_) = ranked([year(canary=20), year()], [event(0, 20)])[0]
    assert suspect.kind is SuspectKind.MACHINE
    assert suspect.what.startswith("sm_clock_mhz -10 %")


def test_shares_add_up_and_without_a_difference_there_is_no_suspect() -> None:
    (suspects,) = ranked([year(driver=20, canary=20)], [event(0, 20)])
    assert sum(one.share for one in suspects) == pytest.approx(1)
    same = [Night(night, PLAIN, READ) for night in range(NIGHTS)]
    assert ranked([same], [event(0, 20)]) == [()]


@pytest.mark.parametrize(
    ("changes", "kind", "what"),
    [
        ({"revision": "r1"}, SuspectKind.CODE, "r0..r1"),
        ({"software": {"driver": "580"}}, SuspectKind.DRIVER, "driver 570 -> 580"),
        ({"software": {"torch": "2.12"}}, SuspectKind.LIBRARIES, "torch 2.11 -> 2.12"),
        ({"software": {"python": "3.13"}}, SuspectKind.INTERPRETER, "python none -> 3.13"),
        ({"software": {"gpuperf": "1"}}, SuspectKind.TOOL, "gpuperf none -> 1"),
        ({"collector": "ncu"}, SuspectKind.TOOL, "collector cupti -> ncu"),
        ({"gpu": "bbbb"}, SuspectKind.GPU, "GPU aaaa -> bbbb"),
    ],
)
def test_what_differs_has_a_name(changes: dict[str, object], kind: SuspectKind, what: str) -> None:
    if isinstance(software := changes.get("software"), dict):
        changes = {"software": {**PLAIN.software, **software}}
    now = Night(1, replace(PLAIN, **changes), READ)  # type: ignore[arg-type]
    ((suspect),) = differences(Night(0, PLAIN, READ), now)
    assert (suspect.kind, suspect.what) == (kind, what)


def test_nights_whose_tests_worked_on_other_things_are_alike() -> None:
    now = Night(1, replace(PLAIN, workload={"size": 64}), READ)
    assert differences(Night(0, PLAIN, READ), now) == ()
