"""CPU counters through perf events.

Real counters need a CPU that offers them. The kernel's own task clock takes the same way and exists
in virtual machines; where even that is forbidden, its tests are skipped.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_gpuperf.errors import CountersUnavailable
from pytest_gpuperf.measure.cpu import cpu_collector
from pytest_gpuperf.measure.cpu.cpu_collector import TASK_CLOCK, Event, counting

Refuse = Callable[[int], None]

CPU_NANOSECONDS = 30_000_000


def spin() -> None:
    """Uses 30 ms of CPU time in the calling thread."""
    until = time.thread_time_ns() + CPU_NANOSECONDS
    while time.thread_time_ns() < until:
        pass


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def task_clock() -> None:
    try:
        with counting([TASK_CLOCK]):
            pass
    except CountersUnavailable as why:
        pytest.skip(str(why))


@pytest.mark.usefixtures("task_clock")
class TestTaskClock:
    def test_the_calling_thread_is_counted(self) -> None:
        with counting([TASK_CLOCK]) as counters:
            spin()
            assert counters.read()["task_clock"] >= CPU_NANOSECONDS

    def test_a_thread_that_existed_before_is_counted(self) -> None:
        start = threading.Event()

        def wait_and_spin() -> None:
            start.wait()
            spin()

        thread = threading.Thread(target=wait_and_spin)
        thread.start()
        with counting([TASK_CLOCK]) as counters:
            start.set()
            thread.join()
            assert counters.read()["task_clock"] >= CPU_NANOSECONDS

    def test_a_thread_that_starts_and_ends_meanwhile_is_counted(self) -> None:
        with counting([TASK_CLOCK]) as counters:
            thread = threading.Thread(target=spin)
            thread.start()
            thread.join()
            assert counters.read()["task_clock"] >= CPU_NANOSECONDS

    def test_counts_grow_from_opening_and_waiting_is_not_counted(self) -> None:
        with counting([TASK_CLOCK]) as counters:
            first = counters.read()["task_clock"]
            time.sleep(0.2)
            second = counters.read()["task_clock"]
        assert 0 <= first <= second < 100_000_000

    def test_several_events_are_counted_at_once(self) -> None:
        context_switches = Event("switches", kind=1, config=3)
        with counting([TASK_CLOCK, context_switches]) as counters:
            assert set(counters.read()) == {"task_clock", "switches"}

    def test_descriptors_are_closed(self) -> None:
        before = open_files()
        with pytest.raises(ZeroDivisionError), counting([TASK_CLOCK]):
            _ = 1 / 0
        assert open_files() == before

    def test_descriptors_are_closed_when_a_later_event_does_not_exist(self) -> None:
        before = open_files()
        with (
            pytest.raises(CountersUnavailable),
            counting([TASK_CLOCK, Event("no such event", kind=1, config=999)]),
        ):
            pass
        assert open_files() == before


def test_counts_of_an_event_that_took_turns_are_extrapolated() -> None:
    read_end, write_end = os.pipe()
    # 100 counted in a quarter of the time.
    os.write(write_end, cpu_collector._VALUE.pack(100, 4000, 1000))
    try:
        assert cpu_collector.PerfCounters([(TASK_CLOCK, read_end)]).read() == {"task_clock": 400.0}
    finally:
        os.close(read_end)
        os.close(write_end)


# Why there are no counters


class RefusingLibc:
    """A libc whose every system call fails."""

    def __init__(self, code: int) -> None:
        self.code = code

    def syscall(self, *_: object) -> int:
        ctypes.set_errno(self.code)
        return -1


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    def with_code(code: int) -> None:
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: RefusingLibc(code))

    return with_code


@pytest.mark.skipif(platform.system() != "Linux", reason="perf events are Linux's")
@pytest.mark.parametrize(
    ("code", "reason", "remedy"),
    [
        (errno.EACCES, "perf_event_paranoid is 4", "sysctl kernel.perf_event_paranoid=2"),
        (errno.EPERM, "does not allow cpu cycles", "seccomp"),
        (errno.ENOENT, "no counter of cpu cycles", "virtual PMU"),
        (errno.EOPNOTSUPP, "no counter of cpu cycles", "virtual PMU"),
        (errno.ENOSYS, "no perf events", "CONFIG_PERF_EVENTS"),
        (errno.EMFILE, "too many open files", "ulimit -n"),
        (errno.EINVAL, "Invalid argument", "portable counts"),
    ],
)
def test_a_refusal_says_why_and_what_to_do(
    refuse: Refuse,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    code: int,
    reason: str,
    remedy: str,
) -> None:
    paranoid = tmp_path / "perf_event_paranoid"
    paranoid.write_text("4\n")
    monkeypatch.setattr(cpu_collector, "_PARANOID", paranoid)
    refuse(code)
    with pytest.raises(CountersUnavailable) as why, counting():
        pass
    assert reason in why.value.reason
    assert remedy in why.value.remedy


@pytest.mark.skipif(platform.system() != "Linux", reason="perf events are Linux's")
def test_a_thread_that_ended_meanwhile_is_left_out(refuse: Refuse) -> None:
    refuse(errno.ESRCH)
    with counting() as counters:
        assert counters.read() == {}


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Linux", "mips")])
def test_other_systems_have_none(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(CountersUnavailable, match=f"this is {system} on {machine}"), counting():
        pass
