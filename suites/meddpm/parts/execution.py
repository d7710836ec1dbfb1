"""Parts that decide how the step's operations reach the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from suites.meddpm.model.unet import UNet3D
from suites.meddpm.parts.base import Part


class Compile(Part):
    """The network, forward and backward, as code that torch's Inductor writes for it."""

    name = "compile"
    summary = "torch.compile generates the network's kernels."
    least_arch = "sm80"  # Triton's
    gpu = True
    triton = True

    def __init__(self, backend: str = "inductor") -> None:
        """`backend` is torch.compile's: others serve tests."""
        self._backend = backend

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Has the networks compiled when they are first called; they are as before afterwards."""
        networks = [module for module in model.modules() if isinstance(module, UNet3D)]
        try:
            for network in networks:
                network.compile(backend=self._backend, fullgraph=True, dynamic=False)
            yield
        finally:
            for network in networks:
                vars(network).pop("_compiled_call_impl", None)
            # Or every configuration would count towards the limit of recompilations, and its code
            # hold on to its weights.
            torch.compiler.reset()


class CudaGraph(Part):
    """One launch for the whole step."""

    name = "cuda_graph"
    summary = "Forward, backward and Adam replay as one CUDA graph."
    gpu = True
    adam = {"capturable": True}  # noqa: RUF012 -- the base class has its type
    captured = True


class FusedAdam(Part):
    """Adam's update of all weights in a few kernels, each of which does all of it."""

    name = "fused_adam"
    summary = "Adam updates all weights in one kernel."
    adam = {"fused": True}  # noqa: RUF012 -- the base class has its type
    trains_only = True
