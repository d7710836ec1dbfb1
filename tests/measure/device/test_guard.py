"""The state of the device, read through a scripted NVML, and what the guard complains about."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuperf.measure.device import guard
from pytest_gpuperf.model.measurement import Conditions, Reading
from tests.scripted_nvml import Gpu, Instance, Library

Install = Callable[[Gpu], Library]

POWER_CAP, IDLE, APPLICATION_CLOCKS, DISPLAY_CLOCKS = 0x04, 0x01, 0x02, 0x100
FAR = 2**22 + 7
"""A pid that no process here has: Linux gives none above 2**22."""


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Makes a scripted GPU the only one."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def put(gpu: Gpu) -> Library:
        library = Library([gpu])
        monkeypatch.setitem(sys.modules, "pynvml", library)
        return library

    return put


# Reading


def test_a_reading_has_clocks_temperature_and_power(install: Install) -> None:
    library = install(Gpu())
    assert guard.read() == Reading(
        sm_clock_mhz=1980, memory_clock_mhz=3201, temperature_celsius=41, power_watts=118.5
    )
    assert library.open_sessions == 0


def test_what_the_gpu_does_not_offer_stays_empty(install: Install) -> None:
    install(Gpu(clocks={}, celsius=None, milliwatts=None, reasons=None, processes=None))
    assert guard.read() == Reading()


def test_without_the_device_or_nvml_all_is_empty(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(Gpu())
    assert guard.read(1) == Reading()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert guard.read() == Reading()


def test_only_reasons_that_slow_the_device_are_named(install: Install) -> None:
    for bits, reasons in (
        (0x00, ()),
        (IDLE, ()),
        (APPLICATION_CLOCKS | DISPLAY_CLOCKS, ()),
        (0x08, ("hardware slowdown",)),
        (0x10, ("sync boost",)),
        (0x40, ("hardware thermal slowdown",)),
        (0x80, ("hardware power brake",)),
        (IDLE | 0x04 | 0x20, ("software power cap", "software thermal slowdown")),
        (1 << 40, ()),  # a reason of some future driver
    ):
        install(Gpu(reasons=bits))
        assert guard.read().throttle_reasons == reasons, hex(bits)


def test_a_driver_that_knows_the_reasons_by_their_newer_name_is_asked_by_it(
    install: Install,
) -> None:
    library = install(Gpu(reasons=None))
    library.nvmlDeviceGetCurrentClocksEventReasons = lambda _: POWER_CAP  # type: ignore[attr-defined]
    assert guard.read().throttle_reasons == ("software power cap",)


def test_in_a_mig_instance_clocks_are_the_gpus_and_processes_its_own(install: Install) -> None:
    instance = Instance("MIG-1111", processes=[FAR])
    install(Gpu(mig=True, instances=[instance], processes=[FAR, FAR + 1]))
    reading = guard.read()
    assert reading.sm_clock_mhz == 1980
    assert reading.other_processes == (FAR,)


OURS, PARENT = -1, -2
"""Stand for this process and for the one that waits for it."""


def others(
    patch: pytest.MonkeyPatch, install: Install, listed: list[int], context: bool, told: bool
) -> tuple[int, ...]:
    """The other processes of those that the driver lists, with or without a CUDA context of ours.

    `told`: who waits for this process is known.
    """
    pids = {OURS: os.getpid(), PARENT: os.getppid()}
    install(Gpu(processes=[pids.get(pid, pid) for pid in listed]))
    torch = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: context))
    patch.setitem(sys.modules, "torch", torch)
    return guard.read(parent=os.getppid() if told else None).other_processes


def test_other_processes_are_all_but_this_one(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    for listed, context, expected in (
        ([], True, ()),
        ([OURS], True, ()),
        ([OURS, FAR], True, (FAR,)),
        ([FAR + 1, FAR, FAR], False, (FAR, FAR + 1)),
        # A container: pids of another namespace, and one of them is this process.
        ([FAR], True, ()),
        ([FAR, FAR + 1], True, (FAR,)),
        ([1, FAR], True, (1,)),
        ([OURS, PARENT], True, (os.getppid(),)),
    ):
        case = (listed, context)
        assert others(monkeypatch, install, listed, context, told=False) == expected, case


def test_the_process_that_waits_for_this_one_is_no_other(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    for listed, context, expected in (
        ([PARENT], False, ()),
        ([OURS, PARENT], True, ()),
        ([OURS, PARENT, FAR], True, (FAR,)),
        ([PARENT, FAR], False, (FAR,)),
        ([OURS, FAR], True, (FAR,)),
        # A container: two of these pids of another namespace are the parent's and ours.
        ([FAR, FAR + 1, FAR + 2], True, (FAR,)),
        ([1, FAR, FAR + 1], True, (1,)),
        # Before ours has used the GPU, only the parent's can be there.
        ([FAR, FAR + 1], False, (FAR,)),
        ([], True, ()),
    ):
        case = (listed, context)
        assert others(monkeypatch, install, listed, context, told=True) == expected, case


# Complaints


def throttled(*reasons: str, clock: int | None = None) -> Reading:
    return Reading(sm_clock_mhz=clock, throttle_reasons=reasons)


def shared(*pids: int) -> Reading:
    return Reading(other_processes=pids)


CAPPED = "software power cap"
BOOST = "sync boost"
SLOW = "hardware slowdown"
BRAKE = "hardware power brake"


def test_complaints_name_reasons_moments_clocks_and_processes() -> None:
    for before, after, expected in (
        (Reading(), Reading(), ()),
        (Reading(sm_clock_mhz=345), Reading(sm_clock_mhz=1980), ()),
        (
            throttled(clock=1980),
            throttled(CAPPED, clock=1410),
            ("throttled after: software power cap (SM clock 1980 -> 1410 MHz)",),
        ),
        (throttled(BOOST, clock=1410), throttled(), ("throttled before: sync boost",)),
        (
            throttled(CAPPED, BOOST),
            throttled(CAPPED, SLOW),
            (
                "throttled before and after: software power cap",
                "throttled before: sync boost",
                "throttled after: hardware slowdown",
            ),
        ),
        (shared(99), shared(12), ("shared with 2 other processes (pids 12, 99)",)),
        (
            shared(12),
            throttled(BRAKE),
            ("throttled after: hardware power brake", "shared with 1 other process (pid 12)"),
        ),
    ):
        assert guard.complaints(Conditions(before, after)) == expected


# What makes a number worthless


def test_a_power_cap_and_sync_boost_are_endured() -> None:
    for before, after in ((CAPPED, CAPPED), (BOOST, ""), ("", CAPPED), (BOOST, CAPPED)):
        readings = [throttled(*filter(None, [reason])) for reason in (before, after)]
        assert guard.unfit(Conditions(*readings)) == (), (before, after)
    for reason in (SLOW, "software thermal slowdown", "hardware thermal slowdown", BRAKE):
        said = (f"throttled before and after: {reason}",)
        assert guard.unfit(Conditions(throttled(CAPPED, reason), throttled(reason))) == said
    for conditions in (Conditions(shared(12), Reading()), Conditions(Reading(), shared(12))):
        assert guard.unfit(conditions) == ("shared with 1 other process (pid 12)",)


readings = st.builds(
    Reading,
    sm_clock_mhz=st.none() | st.integers(0, 3000),
    throttle_reasons=st.lists(st.sampled_from("abc"), unique=True).map(tuple),
    other_processes=st.lists(st.integers(1, 9), unique=True).map(tuple),
)


@settings(max_examples=30)
@given(readings, readings)
def test_every_reason_and_process_is_named_and_nothing_else(
    before: Reading, after: Reading
) -> None:
    said = guard.complaints(Conditions(before, after))
    throttling = [line for line in said if line.startswith("throttled")]
    sharing = [line for line in said if line.startswith("shared")]
    named = [
        reason for line in throttling for reason in line.split(": ")[1].split(" (")[0].split(", ")
    ]
    assert sorted(named) == sorted({*before.throttle_reasons, *after.throttle_reasons})
    assert len(sharing) == bool(before.other_processes or after.other_processes)
    assert len(said) == len(throttling) + len(sharing)


ENDURED = (CAPPED, BOOST)
any_reasons = st.lists(st.sampled_from([*ENDURED, SLOW, BRAKE]), unique=True).map(tuple)


@settings(max_examples=30)
@given(readings, readings, any_reasons, any_reasons)
def test_the_rest_of_the_complaints_makes_it_unfit(
    before: Reading, after: Reading, first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    def of(reasons: tuple[str, ...], other: tuple[str, ...]) -> Conditions:
        return Conditions(
            replace(before, throttle_reasons=reasons), replace(after, throttle_reasons=other)
        )

    def hard(reasons: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(reason for reason in reasons if reason not in ENDURED)

    assert guard.unfit(of(first, second)) == guard.complaints(of(hard(first), hard(second)))
