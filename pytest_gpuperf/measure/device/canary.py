"""The canary: fixed work before and after a measurement, which tells the machine from the code.

If a step is slower and the canary is not, the code is slower. The kernels are machine code per
architecture (`canary.cu`, compiled by `script/canary`). So updates of torch, NVRTC or the driver's
compiler do not change them. They run in the primary context, which torch uses too. Their memory is
not torch's, and is freed. On an H200 a pass takes about 70 ms, and its queue 17 kernels of 1.09 ms.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, median

from pytest_gpuperf.errors import CountersUnavailable, GpuperfError, MeasurementError
from pytest_gpuperf.measure.device import driver
from pytest_gpuperf.measure.device.driver import Argument, Driver
from pytest_gpuperf.model.measurement import Canary

SOURCE = Path(__file__).with_name("canary.cu")
CUBINS = SOURCE.with_name("cubins")

_REPEATS = 7
"""Repeats of each kernel, after a warm-up. On two H200s such kernels repeated within 0.001 %
(arithmetic), 0.01 % (tensor) and 0.2 % (memory)."""
_THREADS = 1024
_STAMP = struct.Struct("<5Q")
"""The stamp of one block: first and last cycle, first and last ns, SM."""
_CYCLES, _NS = 0, 2
"""The positions of the first of both in a stamp."""
_DRAM_BYTES = 2**29
"""512 MiB: eight times the L2 of an H200, which has little of it left when its turn comes again."""
_L2_SHARE, _LEAST_L2_BYTES = 0.55, 2**18
"""The largest power of two within this share of the L2: 32 MiB of 60 on an H200."""
_L2_PLACES = 16
"""Places in the L2, since readings depend on the address. On an H200, 3,000 readings agreed to 0.1
% in one buffer. In 16 buffers allocated in turn they were up to 0.7 % apart, which 16 places in one
buffer do not average out. Between GPUs they differ by 2.8 %."""
_FACTOR = 1.0001
_ARITHMETIC = (ctypes.c_float(_FACTOR),)
_WORD = 0x5BD1E995
_LAUNCHES, _BATCHES = 200, 5
"""The driver queues 1024 launches before it waits."""
_QUEUED = 16
"""Kernels of 1 ms on an H200, where processes take turns of about 2 ms."""
_HASHED_BYTES, _HASHES = 2**19, 12
_WORK = (
    *(_REPEATS, _THREADS, _DRAM_BYTES, _L2_SHARE, _L2_PLACES, _FACTOR, _WORD),
    *(_LAUNCHES, _BATCHES, _HASHED_BYTES, _HASHES),
)
"""Beside the machine code, what readings depend on: another amount of work is another canary."""


def read(arch: str) -> Canary:
    """Reads the canary on the current machine, whose GPU is of this architecture.

    Raises nothing: missing readings are left out, with the reason in `obstacle`.
    """
    try:
        image = machine_code(arch)
        cuda = driver.load()
        with cuda.primary_context(), cuda.module(image) as module:
            return _CanaryReading(cuda, module).canary(code(arch))
    except CountersUnavailable as error:
        return Canary(obstacle=error.reason)
    except GpuperfError as error:
        return Canary(obstacle=str(error))


@cache
def machine_code(arch: str) -> bytes:
    """The kernels for this architecture. Raises MeasurementError where there are none."""
    try:
        return (CUBINS / f"{arch}.cubin").read_bytes()
    except OSError:
        raise MeasurementError(f"gpuperf has no reference kernels (canary) for {arch}") from None


@cache
def code(arch: str) -> str:
    """The name of these kernels with their work: "sm90-" and twelve hexadecimal digits."""
    work = repr(_WORK).encode()
    return f"{arch}-{hashlib.sha256(machine_code(arch) + work).hexdigest()[:12]}"


class _CanaryReading:
    """One pass of all readings, in the current context."""

    def __init__(self, cuda: Driver, module: int) -> None:
        self._cuda = cuda
        self._module = module
        self._sms = cuda.attribute(driver.SM_COUNT)
        self._shared_bytes = cuda.attribute(driver.SHARED_BYTES_OF_A_BLOCK)
        # One more than blocks, for results that are never kept.
        self._stamps_bytes = _STAMP.size * (self._sms + 1)
        self._readings: dict[str, float] = {}
        self._spreads: dict[str, float] = {}

    def canary(self, name: str) -> Canary:
        """All available readings, and the reasons for missing ones."""
        computing = (self._arithmetic, self._tensor, self._memory)
        every = (*computing, self._queue, self._launches, self._host)
        said = "; ".join(filter(None, map(self._obstacle, every)))
        return Canary(name, self._readings, self._spreads, said)

    @staticmethod
    def _obstacle(reading: Callable[[], None]) -> str:
        """Why it failed: the others may not."""
        try:
            reading()
        except MeasurementError as error:
            return f"{reading.__name__.strip('_')}: {error}"
        except ZeroDivisionError:
            # The timer of some GPUs ticks once in a ms.
            return f"{reading.__name__.strip('_')}: the GPU's clock measured 0"
        return ""

    def _arithmetic(self) -> None:
        self._computed("arithmetic", "sm_clock_mhz", *_ARITHMETIC)

    def _tensor(self) -> None:
        self._computed("tensor", "tensor_clock_mhz")

    def _computed(self, kernel: str, clock: str, *arguments: Argument) -> None:
        """The cycles of a kernel that computes, and the clock that it ran at."""
        timed = self._timed(kernel, [arguments] * _REPEATS)
        self._keep(f"{kernel}_cycles", [_of_sm(stamps, _CYCLES) for stamps in timed])
        # Per SM: they do not begin at the same time.
        clocks = [1000 * _of_sm(stamps, _CYCLES) / _of_sm(stamps, _NS) for stamps in timed]
        self._keep(clock, clocks)

    def _memory(self) -> None:
        """The cycles of reading from L2 and DRAM, and the time of the latter."""
        fitting = int(self._cuda.attribute(driver.L2_BYTES) * _L2_SHARE)
        if fitting < _LEAST_L2_BYTES:
            raise MeasurementError(
                f"this GPU has {fitting:,} bytes of L2, and the canary needs {_LEAST_L2_BYTES:,}"
            )
        l2_bytes = 1 << (fitting.bit_length() - 1)
        with self._cuda.memory(_DRAM_BYTES) as buffer:
            self._cuda.fill(buffer, _WORD, _DRAM_BYTES)
            dram = self._timed("dram", [_read(buffer, _DRAM_BYTES)] * _REPEATS)
            places = range(buffer, buffer + _DRAM_BYTES, l2_bytes)[:_L2_PLACES]
            l2 = self._timed("l2", [_read(place, l2_bytes) for place in places])
        self._keep("l2_cycles", [_of_sm(stamps, _CYCLES) for stamps in l2], of=fmean)
        self._keep("dram_cycles", [_of_sm(stamps, _CYCLES) for stamps in dram])
        self._keep("dram_ns", [_all_ns(stamps) for stamps in dram])

    def _timed(self, kernel: str, repeats: Sequence[Sequence[Argument]]) -> list[_Stamps]:
        """The stamps of each repeat of a kernel, by its arguments, after one that warms up."""
        with self._cuda.memory(self._stamps_bytes) as out:
            timed = []
            for arguments in (repeats[-1], *repeats):
                self._kernel(kernel, out, arguments)()
                timed.append(self._stamps(out))
        return timed[1:]

    def _kernel(self, name: str, out: int, arguments: Sequence[Argument]) -> Callable[[], None]:
        """A function that launches a kernel, which leaves a stamp of each SM at `out`."""
        return self._cuda.kernel(
            self._module,
            name,
            self._sms,
            _THREADS,
            (ctypes.c_uint64(out), *arguments),
            shared_bytes=self._shared_bytes,
        )

    def _stamps(self, out: int) -> _Stamps:
        """The stamps of the last kernel launched there."""
        return list(_STAMP.iter_unpack(self._cuda.copied(out, _STAMP.size * self._sms)))

    def _queue(self) -> None:
        """The share of the GPU's time that a queue of kernels had.

        A single kernel does not show it, since it waits for its turn before it begins. NVML shows
        no process of another container.
        """
        try:
            own_ns = 1000 * self._readings["arithmetic_cycles"] / self._readings["sm_clock_mhz"]
        except KeyError:
            return  # which has an obstacle of its own
        size = self._stamps_bytes
        with self._cuda.memory(2 * size) as before:
            first, later = (
                self._kernel("arithmetic", stamps, _ARITHMETIC)
                for stamps in (before, before + size)
            )
            first()
            for _ in range(_QUEUED):
                later()
            begin, end = (max(s[3] for s in self._stamps(at)) for at in (before, before + size))
        self._keep("time_share", [_QUEUED * own_ns / (end - begin)])

    def _launches(self) -> None:
        """The host's time for one launch, driver and ctypes together."""
        launch = self._cuda.kernel(self._module, "nothing", 1, 32)
        batches = []
        for _ in range(_BATCHES):
            self._cuda.synchronize()
            begin = time.perf_counter_ns()
            for _ in range(_LAUNCHES):
                launch()
            batches.append((time.perf_counter_ns() - begin) / 1e3 / _LAUNCHES)
        self._cuda.synchronize()
        self._keep("launch_us", batches, of=min)

    def _host(self) -> None:
        """The time of hashing a buffer on the host."""
        buffer = bytes(_HASHED_BYTES)
        times = []
        for _ in range(_HASHES):
            begin = time.perf_counter_ns()
            hashlib.sha256(buffer).digest()
            times.append((time.perf_counter_ns() - begin) / 1e6)
        self._keep("host_ms", times, of=min)

    def _keep(
        self, name: str, repeats: list[float], of: Callable[[list[float]], float] = median
    ) -> None:
        """Keeps the fastest of the host's times: interruptions only make them slower.

        For places in the L2 it keeps the mean, since each place is valid.
        """
        value = of(repeats)
        spread = median(abs(repeat - value) for repeat in repeats) / value
        # So many digits as mean something, for files that people read.
        self._readings[name] = float(f"{value:.7g}")
        self._spreads[name] = float(f"{spread:.3g}")


_Stamps = Sequence[tuple[int, ...]]
"""The stamps of one launch, by block, in the format of `_STAMP`."""


def _read(buffer: int, size: int) -> tuple[Argument, ...]:
    """Arguments of a kernel that reads so much of a buffer."""
    return ctypes.c_uint64(buffer), ctypes.c_uint(size // 16 - 1)


def _all_ns(stamps: _Stamps) -> float:
    """The ns from the start of the first SM to the end of the last."""
    return float(max(stamp[3] for stamp in stamps) - min(stamp[2] for stamp in stamps))


def _of_sm(stamps: _Stamps, at: int) -> float:
    """The cycles, or ns, from first to last of an SM, on average.

    An SM has several blocks if others are busy.
    """
    spans: dict[int, tuple[int, int]] = {}
    for stamp in stamps:
        first, last, sm = stamp[at], stamp[at + 1], stamp[4]
        known = spans.get(sm, (first, last))
        spans[sm] = (min(first, known[0]), max(last, known[1]))
    return fmean(last - first for first, last in spans.values())
