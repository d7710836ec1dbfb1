"""CPU counters of this process through Linux perf events: user space, all of its threads.

One file descriptor per event and thread, since an event follows one thread and those that it starts
later. The interface is documented in perf_event_open(2); libc has no function for it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf.errors import CountersUnavailable

_SYSCALLS = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}
"""The number of perf_event_open, per machine."""

_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
_TASKS = Path("/proc/self/task")

# The first version of struct perf_event_attr: type, size, config, sample_period, sample_type,
# read_format, flags, wakeup_events, bp_type, bp_addr. Every kernel accepts it.
_ATTR = struct.Struct("=IIQQQQQIIQ")
_INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6
_READ_TIMES = 1 | 2
"""read_format: the time that the event was enabled and the time that it was really counted."""
_CLOSE_ON_EXEC = 8
_VALUE = struct.Struct("=QQQ")
"""What a read returns: value, time enabled, time running."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing to count, in the numbers of linux/perf_event.h."""

    name: str
    kind: int
    config: int


CYCLES = Event("cpu_cycles", kind=0, config=0)
INSTRUCTIONS = Event("cpu_instructions", kind=0, config=1)
TASK_CLOCK = Event("task_clock", kind=1, config=1)
"""Nanoseconds on a CPU. Counted by the kernel itself, so it exists in virtual machines too."""


class Counters:
    """Events that are being counted."""

    def __init__(self, descriptors: Sequence[tuple[Event, int]]) -> None:
        self._descriptors = descriptors

    def read(self) -> dict[str, float]:
        """Counts since opening, by event, summed over threads.

        Where the CPU had to take turns between more events than it has counters, counts are
        extrapolated to the whole time.
        """
        totals: dict[str, float] = {}
        for event, descriptor in self._descriptors:
            value, enabled, running = _VALUE.unpack(os.read(descriptor, _VALUE.size))
            share = running / enabled if running else 1.0
            totals[event.name] = totals.get(event.name, 0.0) + value / share
        return totals


@contextmanager
def counting(events: Sequence[Event] = (CYCLES, INSTRUCTIONS)) -> Iterator[Counters]:
    """Counts `events` during the block, in user space, over all threads of this process.

    Threads and child processes that start during the block are included. Raises CountersUnavailable
    with the reason and the remedy where the kernel does not allow or cannot do it.
    """
    number = _syscall_number()
    descriptors: list[tuple[Event, int]] = []
    try:
        # Threads that these start later are included, those that start during the loop perhaps not.
        for thread in sorted(int(task.name) for task in _TASKS.iterdir()):
            for event in events:
                descriptor = _open(number, event, thread)
                if descriptor is not None:
                    descriptors.append((event, descriptor))
        yield Counters(descriptors)
    finally:
        for _, descriptor in descriptors:
            os.close(descriptor)


def _syscall_number() -> int:
    system, machine = platform.system(), platform.machine()
    number = _SYSCALLS.get(machine) if system == "Linux" else None
    if number is None:
        raise CountersUnavailable(
            f"CPU counters are read through Linux perf events, and this is {system} on {machine}",
            "Compare the portable counts instead",
        )
    return number


def _open(number: int, event: Event, thread: int) -> int | None:
    """A descriptor that counts `event` in `thread`, or None if the thread has ended meanwhile."""
    flags = _INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR
    attr = _ATTR.pack(event.kind, _ATTR.size, event.config, 0, 0, _READ_TIMES, flags, 0, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    any_cpu, no_group = -1, -1
    descriptor = libc.syscall(
        ctypes.c_long(number),
        ctypes.c_char_p(attr),
        ctypes.c_int(thread),
        ctypes.c_int(any_cpu),
        ctypes.c_int(no_group),
        ctypes.c_ulong(_CLOSE_ON_EXEC),
    )
    if descriptor >= 0:
        return int(descriptor)
    code = ctypes.get_errno()
    if code == errno.ESRCH:
        return None
    raise _unavailable(event, code)


def _unavailable(event: Event, code: int) -> CountersUnavailable:
    name = event.name.replace("_", " ")
    if code in (errno.EACCES, errno.EPERM):
        return CountersUnavailable(
            f"the kernel does not allow {name} to be counted "
            f"(kernel.perf_event_paranoid is {_paranoid()})",
            "Allow it with `sysctl kernel.perf_event_paranoid=2`; a container also needs a "
            "seccomp profile that permits perf_event_open",
        )
    if code in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
        return CountersUnavailable(
            f"this CPU offers no counter of {name}, as in most virtual machines",
            "Run on the bare machine, or in a virtual machine with a virtual PMU",
        )
    if code == errno.ENOSYS:
        return CountersUnavailable(
            "this kernel, or the sandbox around it, has no perf events",
            "Run on a kernel with CONFIG_PERF_EVENTS",
        )
    if code == errno.EMFILE:
        return CountersUnavailable(
            "too many open files: every thread takes one file per counter",
            "Raise the limit with `ulimit -n`, or use fewer threads (OMP_NUM_THREADS)",
        )
    return CountersUnavailable(
        f"{name} cannot be counted: {os.strerror(code)}", "Compare the portable counts instead"
    )


def _paranoid() -> str:
    try:
        return _PARANOID.read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"
