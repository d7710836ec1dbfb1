"""A step as one CUDA graph."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
from torch import Tensor

WARMUP = 3
"""Steps before the capture, on a stream of their own, as torch asks for: what is loaded, chosen,
compiled or allocated once cannot be captured."""


class StepGraph:
    """Captures `step` and replays it. Nothing in the step may wait for the device.

    Random numbers are those that the step would have drawn: replays read the generator's state.
    """

    def __init__(self, step: Callable[[], Tensor], reset: Callable[[], object]) -> None:
        """Runs and captures `step`; `reset` puts its state back to what it was before."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUP):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        reset()
        # Another graph that is let go during the capture would end it: what is garbage goes before.
        gc.collect()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._result = step()
        reset()

    def __call__(self) -> Tensor:
        """One replay. Returns what the step returned, in memory of its own."""
        self._graph.replay()
        return self._result.clone()
