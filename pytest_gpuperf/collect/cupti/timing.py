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
