"""The device's memory: the most that a step takes of it, and what to say when it runs out."""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pytest_gpuperf.errors import UnsoundStep

_REMEDY = (
    "Measure a smaller input, or end other processes on the device (`gpuperf doctor` lists them). "
    "If torch reserved much memory that it does not use, set "
    "PYTORCH_ALLOC_CONF=expandable_segments:True"
)


class CudaMemory:
    """Memory that an execution of the step requests from torch's allocator. Never waits.

    It counts requested bytes: the block of a tensor may be up to 1 MiB larger, depending on earlier
    allocations, by other tests too.

    The pools of CUDA graphs count as long as they exist. A graph's tensors are made in its own pool
    at capture, and each replay uses them. Allocations of other libraries are not included. torch is
    not imported here: a step without torch has no such memory.
    """

    def __init__(self) -> None:
        self._before: int | None = None

    def begin(self) -> None:
        """Forgets the peak so far."""
        torch: Any = sys.modules.get("torch")
        self._before = None
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()
            self._before = _asked_for(torch)["current"]

    def peak(self) -> int | None:
        """The peak since then, less what was in use at the beginning, and the graphs' pools."""
        if self._before is None:
            return None
        torch: Any = sys.modules["torch"]
        pools = sum(
            int(segment["total_size"])
            for segment in torch.cuda.memory_snapshot()
            if any(segment.get("segment_pool_id", (0, 0)))
        )
        return _asked_for(torch)["peak"] - self._before + pools


def _asked_for(torch: Any) -> Mapping[str, int]:
    """Bytes of tensors, now ("current") and at most ("peak"), as torch.cuda.memory_stats has them.

    The backend cudaMallocAsync only has the bytes handed out, which are the same there.
    """
    stats = torch.cuda.memory_stats_as_nested_dict()
    asked: Mapping[str, int] = stats["requested_bytes"]["all"]
    handed_out: Mapping[str, int] = stats["allocated_bytes"]["all"]
    return asked if asked["allocated"] else handed_out


@contextmanager
def suffices() -> Iterator[None]:
    """In the block, which runs the step, turns a lack of memory into an UnsoundStep.

    The step's allocations are freed, because the next test may need them.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        message = str(error)
        # torch.OutOfMemoryError, or an equivalent of another library
        if not isinstance(error, MemoryError) and "out of memory" not in message.lower():
            raise
        said = message.splitlines()[0].rstrip(".") if message else "MemoryError"
        # The tensors of the step live in the frames that the exception holds.
        traceback.clear_frames(error.__traceback__)
        give_back()
        raise UnsoundStep(f"the step ran out of memory: {said}. {_REMEDY}") from None


def give_back() -> None:
    """Collects garbage, and returns to the device what torch then keeps for later.

    A step and its graph are often a cycle, so the previous test's graph would stay until garbage is
    collected. A pool of a graph stays while any part of it is in use, and cuBLAS keeps a workspace
    in the pool of its first capture.
    """
    gc.collect()
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        # torch's own tests call it; it has no public name.
        clear_workspaces = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear_workspaces is not None:
            clear_workspaces()
        torch.cuda.empty_cache()
