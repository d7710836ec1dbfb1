"""The device's memory: what is said when it runs out, and what is let go then."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from pytest_gpuperf.errors import UnsoundStep
from pytest_gpuperf.measure.device.memory import CudaMemory, suffices

OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of ..."


def test_running_out_is_said_with_what_to_try_and_other_errors_come_out_as_they_are() -> None:
    for error in (
        torch.OutOfMemoryError(OUT_OF_MEMORY),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ..."),
        torch.OutOfMemoryError("HIP out of memory, in words of its own"),
        MemoryError("Unable to allocate 5 TiB"),
        MemoryError(),
    ):
        first = (str(error) or "MemoryError").splitlines()[0].rstrip(".")
        with pytest.raises(UnsoundStep) as caught, suffices():
            raise error
        assert str(caught.value).startswith(f"the step ran out of memory: {first}. Measure a")
    for other in (RuntimeError("expected scalar type Half"), KeyError("memory")):
        with pytest.raises(type(other)) as unchanged, suffices():
            raise other
        assert unchanged.value is other


def test_what_the_step_had_allocated_is_let_go() -> None:
    """Also while the failure is still being reported: pytest keeps its traceback."""
    kept: list[weakref.ref[torch.Tensor]] = []

    def step() -> None:
        activations = torch.zeros(8)
        kept.append(weakref.ref(activations))
        raise torch.OutOfMemoryError(OUT_OF_MEMORY)

    with pytest.raises(UnsoundStep) as caught, suffices():
        step()
    gc.collect()
    assert kept[0]() is None, caught.value


class ScriptedCuda:
    """What torch.cuda says of an allocator with a graph's pool of 64 MiB.

    100 bytes were asked for, for which it handed out 512.
    """

    def __init__(self, *, counts_requests: bool) -> None:
        self.most = 100
        self.counts_requests = counts_requests

    def is_initialized(self) -> bool:
        return True

    def reset_peak_memory_stats(self) -> None:
        self.most = 100

    def memory_stats_as_nested_dict(self) -> dict[str, dict[str, dict[str, int]]]:
        asked = {"current": 100, "peak": self.most, "allocated": 7000}
        handed_out = {"current": 512, "peak": -(-self.most // 512) * 512, "allocated": 8192}
        return {
            "requested_bytes": {"all": asked if self.counts_requests else dict.fromkeys(asked, 0)},
            "allocated_bytes": {"all": handed_out},
        }

    def memory_snapshot(self) -> list[dict[str, object]]:
        return [
            {"total_size": 2**30, "segment_pool_id": (0, 0)},
            {"total_size": 2**26, "segment_pool_id": (0, 1)},
            {"total_size": 2**20},
        ]


def test_the_pools_of_graphs_are_part_of_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay allocates nothing, and uses all that its capture did.

    Where requests are not counted, the peak is of blocks.
    """
    for counts_requests, most, peak in ((True, 164, 64), (False, 600, 512)):
        cuda = ScriptedCuda(counts_requests=counts_requests)
        monkeypatch.setattr(torch, "cuda", cuda)
        memory = CudaMemory()
        memory.begin()
        cuda.most = most
        assert memory.peak() == peak + 2**26
