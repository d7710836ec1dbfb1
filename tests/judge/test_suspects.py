"""Who is suspected of a change: what else was another thing that night, likeliest first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pytest_gpuperf.judge.suspects import (
    Event,
    Night,
    Surroundings,
    SuspectKind,
    canary_moved,
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


def test_a_clock_makes_no_calls() -> None:
    """Where counts alone moved, what the canary read is no reason; beside times it is one."""
    for times, suspected in ((True, SuspectKind.MACHINE), (False, SuspectKind.CODE)):
        moved = replace(event(0, 20, counts=True), times=times)
        assert first([year(canary=20), year()], [moved]) is suspected


@pytest.mark.parametrize(("size", "suspected"), [(0.0, True), (0.52, True), (0.54, False)])
def test_a_machine_does_no_more_than_some_times_what_the_canary_read(
    size: float, suspected: bool
) -> None:
    """Five times log(0.9) here. Nobody else is suspected: each has its own code every night."""
    devices = [[replace(one, surroundings=PLAIN) for one in year(canary=20)]]
    (said,) = ranked(devices, [replace(event(0, 20), size=size)])
    assert [suspect.kind for suspect in said] == [SuspectKind.MACHINE] * suspected


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


def night(day: int, readings: Mapping[str, float] = READ, **changes: Any) -> Night:
    """A night like all others, but for what is given."""
    return Night(day, replace(PLAIN, **changes), readings)


def driver(version: str) -> dict[str, str]:
    """The usual software with another driver."""
    return {**PLAIN.software, "driver": version}


def read(**factors: float) -> dict[str, float]:
    """The usual readings of the canary, some of them times a factor."""
    return {name: value * factors.get(name, 1) for name, value in READ.items()}


def said(before: Night, now: Night) -> list[tuple[SuspectKind, str]]:
    return [(one.kind, one.what) for one in differences(before, now)]


@pytest.mark.parametrize(
    ("before", "now", "kind", "what"),
    [
        ({"revision": ""}, {}, SuspectKind.CODE, "unknown..r0"),
        ({}, {"revision": ""}, SuspectKind.CODE, "r0..unknown"),
        ({"collector": ""}, {}, SuspectKind.TOOL, "collector none -> cupti"),
        ({}, {"collector": ""}, SuspectKind.TOOL, "collector cupti -> none"),
        ({"gpu": ""}, {}, SuspectKind.GPU, "GPU unknown -> aaaa"),
        ({}, {"gpu": ""}, SuspectKind.GPU, "GPU aaaa -> unknown"),
        (
            {"gpu": ""},
            {"machine": {"vbios": "1"}},
            SuspectKind.GPU_KIND,
            "GPU unknown -> aaaa: vbios 96.00 -> 1",
        ),
        (
            {"software": {"torch": "2.11", "cudnn": "9.1"}},
            {"software": {"torch": "2.12"}},
            SuspectKind.LIBRARIES,
            "torch 2.11 -> 2.12, cudnn 9.1 -> none",
        ),
        ({}, {"machine": {"vbios": "1"}}, SuspectKind.GPU_KIND, "vbios 96.00 -> 1"),
        (
            {"machine": {"vbios": "1", "gpcs": 7}},
            {"machine": {"vbios": "1", "ecc": True}},
            SuspectKind.GPU_KIND,
            "gpcs 7 -> none, ecc none -> True",
        ),
        (
            {},
            {"gpu": "bbbb", "machine": {"vbios": "1"}},
            SuspectKind.GPU_KIND,
            "GPU aaaa -> bbbb: vbios 96.00 -> 1",
        ),
    ],
)
def test_what_is_unknown_of_one_of_two_nights_is_said_of_what_differs(
    before: dict[str, Any], now: dict[str, Any], kind: SuspectKind, what: str
) -> None:
    assert said(night(0, **before), night(1, **now)) == [(kind, what)]


@pytest.mark.parametrize(("revision", "suspected"), [("r0", False), ("r0+dirty", True)])
def test_code_with_changes_that_nobody_committed_is_never_known_to_be_the_same(
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
    assert [one.split(":")[0] for one in others] == ["dram_cycles +5 % (3.8e+06 -> 3.99e+06)"]


def test_all_readings_that_moved_are_said_of_a_machine() -> None:
    ((kind, what),) = said(night(0), night(1, read(l2_cycles=1.1, dram_cycles=1.05)))
    assert kind is SuspectKind.MACHINE
    assert [one.split()[0] for one in what.split("; ")] == ["l2_cycles", "dram_cycles"]


@pytest.mark.parametrize(
    ("before", "now", "moved"),
    [
        ({"l2_cycles": 100.0, "time_share": 1.0}, {"l2_cycles": 200.0}, ["l2_cycles"]),
        ({"l2_cycles": 100.0}, {"l2_cycles": 200.0, "time_share": 0.5}, ["l2_cycles"]),
        ({"l2_cycles": 100.0, "time_share": 0.0}, {"time_share": 1.0}, []),
        ({"l2_cycles": 100.0, "time_share": 1.0}, {"time_share": 0.0}, []),
        ({"time_share": 1.0}, {"time_share": 0.5}, ["time_share"]),
        ({"time_share": 0.5}, {"time_share": 1.0}, ["time_share"]),
        ({"time_share": 0.99}, {"time_share": 1.0}, []),
        ({"time_share": 1.0}, {"time_share": 0.97}, ["time_share"]),
        ({}, {"l2_cycles": 200.0}, []),
        ({"l2_cycles": 100.0}, {}, []),
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


def turned(thing: str, n: int, one: Night) -> Night:
    """The night, with one thing another one than on all nights before."""
    here = one.surroundings
    if thing == "code":
        return replace(one, surroundings=replace(here, revision=f"past{n}"))
    if thing == "driver":
        return replace(one, surroundings=replace(here, software=driver(f"past{n}")))
    if thing == "GPU":
        return replace(one, surroundings=replace(here, gpu=f"past{n}"))
    assert thing == "machine"
    factor = 0.9 if one.readings["sm_clock_mhz"] == READ["sm_clock_mhz"] else 1.0
    return replace(one, readings=read(sm_clock_mhz=factor))


def past(device: int, *turns: tuple[str, int, int]) -> tuple[list[Night], list[Event]]:
    """What a device saw on days of its own: things that alone were others, and what came of it.

    Of each, on how many nights it was another one, and on how many of them levels changed.
    """
    nights, events = [night(-100_000)], []
    for thing, times, changes in turns:
        for n in range(times):
            here = replace(turned(thing, n, nights[-1]), day=nights[-1].day + 1)
            nights.append(here)
            if n < changes:
                events.append(Event(device, len(nights) - 2, len(nights) - 1, frozenset(), None))
    return nights, events


def share(kind: str, devices: list[list[Night]], events: list[Event]) -> float:
    """What the first event has of this kind."""
    return next(one.share for one in ranked(devices, events)[0] if one.kind.value == kind)


def odds(kind: str, devices: list[list[Night]], events: list[Event]) -> float:
    """How many times as likely it is that this did it as that the code did, by that night alone.

    For in the history, which is long, either changed levels every second time.
    """
    nights, before = past(len(devices), ("code", 400, 200), (kind, 400, 200))
    all_of_it = ([*devices, nights], [*events, *before])
    return share(kind, *all_of_it) / share("code", *all_of_it)


BOTH = [night(0, {}), night(1, {}, revision="r1", software=driver("580"))]
"""Two nights of which the second has other code and another driver; no canary was read."""
STEP = Event(0, 0, 1, frozenset({"test"}), None)


def test_without_any_evidence_suspects_are_alike_and_the_code_is_named_first() -> None:
    (suspects,) = ranked([BOTH], [STEP])
    assert [one.kind for one in suspects] == [SuspectKind.CODE, SuspectKind.DRIVER]
    assert [one.share for one in suspects] == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("changes", [1, 3, 10])
def test_what_never_differed_before_is_as_likely_as_what_did_it_every_second_time(
    changes: int,
) -> None:
    """Of either a night is assumed on which levels changed, and one on which they did not."""
    nights, events = past(1, ("code", 2 * changes, changes))
    assert share("code", [BOTH, nights], [STEP, *events]) == pytest.approx(0.5)
    nights, events = past(1, ("code", 2 * changes, changes + 1))
    assert share("code", [BOTH, nights], [STEP, *events]) > 0.5
    nights, events = past(1, ("code", 2 * changes + 1, changes))
    assert share("code", [BOTH, nights], [STEP, *events]) < 0.5


def test_suspects_have_the_odds_that_they_had_on_other_nights() -> None:
    """The code changed levels on one night of ten, which is 1 to 9, and the driver 1 to 1."""
    nights, events = past(1, ("code", 1000, 100), ("driver", 200, 100))
    assert share("code", [BOTH, nights], [STEP, *events]) == pytest.approx(0.1, rel=0.03)


@pytest.mark.parametrize(
    ("tests", "expected"),
    [
        ({"test"}, 0.8 / 0.5),
        ({"other", "test"}, 0.8 / 0.5),
        ({"other"}, 0.2 / 0.5),
        ((), 0.2 / 0.5),
    ],
)
def test_another_device_with_the_same_code_speaks_for_it_by_what_the_same_test_did_there(
    tests: set[str], expected: float
) -> None:
    """Against the driver, with which it has nothing to do: levels change on half of all nights."""
    devices = [BOTH, [night(0), night(1, revision="r1")]]
    events = [STEP, *([Event(1, 0, 1, frozenset(tests), None)] if tests else [])]
    assert 1 / odds("driver", devices, events) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("there", "turns"),
    [
        ([Event(1, 0, 1, STEP.tests, None)], [("driver", 1, 1)]),
        ([], [("code", 5, 5), ("driver", 6, 5)]),
    ],
    ids=["stepped", "stayed"],
)
def test_another_device_says_nothing_where_levels_change_as_often_anyway(
    there: list[Event], turns: list[tuple[str, int, int]]
) -> None:
    """On four nights of five, with the one of each kind that is assumed: so often does the code.

    By the history, which has the night on the other device too, both suspects are alike.
    """
    aside, before = past(2, *turns)
    devices = [BOTH, [night(0), night(1, revision="r1")], aside]
    assert share("code", devices, [STEP, *there, *before]) == pytest.approx(0.5)


@pytest.mark.parametrize("first_day", [1, 2])
def test_a_device_that_has_no_night_before_that_one_says_nothing(first_day: int) -> None:
    """On its first night nothing differs, and on one that it did not measure nobody knows."""
    late = [night(first_day), night(first_day + 1, revision="r1")]
    assert odds("driver", [BOTH, late], [STEP]) == pytest.approx(1, rel=0.02)


def test_a_device_is_no_witness_of_its_own_change() -> None:
    """Else what differs on its last night only would have one for it, and the code one against."""
    nights = [
        night(0, {}),
        night(1, {}, revision="r1"),
        night(2, {}, revision="r2", software=driver("580")),
    ]
    assert odds("driver", [nights], [replace(STEP, night=2)]) == pytest.approx(1, rel=0.02)


def test_where_counts_alone_moved_they_still_speak_and_a_machine_is_hardly_suspected() -> None:
    counted = replace(STEP, counts=True, times=False)
    assert odds("driver", [BOTH], [counted]) == pytest.approx(0.1 / 0.6, rel=0.02)
    nights = [night(0), night(1, read(sm_clock_mhz=0.9), revision="r1")]
    assert odds("machine", [nights], [counted]) == pytest.approx(1e-4 * 0.02 / 0.6, rel=0.03)


@pytest.mark.parametrize(("counts", "expected"), [(None, 1), (False, 0.9 / 0.4), (True, 0.1 / 0.6)])
def test_counts_speak_for_or_against_a_driver_and_where_nobody_counts_they_do_not(
    counts: bool | None, expected: float
) -> None:
    assert odds("driver", [BOTH], [replace(STEP, counts=counts)]) == pytest.approx(
        expected, rel=0.02
    )


@pytest.mark.parametrize(
    ("kind", "readings", "expected"),
    [
        ("driver", READ, 0.8 / 0.97),
        ("driver", read(dram_cycles=1.1), 0.2 / 0.03),
        ("driver", {}, 1),
        ("GPU", READ, 0.5 / 0.97),
        ("GPU", {}, 1),
        ("machine", read(sm_clock_mhz=0.9), 0.98 / 0.03),
    ],
)
def test_the_canary_speaks_for_or_against_who_moves_it(
    kind: str, readings: dict[str, float], expected: float
) -> None:
    """The code moves it by chance only; where it was not read on both nights nobody knows."""
    changes: dict[str, dict[str, Any]] = {
        "driver": {"software": driver("580")},
        "GPU": {"gpu": "bbbb"},
        "machine": {},
    }
    nights = [night(0), night(1, readings, revision="r1", **changes[kind])]
    assert odds(kind, [nights], [STEP]) == pytest.approx(expected, rel=0.03)


def test_what_the_canary_reads_of_the_host_speaks_for_no_gpu_and_no_driver() -> None:
    slow = {**READ, "launch_us": 9.0}
    nights = [
        night(0, {**READ, "launch_us": 3.0}),
        night(1, slow, revision="r1", software=driver("580")),
    ]
    assert odds("driver", [nights], [STEP]) == pytest.approx(0.8 / 0.97, rel=0.02)


def test_a_host_that_is_slower_makes_no_other_kind_of_gpu() -> None:
    """It may be the machine's, for which it speaks no more than for the code."""
    before, now = night(0, {**READ, "launch_us": 3.0}), night(1, {**READ, "launch_us": 5.0})
    assert [kind for kind, _ in said(before, now)] == [SuspectKind.MACHINE]
    other = replace(now, surroundings=replace(PLAIN, gpu="bbbb"))
    assert said(before, other) == [(SuspectKind.GPU, "GPU aaaa -> bbbb")]
    both = replace(now, surroundings=replace(PLAIN, revision="r1"))
    assert odds("machine", [[before, both]], [STEP]) == pytest.approx(0.98 / 0.97, rel=0.02)


def test_what_a_canary_read_on_one_night_only_speaks_for_nobody() -> None:
    before, now = {"l2_cycles": 1.8e6}, {"dram_cycles": 3.8e6}
    nights = [night(0, before), night(1, now, revision="r1", gpu="bbbb")]
    assert odds("GPU", [nights], [STEP]) == pytest.approx(1, rel=0.02)


def test_a_library_whose_version_nobody_knows_is_as_one_that_is_not_there() -> None:
    assert said(night(0, software={**PLAIN.software, "nccl": ""}), night(1)) == []


def test_other_tests_of_that_night_on_another_device_hide_none_of_it() -> None:
    """Those whose workload is another one have an event of their own."""
    devices = [BOTH, [night(0), night(1, revision="r1")]]
    same, other = (Event(1, 0, 1, frozenset({test}), None) for test in ("test", "big"))
    alone, first, last = (
        share("code", devices, [STEP, *there]) for there in ([same], [other, same], [same, other])
    )
    assert first == last > alone > 0.5


@pytest.mark.parametrize("changed", [1, 2])
def test_several_nights_of_another_device_on_that_day_are_all_looked_at(changed: int) -> None:
    there = [night(0, {}), night(1, {}, revision="r1"), night(1, {}, revision="r2")]
    stepped = Event(1, changed - 1, changed, frozenset({"test"}), None)
    assert share("code", [BOTH, there], [STEP, stepped]) > 0.6
    assert share("code", [BOTH, there], [STEP]) < 0.4


def test_readings_of_two_canaries_speak_for_nobody() -> None:
    now = night(1, read(dram_cycles=2), revision="r1", software=driver("580"), canary="sm90-2")
    assert odds("driver", [[night(0), now]], [STEP]) == pytest.approx(1, rel=0.02)


def test_a_fleet_of_hundreds_of_devices_has_suspects_too() -> None:
    """That no other of so many changed is less likely, by any of them, than a number can say."""
    devices = [BOTH] * 600
    (suspects,) = ranked(devices, [STEP])
    assert [one.kind for one in suspects] == [SuspectKind.CODE, SuspectKind.DRIVER]
    assert [one.share for one in suspects] == pytest.approx([0.5, 0.5])
