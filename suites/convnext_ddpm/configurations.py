"""All configurations of the suite, by name: what crosses when, and which kernels compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from pytest_gpuperf.catalogue import architectures
from suites.convnext_ddpm.crossing import Crossing
from suites.convnext_ddpm.execution import Execution
from suites.convnext_ddpm.loading import Waiting, WeightLoading
from suites.convnext_ddpm.marks import Mark, unmarked
from suites.convnext_ddpm.model import Joining, Network
from suites.convnext_ddpm.operators import Operators, TorchOperators
from suites.convnext_ddpm.transfers import (
    CopiedActivations,
    GraphedNetwork,
    GraphedStep,
    Model,
    OnDevice,
    Overlapping,
    Resident,
    Sampler,
)
from suites.precision import Float32Precision, float32_precision

FLOAT32, TF32, BF16 = 1e-5, 1e-2, 5e-2
"""Bounds of the error, some three to eight times what the largest network of the suite has when
products are of 24, 11 and 8 bits, rounded to nearest: 1.2e-6, 1.7e-3 and 1.6e-2."""

Transfer = Callable[[Model, torch.device], Sampler]


def _torch(mark: Mark, device: torch.device) -> Operators:  # noqa: ARG001 -- they run anywhere
    return TorchOperators(mark)


def _quickest(mark: Mark, device: torch.device) -> Operators:
    """The fused kernels, on a GPU: beside slow ones nobody would see what copies cost."""
    if device.type == "cpu":
        return TorchOperators(mark)
    return _kernels(mark, device, fused=True)


def _kernels(
    mark: Mark,  # noqa: ARG001 -- what they do in one kernel has no parts
    device: torch.device,  # noqa: ARG001 -- a GPU, the current one
    *,
    convolution: Literal["naive", "tiled", "im2col_bf16"] = "tiled",
    norm: Literal["naive", "warp_shuffle", "three_kernel"] = "warp_shuffle",
    fused: bool = False,
    blocks: bool = False,
) -> Operators:
    from suites.convnext_ddpm.kernels import KernelOperators

    return KernelOperators(convolution=convolution, norm=norm, fused=fused, blocks=blocks)


@dataclass(frozen=True)
class Configuration:
    """A named way to sample, and, where torch's own operators compute, to train."""

    name: str
    summary: str
    transfer: Transfer = OnDevice
    """What crosses between host and device while it samples."""
    operators: Callable[[Mark, torch.device], Operators] = _torch
    """What computes; given what marks its parts, and where."""
    joining: Joining = "concatenate"
    precision: Float32Precision = "ieee"
    """Of torch's matrix products and convolutions on a GPU."""
    bound: float = FLOAT32
    """The largest error of the network's answer, as a share of the largest exact one in float64."""
    compiled: bool = False
    """The network goes through torch.compile."""
    gpus: str = "sm70+"
    """The GPUs it runs on, as the marker `gpu_arch` has them."""
    absent: str = ""
    """Why it does not run on those before them."""
    without_gpu: str | None = None
    """Why it does not run on a CPU, where it does not."""

    def unavailable(self, arch: str) -> str | None:
        """Why this configuration cannot run on `arch`, or None where it can."""
        if arch == architectures.CPU:
            return self.without_gpu
        return None if architectures.matches(self.gpus, arch) else self.absent

    @contextmanager
    def applied(
        self, network: Network, mark: Mark = unmarked, device: torch.device | None = None
    ) -> Iterator[Network]:
        """`network` computing as this configuration does, within the block.

        It computes on `device`, or where its weights are. torch's global state is as it was
        afterwards. A compiled network has no marks: they would be compiled too, or keep it from
        that.
        """
        mark = unmarked if self.compiled else mark
        device = device or next(network.parameters()).device
        network.how = Execution(self.operators(mark, device), mark)
        network.joining = self.joining
        with float32_precision(self.precision):
            if self.compiled:
                network.compile()
            yield network

    @contextmanager
    def sampling(
        self, model: Model, device: torch.device, mark: Mark = unmarked
    ) -> Iterator[Sampler]:
        """A sampler of `model` on `device`, which is used within the block. It takes the model."""
        with self.applied(model.network, mark, device):
            yield self.transfer(model, device)


def _copied(model: Model, device: torch.device, *, pinned: bool, non_blocking: bool) -> Sampler:
    return CopiedActivations(model, Crossing(device, pinned, non_blocking))


def _resident(model: Model, device: torch.device, *, pinned: bool) -> Sampler:
    return Resident(model, Crossing(device, pinned, non_blocking=pinned))


def _overlapping(model: Model, device: torch.device) -> Sampler:
    return Overlapping(model, Crossing(device, pinned=True, non_blocking=True))


def _graphed(model: Model, device: torch.device) -> Sampler:
    return GraphedNetwork(model, Crossing(device, pinned=True, non_blocking=True))


_CUDA_KERNELS = "its kernels are CUDA C++, which only a GPU runs"
_NOT_PINNED = "without a GPU no memory is pinned: the same as {}"
_NO_GRAPH = "CUDA graphs are a GPU's"

_transferred = partial(Configuration, operators=_quickest)
_kernel = partial(Configuration, without_gpu=_CUDA_KERNELS)

CONFIGURATIONS: dict[str, Configuration] = {
    configuration.name: configuration
    for configuration in (
        Configuration(
            "baseline",
            "torch's own operators (cuDNN's, on a GPU) in float32, TF32 off; all on the device",
        ),
        # What crosses, with the fused kernels where there is a GPU.
        _transferred(
            "copy_sync",
            "activations cross to the device and back around every operator; pageable memory, "
            "each copy waited for",
            partial(_copied, pinned=False, non_blocking=False),
        ),
        _transferred(
            "copy_sync_pinned",
            "as copy_sync, from and to pinned memory",
            partial(_copied, pinned=True, non_blocking=False),
            without_gpu=_NOT_PINNED.format("copy_sync"),
        ),
        _transferred(
            "copy_async",
            "as copy_sync, from and to pinned memory, and the host waits once per time step",
            partial(_copied, pinned=True, non_blocking=True),
        ),
        _transferred(
            "copy_async_pageable",
            "as copy_async, of pageable memory, which the driver stages",
            partial(_copied, pinned=False, non_blocking=True),
            without_gpu=_NOT_PINNED.format("copy_async"),
        ),
        _transferred(
            "resident",
            "weights and activations stay on the device; an image crosses each way per time step, "
            "and the host computes p_sample",
            partial(_resident, pinned=True),
        ),
        _transferred(
            "resident_pageable",
            "as resident, from and to pageable memory",
            partial(_resident, pinned=False),
            without_gpu=_NOT_PINNED.format("resident"),
        ),
        _transferred(
            "overlap",
            "as resident; the time is embedded while the image moves, and the host does its part "
            "of p_sample while the device computes",
            _overlapping,
        ),
        _transferred(
            "graph",
            "as resident, with the network as a CUDA graph",
            _graphed,
            without_gpu=_NO_GRAPH,
        ),
        _transferred(
            "resident_graph",
            "the whole time step, p_sample too, as a CUDA graph; nothing crosses",
            GraphedStep,
            without_gpu=_NO_GRAPH,
        ),
        # Which kernels, with everything on the device as in the baseline.
        Configuration(
            "tf32",
            "TF32 in torch's matrix products and convolutions",
            precision="tf32",
            bound=TF32,
        ),
        Configuration(
            "compile",
            "the network through torch.compile",
            compiled=True,
            without_gpu="what the compiler makes for a CPU is another program",
        ),
        Configuration(
            "preallocated",
            "the gated skip and the map from below are written into one map, as far as torch can",
            joining="preallocated",
        ),
        _kernel(
            "naive",
            "direct convolution and layer norm, one thread per output, nothing shared",
            operators=partial(_kernels, convolution="naive", norm="naive"),
        ),
        _kernel(
            "tiled",
            "direct convolution from tiles in shared memory; layer norm by warp shuffles",
            operators=partial(_kernels, convolution="tiled"),
        ),
        _kernel(
            "naive_norm",
            "as tiled, with the naive layer norm",
            operators=partial(_kernels, norm="naive"),
        ),
        _kernel(
            "three_kernel_norm",
            "as tiled, with layer norm in three kernels: partial sums, one block, normalisation",
            operators=partial(_kernels, norm="three_kernel"),
        ),
        _kernel(
            "im2col_bf16",
            "convolutions as im2col and a product on the tensor cores in BF16, summed in float32",
            operators=partial(_kernels, convolution="im2col_bf16"),
            bound=BF16,
            gpus="sm80+",
            absent="tensor cores multiply BF16 from sm80 on",
        ),
        _kernel(
            "fused",
            "as tiled, with bias, addend and GELU or ReLU in the convolution's kernel",
            operators=partial(_kernels, fused=True),
        ),
        _kernel(
            "fused_block",
            "as fused, with whole ConvNeXt blocks in one kernel where they fit",
            operators=partial(_kernels, fused=True, blocks=True),
        ),
        _kernel(
            "preallocated_skip",
            "as fused; the gated skip and the map from below are written into one map: no copy",
            operators=partial(_kernels, fused=True),
            joining="preallocated",
        ),
    )
}
"""In the order in which they are measured."""

TRAINING = ("baseline", "tf32", "compile")
"""Those whose operators can be differentiated and whose work is on the device."""

CHAIN = ("copy_sync", "copy_async", "resident", "overlap", "baseline", "graph", "resident_graph")
"""Those that sample an image from the first time step to the last."""


@dataclass(frozen=True)
class Loading:
    """A named way to bring the weights to the device."""

    name: str
    summary: str
    pinned: bool
    non_blocking: bool
    waiting: Waiting = "for all"
    without_gpu: str | None = None

    def unavailable(self, arch: str) -> str | None:
        """Why this cannot run on `arch`, or None where it can."""
        return self.without_gpu if arch == architectures.CPU else None

    @contextmanager
    def loading(
        self, model: Model, device: torch.device, mark: Mark = unmarked
    ) -> Iterator[WeightLoading]:
        """Loads the weights of `model`, with torch's own operators, within the block."""
        crossing = Crossing(device, self.pinned, self.non_blocking)
        with CONFIGURATIONS["baseline"].applied(model.network, mark):
            yield WeightLoading(model, crossing, self.waiting)


LOADINGS: dict[str, Loading] = {
    loading.name: loading
    for loading in (
        Loading(
            "load_sync",
            "all weights from pageable memory, each copy waited for; then the first time step",
            pinned=False,
            non_blocking=False,
        ),
        Loading(
            "load_sync_pinned",
            "as load_sync, from pinned memory",
            pinned=True,
            non_blocking=False,
            without_gpu=_NOT_PINNED.format("load_sync"),
        ),
        Loading(
            "load_async",
            "all weights from pinned memory on a stream of their own; the first time step waits "
            "for all of them",
            pinned=True,
            non_blocking=True,
        ),
        Loading(
            "load_async_pageable",
            "as load_async, from pageable memory, which the driver stages",
            pinned=False,
            non_blocking=True,
            without_gpu=_NOT_PINNED.format("load_async"),
        ),
        Loading(
            "early_start",
            "as load_async; each module waits for its own weights alone",
            pinned=True,
            non_blocking=True,
            waiting="for its own",
        ),
    )
}
"""In the order in which they are measured."""
