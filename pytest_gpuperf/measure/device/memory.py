"""The device's memory: the most that a step takes of it, and what to say when it runs out."""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pytest_gpuperf.errors import UnsoundStep


class CudaMemory:
    """What an execution of the step asks of torch's allocator. Waits for nothing.

    Asked for, not handed out: the block that a tensor gets may be up to 1 MiB larger than it,
    depending on what has been allocated before, by other tests too.

    The pools of CUDA graphs count as long as they are there: a graph's tensors are made in its own
    when it is captured, and each replay uses them. Not in it is what other libraries allocate by
    themselves. torch is not imported here: a step that does not use it has nothing of it to be
    watched.
    """

    def __init__(self) -> None:
        self._before: int | None = None

    def clear(self) -> None:
        """Lets go what earlier work has left, the pools of graphs that nobody holds among it.

        A step and its graph are often a cycle, so that the graph of the test before would be there
        until garbage is collected. A pool stays as long as anything in it is in use, and cuBLAS
        keeps a workspace in the pool of the first capture that it took part in. What the plugin
        has taken out of collections is looked through only where a pool is still there.
        """
        _give_back()
        torch: Any = sys.modules.get("torch")
        used = torch is not None and torch.cuda.is_initialized()
        if used and _of_graphs(torch.cuda.memory_snapshot()):
            with _nothing_kept_out():
                _give_back()

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
        made = _asked_for(torch)["peak"] - self._before
        return made + _of_graphs(torch.cuda.memory_snapshot())


def _asked_for(torch: Any) -> Mapping[str, int]:
    """Bytes of tensors, now ("current") and at most ("peak"), as torch.cuda.memory_stats has them.

    Of the backend cudaMallocAsync it has those handed out only, which are as many there.
    """
    stats = torch.cuda.memory_stats_as_nested_dict()
    asked: Mapping[str, int] = stats["requested_bytes"]["all"]
    handed_out: Mapping[str, int] = stats["allocated_bytes"]["all"]
    return asked if asked["allocated"] else handed_out


def _of_graphs(segments: Sequence[Mapping[str, Any]]) -> int:
    """The bytes of those segments of torch's allocator that belong to a graph's pool."""
    return sum(
        int(segment["total_size"])
        for segment in segments
        if any(segment.get("segment_pool_id", (0, 0)))
    )


@contextmanager
def suffices() -> Iterator[None]:
    """Has the block, which runs the step, fail with an UnsoundStep where memory runs out.

    What the step had allocated is let go: the next test may need it.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not _ran_out(error):
            raise
        problem = _shortage(str(error))
        # The tensors of the step live in the frames that the exception holds.
        traceback.clear_frames(error.__traceback__)
        with _nothing_kept_out():
            _give_back()
        raise UnsoundStep(problem) from None


def _ran_out(error: Exception) -> bool:
    """Whether it is torch.OutOfMemoryError, or a library's word for the same."""
    return isinstance(error, MemoryError) or "out of memory" in str(error).lower()


def _shortage(message: str) -> str:
    """What torch, or who else, says of it, and what to try."""
    said = message.splitlines()[0].rstrip(".") if message else "MemoryError"
    return f"the step ran out of memory: {said}. {_REMEDY}"


_REMEDY = (
    "Measure a smaller input, or give the device to this test alone (`gpuperf doctor` lists other "
    "processes on it); where much is reserved and unused, set "
    "PYTORCH_ALLOC_CONF=expandable_segments:True"
)


@contextmanager
def _nothing_kept_out() -> Iterator[None]:
    """Has collections look through all there is, what the plugin keeps out of them too."""
    kept = gc.get_freeze_count()
    gc.unfreeze()
    yield
    if kept:
        gc.freeze()


def _give_back() -> None:
    """Collects garbage, and returns to the device what torch then keeps for later."""
    gc.collect()
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        # torch's own tests call it; it has no public name.
        clear_workspaces = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear_workspaces is not None:
            clear_workspaces()
        torch.cuda.empty_cache()
