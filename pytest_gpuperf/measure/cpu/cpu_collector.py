"""The CPU collector: portable counts, wall time and, where the kernel allows it, CPU counters.

The counts (`dispatch.StepCounter`) depend on the step and on PyTorch, not on the machine, so they
can be gated anywhere. Counting costs tens of microseconds per operator: counts, times and CPU
counters come from separate executions.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import platform
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.measure.collector import Collected, Plan, Work, each, samples_of
from pytest_gpuperf.measure.device.fingerprint import cpu_model
from pytest_gpuperf.measure.device.nvml import portable_device
from pytest_gpuperf.measure.execution import Losses
from pytest_gpuperf.measure.trace.activity import checked
from pytest_gpuperf.model.measurement import STEP, Device, Unsupported

if TYPE_CHECKING:
    from pytest_gpuperf.measure.cpu.dispatch import StepCounter


class HostTimes:
    """Wall-clock time of each component, that of components inside it left out."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}
        """Milliseconds, by component, in order of their first appearance."""
        self._open: list[str] = []
        self._since = 0.0

    def enter(self, phase: str) -> None:
        """The time of what it is inside of stands still."""
        self._settle()
        self.times.setdefault(phase, 0.0)
        self._open.append(phase)

    def leave(self, phase: str) -> None:  # noqa: ARG002 -- the innermost is left first
        """That time goes on."""
        self._settle()
        self._open.pop()

    def _settle(self) -> None:
        now = time.perf_counter_ns() / 1e6
        if self._open:
            self.times[self._open[-1]] += now - self._since
        self._since = now


# CPU counters of this process through Linux perf events: user space, all of its threads.
#
# One file descriptor per event and thread, since an event follows one thread and those that it
# starts later. The interface is documented in perf_event_open(2); libc has no function for it.

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


class PerfCounters:
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
def counting(events: Sequence[Event] = (CYCLES, INSTRUCTIONS)) -> Iterator[PerfCounters]:
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
        yield PerfCounters(descriptors)
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


# The CPU collector: portable counts, wall time and, where the kernel allows it, CPU counters.
#
# The counts (`dispatch.StepCounter`) depend on the step and on PyTorch, not on the machine, so they
# can be gated anywhere. Counting costs tens of microseconds per operator: counts, times and CPU
# counters come from separate executions.

_COUNTED_ROUNDS = 2
"""The counts are the same every time; the second round shows it where they are not."""

_CYCLES, _INSTRUCTIONS, _IPC = CYCLES.name, INSTRUCTIONS.name, "cpu_ipc"

_NO_TRACE = "there is no GPU whose activity could be traced"

_Series = dict[tuple[str, str], list[float]]


class CpuCollector:
    """Measures a step on the CPU. Implements `collect.base.Collector`.

    Hardware metrics in the plan are a GPU's and are passed over. Metrics from traces are
    unsupported; where they are asked for, components have their wall time.
    """

    name = "cpu"
    torch_device = "cpu"

    def device(self) -> Device:
        """The portable device: its baselines hold on every machine."""
        return portable_device()

    def software(self) -> dict[str, str]:
        """The model of the processor, which explains times and CPU counters."""
        return {"cpu": cpu_model()}

    def collect(self, work: Work, plan: Plan) -> Collected:
        """Warms up, times, reads CPU counters and counts, each in executions of its own.

        Raises MeasurementError if the step's phases or components differ from one execution to the
        next, UnsoundStep for a loss that is no number or not reproduced, and whatever the step
        raises.
        """
        import torch

        started = time.perf_counter()
        rounds = max(1, min(plan.rounds, _COUNTED_ROUNDS))
        after = plan.repetitions
        losses = Losses(work)
        # At least once: the first execution makes gradients and optimizer state.
        for _ in each(work.progress, "warming up", max(1, plan.warmup), rounds + 2 * after):
            work.reset()
            losses.add(work.step())
        series: _Series = {}
        _count(work, rounds, series, 2 * after)
        timed = each(work.progress, "timing", plan.repetitions, after)
        series[STEP, "wall_time"] = [_wall_time(work) for _ in timed]
        unsupported = tuple(Unsupported(metric.name, _NO_TRACE) for metric in plan.activity)
        components: tuple[str, ...] = ()
        if plan.activity:
            phases = {phase for phase, _ in series}
            times = _component_times(work, plan.repetitions)
            components = checked([list(once) for once in times], phases)
            for name in components:
                series[name, "wall_time"] = [once[name] for once in times]
        try:
            series |= _cpu_counters(work, plan.repetitions)
        except CountersUnavailable as why:
            unsupported += tuple(
                Unsupported(name, str(why)) for name in (_CYCLES, _INSTRUCTIONS, _IPC)
            )
        return Collected(
            samples_of(series),
            unsupported,
            {
                **losses.settings(),
                "threads": torch.get_num_threads(),
                "counted_rounds": rounds,
                "cost_s": round(time.perf_counter() - started, 3),
            },
            components=components,
        )


def _wall_time(work: Work) -> float:
    """Milliseconds of one execution."""
    work.reset()
    started = time.perf_counter_ns()
    work.step()
    return (time.perf_counter_ns() - started) / 1e6


def _component_times(work: Work, repetitions: int) -> list[dict[str, float]]:
    """Milliseconds of each component in so many executions; of one, where there are none."""
    found: list[dict[str, float]] = []
    for _ in each(work.progress, "timing components", repetitions, after=None):
        listener = HostTimes()
        work.reset()
        with work.components.heard_by(listener):
            work.step()
        found.append(listener.times)
        if not any(found):
            break
    return found


def _count(work: Work, rounds: int, series: _Series, after: int) -> None:
    """Appends the portable counts of `rounds` executions to `series`, whole step first.

    `after` executions follow.
    """
    phases: list[str] | None = None
    for _ in each(work.progress, "counting, round", rounds, after):
        counter = _counted(work)
        found = list(counter.phases)
        if phases is not None and found != phases:
            raise MeasurementError(
                f"the step's phases changed from {phases} to {found} between two executions. "
                "Give `measure` a `reset` after which the step does the same work again"
            )
        phases = found
        for phase, counts in {STEP: counter.step, **counter.phases}.items():
            for metric, value in asdict(counts).items():
                series.setdefault((phase, metric), []).append(float(value))
        series.setdefault((STEP, "peak_memory"), []).append(float(counter.memory.peak))


def _counted(work: Work) -> StepCounter:
    """One execution of the step, counted."""
    from pytest_gpuperf.measure.cpu.dispatch import StepCounter

    work.reset()
    counter = StepCounter()
    with _collection_paused(), work.phases.heard_by(counter), counter.watching():
        work.step()
    return counter


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Collects garbage now and not in the block, where it would free tensors at random moments."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _PhaseReader:
    """Sums CPU counters per phase; a `PhaseListener`."""

    def __init__(self, counters: PerfCounters) -> None:
        self._counters = counters
        self._at_start = counters.read()
        self.totals: dict[str, dict[str, float]] = {}

    def enter(self, phase: str) -> None:  # noqa: ARG002
        self._at_start = self._counters.read()

    def leave(self, phase: str) -> None:
        now = self._counters.read()
        totals = self.totals.setdefault(phase, dict.fromkeys(now, 0.0))
        for name, value in now.items():
            totals[name] += value - self._at_start[name]


def _cpu_counters(work: Work, rounds: int) -> _Series:
    """Cycles, instructions and IPC of `rounds` executions. Raises CountersUnavailable."""
    series: _Series = {}
    # Opened after the warm-up, which started the threads that are to be counted.
    with counting() as counters:
        for _ in each(work.progress, "reading CPU counters", rounds):
            _append_cpu_counters(work, counters, series)
    return series


def _append_cpu_counters(work: Work, counters: PerfCounters, series: _Series) -> None:
    work.reset()
    phases, step = _PhaseReader(counters), _PhaseReader(counters)
    with work.phases.heard_by(phases):
        step.enter(STEP)
        work.step()
        step.leave(STEP)
    totals = step.totals[STEP]
    if not totals[_CYCLES]:
        raise CountersUnavailable(
            "the CPU's counters did not run", "End other profilers on this machine"
        )
    for phase, values in {**step.totals, **phases.totals}.items():
        for metric, value in values.items():
            series.setdefault((phase, metric), []).append(value)
    series.setdefault((STEP, _IPC), []).append(totals[_INSTRUCTIONS] / totals[_CYCLES])
