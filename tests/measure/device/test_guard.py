"""The state of the device, read through a scripted NVML, and what the guard complains about."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pytest_gpuperf.measure.device import guard
from pytest_gpuperf.model.measurement import Conditions, Reading
from tests.scripted_nvml import Gpu, Install, Instance, Library

POWER_CAP, IDLE, APPLICATION_CLOCKS, DISPLAY_CLOCKS = 0x04, 0x01, 0x02, 0x100
FAR = 2**22 + 7
"""A pid that no process here has: Linux gives none above 2**22."""


# Reading


def test_a_reading_has_what_the_gpu_offers(install: Install) -> None:
    library = Library([Gpu()])
    install(library)
    assert guard.read() == Reading(
        sm_clock_mhz=1980, memory_clock_mhz=3201, temperature_celsius=41, power_watts=118.5
    )
    assert library.open_sessions == 0
    install(Library([Gpu(clocks={}, celsius=None, milliwatts=None, reasons=None, processes=None)]))
    assert guard.read() == Reading()
    install(None)
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
        install(Library([Gpu(reasons=bits)]))
        assert guard.read().throttle_reasons == reasons, hex(bits)


def test_in_a_mig_instance_clocks_are_the_gpus_and_processes_its_own(install: Install) -> None:
    instance = Instance("MIG-1111", processes=[FAR])
    install(Library([Gpu(mig=True, instances=[instance], processes=[FAR, FAR + 1])]))
    reading = guard.read()
    assert (reading.sm_clock_mhz, reading.other_processes) == (1980, (FAR,))


OURS, PARENT = -1, -2
"""Stand for this process and for the one that waits for it."""


def test_other_processes_are_all_but_this_one_and_who_waits_for_it(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With or without a CUDA context of ours; `told`: who waits for this process is known."""
    pids = {OURS: os.getpid(), PARENT: os.getppid()}
    for told, listed, context, expected in (
        (False, [], True, ()),
        (False, [OURS], True, ()),
        (False, [OURS, FAR], True, (FAR,)),
        (False, [FAR + 1, FAR, FAR], False, (FAR, FAR + 1)),
        (False, [OURS, PARENT], True, (os.getppid(),)),
        # A container: pids of another namespace, and one of them is this process.
        (False, [FAR], True, ()),
        (False, [FAR, FAR + 1], True, (FAR,)),
        (False, [1, FAR], True, (1,)),
        (True, [], True, ()),
        (True, [PARENT], False, ()),
        (True, [OURS, PARENT], True, ()),
        (True, [OURS, PARENT, FAR], True, (FAR,)),
        (True, [PARENT, FAR], False, (FAR,)),
        (True, [OURS, FAR], True, (FAR,)),
        # A container: two of these pids of another namespace are the parent's and ours.
        (True, [FAR, FAR + 1, FAR + 2], True, (FAR,)),
        (True, [1, FAR, FAR + 1], True, (1,)),
        # Before ours has used the GPU, only the parent's can be there.
        (True, [FAR, FAR + 1], False, (FAR,)),
    ):
        install(Library([Gpu(processes=[pids.get(pid, pid) for pid in listed])]))
        cuda = SimpleNamespace(is_initialized=lambda context=context: context)
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
        reading = guard.read(parent=os.getppid() if told else None)
        assert reading.other_processes == expected, (told, listed, context)


def test_a_rank_that_waits_is_no_other_process_of_a_fresh_rank(install: Install) -> None:
    """Both are children of one torchrun. Without ranks such a process is a stranger."""
    waiting = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    try:
        listed = [os.getpid(), waiting[1].pid, FAR]
        install(Library([Gpu(processes=listed)]))
        for rank, others in (("1", (FAR,)), (None, tuple(sorted(listed[1:])))):
            with pytest.MonkeyPatch.context() as patch:
                patch.delenv("RANK", raising=False)
                if rank:
                    patch.setenv("RANK", rank)
                assert guard.read(parent=waiting[0].pid).other_processes == others
    finally:
        for process in waiting:
            process.kill()
            process.wait()


# Complaints


def throttled(*reasons: str, clock: int | None = None) -> Reading:
    return Reading(sm_clock_mhz=clock, throttle_reasons=reasons)


def shared(*pids: int) -> Reading:
    return Reading(other_processes=pids)


CAPPED, BOOST, SLOW = "software power cap", "sync boost", "hardware slowdown"
BRAKE = "hardware power brake"


def test_workers_of_the_same_session_are_no_others(install: Install) -> None:
    """They are children of one process, and wait for each other before they use the GPU."""
    worker = subprocess.Popen(["sleep", "60"])
    try:
        one = guard.Siblings(controller=os.getpid(), beside=1)
        for told, listed, others in (
            (None, [worker.pid, FAR], (worker.pid,)),  # the youngest of another namespace is we
            (one, [worker.pid, FAR], (FAR,)),
            (one, [os.getpid(), worker.pid, FAR], (FAR,)),
            (one._replace(controller=os.getppid()), [os.getpid(), worker.pid], (worker.pid,)),
            # A container: that worker and this one are two of them.
            (one, [FAR, FAR + 1, FAR + 2], (FAR,)),
        ):
            install(Library([Gpu(processes=listed)]))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(guard, "_holds_cuda_context", lambda: True)
                assert guard.read(siblings=told).other_processes == others, listed
    finally:
        worker.kill()
        worker.wait()


def test_complaints_name_reasons_moments_clocks_and_processes() -> None:
    for before, after, expected in (
        (Reading(), Reading(), ()),
        (Reading(sm_clock_mhz=345), Reading(sm_clock_mhz=1980), ()),
        (
            throttled(clock=1980),
            throttled(CAPPED, clock=1410),
            ("throttled at the end: software power cap (SM clock 1980 -> 1410 MHz)",),
        ),
        (throttled(BOOST, clock=1410), throttled(), ("throttled at the beginning: sync boost",)),
        (
            throttled(CAPPED, BOOST),
            throttled(CAPPED, SLOW),
            (
                "throttled at the beginning and the end: software power cap",
                "throttled at the beginning: sync boost",
                "throttled at the end: hardware slowdown",
            ),
        ),
        (shared(99), shared(12), ("shared with 2 other processes (pids 12, 99)",)),
        (
            shared(12),
            throttled(BRAKE),
            ("throttled at the end: hardware power brake", "shared with 1 other process (pid 12)"),
        ),
    ):
        assert guard.complaints(Conditions(before, after)) == expected


def test_a_power_cap_and_sync_boost_are_endured_and_the_rest_makes_it_unfit() -> None:
    for before, after in ((CAPPED, CAPPED), (BOOST, ""), ("", CAPPED), (BOOST, CAPPED)):
        readings = [throttled(*filter(None, [reason])) for reason in (before, after)]
        assert guard.unfit(Conditions(*readings)) == (), (before, after)
    for reason in (SLOW, "software thermal slowdown", "hardware thermal slowdown", BRAKE):
        said = (f"throttled at the beginning and the end: {reason}",)
        assert guard.unfit(Conditions(throttled(CAPPED, reason), throttled(reason))) == said
    for conditions in (Conditions(shared(12), Reading()), Conditions(Reading(), shared(12))):
        assert guard.unfit(conditions) == ("shared with 1 other process (pid 12)",)
