"""Drives the scripted CUPTI of fake_cupti.c from Python."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_gpuperf.measure import gpu_collector
from pytest_gpuperf.measure.collector import Phases, Work
from pytest_gpuperf.measure.cupti.cupti_collector import CuptiCollector
from pytest_gpuperf.measure.cupti.library import Cupti
from pytest_gpuperf.measure.device.driver import Driver
from pytest_gpuperf.measure.execution import CudaTimer
from pytest_gpuperf.measure.trace import profile
from pytest_gpuperf.measure.trace.profile import Trace
from tests import ROOT
from tests.examples import H200


class Fake:
    """The library, loaded once through the code under test, and its script."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.fake_log.restype = ctypes.c_char_p
        self._library.fake_work.argtypes = (ctypes.c_double,)
        self._library.fake_reset()
        self.patch: pytest.MonkeyPatch
        """The one of the test that runs."""
        self.cupti = Cupti(path)
        self.cuda = Driver(path)

    def reset(self) -> None:
        """As if it had just been loaded; what was opened until now must have been closed."""
        left_open = self.alive
        self._library.fake_reset()
        self.cupti.available.clear()
        assert left_open == 0, self.log

    def collector(
        self, timer: FakeTimer | None = None, traced: Callable[..., Trace] = profile.trace
    ) -> CuptiCollector:
        """A collector that counts on this library, and times and traces as these say."""
        self.patch.setattr(gpu_collector, "CudaTimer", lambda: timer or FakeTimer(self))
        self.patch.setattr(profile, "trace", traced)
        return CuptiCollector(H200, ROOT)

    def set(self, what: str, value: int | str) -> None:
        """Calls fake_<what>; see the C file."""
        function = getattr(self._library, f"fake_{what}")
        function(value.encode() if isinstance(value, str) else value)

    def fail(self, call: str, result: int, after: int = 0) -> None:
        """Lets `call` fail, after it has succeeded `after` times."""
        self._library.fake_fail(call.encode(), result, after)

    def work(self, amount: float) -> None:
        self._library.fake_work(amount)

    def launching(self, *amounts: float) -> Callable[[], None]:
        """A step that launches kernels of these amounts of work."""

        def run() -> None:
            for amount in amounts:
                self.work(amount)

        return run

    def note(self, text: str) -> None:
        self._library.fake_note(text.encode())

    @property
    def log(self) -> list[str]:
        """What was called, in order, without the prefix "cupti"; ranges as "push <name>"."""
        lines = self._library.fake_log().decode().splitlines()
        return [line.removeprefix("cupti") for line in lines]

    @property
    def alive(self) -> int:
        """Objects that were not released."""
        return int(self._library.fake_alive())


class Step:
    """Does as much work as its phases say, in phases; notes each execution and reset.

    It does so much work `between` phases, before them and after.
    """

    def __init__(self, fake: Fake, *parts: tuple[str, float], between: float = 0.0) -> None:
        self.fake, self.parts, self.between = fake, parts, between
        self.marks = Phases()

    def __call__(self) -> None:
        self.fake.note("step")
        self.fake.work(self.between)
        for name, amount in self.parts:
            with self.marks.mark(name):
                self.fake.work(amount)
            self.fake.work(self.between)

    def reset(self) -> None:
        self.fake.note("reset")
        self.fake.work(1e6)

    @property
    def work(self) -> Work:
        return Work(self, self.marks, self.reset)


class FakeTimer(CudaTimer):
    """Every run takes 5 ms on the device, and so many on the wall."""

    wall_ms = 7.0

    def __init__(self, fake: Fake, wall_ms: float = wall_ms) -> None:
        self._fake = fake
        self.wall_ms = wall_ms

    def synchronize(self) -> None:
        self._fake.note("synchronize")

    def timed(self, run: Callable[[], object], *, apart: bool = False) -> tuple[float, float]:  # noqa: ARG002
        self._fake.note("timed")
        run()
        self.synchronize()
        return 5.0, self.wall_ms
