"""The state of the device, read through a scripted NVML, and what the guard complains about."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
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


def holds_cuda_context(monkeypatch: pytest.MonkeyPatch, answer: bool) -> None:
    torch = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: answer))
    monkeypatch.setitem(sys.modules, "torch", torch)


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


def test_without_nvml_all_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert guard.read() == Reading()


def test_without_the_device_all_is_empty(install: Install) -> None:
    install(Gpu())
    assert guard.read(1) == Reading()


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (0x00, ()),
        (IDLE, ()),
        (APPLICATION_CLOCKS | DISPLAY_CLOCKS, ()),
        (0x04, ("software power cap",)),
        (0x08, ("hardware slowdown",)),
        (0x10, ("sync boost",)),
        (0x20, ("software thermal slowdown",)),
        (0x40, ("hardware thermal slowdown",)),
        (0x80, ("hardware power brake",)),
        (IDLE | 0x04 | 0x20, ("software power cap", "software thermal slowdown")),
        (1 << 40, ()),  # a reason of some future driver
    ],
)
def test_only_reasons_that_slow_the_device_are_named(
    install: Install, bits: int, reasons: tuple[str, ...]
) -> None:
    install(Gpu(reasons=bits))
    assert guard.read().throttle_reasons == reasons


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


@pytest.mark.parametrize(
    ("listed", "context", "others"),
    [
        ([], False, ()),
        ([], True, ()),
        (["own"], True, ()),
        (["own", FAR], True, (FAR,)),
        ([FAR], False, (FAR,)),
        ([FAR + 1, FAR, FAR], False, (FAR, FAR + 1)),
        # A container: pids of another namespace, and one of them is this process.
        ([FAR], True, ()),
        ([FAR, FAR + 1], True, (FAR,)),
        ([1, FAR], True, (1,)),
    ],
)
def test_other_processes_are_all_but_this_one(
    install: Install,
    monkeypatch: pytest.MonkeyPatch,
    listed: list[int | str],
    context: bool,
    others: tuple[int, ...],
) -> None:
    install(Gpu(processes=[os.getpid() if pid == "own" else int(pid) for pid in listed]))
    holds_cuda_context(monkeypatch, context)
    assert guard.read().other_processes == others


OURS, PARENT = -1, -2
"""Stand for this process and for the one that waits for it."""


@pytest.mark.parametrize(
    ("listed", "context", "others"),
    [
        ([PARENT], False, ()),
        ([OURS, PARENT], True, ()),
        ([OURS, PARENT, FAR], True, (FAR,)),
        ([PARENT, FAR], False, (FAR,)),
        ([OURS, FAR], True, (FAR,)),
        ([FAR, FAR + 1], True, ()),
        # A container: two of these pids of another namespace are the parent's and ours.
        ([FAR, FAR + 1, FAR + 2], True, (FAR,)),
        ([1, FAR, FAR + 1], True, (1,)),
        # Before ours has used the GPU, only the parent's can be there.
        ([FAR], False, ()),
        ([FAR, FAR + 1], False, (FAR,)),
        ([], True, ()),
    ],
)
def test_the_process_that_waits_for_this_one_is_no_other(
    install: Install,
    monkeypatch: pytest.MonkeyPatch,
    listed: list[int],
    context: bool,
    others: tuple[int, ...],
) -> None:
    pids = {OURS: os.getpid(), PARENT: os.getppid()}
    install(Gpu(processes=[pids.get(pid, pid) for pid in listed]))
    holds_cuda_context(monkeypatch, context)
    assert guard.read(parent=os.getppid()).other_processes == others


def test_without_being_told_the_parent_is_another_process(install: Install) -> None:
    install(Gpu(processes=[os.getpid(), os.getppid()]))
    assert guard.read().other_processes == (os.getppid(),)


# Complaints


def throttled(*reasons: str, clock: int | None = None) -> Reading:
    return Reading(sm_clock_mhz=clock, throttle_reasons=reasons)


def shared(*pids: int) -> Reading:
    return Reading(other_processes=pids)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (Reading(), Reading(), ()),
        (Reading(sm_clock_mhz=345), Reading(sm_clock_mhz=1980), ()),
        (
            throttled(clock=1980),
            throttled("software power cap", clock=1410),
            ("throttled after: software power cap (SM clock 1980 -> 1410 MHz)",),
        ),
        (
            throttled("sync boost", clock=1410),
            throttled(),
            ("throttled before: sync boost",),
        ),
        (
            throttled("software power cap", "sync boost"),
            throttled("software power cap", "hardware slowdown"),
            (
                "throttled before and after: software power cap",
                "throttled before: sync boost",
                "throttled after: hardware slowdown",
            ),
        ),
        (shared(12), shared(12), ("shared with 1 other process (pid 12)",)),
        (shared(99), shared(12), ("shared with 2 other processes (pids 12, 99)",)),
        (
            shared(12),
            throttled("hardware power brake"),
            (
                "throttled after: hardware power brake",
                "shared with 1 other process (pid 12)",
            ),
        ),
    ],
)
def test_complaints(before: Reading, after: Reading, expected: tuple[str, ...]) -> None:
    assert guard.complaints(Conditions(before, after)) == expected


# What makes a number worthless


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (Reading(), Reading(), ()),
        (throttled("software power cap"), throttled("software power cap"), ()),
        (throttled("sync boost"), throttled(), ()),
        (throttled(), throttled("sync boost", "software power cap"), ()),
        (
            throttled("software power cap", clock=1980),
            throttled("software power cap", "hardware slowdown", clock=1410),
            ("throttled after: hardware slowdown (SM clock 1980 -> 1410 MHz)",),
        ),
        *(
            ((throttled(reason), throttled(reason), (f"throttled before and after: {reason}",)))
            for reason in (
                "hardware slowdown",
                "software thermal slowdown",
                "hardware thermal slowdown",
                "hardware power brake",
            )
        ),
        (shared(12), Reading(), ("shared with 1 other process (pid 12)",)),
        (Reading(), shared(12), ("shared with 1 other process (pid 12)",)),
    ],
)
def test_a_power_cap_and_sync_boost_are_endured(
    before: Reading, after: Reading, expected: tuple[str, ...]
) -> None:
    assert guard.unfit(Conditions(before, after)) == expected


readings = st.builds(
    Reading,
    sm_clock_mhz=st.none() | st.integers(0, 3000),
    throttle_reasons=st.lists(st.sampled_from("abc"), unique=True).map(tuple),
    other_processes=st.lists(st.integers(1, 9), unique=True).map(tuple),
)


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


ENDURED = ("software power cap", "sync boost")
any_reasons = st.lists(
    st.sampled_from([*ENDURED, "hardware slowdown", "hardware power brake"]), unique=True
).map(tuple)


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
