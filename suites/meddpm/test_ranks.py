"""Med-DDPM's training step over two and four ranks, batch 1 on each.

On GPUs a rank has one of its own. A CPU counts two ranks in TF32's configuration, which is float32
there; what more ranks or other kernels change is how GPUs work.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import product
from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf.catalogue import architectures
from suites.meddpm.tolerances import of_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuperf.plugin.fixture import GpuPerf
    from suites.meddpm.data import Volumes

SHARDINGS = ("ddp", "fsdp2")
CONFIGURATIONS = ("tf32", "best")
RANKS = (2, 4)
ON_A_CPU = ("tf32", 2)


@pytest.mark.beyond
# torch 2.13's, of what is written in place on an attention's output: nothing is.
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(
    ("sharding", "configuration"),
    [
        pytest.param(
            *(sharding, name),
            marks=[
                # Another configuration than that of one GPU, for claims to tell them apart.
                pytest.mark.optimization(f"{name}_ranks"),
                pytest.mark.gpuperf(**of_ranks(sharding, name)),
            ],
        )
        for sharding, name in product(SHARDINGS, CONFIGURATIONS)
    ],
)
def test_training_step_over_ranks(
    request: pytest.FixtureRequest,
    gpuperf: GpuPerf,
    volumes: Volumes,
    sharding: str,
    configuration: str,
    ranks: int,
) -> None:
    """Forward, backward and Adam on every rank, which share gradients or weights."""
    if gpuperf.device.arch == architectures.CPU and (configuration, ranks) != ON_A_CPU:
        pytest.skip(f"{configuration} on {ranks} ranks: what it changes is how GPUs work")
    from suites.meddpm.optimizations import uncaptured

    # What waits for other ranks is not captured in a CUDA graph.
    optimization = uncaptured(configuration)
    unavailable = optimization.unavailable(gpuperf.device.arch)
    if unavailable:
        pytest.skip(unavailable)

    applied = ExitStack()

    def entry(_: int) -> Callable[[], object]:
        import torch

        from suites.meddpm import sharding as shards
        from suites.meddpm.conftest import NETWORK_SIZE
        from suites.meddpm.model import med_ddpm

        shards.join(gpuperf.torch_device.type)
        torch.manual_seed(0)
        diffusion = med_ddpm(NETWORK_SIZE)
        applied.enter_context(optimization.applied(diffusion))
        return shards.ShardedStep(
            sharding, diffusion, volumes, optimization, gpuperf.phase, gpuperf.torch_device.type
        )

    workload = request.getfixturevalue("workload")
    with applied:  # torchrun's ranks go on to the next configuration
        gpuperf.measure_ranks(entry, ranks, workload={**workload, "sharding": sharding})
