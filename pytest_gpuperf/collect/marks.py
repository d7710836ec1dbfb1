"""Marks in a running process, for the profiler around it."""

from __future__ import annotations

from typing import Any

from pytest_gpuperf.collect.ncu_step import PHASE

_STEP = "gpuperf step"


def _cuda() -> Any:
    import torch

    return torch.cuda


class CudaMarks:
    """cudaProfilerStart and cudaProfilerStop around the step, NVTX ranges around its phases."""

    def begin(self) -> None:
        """Waits for the device, and starts the profiler."""
        cuda = _cuda()
        cuda.synchronize()
        cuda.profiler.start()
        cuda.nvtx.range_push(_STEP)

    def end(self) -> None:
        """Waits for the device, and stops the profiler."""
        cuda = _cuda()
        cuda.synchronize()
        cuda.nvtx.range_pop()
        cuda.profiler.stop()

    def enter(self, phase: str) -> None:
        """Opens the phase's range."""
        _cuda().nvtx.range_push(PHASE + phase)

    def leave(self, phase: str) -> None:  # noqa: ARG002 -- ranges close in turn
        """Closes it."""
        _cuda().nvtx.range_pop()
