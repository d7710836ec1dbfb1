"""Drives the scripted CUDA driver of fake_cuda.c from Python."""

from __future__ import annotations

import ctypes
from pathlib import Path

from pytest_gpuperf.measure.device.driver import Driver

KERNELS = ("arithmetic", "tensor", "l2", "dram", "nothing", "placed")


class FakeGpu:
    """The driver, loaded through the code under test, and its script; see the C file."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.fake_log.restype = ctypes.c_char_p
        self._library.fake_reads.restype = ctypes.c_size_t
        self._library.fake_room.argtypes = (ctypes.c_size_t,)
        self._library.fake_takes.argtypes = (ctypes.c_int, ctypes.c_double)
        self._library.fake_slow.argtypes = (ctypes.c_int, ctypes.c_double)
        self._library.fake_turns.argtypes = (ctypes.c_double,)
        self._library.fake_reset()
        self.cuda = Driver(library)

    def reset(self) -> None:
        """As if it had just been loaded; a test leaves nothing in the GPU's memory."""
        left, log = self._library.fake_alive(), self.log
        self._library.fake_reset()
        assert left == 0, log

    def fail(self, call: str, result: int, after: int = 0) -> None:
        """Lets `call` fail, after it has succeeded `after` times."""
        self._library.fake_fail(call.encode(), result, after)

    def room(self, size: int) -> None:
        """No allocation may be larger."""
        self._library.fake_room(size)

    def l2(self, size: int) -> None:
        self._library.fake_l2(size)

    def takes(self, kernel: str, cycles: float) -> None:
        self._library.fake_takes(KERNELS.index(kernel), cycles)

    def slow(self, launch: int, factor: float) -> None:
        """The launch of this number, of each kernel from 1, takes so many times as long."""
        self._library.fake_slow(launch, factor)

    def shared(self) -> None:
        """Somebody else has work on the second SM, so that the first gets two blocks."""
        self._library.fake_shared(1)

    def turns(self, times: float) -> None:
        """Somebody else has the GPU between our kernels, which take so many times as long."""
        self._library.fake_turns(times)

    def devices(self, count: int) -> None:
        self._library.fake_devices(count)

    def launches(self, kernel: str) -> int:
        return int(self._library.fake_launches(KERNELS.index(kernel)))

    def reads(self, kernel: str) -> int:
        """The size of the buffer that a kernel has read, in bytes."""
        return int(self._library.fake_reads(KERNELS.index(kernel)))

    def places(self, kernel: str) -> int:
        """How often a kernel read elsewhere than in the launch before."""
        return int(self._library.fake_places(KERNELS.index(kernel)))

    @property
    def log(self) -> list[str]:
        """What was called, in order."""
        logged: bytes = self._library.fake_log()
        return logged.decode().splitlines()
