"""How long the device takes for something: CUDA events through torch, behind a small protocol."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol


class DeviceTimer(Protocol):
    """Waits for the device, and times work on it."""

    def synchronize(self) -> None:
        """Returns when the device has done all its work."""
        ...

    def timed(self, run: Callable[[], object]) -> tuple[float, float]:
        """Calls `run` and waits for the device: device time and wall-clock time, in ms."""
        ...


class DeviceClock(Protocol):
    """Marks moments in the order of the device's work, without waiting for them."""

    def mark(self) -> None:
        """The moment at which the device has done what was launched so far."""
        ...

    def moments(self) -> list[float]:
        """When the marks were, in ns since the first; waits for the device."""
        ...


class CudaClock:
    """CUDA events on torch's current stream. torch is imported at the first use."""

    def __init__(self) -> None:
        self._events: list[Any] = []

    def mark(self) -> None:
        """Records an event."""
        import torch

        make: Any = torch.cuda.Event  # untyped in some releases
        event = make(enable_timing=True)
        event.record()
        self._events.append(event)

    def moments(self) -> list[float]:
        """The events' times, in ns since the first."""
        import torch

        torch.cuda.synchronize()
        first = self._events[0]
        return [float(first.elapsed_time(event)) * 1e6 for event in self._events]


class CudaTimer:
    """CUDA events on torch's current stream. torch is imported at the first use."""

    def synchronize(self) -> None:
        """torch.cuda.synchronize: all streams of the current device."""
        import torch

        torch.cuda.synchronize()

    def timed(self, run: Callable[[], object]) -> tuple[float, float]:
        """Device time between two events around `run`, wall time up to synchronisation, in ms."""
        import torch

        event: Any = torch.cuda.Event  # untyped in some releases
        start, end = event(enable_timing=True), event(enable_timing=True)
        before = time.perf_counter()
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        wall = time.perf_counter() - before
        return float(start.elapsed_time(end)), wall * 1e3
