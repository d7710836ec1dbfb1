"""Med-DDPM's training step over several ranks: batch 1 on each, gradients or weights shared."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from suites.meddpm.data import Volumes
from suites.meddpm.model import GaussianDiffusion3D
from suites.meddpm.model.layers import Block
from suites.meddpm.optimizations import Optimization
from suites.meddpm.step import LEARNING_RATE
from suites.training import ModelTraining, Phase

SHARDINGS = ("ddp", "fsdp2")
"""DistributedDataParallel, which sums gradients; fully_shard, which keeps a part of the weights on
each rank and gathers them block by block."""
SETTLING = {"ddp": 10, "fsdp2": 2}
"""Steps after which each does the same. In its second DistributedDataParallel makes its buckets
anew, in the order in which gradients came; and its first ten it times, for which its host waits for
eight events in each (torch/csrc/distributed/c10d/logger.cpp): 264 ms in place of 252 on two H100s
(tests/data/h100-rank-sessions)."""


class ShardedStep(ModelTraining):
    """A training step of one rank: forward, backward, optimizer, and what it shares with others.

    The process group is there, and the optimization is applied to `diffusion`.
    """

    def __init__(
        self,
        sharding: str,
        diffusion: GaussianDiffusion3D,
        volumes: Volumes,
        optimization: Optimization,
        phase: Phase,
        device: str,
    ) -> None:
        image, mask = volumes.image.to(device), volumes.mask.to(device)
        sharded = SHARD[sharding](diffusion.to(device), optimization, device)
        # As without it: what is sharded are the weights, and every rank draws its own noise.
        torch.manual_seed(distributed.get_rank())

        def loss() -> Tensor:
            computed: Tensor = sharded(optimization.prepare(image), optimization.prepare(mask))
            return computed

        super().__init__(sharded, loss, LEARNING_RATE, phase, device, adam=optimization.adam)
        for _ in range(SETTLING[sharding]):
            self()
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Restores the state, of sharded weights this rank's part of it."""
        if not self.adam.state:
            self._make_adam_state()
        for weight, before in zip(self._model.parameters(), self._weights, strict=True):
            _local(weight).copy_(_local(before))
        for state in self.adam.state.values():
            for value in state.values():
                _local(value).zero_()
        self.adam.zero_grad(set_to_none=True)
        torch.set_rng_state(self._cpu_generator)
        if self._device_generator is not None:
            torch.cuda.set_rng_state(self._device_generator, self.device)


def join(device: str) -> None:
    """Makes the process group of the ranks, and this rank's GPU the one that torch uses.

    Once in a process: what torchrun has started measures one test after another.
    """
    if distributed.is_initialized():
        return
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    else:
        torch.set_num_threads(1)
    distributed.init_process_group("nccl" if device == "cuda" else "gloo")


def _replicated(diffusion: nn.Module, optimization: Optimization, device: str) -> nn.Module:
    if _compiled(optimization):
        # The network stays one graph, as on one GPU: torch would cut it where buckets end.
        dynamo: Any = torch._dynamo.config
        dynamo.optimize_ddp = False
    return DistributedDataParallel(
        diffusion, device_ids=None if device == "cpu" else [torch.cuda.current_device()]
    )


def _fully_sharded(diffusion: nn.Module, optimization: Optimization, device: str) -> nn.Module:
    mesh = init_device_mesh(device, (distributed.get_world_size(),))
    # It takes no other layout of weights; that of volumes is the step's.
    diffusion.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    for block in diffusion.modules():
        # Not the list itself, which is never called: gathering comes with a call. What is compiled
        # as one graph cannot be left for gathering: there all weights are gathered at once.
        for part in block if isinstance(block, Block) and not _compiled(optimization) else ():
            fully_shard(part, mesh=mesh)
    fully_shard(diffusion, mesh=mesh)  # in place
    return diffusion


def _compiled(optimization: Optimization) -> bool:
    return any(part.name == "compile" for part in optimization.parts)


SHARD: dict[str, Callable[[nn.Module, Optimization, str], nn.Module]] = {
    "ddp": _replicated,
    "fsdp2": _fully_sharded,
}


def _local(tensor: Any) -> Tensor:
    """The rank's own part of a sharded tensor, which shares its memory; any other as it is."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part
